"""How an object differs from its record: which change shows as which difference, and which as none."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

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
    *(Kind.TABLE, "ops.runs", stable_id("p", "ops.runs")),
    columns=(
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
SENT = SinkSpec("ops.runs", "files", {"path": "s3://x", "format": "jsonl"})
SINK = BuiltinObject(Kind.SINK, "ops.k", stable_id("p", "ops.k"), sink=SENT)
DEFINITION = {"definition": {"streams": {"a": 1}}, "connection": "api"}
SOURCE = BuiltinObject(Kind.SOURCE, "ops.s", stable_id("p", "ops.s"), source=DEFINITION)


def desired(obj: BuiltinObject, source: BuiltinObject | None = None, **more: Any) -> DesiredObject:
    return DesiredObject(obj, () if source is None else (Dependency(source.key, source.id),), **more)


def recorded(obj: BuiltinObject, source: BuiltinObject | None = None) -> RecordedObject:
    return record_of(desired(obj, source), 1)


def compared(known: RecordedObject, obj: BuiltinObject, source: BuiltinObject | None = None, **more: Any) -> set[Why]:
    decision = Decision(desired(obj, source, recorded=known, **more))
    decision.note_differences()
    return set(decision.differences)


def columns(*changed: Column) -> dict[str, tuple[Column, ...]]:
    by_name = {column.name: column for column in changed}
    return {"columns": tuple(by_name.get(column.name, column) for column in RUNS.columns)}


def test_the_text_says_number_name_and_type_and_the_hash_is_of_the_text() -> None:
    text = "1 run_id string\n2 rows bigint\n3 ended_at timestamp"
    assert recorded(RUNS).contract == contract_of(RUNS.columns)
    assert contract_of(RUNS.columns) == "c1:" + hashlib.sha256(text.encode()).hexdigest()


LAYOUTS = "select A\n  from OPS.runs", "SELECT a /* x */ FROM ops.runs", "SELECT\ta FROM ops . runs -- y"
DIFFERENCES: list[tuple[BuiltinObject, set[Why], list[dict[str, Any]]]] = [
    (RUNS, {Why.METADATA_CHANGED}, [
        *({"comment": "other"}, {"comment": None}, {"owner": "somebody"}, {"properties": {"format-version": "2"}}),
        *({"keep": False}, {"keep": "billing"}, {"exportable": True}),
        columns(Column("rows", "bigint", comment="new")),
    ]),
    (RUNS, {Why.CONSTRAINTS_CHANGED}, [
        *({"keys": ()}, {"keys": ("run_id", "rows")}, {"partitioning": ()}, {"partitioning": ("hours(ended_at)",)}),
        {"properties": {**RUNS.properties, "format-version": "3"}},
        columns(Column("rows", "bigint", required=True)),
    ]),
    (RUNS, {Why.COLUMNS_CHANGED}, [
        *({"columns": RUNS.columns[:2]}, {"columns": (*RUNS.columns, Column("more", "int"))}),
        *(columns(Column("rows", kind)) for kind in ("int", "string")),
        {"columns": (RUNS.columns[0], Column("row_count", "bigint"), RUNS.columns[2])},
    ]),
    (RUNS, {Why.RENAMED}, [{"name": "ops.other"}]),
    (RUNS, {Why.KIND_CHANGED}, [{"kind": Kind.LOG}]),
    (RUNS, set(), [
        *({"id": stable_id("p", "x")}, {"place": DeclarationPlace("a.yaml", 3)}, {"keys": ("RUN_ID",)}),
        columns(Column("rows", "bigint", was=(Was("n", "string", "CAST(n AS bigint)"), Was(type="int")))),
        {"columns": tuple(replace(column, name=column.name.upper()) for column in RUNS.columns)},
        {"properties": dict(reversed([*RUNS.properties.items()]))},
    ]),
    (VIEW, set(), [{"query": query} for query in LAYOUTS]),
    (VIEW, {Why.QUERY_CHANGED}, [{"query": "SELECT b FROM ops.runs"}]),
    (SINK, {Why.DEFINITION_CHANGED}, [
        *({"sink": replace(SENT, columns=("run_id",))}, {"sink": replace(SENT, follow_schema=True)}),
        *({"sink": replace(SENT, on_replace="resend")}, {"sink": replace(SENT, settings={"path": "s3://y"})}),
    ]),
    (SINK, set(), [{"sink": replace(SENT, settings={"format": "jsonl", "path": "s3://x"})}]),
    (SOURCE, {Why.DEFINITION_CHANGED}, [{"source": {**DEFINITION, "connection": "other"}}]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("obj", "shows", "change"),
    [
        pytest.param(obj, shows, change, id=f"{obj.kind.value}: {change}"[:80])
        for obj, shows, changes in DIFFERENCES
        for change in changes
    ],
)
def test_each_change_shows_as_one_difference_or_as_none(obj: BuiltinObject, shows: set[Why], change: Any) -> None:
    assert compared(recorded(obj), replace(obj, **change)) == shows


def test_two_columns_of_one_type_that_change_places_are_another_contract() -> None:
    one, other = (Column("a", "int"), Column("b", "int")), (Column("b", "int"), Column("a", "int"))
    assert contract_of(one) != contract_of(other)


def test_a_star_is_its_authors_and_shows_when_it_stands_for_other_columns() -> None:
    star = replace(VIEW, query="SELECT * FROM ops.runs")
    known = replace(recorded(star), sql="SELECT a FROM ops.runs")
    assert compared(known, star) == set()
    assert compared(known, star, sql="SELECT a, b FROM ops.runs") == {Why.STAR_CHANGED}


def test_types_of_one_meaning_are_one_contract() -> None:
    short = (Column("a", "struct<X:int,y:string>"),)
    assert contract_of(short) == contract_of((Column("A", "STRUCT<x INT, Y: varchar(3)>"),))


def test_a_sink_follows_its_source_through_a_rename() -> None:
    renamed = replace(RUNS, name="ops.all_runs")
    sink = replace(SINK, sink=replace(SINK.sink, source="OPS.all_runs"))
    assert compared(recorded(SINK, RUNS), sink, renamed) == set()
    other = replace(RUNS, id=stable_id("p", "other"))
    assert compared(recorded(SINK, RUNS), SINK, other) == {Why.DEFINITION_CHANGED}


def test_a_password_of_a_source_is_not_stored() -> None:
    secret = {**DEFINITION, "auth": {"password": "hunter2", "api_key": "abc", "api_token": "{{ config['token'] }}"}}
    secret["config"] = {"headers": {"X-Functions": "CANARY", "Accept": "{{ config['kind'] }}"}, "page": 5}
    text = definition_of(replace(SOURCE, source=secret)) or ""
    assert not [word for word in ("CANARY", "hunter2", "abc") if word in text]
    assert not [word for word in ("config['kind']", "X-Functions", "config['token']") if word not in text]


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
