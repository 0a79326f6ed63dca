"""Rows of sinks: registered by deploys, moved by the run that holds the sink's lease.

Each write of a run is made under its lease, so a run that lost it moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, delete, select, update

from airflow_provider_rfr.exceptions import SinkBusyError
from airflow_provider_rfr.store.engine import insert_missing
from airflow_provider_rfr.store.leases import Grant, LeaseKind, lease_state, revoke_lease, take_lease
from airflow_provider_rfr.store.tables import SINKS


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A sink as the store knows it.

    :ivar source: id of the exported object
    :ivar physical: uuid of the table that the cursor is a snapshot of
    :ivar cursor: snapshot up to which everything was sent; None: the first window sends what the table holds
    :ivar sequence: the cursor's sequence number, where it is known
    :ivar pins: the sent columns, as :class:`~airflow_provider_rfr.sinks.windows.SentColumns` writes them
    :ivar since: when it was decided, in milliseconds since 1970, that what was there then is not to be sent; None once
        the cursor is behind that
    :ivar deploy_id: of the deploy that emptied the source
    :ivar decided_by: what was decided last, and about what: ``<deploy, or new source>/<decision>``
    :ivar held_at: since when it waits for a decision; None: it does not
    :ivar behind: snapshot that replaced the rows, behind which a sink continues that is not to send them
    :ivar round: goes up when everything is sent again; part of each batch's id
    :ivar window: the snapshots that are being sent, as JSON; None between windows
    :ivar batches: acknowledged, in all; ``rows`` likewise
    """

    uuid: UUID
    name: str
    source: UUID
    physical: str | None
    cursor: int | None
    sequence: int | None
    pins: str
    on_replace: str | None
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
    created_at: int


def insert_sink(
    connection: Connection, identity: UUID, name: str, source: UUID, pins: str, on_replace: str | None, now: int
) -> None:
    """Insert a sink that begins with the present rows of its source; an existing one is not changed."""
    row = {"uuid": str(identity), "name": name, "source": str(source), "pins": pins, "on_replace": on_replace}
    insert_missing(connection, SINKS, [{**row, "created_at": now, "round": 0, "batches": 0, "rows": 0}])


def load_sink(connection: Connection, identity: UUID) -> SinkRow | None:
    """Return the sink's row; a writing transaction locks it until its end."""
    query = select(SINKS).where(SINKS.c.uuid == str(identity)).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _row(row)


def all_sinks(connection: Connection) -> tuple[SinkRow, ...]:
    rows = connection.execute(select(SINKS).order_by(SINKS.c.name, SINKS.c.uuid)).mappings()
    return tuple(_row(row) for row in rows)


def move_sink(connection: Connection, identity: UUID, **values: Any) -> None:
    """Write columns of a sink, for the run that holds its lease.

    The run has locked its lease by then, where a deploy locks the row first: of two that meet so, PostgreSQL ends one,
    and the store runs it again.
    """
    connection.execute(update(SINKS).where(SINKS.c.uuid == str(identity)).values(**values))


def change_sink(connection: Connection, identity: UUID, **values: Any) -> None:
    """Update a sink unconditionally, and revoke its lease; a deploy overrides a running export."""
    move_sink(connection, identity, **values)
    revoke_lease(connection, LeaseKind.SINK, str(identity))


def delete_sink(connection: Connection, identity: UUID) -> None:
    """Forget a sink, and revoke its lease; one that isn't there is not an error."""
    connection.execute(delete(SINKS).where(SINKS.c.uuid == str(identity)))
    revoke_lease(connection, LeaseKind.SINK, str(identity))


def take_sink_lease(connection: Connection, now: int, identity: UUID, owner: str, milliseconds: int) -> Grant | None:
    """Take the lease of a sink; None if there is no such sink.

    :raises SinkBusyError: another run holds it
    """
    row = load_sink(connection, identity)
    if row is None:
        return None
    key = (LeaseKind.SINK, str(identity))
    grant = take_lease(connection, now, *key, owner, milliseconds)
    if grant is None:
        lease = lease_state(connection, *key)
        raise SinkBusyError(row.name, lease.holder or "", (lease.until or now) - now)
    return grant


def _row(row: Mapping[Any, Any]) -> SinkRow:
    values = dict(row)
    return SinkRow(uuid=UUID(values.pop("uuid")), source=UUID(values.pop("source")), **values)
