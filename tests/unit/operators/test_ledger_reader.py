"""What a checkpoint has of a real ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.hooks.lake import LakeDocument
from airflow_provider_rfr.operators import _progress as progress
from airflow_provider_rfr.operators._progress import LedgerReader
from tests.unit.messages import raises
from tests.unit.refresh.paged_sources import REQUESTS
from tests.unit.refresh.test_rounds import TABLE, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    REQUESTS.clear()
    return Bench(tmp_path)


@pytest.fixture
def reader(bench: Bench, tmp_path: Path) -> LedgerReader:
    uri, warehouse = f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/w"
    return LedgerReader(LakeDocument("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse}))


def test_a_table_without_a_ledger_is_known_to_have_none(reader: LedgerReader) -> None:
    assert reader.status(TABLE) is None
    assert reader.is_complete
    assert reader.details(TABLE) == {}


def test_a_ledger_that_cannot_be_read_is_not_taken_for_one_without_progress() -> None:
    reader = LedgerReader(LakeDocument("rfr", {"type": "sql", "uri": "sqlite:////nowhere/c.db", "warehouse": "x"}))
    with raises(Exception):
        reader.status(TABLE)
    assert not reader.is_complete


def test_each_partition_is_named_by_a_digest_its_pages_and_whether_it_is_done(
    bench: Bench, reader: LedgerReader
) -> None:
    source = bench.source(partitions=5, pages=6)
    ledger, _ = bench.open(source)
    reader.status(TABLE)
    opened = reader.details(TABLE)
    assert list(opened["partition_states"].values()) == [{"pages": 0, "done": False}] * 5

    ledger, _, _ = bench.read(source)
    status = reader.status(TABLE)
    assert status is not None
    details = reader.details(TABLE)
    assert set(details["partition_states"]) == set(opened["partition_states"])
    assert list(details["partition_states"].values()) == [{"pages": 6, "done": True}] * 5
    assert details["pointer"] == {"ledger": ledger.id, "snapshot": str(bench.ledger()._table.snapshot_id)}


def test_a_committed_file_is_read_once(bench: Bench, reader: LedgerReader, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.read(bench.source(partitions=3, pages=2))
    reader.status(TABLE)
    first = reader.details(TABLE)
    read: list[Any] = []
    monkeypatch.setattr("airflow_provider_rfr.lake.files.FileStore.read_table", lambda *given: read.append(given))
    assert reader.details(TABLE) == first
    assert not read


@pytest.mark.parametrize("bound", ["_MAX_PARTITIONS", "_MAX_PAGES"])
def test_no_page_row_of_a_large_refresh_is_read(
    bench: Bench, reader: LedgerReader, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    bench.read(bench.source(partitions=3, pages=2))
    monkeypatch.setattr(progress, bound, 2)
    monkeypatch.delattr("airflow_provider_rfr.lake.ledger_table.LedgerTable.read")
    reader.status(TABLE)
    details = reader.details(TABLE)
    assert set(details) == {"pointer"}


def test_neither_token_nor_key_nor_address_is_in_it(bench: Bench, reader: LedgerReader) -> None:
    ledger, _, _ = bench.read(bench.source(partitions=3, pages=2))
    columns = ("partition_key", "token_out", "request")
    tables = [ledger.store.read_table(file, columns) for file in ledger.page_files()]
    reader.status(TABLE)
    shown = json.dumps(reader.details(TABLE))
    private = {text for table in tables for column in table.columns for text in column.to_pylist() if text}
    assert private
    assert not [text for text in private if len(text) > 2 and text in shown]
