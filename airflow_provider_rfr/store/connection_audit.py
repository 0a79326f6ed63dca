"""Audit and journal of alterations, and notes on connections outside of Airflow: hashes and references only.

A row of the journal is open from the first look at the connection until its new definition is stored. One that is open
although the connection's lease is free belongs to a process that died.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, delete, func, insert, select, update

from airflow_provider_rfr.store._tables import ALTERATIONS, IDENTITIES, LEASES, MOVES, SECRETS, SETTINGS
from airflow_provider_rfr.store.engine import insert_missing
from airflow_provider_rfr.store.leases import LeaseKind

_A: Final = ALTERATIONS.c
_NOTES: Final = (SECRETS, IDENTITIES, MOVES)


class AlterationState(str, Enum):
    OPEN = "open"
    STORED = "stored"
    """What uses the connection is being restarted."""
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
    """Open a row, and return its number."""
    row = {"conn_id": conn_id, "actor": actor[:250], "state": AlterationState.OPEN.value, "statement": statement}
    made = connection.execute(insert(ALTERATIONS).values(**row, options="{}", dependents="[]", started_at=now))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def note_alteration(connection: Connection, now: int, number: int, state: AlterationState, **values: Any) -> None:
    """Note the state of an alteration, and other columns of its row."""
    for name in ("options", "dependents"):
        if name in values:
            values[name] = json.dumps(values[name])
    ended = None if state in (AlterationState.OPEN, AlterationState.STORED) else now
    connection.execute(update(ALTERATIONS).where(_A.id == number).values(state=state.value, ended_at=ended, **values))


def open_alterations(connection: Connection, conn_id: str) -> list[AlterationRecord]:
    """Return the connection's open alterations, the oldest first.

    The processes of all of them have died, except that of the lease's holder.
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
    held = (LEASES.c.kind == LeaseKind.CONNECTION.value) & (LEASES.c.name == _A.conn_id) & (LEASES.c.until >= now)
    query = select(ALTERATIONS).join(LEASES, held)
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
    """Notes on a connection outside of Airflow: references of secrets, its upstream, its former addresses."""

    def __init__(self, connection: Connection, conn_id: str) -> None:
        self._connection = connection
        self._conn_id = conn_id

    def secret_references(self) -> dict[str, str]:
        """Return the references to the secrets that were set by reference, by option."""
        found = select(SECRETS.c.option, SECRETS.c.reference).where(SECRETS.c.conn_id == self._conn_id)
        return {row.option: row.reference for row in self._connection.execute(found)}

    def set_secret_references(self, references: Mapping[str, str]) -> None:
        self._replace(SECRETS, [{"option": name, "reference": reference} for name, reference in references.items()])

    def identity(self) -> str | None:
        """Return the hash of the upstream that the connection led to when it was last asked; None if it is unknown."""
        found = select(IDENTITIES.c.identity).where(IDENTITIES.c.conn_id == self._conn_id)
        return self._connection.execute(found).scalar_one_or_none()

    def set_identity(self, now: int, identity: str | None) -> None:
        """Replace the upstream; None: it is unknown."""
        self._replace(IDENTITIES, [] if identity is None else [{"identity": identity, "seen_at": now}])

    def former_places(self, content: str) -> list[dict[str, Any]]:
        """Return former addresses, the oldest first, if the last alteration stored this content."""
        found = select(MOVES.c.places).where(MOVES.c.conn_id == self._conn_id, MOVES.c.content_hash == content)
        places: list[dict[str, Any]] = json.loads(self._connection.execute(found).scalar() or "[]")
        return places

    def set_former_places(self, content: str, places: Sequence[Mapping[str, Any]]) -> None:
        """Note the former addresses before this content is stored; nothing in them is secret."""
        rows = [{"content_hash": content, "places": json.dumps(list(places))}] if places else []
        self._replace(MOVES, rows, MOVES.c.content_hash == content)

    def keep_former_places(self, content: str) -> None:
        """Forget the former addresses that were noted for other contents."""
        self._replace(MOVES, [], MOVES.c.content_hash != content)

    def forget(self) -> None:
        """Forget everything: another connection of this name begins anew."""
        for notes in _NOTES:
            self._replace(notes, [])

    def rename(self, new: str) -> None:
        """Move everything to a new name, replacing the notes of a former connection of that name."""
        ConnectionNotes(self._connection, new).forget()
        for notes in _NOTES:
            self._connection.execute(update(notes).where(notes.c.conn_id == self._conn_id).values(conn_id=new))

    def _replace(self, notes: Table, rows: Sequence[Mapping[str, Any]], *where: ColumnElement[bool]) -> None:
        self._connection.execute(delete(notes).where(notes.c.conn_id == self._conn_id, *where))
        if rows:
            self._connection.execute(insert(notes), [{"conn_id": self._conn_id, **row} for row in rows])
