"""The rules of the project that ruff, mypy and import-linter can't express."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("airflow_provider_rfr", "pyspark_rfr", "spark_apps", "dags")
MODULES = sorted(path.relative_to(ROOT).as_posix() for package in PRODUCT for path in (ROOT / package).rglob("*.py"))
TOOLS = sorted(
    path.relative_to(ROOT).as_posix() for package in ("demo", "benchmarks") for path in (ROOT / package).glob("*.py")
)
LONGEST_MODULE = 650
LONGEST_FUNCTION = 40
MOST_PARSED_MODULES = 55
STOPWATCH = re.compile(r"(?:monotonic|perf_counter|process_time|thread_time|time)\(\) - \w+ <=? [\d.]")
#: Words with which a docstring describes, instead of saying what the function does.
NO_IMPERATIVES = re.compile(
    r"(the|an?|what|whether|how|why|where|who|which|each|one|this|these|its|all|none|no|as|in|of|for|by|from|to|names"
    r"|those|everything|\w+s)\b",
    re.IGNORECASE,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef

BLOCKED = """
import importlib, pkgutil, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is not installed here")

sys.path.insert(0, {root!r})
sys.meta_path.insert(0, Blocker())
for package in map(importlib.import_module, {packages!r}):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
"""


@cache
def source(module: str) -> str:
    return (ROOT / module).read_text(encoding="utf-8")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module), module)


@cache
def code_lines(module: str) -> frozenset[int]:
    """Lines with code on them: neither blank nor a comment alone. All lines of a long string count."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source(module)).readline)
    return frozenset(
        line for token in tokens if token.type not in silent for line in range(token.start[0], token.end[0] + 1)
    )


def functions(module: str) -> Iterator[Function]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def length(module: str, function: Function) -> int:
    """Lines of code in the body; neither decorators, signature nor docstring count, functions inside do."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if not body:
        return 0
    first = min([body[0].lineno, *(decorator.lineno for decorator in getattr(body[0], "decorator_list", []))])
    assert function.end_lineno is not None
    return len(code_lines(module) & set(range(first, function.end_lineno + 1)))


def is_for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def is_for_programs_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def imports(node: ast.AST, *, everywhere: bool) -> Iterator[str]:
    """Dotted names that an import of the module imports; ``everywhere``: whatever else it may import when it runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif is_for_types_alone(child):
            yield from (
                name
                for statement in child.orelse
                for name in imports(ast.Module([statement], []), everywhere=everywhere)
            )
        elif everywhere or not (
            isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_for_programs_alone(child)
        ):
            yield from imports(child, everywhere=everywhere)


@cache
def names_imported(module: str, *, everywhere: bool) -> tuple[str, ...]:
    return tuple(imports(tree(module), everywhere=everywhere))


def imported(module: str, prefix: str, *, everywhere: bool = True) -> list[str]:
    return [name for name in names_imported(module, everywhere=everywhere) if f"{name}.".startswith(f"{prefix}.")]


def importers(prefix: str, *, everywhere: bool = True) -> list[str]:
    return [module for module in MODULES if imported(module, prefix, everywhere=everywhere)]


def test_modules_are_short() -> None:
    lengths = {module: len(source(module).splitlines()) for module in MODULES}
    assert not {module: lines for module, lines in lengths.items() if lines > LONGEST_MODULE}


def test_a_module_with_an_underscore_is_imported_by_its_own_folder_alone() -> None:
    internal = {path.removesuffix(".py").replace("/", "."): Path(path).parent for path in MODULES if "/_" in path}
    intruders = [
        f"{module} imports {name}"
        for module in MODULES
        for imported_name in names_imported(module, everywhere=True)
        for name in (imported_name, imported_name.rpartition(".")[0])
        if internal.get(name, Path(module).parent) != Path(module).parent
    ]
    assert len(internal) > 20
    assert not intruders


def test_functions_are_short() -> None:
    lengths = {
        f"{module}:{function.lineno} {function.name}": length(module, function)
        for module in MODULES
        for function in functions(module)
    }
    assert len(lengths) > len(MODULES)
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST_FUNCTION}


def test_loop_variables_are_named_after_their_items() -> None:
    loops = (ast.For, ast.AsyncFor, ast.comprehension)
    targets = (
        (module, node.target)
        for module in (*MODULES, *TOOLS)
        for node in ast.walk(tree(module))
        if isinstance(node, loops)
    )
    names = [(module, name.id) for module, target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    assert len(names) > len(MODULES)
    assert not [module for module, name in names if name == "each"]


def test_docstrings_of_functions_begin_with_a_verb_in_the_imperative() -> None:
    docstrings = [
        (f"{module}:{function.lineno}", docstring)
        for module in (*MODULES, *TOOLS)
        for function in functions(module)
        if (docstring := ast.get_docstring(function))
    ]
    assert len(docstrings) > len(MODULES)
    assert not [place for place, docstring in docstrings if NO_IMPERATIVES.match(docstring)]


def test_first_lines_of_docstrings_name_the_thing_itself() -> None:
    """Not "what": what a deploy would do is its plan."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [
        (module, node)
        for module in (*MODULES, *TOOLS)
        for node in ast.walk(tree(module))
        if isinstance(node, documented)
    ]
    firsts = [(module, (ast.get_docstring(node) or "").partition("\n")[0]) for module, node in nodes]
    assert not [f"{module}: {line}" for module, line in firsts if re.search(r"\bwhat\b", line, re.IGNORECASE)]


def test_every_module_says_what_it_is_for() -> None:
    assert not [module for module in MODULES if not ast.get_docstring(tree(module))]


def test_every_module_reads_type_hints_late() -> None:
    late = "__future__.annotations"
    assert not [module for module in MODULES if len(tree(module).body) > 1 and not imported(module, late)]


def test_pyspark_is_imported_only_when_the_engine_runs() -> None:
    # Spark itself imports the data source.
    assert importers("pyspark", everywhere=False) == ["pyspark_rfr/__init__.py"]
    engines = ("airflow_provider_rfr/refresh/", "airflow_provider_rfr/builtins/spark_sql.py", "pyspark_rfr/")
    assert not [module for module in importers("pyspark") if not module.startswith(engines)]


def test_pandas_is_imported_nowhere() -> None:
    assert not importers("pandas")


def test_one_module_touches_the_spark_providers_hook() -> None:
    assert importers("airflow.providers.apache.spark.hooks") == ["airflow_provider_rfr/hooks/spark.py"]


def test_the_domain_imports_where_neither_airflow_nor_spark_nor_pandas_is_installed() -> None:
    packages = ("streams", "lake", "refresh", "store", "webhooks", "sinks", "builtins")
    import_all(*packages, blocked={"airflow", "pyspark", "pandas"})


def test_sources_import_where_neither_airflow_nor_spark_nor_iceberg_is_installed() -> None:
    import_all("streams", blocked={"airflow", "pyspark", "pandas", "pyiceberg", "pyarrow"})


def test_an_import_of_streams_loads_no_http_client() -> None:
    program = (
        "import sys, airflow_provider_rfr.streams as streams\n"
        "print(*{'requests', 'tenacity', 'airflow', 'pyspark', 'pyarrow', 'pandas'} & sys.modules.keys())\n"
        "print(hasattr(streams, 'Nonsense'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\nFalse\n"


def test_a_task_of_a_round_loads_nothing_of_iceberg_that_reads_tables() -> None:
    """Each Python worker of a cluster imports its task's modules, a tenth of a second for these."""
    program = (
        "import sys, airflow_provider_rfr.refresh.round_task\n"
        "print(*{'pyiceberg.io', 'pyiceberg.manifest', 'pyiceberg.expressions.parser'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_packages_of_airflow_import_without_spark() -> None:
    import_all("hooks", "triggers", "operators", blocked={"pyspark"})


def test_the_parse_of_a_dag_with_a_refresh_loads_few_modules() -> None:
    """Airflow parses each DAG's file every few seconds, in a process of its own."""
    program = (
        "import sys, airflow_provider_rfr.operators.full_refresh\n"
        "print(*(name for name in sys.modules if name.startswith('airflow_provider_rfr')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()[-1].split()) <= MOST_PARSED_MODULES


def import_all(*packages: str, blocked: set[str]) -> None:
    """Import every module of these packages in a new process."""
    program = BLOCKED.format(
        blocked=blocked, root=str(ROOT), packages=[f"airflow_provider_rfr.{package}" for package in packages]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_no_test_depends_on_how_fast_the_machine_is() -> None:
    """``tests/soon.py`` has one limit for all, and the comparison that stands for a limit."""
    tests = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py"))
    assert [module for module in tests if STOPWATCH.search(source(module))] == []


def test_imports_are_found_where_they_run(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspark\nelse:\n    import one.two\n"
        "try:\n    import three\nexcept ImportError:\n    pass\ndef later():\n    from four import five\n"
        "if __name__ == '__main__':\n    import six\n"
    )
    assert list(imports(tree(str(module)), everywhere=False)) == ["typing.TYPE_CHECKING", "one.two", "three"]
    assert list(imports(tree(str(module)), everywhere=True))[-2:] == ["four.five", "six"]


def test_the_page_of_modules_names_modules_that_exist() -> None:
    """In its lists of modules, which leave leading underscores out."""
    page = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    package, missing = "", []
    for line in page[page.index("`refresh/`, one refresh") : page.index("\n`make lint` and")].splitlines():
        if heading := re.match(r"`(\w+/)`, |The rest:", line):
            package = heading[1] or ""
        elif line.startswith("* "):
            first, second = line.removeprefix("* ").split(": ", 1)
            folder = "".join(("airflow_provider_rfr/", package, *re.findall(r"`(\w+/)`", first)))
            for name in re.findall(r"`(\w+/?)`", re.sub(r"\(.*?\)", "", second)):
                if name.endswith("/"):
                    folder += name
                elif not any((ROOT / f"{folder}{mark}{name}.py").exists() for mark in ("", "_")):
                    missing.append(f"{folder}{name}")
    assert missing == []
