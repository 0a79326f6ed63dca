"""What delivery tells of itself in the package's own table, where a deploy has made it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins import Kind, load_objects
from airflow_provider_rfr.builtins.deploy import apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.history import History
from airflow_provider_rfr.operators import CommitWebhookOperator, WebhookOperationOperator
from airflow_provider_rfr.store.engine import open_store
from airflow_provider_rfr.webhooks.operations import _TABLE
from airflow_provider_rfr.webhooks.outbox import delivery_id
from demo.webhook_receiver import Received, Receiver
from tests.unit.triggers.lake import Lake

pytestmark = pytest.mark.usefixtures("webhooks_on_loopback")

CANARY = "canary-7d10ee"


def deploy_logs(lake: Lake, folder: Path) -> None:
    logs = [declared for declared in load_objects().objects if declared.kind is Kind.LOG]
    spec = load_objects(logs, entry_points=False)
    store = open_store(f"sqlite:///{folder}/control.db")
    recorded, live = observe(lake.catalog, store, project=spec.project)
    apply(plan(spec, recorded, live), catalog=lake.catalog, store=store, spec=spec)


def deliver(url: str, table: str) -> dict[str, Any]:
    endpoint = {"url": f"{url}/hook?key={CANARY}", "payload": {"id": "{{delivery_id}}"}}
    task = CommitWebhookOperator(
        task_id="deliver", triggers={"name": "shop", "config": {"hook": endpoint}}, target=table, lake_conn_id="lake"
    )
    return task.execute({})


def operate(action: str, **more: Any) -> None:
    place = {"target": "raw.orders", "lake_conn_id": "lake"}
    WebhookOperationOperator(task_id="operate", action=action, **place, **more).execute({})


def told(lake: Lake, folder: Path) -> list[dict[str, Any]]:
    History(open_store(f"sqlite:///{folder}/control.db"), lake.catalog).maintain(always=True)
    found: list[dict[str, Any]] = lake.catalog.load_table(_TABLE).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["attempted_at"], row["attempt"]))


def test_every_attempt_is_told_once_and_without_secrets(lake: Lake, tmp_path: Path) -> None:
    first = lake.publish("raw.orders")

    def answer(request: Received) -> tuple[int, bytes]:
        return (200, b"") if len(receiver.requests) > 1 else (400, CANARY.encode())

    with Receiver(answer) as receiver:
        assert deliver(receiver.url, "raw.orders")["dead"] == 1
        deploy_logs(lake, tmp_path)
        operate("replay")
        assert deliver(receiver.url, "raw.orders")["delivered"] == 1
        deliver(receiver.url, "raw.orders")
    assert not lake.catalog.load_table(_TABLE).metadata.snapshots, "a delivery makes no commit on the history"
    failed, delivered = told(lake, tmp_path)
    assert {failed["delivery_id"], delivered["delivery_id"]} == {delivery_id(first, "shop/hook")}
    assert (failed["outcome"], failed["status"], failed["attempt"]) == ("failed", 400, 1)
    assert (delivered["outcome"], delivered["state"], delivered["attempt"]) == ("delivered", "delivered", 2)
    assert delivered["host"] == "http://127.0.0.1"
    assert (delivered["endpoint"], delivered["target"], delivered["lake"]) == ("shop/hook", "raw.orders", "rfr")
    assert CANARY not in json.dumps([failed, delivered], default=str)


def test_what_ended_without_an_attempt_is_told_too(lake: Lake, tmp_path: Path) -> None:
    deploy_logs(lake, tmp_path)
    lake.publish("raw.orders")
    with Receiver(lambda request: (503, b"")) as receiver:
        deliver(receiver.url, "raw.orders")
        lake.publish("raw.orders")
        operate("pause", trigger="hook")
        deliver(receiver.url, "raw.orders")
        operate("cancel")
        deliver(receiver.url, "raw.orders")
    last = told(lake, tmp_path)[-1]
    assert (last["outcome"], last["attempt"], last["state"]) == ("cancelled", 0, "cancelled")
