"""Where the buttons of a refresh's task lead to."""

from __future__ import annotations

import re
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time import task_runner

from airflow_provider_rfr.hooks.spark import _page_url
from airflow_provider_rfr.links import RefreshLink, SparkUiLink, store_link
from tests.airflow_versions import DagSerialization


def key(**fields: Any) -> Any:
    return SimpleNamespace(**{"dag_id": "shop", "run_id": "r", "task_id": "refresh", "map_index": -1, **fields})


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({}, "r/tasks/refresh"),
        (
            {"run_id": "manual__2026-01-01T00:00:00+00:00", "map_index": 3},
            "manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/refresh/mapped/3",
        ),
    ],
)
def test_each_task_of_each_run_has_a_page_of_its_own(fields: dict[str, Any], path: str) -> None:
    address = RefreshLink().get_link(None, ti_key=key(**fields))
    assert address == f"http://localhost:8080/dags/shop/runs/{path}/plugin/rfr_of_task"


def test_airflows_ui_has_those_pages() -> None:
    assets = resources.files("airflow").joinpath("ui", "dist", "assets")
    script = next(file.read_text() for file in assets.iterdir() if re.fullmatch(r"index-.*\.js", file.name))
    task = "dags/:dagId/runs/:runId/tasks/:taskId"
    for place in ("plugin/:page/*", task, f"{task}/mapped/:mapIndex"):
        assert re.search(f'path:[`"]{re.escape(place)}[`"]', script), place


def test_the_scheduler_knows_the_buttons_of_a_parsed_dag() -> None:
    from dags.full_refresh import dag

    assert {f"{link.__module__}.{link.__qualname__}" for link in (RefreshLink, SparkUiLink)} <= set(
        ProvidersManager().extra_links_class_names
    )
    parsed = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert set(parsed.get_task("refresh").extra_links) == {"Refresh page", "Spark UI"}


def test_a_button_that_cannot_be_stored_costs_no_task(caplog: pytest.LogCaptureFixture) -> None:
    context: Any = {"ti": SimpleNamespace()}
    store_link(context, SparkUiLink(), "http://127.0.0.1:4040")
    assert "the link Spark UI can't be stored (AttributeError)" in caplog.text
    store_link(context, SparkUiLink(), None)


class Files(BaseXCom):
    """A backend that keeps values in files, and their addresses in Airflow's database."""

    @staticmethod
    def serialize_value(value: Any, **coordinates: Any) -> str:
        return "file:///xcom/1"


def test_a_button_is_stored_as_airflow_reads_it_whatever_backend_keeps_xcom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's API shows what its database has: an address of a file would be no link."""
    sent: list[Any] = []
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=sent.append), raising=False)
    at = {"dag_id": "shop", "run_id": "r", "task_id": "refresh", "map_index": -1}
    ti: Any = SimpleNamespace(**at, xcom_push=lambda key, value: Files.set(key, value, **at))
    store_link({"ti": ti}, SparkUiLink(), "http://127.0.0.1:4040")
    assert [(message.key, message.value) for message in sent] == [(SparkUiLink().xcom_key, "http://127.0.0.1:4040")]


@pytest.mark.parametrize("text", ["N/A", "javascript:alert(1)", "http://user:word@host/", "http://", None])
def test_only_an_address_for_browsers_is_taken_from_a_log(text: str | None) -> None:
    assert _page_url(text) is None
    assert _page_url("https://rm.example.com:8090/proxy/application_1_1/") is not None
