"""Fingerprints: which change shows in which of the four, and which in none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.builtins.fingerprint import (
    Fingerprint,
    Fingerprints,
    contract_of,
    fingerprints,
    same_logic,
)
from airflow_provider_rfr.builtins.spec import (
    BuiltinObject,
    CatalogSpec,
    Column,
    Kind,
    Place,
    Removed,
    Was,
    stable_id,
)
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER
from airflow_provider_rfr.sinks.spec import SinkSpec
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


def of(obj: BuiltinObject, *others: BuiltinObject) -> Fingerprints:
    objects = sorted((obj, *others), key=lambda each: each.key)
    return fingerprints(obj, CatalogSpec("p", "1", tuple(objects)))


def differences(obj: BuiltinObject, **changes) -> tuple[str, ...]:
    before, after = of(obj), of(replace(obj, **changes))
    names = ("contract", "constraints", "logic", "meta")
    return tuple(name for name in names if getattr(before, name).text != getattr(after, name).text)


def columns(*changed_columns: Column) -> tuple[Column, ...]:
    by_name = {each.name: each for each in changed_columns}
    return tuple(by_name.get(each.name, each) for each in RUNS.columns)


def test_the_text_says_number_name_and_type_and_the_hash_is_of_the_text() -> None:
    contract = of(RUNS).contract
    assert contract.text == "1 run_id string\n2 rows bigint\n3 ended_at timestamp"
    assert contract.digest == "c1:" + hashlib.sha256(contract.text.encode()).hexdigest()
    assert [each.digest[:3] for each in (of(RUNS).constraints, of(RUNS).logic, of(RUNS).meta)] == ["k1:", "l1:", "m1:"]


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
    assert differences(RUNS, **change) == ("meta",)


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
    assert differences(RUNS, **change) == ("constraints",)


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
    assert differences(RUNS, columns=columns) == ("contract",)


def test_a_column_that_is_only_renamed_is_another_contract() -> None:
    renamed = tuple(replace(each, name="row_count") if each.name == "rows" else each for each in RUNS.columns)
    assert differences(RUNS, columns=renamed) == ("contract",)


def test_two_columns_of_one_type_that_change_places_are_another_contract() -> None:
    one, other = (Column("a", "int"), Column("b", "int")), (Column("b", "int"), Column("a", "int"))
    assert contract_of(one) != contract_of(other)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "ops.other"},
        {"id": stable_id("p", "x")},
        {"kind": Kind.LOG},
        {"place": Place("a.yaml", 3)},
        {"columns": columns(Column("rows", "bigint", was=(Was("n"),)))},
        {"columns": columns(Column("rows", "bigint", was=(Was("n", "string", "CAST(n AS bigint)"), Was(type="int"))))},
        {"columns": tuple(replace(each, name=each.name.upper()) for each in RUNS.columns)},
        {"properties": dict(reversed([*RUNS.properties.items()]))},
        {"keys": ("RUN_ID",)},
    ],
)
def test_name_id_place_what_a_column_was_and_case_show_in_none(change: dict) -> None:
    assert differences(RUNS, **change) == ()


@pytest.mark.parametrize(
    "query", ["select A\n  from OPS.runs", "SELECT a /* x */ FROM ops.runs", "SELECT\ta FROM ops . runs -- y"]
)
def test_white_space_comments_and_case_of_a_query_show_in_none(query: str) -> None:
    assert differences(VIEW, query=query) == ()


def test_another_query_is_another_logic_and_the_star_is_its_authors() -> None:
    assert differences(VIEW, query="SELECT b FROM ops.runs") == ("logic",)
    star = replace(VIEW, query="SELECT * FROM ops.runs")
    wider = replace(RUNS, columns=(*RUNS.columns, Column("more", "int")))
    assert of(star, RUNS) == of(star, wider)


def test_what_others_are_declared_beside_it_shows_in_none() -> None:
    listing = replace(RUNS, name="ops.everything", keep=False)
    gone = CatalogSpec("p", "1", (listing,), removed=(Removed("ops.everything.rows"),))
    assert fingerprints(listing, gone) == of(listing)
    assert of(listing) == of(listing, VIEW, SINK) == of(listing, VIEW, SINK, SOURCE)


def test_types_of_one_meaning_are_one_contract() -> None:
    short = (Column("a", "struct<X:int,y:string>"),)
    assert contract_of(short) == contract_of((Column("A", "STRUCT<x INT, Y: varchar(3)>"),))


def test_a_sink_follows_its_source_through_a_rename() -> None:
    renamed = replace(RUNS, name="ops.all_runs")
    sink = replace(SINK, sink=replace(SINK.sink, source="OPS.all_runs"))
    assert of(SINK, RUNS).logic == of(sink, renamed).logic
    assert of(SINK, RUNS).logic != of(SINK, replace(RUNS, id=stable_id("p", "other"))).logic
    assert of(SINK).logic != of(SINK, RUNS).logic


def test_a_source_is_found_among_objects_in_any_order() -> None:
    more = [replace(VIEW, name=f"ops.{letter}") for letter in "zyxab"]
    unsorted = CatalogSpec("p", "1", (*more, RUNS, SINK))
    assert fingerprints(SINK, unsorted) == of(SINK, RUNS)


@pytest.mark.parametrize(
    ("change", "shows"),
    [
        ({"settings": {"path": "s3://y", "format": "jsonl"}}, ("logic",)),
        ({"columns": ("run_id",)}, ("logic",)),
        ({"follow_schema": True}, ("logic",)),
        ({"on_replace": "resend"}, ("meta",)),
        ({"settings": {"format": "jsonl", "path": "s3://x"}}, ()),
    ],
)
def test_what_a_sink_sends_is_its_logic_and_its_policy_is_metadata(change: dict, shows: tuple[str, ...]) -> None:
    assert differences(SINK, sink=replace(SINK.sink, **change)) == shows


def test_what_a_source_reads_is_its_logic_and_a_password_is_not_stored() -> None:
    assert differences(SOURCE, source={**DEFINITION, "connection": "other"}) == ("logic",)
    secret = {**DEFINITION, "auth": {"password": "hunter2", "api_key": "abc", "api_token": "{{ config['token'] }}"}}
    text = of(replace(SOURCE, source=secret)).logic.text
    assert "hunter2" not in text
    assert "abc" not in text
    assert "config['token']" in text


NAMES = st.text(min_size=1, max_size=8)
LISTS = st.lists(st.tuples(NAMES, st.sampled_from(["int", "string", "array<int>"])), max_size=4)


@PATIENT
@given(LISTS, LISTS)
def test_contracts_are_equal_exactly_where_columns_are(one, other) -> None:
    first, second = (tuple(Column(name, kind) for name, kind in each) for each in (one, other))
    folded = [[(name.casefold(), kind) for name, kind in each] for each in (one, other)]
    assert (contract_of(first).text == contract_of(second).text) == (folded[0] == folded[1])
    assert (contract_of(first).digest == contract_of(second).digest) == (folded[0] == folded[1])


@dataclass
class RegistryState:
    """What the registry kept of a view."""

    raw_sql: str | None
    canonicalizer: str = CANONICALIZER
    logic: str = ""

    @property
    def fingerprints(self) -> Fingerprints:
        none = Fingerprint("", "")
        return Fingerprints(none, none, Fingerprint(self.logic, ""), none)


@pytest.mark.parametrize(
    ("recorded", "same"),
    [
        (RegistryState(VIEW.query, "sqlglot/1 rules/0", "whatever it wrote"), True),
        (RegistryState("select a from OPS.runs", "sqlglot/1 rules/0", "whatever it wrote"), True),
        (RegistryState("SELECT b FROM ops.runs", "sqlglot/1 rules/0", "select a from ops . runs"), False),
        (RegistryState("SELECT a  FROM ops.runs", CANONICALIZER, "select a from ops . runs"), True),
        (RegistryState("SELECT b FROM ops.runs", CANONICALIZER, "select b from ops . runs"), False),
        (RegistryState(None, CANONICALIZER, "select a from ops . runs"), False),
    ],
)
def test_what_another_canonicalizer_wrote_is_never_compared(recorded: RegistryState, same: bool) -> None:
    assert same_logic(VIEW, recorded) is same


def test_a_view_without_columns_of_its_own_promises_none() -> None:
    assert of(VIEW).contract.text == ""


def test_fingerprints_of_a_view_whose_query_is_left_out_can_be_had() -> None:
    assert of(replace(VIEW, query=None)).logic.text == ""
