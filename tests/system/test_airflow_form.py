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


def test_every_field_has_a_title_and_says_what_it_is_for(story: Story) -> None:
    details = story.airflow.call("GET", f"/dags/{DAG}/details")
    assert "Trigger** opens a form" in details["doc_md"]
    params = details["params"]
    shown = [name for name, param in params.items() if "section" not in param["schema"]]
    connections = ["api_conn_id", "lake_conn_id", "conn_id"]
    assert shown == ["source_file", "streams", "target", "unfinished", *connections, "source_config"]
    for name, param in params.items():
        assert param["schema"]["title"], name
        assert param["description"] or param["schema"]["description"], name
    assert params["unfinished"]["schema"]["enum"] == ["resume", "restart"]
    options = {name: param for name, param in params.items() if param["schema"].get("section") == "Options"}
    assert set(options) == set(RefreshOptions.model_fields) - {"force_restart"}
    # What has no type, or that of an object, is a JSON editor.
    kinds = {kind for param in options.values() for kind in [param["schema"]["type"]] if isinstance(kind, str)}
    assert kinds <= {"string", "number", "integer", "boolean"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"source_file": ""}, "source_file"),
        ({"source_config": "text"}, "source_config"),
        ({"streams": []}, "streams"),
        ({"streams": ["items", "items"]}, "streams"),
        ({"streams": "items"}, "streams"),
        ({"target": "orders"}, "target"),
        ({"target": "raw.{table}"}, "target"),
        ({"unfinished": "perhaps"}, "unfinished"),
        ({"lake_conn_id": ""}, "lake_conn_id"),
        ({"concurrency": 0}, "concurrency"),
        ({"requests_per_second": "many"}, "requests_per_second"),
        ({"on_busy": "panic"}, "panic"),
    ],
)
def test_what_cannot_be_right_is_refused_before_there_is_a_run(story: Story, values: dict[str, Any], told: str) -> None:
    with pytest.raises(RuntimeError, match=rf": 4\d\d .*{told}"):
        fill_in(story, "refused", **values)
    runs = story.airflow.call("GET", f"/dags/{DAG}/dagRuns")["dag_runs"]
    assert "refused" not in [run["dag_run_id"] for run in runs]


def test_an_option_that_there_is_not_fails_the_run_at_once(story: Story) -> None:
    fill_in(story, "misspelt", concurency=8)
    task = story.wait_for_end(DAG, "misspelt")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert "options.concurency: unknown, did you mean concurrency?" in story.log(DAG, "misspelt")


@pytest.mark.parametrize(("unfinished", "generation"), [("resume", 1), ("restart", 2)])
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
