"""Incremental syncs by the application, on Spark and without: killed at every place, and the next attempt goes on."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.lake.sync_state import read_state
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.conftest import CRASHING_APP, Lake, Runner, shop
from tests.integration.test_crash_matrix import PLACES

TABLE = "raw.shipments"
COLUMNS = ("id", "status", "updated_at")
ON_SPARK = ("after a flush", "before the target commit", "after the target commit")


@pytest.fixture(scope="module")
def api() -> Any:
    with SampleApi(Sizes(records=2000), latency_ms=5) as running:
        yield running


def synced(runner: Runner, api: SampleApi, lake: Lake) -> None:
    """Run the first sync, which reads everything, and change records."""
    api.reset()
    first = runner.run(config_of(runner, api, spark="when_needed"))
    assert (first.figures["rows"], first.figures["changes"]) == (2000, None)
    api.change_shipments(edit=range(1, 601), add=50, remove=range(601, 651))
    assert rows_of(lake) != truth_of(api)


def config_of(runner: Runner, api: SampleApi, **options: Any) -> Path:
    limits = {"round_seconds": 0.3, "concurrency": 2, "max_deleted": 0.5}
    return runner.config(
        source=shop(api, page_size=25),
        streams=["shipments"],
        sync="incremental",
        options={"mode": "merge", **limits, **options},
    )


def rows_of(lake: Lake) -> dict[int, tuple[Any, ...]]:
    rows = lake.rows(TABLE).select(COLUMNS).to_pylist()
    assert len(rows) == len({row["id"] for row in rows}), "a key is doubled"
    return {row["id"]: (row["status"], row["updated_at"].isoformat()) for row in rows}


def truth_of(api: SampleApi) -> dict[int, tuple[Any, ...]]:
    return {
        number: (record["status"], datetime.fromisoformat(record["updated_at"].replace("Z", "+00:00")).isoformat())
        for number, record in api.records("/shipments").items()
    }


@pytest.mark.parametrize(
    ("place", "spark"),
    [
        *((place, "when_needed") for place in PLACES),
        *(pytest.param(place, "always", marks=pytest.mark.gate) for place in ON_SPARK[:2]),
        (ON_SPARK[2], "always"),
    ],
)
def test_a_sync_that_is_killed_is_gone_on_with(
    place: str, spark: str, lake: Lake, runner: Runner, api: SampleApi
) -> None:
    synced(runner, api, lake)
    before = read_state(lake.table(TABLE))
    config = config_of(runner, api, spark=spark)
    runner.run(config, app=CRASHING_APP, environment={"RFR_TEST_KILL": place}, expect=-9)
    is_visible = place in ("after the target commit", "after the published mark")
    assert (rows_of(lake) == truth_of(api)) is is_visible
    assert (read_state(lake.table(TABLE)) == before) is not is_visible
    asked = api.counts(path="/shipments")["refetched"]
    second = runner.run(config)
    assert rows_of(lake) == truth_of(api)
    if place in ("before a ledger commit", "after a ledger commit", "before the target commit"):
        again = api.counts(path="/shipments")["refetched"] - asked - second.figures["overlap_checks"]
        assert again == 0, "pages that were on disk were asked for again"


def test_a_sync_without_changes_makes_no_commit(lake: Lake, runner: Runner, api: SampleApi) -> None:
    synced(runner, api, lake)
    config = config_of(runner, api, spark="when_needed")
    counts = runner.run(config).figures["changes"]
    assert (counts["inserted"], counts["updated"], counts["deleted"]) == (50, 600, 50)
    snapshot = lake.table(TABLE).metadata.current_snapshot_id
    again = runner.run(config).figures
    assert again["changes"]["inserted"] == again["changes"]["updated"] == again["changes"]["deleted"] == 0
    assert lake.table(TABLE).metadata.current_snapshot_id == snapshot
