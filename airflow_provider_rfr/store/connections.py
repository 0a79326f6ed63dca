"""Tasks, and the copies of connections that they run with.

A task registers before it reads its connections, so a concurrent change is always seen: at worst the task is restarted
although it has the new settings already. Each registration increments the row's token; a replaced registration can
neither end nor renew the row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, or_, select, update

from airflow_provider_rfr.store._tables import USE_HASHES, USES

RUNNING: Final = "running"
DEFERRED: Final = "deferred"
FAILED: Final = "failed"
IDLE: Final = "idle"
_UNREAD: Final = "unread"
"""The hash of a copy that is yet to be read."""
_SILENT: Final = 600_000
"""Milliseconds without a heartbeat after which a task counts as dead; there is one every two seconds."""
_ERROR_LENGTH: Final = 500
_U: Final = USES.c
_H: Final = USE_HASHES.c


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task of a run, as Airflow names it; -1 for one that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def consumer(self) -> str:
        """Return the task as a key."""
        return f"{self.dag_id}/{self.run_id}/{self.task_id}/{self.map_index}"

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} ({self.run_id})"


@dataclass(frozen=True, slots=True)
class UsedConnection:
    """A connection as a task uses it.

    :ivar via: ids on the way to it, from the one that the task names, e.g. ``broker > tunnel``
    :ivar running: hash of the copy that the task has
    :ivar wanted: hash of the copy that it should have; None for the same
    """

    conn_id: str
    via: str
    running: str
    wanted: str | None = None

    @property
    def is_stale(self) -> bool:
        """Tell whether the task should have another copy."""
        return self.wanted is not None and self.wanted != self.running


@dataclass(frozen=True, slots=True)
class Use:
    """A task that uses connections.

    :ivar state: running, deferred (the triggerer follows it), failed, idle (it ended well)
    :ivar token: of its newest registration
    :ivar error: what it failed with, masked
    :ivar details: tables, options that the task can't adopt, how it is checked; no secrets
    :ivar seen_at: its last heartbeat, in milliseconds since 1970
    """

    task: TaskRef
    kind: str
    state: str
    token: int
    connections: tuple[UsedConnection, ...]
    error: str | None = None
    error_kind: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    seen_at: int = 0

    @property
    def is_stale(self) -> bool:
        """Tell whether the task should have another copy of any connection."""
        return any(connection.is_stale for connection in self.connections)

    def of(self, conn_id: str) -> UsedConnection | None:
        return next((connection for connection in self.connections if connection.conn_id == conn_id), None)


def register_use(
    connection: Connection, now: int, task: TaskRef, kind: str, conn_ids: Sequence[str], details: Mapping[str, Any]
) -> int:
    """Note that the task starts, before it reads these connections, and return the token of its new row.

    Earlier runs of the task that ended well are deleted.
    """
    before = load_use(connection, task)
    _delete_uses(connection, task, _U.run_id != task.run_id, _U.state == IDLE)
    connection.execute(delete(USE_HASHES).where(_H.consumer == task.consumer))
    values: dict[str, Any] = {"kind": kind, "state": RUNNING, "error": None, "error_kind": None}
    values |= {"details": json.dumps(dict(details)), "started_at": now, "seen_at": now}
    token = values["token"] = 1 if before is None else before.token + 1
    if before is None:
        connection.execute(insert(USES).values(consumer=task.consumer, **asdict(task), **values))
    else:
        connection.execute(update(USES).where(_U.consumer == task.consumer).values(**values))
    unread = [UsedConnection(name, name, _UNREAD) for name in dict.fromkeys(conn_ids)]
    note_copies(connection, task, token, unread)
    return token


def _delete_uses(connection: Connection, task: TaskRef, *where: ColumnElement[bool]) -> None:
    """Delete rows of this task and of its other runs."""
    same = (_U.dag_id == task.dag_id, _U.task_id == task.task_id, _U.map_index == task.map_index)
    found = list(connection.scalars(select(_U.consumer).where(*same, *where)))
    connection.execute(delete(USE_HASHES).where(_H.consumer.in_(found)))
    connection.execute(delete(USES).where(_U.consumer.in_(found)))


def note_copies(connection: Connection, task: TaskRef, token: int, copies: Sequence[UsedConnection]) -> None:
    """Note the copies that the task read; the copies that it should have are not changed."""
    found = load_use(connection, task)
    if found is None or found.token != token:
        return
    for copy in copies:
        _put_copy(connection, task, copy.conn_id, {"running_hash": copy.running, "via": copy.via})


def _put_copy(
    connection: Connection,
    task: TaskRef,
    conn_id: str,
    values: Mapping[str, str],
    missing: Mapping[str, str] | None = None,
) -> None:
    """Update the row of a copy, or insert it, then with further values."""
    key = {"consumer": task.consumer, "conn_id": conn_id}
    if not connection.execute(update(USE_HASHES).filter_by(**key).values(**values)).rowcount:
        connection.execute(insert(USE_HASHES).values(**key, **(missing or {}), **values))


def beat(connection: Connection, now: int, task: TaskRef, token: int) -> Use | None:
    """Note that the task is alive, and return its row; None if a later registration replaced it."""
    found = load_use(connection, task)
    if found is None or found.token != token:
        return None
    connection.execute(update(USES).where(_U.consumer == task.consumer, _U.token == token).values(seen_at=now))
    return found


def end_use(
    connection: Connection,
    now: int,
    task: TaskRef,
    token: int | None,
    state: str,
    error: str | None = None,
    error_kind: str | None = None,
) -> None:
    """Note how the task's registration ended, unless a later one replaced it.

    After one that ended well, earlier runs that failed or died are deleted: they will not be continued.

    :param token: None for the newest one
    """
    found = load_use(connection, task)
    if found is None or token not in (None, found.token):
        return
    kept = None if error is None else error[:_ERROR_LENGTH]
    values = {"state": state, "error": kept, "error_kind": error_kind, "seen_at": now}
    connection.execute(update(USES).where(_U.consumer == task.consumer).values(**values))
    if state == IDLE:
        dead = or_(_U.state == FAILED, and_(_U.state == RUNNING, _U.seen_at < now - _SILENT))
        own = USES.alias("own")
        began = select(own.c.started_at).where(own.c.consumer == task.consumer).scalar_subquery()
        _delete_uses(connection, task, dead, _U.started_at < began)


def want(connection: Connection, uses: Iterable[TaskRef], conn_id: str, wanted: str) -> None:
    """Note the copy of the connection that those tasks should have; running tasks read it by themselves."""
    for task in uses:
        _put_copy(connection, task, conn_id, {"wanted_hash": wanted}, {"via": conn_id, "running_hash": _UNREAD})


def load_use(connection: Connection, task: TaskRef) -> Use | None:
    found = list_uses(connection, consumers=[task.consumer])
    return found[0] if found else None


def forget_connection(connection: Connection, conn_id: str) -> None:
    """Delete the notes of tasks that ran with the connection."""
    connection.execute(delete(USE_HASHES).where(_H.conn_id == conn_id))


def list_uses(connection: Connection, *, consumers: Sequence[str] | None = None) -> list[Use]:
    """Return uses in the order of their tasks: all of them, or those of the given consumers."""
    query = select(USES).order_by(_U.dag_id, _U.task_id, _U.map_index, _U.run_id)
    if consumers is not None:
        query = query.where(_U.consumer.in_(consumers))
    rows = connection.execute(query).all()
    copies: dict[str, list[UsedConnection]] = {}
    named = select(USE_HASHES).where(_H.consumer.in_([row.consumer for row in rows])).order_by(_H.conn_id)
    for row in connection.execute(named):
        made = UsedConnection(row.conn_id, row.via, row.running_hash, row.wanted_hash)
        copies.setdefault(row.consumer, []).append(made)
    return [
        Use(
            TaskRef(row.dag_id, row.run_id, row.task_id, row.map_index),
            row.kind,
            row.state,
            row.token,
            tuple(copies.get(row.consumer, ())),
            row.error,
            row.error_kind,
            json.loads(row.details),
            row.seen_at,
        )
        for row in rows
    ]
