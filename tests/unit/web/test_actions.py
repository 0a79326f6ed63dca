"""The actions that a page offers: to whom, in which state, and for which DAG; and what Airflow's API makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from pyiceberg.catalog import Catalog
from sqlalchemy import delete, update

from airflow_provider_rfr.refresh.inspection import status_of
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.state import RefreshState, State, TableStatus
from airflow_provider_rfr.web.actions import DagFacts, TaskFacts, possible_actions
from tests.unit.web.conftest import Login, offered, parsed
from tests.unit.web.ledgers import REFRESH, TASK, begun, read_page
from tests.unit.web.managers import PickyManager

DAGS = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow_provider_rfr.operators import IncrementalSyncOperator

with DAG("shop", schedule=None):
    sync = IncrementalSyncOperator(
        task_id="refresh",
        source={"class": "tests.unit.refresh.paged_sources:Numbers"},
        streams=["orders"],
        target="raw.{stream}",
        lake_conn_id="lake_of_shop",
    )
    sync >> EmptyOperator(task_id="after")
"""
SHRUNK = (
    "PublishRefusedError: 40 rows after 100: 60% fewer, and max_shrink allows 50%; nothing was published; if the source"
    " is right, set max_shrink to a greater share, or to null to allow any, and run again"
)
EMPTY = "PublishRefusedError: the source gave no rows; set allow_empty to true if that is right"


@pytest.fixture
def shop(login: Login, tmp_path: Path) -> Iterator[TestClient]:
    """The owner's client of an Airflow with the DAG ``shop`` and its run ``monday``."""
    file = tmp_path / "shop.py"
    file.write_text(DAGS)
    with parsed(tmp_path / "dags", [file]):
        owner = login("owner")
        start(owner, "monday", {"full_refresh": True, "max_shrink": None, "concurrency": 2})
        yield owner


def start(client: TestClient, run: str, conf: dict[str, Any]) -> None:
    body = {"dag_run_id": run, "logical_date": None, "conf": conf}
    answer = client.post("/api/v2/dags/shop/dagRuns", json=body)
    assert answer.status_code == 200, answer.text


def set_task(state: str) -> None:
    with create_session() as session:
        session.execute(update(TaskInstance).where(TaskInstance.task_id == "refresh").values(state=state))


def take(client: TestClient, action: dict[str, Any]) -> Any:
    return client.request(action["method"], action["url"], json=action["body"])


def task(client: TestClient, name: str = "refresh") -> str | None:
    return client.get(f"/api/v2/dags/shop/dagRuns/monday/taskInstances/{name}").json()["state"]


def published(ledger: Ledger) -> None:
    read_page(ledger)
    ledger.commit([], state=RefreshState.PUBLISHED, snapshot_id=1, published_rows=100)


def test_a_running_task_is_stopped_and_then_continued_by_requests_that_airflow_takes(
    shop: TestClient, catalog: Catalog
) -> None:
    read_page(begun(catalog, "raw.orders", **TASK))
    set_task("running")
    buttons = offered(shop, REFRESH)
    assert list(buttons) == ["Stop"]
    assert take(shop, buttons["Stop"]).status_code == 200
    assert task(shop) == "failed"
    refused = take(shop, buttons["Stop"])
    assert refused.status_code == 409
    buttons = offered(shop, REFRESH)
    assert list(buttons) == ["Continue", "Full refresh", "Discard and start over"]
    assert "continues after the page that was read," in buttons["Continue"]["effect"]
    assert take(shop, buttons["Continue"]).status_code == 200
    assert task(shop) is None


def test_a_published_refresh_is_loaded_by_a_run_that_is_started_once(shop: TestClient, catalog: Catalog) -> None:
    published(begun(catalog, "raw.orders", **TASK))
    set_task("success")
    buttons = offered(shop, REFRESH)
    assert list(buttons) == ["Load now", "Full refresh"]
    assert buttons["Full refresh"]["body"] == {"rfr": {"table": "raw.orders", "full_refresh": True}}
    load = buttons["Load now"]
    conf = shop.get(load["settings"]).json()["conf"]
    assert conf["concurrency"] == 2
    now = datetime.now(timezone.utc).isoformat()
    body = {"dag_run_id": f"manual__{now}_00ff00ff", "logical_date": now, "conf": conf}
    answers = [shop.request(load["method"], load["url"], json=body).status_code for _ in range(2)]
    assert answers == [200, 409]
    assert shop.get("/api/v2/dags/shop/dagRuns").json()["total_entries"] == 2
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == "shop").values(is_paused=True))
    assert "paused: nothing happens until" in offered(shop, REFRESH)["Load now"]["effect"]


def test_what_a_guard_refused_is_accepted_with_the_option_that_it_names(shop: TestClient, catalog: Catalog) -> None:
    ledger = begun(catalog, "raw.orders", partitions=1, **TASK)
    read_page(ledger)
    ledger.end(SHRUNK, refused_under="rules")
    set_task("failed")
    buttons = offered(shop, REFRESH)
    assert list(buttons) == ["Accept once", "Read again", "Full refresh", "Discard and start over"]
    accept = buttons["Accept once"]
    assert accept["body"] == {"rfr": {"table": "raw.orders", "max_shrink": None, "only_generation": 1}}
    assert "The publish was refused: 40 rows after 100: 60% fewer" in accept["effect"]
    assert "reads everything again" in buttons["Read again"]["effect"]


def test_who_may_not_change_anything_is_offered_nothing_and_refused_by_airflow(
    shop: TestClient, login: Login, catalog: Catalog
) -> None:
    published(begun(catalog, "raw.orders", **TASK))
    set_task("success")
    load = offered(shop, REFRESH)["Load now"]
    viewer = login("viewer")
    assert "raw.orders" in viewer.get(REFRESH).text
    assert offered(viewer, REFRESH) == {}
    body = {"dag_run_id": "manual__once", "logical_date": None, "conf": {}}
    assert viewer.post(load["url"], json=body).status_code == 403
    assert login("").post(load["url"], json=body).status_code == 401


def test_the_page_of_a_refresh_asks_for_each_right_once(
    shop: TestClient, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(begun(catalog, "raw.orders", **TASK))
    asked = []
    is_authorized = PickyManager.is_authorized_dag

    def counted(self: PickyManager, *, method: str, access_entity: Any = None, **more: Any) -> bool:
        asked.append((method, access_entity))
        return is_authorized(self, method=method, access_entity=access_entity, **more)

    monkeypatch.setattr(PickyManager, "is_authorized_dag", counted)
    assert "Load now" in offered(shop, REFRESH)
    assert asked.count(("POST", DagAccessEntity.RUN)) == 1
    assert len(asked) == len(set(asked))


def test_a_run_or_a_dag_that_is_gone_can_not_be_repeated(shop: TestClient, catalog: Catalog) -> None:
    published(begun(catalog, "raw.orders", **TASK))
    set_task("success")
    for is_stale, labels in ((False, ["Load now", "Full refresh"]), (True, []), (False, ["Load now", "Full refresh"])):
        with create_session() as session:
            session.execute(update(DagModel).where(DagModel.dag_id == "shop").values(is_stale=is_stale))
        assert list(offered(shop, REFRESH)) == labels
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == "shop"))
    assert offered(shop, REFRESH) == {}


def test_a_dag_that_can_not_be_read_has_no_buttons_and_its_refresh_is_shown(
    shop: TestClient, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(*_args: object, **_values: object) -> None:
        raise ValueError("its timetable is not registered")

    published(begun(catalog, "raw.orders", **TASK))
    set_task("success")
    monkeypatch.setattr(SerializedDagModel, "get_dag", unreadable)
    answer = shop.get(REFRESH)
    assert (answer.status_code, "raw.orders" in answer.text) == (200, True)
    assert offered(shop, REFRESH) == {}
    assert "the DAG shop can't be read, so the pages offer no action on it" in caplog.text


def status(catalog: Catalog, **labels: Any) -> TableStatus:
    """Of a refresh that failed."""
    ledger = begun(catalog, "raw.orders", **{**TASK, **labels})
    read_page(ledger)
    ledger.end("SourceError: 503")
    found = status_of(catalog, "raw.orders", labels.get("where"))
    assert found is not None
    return found


def facts_of(*, params: Sequence[str] = (), incremental: Sequence[str] = (), **changes: Any) -> TaskFacts:
    dag = DagFacts(dag_id="shop", is_paused=False, params=frozenset(params), incremental=frozenset(incremental), busy=0)
    return TaskFacts(**{"dag": dag, "state": "failed", "is_dated": True, **changes})


def labels_of(status: TableStatus, **facts: Any) -> list[str]:
    assert status.header is not None
    return [action.label for action in possible_actions(status, status.header, facts_of(**facts))]


def test_an_incremental_task_is_offered_a_full_refresh_and_another_one_is_not(catalog: Catalog) -> None:
    failed = status(catalog)
    assert labels_of(failed) == ["Continue", "Discard and start over"]
    assert labels_of(failed, incremental=["other"]) == ["Continue", "Discard and start over"]
    assert labels_of(failed, incremental=["refresh"]) == ["Continue", "Full refresh", "Discard and start over"]


def test_no_setting_of_one_run_is_offered_where_airflow_ignores_the_configuration_of_runs(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    assert labels_of(status(catalog), incremental=["refresh"]) == ["Continue"]


@pytest.mark.parametrize("state", ["queued", "up_for_retry", "deferred"])
def test_a_task_that_is_tried_again_can_only_be_stopped(catalog: Catalog, state: str) -> None:
    assert labels_of(status(catalog), state=state) == ["Stop"]


@pytest.mark.parametrize("state", [State.PUBLISHED, State.REFUSED])
def test_the_task_of_a_load_that_is_over_is_not_stopped_for_it(catalog: Catalog, state: State) -> None:
    assert labels_of(replace(status(catalog), state=state), state="running") == []


def test_a_part_that_its_date_names_is_read_again_in_its_own_run(catalog: Catalog) -> None:
    part = status(catalog, where="day = '2026-01-01'")
    assert labels_of(part, incremental=["refresh"]) == ["Continue"]
    assert labels_of(replace(part, state=State.PUBLISHED)) == ["Load again"]
    assert labels_of(replace(part, state=State.PUBLISHED), is_dated=False) == ["Load now"]
    assert labels_of(replace(part, state=State.PUBLISHED), params=["replace_where"]) == ["Load now"]


@pytest.mark.parametrize(
    ("error", "values"),
    [
        (SHRUNK, {"max_shrink": None}),
        (EMPTY, {"allow_empty": True}),
        (EMPTY.replace("PublishRefusedError", "SourceError"), None),
        ("PublishRefusedError: the key has values of several types", None),
    ],
)
def test_only_what_a_guard_refused_is_accepted_and_only_by_its_own_option(
    catalog: Catalog, error: str, values: dict[str, Any] | None
) -> None:
    refused = status(catalog)
    assert refused.header is not None
    header = replace(refused.header, error=error, refused_under="rules")
    accepting = [action.body for action in possible_actions(refused, header, facts_of()) if action.name == "accept"]
    once = {"table": "raw.orders", "only_generation": header.generation}
    assert accepting == ([] if values is None else [{"rfr": {**once, **values}}])


def test_a_mapped_task_is_stopped_and_cleared_alone(catalog: Catalog) -> None:
    mapped = status(catalog, map_index=3)
    assert mapped.header is not None
    [stop] = possible_actions(mapped, mapped.header, facts_of(state="running", is_dated=False))
    assert stop.path[-3:] == ("taskInstances", "refresh", "3")
    clear, _discard = possible_actions(mapped, mapped.header, facts_of(is_dated=False))
    assert clear.body["task_ids"] == [["refresh", 3]]
