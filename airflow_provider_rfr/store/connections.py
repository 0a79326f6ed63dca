"""Rows of tasks that use connections, and of alterations: hashes, references and masked values, no secrets.

A task registers before it reads its connections, so a concurrent change is always seen: at worst the task is restarted
although it has the new settings already. Each registration increments the row's token; a replaced registration can
neither end nor renew the row.

A row of the journal of alterations is open from the first look at a connection until its new definition is stored. A
row that is open although the connection's lease is free belongs to a process that died.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, delete, func, insert, or_, select, update

from airflow_provider_rfr.store.engine import in_chunks, insert_missing, upsert
from airflow_provider_rfr.store.leases import LeaseKind
from airflow_provider_rfr.store.tables import (
    ALTERATIONS,
    IDENTITIES,
    LEASES,
    MOVES,
    SECRETS,
    SETTINGS,
    USE_HASHES,
    USES,
)

RUNNING: Final = "running"
DEFERRED: Final = "deferred"
FAILED: Final = "failed"
IDLE: Final = "idle"
_UNREAD: Final = "unread"
"""A placeholder for the hash of a copy that the task has not read yet."""
_SILENT: Final = 600_000
"""Milliseconds without a heartbeat after which a task counts as dead; there is one every two seconds."""
_ERROR_LENGTH: Final = 500
_U: Final = USES.c
_H: Final = USE_HASHES.c


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task instance of Airflow; ``map_index`` is -1 if it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def consumer(self) -> str:
        """Return the key of the task in the control store."""
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
    :ivar token: token of its newest registration
    :ivar error: message of its failure, masked
    :ivar details: tables, options that the task can't adopt, how it is checked; no secrets
    :ivar seen_at: time of its last heartbeat, in milliseconds since 1970
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
    """Register the start of a task, before it reads these connections, and return the registration's token.

    The rows of earlier runs of the task that ended well are deleted.
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
    consumers = list(connection.scalars(select(_U.consumer).where(*same, *where)))
    for chunk in in_chunks(consumers):
        connection.execute(delete(USE_HASHES).where(_H.consumer.in_(chunk)))
        connection.execute(delete(USES).where(_U.consumer.in_(chunk)))


def note_copies(connection: Connection, task: TaskRef, token: int, copies: Sequence[UsedConnection]) -> None:
    """Store the hashes of the copies that the task read; those of the copies that it should have are not changed.

    Nothing is stored if a later registration replaced this one.
    """
    use = load_use(connection, task)
    if use is None or use.token != token:
        return
    for copy in copies:
        row = {"consumer": task.consumer, "conn_id": copy.conn_id, "via": copy.via, "running_hash": copy.running}
        upsert(connection, USE_HASHES, row)


def beat(connection: Connection, now: int, task: TaskRef, token: int) -> Use | None:
    """Store a heartbeat of the task, and return its row; None if a later registration replaced it."""
    use = load_use(connection, task)
    if use is None or use.token != token:
        return None
    connection.execute(update(USES).where(_U.consumer == task.consumer, _U.token == token).values(seen_at=now))
    return use


def end_use(
    connection: Connection,
    now: int,
    task: TaskRef,
    token: int | None,
    state: str,
    error: str | None = None,
    error_kind: str | None = None,
) -> None:
    """Store the end of the task's registration, unless a later one replaced it.

    If it ended well, the rows of earlier runs that failed or died are deleted: these runs will not be continued.

    :param token: token of the registration; None for the newest one
    """
    use = load_use(connection, task)
    if use is None or token not in (None, use.token):
        return
    kept = None if error is None else error[:_ERROR_LENGTH]
    values = {"state": state, "error": kept, "error_kind": error_kind, "seen_at": now}
    connection.execute(update(USES).where(_U.consumer == task.consumer).values(**values))
    if state == IDLE:
        dead = or_(_U.state == FAILED, and_(_U.state == RUNNING, _U.seen_at < now - _SILENT))
        own = USES.alias("own")
        began = select(own.c.started_at).where(own.c.consumer == task.consumer).scalar_subquery()
        _delete_uses(connection, task, dead, _U.started_at < began)


def set_wanted_hash(connection: Connection, uses: Iterable[TaskRef], conn_id: str, wanted: str) -> None:
    """Store the hash of the copy that these tasks should have; running tasks read it with their heartbeats."""
    row = {"conn_id": conn_id, "via": conn_id, "running_hash": _UNREAD, "wanted_hash": wanted}
    for task in uses:
        upsert(connection, USE_HASHES, {**row, "consumer": task.consumer}, "wanted_hash")


def load_use(connection: Connection, task: TaskRef) -> Use | None:
    return next(iter(list_uses(connection, consumers=[task.consumer])), None)


def forget_connection(connection: Connection, conn_id: str) -> None:
    """Delete the hashes of the copies of the connection, of all tasks."""
    connection.execute(delete(USE_HASHES).where(_H.conn_id == conn_id))


def list_uses(connection: Connection, *, consumers: Sequence[str] | None = None) -> list[Use]:
    """Return uses in the order of their tasks: all of them, or those of the given consumers."""
    if consumers is None:
        uses = _uses(connection, select(USES), select(USE_HASHES))
    else:
        uses = []
        for chunk in in_chunks(consumers):
            of_chunk = select(USES).where(_U.consumer.in_(chunk)), select(USE_HASHES).where(_H.consumer.in_(chunk))
            uses += _uses(connection, *of_chunk)
    return sorted(uses, key=lambda use: (use.task.dag_id, use.task.task_id, use.task.map_index, use.task.run_id))


def _uses(connection: Connection, used: Select[Any], hashes: Select[Any]) -> list[Use]:
    copies: dict[str, list[UsedConnection]] = {}
    for row in connection.execute(hashes.order_by(_H.conn_id)):
        copy = UsedConnection(row.conn_id, row.via, row.running_hash, row.wanted_hash)
        copies.setdefault(row.consumer, []).append(copy)
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
        for row in connection.execute(used)
    ]


_A: Final = ALTERATIONS.c
_NOTES: Final = (SECRETS, IDENTITIES, MOVES)
_ANY_CONTENT: Final = ""
"""A content hash for the name of another API, which is valid whatever content Airflow's forms and commands store."""


class AlterationState(str, Enum):
    """The state of an alteration in the journal."""

    OPEN = "open"
    STORED = "stored"
    """The new definition is stored, and tasks that use the connection are being restarted."""
    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    CONFLICT = "conflict"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AlterationRecord:
    """One alteration in the audit; nothing in it is secret.

    :ivar state: value of an :class:`AlterationState`
    :ivar options: by name, values before and after, masked
    :ivar validated: whether the new settings were tried before they were stored; None if that was not reached
    :ivar dependents: what uses the connection, and the outcome of each
    :ivar started_at: milliseconds since 1970
    """

    id: int
    conn_id: str
    actor: str
    state: str
    statement: str
    options: Mapping[str, Any]
    validated: bool | None
    detail: str | None
    old_hash: str | None
    new_hash: str | None
    dependents: Sequence[Mapping[str, Any]]
    started_at: int
    ended_at: int | None


def begin_alteration(connection: Connection, now: int, conn_id: str, actor: str, statement: str) -> int:
    """Insert a row for an open alteration, and return its id."""
    row = {"conn_id": conn_id, "actor": actor[:250], "state": AlterationState.OPEN.value, "statement": statement}
    result = connection.execute(insert(ALTERATIONS).values(**row, options="{}", dependents="[]", started_at=now))
    assert result.inserted_primary_key is not None
    return int(result.inserted_primary_key[0])


def note_alteration(connection: Connection, now: int, number: int, state: AlterationState, **values: Any) -> None:
    """Update the state of an alteration, and other columns of its row."""
    for name in ("options", "dependents"):
        if name in values:
            values[name] = json.dumps(values[name])
    ended = None if state in (AlterationState.OPEN, AlterationState.STORED) else now
    connection.execute(update(ALTERATIONS).where(_A.id == number).values(state=state.value, ended_at=ended, **values))


def reopen_alteration(connection: Connection, number: int) -> None:
    """Open an alteration again if it was settled as failed, because its change was stored after that."""
    failed = (_A.id == number, _A.state == AlterationState.FAILED.value)
    values = {"state": AlterationState.OPEN.value, "detail": None, "ended_at": None}
    connection.execute(update(ALTERATIONS).where(*failed).values(**values))


def open_alterations(connection: Connection, conn_id: str) -> list[AlterationRecord]:
    """Return the connection's open alterations, the oldest first.

    The processes of all of them have died or lost the lease, except that of its holder.
    """
    query = select(ALTERATIONS).where(_A.conn_id == conn_id, _A.state == AlterationState.OPEN.value)
    return [_record(row) for row in connection.execute(query.order_by(_A.id))]


def last_change(connection: Connection, conn_id: str, option: str, since: int, until: int) -> int | None:
    """Return the time in milliseconds at which an alteration last stored another value of the option.

    :returns: None if there was none between ``since`` and ``until``
    """
    ended, stored = func.coalesce(_A.ended_at, _A.started_at), (AlterationState.STORED, AlterationState.APPLIED)
    query = select(_A.options, ended.label("ended")).where(_A.conn_id == conn_id, ended.between(since, until))
    rows = connection.execute(query.where(_A.state.in_([state.value for state in stored])))
    return max((row.ended for row in rows if option in json.loads(row.options)), default=None)


def concurrent_alterations(connection: Connection, now: int, conn_id: str) -> list[AlterationRecord]:
    """Return alterations of other connections that are under way."""
    is_leased = (LEASES.c.kind == LeaseKind.CONNECTION.value) & (LEASES.c.name == _A.conn_id) & (LEASES.c.until >= now)
    query = select(ALTERATIONS).join(LEASES, is_leased)
    rows = connection.execute(query.where(_A.conn_id != conn_id, _A.state == AlterationState.OPEN.value))
    return [_record(row) for row in rows]


def list_alterations(connection: Connection, conn_id: str | None = None, limit: int = 100) -> list[AlterationRecord]:
    """Return alterations of a connection, or of all connections without an id, the newest first."""
    query = select(ALTERATIONS).order_by(_A.id.desc()).limit(limit)
    if conn_id is not None:
        query = query.where(_A.conn_id == conn_id)
    return [_record(row) for row in connection.execute(query)]


def _record(row: Any) -> AlterationRecord:
    values = dict(row._mapping)
    for name in ("options", "dependents"):
        values[name] = json.loads(values[name])
    values["validated"] = None if row.validated is None else bool(row.validated)
    return AlterationRecord(**values)


def installation_salt(connection: Connection) -> str:
    """Return the salt that makes hashes of this installation differ from those of others; create it on first use."""
    row = {"name": "connection_salt", "value": secrets.token_hex(16)}
    insert_missing(connection, SETTINGS, [row])
    return str(connection.execute(select(SETTINGS.c.value).where(SETTINGS.c.name == row["name"])).scalar_one())


class ConnectionNotes:
    """Data on a connection that Airflow does not store: references to secrets, its upstream, its former addresses."""

    def __init__(self, connection: Connection, conn_id: str) -> None:
        self._connection = connection
        self._conn_id = conn_id

    def secret_references(self) -> dict[str, str]:
        """Return the references to secrets, by the option that was set by a reference."""
        query = select(SECRETS.c.option, SECRETS.c.reference).where(SECRETS.c.conn_id == self._conn_id)
        return {row.option: row.reference for row in self._connection.execute(query)}

    def set_secret_references(self, references: Mapping[str, str]) -> None:
        self._replace(SECRETS, [{"option": name, "reference": reference} for name, reference in references.items()])

    def identity(self) -> str | None:
        """Return the hash of the upstream that the connection led to when it was last asked; None if it is unknown."""
        query = select(IDENTITIES.c.identity).where(IDENTITIES.c.conn_id == self._conn_id)
        return self._connection.execute(query).scalar_one_or_none()

    def set_identity(self, now: int, identity: str | None) -> None:
        """Replace the hash of the upstream; None if it is unknown."""
        self._replace(IDENTITIES, [] if identity is None else [{"identity": identity, "seen_at": now}])

    def former_places(self, content: str) -> list[dict[str, Any]]:
        """Return former addresses, the oldest first, if the last alteration stored this content.

        If the connection was pointed at another API, that API's name is among them, even if others stored the content.

        :param content: hash of the connection's content
        """
        of_content = MOVES.c.content_hash.in_((content, _ANY_CONTENT))
        query = select(MOVES.c.places).where(MOVES.c.conn_id == self._conn_id, of_content)
        newest = self._connection.execute(query.order_by(MOVES.c.content_hash.desc())).scalars().first()
        places: list[dict[str, Any]] = json.loads(newest or "[]")
        return places

    def set_former_places(self, content: str, places: Sequence[Mapping[str, Any]]) -> None:
        """Store the former addresses, before this content is stored; nothing in them is secret."""
        rows = [{"content_hash": content, "places": json.dumps(list(places))}] if places else []
        self._replace(MOVES, rows, MOVES.c.content_hash == content)

    def keep_former_places(self, content: str) -> None:
        """Delete the former addresses for other contents, after this one is stored; the name of another API stays."""
        upstream = [place for place in self.former_places(content) if "upstream" in place]
        rows = [{"content_hash": _ANY_CONTENT, "places": json.dumps(upstream)}] if upstream else []
        self._replace(MOVES, rows, MOVES.c.content_hash != content)

    def forget(self) -> None:
        """Delete all data, so that a new connection of this name begins without any."""
        for notes in _NOTES:
            self._replace(notes, [])

    def rename(self, new: str) -> None:
        """Move all data to a new name, replacing those of a former connection of that name."""
        ConnectionNotes(self._connection, new).forget()
        for notes in _NOTES:
            self._connection.execute(update(notes).where(notes.c.conn_id == self._conn_id).values(conn_id=new))

    def _replace(self, notes: Table, rows: Sequence[Mapping[str, Any]], *where: ColumnElement[bool]) -> None:
        self._connection.execute(delete(notes).where(notes.c.conn_id == self._conn_id, *where))
        if rows:
            self._connection.execute(insert(notes), [{"conn_id": self._conn_id, **row} for row in rows])
