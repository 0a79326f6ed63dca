"""Commits, enqueues and delivers, and is killed by SIGKILL at the place ``kill``; run as a process by crash tests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_provider_rfr.lake.catalog import LakeSettings, create_table, open_catalog
from airflow_provider_rfr.store import deliveries
from airflow_provider_rfr.store.engine import open_store
from airflow_provider_rfr.webhooks import dispatcher, outbox
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.dispatcher import Dispatcher, EndpointWorker
from airflow_provider_rfr.webhooks.operations import DeliverySummary
from tests.kill_points import die, intercept
from tests.soon import PATIENCE
from tests.webhook_receiver import LAKE, TABLE, events


def _die_with_results(summary: DeliverySummary, results: Any, lost: Any) -> None:
    # It is told of empty results, too.
    if results:
        die()


def _install(place: str, catalog: Any) -> None:
    """Let it die at the place."""
    owner, name, when = {
        "before the commit": (catalog, "commit_table", "before"),
        "after the commit": (catalog, "commit_table", "after"),
        "before the rows": (deliveries, "add_deliveries", "before"),
        "in the rows' transaction": (deliveries, "add_deliveries", "after"),
        "after the rows": (outbox, "enqueue_commits", "after"),
        "in the claim's transaction": (dispatcher, "claim", "after"),
        "after the claim": (EndpointWorker, "put", "before"),
        "after the answer": (dispatcher, "settle", "before"),
        "in the settlement's transaction": (dispatcher, "settle", "after"),
        "after the settlement": (DeliverySummary, "add", "before"),
    }[place]
    intercept(owner, name, **{when: _die_with_results if owner is DeliverySummary else die})


def main(task: dict[str, Any]) -> None:
    """Do the steps, in their order."""
    catalog = open_catalog(LakeSettings(LAKE, task["lake"]))
    create_table(catalog, TABLE, Schema(NestedField(1, "id", LongType())))
    if task.get("kill"):
        _install(task["kill"], catalog)
    store = open_store(task["store"])
    endpoints = outbox.endpoints_of(LAKE, TABLE, parse_triggers(task["triggers"]))
    for step, *numbers in task["steps"]:
        if step == "commit":
            for event in events(*numbers):
                rows = pa.table({"id": pa.array([1], pa.int64())})
                catalog.load_table(TABLE).append(rows, snapshot_properties=event.to_summary())
        elif step == "enqueue":
            outbox.enqueue_commits(store, catalog, LAKE, TABLE, endpoints)
        elif step == "deliver":
            dispatcher = Dispatcher(store, endpoints, allowed_hosts=["127.0.0.1"], lease_slack=1.0)
            dispatcher.deliver_due(until_empty=True, patience=PATIENCE)
    store.close()
