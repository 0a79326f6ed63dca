"""What somebody does at Airflow's UI, and what the scheduler does by itself, to a refresh that is under way."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.soon import PATIENCE, wait_until
from tests.system.conftest import COST_OF_KILL, IN_FLIGHT, SIZES, TOTAL, Story
from tests.system.dags.semantics import WAYS_TO_WAIT

DAG = "on_demand"
EDITED = """
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP

with DAG("edited", schedule=None, start_date=datetime(2026, 1, 1), params={"table": "", "config": {}, "options": {}}):
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": str(SHOP), "config": {"partitions": 8, "page_size": SIZE}},
        streams=["items"],
        target="raw.edited",
        options={"round_seconds": 1, "concurrency": 4},
        api_conn_id="shop",
        lake_conn_id="lake",
        retries=4,
        retry_delay=timedelta(seconds=1),
    )
"""
SLOW = """
import time
from pathlib import Path

once = Path(__file__).with_suffix(".once")
if once.exists():
    once.unlink()
    time.sleep(3600)
"""


def interrupted(story: Story, run: str, table: str) -> None:
    """A refresh that is half read."""
    story.start(DAG, run, table=table)
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)


def lost_at_most_what_was_on_its_way(story: Story) -> None:
    pages = story.api.counts(path="/partitions/*")
    # In flight, one overlap check for each of as many open chains, and 5 % of what was read.
    assert pages["refetched"] <= COST_OF_KILL, twice(story)


def twice(story: Story) -> list[str]:
    """The pages that were served more than once, each time with its moment."""
    served: dict[str, list[float]] = {}
    for entry in story.api.log(path="/partitions/*"):
        served.setdefault(str(entry["page"]), []).append(entry["at"])
    return [f"{page}: {moments}" for page, moments in served.items() if len(moments) > 1]


@pytest.mark.gate
def test_a_sigkill_of_the_supervisor_leaves_two_drivers_and_one_result(story: Story) -> None:
    interrupted(story, "supervisor", "supervisor")
    drivers, supervisors = story.drivers(), story.supervisors()
    assert drivers
    assert supervisors
    story.kill(supervisors)
    task = story.succeed(DAG, "supervisor")
    assert task["try_number"] >= 2
    assert story.result(DAG, "supervisor")["generation"] == 1
    story.assert_whole("raw.supervisor")
    assert not [driver for driver in drivers if driver.is_running()], "the orphaned driver outlived its refresh"
    lost_at_most_what_was_on_its_way(story)


def test_a_task_that_runs_out_of_time_is_resumed_by_its_retry(story: Story) -> None:
    # No time is enough for this: the API answers half of the pages, and then no more.
    story.api.set_faults({"kind": "hang", "path": "/partitions/*", "after": TOTAL // 2})
    story.start("in_time", "timeout", table="timeout")
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)
    late, drivers = story.task("in_time", "timeout")["try_number"], set(story.drivers())
    assert drivers
    wait_until(lambda: story.task("in_time", "timeout")["try_number"] > late, PATIENCE, every=0.5)
    wait_until(lambda: not drivers & set(story.drivers()), every=0.5)
    assert story.api.counts(path="/partitions/*")["pages"] == TOTAL // 2
    story.api.set_faults()
    story.succeed("in_time", "timeout")
    assert story.result("in_time", "timeout")["generation"] == 1
    story.assert_whole("raw.timeout")
    lost_at_most_what_was_on_its_way(story)
    story.wait_for_no_driver()


def test_a_run_that_runs_out_of_time_stops_and_the_next_one_resumes(story: Story) -> None:
    story.hold_after(TOTAL // 2)
    story.start("hurried", "hurried", table="hurried")
    assert story.wait_for_end("hurried", "hurried")["state"] == "skipped"
    story.wait_for_no_driver()
    assert story.api.counts(path="/partitions/*")["pages"] <= TOTAL // 2
    assert not story.has("raw.hurried")
    story.api.set_faults()
    story.start(DAG, "after-hurried", table="hurried", on_busy="take_over")
    story.succeed(DAG, "after-hurried")
    assert story.result(DAG, "after-hurried")["generation"] == 1
    story.assert_whole("raw.hurried")
    lost_at_most_what_was_on_its_way(story)


def test_cleared_while_it_runs_it_stops_and_its_next_try_resumes(story: Story) -> None:
    story.hold_after(TOTAL // 2)
    story.start(DAG, "cleared-running", table="cleared_running")
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)
    drivers = set(story.drivers())
    assert drivers
    story.clear(DAG, "cleared-running")
    wait_until(lambda: not drivers & set(story.drivers()), every=0.5)
    assert not story.has("raw.cleared_running")
    story.api.set_faults()
    assert story.succeed(DAG, "cleared-running")["try_number"] == 2
    result = story.result(DAG, "cleared-running")
    assert (result["generation"], result["attempts"]) == (1, 2)
    story.assert_whole("raw.cleared_running")
    lost_at_most_what_was_on_its_way(story)
    story.wait_for_no_driver()


def test_a_retry_under_another_page_size_of_the_dag_file_reads_everything_anew(story: Story) -> None:
    file = Path(story.airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"]) / "edited.py"
    file.write_text(EDITED.replace("SIZE", "25"))
    story.airflow.wait_for_dag("edited")
    story.hold_after(TOTAL // 2)
    story.start("edited", "edited")
    story.api.wait_for_pages(TOTAL // 2, timeout=PATIENCE)
    file.write_text(EDITED.replace("SIZE", "50"))
    story.kill(story.drivers())
    story.api.set_faults()
    assert story.succeed("edited", "edited")["try_number"] == 2
    result = story.result("edited", "edited")
    assert (result["generation"], result["pages"]) == (2, TOTAL // 2)
    reason = "the source's definition, configuration or page size changed since generation 1 was begun"
    assert reason in story.log("edited", "edited")
    story.assert_whole("raw.edited")
    served = [entry["query"]["page_size"] for entry in story.api.log(path="/partitions/*") if entry["page"]]
    assert served.count("50") == TOTAL // 2
    assert served.count("25") <= TOTAL // 2 + IN_FLIGHT
    story.wait_for_no_driver()


def test_a_dag_file_that_takes_too_long_to_import_costs_no_try(story: Story) -> None:
    file = Path(story.airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"]) / "slow.py"
    file.write_text(SLOW + EDITED.replace("SIZE", "25").replace("edited", "slow"))
    story.airflow.wait_for_dag("slow")
    # The dag-processor reads an unchanged file again after minutes; so the next to import it is the task.
    file.with_suffix(".once").touch()
    story.start("slow", "slow")
    story.wait_for_state("slow", "slow", "up_for_reschedule")
    assert story.api.counts()["requests"] == 0
    assert story.succeed("slow", "slow")["try_number"] == 1
    story.assert_whole("raw.slow")
    assert story.api.counts(path="/partitions/*")["served"] == TOTAL
    story.wait_for_no_driver()


def test_a_sensor_that_runs_out_of_time_fails_or_is_skipped_however_it_waits(story: Story) -> None:
    story.trigger("impatient", "late")
    story.wait_for_run("impatient", "late")
    tasks = story.airflow.call("GET", "/dags/impatient/dagRuns/late/taskInstances")["task_instances"]
    assert {task["task_id"]: task["state"] for task in tasks} == {
        f"{name}_{outcome}": state
        for name in WAYS_TO_WAIT
        for outcome, state in {"fails": "failed", "is_skipped": "skipped"}.items()
    }
    log = story.log("impatient", "late")
    assert log.count("Waiting for commits of raw.never after ") >= len(tasks)
    assert log.count("not within 3 seconds: commits of raw.never after ") >= len(WAYS_TO_WAIT)


@pytest.mark.gate
def test_marked_failed_it_stops_and_cleared_it_resumes(story: Story) -> None:
    story.hold_after(TOTAL // 2)
    interrupted(story, "mark-failed", "mark_failed")
    story.mark(DAG, "mark-failed", "failed")
    assert story.wait_for_end(DAG, "mark-failed")["state"] == "failed"
    story.wait_for_no_driver()
    story.api.set_faults()
    before = story.api.counts(path="/partitions/*")["pages"]
    assert before < TOTAL
    assert not story.has("raw.mark_failed")
    story.clear(DAG, "mark-failed")
    story.wait_for_state(DAG, "mark-failed", "running")
    story.succeed(DAG, "mark-failed")
    assert story.result(DAG, "mark-failed")["generation"] == 1
    story.assert_whole("raw.mark_failed")
    lost_at_most_what_was_on_its_way(story)


def test_marked_success_it_stops_and_the_next_run_resumes(story: Story) -> None:
    story.hold_after(TOTAL // 2)
    interrupted(story, "mark-success", "mark_success")
    story.mark(DAG, "mark-success", "success")
    story.wait_for_end(DAG, "mark-success")
    story.wait_for_no_driver()
    story.api.set_faults()
    assert not story.has("raw.mark_success")
    story.start(DAG, "after-mark-success", table="mark_success", on_busy="take_over")
    story.succeed(DAG, "after-mark-success")
    assert story.result(DAG, "after-mark-success")["generation"] == 1
    story.assert_whole("raw.mark_success")
    lost_at_most_what_was_on_its_way(story)


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_cleared_refresh_begins_anew_if_it_was_published_and_resumes_if_not(story: Story, state: str) -> None:
    """Airflow 3.3 keeps a task's state when it is cleared, 3.4 does not: the ledger decides either way."""
    run = f"clear-{state}"
    table = f"clear_{state}"
    fault = {"kind": "error", "status": 401, "path": "/partitions/7/items", "after": 4, "times": 1}
    story.api.set_faults(fault)
    story.start(DAG, run, table=table)
    assert story.wait_for_end(DAG, run)["state"] == "failed"
    for generation in (1, 2):
        if state == "absent":
            story.forget_state(DAG, run)
        story.clear(DAG, run)
        story.wait_for_state(DAG, run, "running")
        story.succeed(DAG, run)
        assert story.result(DAG, run)["generation"] == generation
        story.assert_whole(f"raw.{table}")
    # The second generation read every page once more; the first was resumed.
    assert story.api.counts(path="/partitions/*")["refetched"] <= TOTAL + COST_OF_KILL


@pytest.mark.gate
def test_a_run_that_was_deleted_and_triggered_again_under_the_same_id_reads_everything(story: Story) -> None:
    results = []
    for _ in range(2):
        story.start(DAG, "again", table="again")
        story.succeed(DAG, "again")
        results.append(story.result(DAG, "again"))
        story.airflow.call("DELETE", f"/dags/{DAG}/dagRuns/again")
    first, second = results
    assert (first["generation"], second["generation"]) == (1, 2)
    assert second["pages_fetched"] == first["pages_fetched"] == TOTAL
    assert second["snapshot_id"] != first["snapshot_id"]
    story.assert_whole("raw.again")


def test_each_dags_test_of_one_date_reads_everything(story: Story) -> None:
    conf = {"table": "tested", "config": {"partitions": SIZES.partitions, "page_size": 25}, "options": {}}
    command = ["airflow", "dags", "test", DAG, "2026-01-05", "--conf", json.dumps(conf)]
    # The scheduler may run the task of a DAG that is not paused before the command does.
    story.airflow.call("PATCH", f"/dags/{DAG}", {"is_paused": True})
    try:
        for generation in ("1", "2"):
            ended = subprocess.run(command, env=story.airflow.environment, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
            assert story.lake.table("raw.tested").current_snapshot().summary["rfr.generation"] == generation
    finally:
        story.airflow.call("PATCH", f"/dags/{DAG}", {"is_paused": False})
    assert story.api.counts(path="/partitions/*")["refetched"] >= TOTAL
    story.assert_whole("raw.tested")


def test_a_cancelled_run_is_resumed_by_the_next_one(story: Story) -> None:
    interrupted(story, "cancelled-first", "cancelled")
    story.airflow.call("PATCH", f"/dags/{DAG}/dagRuns/cancelled-first", {"state": "failed"})
    story.wait_for_no_driver()
    story.start(DAG, "cancelled-next", table="cancelled", on_busy="take_over")
    story.succeed(DAG, "cancelled-next")
    assert story.result(DAG, "cancelled-next")["generation"] == 1
    story.assert_whole("raw.cancelled")


def test_a_cancelled_run_of_a_schedule_is_resumed_by_the_next_scheduled_one(story: Story) -> None:
    dag = "every_minute"
    story.airflow.call("PATCH", f"/dags/{dag}", {"is_paused": False})
    try:
        story.api.wait_for_pages(TOTAL // 4, timeout=PATIENCE)
        [first] = story.airflow.call("GET", f"/dags/{dag}/dagRuns?state=running")["dag_runs"]
        assert first["run_type"] == "scheduled"
        story.airflow.call("PATCH", f"/dags/{dag}/dagRuns/{first['dag_run_id']}", {"state": "failed"})
        story.wait_for_no_driver()
        assert not story.has("raw.every_minute")
        second = next_scheduled(story, dag, first["dag_run_id"])
        story.succeed(dag, second)
    finally:
        story.airflow.call("PATCH", f"/dags/{dag}", {"is_paused": True})
    result = story.result(dag, second)
    assert (result["generation"], result["attempts"]) == (1, 2)
    story.assert_whole("raw.every_minute")
    lost_at_most_what_was_on_its_way(story)


def next_scheduled(story: Story, dag: str, before: str) -> str:
    """Id of the scheduled run after that one; there is one a minute."""

    def later() -> list[str]:
        runs = story.airflow.call("GET", f"/dags/{dag}/dagRuns?run_type=scheduled&order_by=run_after")["dag_runs"]
        return [str(run["dag_run_id"]) for run in runs if run["dag_run_id"] > before]

    return wait_until(later, PATIENCE, every=0.5, describe=lambda: "the scheduler made no further run")[0]
