"""Where the buttons of a refresh's task lead to."""

from __future__ import annotations

import re
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_rfr.hooks.spark import _page_url
from airflow_provider_rfr.links import _CHECKPOINT_TABS, _PUBLISHED_TAB, RefreshLink, SparkUiLink, store_link


def key(**fields: Any) -> Any:
    return SimpleNamespace(**{"dag_id": "shop", "run_id": "r", "task_id": "refresh", "map_index": -1, **fields})


def test_before_the_publish_the_page_has_the_checkpoint_and_after_it_the_figures() -> None:
    operator = SimpleNamespace(checkpoint_store="task_state", is_published=False)
    base = "http://localhost:8080/dags/shop/runs/r/tasks/refresh"
    assert RefreshLink().get_link(operator, ti_key=key()) == f"{base}/task-state-store"
    operator.checkpoint_store = "xcom"
    assert RefreshLink().get_link(operator, ti_key=key()) == f"{base}/xcom"
    operator.is_published = True
    assert RefreshLink().get_link(operator, ti_key=key()) == f"{base}/asset_events"


def test_a_checkpoint_in_a_variable_is_shown_where_variables_are() -> None:
    operator = SimpleNamespace(checkpoint_store="variable", is_published=False)
    assert RefreshLink().get_link(operator, ti_key=key()) == "http://localhost:8080/variables"


def test_runs_and_mapped_tasks_have_pages_of_their_own() -> None:
    operator = SimpleNamespace(checkpoint_store="xcom", is_published=False)
    ti_key = key(run_id="manual__2026-01-01T00:00:00+00:00", map_index=3)
    assert RefreshLink().get_link(operator, ti_key=ti_key) == (
        "http://localhost:8080/dags/shop/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/refresh/mapped/3/xcom"
    )


def test_airflows_ui_has_those_pages() -> None:
    assets = resources.files("airflow").joinpath("ui", "dist", "assets")
    script = next(file.read_text() for file in assets.iterdir() if re.fullmatch(r"index-.*\.js", file.name))
    for place in (*_CHECKPOINT_TABS.values(), _PUBLISHED_TAB, "dags/:dagId/runs/:runId/tasks/:taskId", "variables"):
        assert f"path:`{place}`" in script, place
    assert "path:`dags/:dagId/runs/:runId/tasks/:taskId/mapped/:mapIndex`" in script


def test_the_scheduler_knows_the_buttons_of_a_parsed_dag() -> None:
    from dags.full_refresh import dag

    assert {f"{link.__module__}.{link.__qualname__}" for link in (RefreshLink, SparkUiLink)} <= set(
        ProvidersManager().extra_links_class_names
    )
    parsed = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert set(parsed.get_task("refresh").extra_links) == {"Refresh progress", "Spark UI"}


def test_a_button_that_cannot_be_stored_costs_no_task(caplog: pytest.LogCaptureFixture) -> None:
    context: Any = {"ti": SimpleNamespace()}
    store_link(context, SparkUiLink(), "http://127.0.0.1:4040")
    assert "the link Spark UI can't be stored (AttributeError)" in caplog.text
    store_link(context, SparkUiLink(), None)


@pytest.mark.parametrize("text", ["N/A", "javascript:alert(1)", "http://user:word@host/", "http://", None])
def test_only_an_address_for_browsers_is_taken_from_a_log(text: str | None) -> None:
    assert _page_url(text) is None


def test_an_address_for_browsers_is_taken() -> None:
    assert _page_url("https://rm.example.com:8090/proxy/application_1_1/") is not None
