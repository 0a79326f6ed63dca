"""A refresh whose driver runs elsewhere: submitted by one process of a task, followed by a trigger, ended by another.

A real YARN is in test_real_yarn.py, and takes minutes. Here its REST API is served on loopback, a spark-submit of ours
speaks like Spark's YARN client, and behind both the real application refreshes a real lake.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import BaseXCom
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.operators import ResumableFullRefreshOperator, table_asset
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from airflow_provider_rfr.triggers.refresh import RefreshTrigger
from tests.clusters.yarn import ResourceManager
from tests.headers import read_status
from tests.integration.airflow_tasks import execute, items_operator, set_connections
from tests.integration.conftest import Lake
from tests.soon import PATIENCE, wait_until
from tests.unit.operators.test_execute import FakeStateStore

CANARY = "canary-93b2"
KEY, LAKE_KEY = f"{CANARY}-api", f"{CANARY}-lake"
STATE_KEY = "spark_job_id_0"
HOLD = {"kind": "hold", "path": "/partitions/*", "after": 24}


class Task:
    """One run of one task; each call is a process of its own as far as the operator can tell."""

    def __init__(self) -> None:
        self.store = FakeStateStore()
        self.events = OutletEventAccessors()
        self.links: dict[str, str] = {}
        self.operator: ResumableFullRefreshOperator | None = None

    def defer(self, **arguments: Any) -> RefreshTrigger:
        """Execute; returns what the task gave its slot away for."""
        with pytest.raises(TaskDeferred) as deferred:
            self.run(**arguments)
        assert deferred.value.method_name == "execute_complete"
        assert deferred.value.timeout is None
        # As Airflow's database keeps it.
        _, kept = deferred.value.trigger.serialize()
        return RefreshTrigger(**json.loads(json.dumps(kept)))

    def go_on(self, payload: Any, **arguments: Any) -> dict[str, Any]:
        return self.run("execute_complete", json.loads(json.dumps(payload)), **arguments)

    def run(self, method: str = "execute", event: Any = None, **arguments: Any) -> dict[str, Any]:
        cluster = {"conn_id": "yarn", "deploy_mode": "cluster", "deferrable": True, "poll_interval": 0.2}
        options = arguments.pop("options", {"concurrency": 4, "round_seconds": 1})
        self.operator = items_operator({"partitions": 4, "page_size": 25}, options, **{**cluster, **arguments})
        context = {"task_state_store": self.store, "outlet_events": self.events}
        with patch.object(BaseXCom, "set", lambda key, value, **at: self.links.__setitem__(key, value)):
            return execute(self.operator, method, event=event, **context)


def follow(trigger: RefreshTrigger) -> dict[str, Any]:
    """The payload of the trigger's only event."""

    async def events() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    [payload] = asyncio.run(asyncio.wait_for(events(), PATIENCE))
    return dict(payload)


def header(lake: Lake) -> Any:
    return read_status(lake.settings, "raw.items") or SimpleNamespace(pages=0, epoch=0)


@pytest.fixture
def api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(partitions=4, pages=20, page_records=25), latency_ms=40, api_key=KEY) as running:
        yield running


@pytest.fixture
def yarn(tmp_path: Path, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[ResourceManager]:
    with ResourceManager(tmp_path / "yarn") as manager:
        monkeypatch.setenv("PATH", f"{manager.install(tmp_path / 'bin')}:{os.environ['PATH']}")
        spark = {"conn_type": "spark", "host": "yarn", "extra": {"yarn_resourcemanager_webapp_address": manager.url}}
        lake_extra = {"s3_secret_access_key": LAKE_KEY}
        set_connections(monkeypatch, lake, api, spark, spark_conn_id="yarn", lake_extra=lake_extra)
        yield manager


@pytest.fixture
def task() -> Task:
    return Task()


def test_a_refresh_is_submitted_left_and_gone_on_with_when_it_is_published(
    yarn: ResourceManager, lake: Lake, api: SampleApi, task: Task, capfd: pytest.CaptureFixture[str]
) -> None:
    before = datetime.now(timezone.utc)
    trigger = task.defer(execution_timeout=timedelta(hours=1))
    after = datetime.now(timezone.utc)
    start = datetime.fromisoformat(trigger.deadline) - timedelta(hours=1)
    assert before <= start
    assert start - before < after - start, "the submit is part of the task's time"
    app, driver = yarn.newest
    assert driver.exit_code is None, "the task waited for its driver"
    assert task.store.get(STATE_KEY) == app
    assert task.links["_link_SparkUiLink"] == f"{yarn.url}/proxy/{app}/"
    payload = follow(trigger)
    assert (payload["end"], payload["driver"]["state"]) == ("driver over", "succeeded")
    result = task.go_on(payload)
    assert (result["generation"], result["pages"], result["rows"], result["attempts"]) == (1, 80, 2000, 1)
    assert lake.rows("raw.items").num_rows == 2000
    assert task.events[table_asset("raw.items", lake_conn_id="lake")].extra["snapshot_id"] == result["snapshot_id"]
    assert task.store.get("rfr") is None
    shown = [trigger.serialize(), payload, result, task.links, task.store.values, list(capfd.readouterr())]
    assert CANARY not in json.dumps(shown)


def test_what_is_published_counts_even_if_the_cluster_has_forgotten_the_driver(
    yarn: ResourceManager, task: Task
) -> None:
    trigger = task.defer()
    app, driver = yarn.newest
    wait_until(lambda: driver.exit_code is not None, PATIENCE)
    yarn.forget(app)
    payload = follow(trigger)
    assert payload["driver"]["state"] == "gone"
    assert task.go_on(payload)["rows"] == 2000


def test_a_task_that_waits_for_a_driver_in_a_cluster_takes_its_figures_from_the_ledger(
    yarn: ResourceManager, task: Task
) -> None:
    """The parent's own way, which holds the slot; it looks every ten seconds."""
    result = task.run(deferrable=False, yarn_track_via_rm_api=True)
    assert (result["stream"], result["generation"], result["rows"]) == ("items", 1, 2000)


@pytest.mark.gate
def test_a_killed_driver_fails_the_try_and_the_next_one_resumes(
    yarn: ResourceManager, lake: Lake, api: SampleApi, task: Task
) -> None:
    api.set_faults(HOLD)
    trigger = task.defer(options={"concurrency": 2, "round_seconds": 1})
    wait_until(lambda: header(lake).pages >= 20)
    app, driver = yarn.newest
    driver.kill()
    api.set_faults()
    payload = follow(trigger)
    why = rf"the Spark driver {app} is FAILED with exit code 137: User application exited with status 137 \(its log: ht"
    with pytest.raises(RefreshFailedError, match=why):
        task.go_on(payload)
    assert task.operator.stalled_tries == 0
    assert task.store.get("rfr")["tables"]["raw.items"]["generation"] == 1
    assert task.store.get(STATE_KEY) is None
    result = task.go_on(follow(task.defer()))
    assert (result["generation"], result["attempts"]) == (1, 2)
    assert lake.rows("raw.items").num_rows == 2000
    assert api.counts(path="/partitions/*")["refetched"] <= 8 + 0.05 * 80


def test_a_try_that_brought_nothing_is_known_to_have_stalled(yarn: ResourceManager, api: SampleApi, task: Task) -> None:
    for stalled in (1, 2):
        api.set_faults({"kind": "error", "status": 400, "path": "/partitions/*"})
        payload = follow(task.defer())
        with pytest.raises(RefreshFailedError, match="with exit code 1"):
            task.go_on(payload)
        assert task.operator.stalled_tries == stalled


def test_a_worker_that_died_after_the_submit_finds_its_driver_again(yarn: ResourceManager, task: Task) -> None:
    task.defer()
    trigger = task.defer()
    assert len(yarn.drivers) == 1
    assert task.go_on(follow(trigger))["attempts"] == 1


def test_a_driver_on_the_worker_is_waited_for_and_one_line_says_why(
    yarn: ResourceManager, task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    with caplog.at_level("INFO"):
        assert task.run(deploy_mode=None)["rows"] == 2000
    assert caplog.text.count("Not deferred, although deferrable is set: the driver runs on this worker") == 1


@pytest.mark.parametrize(
    ("arguments", "extra", "problem"),
    [
        ({}, {}, "yarn_resourcemanager_webapp_address: is not set"),
        (
            {"conf": {"spark.yarn.submit.waitAppCompletion": "true"}},
            {"yarn_resourcemanager_webapp_address": "http://127.0.0.1:1"},
            "conf.spark.yarn.submit.waitAppCompletion: is true",
        ),
    ],
)
def test_what_keeps_a_refresh_from_being_deferred_is_told_before_the_submit(
    yarn: ResourceManager,
    task: Task,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    extra: dict[str, Any],
    problem: str,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    with pytest.raises(AirflowFailException, match=problem):
        task.run(**arguments)
    assert not yarn.drivers
