"""What a publish does to the table, by the real application: modes, guards, types and schemas.

A Spark session costs seconds, so one test tells one story with several streams in each run.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType

from airflow_provider_rfr.lake.catalog import create_table, open_catalog
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.lake.expiry import _MAX_AGE, _MIN_SNAPSHOTS
from airflow_provider_rfr.refresh.after_publish import part_ledgers
from airflow_provider_rfr.sample_api import SampleApi
from tests.headers import read_status
from tests.integration.conftest import Lake, Runner
from tests.integration.sources import (
    checksum_of,
    errors_by_stream,
    figures_by_stream,
    schema_like,
    source_of,
    stream_like,
)

FAILED = 1
OVERLAPPING = {
    # Each page begins 25 records after the one before and holds 40: neighbours share 15 of them.
    "request": {"path": "/orders", "query": {"limit": 40}},
    "paginator": {"type": "offset", "page_size": 25, "advance": "page_size", "total": {"path": "total"}},
}


def requests_of(api: SampleApi) -> int:
    return int(api.counts()["requests"])


def add_rows(lake: Lake, table: str, *rows: dict[str, Any]) -> None:
    """Rows by somebody else: an ordinary append by PyIceberg."""
    loaded = lake.table(table)
    schema = loaded.schema().as_arrow()
    names = [name for name in schema.names if name in rows[0]]
    loaded.append(pa.Table.from_pylist(list(rows), schema=pa.schema([schema.field(name) for name in names])))


def event_of(lake: Lake, table: str) -> CommitEvent:
    """What webhooks tell of the newest commit."""
    snapshot = lake.table(table).current_snapshot()
    event = CommitEvent.from_summary(
        table,
        snapshot.snapshot_id,
        snapshot.sequence_number,
        snapshot.timestamp_ms,
        snapshot.summary.additional_properties,
    )
    assert event is not None
    return event


def column(rows: pa.Table, name: str) -> list[Any]:
    return list(rows[name].to_pylist())


def test_replace_publishes_typed_rows_once_and_the_next_run_is_a_new_generation(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    streams = {
        "orders": stream_like("orders"),
        "invoices": stream_like("invoices"),
        "overlapping": stream_like("orders", **OVERLAPPING),
    }

    def config(key: str) -> Any:
        run = {"key": key, "airflow": {"dag_id": "shop", "dag_run_id": key, "task_id": "refresh"}}
        return runner.config(source=source_of(api, streams), streams=list(streams), run=run)

    began = datetime.now(timezone.utc)
    first = figures_by_stream(runner.run(config("monday")))
    truth = {"orders": api.truth("/orders"), "invoices": api.truth("/invoices"), "overlapping": api.truth("/orders")}
    for name, expected in truth.items():
        rows = lake.rows(f"raw.{name}")
        assert checksum_of(rows) == expected["checksum"], f"{name} differs from its source"
        assert set(column(rows, "_rfr_generation")) == {1}
        assert rows["_rfr_extracted_at"].null_count == 0
        assert rows["_rfr_meta"].null_count == rows.num_rows
        summary = lake.table(f"raw.{name}").current_snapshot().summary
        assert summary["rfr.generation"] == "1"
        assert summary["rfr.rows"] == str(expected["count"]) == str(first[name]["rows"])
        event = event_of(lake, f"raw.{name}")
        assert event.collection_names == (name,)
        assert (event.documents, event.generation, event.dag_run_id) == (expected["count"], 1, "monday")
        assert event.bytes == int(summary["added-files-size"])
        assert event.fetched_at_min and event.fetched_at_max
        assert began < event.fetched_at_min <= event.fetched_at_max < event.committed_at
    assert first["overlapping"]["duplicates_removed"] == 15 * 15
    inferred = lake.table("raw.invoices").schema()
    assert str(inferred.find_type("amount")) == "double"
    assert str(inferred.find_type("quantity")) == "long"
    assert str(inferred.find_type("paid")) == "boolean"
    assert str(inferred.find_type("ship_to.express")) == "boolean"
    assert str(lake.table("raw.orders").schema().find_type("placed_at")) == "timestamptz"

    requests = requests_of(api)
    snapshots = {name: lake.table(f"raw.{name}").current_snapshot().snapshot_id for name in streams}
    again = figures_by_stream(runner.run(config("monday")))
    assert requests_of(api) == requests, "a refresh that is published was read again"
    for name, snapshot_id in snapshots.items():
        assert again[name]["snapshot_id"] == snapshot_id == first[name]["snapshot_id"]
        assert (first[name]["already_published"], again[name]["already_published"]) == (False, True)
        assert lake.table(f"raw.{name}").current_snapshot().snapshot_id == snapshot_id
        assert again[name]["rows"] == first[name]["rows"]

    add_rows(lake, "raw.orders", {"id": -1, "reference": "somebody else's"})
    api.set_faults({"kind": "edit", "path": "/orders", "collection": "/orders"})
    more = {"quantity": "{{ record.quantity + 0.5 }}"}
    streams["invoices"] = stream_like("invoices", transformations=[{"type": "add", "fields": more}])
    money = {"type": "number", "format": "decimal(12,2)"}
    streams["overlapping"] = stream_like("orders", **OVERLAPPING, json_schema=schema_like("orders", amount=money))
    with lake.table("raw.overlapping").transaction() as transaction:
        transaction.set_properties({_MAX_AGE: "0", _MIN_SNAPSHOTS: "1"})
    figures = figures_by_stream(runner.run(config("tuesday")))
    assert figures["orders"]["generation"] == 2
    assert {name: figure["snapshots_expired"] for name, figure in figures.items()} == {
        "orders": 0,
        "invoices": 0,
        "overlapping": 1,
    }
    assert len(lake.table("raw.overlapping").metadata.snapshots) == 1
    assert (figures["overlapping"]["files_deleted"] > 2, figures["overlapping"]["files_undeleted"]) == (True, 0)
    status = read_status(lake.settings, "raw.orders")
    assert (status.dag_id, status.dag_run_id, status.task_id, status.map_index) == ("shop", "tuesday", "refresh", -1)
    rows = lake.rows("raw.orders")
    assert checksum_of(rows) == api.truth("/orders")["checksum"] != truth["orders"]["checksum"]
    assert set(column(rows, "_rfr_generation")) == {2}
    invoices, quantities = lake.table("raw.invoices"), column(lake.rows("raw.invoices"), "quantity")
    assert invoices.current_snapshot().summary["rfr.schema-changes"] == "replace quantity long by double"
    old = invoices.scan(snapshot_id=snapshots["invoices"]).to_arrow()
    assert sorted(quantities) == sorted(number + 0.5 for number in column(old, "quantity"))
    assert old.schema.field("quantity").type == pa.int64()
    amounts = lake.rows("raw.overlapping")
    assert amounts.schema.field("amount").type == pa.decimal128(12, 2)
    assert sorted(map(str, column(amounts, "amount"))) == sorted(f"{amount:.2f}" for amount in column(rows, "amount"))
    before = lake.table("raw.orders").scan(snapshot_id=snapshots["orders"]).to_arrow()
    assert checksum_of(before) == truth["orders"]["checksum"], "the old snapshot can't be read any more"


def create_partitioned_by_day(lake: Lake, name: str) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="day"))
    create_table(open_catalog(lake.settings), name, schema, spec)


@pytest.mark.gate
def test_a_backfilled_day_replaces_that_day_alone_and_rows_of_another_day_are_refused(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    tables = ("raw.plain", "raw.partitioned")
    create_partitioned_by_day(lake, "raw.partitioned")
    daily = stream_like(
        "items",
        partitions={"type": "list", "field": "partition", "values": "{{ config.parts }}"},
        transformations=[{"type": "add", "fields": {"day": "{{ config.day }}"}}],
        json_schema=schema_like("items", day={"type": "string", "format": "date"}),
    )
    streams = {"plain": daily, "partitioned": daily}

    def config(day: str, parts: list[int], replaced: str) -> Any:
        source = source_of(api, streams, day=day, parts=parts)
        options = {"replace_where": f"day = '{replaced}'"}
        return runner.config(source=source, streams=list(streams), options=options)

    def days(table: str) -> dict[date, list[int]]:
        ids_of_days: dict[date, list[int]] = {}
        for row in lake.rows(table).select(["id", "day"]).to_pylist():
            ids_of_days.setdefault(row["day"], []).append(row["id"])
        return {day: sorted(ids) for day, ids in ids_of_days.items()}

    monday, tuesday = date(2026, 1, 5), date(2026, 1, 6)
    ids = {day: sorted(api.truth(f"/partitions/{number}/items")["ids"]) for number, day in enumerate((monday, tuesday))}

    runner.run(config("2026-01-05", [0], "2026-01-05"))
    for table in tables:
        assert days(table) == {monday: ids[monday]}

    refused = runner.run(config("2026-01-06", [1], "2026-01-05"), expect=FAILED)
    for error in errors_by_stream(refused).values():
        assert error["type"] == "PublishRefusedError"
        assert "500 rows do not match replace_where (day = '2026-01-05')" in error["message"]
    assert set(errors_by_stream(refused)) == set(streams)
    for table in tables:
        assert days(table) == {monday: ids[monday]}, "a refused publish changed the table"
    runner.run(config("2026-01-06", [1], "2026-01-06"))
    for table in tables:
        assert days(table) == ids

    for table in tables:
        add_rows(lake, table, {"id": -1, "day": monday}, {"id": -2, "day": tuesday})
    api.set_faults({"kind": "edit", "path": "/partitions/0/items", "collection": "/partitions/0/items"})
    runner.run(config("2026-01-05", [0], "2026-01-05"))
    for table in tables:
        assert days(table) == {monday: ids[monday], tuesday: [-2, *ids[tuesday]]}
        parts = [
            ledger.header.replace_where for ledger in part_ledgers(open_catalog(lake.settings), table) if ledger.header
        ]
        assert sorted(map(str, parts)) == ["day = '2026-01-05'", "day = '2026-01-06'"]
        revisions = {(row["day"], row["revision"]) for row in lake.rows(table).to_pylist() if row["id"] > 0}
        assert revisions == {(monday, 1), (tuesday, 0)}


def test_a_shrunken_or_empty_result_is_published_only_where_that_is_allowed(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    usual = stream_like("items", request={"path": "/partitions/0/items"}, partitions=None)
    # The API does not know this parameter, so each page is the first one: as many rows, and few keys.
    stuck = {**usual, "paginator": {**usual["paginator"], "send_as": {"query": "unknown"}}}
    streams = {"orders": stream_like("orders"), "invoices": stream_like("invoices"), "repeating": usual}

    def config(names: list[str], **options: Any) -> Any:
        options = {"on_repeated_page": "accept", **options}
        return runner.config(source=source_of(api, streams), streams=names, options=options)

    shrinking = ["orders", "invoices"]
    runner.run(config(list(streams)))
    before = {name: lake.table(f"raw.{name}").current_snapshot().snapshot_id for name in streams}

    def unchanged() -> bool:
        return all(lake.table(f"raw.{name}").current_snapshot().snapshot_id == before[name] for name in streams)

    api.set_faults(*({"kind": "shrink", "path": f"/{name}", "records": 300} for name in shrinking))
    streams["repeating"] = stuck
    refused = errors_by_stream(runner.run(config(list(streams), max_shrink=0.5), expect=FAILED))
    assert {name: error["type"] for name, error in refused.items()} == dict.fromkeys(streams, "PublishRefusedError")
    assert "100 rows after 400" in refused["orders"]["message"]
    assert "25 rows after 500" in refused["repeating"]["message"]
    assert unchanged()
    requests = requests_of(api)
    runner.run(config(shrinking, max_shrink=0.8))
    assert requests_of(api) == requests
    for name in shrinking:
        assert checksum_of(lake.rows(f"raw.{name}")) == api.truth(f"/{name}")["checksum"]
        before[name] = lake.table(f"raw.{name}").current_snapshot().snapshot_id

    api.set_faults(*({"kind": "shrink", "path": f"/{name}", "records": 100} for name in shrinking))
    refused = errors_by_stream(runner.run(config(shrinking), expect=FAILED))
    assert {name: error["type"] for name, error in refused.items()} == dict.fromkeys(shrinking, "PublishRefusedError")
    assert "allow_empty" in refused["orders"]["message"]
    assert unchanged()
    requests = requests_of(api)
    columns = lake.table("raw.invoices").schema().column_names
    runner.run(config(shrinking, allow_empty=True))
    assert requests_of(api) == requests
    for name in shrinking:
        assert lake.rows(f"raw.{name}").num_rows == 0
    assert lake.table("raw.invoices").schema().column_names == columns


WRONG_TYPES = {
    "amount": {"type": "integer"},
    "ship_to": {"type": "object", "properties": {"zip": {"type": "string"}, "city": {"type": "integer"}}},
}


def create_narrow_orders(lake: Lake, name: str) -> None:
    """A table of an older schema with a row in it: no amount, an id of 32 bits, and a column that the API lacks."""
    fields = [NestedField(1, "id", IntegerType()), NestedField(2, "reference", StringType())]
    create_table(open_catalog(lake.settings), name, Schema(*fields, NestedField(3, "note", StringType())))
    add_rows(lake, name, {"id": 1, "reference": "old", "note": "kept until replaced"})


@pytest.fixture
def misfits(api: SampleApi, lake: Lake) -> dict[str, Any]:
    create_narrow_orders(lake, "raw.evolving")
    wrong = stream_like("orders", json_schema=schema_like("orders", **WRONG_TYPES))
    return {"corrected": wrong, "nulled": wrong, "evolving": stream_like("orders")}


def test_what_does_not_fit_is_told_and_nothing_is_fetched_again_after_the_correction(
    lake: Lake, runner: Runner, api: SampleApi, misfits: dict[str, Any]
) -> None:
    def config(**options: Any) -> Any:
        return runner.config(source=source_of(api, misfits), streams=list(misfits), options=options)

    failed = errors_by_stream(runner.run(config(on_schema_change="fail", max_offenders=4), expect=FAILED))
    assert {name: error["type"] for name, error in failed.items()} == {
        "corrected": "TypeMismatchError",
        "nulled": "TypeMismatchError",
        "evolving": "SchemaEvolutionError",
    }
    message = failed["corrected"]["message"]
    assert "columns: page " in message
    assert "ship_to.city is" in message
    assert "expected integer" in message
    assert message.count(", record ") == 4
    assert "more)" in message
    assert "widen id long" in failed["evolving"]["message"]
    assert "add amount double" in failed["evolving"]["message"]
    assert not lake.has("raw.corrected")
    assert column(lake.rows("raw.evolving"), "reference") == ["old"]

    requests = requests_of(api)
    misfits["corrected"] = stream_like("orders")
    runner.run(config(on_type_error="null"))
    assert requests_of(api) == requests, "pages were fetched again although they are in the ledger"
    truth = api.truth("/orders")
    for name in ("corrected", "evolving"):
        rows = lake.rows(f"raw.{name}")
        assert sorted(column(rows, "id")) == sorted(truth["ids"])
        assert rows["_rfr_meta"].null_count == rows.num_rows
    assert checksum_of(lake.rows("raw.corrected")) == truth["checksum"]
    assert checksum_of(lake.rows("raw.evolving").drop_columns(["note"])) == truth["checksum"]
    evolved = lake.table("raw.evolving").schema()
    assert str(evolved.find_type("id")) == "long"
    assert str(evolved.find_type("note")) == "string"

    corrected = {row["id"]: row for row in lake.rows("raw.corrected").to_pylist()}
    nulled = lake.rows("raw.nulled").to_pylist()
    assert sorted(row["id"] for row in nulled) == sorted(truth["ids"])
    for row in nulled:
        amount = corrected[row["id"]]["amount"]
        fits = amount == int(amount)
        fields = {change["field"] for change in json.loads(row["_rfr_meta"])["changes"]}
        assert fields == ({"ship_to.city"} if fits else {"ship_to.city", "amount"})
        assert row["amount"] == (int(amount) if fits else None)
        assert row["ship_to"] == {"zip": corrected[row["id"]]["ship_to"]["zip"], "city": None}
