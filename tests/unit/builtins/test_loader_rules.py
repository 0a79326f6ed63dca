"""What has to hold of each object by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_rfr.builtins import Removed
from airflow_provider_rfr.builtins.declarations import canonical_transform
from airflow_provider_rfr.builtins.model import Column, Was
from airflow_provider_rfr.exceptions import ConfigurationError, DeclarationError
from tests.unit.builtins.declaring import load, loaded, problems
from tests.unit.messages import check_messages, raises


def table(*more: str, columns: str = "[{name: id, type: int}, {name: at, type: timestamp}]") -> str:
    return "\n".join(["kind: table", "name: ops.t", f"columns: {columns}", *more])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: table\nname: ops.t\n", ":1: ops.t: a table has columns; none is given"),
        ("kind: log\nname: ops.t\ncolumns: []\n", ":3: ops.t: a log has columns; none is given"),
        ("kind: view\nname: ops.v\n", ":1: ops.v: a view has query; none is given"),
        ("kind: view\nname: ops.v\nquery: ''\n", ":3: ops.v: a view has query; none is given"),
        (
            "kind: materialized_view\nname: ops.v\nquery: SELECT 1 AS a\n",
            ":1: ops.v: a materialized_view has columns; none is given",
        ),
        ("kind: sink\nname: ops.k\n", ":1: ops.k: a sink has sink; none is given"),
        ("kind: source\nname: ops.s\n", ":1: ops.s: a source has source; none is given"),
        (table("query: SELECT 1 AS a"), ":4: ops.t: a table has no query; leave it out"),
        (table("sink: {source: ops.x, to: files}"), ":4: ops.t: a table has no sink; leave it out"),
        (
            "kind: view\nname: ops.v\nquery: SELECT 1 AS a\nkeep: mine\n",
            ":4: ops.v: a view has no keep; leave it out",
        ),
        (
            "kind: materialized_view\nname: ops.v\ncolumns: [{name: a, type: int}]\nquery: SELECT 1 AS a\nkeep: mine\n",
            ":5: ops.v: a materialized_view has no keep; leave it out",
        ),
        (
            "kind: view\nname: ops.v\nquery: SELECT 1 AS a\ncolumns: [{name: a, type: int, was: b}]\n",
            ":4: ops.v: a view has no columns.was; leave it out",
        ),
        (
            "kind: view\nname: ops.v\nquery: SELECT 1 AS a\nexportable: true\n",
            ":4: ops.v: a view has no exportable; leave it out",
        ),
        (table("place: {file: x}"), ":4: ops.t: place: unknown field"),
        (
            "kind: [table]\nname: ops.t\n",
            ":1: ops.t: kind: must be 'table', 'view', 'materialized_view', 'source', 'sink' or 'log'",
        ),
        (table("qery: x"), ":4: ops.t: qery: unknown field; did you mean query?"),
        (table("kept: no"), ":4: ops.t: kept: unknown field; did you mean keep?"),
        (table("exportable: yes"), ":4: ops.t: exportable: must be true or false"),
        (table("keys: id"), ":4: ops.t: keys: must be a list"),
        (table("keys: [1]"), ":4: ops.t: keys.0: must be text; if it is text to you, put it in quotes"),
        (table("keys: [nr]"), ":4: ops.t: there is no column nr; allowed: at, id"),
        (table("keys: [id, ID]"), ":4: ops.t: ID is listed twice"),
        (table("id: 12"), ":4: ops.t: id: must be a UUID"),
        (table("id: abc"), ":4: ops.t: id: must be a UUID"),
        (
            table("keep: ' '"),
            ":4: ops.t: keep says why no rows may be lost, and nothing is said; give a reason, or true",
        ),
        (table("per_instance: a b"), ":4: ops.t: 'a b' is not a name"),
        (table("properties: [a]"), ":4: ops.t: properties: must be a mapping"),
        (
            table("properties: {a: [1]}"),
            ":4: ops.t: properties.a: must be text; if it is text to you, put it in quotes",
        ),
        (
            table("properties: {rfr.object-id: x}"),
            ":4: ops.t: rfr.object-id is one of the marks that a deploy writes; take another name",
        ),
        (
            "kind: table\nname: t\ncolumns: [{name: a, type: int}]\n",
            ":2: t: 't' has no namespace; write namespace.name",
        ),
    ],
)
def test_a_field_that_is_missing_strange_or_wrong_is_told(tmp_path: Path, text: str, told: str) -> None:
    assert problems(tmp_path, text) == [told]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("[{name: a, type: strin}]", "a: 'strin': 'strin' is not a type (character 1); did you mean string?"),
        ("[{name: a, type: 'array<int'}]", "a: 'array<int': expected '>', found the end"),
        ("[{name: a, type: int}, {name: A, type: int}]", "A is listed twice"),
        ("[{name: '', type: int}]", "'' can't be a column's name; 1 to 255 characters"),
        ("[{name: ' a', type: int}]", "' a' can't be a column's name"),
        ("[{name: a.b, type: int}]", "'a.b' can't be a column's name"),
        ("[{name: '*', type: int}]", "'*' can't be a column's name"),
        ('[{name: "a\\nb", type: int}]', "'a\\nb' can't be a column's name"),
        ("[{name: a, type: int, was: c}, {name: b, type: int, was: C}]", "two columns were called C"),
        ("[{name: a, type: int, was: [c, d]}, {name: b, type: int, was: [e, C]}]", "two columns were called C"),
        ("[{name: a, type: int, was: {}}]", "a: was: it says nothing; give name, type, using or fields"),
        ("[{name: a, type: 'struct<b:int>', was: {fields: {c: d}}}]", "a: was: fields: a has no field c; allowed: b"),
        ("[{name: a, type: 'struct<b:int>', was: {fields: {b: a.c}}}]", "fields.b: 'a.c' is not the name of a field"),
        ("[{name: a, type: int, was: 1}]", "columns.0.was.0: must be a mapping"),
        ("[{name: a, type: int, was: [1]}]", "columns.0.was.0: must be a mapping"),
        ("[{name: a, type: int, was: {name: b, how: x}}]", "columns.0.was.0.how: unknown field"),
        (
            "[{name: a, type: int, was: [b, {name: 1}]}]",
            "columns.0.was.1.name: must be text; if it is text to you, put it in quotes",
        ),
        ("[{name: a, type: int, was: {type: strin}}]", "a: was: 'strin': 'strin' is not a type"),
        ("[{name: a, type: int, was: {type: string, using: a b c}}]", "a: was: line 1"),
        ("[{name: a, type: int, was: {using: 'b; DROP TABLE t'}}]", "a: was: it is more than one statement"),
        ("[{name: a, type: int, was: {using: (SELECT 1)}}]", "a: was: it must be a single expression over columns"),
        ("[{name: a}]", "columns.0.type: is missing"),
        ("[{type: int}]", "columns.0.name: is missing"),
        ("[{name: a, type: 1}]", "columns.0.type: must be text; if it is text to you, put it in quotes"),
        ("[{name: a, type: int, nullable: false}]", "columns.0.nullable: unknown field"),
        ("[a]", "columns.0: must be a mapping"),
        ("{a: int}", "columns: must be a list"),
    ],
)
def test_columns_are_named_and_typed(tmp_path: Path, columns: str, told: str) -> None:
    found = problems(tmp_path, table(columns=columns))
    assert [item for item in found if told in item and item.startswith(":3: ops.t: ")]


@pytest.mark.parametrize("keep", ["7", "[billing]"])
def test_what_may_be_of_two_types_is_told_with_both(tmp_path: Path, keep: str) -> None:
    check_messages(problems(tmp_path, table(f"keep: {keep}")))


def test_every_mistake_has_the_line_of_its_own_field(tmp_path: Path) -> None:
    text = """
        kind: table
        name: ops.t
        columns:
          - name: a
            type: strin
          - {name: b, type: int}
          - name: B
            comment: twice
            type: int
        keys:
          - a
          - c
        partitioning:
          - days(b)
    """
    assert [problem.split(": ")[0] for problem in problems(tmp_path, text)] == [":5", ":7", ":12", ":14"]


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("region", "region"),
        ("`REGION`", "region"),
        ("day(at)", "days(at)"),
        ("YEARS( At )", "years(at)"),
        ("date(at)", "days(at)"),
        ("bucket(16,id)", "bucket(16, id)"),
        ("bucket(id, 16)", "bucket(16, id)"),
        ("truncate(`region`, 4)", "truncate(4, region)"),
        ("hours(at)", "hours(at)"),
    ],
)
def test_a_partition_transform_is_written_in_one_way(written: str, canonical: str) -> None:
    columns = (Column("id", "bigint"), Column("at", "timestamp"), Column("region", "string"))
    assert canonical_transform(written, columns) == canonical == canonical_transform(canonical, columns)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("nothing", "there is no column nothing"),
        ("weeks(at)", "is not a transform"),
        ("days(id)", "id is int"),
        ("bucket(at)", "is not a transform"),
        ("bucket(0, id)", "has no valid size"),
        ("bucket(x, id)", "has no valid size"),
        ("bucket(-1, id)", "has no valid size"),
        ("bucket(99999999999999999999, id)", "has no valid size"),
        ("days(at, 3)", "is not a transform"),
        ("truncate(4, f)", "f is double"),
        ("list", "list is array<int>"),
        ("days(days(at))", "there is no column days(days(at))"),
    ],
)
def test_what_is_no_partition_transform_is_refused(written: str, said: str) -> None:
    columns = (Column("id", "int"), Column("at", "date"), Column("f", "double"), Column("list", "array<int>"))
    with pytest.raises(ConfigurationError) as refused:
        canonical_transform(written, columns)
    assert said in str(refused.value)


def test_the_same_transform_twice_is_told(tmp_path: Path) -> None:
    check_messages(problems(tmp_path, table("partitioning: [day(at), days(AT)]")))


def test_a_was_is_a_name_a_mapping_or_a_list_of_both(tmp_path: Path) -> None:
    """The types in it are written in the one way, as those of the columns are."""
    texts = {
        "c": (Was("c"),),
        "{type: Long}": (Was(type="bigint"),),
        "{name: c, using: CAST(c AS int)}": (Was("c", using="CAST(c AS int)"),),
        "[c, {name: A, type: STRING, using: CAST(A AS int)}, {using: '0'}]": (
            Was("c"),
            Was("A", "string", "CAST(A AS int)"),
            Was(using="0"),
        ),
        "[]": (),
    }
    for text, expected in texts.items():
        columns = f"[{{name: a, type: int, was: {text}}}]"
        assert loaded(tmp_path, table(columns=columns))["ops.t"].columns == (Column("a", "int", was=expected),)


def test_a_column_may_have_a_name_that_another_one_had(tmp_path: Path) -> None:
    columns = "[{name: a, type: int, was: b}, {name: b, type: int, was: a}]"
    assert loaded(tmp_path, table(columns=columns))["ops.t"].columns[1].was == (Was("a"),)


def test_a_materialized_view_can_always_be_computed_again(tmp_path: Path) -> None:
    """So nothing asks for its rows; of everything else, rows are kept unless it says otherwise."""
    computed = "kind: materialized_view\nname: ops.m\ncolumns: [{name: a, type: int}]\nquery: SELECT 1 AS a\n"
    found = loaded(tmp_path, f"{computed}---\n{table()}")
    assert (found["ops.m"].keep, found["ops.t"].keep) == (False, True)


def gone(name: str) -> str:
    return f"kind: removed\nname: {name}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: removed\n", ":1: name: is missing"),
        (gone("t"), ":1: t: 't' has no namespace; write namespace.name, or namespace.table.column"),
        (gone("ops.t") + "since: 1.0\n", ":3: ops.t: since: unknown field; allowed: name"),
        (gone("[ops.t]"), ":2: name: must be text; if it is text to you, put it in quotes"),
        (f"{gone('ops.t')}---\n{gone('OPS.t')}", ":4: OPS.t: a document says so already: :1; keep one of the two"),
    ],
)
def test_what_is_wrong_with_a_removal_is_told(tmp_path: Path, text: str, told: str) -> None:
    assert problems(tmp_path, text) == [told]


def test_a_removal_names_what_is_declared_no_longer_or_will_be_something_else(tmp_path: Path) -> None:
    """It says nothing about when: a table of that name may still be declared."""
    names = ["ops.older", "ops.t", "ops.t.at", "ops.t.s.a", "ops.t.s.first name"]
    spec = load(*map(Removed, reversed(names)), *loaded(tmp_path, table()).values())
    assert [item.name for item in spec.removed] == names
    with raises(DeclarationError):
        load(Removed("t"))


def sink(*fields: str) -> str:
    return table("exportable: true") + "\n---\nkind: sink\nname: ops.k\nsink: {" + ", ".join(fields) + "}\n"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (("to: files",), "sink.source: is missing"),
        (("source: ops.t", "to: kafka"), "'kafka' is not a target; allowed: files, http"),
        (("source: ops.t", "to: files"), "a sink to files has settings.path, a text"),
        (("source: ops.t", "to: http", "settings: {connection: 1}"), "a sink to http has settings.connection, a text"),
        (("source: ops.t", "to: http", "settings: {connection: c, batch_size: 0}"), "0 is not a number of rows"),
        (("source: ops.t", "to: http", "settings: {connection: c, batch_size: true}"), "True is not a number of rows"),
        (("source: ops.t", "to: files", "settings: {path: x, format: csv}"), "'csv' is not a format"),
        (("source: ops.t", "to: files", "settings: {path: x}", "on_replace: again"), "'again' is unknown"),
        (("source: ops.t", "to: files", "settings: {path: x}", "columns: [nr]"), "there is no column nr"),
        (
            ("source: ops.t", "to: files", 'settings: {path: "s3://KEY:CANARY@bucket/x"}'),
            "settings.path holds credentials; give them to the workers' file system",
        ),
        (
            ("source: ops.t", "to: http", 'settings: {connection: c, path: "/hook?token=CANARY"}'),
            "settings.path holds credentials; put them into the connection",
        ),
        (("source: ops.t", "to: files", "settings: {path: x, connection: c}"), "is not a setting of a sink to files"),
    ],
)
def test_a_sink_says_what_goes_where(tmp_path: Path, fields: tuple[str, ...], told: str) -> None:
    found = problems(tmp_path, sink(*fields))
    assert [item for item in found if told in item]
    assert "CANARY" not in "".join(found)


@pytest.mark.parametrize("path", ["abfss://out@account.dfs.core.windows.net/x", "/hook?page=2", "s3://bucket/x"])
def test_a_sinks_path_may_name_a_container_and_have_parameters(tmp_path: Path, path: str) -> None:
    text = sink("source: ops.t", "to: files", f'settings: {{path: "{path}"}}')
    assert loaded(tmp_path, text)["ops.k"].sink.settings["path"] == path
