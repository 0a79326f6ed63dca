"""A source that changes its mind about types: each full replacement is published, and no number is lost on the way."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_rfr.lake.inference import arrow_schema, infer_records
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.page_rows import encode_records
from airflow_provider_rfr.refresh.typed_rows import LedgerPage, type_pages
from airflow_provider_rfr.streams.rest._responses import Response

Row = dict[str, Any]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> SqlCatalog:
    folder: Path = tmp_path_factory.mktemp("lake")
    return SqlCatalog("rfr", uri="sqlite:///:memory:", warehouse=f"file://{folder}")


def publish(catalog: SqlCatalog, table: str, generation: int, body: str, schema: pa.Schema | None = None) -> list[Row]:
    """From the answer's body to the table, as a refresh does it; returns the table's rows."""
    found = Response(200, "OK", {"Content-Type": "application/json"}, body.encode(), "GET /", "http://x/").json()
    page = LedgerPage("{}", 1, encode_records(found), len(found), 0)
    wanted = schema if schema is not None else infer_records(page.records).to_arrow()
    target = TargetTable(catalog, table)
    files = target.prepare(wanted, "evolve", inferred=schema is None, rows_stay=False)
    typed = type_pages([page], files.rows, generation=generation)
    assert typed.offenders == ()
    described = [stored.describe(files.layout) for stored, _ in files.write(typed.table)]
    target.commit(described, ("ledger", generation), mode="replace", replace_where=None, summary={})
    rows: list[Row] = catalog.load_table(table).scan().to_arrow().to_pylist()
    assert {row["_rfr_generation"] for row in rows} == {generation}
    return rows


def exactly(body: str) -> list[Row]:
    rows: list[Row] = json.loads(body, parse_float=Decimal, parse_int=Decimal)
    return rows


def lost(sent: Any, got: Any, noted: frozenset[Decimal]) -> list[Any]:
    """The numbers and texts of ``sent`` that ``got`` doesn't have and no note tells."""
    if isinstance(got, str) and not isinstance(sent, str | Decimal):
        got = json.loads(got, parse_float=Decimal, parse_int=Decimal)
    if isinstance(sent, dict):
        return [loss for name, value in sent.items() for loss in lost(value, (got or {}).get(name), noted)]
    if isinstance(sent, list):
        # A list of nothing but empty values is not a column.
        rest = got if got is not None else [None] * len(sent)
        return [loss for value, item in zip(sent, rest, strict=True) for loss in lost(value, item, noted)]
    if isinstance(sent, Decimal):
        return [] if number(got) == sent or sent in noted else [(sent, got)]
    if sent is None or (isinstance(sent, bool) and got in (sent, json.dumps(sent))):
        return []
    return [] if got in (sent, json.dumps(sent)) else [(sent, got)]


def number(value: Any) -> Decimal | None:
    """The number that the table's value shows."""
    if value is None or isinstance(value, bool | Decimal):
        return value if isinstance(value, Decimal) else None
    try:
        return Decimal(value.strip('"') if isinstance(value, str) else repr(value))
    except InvalidOperation:
        return None


def noted_in(row: Row) -> frozenset[Decimal]:
    changes = json.loads(row["_rfr_meta"] or '{"changes":[]}')["changes"]
    return frozenset(Decimal(change["reason"].rsplit(" ", 1)[1]) for change in changes if change["change"] == "ROUNDED")


NUMBERS = st.one_of(
    st.integers(-5, 5).map(str),
    st.integers(-(2**66), 2**66).map(str),
    st.integers(2**53 - 2, 2**53 + 2).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**12), 10**12, places=12).map(str),
)
TEXTS = st.sampled_from(['"x"', '"1.5"', '""', '"2026-01-01"', '"null"'])
VALUES = st.recursive(
    st.one_of(st.just("null"), st.sampled_from(["true", "false"]), NUMBERS, NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]"),
        st.dictionaries(st.sampled_from(["b", "b.c", "c"]), inner, max_size=2).map(lambda fields: obj(fields)),
    ),
    max_leaves=4,
)


def obj(fields: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields.items()) + "}"


RECORDS = st.dictionaries(st.sampled_from(["a", "a.b", "n", "N.c"]), VALUES, max_size=3).map(obj)
GENERATIONS = st.lists(
    st.tuples(st.lists(RECORDS, min_size=1, max_size=3).map(lambda records: f"[{','.join(records)}]"), st.booleans()),
    min_size=2,
    max_size=4,
)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(GENERATIONS)
def test_whatever_a_source_sends_over_time_is_published_with_every_number_exact_or_noted(
    catalog: SqlCatalog, generations: list[tuple[str, bool]]
) -> None:
    if catalog.namespace_exists("raw") and catalog.table_exists("raw.random"):
        catalog.drop_table("raw.random")
    for generation, (text, uppercase) in enumerate(generations, start=1):
        body = text.replace('"a', '"A').replace('"b', '"B') if uppercase else text
        rows = publish(catalog, "raw.random", generation, body)
        sent = exactly(body)
        assert len(rows) == len(sent)
        for record, row in zip(sent, rows, strict=True):
            assert lost(record, row, noted_in(row)) == [], body


def test_integers_that_become_decimals_and_then_integers_again_are_published(catalog: SqlCatalog) -> None:
    published = [publish(catalog, "raw.drift", n, f'[{{"a":{text}}}]') for n, text in enumerate(["1", "1.5", "2"], 1)]
    assert [rows[0]["a"] for rows in published] == [1, 1.5, 2.0]
    assert str(catalog.load_table("raw.drift").schema().find_type("a")) == "double"


def test_a_large_integer_beside_decimals_is_noted_and_a_declared_decimal_has_all_its_digits(
    catalog: SqlCatalog,
) -> None:
    body = '[{"a":9007199254740993},{"a":0.12345678901234567890},{"a":1.5},{"a":12345678901234567.125}]'
    rows = publish(catalog, "raw.money", 1, body)
    assert [row["a"] for row in rows] == [9007199254740992.0, 0.12345678901234568, 1.5, 1.2345678901234568e16]
    assert [noted_in(row) for row in rows] == [
        {Decimal(9007199254740993)},
        {Decimal("0.12345678901234567890")},
        frozenset(),
        {Decimal("12345678901234567.125")},
    ]
    declared = {"properties": {"a": {"type": "number", "format": "decimal(38,20)"}}}
    rows = publish(catalog, "raw.money", 2, body, arrow_schema(declared))
    assert [row["a"] for row in rows] == [record["a"] for record in exactly(body)]
    assert {row["_rfr_meta"] for row in rows} == {None}
    described = catalog.load_table("raw.money").inspect.files().to_pylist()
    assert described[0]["readable_metrics"]["a"]["upper_bound"] == Decimal("12345678901234567.125")
