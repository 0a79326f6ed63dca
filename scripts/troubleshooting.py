"""Write ``docs/reference/troubleshooting.md``: each error of the package, with messages that tests expect of it.

A message belongs to a class if its test has no other ``raises`` than for that class.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from airflow_provider_rfr.exceptions import EXIT_CONFIGURATION, EXIT_FENCED, RfrError

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reference" / "troubleshooting.md"
_UNIT: Final = ROOT / "tests" / "unit"
_ERROR: Final = re.compile(r"^class \w+\(\w*Error\b", re.MULTILINE)
_MOST_MESSAGES: Final = 6
_LENGTHS: Final = range(20, 301)
_COMPARED: Final = re.compile(r"(?:raises\((\w+)|check_messages\()")
_SNAPSHOT: Final = re.compile(r"^# name: (\w+)(?:\[.*?\])?(?:\.\d+)? \((\w+)\)\n(.*?)^# ---$", re.MULTILINE | re.DOTALL)
_HEAD: Final = """# Troubleshooting

The last line of a failed task, and of a failed command, is one sentence. Search this page for a part of it. Below,
`<...>` stands for what differs each time.

Begin with `airflow rfr doctor --dag DAG_ID`: it tries Java, Spark and the connections, and reads a page of each stream.
[Retries](../retries_and_resume.md) says how errors end a task, [Reliability](../reliability.md) what happens when a
part fails.

<!-- Written by python -m scripts.troubleshooting, from airflow_provider_rfr/exceptions.py and the tests' messages. -->
"""
_EXITS: Final = {EXIT_CONFIGURATION: ", the exit code is 2", EXIT_FENCED: ", the exit code is 3"}


def page_text() -> str:
    """Return the page as its file holds it."""
    examples = _examples()
    sections = ("\n".join(_section(kind, examples.get(kind.__name__, []))) for kind in error_classes())
    return "\n".join((_HEAD, *sections))


def error_classes() -> list[type[RfrError]]:
    """Return every error of the package, each after its base."""
    for path in sorted((ROOT / "airflow_provider_rfr").rglob("*.py")):
        if _ERROR.search(path.read_text(encoding="utf-8")):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return list(dict.fromkeys(_subclasses(RfrError)))


def _subclasses(kind: type[RfrError]) -> Iterator[type[RfrError]]:
    ours = (child for child in kind.__subclasses__() if child.__module__.startswith("airflow_provider_rfr."))
    for child in sorted(ours, key=lambda found: found.__name__):
        yield child
        yield from _subclasses(child)


def _section(kind: type[RfrError], messages: list[str]) -> Iterator[str]:
    yield f"## {kind.__name__}"
    yield ""
    yield _plain((kind.__doc__ or "").partition("\n:")[0].partition("\n    :")[0])
    yield ""
    again = "A retry may help" if kind.retryable else "A retry does not help"
    yield f"{again}{_EXITS.get(kind.exit_code, '')}."
    if kind.advice:
        yield f"Remedy: {kind.advice}."
    if messages:
        yield ""
        yield "```text"
        yield from messages
        yield "```"
    yield ""


def _plain(docstring: str) -> str:
    return " ".join(docstring.split()).replace("``", "`")


def _examples() -> dict[str, list[str]]:
    """Return messages by the name of their class: one of each test."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for folder in sorted({path.parent for path in _UNIT.rglob("test_*.py")}):
        snapshots = folder / "__snapshots__" / "messages.ambr"
        if snapshots.is_file():
            kinds = {test: kind for path in folder.glob("test_*.py") for test, kind in _kinds(path)}
            for test, module, text in _SNAPSHOT.findall(snapshots.read_text(encoding="utf-8")):
                if (module, test) in kinds and (message := _message(text)):
                    found.setdefault(kinds[module, test], {}).setdefault((module, test), message)
    return {kind: sorted(set(texts.values()), key=_rank)[:_MOST_MESSAGES] for kind, texts in found.items()}


def _rank(message: str) -> tuple[bool, int, str]:
    """Return the sort key of a message: those with a remedy come first, then the shortest."""
    return "; " not in message, len(message), message


def _kinds(path: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield module and name of each test that compares messages of one class alone, with the name of the class."""
    for test in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(test, ast.FunctionDef):
            words = [ast.unparse(call) for call in ast.walk(test) if isinstance(call, ast.Call)]
            kinds = {match[1] for word in words if (match := _COMPARED.match(word))}
            if len(kinds) == 1 and (kind := kinds.pop()):
                yield (path.stem, test.name), kind


def _message(snapshot: str) -> str:
    """Return the message of a snapshot if it is one line of 20 to 300 characters; else an empty text."""
    try:
        value = ast.literal_eval(snapshot.strip())
    except (SyntaxError, ValueError):
        return ""
    return value if isinstance(value, str) and "\n" not in value and len(value) in _LENGTHS else ""


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
