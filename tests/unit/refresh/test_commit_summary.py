"""What the publish's commit says of itself, and of the event that webhooks tell."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr import __version__
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.commit_event import EVENT_KEY, Binding, CommitEvent
from airflow_provider_rfr.refresh.chains import Cursor
from airflow_provider_rfr.refresh.config import RefreshConfig, parse_config
from airflow_provider_rfr.refresh.partitions import live_pages
from airflow_provider_rfr.refresh.publish import commit_summary
from tests.headers import header_of
from tests.unit.messages import raises

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
LATER = NOON + timedelta(minutes=5, microseconds=7)
AIRFLOW = {
    "dag_id": "shop",
    "dag_run_id": "manual__1",
    "task_id": "refresh",
    "map_index": 3,
    "logical_date": "2026-03-01T00:00:00Z",
    "try_number": 2,
}


def config(**run: Any) -> RefreshConfig:
    return parse_config(
        {
            "source": {"class": "shop:Shop", "secrets": {"token": "hunter2"}},
            "streams": ["orders"],
            "target": "raw.{stream}",
            "lake": {"name": "prod", "properties": {"uri": "postgresql://u:hunter2@db/x"}},
            "run": run,
        }
    )


def summary(documents: int = 10, ledger: str = "ledger-1", deleted: int | None = None, **run: Any) -> dict[str, str]:
    binding = Binding("raw.orders", "orders", documents, 99)
    header = header_of(generation=4, epoch=2)
    counts = {"pages-skipped": 0, **({} if deleted is None else {"deleted": deleted})}
    return commit_summary(ledger, header, config(**run), binding, (NOON, LATER), counts)


def event(*args: Any, **run: Any) -> CommitEvent:
    found = CommitEvent.from_summary("raw.orders", 5, 6, 1_772_366_400_123, summary(*args, **run))
    assert found is not None
    return found


def test_the_event_names_the_run_the_table_and_what_was_fetched_when() -> None:
    found = summary(key="k", airflow=AIRFLOW)
    read = CommitEvent.from_summary("raw.orders", 5, 6, 1_772_366_400_123, found)
    assert read is not None
    assert read.commit_id == read.run_id == str(uuid.uuid5(uuid.NAMESPACE_URL, "ledger-1:4")) == found["rfr.commit-id"]
    assert (read.target, read.lake, read.target_name) == ("raw.orders", "prod", "raw.orders")
    assert (read.snapshot_id, read.sequence, read.generation) == (5, 6, 4)
    assert read.committed_at == NOON + timedelta(milliseconds=123)
    assert (read.fetched_at_min, read.fetched_at_max) == (NOON, LATER)
    assert read.collection_names == ("orders",)
    assert read.bindings == (Binding("raw.orders", "orders", 10, 99),)
    assert read.producer == f"airflow-provider-rfr:{__version__}"
    assert (read.dag_id, read.dag_run_id, read.task_id, read.map_index, read.logical_date) == tuple(
        value for name, value in AIRFLOW.items() if name != "try_number"
    )


def test_the_commit_id_is_the_same_for_every_try_and_another_for_another_ledger_or_generation() -> None:
    assert event().commit_id == event(documents=3).commit_id != event(ledger="ledger-2").commit_id


def test_a_commit_that_only_deletes_rows_lists_its_collection_and_times() -> None:
    found = event(documents=0, deleted=3)
    assert (found.collection_names, found.fetched_at_min, found.fetched_at_max) == (("orders",), NOON, LATER)


@pytest.mark.parametrize("deleted", [None, 0])
def test_a_commit_without_documents_lists_no_collection_and_no_times(deleted: int | None) -> None:
    found = event(documents=0, deleted=deleted)
    assert (found.collection_names, found.fetched_at_min, found.fetched_at_max) == ((), None, None)
    assert found.bindings == (Binding("raw.orders", "orders", 0, 99),)


def test_outside_airflow_the_run_s_fields_are_empty_and_the_document_may_name_the_materialization() -> None:
    found = event(materialization_name="acme/orders")
    assert found.target_name == "acme/orders"
    assert (found.dag_id, found.dag_run_id, found.task_id, found.logical_date) == ("",) * 4
    assert found.map_index is None


def test_no_secret_and_no_second_delivery_id_is_in_the_summary() -> None:
    found = summary(airflow=AIRFLOW)
    assert "hunter2" not in json.dumps(found)
    assert "rfr.delivery-id" not in found
    assert set(json.loads(found[EVENT_KEY])) == {
        *("commit_id", "lake", "target_name", "run_id", "generation", "collection_names", "bindings"),
        *("producer", "fetched_at_min", "fetched_at_max", "dag_id", "dag_run_id", "task_id"),
        *("map_index", "logical_date", "merged_commits"),
    }


def test_the_run_s_document_refuses_what_it_does_not_know() -> None:
    with raises(ConfigurationError):
        config(airflow={**AIRFLOW, "password": "x"})


def pages(*rows: tuple[int, int, int, datetime | None]) -> pa.Table:
    ordinals, chains, numbers, times = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "partition_ordinal": pa.array(ordinals, pa.int64()),
            "chain": pa.array(chains, pa.int32()),
            "page": pa.array(numbers, pa.int32()),
            "fetched_at": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )


def test_times_are_those_of_pages_on_live_chains() -> None:
    def at(minutes: int) -> datetime:
        return NOON + timedelta(minutes=minutes)

    table = pages(
        (0, 0, 0, at(-90)),  # the opening row
        (0, 0, 1, at(-60)),  # superseded
        (0, 1, 1, at(1)),
        (0, 1, 2, at(4)),
        (2, 0, 1, at(3)),
        (2, 0, 2, None),
        (1, 0, 0, at(99)),
    )
    cursors = {0: Cursor(1, 2, None, True, 1), 2: Cursor(0, 2, None, True, 1)}
    assert live_pages(table, cursors)["fetched_at"].to_pylist() == [at(1), at(4), at(3), None]
    assert live_pages(pages(), {}).num_rows == 0
    assert live_pages(pages((0, 0, 0, at(0))), {}).num_rows == 0
