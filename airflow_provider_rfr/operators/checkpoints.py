"""Checkpoints of a refresh in Airflow: task state, a Variable, or XCom. For display; the ledger is the truth.

A lost or wrong checkpoint never changes what a refresh reads or publishes. A checkpoint holds names of tables, numbers,
times and digests, and never a page token, an address or a secret. Each store has one key per task instance.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk import Variable
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.refresh.progress import CHECKPOINT_VERSION, ProgressPoint
from airflow_provider_rfr.streams.rest.expressions import nearest

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.refresh.status import RefreshStatus


_MAX_BYTES = 65_535
"""Of a whole checkpoint: what Airflow's own state store takes by default."""
_PARTITION_BYTES = 8_192
"""Of the states of all partitions; above it there are counts and a digest."""
DIGEST = "digest"
STATES = "partition_states"
_COUNTS = ("generation", "epoch", "pages", "partitions_done")


class _Flaw(str, Enum):
    """Why a checkpoint is ignored; the text ends the sentence "the checkpoint ... is ignored: ..."."""

    MISSING = "there is none"
    UNREADABLE = "it can't be read"
    OVERSIZED = "it is larger than any that a refresh writes"
    FOREIGN = "it is not of this task"
    EDITED = "it was changed by hand"
    STALE = "the ledger is elsewhere"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one attempt leaves for people and for the next attempt.

    :ivar owner: the task instance, ``dag/run/task/map index``
    :ivar stalled: attempts in a row, up to this one, that brought the refresh no further
    :ivar tables: by table: the counts of ``Progress.checkpoint``, ``pointer`` (ledger id and snapshot id), ``digest``,
        and ``partition_states`` while those are small
    """

    owner: str
    stalled: int = 0
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def content(self) -> dict[str, Any] | None:
        """As it is stored: without the partitions' states if those are too large, None if the rest is."""
        tables: Mapping[str, Mapping[str, Any]] = self.tables
        if sum(_size(table.get(STATES) or {}) for table in tables.values()) > _PARTITION_BYTES:
            tables = {name: _without(table, STATES) for name, table in tables.items()}
        body = {"version": CHECKPOINT_VERSION, "owner": self.owner, "stalled": self.stalled, "tables": tables}
        whole = {**body, DIGEST: digest_of(body)}
        return whole if _size(whole) <= _MAX_BYTES else None


def _parse_checkpoint(content: Any, owner: str) -> Checkpoint | _Flaw:
    """The checkpoint in a store's content, or why it is none.

    :param content: JSON text, or what JSON text stands for
    """
    if content is None:
        return _Flaw.MISSING
    if not isinstance(content, (str, Mapping)):
        return _Flaw.FOREIGN
    if (len(content) if isinstance(content, str) else _size(content)) > 4 * _MAX_BYTES:
        return _Flaw.OVERSIZED
    whole = _json(content) if isinstance(content, str) else content
    if not isinstance(whole, Mapping) or whole.get("version") != CHECKPOINT_VERSION or whole.get("owner") != owner:
        return _Flaw.FOREIGN
    if _size(whole) > _MAX_BYTES:
        return _Flaw.OVERSIZED
    if whole.get(DIGEST) != digest_of(_without(whole, DIGEST)) or not _is_whole(whole):
        return _Flaw.EDITED
    return Checkpoint(owner, whole["stalled"], whole["tables"])


def digest_of(value: Any) -> str:
    """The same for values that JSON stores as the same, whatever order a database gives them back in."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:32]


def _is_whole(whole: Mapping[str, Any]) -> bool:
    tables = whole.get("tables")
    if not _is_count(whole.get("stalled")) or not isinstance(tables, Mapping):
        return False
    return all(isinstance(one, Mapping) and all(_is_count(one.get(key)) for key in _COUNTS) for one in tables.values())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _size(value: Any) -> int:
    return len(_canonical(value))


def _canonical(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=str)


def _plain(value: Any) -> Any:
    """Some databases give 137.0 back as 137."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


log = logging.getLogger(__name__)

_Details = Callable[[str], Mapping[str, Any]]


class CheckpointManager:
    """A context manager around one attempt; an attempt that fails leaves its checkpoint for the next one.

    No error of a store ever fails the refresh: a checkpoint is worth a log line, not a try.

    :param owner: the task instance; content of another one is ignored
    :param details: what else to keep of a table: pointer, digest, states of partitions
    :param known: whether the ledgers could be read when they were last looked at
    :param first: whether this is the first try, which has nothing to miss
    :ivar stalled: attempts in a row, up to this one, without progress; None while that can't be told
    """

    def __init__(
        self,
        store: _CheckpointStore,
        owner: str,
        *,
        details: _Details,
        known: Callable[[], bool] = lambda: True,
        first: bool = True,
    ) -> None:
        self._store = store
        self._owner = owner
        self._details = details
        self._known = known
        self._first = first
        self._before: Mapping[str, ProgressPoint | None] | None = None
        self._last = Checkpoint(owner)
        self._tables: dict[str, Mapping[str, Any]] = {}
        self._over = False
        self._excused = False
        self._complained: set[str] = set()
        self._lock = threading.Lock()
        self.stalled: int | None = None

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Also an attempt that never reached the ledger counts, so its checkpoint is written here at the latest."""
        if error is not None and self._before is not None:
            self._excused = isinstance(error, RfrError) and error.excused
            self._write()

    def recall(self, before: Mapping[str, RefreshStatus | None]) -> None:
        """Compare the last attempt's checkpoint with the ledgers, and say what is wrong with it.

        :param before: state of each table's ledger as this attempt finds it
        """
        self._before = _marks_of(before)
        try:
            found = _parse_checkpoint(self._store.read(), self._owner)
        except Exception as error:  # noqa: BLE001 - a store's error is worth one line
            self._ignored(_Flaw.UNREADABLE, type(error).__name__)
            return
        if isinstance(found, _Flaw):
            self._ignored(found)
            return
        apart = _difference(found.tables, before) if self._known() else ""
        if apart:
            self._ignored(_Flaw.STALE, apart)
            return
        self._last = found
        agrees = "agrees with the ledger" if self._known() else "can't be compared now: the ledger can't be read"
        log.info("the checkpoint in %s %s", self._store.place, agrees)

    @property
    def before(self) -> tuple[Mapping[str, ProgressPoint | None] | None, int]:
        """What the attempt found, as far as it is known, and how many attempts before it brought nothing."""
        return self._before if self._known() else None, self._last.stalled

    def go_on(self, before: Mapping[str, ProgressPoint | None] | None, stalled: int) -> None:
        """Be the keeper of an attempt that began in another process."""
        self._before, self._last = before, Checkpoint(self._owner, stalled)

    def remember(self, checkpoint: Mapping[str, Any], *, guarded: bool = False) -> None:
        """Take the counts of all tables after a change, and write them.

        :param guarded: turn the store's errors into a log line; the follower names them itself
        :raises Exception: the store's own, unless guarded
        """
        for table, counts in checkpoint["tables"].items():
            self._tables[table] = {**counts, **self._detailed(table)}
        self._write(guarded=guarded)

    def published(self, *, keep: bool = False) -> None:
        """The refresh is done: remove the checkpoint unless it is to be kept. Nothing is written after this."""
        with self._lock:
            self._over = True
            if not keep:
                self._guard(self._store.clear)

    def _write(self, *, guarded: bool = True) -> None:
        with self._lock:
            if self._over:
                return
            self.stalled = self._judged()
            stalled = self._last.stalled if self.stalled is None else self.stalled
            content = Checkpoint(self._owner, stalled, {**self._last.tables, **self._tables}).content()
            if content is None:
                self._complain("it would be too large")
            elif guarded:
                self._guard(lambda: self._store.write(content))
            else:
                self._store.write(content)

    def _detailed(self, table: str) -> Mapping[str, Any]:
        """Counts without them are still worth writing."""
        try:
            return self._details(table)
        except Exception as error:  # noqa: BLE001 - see the class
            log.debug("the partitions of %s can't be told (%s)", table, type(error).__name__)
            return {}

    def _judged(self) -> int | None:
        """How many attempts in a row have stalled if this one ended now."""
        if self._before is None or not self._known():
            return None
        if _advanced(self._before, self._tables):
            return 0
        return self._last.stalled + (0 if self._excused else 1)

    def _ignored(self, flaw: _Flaw, detail: str = "") -> None:
        if flaw is _Flaw.MISSING and self._first:
            return
        level = logging.INFO if flaw in (_Flaw.MISSING, _Flaw.STALE) else logging.WARNING
        why = f"{flaw.value} ({detail})" if detail else flaw.value
        log.log(level, "the checkpoint in %s is ignored: %s; the ledger wins", self._store.place, why)

    def _guard(self, action: Callable[[], None]) -> None:
        """Errors are named by their kind alone: their texts may quote what was written."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - see the class
            self._complain(type(error).__name__)

    def _complain(self, why: str) -> None:
        if why not in self._complained:
            self._complained.add(why)
            log.warning(
                "the checkpoint in %s can't be written or removed: %s; the refresh goes on", self._store.place, why
            )


def _marks_of(statuses: Mapping[str, RefreshStatus | None]) -> dict[str, ProgressPoint | None]:
    """How far each table is; None for one without a ledger."""
    return {table: None if status is None else ProgressPoint.of(status) for table, status in statuses.items()}


def _difference(tables: Mapping[str, Mapping[str, Any]], before: Mapping[str, RefreshStatus | None]) -> str:
    """How a checkpoint and the ledgers disagree, for the first table that does; empty where they agree."""
    for table, counts in tables.items():
        status = before.get(table)
        if status is None:
            return f"{table}: no such ledger"
        for name in ("generation", "epoch", "pages"):
            theirs = getattr(status, name)
            if counts[name] != theirs:
                return f"{table}: {name} {counts[name]:,}, in the ledger {theirs:,}"
    return ""


def _advanced(before: Mapping[str, ProgressPoint | None], tables: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether any table is further than it was: more pages or partitions, a generation with pages, a publish."""
    return any(_further(before.get(table), counts) for table, counts in tables.items())


def _further(before: ProgressPoint | None, counts: Mapping[str, Any]) -> bool:
    if before is None or before.generation != counts["generation"]:
        return bool(counts["pages"])
    if counts.get("snapshot_id") is not None and before.snapshot_id is None:
        return True
    return bool(counts["pages"] > before.pages or counts["partitions_done"] > before.partitions_done)


_STATE_KEY = "rfr"
_XCOM_KEY = "rfr_checkpoint"
_VARIABLE_PREFIX = "rfr_checkpoint"
_READABLE = 200
"""Characters of a Variable's key for people; with the digest it stays below the 250 that databases keep."""


class _CheckpointStore(Protocol):
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


class _TaskStateStore:
    """Airflow's task state: survives retry, reschedule and deferral, and a clear where Airflow lets it."""

    place = "the task state"

    def __init__(self, context: Context) -> None:
        self._state: Any = context.get("task_state_store")

    def read(self) -> Any:
        return None if self._state is None else self._state.get(_STATE_KEY)

    def write(self, content: Mapping[str, Any]) -> None:
        # A pause may be longer than the default of 30 days.
        if self._state is not None:
            self._state.set(_STATE_KEY, dict(content), retention=NEVER_EXPIRE)

    def clear(self) -> None:
        if self._state is not None:
            self._state.delete(_STATE_KEY)


class _VariableStore:
    """An Airflow Variable of its own for each task instance, so that two writers never meet in one."""

    def __init__(self, context: Context) -> None:
        task = TaskKey.of(context)
        self.key = _variable_key(task)
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


class _XComStore:
    """XCom of a neighbour of the task, and, for the tasks after it, the task's own.

    Each try of a task begins with the removal of every XCom of that task instance, whatever its key. So the copy for
    the next try is kept under another task of the run: the nearest one downstream, which does not start before this one
    is done, else the nearest upstream, which does not start again.
    """

    def __init__(self, context: Context) -> None:
        task = TaskKey.of(context)
        self._ti = context["ti"]
        self.key = f"{_XCOM_KEY}.{task.task_id}.{task.map_index}"
        self.keeper = _neighbour(getattr(self._ti, "task", None))
        self._at = {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": self.keeper, "key": self.key}
        self.place = (
            f"the XCom {self.key} of task {self.keeper}" if self.keeper else "XCom (no task beside this one keeps it)"
        )

    def read(self) -> Any:
        if self.keeper is None:
            return None
        return _xcom().get_one(**self._at, map_index=-1)

    def write(self, content: Mapping[str, Any]) -> None:
        self._ti.xcom_push(key=_XCOM_KEY, value=dict(content))
        if self.keeper is not None:
            _xcom().set(value=dict(content), **self._at)

    def clear(self) -> None:
        """The task's own copy stays, for the tasks after it."""
        if self.keeper is not None:
            _xcom().delete(**self._at)


_STORES: Mapping[str, Callable[[Context], _CheckpointStore]] = {
    "task_state": _TaskStateStore,
    "variable": _VariableStore,
    "xcom": _XComStore,
}


def check_store(name: Any) -> None:
    """:raises ConfigurationError: there is no such store"""
    if not isinstance(name, str) or name not in _STORES:
        raise ConfigurationError("checkpoint_store", f"there is no store {name!r}", nearest(str(name), _STORES))


def open_store(name: str, context: Context) -> _CheckpointStore:
    """The store of the task instance that runs; nothing is read or written yet."""
    return _STORES[name](context)


def _variable_key(task: TaskKey) -> str:
    """DAG and task for people, and a digest that also tells run and map index apart."""
    digest = hashlib.sha256(str(task).encode()).hexdigest()[:16]
    return f"{_VARIABLE_PREFIX}.{f'{task.dag_id}.{task.task_id}'[:_READABLE]}.{digest}"


def _neighbour(task: Any) -> str | None:
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
