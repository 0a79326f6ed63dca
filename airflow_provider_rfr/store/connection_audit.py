"""Alterations of connections: their lock, their journal and their audit are one row.

A row is open from the first look at the connection until its new definition is stored, and while it is, nobody else
alters the connection: a second one gets a conflict at once. A lease ends the lock of one that died.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, delete, insert, select, text, update

from airflow_provider_rfr.store.deliveries import insert_missing
from airflow_provider_rfr.store.tables import ALTERATIONS, IDENTITIES, MOVES, SECRETS, SETTINGS

OPEN: Final = "open"
STORED: Final = "stored"
APPLIED: Final = "applied"
UNCHANGED: Final = "unchanged"
REFUSED: Final = "refused"
CONFLICT: Final = "conflict"
FAILED: Final = "failed"
LEASE_SECONDS: Final = 30
_LOCK: Final = 0x5246_5243
_A: Final = ALTERATIONS.c


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change, as the audit tells it; nothing in it is secret.

    :ivar state: open, stored (what uses it is being restarted), applied, unchanged, refused, conflict or failed
    :ivar options: by name, what was there and what is there, masked
    :ivar validated: whether it was tried before it was stored; None where it never came to that
    :ivar dependents: what uses the connection, and what became of it
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


def installation_salt(connection: Connection) -> str:
    """What tells this installation's hashes from those of others; made when it is first asked for."""
    row = {"name": "connection_salt", "value": secrets.token_hex(16)}
    insert_missing(connection, SETTINGS, [row])
    return str(connection.execute(select(SETTINGS.c.value).where(SETTINGS.c.name == row["name"])).scalar_one())


def begin_alteration(connection: Connection, now: int, conn_id: str, actor: str, statement: str) -> int | None:
    """Open a row, and with it lock the connection; None while somebody else alters it."""
    if connection.dialect.name == "postgresql":
        # On SQLite the transaction has the write lock; here two could look at the same time.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    held = select(_A.id).where(_A.conn_id == conn_id, _A.state == OPEN, _A.lease_until >= now)
    if connection.execute(held.limit(1)).first() is not None:
        return None
    row: dict[str, Any] = {
        "conn_id": conn_id,
        "actor": actor[:250],
        "state": OPEN,
        "statement": statement,
        "options": "{}",
    }
    row |= {"dependents": "[]", "started_at": now, "lease_until": now + LEASE_SECONDS * 1000}
    made = connection.execute(insert(ALTERATIONS).values(**row))
    assert made.inserted_primary_key is not None
    return int(made.inserted_primary_key[0])


def holds(connection: Connection, now: int, alteration: int) -> bool:
    """Renew the lock; False if its lease ran out, so that somebody else may be at the connection."""
    held = (_A.id == alteration, _A.state == OPEN, _A.lease_until >= now)
    renewed = update(ALTERATIONS).where(*held).values(lease_until=now + LEASE_SECONDS * 1000)
    return connection.execute(renewed).rowcount == 1


def abandon(connection: Connection, now: int, alteration: int) -> None:
    """Give the lock back without a word on how it ended."""
    connection.execute(update(ALTERATIONS).where(_A.id == alteration).values(lease_until=now - 1))


def note_alteration(connection: Connection, now: int, alteration: int, state: str, **values: Any) -> None:
    """Note how far it is; every state but ``open`` gives the lock back."""
    for name in ("options", "dependents"):
        if name in values:
            values[name] = json.dumps(values[name])
    ended = None if state in (OPEN, STORED) else now
    values |= {"state": state, "ended_at": ended} | ({} if state == OPEN else {"lease_until": None})
    connection.execute(update(ALTERATIONS).where(_A.id == alteration).values(**values))


def interrupted(connection: Connection, now: int, conn_id: str) -> list[Alteration]:
    """Those that somebody began and did not end, and is not at any more."""
    found = select(ALTERATIONS).where(_A.conn_id == conn_id, _A.state == OPEN, _A.lease_until < now)
    return [_alteration(row) for row in connection.execute(found.order_by(_A.id))]


def open_beside(connection: Connection, now: int, alteration: int) -> list[Alteration]:
    """Those of other connections that somebody is at now."""
    found = select(ALTERATIONS).where(_A.id != alteration, _A.state == OPEN, _A.lease_until >= now)
    return [_alteration(row) for row in connection.execute(found.order_by(_A.id))]


def list_alterations(connection: Connection, conn_id: str | None = None, limit: int = 100) -> list[Alteration]:
    """The newest first."""
    query = select(ALTERATIONS).order_by(_A.id.desc()).limit(limit)
    if conn_id is not None:
        query = query.where(_A.conn_id == conn_id)
    return [_alteration(row) for row in connection.execute(query)]


def secret_references(connection: Connection, conn_id: str) -> dict[str, str]:
    """Where each secret option of the connection is kept, of those that were set by reference."""
    found = select(SECRETS.c.option, SECRETS.c.reference).where(SECRETS.c.conn_id == conn_id)
    return {row.option: row.reference for row in connection.execute(found)}


def note_secret_references(connection: Connection, conn_id: str, references: Mapping[str, str]) -> None:
    """Put these in the place of what was noted."""
    connection.execute(delete(SECRETS).where(SECRETS.c.conn_id == conn_id))
    rows = [{"conn_id": conn_id, "option": name, "reference": each} for name, each in references.items()]
    if rows:
        connection.execute(insert(SECRETS), rows)


def identity_of(connection: Connection, conn_id: str) -> str | None:
    """The upstream that the connection led to when it was last asked, as a hash."""
    found = select(IDENTITIES.c.identity).where(IDENTITIES.c.conn_id == conn_id)
    return connection.execute(found).scalar_one_or_none()


def note_identity(connection: Connection, now: int, conn_id: str, identity: str | None) -> None:
    """Note the upstream; None: nothing is known of it any more."""
    connection.execute(delete(IDENTITIES).where(IDENTITIES.c.conn_id == conn_id))
    if identity is not None:
        connection.execute(insert(IDENTITIES).values(conn_id=conn_id, identity=identity, seen_at=now))


def moves_of(connection: Connection, conn_id: str, content: str) -> list[dict[str, Any]]:
    """Where the connection led before, the oldest first, if its content is what the last alteration stored."""
    is_it = (MOVES.c.conn_id == conn_id, MOVES.c.content_hash == content)
    found = connection.execute(select(MOVES).where(*is_it)).first()
    if found is None:
        return []
    places: list[dict[str, Any]] = json.loads(found.places)
    return places


def note_move(connection: Connection, conn_id: str, content: str, places: Sequence[Mapping[str, Any]]) -> None:
    """Note where the connection led before it gets this content; nothing of it is secret."""
    connection.execute(delete(MOVES).where(MOVES.c.conn_id == conn_id, MOVES.c.content_hash == content))
    if places:
        row = {"conn_id": conn_id, "content_hash": content, "places": json.dumps([dict(each) for each in places])}
        connection.execute(insert(MOVES).values(**row))


def keep_move(connection: Connection, conn_id: str, content: str) -> None:
    """Forget where other contents of the connection led: it has this one now."""
    connection.execute(delete(MOVES).where(MOVES.c.conn_id == conn_id, MOVES.c.content_hash != content))


def rename_notes(connection: Connection, old: str, new: str) -> None:
    """Let what is noted of a connection follow its new name; what a former one of that name left behind goes."""
    for notes in (SECRETS, IDENTITIES, MOVES):
        connection.execute(delete(notes).where(notes.c.conn_id == new))
    connection.execute(update(SECRETS).where(SECRETS.c.conn_id == old).values(conn_id=new))
    connection.execute(update(IDENTITIES).where(IDENTITIES.c.conn_id == old).values(conn_id=new))
    connection.execute(update(MOVES).where(MOVES.c.conn_id == old).values(conn_id=new))


def _alteration(row: Any) -> Alteration:
    return Alteration(
        row.id,
        row.conn_id,
        row.actor,
        row.state,
        row.statement,
        json.loads(row.options),
        None if row.validated is None else bool(row.validated),
        row.detail,
        row.old_hash,
        row.new_hash,
        json.loads(row.dependents),
        row.started_at,
        row.ended_at,
    )
