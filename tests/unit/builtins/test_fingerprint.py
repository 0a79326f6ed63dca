"""How an object differs from its record: which change shows as which difference, and which as none."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.decide import Decision
from airflow_provider_rfr.builtins.desired import DesiredObject, contract_of, definition_of, same_query
from airflow_provider_rfr.builtins.model import (
    BuiltinObject,
    Column,
    DeclarationPlace,
    Dependency,
    Kind,
    RecordedObject,
    Was,
    stable_id,
)
from airflow_provider_rfr.builtins.plan import Why
from airflow_provider_rfr.builtins.planner import record_of
from airflow_provider_rfr.sinks import SinkSpec
from tests.unit.builtins.declaring import PATIENT

RUNS = BuiltinObject(
    Kind.TABLE,
    "ops.runs",
    stable_id("p", "ops.runs"),
    (
        Column("run_id", "string", required=True, comment="what it is"),
        Column("rows", "bigint"),
        Column("ended_at", "timestamp"),
    ),
    keys=("run_id",),
    partitioning=("days(ended_at)",),
    comment="runs",
    owner="data",
    properties={"write.format.default": "parquet", "format-version": "2"},
)
VIEW = BuiltinObject(Kind.VIEW, "ops.v", stable_id("p", "ops.v"), query="SELECT a FROM ops.runs -- all of them")
SINK = BuiltinObject(
    Kind.SINK,
    "ops.k",
    stable_id("p", "ops.k"),
    sink=SinkSpec("ops.runs", "files", {"path": "s3://x", "format": "jsonl"}),
)
DEFINITION = {"definition": {"streams": {"a": 1}}, "connection": "api"}
SOURCE = BuiltinObject(Kind.SOURCE, "ops.s", stable_id("p", "ops.s"), source=DEFINITION)


def recorded(obj: BuiltinObject, source: BuiltinObject | None = None) -> RecordedObject:
    return record_of(DesiredObject(obj, reads_of(source)), 1)


def reads_of(source: BuiltinObject | None) -> tuple[Dependency, ...]:
    return () if source is None else (Dependency(source.key, source.id),)


def compared(known: RecordedObject, obj: BuiltinObject, source: BuiltinObject | None = None) -> set[Why]:
    decision = Decision(DesiredObject(obj, reads_of(source), recorded=known))
    decision.note_differences()
    return set(decision.differences)


def differences(obj: BuiltinObject, **changes) -> set[Why]:
    return compared(recorded(obj), replace(obj, **changes))


def columns(*changed_columns: Column) -> tuple[Column, ...]:
    by_name = {changed_column.name: changed_column for changed_column in changed_columns}
    return tuple(by_name.get(column.name, column) for column in RUNS.columns)


def test_the_text_says_number_name_and_type_and_the_hash_is_of_the_text() -> None:
    text = "1 run_id string\n2 rows bigint\n3 ended_at timestamp"
    assert recorded(RUNS).contract == contract_of(RUNS.columns)
    assert contract_of(RUNS.columns) == "c1:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"comment": "other"},
        {"comment": None},
        {"owner": "somebody"},
        {"properties": {"format-version": "2"}},
        {"columns": columns(Column("rows", "bigint", comment="new"))},
        {"keep": False},
        {"keep": "billing"},
        {"exportable": True},
    ],
)
def test_comments_owners_and_properties_are_metadata_and_nothing_else(change: dict) -> None:
    assert differences(RUNS, **change) == {Why.METADATA_CHANGED}


@pytest.mark.parametrize(
    "change",
    [
        {"columns": columns(Column("rows", "bigint", required=True))},
        {"keys": ()},
        {"keys": ("run_id", "rows")},
        {"partitioning": ()},
        {"partitioning": ("hours(ended_at)",)},
        {"properties": {**RUNS.properties, "format-version": "3"}},
    ],
)
def test_keys_required_columns_and_partitioning_are_constraints_and_nothing_else(change: dict) -> None:
    assert differences(RUNS, **change) == {Why.CONSTRAINTS_CHANGED}


@pytest.mark.parametrize(
    "columns",
    [
        RUNS.columns[:2],
        (*RUNS.columns, Column("more", "int")),
        columns(Column("rows", "int")),
        columns(Column("rows", "string")),
    ],
)
def test_number_and_type_of_columns_are_the_contract(columns: tuple[Column, ...]) -> None:
    assert differences(RUNS, columns=columns) == {Why.COLUMNS_CHANGED}


def test_a_column_that_is_only_renamed_is_another_contract() -> None:
    renamed = tuple(replace(column, name="row_count") if column.name == "rows" else column for column in RUNS.columns)
    assert differences(RUNS, columns=renamed) == {Why.COLUMNS_CHANGED}


def test_two_columns_of_one_type_that_change_places_are_another_contract() -> None:
    one, other = (Column("a", "int"), Column("b", "int")), (Column("b", "int"), Column("a", "int"))
    assert contract_of(one) != contract_of(other)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "ops.other"},
        {"id": stable_id("p", "x")},
        {"kind": Kind.LOG},
        {"place": DeclarationPlace("a.yaml", 3)},
        {"columns": columns(Column("rows", "bigint", was=(Was("n"),)))},
        {"columns": columns(Column("rows", "bigint", was=(Was("n", "string", "CAST(n AS bigint)"), Was(type="int"))))},
        {"columns": tuple(replace(column, name=column.name.upper()) for column in RUNS.columns)},
        {"properties": dict(reversed([*RUNS.properties.items()]))},
        {"keys": ("RUN_ID",)},
    ],
)
def test_name_id_place_what_a_column_was_and_case_show_in_none(change: dict) -> None:
    assert differences(RUNS, **change) <= {Why.RENAMED, Why.KIND_CHANGED}


@pytest.mark.parametrize(
    "query", ["select A\n  from OPS.runs", "SELECT a /* x */ FROM ops.runs", "SELECT\ta FROM ops . runs -- y"]
)
def test_white_space_comments_and_case_of_a_query_show_in_none(query: str) -> None:
    assert differences(VIEW, query=query) == set()


def test_another_query_is_another_query_and_the_star_is_its_authors() -> None:
    assert differences(VIEW, query="SELECT b FROM ops.runs") == {Why.QUERY_CHANGED}
    star = replace(VIEW, query="SELECT * FROM ops.runs")
    known = replace(recorded(star), sql="SELECT a FROM ops.runs")
    assert compared(known, star) == set()
    again = Decision(DesiredObject(star, sql="SELECT a, b FROM ops.runs", recorded=known))
    again.note_differences()
    assert set(again.differences) == {Why.STAR_CHANGED}


def test_types_of_one_meaning_are_one_contract() -> None:
    short = (Column("a", "struct<X:int,y:string>"),)
    assert contract_of(short) == contract_of((Column("A", "STRUCT<x INT, Y: varchar(3)>"),))


def test_a_sink_follows_its_source_through_a_rename() -> None:
    renamed = replace(RUNS, name="ops.all_runs")
    sink = replace(SINK, sink=replace(SINK.sink, source="OPS.all_runs"))
    assert compared(recorded(SINK, RUNS), sink, renamed) == set()
    other = replace(RUNS, id=stable_id("p", "other"))
    assert compared(recorded(SINK, RUNS), SINK, other) == {Why.DEFINITION_CHANGED}


@pytest.mark.parametrize(
    ("change", "shows"),
    [
        ({"settings": {"path": "s3://y", "format": "jsonl"}}, {Why.DEFINITION_CHANGED}),
        ({"columns": ("run_id",)}, {Why.DEFINITION_CHANGED}),
        ({"follow_schema": True}, {Why.DEFINITION_CHANGED}),
        ({"on_replace": "resend"}, {Why.DEFINITION_CHANGED}),
        ({"settings": {"format": "jsonl", "path": "s3://x"}}, set()),
    ],
)
def test_what_a_sink_sends_and_its_policy_are_its_definition(change: dict, shows: set[Why]) -> None:
    assert differences(SINK, sink=replace(SINK.sink, **change)) == shows


def test_what_a_source_reads_is_its_definition_and_a_password_is_not_stored() -> None:
    assert differences(SOURCE, source={**DEFINITION, "connection": "other"}) == {Why.DEFINITION_CHANGED}
    secret = {**DEFINITION, "auth": {"password": "hunter2", "api_key": "abc", "api_token": "{{ config['token'] }}"}}
    secret["config"] = {"headers": {"X-Functions": "CANARY", "Accept": "{{ config['kind'] }}"}, "page": 5}
    text = definition_of(replace(SOURCE, source=secret)) or ""
    assert "CANARY" not in text and "config['kind']" in text and "X-Functions" in text
    assert "hunter2" not in text
    assert "abc" not in text
    assert "config['token']" in text


NAMES = st.text(min_size=1, max_size=8)
LISTS = st.lists(st.tuples(NAMES, st.sampled_from(["int", "string", "array<int>"])), max_size=4)


@PATIENT
@given(LISTS, LISTS)
def test_contracts_are_equal_exactly_where_columns_are(one, other) -> None:
    first, second = (tuple(Column(name, kind) for name, kind in item) for item in (one, other))
    folded = [[(name.casefold(), kind) for name, kind in item] for item in (one, other)]
    assert (contract_of(first) == contract_of(second)) == (folded[0] == folded[1])


@pytest.mark.parametrize(
    ("known", "same"),
    [
        (VIEW.query, True),
        ("select a from OPS.runs", True),
        ("SELECT b FROM ops.runs", False),
        ("SELECT a  FROM ops.runs", True),
        (None, False),
    ],
)
def test_queries_are_compared_as_their_authors_wrote_them(known: str | None, same: bool) -> None:
    assert same_query(VIEW.query, known) is same
