"""Runs of every kind: backfills, mapped tasks, assets, several at once, a paused DAG, a restarted scheduler."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from tests.profile import share
from tests.soon import PATIENCE, wait_until
from tests.system.conftest import ENDED, SIZES, Story
from tests.system.dags.semantics import MAPPED

DAG = "on_demand"
TOTAL = SIZES.partitions * SIZES.pages
PAGES = SIZES.pages
DAYS = share(10, least=4)


def test_days_are_backfilled_two_at_a_time_each_with_its_own_generation(story: Story) -> None:
    days = [date(2026, 1, 1) + timedelta(days=number) for number in range(DAYS)]
    body = {
        "dag_id": "by_day",
        "from_date": f"{days[0]}T00:00:00Z",
        "to_date": f"{days[-1]}T00:00:00Z",
        "max_active_runs": 2,
        "reprocess_behavior": "none",
    }
    story.airflow.call("PATCH", "/dags/by_day", {"is_paused": False})
    story.airflow.call("POST", "/backfills", body)

    def ended() -> list[dict[str, Any]]:
        runs = story.airflow.call("GET", "/dags/by_day/dagRuns?limit=50&run_type=backfill")["dag_runs"]
        states = [run["state"] for run in runs]
        assert "failed" not in states, [story.log("by_day", run["dag_run_id"])[-3000:] for run in runs]
        return runs if states.count("success") == DAYS else []

    runs = wait_until(ended, 4 * PATIENCE, every=1)
    story.airflow.call("PATCH", "/dags/by_day", {"is_paused": True})
    found: dict[date, list[int]] = {}
    for row in story.lake.rows("raw.by_day").to_pylist():
        found.setdefault(date.fromisoformat(str(row["day"])), []).append(row["id"])
    # The scheduler has its own run of the last interval besides.
    assert set(days) <= set(found)
    for day in days:
        assert sorted(found[day]) == sorted(story.api.truth(f"/partitions/{day.day % 4}/items")["ids"])
    for run in runs:
        assert story.result("by_day", run["dag_run_id"])["generation"] == 1


def test_each_of_many_mapped_tasks_refreshes_its_table(story: Story) -> None:
    story.airflow.call("POST", "/dags/mapped/dagRuns", {"dag_run_id": "mapped", "logical_date": None})

    def ended() -> str | None:
        state = str(story.airflow.call("GET", "/dags/mapped/dagRuns/mapped")["state"])
        return state if state in ENDED else None

    assert wait_until(ended, 4 * PATIENCE, every=1) == "success", story.log("mapped", "mapped")[-4000:]
    truth = sorted(story.api.truth("/partitions/0/items")["ids"])
    for table in MAPPED:
        assert sorted(story.lake.rows(table)["id"].to_pylist()) == truth


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
    assert story.result(DAG, "busy-waits")["generation"] == 2
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
    story.assert_whole("raw.paused")
    assert story.api.counts(path="/partitions/*")["refetched"] == 0


@pytest.mark.gate
def test_a_scheduler_that_is_killed_and_started_again_loses_nothing(story: Story) -> None:
    story.hold_after(TOTAL // 2)
    story.start(DAG, "scheduler", table="scheduler")
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)
    story.airflow.restart("scheduler")
    story.api.set_faults()
    story.succeed(DAG, "scheduler")
    assert story.result(DAG, "scheduler")["generation"] == 1
    story.assert_whole("raw.scheduler")
    assert story.api.counts(path="/partitions/*")["refetched"] <= 8 + 0.05 * TOTAL
