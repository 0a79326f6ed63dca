"""Webhooks of a real refresh: delivered after its publish, and one that blocks the next."""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.operators import webhooks
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.store.deliveries import Selection
from airflow_provider_rfr.webhooks import operations
from demo.webhook_receiver import Receiver
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import Lake
from tests.soon import PATIENCE

SIZES = Sizes(records=100, customers=2, partitions=4, pages=5, page_records=25)
PAYLOAD = {
    name: "{{" + name + "}}"
    for name in (
        *("materialization_name", "collection_names", "generation", "snapshot_id", "sequence", "commit_id", "run_id"),
        *("flow_run_id", "flow_published_at_min", "flow_published_at_max", "committed_at", "connector_image"),
        *("dag_id", "dag_run_id", "task_id", "map_index", "bindings", "totals", "delivery_id", "attempt"),
    )
}


@pytest.fixture
def receiver(airflow: None) -> Iterator[Receiver]:
    with Receiver() as server:
        endpoint = {"url": server.url, "payload": PAYLOAD, "onFailure": "block", "maxAttempts": 1}
        file = Path(os.environ["AIRFLOW_HOME"]) / "triggers.json"
        file.write_text(json.dumps({"triggers": {"config": {"hook": endpoint}}}))
        yield server
        file.unlink()


@pytest.fixture
def dag(
    airflow: None, lake: Lake, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    with SampleApi(SIZES, latency_ms=1) as api:
        set_connections(monkeypatch, lake, api)
        store = {"conn_type": "sqlite", "host": f"{tmp_path}/control.db"}
        monkeypatch.setenv("AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps(store))
        monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "127.0.0.1")
        monkeypatch.setattr(webhooks, "BLOCKED_SECONDS", 1.0)
        yield importlib.import_module("tests.integration.dags.hooked_refresh").dag


def refresh(dag: Any) -> str:
    run = dag.test(run_conf={"config": {"partitions": 4, "page_size": 25}})
    [task] = run.get_task_instances()
    return str(task.state)


def test_every_variable_of_a_real_commit_reaches_the_endpoint(dag: Any, receiver: Receiver, lake: Lake) -> None:
    began = time.time()
    assert refresh(dag) == "success"
    (request,) = receiver.requests
    event = request.json
    snapshot = lake.table("raw.hooked").current_snapshot()
    assert event["totals"]["documents"] == 500
    assert event["totals"]["bytes"] > 0
    assert [(binding["table"], binding["documents"]) for binding in event["bindings"]] == [("raw.hooked", 500)]
    assert (event["materialization_name"], event["collection_names"]) == ("raw.hooked", ["items"])
    assert (event["generation"], event["snapshot_id"], event["attempt"]) == (1, snapshot.snapshot_id, 1)
    assert (event["dag_id"], event["task_id"], event["map_index"]) == ("hooked_refresh", "refresh", -1)
    assert event["delivery_id"] == request.delivery_id
    assert event["run_id"] == event["flow_run_id"]
    assert event["flow_published_at_min"] <= event["flow_published_at_max"] <= event["committed_at"]
    assert time.strftime("%Y-%m-%dT%H", time.gmtime(began)) <= event["flow_published_at_min"]


def test_a_webhook_that_blocks_lets_its_commit_stand_and_the_next_refresh_wait(
    dag: Any, receiver: Receiver, lake: Lake, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.answer = lambda request: (500, b"")
    assert refresh(dag) == "success"
    assert lake.rows("raw.hooked").num_rows == 500
    assert webhooks.blocked("rfr", ["raw.other"]) is None
    assert "was given up" in str(webhooks.blocked("rfr", ["raw.other", "raw.hooked"]))

    found_blocked = threading.Event()

    def blocked(*arguments: Any) -> str | None:
        if reason := look(*arguments):
            found_blocked.set()
        return reason

    def free() -> None:
        assert found_blocked.wait(PATIENCE)
        operations.cancel(ControlStoreHook().get_store(), Selection(tables=["raw.hooked"]))

    look = webhooks.blocked
    monkeypatch.setattr(webhooks, "blocked", blocked)
    receiver.answer = lambda request: (200, b"")
    with ThreadPoolExecutor(1) as pool:
        freed = pool.submit(free)
        assert refresh(dag) == "success"
        freed.result()
    assert "The refresh waits, and holds no slot: trigger triggers/hook of rfr.raw.hooked" in capfd.readouterr().out
    assert [request.json["generation"] for request in receiver.requests] == [1, 2]


def test_the_ready_dag_is_skipped_without_a_triggers_file_and_fails_for_a_named_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ready = importlib.import_module("tests.integration.dags.ready").deliver_webhooks
    [skipped] = ready.test().get_task_instances()
    assert skipped.state == "skipped"
    assert "Nothing to deliver: " in capfd.readouterr().out
    monkeypatch.setattr(ready.get_task("deliver"), "retries", 0)
    [failed] = ready.test(run_conf={"triggers_file": "mine.yaml"}).get_task_instances()
    assert failed.state == "failed"
