"""Rows of sinks: registered by deploys, moved by whoever holds the sink's lease.

A run takes the lease with a token that only goes up, and each of its writes names it. A lease that ran out is
anybody's: who lost it finds that out at its next write, and has moved nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, delete, insert, select, update

from airflow_provider_rfr.exceptions import SinkBusyError, SinkLeaseLostError
from airflow_provider_rfr.store.deliveries import insert_missing
from airflow_provider_rfr.store.tables import CURSOR_MAPS, SINKS


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A sink as the store knows it.

    :ivar source: id of the exported object
    :ivar physical: uuid of the table that the cursor is a snapshot of
    :ivar cursor: snapshot up to which everything was sent; None: the first window sends what the table holds
    :ivar sequence: the cursor's sequence number, where it is known
    :ivar pins: the sent columns, as :class:`~airflow_provider_rfr.builtins.sinks.windows.Pins` writes them
    :ivar start: ``new``: to be put behind what was there when it was decided, before anything is sent
    :ivar since: when that was decided, in milliseconds since 1970
    :ivar deploy_id: of the deploy that emptied the source
    :ivar decided_by: what was decided last, and about what: ``<deploy, or new source>/<decision>``
    :ivar held_at: since when it waits for a decision; None: it does not
    :ivar behind: snapshot that replaced the rows, so that a sink which is not to send them goes on behind it
    :ivar round: goes up when everything is sent again; part of each batch's id
    :ivar window: the snapshots that are being sent, as JSON; None between windows
    :ivar batches: acknowledged, in all; ``rows`` likewise
    :ivar token: of the last lease
    """

    uuid: UUID
    name: str
    source: UUID
    physical: str | None
    cursor: int | None
    sequence: int | None
    pins: str
    on_replace: str | None
    start: str | None
    since: int | None
    deploy_id: str | None
    decided_by: str | None
    held_at: int | None
    held_reason: str | None
    behind: int | None
    round: int
    window: str | None
    batches: int
    rows: int
    last_batch: str | None
    sent_at: int | None
    token: int
    lease_owner: str | None
    lease_until: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class CursorMap:
    """Where the cursors of one table go on in another one.

    :ivar old_name: by which the old table can still be read; None: it can't
    """

    source: UUID
    old_physical: str
    old_snapshot: int | None
    old_name: str | None
    new_physical: str
    new_snapshot: int | None


@dataclass(frozen=True, slots=True)
class SinkLease:
    """The right to move one sink.

    :ivar milliseconds: that it lasts from its last renewal
    """

    uuid: UUID
    name: str
    token: int
    owner: str
    milliseconds: int


def insert_sink(
    connection: Connection, identity: UUID, name: str, source: UUID, pins: str, on_replace: str | None, now: int
) -> None:
    """Register a sink that begins with what its source holds; one that is there stays as it is."""
    row = {"uuid": str(identity), "name": name, "source": str(source), "pins": pins, "on_replace": on_replace}
    insert_missing(connection, SINKS, [{**row, "created_at": now, "round": 0, "batches": 0, "rows": 0, "token": 0}])


def load_sink(connection: Connection, identity: UUID) -> SinkRow | None:
    """The sink's row; in a writing transaction it is locked until its end."""
    found = connection.execute(select(SINKS).where(SINKS.c.uuid == str(identity)).with_for_update()).mappings()
    row = found.one_or_none()
    return None if row is None else _row(row)


def all_sinks(connection: Connection) -> tuple[SinkRow, ...]:
    """Every sink, by name."""
    rows = connection.execute(select(SINKS).order_by(SINKS.c.name, SINKS.c.uuid)).mappings()
    return tuple(_row(each) for each in rows)


def change_sink(connection: Connection, identity: UUID, **values: Any) -> None:
    """Write columns of a sink, whoever is at it: a deploy's decisions come before what is being sent.

    The lease is taken from whoever holds it, as it would go on from what is no longer true.
    """
    taken = {"lease_owner": None, "lease_until": None, "token": SINKS.c.token + 1}
    connection.execute(update(SINKS).where(SINKS.c.uuid == str(identity)).values(**values, **taken))


def delete_sink(connection: Connection, identity: UUID) -> None:
    """Forget a sink; one that isn't there is no mistake."""
    connection.execute(delete(SINKS).where(SINKS.c.uuid == str(identity)))


def take_lease(connection: Connection, now: int, identity: UUID, owner: str, milliseconds: int) -> SinkLease | None:
    """The lease of a sink; None where there is no such sink.

    :raises SinkBusyError: somebody else holds it
    """
    row = load_sink(connection, identity)
    if row is None:
        return None
    # A lease that ends later than any that begins now was written by a clock that ran ahead.
    if row.lease_until is not None and now < row.lease_until <= now + 2 * milliseconds:
        raise SinkBusyError(row.name, row.lease_owner or "", row.lease_until - now)
    lease = SinkLease(identity, row.name, row.token + 1, owner, milliseconds)
    values = {"token": lease.token, "lease_owner": owner, "lease_until": now + milliseconds}
    connection.execute(update(SINKS).where(SINKS.c.uuid == str(identity)).values(**values))
    return lease


def move_sink(connection: Connection, now: int, lease: SinkLease, **values: Any) -> None:
    """Write columns of the sink, and renew the lease.

    :raises SinkLeaseLostError: it is somebody else's now, or a deploy changed the sink; nothing was written
    """
    ours = (SINKS.c.uuid == str(lease.uuid)) & (SINKS.c.token == lease.token)
    change = update(SINKS).where(ours).values(**values, lease_until=now + lease.milliseconds)
    if connection.execute(change).rowcount != 1:
        raise SinkLeaseLostError(lease.name)


def release_lease(connection: Connection, lease: SinkLease) -> None:
    """Give the lease back, if it is still ours."""
    ours = (SINKS.c.uuid == str(lease.uuid)) & (SINKS.c.token == lease.token)
    connection.execute(update(SINKS).where(ours).values(lease_owner=None, lease_until=None))


def write_map(connection: Connection, found: CursorMap, now: int) -> None:
    """Note where a table's cursors go on, in the place of what was noted of that table before."""
    connection.execute(delete(CURSOR_MAPS).where(CURSOR_MAPS.c.old_physical == found.old_physical))
    values = {
        "old_physical": found.old_physical,
        "source": str(found.source),
        "old_snapshot": found.old_snapshot,
        "old_name": found.old_name,
        "new_physical": found.new_physical,
        "new_snapshot": found.new_snapshot,
    }
    connection.execute(insert(CURSOR_MAPS).values(**values, created_at=now))


def load_map(connection: Connection, old_physical: str) -> CursorMap | None:
    """Where the cursors of this table go on; None where nobody said so."""
    row = connection.execute(select(CURSOR_MAPS).where(CURSOR_MAPS.c.old_physical == old_physical)).one_or_none()
    if row is None:
        return None
    return CursorMap(
        UUID(row.source), row.old_physical, row.old_snapshot, row.old_name, row.new_physical, row.new_snapshot
    )


def _row(found: Mapping[Any, Any]) -> SinkRow:
    values = dict(found)
    return SinkRow(uuid=UUID(values.pop("uuid")), source=UUID(values.pop("source")), **values)
