"""The ready DAG's form, as somebody at Airflow's UI fills it in: by the REST API that the form uses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_rfr.refresh.config import RefreshOptions
from tests.integration.conftest import SHOP
from tests.system.conftest import KEY, SIZES, Story

DAG = "resumable_full_refresh"
TOTAL = SIZES.partitions * SIZES.pages


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
