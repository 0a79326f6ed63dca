"""Airflow's stores in memory, below the real SDK: what a task's process would ask its supervisor for."""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import comms, task_runner
from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS
from airflow_provider_rfr.operators._attempt import DEFAULT_STORE, CheckpointStore, open_store
from tests.airflow_versions import TaskStateStoreAccessor


class FakeSupervisor:
    """Keeps JSON, as Airflow's database does, and the expiry of task state and the descriptions of Variables."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], str] = {}
        self.extras: dict[tuple[Any, ...], Any] = {}

    def send(self, message: Any) -> Any:
        kind = type(message).__name__
        key = row_of(message)
        if kind.startswith(("Set", "Put")):
            self.rows[key] = json.dumps(message.value)
            self.extras[key] = getattr(message, "expires_at", None) or getattr(message, "description", None)
        elif kind.startswith("Delete"):
            self.rows.pop(key, None)
        else:
            return self.found(kind, message.key, json.loads(self.rows[key]) if key in self.rows else None)
        return None

    @staticmethod
    def found(kind: str, key: str, value: Any) -> Any:
        if kind == "GetXCom":
            return comms.XComResult(key=key, value=value)
        if value is None:
            missing = ErrorType.VARIABLE_NOT_FOUND if kind == "GetVariable" else ErrorType.TASK_STORE_NOT_FOUND
            return comms.ErrorResponse(error=missing)
        if kind == "GetVariable":
            return comms.VariableResult(key=key, value=value)
        return comms.TaskStateStoreResult(value=value)


def row_of(message: Any) -> tuple[Any, ...]:
    place = "xcom" if "XCom" in message.type else "variable" if "Variable" in message.type else "task_state"
    map_index = getattr(message, "map_index", None)
    return (place, getattr(message, "task_id", None), -1 if map_index is None else map_index, message.key)


class Airflow:
    """One task instance with a task after it, and what Airflow keeps of both."""

    def __init__(self, kind: str, *, after: bool = True, before: bool = False) -> None:
        self.kind = kind
        self.supervisor = FakeSupervisor()
        from airflow.providers.standard.operators.empty import EmptyOperator

        with DAG("shop", schedule=None, start_date=datetime(2026, 1, 1)) as self.dag:
            task = EmptyOperator(task_id="refresh")
            if after:
                task >> EmptyOperator(task_id="report")
            if before:
                EmptyOperator(task_id="prepare") >> task
        self.map_index = -1
        self.run_id = "manual__1"

    def context(self) -> Any:
        ti = SimpleNamespace(
            dag_id="shop", run_id=self.run_id, task_id="refresh", map_index=self.map_index, try_number=2
        )
        own = {"dag_id": "shop", "run_id": self.run_id, "task_id": "refresh", "map_index": self.map_index}
        ti.task = self.dag.get_task("refresh")
        ti.xcom_push = lambda key, value: XCom.set(key, value, **own)
        state = TaskStateStoreAccessor(uuid.uuid4(), None) if AIRFLOW_V_3_3_PLUS else None  # type: ignore[arg-type]
        return {"ti": ti, "task_state_store": state}

    def store(self) -> CheckpointStore:
        """As the next try opens it, after Airflow removed the XCom of this task instance."""
        own = [key for key in self.supervisor.rows if key[:3] == ("xcom", "refresh", self.map_index)]
        for key in own:
            del self.supervisor.rows[key]
        return open_store(self.kind, self.context())

    def plant(self, content: Any) -> None:
        """Put something there by hand, in the place where the store has its own."""
        store = self.store()
        if not self.supervisor.rows:
            store.write({"any": "thing"})
        for key in self.supervisor.rows:
            text = content if isinstance(content, str) else json.dumps(content)
            self.supervisor.rows[key] = json.dumps(text if self.kind == "variable" else content)


STORES = ["task_state", "variable", "xcom"] if AIRFLOW_V_3_3_PLUS else ["variable", "xcom"]
#: For tests of what depends on the store.
IN_EVERY_STORE = pytest.mark.parametrize("airflow", STORES, indirect=True)


@pytest.fixture
def airflow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    return installed(Airflow(getattr(request, "param", DEFAULT_STORE)), monkeypatch)


def installed(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow.supervisor, raising=False)
    return airflow
