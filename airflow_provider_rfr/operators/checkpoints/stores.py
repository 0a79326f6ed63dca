"""The places of Airflow where a checkpoint can be kept. Each has one key a task instance, and one writer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import Variable
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.rest.interpolation import nearest

if TYPE_CHECKING:
    from airflow.sdk import Context

STATE_KEY = "rfr"
XCOM_KEY = "rfr_checkpoint"
VARIABLE_PREFIX = "rfr_checkpoint"
_READABLE = 200
"""Characters of a Variable's key for people; with the digest it stays below the 250 that databases keep."""


class CheckpointStore(Protocol):
    """Keeps one checkpoint for the attempts of one task instance.

    :ivar place: where, for a log line
    """

    place: str

    def read(self) -> Any:
        """Whatever is there, trusted or not; None for nothing."""

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace what is there."""

    def clear(self) -> None:
        """Remove what is there, if anything is."""


@dataclass(frozen=True, slots=True)
class TaskKey:
    """What stays the same over all attempts and clears of a task instance. Its id in Airflow's tables does not."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @classmethod
    def of(cls, context: Context) -> TaskKey:
        """The key of the task instance that runs."""
        ti = context["ti"]
        map_index = ti.map_index if ti.map_index is not None else -1
        return cls(ti.dag_id, ti.run_id, ti.task_id, map_index)

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}/{self.task_id}/{self.map_index}"


class TaskStateStore:
    """Airflow's task state: survives retry, reschedule and deferral, and a clear where Airflow lets it."""

    place = "the task state"

    def __init__(self, context: Context) -> None:
        self._state: Any = context.get("task_state_store")

    def read(self) -> Any:
        return None if self._state is None else self._state.get(STATE_KEY)

    def write(self, content: Mapping[str, Any]) -> None:
        # A pause may be longer than the default of 30 days.
        if self._state is not None:
            self._state.set(STATE_KEY, dict(content), retention=NEVER_EXPIRE)

    def clear(self) -> None:
        if self._state is not None:
            self._state.delete(STATE_KEY)


class VariableStore:
    """An Airflow Variable of its own for each task instance, so that two writers never meet in one."""

    def __init__(self, context: Context) -> None:
        task = TaskKey.of(context)
        self.key = variable_key(task)
        self.place = f"the Variable {self.key}"
        where = "" if task.map_index < 0 else f", map index {task.map_index}"
        self._description = (
            f"How far the refresh of task {task.task_id} of DAG {task.dag_id} is (run {task.run_id}{where})."
            " Written by the task, removed when its tables are published. It is safe to delete: the ledger beside"
            " each table says where the next try goes on."
        )

    def read(self) -> Any:
        return Variable.get(self.key, default=None)

    def write(self, content: Mapping[str, Any]) -> None:
        Variable.set(self.key, json.dumps(content, indent=2), description=self._description)

    def clear(self) -> None:
        Variable.delete(self.key)


class XComStore:
    """XCom of a neighbour of the task, and, for the tasks after it, the task's own.

    Each try of a task begins with the removal of every XCom of that task instance, whatever its key. So the copy for
    the next try is kept under another task of the run: the nearest one downstream, which does not start before this one
    is done, else the nearest upstream, which does not start again.
    """

    def __init__(self, context: Context) -> None:
        task = TaskKey.of(context)
        self._ti = context["ti"]
        self.key = f"{XCOM_KEY}.{task.task_id}.{task.map_index}"
        self.keeper = neighbour(getattr(self._ti, "task", None))
        self._at = {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": self.keeper, "key": self.key}
        self.place = (
            f"the XCom {self.key} of task {self.keeper}" if self.keeper else "XCom (no task beside this one keeps it)"
        )

    def read(self) -> Any:
        if self.keeper is None:
            return None
        return _xcom().get_one(**self._at, map_index=-1)

    def write(self, content: Mapping[str, Any]) -> None:
        self._ti.xcom_push(key=XCOM_KEY, value=dict(content))
        if self.keeper is not None:
            _xcom().set(value=dict(content), **self._at)

    def clear(self) -> None:
        """The task's own copy stays, for the tasks after it."""
        if self.keeper is not None:
            _xcom().delete(**self._at)


STORES: Mapping[str, Callable[[Context], CheckpointStore]] = {
    "task_state": TaskStateStore,
    "variable": VariableStore,
    "xcom": XComStore,
}


def check_store(name: Any) -> None:
    """:raises ConfigurationError: there is no such store"""
    if not isinstance(name, str) or name not in STORES:
        raise ConfigurationError("checkpoint_store", f"there is no store {name!r}", nearest(str(name), STORES))


def open_store(name: str, context: Context) -> CheckpointStore:
    """The store of the task instance that runs; nothing is read or written yet."""
    return STORES[name](context)


def variable_key(task: TaskKey) -> str:
    """DAG and task for people, and a digest that also tells run and map index apart."""
    digest = hashlib.sha256(str(task).encode()).hexdigest()[:16]
    return f"{VARIABLE_PREFIX}.{f'{task.dag_id}.{task.task_id}'[:_READABLE]}.{digest}"


def neighbour(task: Any) -> str | None:
    """Id of the task that keeps a checkpoint for this one; None where it has no neighbour.

    XCom belongs to a task instance that exists, and those of a mapped task may not exist yet.
    """
    dag = task.get_dag() if task is not None else None
    if dag is None:
        return None
    for near in (task.downstream_task_ids, task.upstream_task_ids):
        for task_id in sorted(near):
            other = dag.get_task(task_id)
            if not other.is_mapped and other.get_closest_mapped_task_group() is None:
                return str(task_id)
    return None


def _xcom() -> Any:
    """The deployment's XCom backend; imported late, because choosing it reads Airflow's configuration."""
    from airflow.sdk.execution_time.xcom import XCom

    return XCom
