"""A refresh whose driver runs in a cluster: its task holds no slot, the triggerer follows ledger and driver.

Airflow is whole and real. YARN is its REST API on loopback (tests/clusters/yarn.py); the driver is the real one.
"""

from __future__ import annotations

import json

import pytest

from tests.airflow_versions import needs_deferral
from tests.soon import PATIENCE, wait_until
from tests.system.conftest import KEY, TOTAL, Story

pytestmark = needs_deferral
DAG = "deferred"


def begin(story: Story, run: str, *, read: int = 0, **options: object) -> None:
    """A refresh that is deferred, with so many pages read, and no more until the API's faults are set again."""
    if read:
        story.hold_after(read)
    story.start(DAG, run, table=run.replace("-", "_"), **options)
    story.wait_for_state(DAG, run, "deferred")
    if read:
        story.api.wait_for_pages(read, timeout=PATIENCE)


@pytest.mark.gate
def test_a_deferred_refresh_holds_no_slot_and_publishes(story: Story) -> None:
    begin(story, "slot", read=TOTAL // 8)
    app, driver = story.yarn.newest
    pool = story.airflow.call("GET", "/pools/narrow")
    assert (pool["running_slots"], pool["deferred_slots"], pool["open_slots"]) == (0, 1, 1)
    workers = [title for one in story.processes() if "airflow worker" in (title := " ".join(one.cmdline()))]
    assert [title for title in workers if "<idle>" not in title] == []
    story.start("beside", "slot", table="x")
    story.succeed("beside", "slot")
    assert driver.exit_code is None
    story.api.set_faults()
    shown = story.airflow.task(DAG, "slot", "refresh")
    assert shown["trigger"]["classpath"] == "airflow_provider_rfr.triggers.refresh.RefreshTrigger"
    assert story.links(DAG, "slot")["Spark UI"] == f"{story.yarn.url}/proxy/{app}/"

    story.succeed(DAG, "slot")
    result = story.result(DAG, "slot")
    assert (result["generation"], result["pages"], result["attempts"]) == (1, TOTAL, 1)
    story.assert_whole("raw.slot")
    log = story.log(DAG, "slot")
    assert "runs in the cluster; this slot is free until it ends" in log
    assert "raw.slot: generation 1, round" in log
    assert f"the driver {app} is SUCCEEDED" in log
    assert story.links(DAG, "slot")["Spark UI"] == f"{story.yarn.url}/proxy/{app}/"
    [event] = story.lineage(DAG, "raw.slot")
    assert event["eventType"] == "COMPLETE"
    assert event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == result["rows"]
    for text in (log, json.dumps(shown), json.dumps(result), json.dumps(event)):
        assert KEY not in text


def test_a_triggerer_that_is_killed_and_started_again_goes_on_where_it_was(story: Story) -> None:
    begin(story, "triggerer", read=TOTAL // 4)
    count = len(story.yarn.drivers)
    story.airflow.restart("triggerer")
    story.api.set_faults()
    story.succeed(DAG, "triggerer")
    assert len(story.yarn.drivers) == count
    assert story.result(DAG, "triggerer")["attempts"] == 1
    assert ("PUT", f"/ws/v1/cluster/apps/{story.yarn.newest[0]}/state") not in story.yarn.requests
    story.assert_whole("raw.triggerer")


def test_a_driver_that_dies_fails_the_try_and_the_next_one_resumes(story: Story) -> None:
    begin(story, "driver", read=TOTAL // 2)
    story.yarn.newest[1].kill()
    story.api.set_faults()
    task = story.succeed(DAG, "driver")
    assert task["try_number"] == 2
    result = story.result(DAG, "driver")
    assert (result["generation"], result["attempts"]) == (1, 2)
    story.assert_whole("raw.driver")
    assert "is FAILED with exit code 137" in story.log(DAG, "driver")


@pytest.mark.matrix
def test_marked_failed_it_ends_the_driver_and_cleared_it_resumes(story: Story) -> None:
    begin(story, "marked", read=TOTAL // 4)
    app, driver = story.yarn.newest
    story.mark(DAG, "marked", "failed")
    story.wait_for_end(DAG, "marked")
    wait_until(lambda: driver.exit_code is not None, PATIENCE)
    assert ("PUT", f"/ws/v1/cluster/apps/{app}/state") in story.yarn.requests
    assert not story.has("raw.marked")
    story.api.set_faults()
    story.clear(DAG, "marked")
    story.wait_for_state(DAG, "marked", "deferred")
    story.succeed(DAG, "marked")
    assert story.yarn.newest[0] != app
    assert story.result(DAG, "marked")["generation"] == 1
    story.assert_whole("raw.marked")


@pytest.mark.matrix
def test_cleared_while_it_is_deferred_it_begins_again_with_what_was_read(story: Story) -> None:
    begin(story, "cleared", read=TOTAL // 4)
    app, driver = story.yarn.newest
    story.clear(DAG, "cleared")
    wait_until(lambda: driver.exit_code is not None, PATIENCE)
    story.api.set_faults()
    wait_until(lambda: story.yarn.newest[0] != app, PATIENCE)
    story.succeed(DAG, "cleared")
    assert story.result(DAG, "cleared")["generation"] == 1
    story.assert_whole("raw.cleared")
