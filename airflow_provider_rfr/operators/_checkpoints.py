"""Checkpoints of a refresh in Airflow: task state, a Variable, or XCom. For display; the ledger is the truth.

A lost or wrong checkpoint never changes what a refresh reads or publishes. A checkpoint holds names of tables, numbers
and times, and never a page token, an address or a secret. Each store has one key per task instance. While Spark runs, a
thread follows the ledgers: a log line and a checkpoint per round.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import Variable
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.operators.connections import task_of
from airflow_provider_rfr.refresh.follow import LedgerFollower, ProgressPoint

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)

_STATE_KEY = "rfr"
_XCOM_KEY = "rfr_checkpoint"
_READABLE = 200
"""Characters of a Variable's key for people; with the digest it stays below the 250 that databases keep."""
_VERSION = 1
_FIRST_WAIT = 2.0
_JOIN_SECONDS = 15.0
_COMPARED = ("generation", "epoch", "pages")


class Checkpoint(BaseModel):
    """The state that one attempt leaves for display and for the next attempt.

    :ivar owner: the task instance, ``dag/run/task/map index``
    :ivar stalled: consecutive attempts, up to this one, that made no progress
    :ivar tables: by table: the counts of ``Progress.checkpoint``, and ``pointer`` (ledger id and snapshot id)
    """

    model_config = ConfigDict(frozen=True)

    version: int = _VERSION
    owner: str
    stalled: NonNegativeInt = 0
    tables: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def parse(cls, content: Any, owner: str) -> Checkpoint | None:
        """Parse the checkpoint in a store's content; return None if it is not one of this task instance.

        :param content: JSON text, or its parsed value
        """
        try:
            checkpoint = cls.model_validate_json(content) if isinstance(content, str) else cls.model_validate(content)
        except ValidationError:
            return None
        return checkpoint if (checkpoint.version, checkpoint.owner) == (_VERSION, owner) else None


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


class ProgressMonitor:
    """A context manager around one attempt: follows its ledgers, and leaves a checkpoint if the attempt fails.

    Neither a ledger that can't be read nor a store that can't be written ever fails the refresh.

    :param owner: the task instance; a checkpoint of another one is ignored
    :param is_first: whether this is the task's first try, which finds no checkpoint
    :ivar stalled: consecutive attempts, up to this one, without progress; None while a ledger can't be read
    """

    def __init__(self, ledgers: LedgerFollower, store: CheckpointStore, owner: str, *, is_first: bool = False) -> None:
        self._ledgers = ledgers
        self._store = store
        self._is_first = is_first
        self._before: Mapping[str, ProgressPoint | None] | None = None
        self._last = Checkpoint(owner=owner)
        self._is_over = False
        self._is_excused = False
        # A follower that outlives its join must not write a checkpoint after the publish removed it.
        self._writing = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.stalled: int | None = None

    def __enter__(self) -> ProgressMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join(_JOIN_SECONDS)
        # An attempt that never reached the ledger counts as well, so its checkpoint is written here at the latest.
        if error is not None and self._before is not None:
            self._is_excused = isinstance(error, RfrError) and error.excused
            self.write()

    @property
    def before(self) -> tuple[Mapping[str, ProgressPoint | None] | None, int]:
        """Return the progress at the attempt's start, and the number of stalled attempts before it.

        The progress is None if it is unknown.
        """
        return self._before if self._ledgers.is_complete else None, self._last.stalled

    def follow(self, poll_interval: float) -> None:
        """Look at the ledgers from another thread until the context ends.

        :param poll_interval: seconds between looks once the refresh runs for a while; 2 at first
        """
        # The checkpoint is read here, because `airflow dags test` answers no second thread while it answers the first.
        arguments = (self.read_checkpoint(), poll_interval)
        self._thread = threading.Thread(target=self._follow, args=arguments, name="rfr-follower", daemon=True)
        self._thread.start()

    def read_checkpoint(self) -> Checkpoint | None:
        """Return the last attempt's checkpoint; None, with a line in the log, where there is none of this task."""
        try:
            content = self._store.read()
        except Exception as error:  # noqa: BLE001 - a text may hold addresses with credentials
            _log.warning("the checkpoint in %s can't be read (%s)", self._store.place, type(error).__name__)
            return None
        checkpoint = Checkpoint.parse(content, self._last.owner)
        if content is None:
            if not self._is_first:
                _log.info("there is no checkpoint in %s", self._store.place)
        elif checkpoint is None:
            _log.warning("the content of %s is ignored: it is not a checkpoint of this task", self._store.place)
        return checkpoint

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Record the state of the ledgers at the attempt's start, and compare the last attempt's checkpoint with it."""
        self._before = self._ledgers.begin()
        if checkpoint is None:
            return
        agrees = all(
            (header := self._ledgers.before.get(table)) is not None
            and all(counts.get(name) == getattr(header, name) for name in _COMPARED)
            for table, counts in checkpoint.tables.items()
        )
        if self._ledgers.is_complete and not agrees:
            # Someone else continued the refresh, or the last try died between a commit and its checkpoint.
            _log.info("the checkpoint in %s is ignored: the ledger is in another state", self._store.place)
        else:
            self._last = checkpoint
            verdict = "agrees with the ledger" if self._ledgers.is_complete else "can't be compared with the ledger now"
            _log.info("the checkpoint in %s %s", self._store.place, verdict)

    def resume(self, before: Mapping[str, ProgressPoint | None] | None, stalled: int) -> None:
        """Continue the attempt of another process, whose :attr:`before` this is."""
        self._before = before
        self._last = self._last.model_copy(update={"stalled": stalled})
        self._ledgers.before = dict.fromkeys(self._ledgers.tables)
        # The triggerer has logged the rounds.
        self._ledgers.show = lambda line: None

    def write(self) -> None:
        """Write a checkpoint with the changes of the attempt."""
        with self._writing:
            if self._is_over:
                return
            tables = self._ledgers.checkpoint()
            if self._before is None or not self._ledgers.is_complete:
                self.stalled = None
            elif any(_has_advanced(self._before.get(table), counts) for table, counts in tables.items()):
                self.stalled = 0
            else:
                self.stalled = self._last.stalled + (0 if self._is_excused else 1)
            stalled = self._last.stalled if self.stalled is None else self.stalled
            update = {"stalled": stalled, "tables": {**self._last.tables, **tables}}
            content = self._last.model_copy(update=update).model_dump(mode="json")
            self._use_store("written", lambda: self._store.write(content))

    def published(self, *, keep: bool) -> None:
        """End the attempt, and remove the checkpoint unless it is to be kept; nothing is written after this."""
        with self._writing:
            self._is_over = True
            if not keep:
                self._use_store("removed", self._store.clear)

    def _follow(self, checkpoint: Checkpoint | None, poll_interval: float) -> None:
        self.begin(checkpoint)
        wait = min(_FIRST_WAIT, poll_interval)
        is_done = False
        while not is_done:
            is_done = self._done.wait(wait)
            began = time.monotonic()
            if self._ledgers.poll():
                self.write()
            wait = min(max(wait * 1.2, 4 * (time.monotonic() - began)), poll_interval)

    def _use_store(self, verb: str, action: Callable[[], None]) -> None:
        self._ledgers.outages.guard(f"the checkpoint in {self._store.place}", verb, action)


def _has_advanced(before: ProgressPoint | None, counts: Mapping[str, Any]) -> bool:
    """Tell whether a table is further than it was: more pages or partitions, a generation with pages, a publish."""
    if before is None or before.generation != counts["generation"]:
        return bool(counts["pages"])
    if counts.get("snapshot_id") is not None and before.snapshot_id is None:
        return True
    return bool(counts["pages"] > before.pages or counts["partitions_done"] > before.partitions_done)
