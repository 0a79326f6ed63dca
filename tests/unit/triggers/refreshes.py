"""A refresh in a cluster for the triggerer's tests: a real ledger, a resource manager, and a driver that only waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.comms import TaskStatesResult

from airflow_provider_rfr.hooks.spark import DriverAddress
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.state import RefreshState
from airflow_provider_rfr.triggers.refresh import DeferredRefresh
from tests.clusters import waiting_app
from tests.clusters.drivers import Driver
from tests.clusters.yarn import ResourceManager

TABLE = "raw.orders"
RUN_KEY = "d/r/refresh/-1/0"
PASSWORD = "canary-41c7-lake"


class Refresh:
    """What a test does to a refresh: the driver's part of the ledger is written by the test."""

    def __init__(self, folder: Path, manager: ResourceManager) -> None:
        self.manager = manager
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.app = manager.submit({"files": [], "application": waiting_app.__file__, "arguments": []})["id"]

    @property
    def driver(self) -> Driver:
        return self.manager.drivers[self.app]

    @property
    def deferred(self) -> DeferredRefresh:
        address = DriverAddress("yarn", "cluster", self.app)
        return DeferredRefresh({"orders": TABLE}, RUN_KEY, address, "lake", before={TABLE: None})

    def ledger(self) -> Ledger:
        catalog = open_catalog(LakeSettings("rfr", self.properties))
        return Ledger(LedgerTable.load_or_create(catalog, TABLE))

    def begin(self, run_key: str = RUN_KEY) -> Ledger:
        ledger = self.ledger()
        ledger.open_generation([("{}", {})], read_fingerprint="r", publish_fingerprint="p", run_key=run_key)
        return ledger

    def publish(self, ledger: Ledger) -> None:
        ledger.commit([], state=RefreshState.PUBLISHED, snapshot_id=7, published_rows=5)

    def end(self, exit_code: int) -> None:
        (self.driver.folder / "end").write_text(str(exit_code))
        self.driver._process.wait(30)


class Supervisor:
    """The triggerer's way to Airflow's database, for one question: the state of the deferred task.

    :ivar task_instance: the task, as a trigger knows it
    :ivar state: None for a task that was cleared
    :ivar asked: whether there was a question
    :ivar answers: set while it gives answers
    """

    task_instance = SimpleNamespace(
        dag_id="d", run_id="r", task_id="refresh", map_index=3, try_number=1, id="i", context_carrier=None
    )

    def __init__(self) -> None:
        self.state: str | None = "deferred"
        self.asked = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def asend(self, message: Any) -> TaskStatesResult:
        assert (message.dag_id, message.run_ids, message.task_ids, message.map_index) == ("d", ["r"], ["refresh"], 3)
        self.asked = True
        await self.answers.wait()
        return TaskStatesResult(task_states={"r": {"refresh_3": self.state, "refresh": "success"}})


@pytest.fixture
def refresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refresh]:
    with ResourceManager(tmp_path / "yarn") as manager:
        made = Refresh(tmp_path, manager)
        extra = {"yarn_resourcemanager_webapp_address": manager.url}
        connections: dict[str, dict[str, Any]] = {
            "CLUSTER": {"conn_type": "spark", "host": "yarn", "extra": extra},
            "LAKE": {
                "conn_type": "rfr_lake",
                "host": made.properties["uri"],
                "extra": {"warehouse": made.properties["warehouse"], "s3_secret_access_key": PASSWORD},
            },
        }
        for name, connection in connections.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
        yield made
