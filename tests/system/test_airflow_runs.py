"""Runs of every kind: backfills, mapped tasks, assets, several at once, a paused DAG, a restarted scheduler."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.sync_state import STATE_KEY
from tests.airflow_versions import needs_sdk_timetables
from tests.integration.conftest import ROOT, SHOP
from tests.integration.test_incremental import TABLE, changed_by_day, damage, rows_of, truth_of, windows_in
from tests.profile import share
from tests.soon import PATIENCE, wait_until
from tests.system.conftest import COST_OF_KILL, ENDED, IN_FLIGHT, SIZES, TOTAL, Story
from tests.unit.operators.test_full_refresh_docs import examples_in

DAG = "on_demand"
PAGES = SIZES.pages
AT_ONCE = 2
DAYS = share(10, least=4)


def backfill(story: Story, days: list[date], behavior: str) -> list[str]:
    """Backfill the days, two at a time; return the ids of their runs when all have ended well."""
    body = {
        "dag_id": "by_day",
        "from_date": f"{days[0]}T00:00:00Z",
        "to_date": f"{days[-1]}T00:00:00Z",
        "max_active_runs": 2,
        "reprocess_behavior": behavior,
    }
    story.airflow.call("PATCH", "/dags/by_day", {"is_paused": False})
    number = story.airflow.call("POST", "/backfills", body)["id"]
    runs = [f"backfill__{day}T00:00:00+00:00" for day in days]

    def ended() -> Any:
        states = {run: story.airflow.call("GET", f"/dags/by_day/dagRuns/{quote(run)}")["state"] for run in runs}
        failed = [story.log("by_day", run)[-3000:] for run, state in states.items() if state == "failed"]
        assert not failed, failed
        return story.airflow.call("GET", f"/backfills/{number}")["completed_at"]

    wait_until(ended, 4 * PATIENCE, every=1)
    story.airflow.call("PATCH", "/dags/by_day", {"is_paused": True})
    return runs


def test_days_are_backfilled_two_at_a_time_each_with_its_own_generation(story: Story) -> None:
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(DAYS)]
    runs = backfill(story, days, "none")
    ids: dict[date, list[int]] = {}
    for row in story.lake.rows("raw.by_day").to_pylist():
        ids.setdefault(date.fromisoformat(str(row["day"])), []).append(row["id"])
    # The scheduler has its own run of the last interval besides.
    assert set(days) <= set(ids)
    for day in days:
        assert sorted(ids[day]) == sorted(story.api.truth(f"/partitions/{day.day % 4}/items")["ids"])
    for run in runs:
        assert story.result("by_day", quote(run))["generation"] == 1


def test_days_that_are_backfilled_again_are_read_again(story: Story) -> None:
    days = [date(2026, 1, 20), date(2026, 1, 21)]
    for generation in (1, 2):
        story.api.reset()
        for run in backfill(story, days, "completed"):
            result = story.result("by_day", quote(run))
            # The API's answers are read without their total, so an empty page ends each day.
            assert (result["generation"], result["pages_fetched"]) == (generation, PAGES + 1)
        for day in days:
            assert story.api.counts(path=f"/partitions/{day.day % 4}/items")["served"] >= PAGES
    story.wait_for_no_driver()


@contextmanager
def documented(story: Story, dag: str) -> Iterator[None]:
    """Have a DAG of the docs run inside."""
    folder = Path(story.airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"])
    if not (folder / "shop.yaml").exists():
        (folder / "shop.yaml").symlink_to(SHOP)
    (folder / f"{dag}.py").write_text(examples_in("docs/incremental.md", "docs/backfill.md")[dag])
    with story.unpaused(dag):
        yield


def sync(story: Story, run: str, **conf: Any) -> None:
    story.trigger("shipments", run, **conf)
    story.succeed("shipments", run)


@needs_sdk_timetables
def test_ten_days_are_backfilled_by_the_documented_commands_beside_a_sync(story: Story) -> None:
    changed_by_day(story.api, datetime(2026, 1, 1, tzinfo=timezone.utc))
    # The newest record, at which the syncs begin: without it, the first one would repair the tenth day.
    story.api.change_shipments(edit=[700], at=datetime(2026, 1, 12, tzinfo=timezone.utc))
    page = (ROOT / "docs/backfill.md").read_text()
    commands = re.findall(r"^\$ (airflow (?:pools|backfill) .* shipments.*)$", page, re.M)
    assert len(commands) == 2
    with documented(story, "shipments"):
        sync(story, "first", full_refresh=True)
        damage(story.lake)
        with documented(story, "shipments_by_day"):
            for command in commands:
                subprocess.run(shlex.split(command), env=story.airflow.environment, check=True)
            for hour in itertools.count(1):
                story.api.change_shipments(edit=[45 * hour, 1000 + hour], add=3, remove=[45 * hour + 20])
                sync(story, f"hour-{hour}")
                backfill = story.airflow.call("GET", "/backfills?dag_id=shipments_by_day")["backfills"][-1]
                if backfill["completed_at"]:
                    break
            for run in story.runs("shipments_by_day"):
                story.succeed("shipments_by_day", quote(run["dag_run_id"]))
        sync(story, "last")
    assert rows_of(story.lake) == truth_of(story.api)

    windows = windows_in(story.lake)
    published = [window for window in windows if window is not None]
    # The scheduler has its own run of the last day besides, which changes nothing.
    assert [window[:10] for window in sorted(published)] == [f"2026-01-{day:02}" for day in range(1, 11)]
    first, last = windows.index(published[0]), windows.index(published[-1])
    assert None in windows[first:last], "no sync came between two windows"
    summaries = [summary_of(snapshot) for snapshot in story.lake.table(TABLE).snapshots()]
    assert not [summary for summary in summaries if "rfr.window" in summary and STATE_KEY in summary]


def start_mapped(story: Story, run: str, tables: list[str]) -> list[dict[str, Any]]:
    """Refresh each of the tables by a task of its own; return the tasks when the run has ended well."""
    story.trigger("mapped", run, tables=tables)

    def ended() -> str | None:
        # One process of Java for each driver.
        assert sum(driver.name() == "java" for driver in story.drivers()) <= AT_ONCE
        state = str(story.airflow.call("GET", f"/dags/mapped/dagRuns/{run}")["state"])
        return state if state in ENDED else None

    assert wait_until(ended, 5 * PATIENCE, every=1) == "success", story.log("mapped", run)[-4000:]
    tasks = story.airflow.call("GET", f"/dags/mapped/dagRuns/{run}/taskInstances?limit=100")["task_instances"]
    return [task for task in tasks if task["task_id"] == "refresh"]


def test_each_of_thirty_mapped_tasks_refreshes_its_table_two_at_a_time(story: Story) -> None:
    tables = [f"mapped.table_{number:02}" for number in range(share(30, least=6))]
    tasks = start_mapped(story, "mapped", tables)
    assert {task["state"] for task in tasks} == {"success"}
    truth = sorted(story.api.truth("/partitions/0/items")["ids"])
    for table in tables:
        assert sorted(story.lake.rows(table)["id"].to_pylist()) == truth
    served = story.api.counts(path="/partitions/0/items")["served"]
    retries = sum(task["try_number"] - 1 for task in tasks)
    assert 0 <= served - PAGES * len(tables) <= 2 * IN_FLIGHT * retries
    story.wait_for_no_driver()


def test_a_refresh_that_is_mapped_over_an_empty_list_is_skipped(story: Story) -> None:
    [task] = start_mapped(story, "empty", [])
    assert task["state"] == "skipped"
    assert story.api.counts()["requests"] == 0


@pytest.mark.gate
def test_a_run_that_an_asset_caused_has_no_logical_date_and_refreshes(story: Story) -> None:
    assets = story.airflow.call("GET", "/assets?name_pattern=orders_arrived")["assets"]
    story.airflow.call("POST", "/assets/events", {"asset_id": assets[0]["id"]})
    runs = wait_until(lambda: story.airflow.call("GET", "/dags/on_asset/dagRuns")["dag_runs"], PATIENCE, every=0.5)
    assert runs[0]["logical_date"] is None
    story.succeed("on_asset", runs[0]["dag_run_id"])
    story.assert_whole("raw.on_asset")


def test_a_second_run_on_the_same_target_waits_or_fails_as_on_busy_says(story: Story) -> None:
    story.hold_after(10)
    story.start(DAG, "busy-first", table="busy")
    story.api.wait_for_pages(10, timeout=PATIENCE)
    story.start(DAG, "busy-fails", table="busy", on_busy="fail")
    assert story.wait_for_state(DAG, "busy-fails", "up_for_retry", "failed")["try_number"] == 1
    assert "raw.busy is being refreshed by on_demand/busy-first/refresh" in story.log(DAG, "busy-fails")
    story.mark(DAG, "busy-fails", "failed")
    story.start(DAG, "busy-waits", table="busy")
    wait_until(lambda: "waiting for it, since on_busy is wait" in story.log(DAG, "busy-waits"), PATIENCE, every=0.5)
    story.api.set_faults()
    story.succeed(DAG, "busy-first")
    story.succeed(DAG, "busy-waits")
    assert story.result(DAG, "busy-first")["generation"] == 1
    waited = story.result(DAG, "busy-waits")
    assert (waited["generation"], waited["attempts"], waited["pages_refetched"]) == (2, 1, 0)
    assert waited["seconds"]["wait"] > 1
    story.assert_whole("raw.busy")


def test_a_dag_that_is_paused_in_the_middle_ends_its_refresh(story: Story) -> None:
    story.hold_after(TOTAL // 4)
    story.start(DAG, "paused", table="paused")
    story.api.wait_for_pages(TOTAL // 4, timeout=PATIENCE)
    story.airflow.call("PATCH", f"/dags/{DAG}", {"is_paused": True})
    story.api.set_faults()
    try:
        story.wait_for_state(DAG, "paused", "success")
    finally:
        story.airflow.call("PATCH", f"/dags/{DAG}", {"is_paused": False})
    assert story.result(DAG, "paused")["attempts"] == 1
    story.assert_whole("raw.paused")
    pages = story.api.counts(path="/partitions/*")
    assert (pages["pages"], pages["refetched"]) == (TOTAL, 0)
    story.wait_for_no_driver()


def test_a_scheduler_that_is_killed_and_started_again_loses_nothing(story: Story) -> None:
    story.hold_after(TOTAL // 2)
    story.start(DAG, "scheduler", table="scheduler")
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)
    story.airflow.restart("scheduler")
    story.api.set_faults()
    story.succeed(DAG, "scheduler")
    assert story.result(DAG, "scheduler")["generation"] == 1
    story.assert_whole("raw.scheduler")
    pages = story.api.counts(path="/partitions/*")
    assert pages["pages"] == TOTAL
    assert pages["refetched"] <= COST_OF_KILL
    story.wait_for_no_driver()
