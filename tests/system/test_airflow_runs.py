"""Runs of every kind: backfills, mapped tasks, assets, several at once, a paused DAG, a restarted scheduler."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from tests.profile import share
from tests.soon import PATIENCE, wait_until
from tests.system.conftest import ENDED, SIZES, Story

DAG = "on_demand"
TOTAL = SIZES.partitions * SIZES.pages
PAGES = SIZES.pages
AT_ONCE = 2
IN_FLIGHT = 4
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
    assert pages["refetched"] <= 2 * IN_FLIGHT + 0.05 * TOTAL
    story.wait_for_no_driver()
