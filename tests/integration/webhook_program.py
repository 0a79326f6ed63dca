"""Commits, enqueues and delivers, and is killed by SIGKILL at a named place; run as a process by the crash tests.

``kill`` names the place: there it kills itself as the kernel would, with no handler and no finally.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
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
from tests.soon import PATIENCE
from tests.webhook_receiver import LAKE, TABLE, events


def _die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _around(owner: Any, name: str, *, before: bool) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if before:
            _die()
        original(*args, **kwargs)
        _die()

    setattr(owner, name, wrapped)


def _after_settling(original: Callable[..., None]) -> Callable[..., None]:
    def add(tally: DeliverySummary, results: Any, lost: Any) -> None:
        if results:
            _die()
        original(tally, results, lost)

    return add


def _install(place: str, catalog: Any) -> None:
    """Let it die at the place."""
    wrapped: dict[str, tuple[Any, str, bool]] = {
        "before the commit": (catalog, "commit_table", True),
        "after the commit": (catalog, "commit_table", False),
        "before the rows": (deliveries, "add_deliveries", True),
        "in the rows' transaction": (deliveries, "add_deliveries", False),
        "after the rows": (outbox, "enqueue_commits", False),
        "in the claim's transaction": (dispatcher, "claim", False),
        "after the claim": (EndpointWorker, "put", True),
        "after the answer": (dispatcher, "settle", True),
        "in the settlement's transaction": (dispatcher, "settle", False),
    }
    if place == "after the settlement":
        DeliverySummary.add = _after_settling(DeliverySummary.add)  # type: ignore[method-assign]
    else:
        owner, name, before = wrapped[place]
        _around(owner, name, before=before)


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
