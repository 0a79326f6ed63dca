from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.catalog import create_table
from airflow_provider_rfr.lake.expiry import _MAX_AGE, _MIN_SNAPSHOTS, KIND, hold_property
from airflow_provider_rfr.store.engine import open_store
from tests.unit.cli.calls import Rfr
from tests.unit.refresh.test_maintenance import ledger_of, let_all_go, publish
from tests.unit.triggers.lake import Lake

NAME = "raw.daily"


@pytest.fixture
def rfr(command: Rfr, lake: Lake) -> Rfr:
    """``airflow rfr tables ...`` on the lake."""
    return lambda *arguments, code=0: command("tables", *arguments, "--lake-conn-id", "lake", code=code)


def snapshots(lake: Lake) -> int:
    return len(lake.catalog.load_table(NAME).metadata.snapshots)


def test_snapshots_are_expired_by_hand(lake: Lake, rfr: Rfr) -> None:
    for number in range(3):
        publish(lake.catalog, number)
    let_all_go(lake.catalog)
    time.sleep(0.01)
    would = rfr("expire", "--dry-run", "-o", "json").json
    assert would[0]["snapshots"] == 2 and snapshots(lake) == 3
    assert rfr("expire", "-o", "json").json == would and snapshots(lake) == 1
    assert "there is no table raw.nope" in rfr("expire", "raw.nope", code=1).err


def test_without_names_waiting_rows_are_added_to_the_history_tables(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rfr: Rfr
) -> None:
    url = f"sqlite:///{tmp_path}/control.db"
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", url)
    schema = Schema(NestedField(1, "commit_id", StringType(), required=True), identifier_field_ids=[1])
    create_table(lake.catalog, "rfr_system.commit_history", schema)
    history = History(open_store(url), lake.catalog)
    history.report("rfr_system.commit_history", [{"commit_id": "c1"}], ("commit_id",))
    rfr("expire", "--dry-run")
    publish(lake.catalog, 1)
    rfr("expire", NAME)
    assert lake.catalog.load_table("rfr_system.commit_history").scan().count() == 0
    store = {"conn_type": "sqlite", "host": f"{tmp_path}/other.db"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(store))
    rfr("expire", "--control-store-conn-id", "other")
    assert lake.catalog.load_table("rfr_system.commit_history").scan().count() == 0
    rfr("expire")
    assert lake.catalog.load_table("rfr_system.commit_history").scan().count() == 1


def test_tables_of_others_are_expired_only_by_their_names(lake: Lake, rfr: Rfr) -> None:
    for _ in range(3):
        lake.publish(NAME)
    with lake.catalog.load_table(NAME).transaction() as transaction:
        transaction.set_properties({_MAX_AGE: "0", _MIN_SNAPSHOTS: "1"})
    assert rfr("expire", "-o", "json").json == [] and snapshots(lake) == 3
    assert rfr("expire", NAME, "-o", "json").json[0]["snapshots"] == 2


def test_a_table_whose_metadata_is_lost_holds_up_no_other(lake: Lake, rfr: Rfr) -> None:
    for number in range(3):
        publish(lake.catalog, number)
    let_all_go(lake.catalog)
    time.sleep(0.01)
    lake.commit("raw.another")
    lake.lose_metadata("raw.another")
    assert rfr("expire", "--dry-run", "-o", "json").json[0]["snapshots"] == 2
    ended = rfr("expire", "raw.another", NAME, "-o", "json", code=1)
    assert ended.json[0]["snapshots"] == 2 and snapshots(lake) == 1
    assert ended.err.splitlines()[-1] == "raw.another: FileNotFoundError"


def test_a_ledger_whose_metadata_is_lost_holds_up_those_of_no_other_table(lake: Lake, rfr: Rfr) -> None:
    publish(lake.catalog, 1)
    ledger_of(lake.catalog, "day = '2026-01-01'")
    lake.commit("raw.another")
    lake.commit("raw.another__rfr_ledger_0123456789ab")
    lake.lose_metadata("raw.another__rfr_ledger_0123456789ab")
    time.sleep(0.01)
    ended = rfr("drop-ledgers", "raw.another", NAME, "--days", "0", "-o", "json", code=1)
    assert [row["replace_where"] for row in ended.json] == ["day = '2026-01-01'"]
    assert ended.err.splitlines()[-1] == "raw.another: FileNotFoundError"


def test_who_holds_snapshots_is_told_and_can_be_released(lake: Lake, rfr: Rfr) -> None:
    for number in range(3):
        publish(lake.catalog, number)
    let_all_go(lake.catalog, **{hold_property("webhook.erp"): "2"})
    time.sleep(0.01)
    first = rfr("expire", "-o", "json").json[0]
    assert (first["snapshots"], first["held"]) == (1, "webhook.erp (1)")
    error = rfr("expire", NAME, "--release", "erp", code=1).err
    assert "nothing called 'erp' holds snapshots of raw.daily; one of webhook.erp" in error
    assert "nothing called 'erp' holds snapshots of any table" in rfr("expire", "--release", "erp", code=1).err
    # The first table by its name, which nothing holds.
    lake.catalog.create_table("raw.a", Schema(), properties={KIND: "table"})
    planned = rfr("expire", "--release", "webhook.erp", "--dry-run", "-o", "json").json
    assert [row["snapshots"] for row in planned] == [0, 1] and snapshots(lake) == 2
    released = rfr("expire", "--release", "webhook.erp", "-o", "json").json
    assert [row["snapshots"] for row in released] == [0, 1] and snapshots(lake) == 1


def test_ledgers_of_parts_are_listed_with_the_refreshes_and_dropped(lake: Lake, command: Rfr, rfr: Rfr) -> None:
    def listed() -> list[Any]:
        rows: list[Any] = command("refresh", "list", "--lake-conn-id", "lake", "-o", "json").json["tables"]
        return [row for row in rows if row["replace_where"] is not None]

    publish(lake.catalog, 1)
    ledger_of(lake.catalog, None)
    ledger_of(lake.catalog, "day = '2026-01-01'")
    ledger_of(lake.catalog, "day = '2026-01-02'", published=False)
    found = {row["replace_where"]: row for row in listed()}
    assert sorted(found) == ["day = '2026-01-01'", "day = '2026-01-02'"]
    first = found["day = '2026-01-01'"]
    assert (first["state"], first["run"]["dag_run_id"], first["published_rows"]) == ("published", "monday", 3)
    assert rfr("drop-ledgers", "-o", "json").json == []
    time.sleep(0.01)
    assert [
        row["replace_where"] for row in rfr("drop-ledgers", NAME, "--days", "0", "--dry-run", "-o", "json").json
    ] == ["day = '2026-01-01'"]
    assert "replace_where=day = '2026-01-01'" in rfr("drop-ledgers", NAME, "--days", "0").out
    assert [row["replace_where"] for row in listed()] == ["day = '2026-01-02'"]
    rfr("drop-ledgers", "--days", "-1", code=1)
