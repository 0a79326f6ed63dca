"""Checkpoints of a refresh in Airflow: task state, a Variable, or XCom. For display; the ledger is the truth.

A lost or wrong checkpoint never changes what a refresh reads or publishes. A checkpoint holds names of tables, numbers,
times and digests, and never a page token, an address or a secret. Each store has one key per task instance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import Variable
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators.connection_use import task_of
from airflow_provider_rfr.refresh.status import CHECKPOINT_VERSION

if TYPE_CHECKING:
    from airflow.sdk import Context

_STATE_KEY = "rfr"
_XCOM_KEY = "rfr_checkpoint"
_READABLE = 200
"""Characters of a Variable's key for people; with the digest it stays below the 250 that databases keep."""
_STATES = "partition_states"
_STATES_BYTES = 8_192
"""Of the partition states of all tables; above it a checkpoint has counts alone."""


class Checkpoint(BaseModel):
    """The state that one attempt leaves for display and for the next attempt.

    :ivar owner: the task instance, ``dag/run/task/map index``
    :ivar stalled: consecutive attempts, up to this one, that made no progress
    :ivar tables: by table: the counts of ``Progress.checkpoint``, ``pointer`` (ledger id and snapshot id), and
        ``partition_states`` while those are small
    """

    model_config = ConfigDict(frozen=True)

    version: int = CHECKPOINT_VERSION
    owner: str
    stalled: NonNegativeInt = 0
    tables: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def parse(cls, content: Any, owner: str) -> Checkpoint | None:
        """Parse the checkpoint in a store's content; return None if it is not one of this task instance.

        :param content: JSON text, or its parsed value
        """
        try:
            found = cls.model_validate_json(content) if isinstance(content, str) else cls.model_validate(content)
        except ValidationError:
            return None
        return found if (found.version, found.owner) == (CHECKPOINT_VERSION, owner) else None

    def content(self) -> dict[str, Any]:
        """Return the JSON object to store, without the partitions' states if those are too large."""
        content = self.model_dump(mode="json")
        tables = content["tables"].values()
        if sum(len(json.dumps(table.get(_STATES, {}))) for table in tables) > _STATES_BYTES:
            for table in tables:
                table.pop(_STATES, None)
        return content


class CheckpointStore(Protocol):
    """A store of one checkpoint for the attempts of one task instance.

    :ivar place: where it is kept, for a log line
    """

    place: str

    def read(self) -> Any:
        """Return the content, which anyone may have written; None if there is none."""

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the content."""

    def clear(self) -> None:
        """Remove the content, if there is any."""


class _TaskStateStore:
    """Airflow's task state: survives retry, reschedule and deferral, and a clear where Airflow lets it."""

    place = "the task state"

    def __init__(self, context: Context) -> None:
        self._state: Any = context.get("task_state_store")

    def read(self) -> Any:
        return None if self._state is None else self._state.get(_STATE_KEY)

    def write(self, content: Mapping[str, Any]) -> None:
        # A pause may be longer than the default retention of 30 days.
        if self._state is not None:
            self._state.set(_STATE_KEY, dict(content), retention=NEVER_EXPIRE)

    def clear(self) -> None:
        if self._state is not None:
            self._state.delete(_STATE_KEY)


class _VariableStore:
    """An Airflow Variable of its own for each task instance, so that no two tasks write the same one."""

    def __init__(self, context: Context) -> None:
        task = task_of(context)
        # DAG and task are for people; the digest also has the run and the map index.
        digest = hashlib.sha256(task.consumer.encode()).hexdigest()[:16]
        self.key = f"rfr_checkpoint.{f'{task.dag_id}.{task.task_id}'[:_READABLE]}.{digest}"
        self.place = f"the Variable {self.key}"
        where = "" if task.map_index < 0 else f", map index {task.map_index}"
        self._description = (
            f"Progress of the refresh by task {task.task_id} of DAG {task.dag_id} (run {task.run_id}{where})."
            " Written by the task, removed when its tables are published. It is safe to delete: the next try resumes"
            " from the ledger next to each table."
        )

    def read(self) -> Any:
        return Variable.get(self.key, default=None)

    def write(self, content: Mapping[str, Any]) -> None:
        Variable.set(self.key, json.dumps(content, indent=2), description=self._description)

    def clear(self) -> None:
        Variable.delete(self.key)


class _XComStore:
    """XCom of a neighbour of the task, and, for the tasks after it, the task's own.

    Each try of a task begins with the removal of every XCom of that task instance, whatever its key. So the copy for
    the next try is kept under another task of the run: the nearest one downstream, which does not start before this one
    is done, else the nearest upstream, which does not start again.
    """

    def __init__(self, context: Context) -> None:
        # Choosing the deployment's XCom backend reads Airflow's configuration, too slow for a DAG's parse.
        from airflow.sdk.execution_time.xcom import XCom

        self._xcom: Any = XCom
        task = task_of(context)
        self._ti = context["ti"]
        key = f"{_XCOM_KEY}.{task.task_id}.{task.map_index}"
        self._neighbour = _neighbour(getattr(self._ti, "task", None))
        self._at = {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": self._neighbour, "key": key}
        self.place = f"the XCom {key} of task {self._neighbour}" if self._neighbour else "XCom (no other task keeps it)"

    def read(self) -> Any:
        return None if self._neighbour is None else self._xcom.get_one(**self._at, map_index=-1)

    def write(self, content: Mapping[str, Any]) -> None:
        self._ti.xcom_push(key=_XCOM_KEY, value=dict(content))
        if self._neighbour is not None:
            self._xcom.set(value=dict(content), **self._at)

    def clear(self) -> None:
        """Remove the neighbour's copy; the task's own stays for the tasks after it."""
        if self._neighbour is not None:
            self._xcom.delete(**self._at)


def _neighbour(task: Any) -> str | None:
    """Return the id of the task that keeps a checkpoint for this one; None where it has no neighbour.

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


_STORES: Mapping[str, Callable[[Context], CheckpointStore]] = {
    "task_state": _TaskStateStore,
    "variable": _VariableStore,
    "xcom": _XComStore,
}


def check_store(name: Any) -> None:
    """Check that the store's name is known.

    :raises ConfigurationError: there is no such store
    """
    if not isinstance(name, str) or name not in _STORES:
        raise ConfigurationError("checkpoint_store", f"invalid store {name!r}", f"one of {', '.join(_STORES)}")


def open_store(name: str, context: Context) -> CheckpointStore:
    """Return the store of the running task instance; read and write nothing yet."""
    return _STORES[name](context)
