"""Incremental syncs by the application, on Spark and without: killed at every place, and the next attempt goes on."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.sync_state import read_state
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration import sources
from tests.integration.conftest import CRASHING_APP, Lake, Runner, shop
from tests.integration.test_crash_matrix import PLACES

TABLE = "raw.shipments"
COLUMNS = ("id", "status", "updated_at")
DAMAGED = "id > 400 and id <= 500"
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


def config_of(
    runner: Runner,
    api: SampleApi,
    run: str | None = None,
    window: str | None = None,
    source: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    limits = {"round_seconds": 0.3, "concurrency": 2, "max_deleted": 0.5}
    return runner.config(
        source=source or shop(api, page_size=25),
        streams=["shipments"],
        sync="incremental",
        run={"key": run},
        window=window,
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


def changed_by_day(api: SampleApi, first_day: datetime) -> None:
    """Change 50 records on each of ten days."""
    for day in range(10):
        first = 50 * day + 1
        api.change_shipments(edit=range(first, first + 50), at=first_day + timedelta(days=day, hours=6))


def damage(lake: Lake) -> None:
    """Leave for a backfill of these days to repair: rows that are gone, and rows that another writer damaged."""
    table = lake.table(TABLE)
    table.delete("id <= 400")
    rows = table.scan(row_filter=DAMAGED).to_arrow()
    place = rows.schema.get_field_index("status")
    table.overwrite(rows.set_column(place, rows.field(place), pa.array(["damaged"] * len(rows))), DAMAGED)


def windows_in(lake: Lake) -> list[str | None]:
    """Return the window of each commit on the table; None of a commit that is not a backfill's."""
    return [summary_of(snapshot).get("rfr.window") for snapshot in lake.table(TABLE).snapshots()]


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


@pytest.mark.parametrize(
    ("place", "spark"),
    [
        ("after a flush", "when_needed"),
        ("after a ledger commit", "always"),
        ("before the target commit", "when_needed"),
        ("after the target commit", "when_needed"),
    ],
)
def test_a_stream_in_python_that_is_killed_is_gone_on_with_from_its_own_state(
    place: str, spark: str, lake: Lake, runner: Runner, api: SampleApi
) -> None:
    source = {"class": f"{sources.__name__}:PythonShipments", "config": {"base_url": api.base_url, "api_key": "any"}}
    api.reset()
    runner.run(config_of(runner, api, spark="when_needed", source=source))
    api.change_shipments(edit=range(1, 601), add=50, remove=range(601, 651))
    config = config_of(runner, api, spark=spark, source=source)
    runner.run(config, app=CRASHING_APP, environment={"RFR_TEST_KILL": place}, expect=-9)
    second = runner.run(config)
    assert rows_of(lake) == truth_of(api)
    assert second.figures["already_published"] is (place == "after the target commit")
    state = read_state(lake.table(TABLE))
    assert state is not None
    assert state.of_source is not None
    newest = max(record["updated_at"] for record in api.records("/shipments").values())
    assert state.of_source["{}"]["updated_at"] >= newest


def test_a_sync_without_changes_makes_no_commit(lake: Lake, runner: Runner, api: SampleApi) -> None:
    synced(runner, api, lake)
    config = config_of(runner, api, spark="when_needed")
    counts = runner.run(config).figures["changes"]
    assert (counts["inserted"], counts["updated"], counts["deleted"]) == (50, 600, 50)
    snapshot = lake.table(TABLE).metadata.current_snapshot_id
    again = runner.run(config).figures
    assert again["changes"]["inserted"] == again["changes"]["updated"] == again["changes"]["deleted"] == 0
    assert lake.table(TABLE).metadata.current_snapshot_id == snapshot


def test_a_backfill_of_ten_days_beside_an_hourly_sync_ends_as_the_api_is(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    first_day = datetime(2025, 3, 1, tzinfo=timezone.utc)
    api.reset()
    changed_by_day(api, first_day)
    runner.run(config_of(runner, api, spark="when_needed"))
    state = read_state(lake.table(TABLE))
    assert state is not None
    damage(lake)
    over, failures = threading.Event(), list[BaseException]()

    def sync_each_hour() -> None:
        for hour in itertools.count():
            api.change_shipments(edit=[1 + 45 * hour, 1000 + hour], add=3, remove=[20 + 45 * hour])
            run(f"shipments/hour-{hour}/refresh/1", "after a ledger commit" if hour == 1 else None)
            if over.is_set():
                return

    def run(key: str, dies: str | None, **more: Any) -> None:
        config = config_of(runner, api, key, spark="when_needed", **more)
        try:
            if dies is not None:
                runner.run(config, app=CRASHING_APP, environment={"RFR_TEST_KILL": dies}, expect=-9)
            runner.run(config)
        except BaseException as error:
            failures.append(error)
            raise

    hourly = threading.Thread(target=sync_each_hour)
    hourly.start()
    try:
        deaths = {2: "after a ledger commit", 5: "before the target commit", 7: "after the target commit"}
        for day in range(10):
            window = f"{first_day + timedelta(days=day)}/{first_day + timedelta(days=day + 1)}"
            run(f"shipments_again/day-{day}/refresh/1", deaths.get(day), window=window)
    finally:
        over.set()
        hourly.join()
    assert not failures
    run("shipments/last-hour/refresh/1", None)
    assert rows_of(lake) == truth_of(api)
    windows = windows_in(lake)
    published = [window for window in windows if window is not None]
    assert len(set(published)) == len(published) == 10, "a window was not published, or twice"
    first, last = windows.index(published[0]), windows.index(published[-1])
    assert None in windows[first:last], "no sync came between two windows"
    after = read_state(lake.table(TABLE))
    assert after is not None
    assert after.values["{}"] > state.values["{}"]
