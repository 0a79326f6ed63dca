"""Mistakes in declarations: each is told with its line, with what is wrong, and with what to write.

The sentences stand in the snapshots; all that is told of a text has to be in them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_rfr.builtins import Removed
from airflow_provider_rfr.builtins.model import stable_id
from airflow_provider_rfr.exceptions import DeclarationError
from tests.unit.builtins import catalogs
from tests.unit.builtins.declaring import load, problems
from tests.unit.messages import check_messages, raises

TABLE = "kind: table\nname: ops.t\ncolumns: [{name: id, type: int}, {name: at, type: timestamp}]\n"
VIEW = "kind: view\nname: ops.v\nquery: SELECT 1 AS a\n"
MVIEW = "kind: materialized_view\nname: ops.v\ncolumns: [{name: a, type: int}]\nquery: SELECT 1 AS a\n"
NAMED = "kind: {}\nname: ops.x\n"

YAML = {
    "key twice": f"name: ops.u\n{TABLE}",
    "key twice in a mapping": f"{TABLE}properties: {{a: 1, b: 2, a: 3}}\n",
    "key twice over lines": "kind: table\nname: ops.t\ncolumns:\n- {name: a,\n   name: b, type: int}\n",
    "tab": "kind: table\nname: ops.t\ncolumns:\n\t- name: a\n",
    "alias of nothing": f"{TABLE}owner: *me\n",
    "alias": f"owner: &me data\n{TABLE}comment: *me\n",
    "alias of itself": f"{TABLE}properties: &p\n  a: *p\n",
    "list that holds itself": "&a [*a]\n",
    "merge": f"{TABLE}properties: {{<<: {{a: b}}}}\n",
    "key that is a number": f"{TABLE}1: x\n",
    "key that is a flag": f"{TABLE}true: x\n",
    "key that is a list": f"{TABLE}? [a, b]\n: x\n",
    "tag of Python": f"{TABLE}owner: !!python/object/apply:os.system [exit 1]\n",
    "tag": f"{TABLE}comment: !secret x\n",
    "tag of the document": f"!table\n{TABLE}",
    "text without an end": f"{TABLE}comment: 'no end\n",
    "colon in a text": f"{TABLE}comment: a: b\n",
    "control character": f"{TABLE}comment: \x07\n",
    "list": "- a\n- b\n",
    "words": "just words\n",
    "number": "42\n",
    "many, between good documents": (
        f"kind: table\nname: ops.a\nname: ops.b\n---\nkind: tabel\nname: ops.c\n---\n{TABLE}---\n"
        "kind: view\nname: ops.v\nquery: SELECT id FROM ops.t\nqerry: x\n---\nnonsense: [\n"
    ),
}
FIELDS = {
    "table without columns": NAMED.format("table"),
    "log with no columns": f"{NAMED.format('log')}columns: []\n",
    "view without query": NAMED.format("view"),
    "view with an empty query": f"{NAMED.format('view')}query: ''\n",
    "materialized view without columns": f"{NAMED.format('materialized_view')}query: SELECT 1 AS a\n",
    "sink without sink": NAMED.format("sink"),
    "source without source": NAMED.format("source"),
    "unknown kind": "kind: [table]\nname: ops.t\n",
    "view with keep": f"{VIEW}keep: mine\n",
    "materialized view with keep": f"{MVIEW}keep: mine\n",
    "view with was": f"{VIEW}columns: [{{name: a, type: int, was: b}}]\n",
    "exportable view": f"{VIEW}exportable: true\n",
    "no namespace": TABLE.replace("ops.t", "t"),
    "every mistake has the line of its own field": (
        "kind: table\nname: ops.t\ncolumns:\n  - name: a\n    type: strin\n  - {name: b, type: int}\n  - name: B\n"
        "    comment: twice\n    type: int\nkeys:\n  - a\n  - c\npartitioning:\n  - days(b)\n"
    ),
}
OF_TABLES = (
    *("query: SELECT 1 AS a", "sink: {source: ops.x, to: files}", "place: {file: x}", "qery: x", "kept: no"),
    *("exportable: yes", "keys: id", "keys: [1]", "keys: [nr]", "keys: [id, ID]", "id: 12", "id: abc", "keep: ' '"),
    *("keep: 7", "keep: [billing]", "per_instance: a b", "properties: [a]", "properties: {a: [1]}"),
    *("properties: {rfr.object-id: x}", "partitioning: [day(at), days(AT)]"),
)
NAMES = ("name: 123", "name: true", "name: 1.5", "name: [ops, t]", "name: {ops: t}", "name: ~")
COLUMNS = (
    *("[{name: a, type: strin}]", "[{name: a, type: 'array<int'}]", "[{name: a, type: int}, {name: A, type: int}]"),
    *("[{name: '', type: int}]", "[{name: ' a', type: int}]", "[{name: a.b, type: int}]", "[{name: '*', type: int}]"),
    *('[{name: "a\\nb", type: int}]', "[{name: a}]", "[{type: int}]", "[{name: a, type: 1}]", "[a]", "{a: int}"),
    "[{name: a, type: int, nullable: false}]",
    "[{name: a, type: int, was: c}, {name: b, type: int, was: C}]",
    "[{name: a, type: int, was: [c, d]}, {name: b, type: int, was: [e, C]}]",
    *(f"[{{name: a, type: int, was: {was}}}]" for was in ("{}", "1", "[1]", "{name: b, how: x}", "[b, {name: 1}]")),
    *(f"[{{name: a, type: 'struct<b:int>', was: {{fields: {was}}}}}]" for was in ("{c: d}", "{b: a.c}")),
    "[{name: a, type: int, was: {type: strin}}]",
    *(f"[{{name: a, type: int, was: {{using: {text}}}}}]" for text in ("a b c", "'b; DROP TABLE t'", "(SELECT 1)")),
)
REMOVED = {
    "without a name": "kind: removed\n",
    "no namespace": "kind: removed\nname: t\n",
    "unknown field": "kind: removed\nname: ops.t\nsince: 1.0\n",
    "name that is a list": "kind: removed\nname: [ops.t]\n",
    "twice": "kind: removed\nname: ops.t\n---\nkind: removed\nname: OPS.t\n",
}
LAKE = "kind: instances\nname: lake\ninstances: {}\n"
INSTANCES = {
    "without a list": "kind: instances\nname: lake\n",
    "without a name": "kind: instances\ninstances: {eu: x}\n",
    "no mapping": LAKE.replace("{}", "[eu]"),
    "no name of an instance": LAKE.replace("{}", "{eu: }"),
    "name that is a mapping": LAKE.replace("{}", "{eu: {name: x}}"),
    "empty name of an instance": LAKE.replace("{}", "{eu: ' '}"),
    "empty id": LAKE.replace("{}", "{'': x}"),
    "no name": LAKE.replace("lake", "a lake"),
    "unknown field": f"{LAKE}lake: 1\n",
    "twice": f"{LAKE}---\n{LAKE}",
    "id twice": LAKE.replace("{}", "{eu: x, eu: y}"),
}
MISTAKES = {
    **{f"yaml: {name}": text for name, text in YAML.items()},
    **{f"field: {name}": text for name, text in FIELDS.items()},
    **{f"table: {field}": f"{TABLE}{field}\n" for field in OF_TABLES},
    **{field: f"{field}\nkind: view\nquery: SELECT 1 AS a\n" for field in NAMES},
    **{f"columns: {columns}": f"kind: table\nname: ops.t\ncolumns: {columns}\n" for columns in COLUMNS},
    **{f"removed: {name}": text for name, text in REMOVED.items()},
    **{f"instances: {name}": text for name, text in INSTANCES.items()},
}


@pytest.mark.parametrize("text", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_document_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    check_messages(problems(tmp_path, text))


def test_a_removal_of_python_has_a_namespace_too() -> None:
    with raises(DeclarationError):
        load(Removed("t"))


# Sinks

SINKS = (
    *("to: files", "source: ops.t, to: kafka", "source: ops.t, to: files"),
    *(f"source: ops.t, to: http, settings: {{connection: {text}}}" for text in ("1", "c, batch_size: 0")),
    "source: ops.t, to: http, settings: {connection: c, batch_size: true}",
    "source: ops.t, to: files, settings: {path: x, format: csv}",
    "source: ops.t, to: files, settings: {path: x}, on_replace: again",
    "source: ops.t, to: files, settings: {path: x}, columns: [nr]",
    'source: ops.t, to: files, settings: {path: "s3://KEY:CANARY@bucket/x"}',
    'source: ops.t, to: http, settings: {connection: c, path: "/hook?token=CANARY"}',
    "source: ops.t, to: files, settings: {path: x, connection: c}",
    *(f"source: ops.{name}, to: files, settings: {{path: x}}" for name in ("v", "nothing", "k")),
)


@pytest.mark.parametrize("fields", SINKS)
def test_a_mistake_in_a_sink_is_told_without_what_is_secret(tmp_path: Path, fields: str) -> None:
    sink = f"kind: sink\nname: ops.k\nsink: {{{fields}}}\n"
    found = problems(tmp_path, f"{TABLE}exportable: true\n---\n{VIEW}---\n{sink}")
    assert "CANARY" not in "".join(found)
    check_messages(found)


# What has to hold among objects

T = "kind: table\nname: ops.t\ncolumns: [{name: a, type: int}, {name: B, type: int}]"


def view(query: str, *more: str, name: str = "ops.v", kind: str = "view") -> str:
    return "\n".join([f"kind: {kind}", f"name: {name}", *more, "query: |", f"  {query}"])


QUERIES = (
    "DROP TABLE ops.t",
    "SELECT a FROM ops.t;",
    "SELECT a FROM ops.t WHERE",
    "SELECT a FROM t",
    "SELECT a FROM ops.tt",
    "SELECT a FROM lake.ops.t",
    "SELECT x.a, x.c FROM ops.t x",
    "SELECT a, count(*) FROM ops.t GROUP BY a",
    "SELECT a, b AS A FROM ops.t",
    "SELECT * FROM ops.t x JOIN ops.t y USING (a)",
    "SELECT a FROM ops.t NATURAL JOIN raw.x",
    "SELECT * FROM raw.x",
    "SELECT * FROM ops.t, raw.x",
    "SELECT s.* FROM ops.t",
    "SELECT a FROM ops.v",
)
MATERIALIZED = {
    names: f"columns: [{', '.join(f'{{name: {name}, type: int}}' for name in names)}]" for names in ("az", "ba", "a")
}
GONE = "kind: removed\nname: ops.t"
USERS_SINK = "kind: sink\nname: mine.k\nsink: {source: ops.t, to: files, settings: {path: x}}"
AMONG_OBJECTS = {
    **{query: (T, view(query)) for query in QUERIES},
    "a name is that of a table": (T, view("SELECT 1 AS a", "id: 00000000-0000-4000-8000-000000000000", name="OPS.T")),
    "a name is there twice": (T, T.replace("ops.t", "OPS.T")),
    "an old name is given away with its id": (
        T.replace("name: ops.t", f"name: ops.old_t\nid: {stable_id('acme', 'ops.t')}"), T,
    ),
    "columns of two views, sorted by place": (
        T, view("SELECT a, q FROM ops.t"), view("SELECT v.a,\n   v.x, v.b\n  FROM ops.v", name="ops.w"),
    ),
    "a query begins in a line of its own": (T, view("SELECT a\n  FROM ops.tt")),
    "an object that may be missing is in a document that could not be read": (
        T.replace("kind: table", "kind: tabel"), view("SELECT * FROM ops.t"),
    ),
    "a reader of a broken object": (T.replace("{name: B, type: int}", "{name: B}"), view("SELECT x.b FROM ops.t x")),
    "other columns": (T, view("SELECT * FROM ops.t", MATERIALIZED["az"], kind="materialized_view")),
    "another order of columns": (T, view("SELECT * FROM ops.t", MATERIALIZED["ba"], kind="materialized_view")),
    "fewer columns than are named": (T, view("SELECT a, B FROM ops.t", MATERIALIZED["a"], kind="materialized_view")),
    "two circles, and what reads them": tuple(
        view(f"SELECT a FROM ops.{read}", name=f"ops.{name}")
        for name, read in {"a": "b", "b": "c", "c": "a", "x": "y", "y": "x", "outside": "x"}.items()
    ),
    "what is removed is read": (GONE, view("SELECT a FROM ops.t")),
    "one object for each instance is read": (f"{T}\nper_instance: lake", view("SELECT a FROM ops.t")),
    "a user's sink of a table that is not exportable": (T, USERS_SINK),
}  # fmt: skip


@pytest.mark.parametrize("documents", AMONG_OBJECTS.values(), ids=AMONG_OBJECTS)
def test_a_mistake_among_objects_is_told_with_its_line(tmp_path: Path, documents: tuple[str, ...]) -> None:
    check_messages(problems(tmp_path, "\n---\n".join(documents)))


@pytest.mark.parametrize(
    "query",
    [
        "|\n  SELECT a,\n    zz\n  FROM ops.t",
        "|-   # why\n\n    SELECT a\n      , x.zz\n    FROM ops.t x",
        "|2\n    SELECT a, zz\n  FROM ops.t",
        ">-\n  SELECT a,\n\n  zz\n  FROM ops.t",
        "SELECT a, zz FROM ops.t",
        "SELECT a,\n  b,\n  zz FROM ops.t",
        '"SELECT a, zz\n  FROM ops.t"',
        "'SELECT a, zz FROM ops.t'",
        "SELECT 'ü€\U0001f600' AS u, zz FROM ops.t",
        "|\n  SELECT 'ü€\U0001f600' AS u, -- zz\n    zz FROM ops.t",
        # Where the text is escaped, the place is that in the query.
        "'SELECT ''x'' AS x, zz FROM ops.t'",
        '"SELECT \\x27x\\x27 AS x, zz FROM ops.t"',
    ],
)
def test_a_column_that_is_not_there_is_told_with_its_line_and_column(tmp_path: Path, query: str) -> None:
    check_messages(problems(tmp_path, f"{T}\n---\nkind: view\nname: ops.v\nquery: {query}"))


@pytest.mark.parametrize("query", ["SELECT a\nFROM ops.t WHERE zz", "SELECT a FROM t; DROP TABLE t"])
def test_a_mistake_in_the_query_of_an_object_of_python_has_its_place_in_the_query(query: str) -> None:
    with raises(DeclarationError):
        load([catalogs.table("ops.t", "a int"), catalogs.view("ops.v", query)])


def test_mistakes_of_python_are_told_too() -> None:
    with raises(DeclarationError):
        load(catalogs.table("runs", "a strin"), 3, {"a": 1}, None)


def test_what_is_not_there_is_told_with_all_the_rest(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(DeclarationError) as refused:
        load(tmp_path / "none", tmp_path / "empty", tmp_path / "bytes.yaml")
    check_messages(sorted(str(problem).removeprefix(f"{tmp_path}/") for problem in refused.value.problems))


def test_problems_come_in_the_order_of_files_and_lines(tmp_path: Path) -> None:
    text = "\n---\n".join(f"kind: table\nname: ops.t{number}\ncolumns: []" for number in range(12))
    lines = [problem.split(": ")[0] for problem in problems(tmp_path, text)]
    assert lines == [f":{number}" for number in range(3, 50, 4)]


def test_thousands_of_mistakes_are_told_soon(tmp_path: Path) -> None:
    views = [view(f"SELECT a FROM ops.missing{number}", name=f"ops.v{number}") for number in range(1_000)]
    assert len(problems(tmp_path, "\n---\n".join([T, *views]))) == 1_000
