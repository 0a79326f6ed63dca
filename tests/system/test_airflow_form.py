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
    conf = {
        "source_file": str(SHOP),
        "source_config": {"partitions": SIZES.partitions, "page_size": 25},
        "streams": ["items"],
        "round_seconds": 1,
        "concurrency": 4,
        **values,
    }
    story.airflow.call("POST", f"/dags/{DAG}/dagRuns", {"dag_run_id": run, "logical_date": None, "conf": conf})


@pytest.mark.gate
def test_a_value_that_cannot_be_right_is_refused_before_there_is_a_run(story: Story) -> None:
    with pytest.raises(RuntimeError, match=r": 4\d\d .*streams"):
        fill_in(story, "refused", streams=[])
    runs = story.airflow.call("GET", f"/dags/{DAG}/dagRuns")["dag_runs"]
    assert "refused" not in [run["dag_run_id"] for run in runs]


@pytest.mark.parametrize(
    ("unfinished", "generation"), [pytest.param("resume", 1, marks=pytest.mark.gate), ("restart", 2)]
)
def test_an_unfinished_refresh_goes_on_or_is_thrown_away_as_the_form_says(
    story: Story, unfinished: str, generation: int
) -> None:
    target = f"form.{{stream}}_{unfinished}"
    story.api.set_faults({"kind": "error", "status": 401, "path": "/partitions/7/items", "after": 4, "times": 1})
    fill_in(story, f"{unfinished}-first", target=target)
    assert story.wait_for_end(DAG, f"{unfinished}-first")["state"] == "failed"
    connections = {"api_conn_id": "shop", "lake_conn_id": "lake"}
    fill_in(story, f"{unfinished}-next", target=target, unfinished=unfinished, **connections)
    story.succeed(DAG, f"{unfinished}-next")
    assert story.result(DAG, f"{unfinished}-next")["generation"] == generation
    rendered = story.task(DAG, f"{unfinished}-next")["rendered_fields"]
    assert rendered["streams"] == ["items"]
    assert rendered["source"]["config"]["page_size"] == 25
    assert {name: rendered[name] for name in connections} == connections
    defaults = RefreshOptions().model_dump(mode="json")
    assert rendered["options"] == {
        **defaults,
        "round_seconds": 1,
        "concurrency": 4,
        "force_restart": unfinished == "restart",
    }
    assert KEY not in json.dumps(rendered)
    story.assert_whole(f"form.items_{unfinished}")
