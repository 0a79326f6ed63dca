"""The forms of ready DAGs, as somebody at Airflow's UI fills them in: by the REST API that the forms use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_rfr.refresh.config import RefreshOptions
from tests.integration.conftest import SHOP
from tests.system.conftest import KEY, SIZES, Story

DAG = "resumable_full_refresh"
HOURLY, WEEKLY = "incremental_sync", "incremental_sync_in_full"


def fill_in(story: Story, run: str, **values: Any) -> None:
    source = {"source_file": str(SHOP), "source_config": {"partitions": SIZES.partitions, "page_size": 25}}
    story.trigger(DAG, run, **source, **{"streams": ["items"], "round_seconds": 1, "concurrency": 4, **values})


@pytest.mark.gate
def test_a_value_that_cannot_be_right_is_refused_before_there_is_a_run(story: Story) -> None:
    with pytest.raises(RuntimeError, match=r": 4\d\d .*streams"):
        fill_in(story, "refused", streams=[])
    runs = story.airflow.call("GET", f"/dags/{DAG}/dagRuns")["dag_runs"]
    assert "refused" not in [run["dag_run_id"] for run in runs]


@pytest.mark.gate
def test_an_unfinished_refresh_goes_on_as_the_form_says(story: Story) -> None:
    story.api.set_faults({"kind": "error", "status": 401, "path": "/partitions/7/items", "after": 4, "times": 1})
    fill_in(story, "first", target="form.{stream}")
    assert story.wait_for_end(DAG, "first")["state"] == "failed"
    connections = {"api_conn_id": "shop", "lake_conn_id": "lake"}
    fill_in(story, "next", target="form.{stream}", unfinished="resume", **connections)
    story.succeed(DAG, "next")
    assert story.result(DAG, "next")["generation"] == 1
    rendered = story.task(DAG, "next")["rendered_fields"]
    assert rendered["streams"] == ["items"]
    assert rendered["source"]["config"]["page_size"] == 25
    assert {name: rendered[name] for name in connections} == connections
    # Of an incremental sync are the two that the form lacks.
    defaults = RefreshOptions().model_dump(mode="json", exclude={"max_deleted", "max_rewrite_bytes"})
    assert rendered["options"] == {**defaults, "round_seconds": 1, "concurrency": 4}
    assert KEY not in json.dumps(rendered)
    story.assert_whole("form.items")


@pytest.mark.gate
def test_the_weekly_dag_makes_the_hourly_one_read_everything_and_never_beside_it(story: Story) -> None:
    with story.unpaused(HOURLY):
        scheduled = story.scheduled_run(HOURLY)
        story.airflow.call("PATCH", f"/dags/{HOURLY}/dagRuns/{scheduled}", {"state": "failed"})
        # Other tests may have written the table from another state of the API.
        story.trigger(HOURLY, "first", full_refresh=True)
        story.succeed(HOURLY, "first")
        story.api.change_shipments(edit=[1, 2], add=1, remove=[5])
        story.api.set_faults({"kind": "hold", "path": "/shipments"})
        story.trigger(HOURLY, "second")
        story.wait_for_state(HOURLY, "second", "running")
        with story.unpaused(WEEKLY):
            week = story.scheduled_run(WEEKLY)
            assert story.wait_for_run(WEEKLY, week) == "success"
        full = f"full_refresh_of_{week}"
        assert story.airflow.call("GET", f"/dags/{HOURLY}/dagRuns/{full}")["state"] == "queued"
        story.api.set_faults()
        story.succeed(HOURLY, "second")
        changes = story.result(HOURLY, "second")["changes"]
        assert (changes["inserted"], changes["updated"], changes["deleted"]) == (1, 2, 1)
        assert story.succeed(HOURLY, full)["rendered_fields"]["full_refresh"] is True
        result = story.result(HOURLY, full)
        assert result.get("changes") is None
        assert result["generation"] == story.result(HOURLY, "first")["generation"] + 2
        assert result["rows"] == len(story.api.records("/shipments"))
        with story.unpaused(WEEKLY):
            # A second try of the task finds the run that the first one made.
            clear = {"dag_run_id": week, "task_ids": ["trigger"], "dry_run": False, "only_failed": False}
            story.airflow.call("POST", f"/dags/{WEEKLY}/clearTaskInstances", clear)
            assert story.wait_for_end(WEEKLY, week, "trigger")["state"] == "skipped"
