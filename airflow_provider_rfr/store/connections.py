"""Which task runs with which copy of which connection.

A task registers before it reads its connections, so a change that comes meanwhile is always seen: at worst it is
restarted although it has the new settings already. Each registration raises the row's token; who was replaced by a
later one can neither end nor fail it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, insert, or_, select, update

from airflow_provider_rfr.store.tables import USE_HASHES, USES

RUNNING: Final = "running"
DEFERRED: Final = "deferred"
STALLED: Final = "stalled"
IDLE: Final = "idle"
_UNREAD: Final = "unread"
"""The hash of a copy that is yet to be read."""
_SILENT: Final = 600_000
"""Milliseconds without a word after which a task is dead: it says every two seconds that it lives."""
_KEPT: Final = 500
"""Characters of an error."""
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
        """The key of what it uses."""
        return f"{self.dag_id}/{self.run_id}/{self.task_id}/{self.map_index}"

    def __str__(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} ({self.run_id})"


@dataclass(frozen=True, slots=True)
class UsedConnection:
    """A connection as a task uses it.

    :ivar via: ids on the way to it, from the one that the task names, e.g. ``broker > tunnel``
    :ivar running: hash of the copy that the task has
    :ivar wanted: hash of the one that it ought to have, None for the same
    """

    conn_id: str
    via: str
    running: str
    wanted: str | None = None

    @property
    def is_stale(self) -> bool:
        """Whether the task runs with another copy than it ought to."""
        return self.wanted is not None and self.wanted != self.running


@dataclass(frozen=True, slots=True)
class Use:
    """A task that uses connections.

    :ivar state: running, deferred (the triggerer follows it), stalled (it failed), idle (it ended well)
    :ivar token: of its newest registration
    :ivar error: what it failed with, masked
    :ivar details: what the kind of task notes: tables, options that it can't adopt, how it is checked; no secrets
    :ivar seen_at: when it last said that it lives, in milliseconds since 1970
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
        """Whether it runs with another copy of any connection than it ought to."""
        return any(each.is_stale for each in self.connections)

    def of(self, conn_id: str) -> UsedConnection | None:
        """Its copy of that connection."""
        return next((each for each in self.connections if each.conn_id == conn_id), None)


def register_use(
    connection: Connection, now: int, task: TaskRef, kind: str, conn_ids: Sequence[str], details: Mapping[str, Any]
) -> Use:
    """Note that the task starts, before it reads these connections; returns the new row.

    What earlier runs of the task left behind goes.
    """
    before = load_use(connection, task)
    same = and_(_U.dag_id == task.dag_id, _U.task_id == task.task_id, _U.map_index == task.map_index)
    over = select(_U.consumer).where(same, _U.run_id != task.run_id, _U.state == IDLE)
    connection.execute(delete(USE_HASHES).where(or_(_H.consumer.in_(over), _H.consumer == task.consumer)))
    connection.execute(delete(USES).where(same, _U.run_id != task.run_id, _U.state == IDLE))
    values: dict[str, Any] = {"kind": kind, "state": RUNNING, "error": None, "error_kind": None}
    values |= {"details": json.dumps(dict(details)), "started_at": now, "seen_at": now}
    values["token"] = 1 if before is None else before.token + 1
    if before is None:
        names = {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": task.task_id, "map_index": task.map_index}
        connection.execute(insert(USES).values(consumer=task.consumer, **names, **values))
    else:
        connection.execute(update(USES).where(_U.consumer == task.consumer).values(**values))
    unread = [UsedConnection(name, name, _UNREAD) for name in dict.fromkeys(conn_ids)]
    note_copies(connection, task, values["token"], unread)
    made = load_use(connection, task)
    assert made is not None
    return made


def note_copies(connection: Connection, task: TaskRef, token: int, copies: Sequence[UsedConnection]) -> None:
    """Note what the task read; what was wanted of it meanwhile stays."""
    found = load_use(connection, task)
    if found is None or found.token != token:
        return
    for each in copies:
        values = {"via": each.via, "running_hash": each.running}
        is_copy = and_(_H.consumer == task.consumer, _H.conn_id == each.conn_id)
        if not connection.execute(update(USE_HASHES).where(is_copy).values(**values)).rowcount:
            connection.execute(insert(USE_HASHES).values(consumer=task.consumer, conn_id=each.conn_id, **values))


def beat(connection: Connection, now: int, task: TaskRef, token: int) -> Use | None:
    """Say that the task lives; returns its row, None if a later registration replaced it."""
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
) -> Use | None:
    """Note how the task's registration ended; returns its row as it is then, None if a later one replaced it.

    One that ended well takes the place of earlier runs that failed: nobody waits for those any more.

    :param token: None for the newest one
    """
    found = load_use(connection, task)
    if found is None or token not in (None, found.token):
        return None
    kept = None if error is None else error[:_KEPT]
    values = {"state": state, "error": kept, "error_kind": error_kind, "seen_at": now}
    connection.execute(update(USES).where(_U.consumer == task.consumer).values(**values))
    if state == IDLE:
        same = and_(_U.dag_id == task.dag_id, _U.task_id == task.task_id, _U.map_index == task.map_index)
        dead = or_(_U.state == STALLED, and_(_U.state == RUNNING, _U.seen_at < now - _SILENT))
        began = select(_U.started_at).where(_U.consumer == task.consumer).scalar_subquery()
        over = list(connection.scalars(select(_U.consumer).where(same, dead, _U.started_at < began)))
        connection.execute(delete(USE_HASHES).where(_H.consumer.in_(over)))
        connection.execute(delete(USES).where(_U.consumer.in_(over)))
    return load_use(connection, task)


def want(connection: Connection, uses: Iterable[TaskRef], conn_id: str, wanted: str) -> None:
    """Note which copy of the connection those tasks ought to have; they find out by themselves."""
    for task in uses:
        is_copy = and_(_H.consumer == task.consumer, _H.conn_id == conn_id)
        changed = connection.execute(update(USE_HASHES).where(is_copy).values(wanted_hash=wanted)).rowcount
        if not changed:
            row = {"consumer": task.consumer, "conn_id": conn_id, "via": conn_id, "running_hash": _UNREAD}
            connection.execute(insert(USE_HASHES).values(**row, wanted_hash=wanted))


def load_use(connection: Connection, task: TaskRef) -> Use | None:
    """The task's row."""
    found = list_uses(connection, consumers=[task.consumer])
    return found[0] if found else None


def list_uses(
    connection: Connection, *, consumers: Sequence[str] | None = None, conn_ids: Iterable[str] | None = None
) -> list[Use]:
    """Uses in the order of their tasks; of all, or of those that are named.

    :param conn_ids: only what uses one of these connections
    """
    query = select(USES).order_by(_U.dag_id, _U.task_id, _U.map_index, _U.run_id)
    if consumers is not None:
        query = query.where(_U.consumer.in_(consumers))
    if conn_ids is not None:
        query = query.where(_U.consumer.in_(select(_H.consumer).where(_H.conn_id.in_(list(conn_ids)))))
    rows = connection.execute(query).all()
    copies: dict[str, list[UsedConnection]] = {}
    named = select(USE_HASHES).where(_H.consumer.in_([row.consumer for row in rows])).order_by(_H.conn_id)
    for row in connection.execute(named):
        made = UsedConnection(row.conn_id, row.via, row.running_hash, row.wanted_hash)
        copies.setdefault(row.consumer, []).append(made)
    return [_use(row, copies.get(row.consumer, [])) for row in rows]


def _use(row: Row[Any], copies: Sequence[UsedConnection]) -> Use:
    return Use(
        TaskRef(row.dag_id, row.run_id, row.task_id, row.map_index),
        row.kind,
        row.state,
        row.token,
        tuple(copies),
        row.error,
        row.error_kind,
        json.loads(row.details),
        row.seen_at,
    )
