"""What has to hold of each object by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_rfr.builtins.fingerprint import canonical_transform, contract_of
from airflow_provider_rfr.builtins.planning.diff import short
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.exceptions import ConfigurationError
from tests.unit.builtins.declaring import loaded, problems

CONTRACT = short(contract_of((Column("id", "int"), Column("at", "timestamp"))).digest)


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
        (table("query: SELECT 1 AS a"), ":4: ops.t: a table has no query"),
        (table("sink: {source: ops.x, to: files}"), ":4: ops.t: a table has no sink"),
        ("kind: view\nname: ops.v\nquery: SELECT 1 AS a\nprotect: mine\n", ":4: ops.v: a view has no protect"),
        ("kind: view\nname: ops.v\nquery: SELECT 1 AS a\nexportable: true\n", ":4: ops.v: a view has no exportable"),
        (table("qery: x"), ":4: ops.t: qery is not a field; did you mean query?"),
        (
            table("stability: stabel"),
            ":4: ops.t: stability 'stabel' is unknown; did you mean stable? allowed: stable, unstable",
        ),
        (table("exportable: yes"), ":4: ops.t: exportable is yes, not true or false"),
        (table("keys: id"), ":4: ops.t: keys is id, not a list"),
        (table("keys: [1]"), ":4: ops.t: keys.0 is 1, not a text; put it in quotes"),
        (table("keys: [nr]"), ":4: ops.t: there is no column nr; allowed: at, id"),
        (table("keys: [id, ID]"), ":4: ops.t: ID is listed twice"),
        (table("id: 12"), ":4: ops.t: id is 12, not a text; put it in quotes"),
        (table("id: abc"), ":4: ops.t: id 'abc' is not a UUID; leave it out to have one made from the name"),
        (table("protect: ' '"), ":4: ops.t: protect says why, and nothing is said"),
        (table("per_instance: a b"), ":4: ops.t: 'a b' is not a name"),
        (table("properties: [a]"), ":4: ops.t: properties is a list, not a mapping"),
        (table("properties: {a: [1]}"), ":4: ops.t: properties.a is a list, not a text"),
        (
            table("properties: {rfr.object-id: x}"),
            ":4: ops.t: rfr.object-id is one of the marks that a deploy writes; take another name",
        ),
        (table("removed: {deprecated_since: '2.0', removed_in: '1.9'}"), ":4: ops.t: it is removed in 1.9, before 2.0"),
        (table("removed: {removed_in: '1.9'}"), ":4: ops.t: removed.deprecated_since is missing"),
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
        ("[{name: a, type: int}, {name: A, type: int}]", "two columns are called A; names are compared without case"),
        ("[{name: '', type: int}]", "a column's name is empty"),
        ("[{name: ' a', type: int}]", "or has spaces around it"),
        ("[{name: a.b, type: int}]", "has a dot"),
        ('[{name: "a\\nb", type: int}]', "something invisible"),
        ("[{name: a, type: int, renamed_from: A}]", "a was always called so"),
        ("[{name: a, type: int, renamed_from: c}, {name: b, type: int, renamed_from: C}]", "two columns were called C"),
        ("[{name: a}]", "columns.0.type is missing"),
        ("[{type: int}]", "columns.0.name is missing"),
        ("[{name: a, type: 1}]", "columns.0.type is 1, not a text"),
        ("[{name: a, type: int, nullable: false}]", "columns.0.nullable is not a field"),
        ("[a]", "columns.0 is a, not a mapping"),
        ("{a: int}", "columns is a mapping, not a list"),
    ],
)
def test_columns_are_named_and_typed(tmp_path: Path, columns: str, told: str) -> None:
    found = problems(tmp_path, table(columns=columns))
    assert [each for each in found if told in each and each.startswith(":3: ops.t: ")]


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
    assert [each.split(": ")[0] for each in problems(tmp_path, text)] == [":5", ":7", ":12", ":14"]


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
    assert problems(tmp_path, table("partitioning: [day(at), days(AT)]")) == [":4: ops.t: days(at) is listed twice"]


def step(**fields: str) -> str:
    entry = {"from": "c1:00000000", "to": CONTRACT, "how": "rewrite", **fields}
    return "migrations: [{" + ", ".join(f"{name}: {value}" for name, value in entry.items()) + "}]"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"from": "abc"}, "'abc' is not a contract fingerprint; write c1: and at least 8 of its digits"),
        ({"from": "c1:123"}, "'c1:123' is not a contract fingerprint"),
        ({"from": "12345678"}, "'12345678' is not a contract fingerprint"),
        ({"from": CONTRACT}, "to itself"),
        ({"how": "adopt"}, "adopt changes no columns; allowed: evolve, rewrite, recompute, replace_empty"),
        ({"how": "truncate"}, "migrations.0.how 'truncate' is unknown"),
        ({"how": "recompute"}, "recompute needs a query, or contents: derivable"),
        ({"how": "evolve", "expressions": "{id: a}"}, "evolve computes nothing; write rewrite"),
        ({"expressions": "{nr: a}"}, "there is no column nr; allowed: at, id"),
        ({"expressions": "{id: a b c}"}, "id: line 1"),
        ({"expressions": "{id: 'a; DROP TABLE t'}"}, "id: it is more than one statement"),
        ({"expressions": "{id: (SELECT 1)}"}, "id: it must be a single expression over columns"),
        ({"why": "x"}, "migrations.0.why is not a field"),
    ],
)
def test_an_instruction_that_can_t_be_followed_is_told(tmp_path: Path, fields: dict[str, str], told: str) -> None:
    found = problems(tmp_path, table(step(**fields)))
    assert len(found) == 1
    assert told in found[0]


def test_a_protected_table_is_never_emptied_and_says_why_and_may_be_rewritten(tmp_path: Path) -> None:
    protect = "protect: billing is computed from it"
    assert problems(tmp_path, table(protect, step(how="replace_empty"))) == [
        ":5: ops.t: replace_empty would lose its rows, and it is protected: billing is computed from it; write rewrite"
    ]
    for how in ("evolve", "rewrite"):
        assert loaded(tmp_path, table(protect, step(how=how)))["ops.t"].protect


def test_instructions_may_end_in_contracts_of_the_past(tmp_path: Path) -> None:
    text = table("migrations: [{from: c1:00000000, to: c1:11111111, how: rewrite, expressions: {old: a}}]")
    assert len(loaded(tmp_path, text)["ops.t"].migrations) == 1


def test_two_instructions_of_one_way_are_told(tmp_path: Path) -> None:
    one = "{from: c1:00000000, to: c1:11111111, how: evolve}"
    assert problems(tmp_path, table(f"migrations: [{one}, {one}]")) == [
        ":4: ops.t: two instructions lead from c1:00000000 to c1:11111111"
    ]


def sink(*fields: str) -> str:
    return table("exportable: true") + "\n---\nkind: sink\nname: ops.k\nsink: {" + ", ".join(fields) + "}\n"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (("to: files",), "sink.source is missing"),
        (("source: ops.t", "to: kafka"), "'kafka' is not a target; allowed: files, http"),
        (("source: ops.t", "to: files"), "a sink to files has settings.path, a text"),
        (("source: ops.t", "to: http", "settings: {connection: 1}"), "a sink to http has settings.connection, a text"),
        (("source: ops.t", "to: http", "settings: {connection: c, batch_size: 0}"), "0 is not a number of rows"),
        (("source: ops.t", "to: http", "settings: {connection: c, batch_size: true}"), "True is not a number of rows"),
        (("source: ops.t", "to: files", "settings: {path: x, format: csv}"), "'csv' is not a format"),
        (("source: ops.t", "to: files", "settings: {path: x}", "on_replace: again"), "'again' is unknown"),
        (("source: ops.t", "to: files", "settings: {path: x}", "columns: [nr]"), "there is no column nr"),
    ],
)
def test_a_sink_says_what_goes_where(tmp_path: Path, fields: tuple[str, ...], told: str) -> None:
    assert [each for each in problems(tmp_path, sink(*fields)) if told in each]


def test_what_is_gone_needs_nothing_but_its_name(tmp_path: Path) -> None:
    text = "kind: table\nname: ops.t\nremoved: {deprecated_since: '1.0', removed_in: '2.0'}\n"
    assert loaded(tmp_path, text, version="2.0")["ops.t"].columns == ()
    assert problems(tmp_path, text, version="1.5") == [":1: ops.t: a table has columns; none is given"]
