"""What a follower knows of a real ledger."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.refresh.follow import LedgerFollower
from tests.unit.messages import raises
from tests.unit.refresh.paged_sources import REQUESTS
from tests.unit.refresh.test_rounds import TABLE, Bench


def follower(uri: str, warehouse: str) -> LedgerFollower:
    settings = LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse})
    return LedgerFollower(lambda: settings, (TABLE,), show=lambda line: None)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    REQUESTS.clear()
    return Bench(tmp_path)


@pytest.fixture
def ledgers(bench: Bench, tmp_path: Path) -> LedgerFollower:
    return follower(f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/w")


def test_a_table_without_a_ledger_is_known_to_have_none(ledgers: LedgerFollower) -> None:
    assert ledgers.read(TABLE) is None
    assert ledgers.is_complete
    assert not ledgers.poll()
    assert ledgers.checkpoint() == {}


def test_a_ledger_that_cannot_be_read_is_not_taken_for_one_without_progress() -> None:
    ledgers = follower("sqlite:////nowhere/c.db", "x")
    with raises(Exception):
        ledgers.read(TABLE)
    assert not ledgers.is_complete


def test_a_checkpoint_points_to_the_ledgers_snapshot(bench: Bench, ledgers: LedgerFollower) -> None:
    ledgers.begin()
    ledger, _, _ = bench.read(bench.source(partitions=5, pages=6))
    assert ledgers.poll()
    checkpoint = ledgers.checkpoint()[TABLE]
    assert checkpoint["pointer"] == {"ledger": ledger.id, "snapshot": str(bench.ledger()._table.snapshot_id)}
    assert (checkpoint["partitions_done"], checkpoint["pages"]) == (5, 30)


def test_neither_token_nor_key_nor_address_is_in_it(bench: Bench, ledgers: LedgerFollower) -> None:
    ledgers.begin()
    ledger, _, _ = bench.read(bench.source(partitions=3, pages=2))
    columns = ("partition_key", "token_out", "request")
    tables = [ledger.store.read_table(file, columns) for file in ledger.page_files()]
    assert ledgers.poll()
    shown = json.dumps(ledgers.checkpoint())
    private = {text for table in tables for column in table.columns for text in column.to_pylist() if text}
    assert private
    assert not [text for text in private if len(text) > 2 and text in shown]
