"""The registered sinks: decisions of deploys and users about them, and the snapshots that they protect from expiration.

Decisions are made in the caller's transactions. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.lake.commits import write_table_properties
from airflow_provider_rfr.lake.expiry import hold_property
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.sinks._windows import Pins, Window
from airflow_provider_rfr.sinks.spec import CHOICES, SinkSpec, SinkState
from airflow_provider_rfr.store import sinks as store
from airflow_provider_rfr.store.sinks import SinkRow

_FREE: Final[Mapping[str, Any]] = {"held_at": None, "held_reason": None, "behind": None}
_FROM_THE_START: Final[Mapping[str, Any]] = {"cursor": None, "physical": None, "window": None, "deploy_id": None}


def sink_states(connection: Connection) -> tuple[SinkState, ...]:
    """Return the states of all sinks, sorted by name, as plans compare them."""
    rows = store.all_sinks(connection)
    return tuple(SinkState(row.uuid, row.name, row.source, row.cursor, row.on_replace) for row in rows)


def needed_physicals(connection: Connection) -> frozenset[str]:
    """Return the UUIDs of tables that a sink still has to read; garbage collection does not delete these tables."""
    return frozenset(all_sink.physical for all_sink in store.all_sinks(connection) if all_sink.physical is not None)


def register_sink(
    connection: Connection,
    identity: UUID,
    name: str,
    spec: SinkSpec,
    source: UUID,
    columns: Sequence[str],
    renamed: Mapping[str, str],
    now_ms: int,
) -> None:
    """Insert the sink's row, or change it to the declared state; a repetition changes nothing."""
    row = store.load_sink(connection, identity)
    moved = row is not None and row.source != source
    before = Pins.loads(row.pins) if row is not None and not moved else None
    pins = Pins.of(spec, columns, before, renamed).dumps()
    if row is None:
        store.insert_sink(connection, identity, name, source, pins, spec.on_replace, now_ms)
        return
    values: dict[str, Any] = {"name": name, "pins": pins, "on_replace": spec.on_replace, "source": str(source)}
    if moved:
        # A cursor means nothing in another table; what becomes of it is decided later in the deploy.
        values |= {**_FROM_THE_START, "behind": None, "held_at": now_ms, "held_reason": "it has another source now"}
    store.change_sink(connection, row.uuid, **values)


def decide_sink(connection: Connection, identity: UUID, choice: str, reason: str, now_ms: int, *, about: str) -> None:
    """Decide about a sink whose source was emptied or is another one; do nothing if the sink no longer exists.

    A repetition changes nothing, also by a later deploy.

    :param about: id of the deploy that emptied the source, as in the summary of its snapshots; or of the new source
    """
    row = store.load_sink(connection, identity)
    mark = f"{about}/{choice}"
    if row is None or row.decided_by == mark:
        return
    if choice != "hold":
        _decide(connection, row, choice, now_ms, about, decided_by=mark)
    elif row.behind is None:
        # One that is held for rows that others replaced continues behind those.
        held = {"held_at": now_ms, "held_reason": reason, "window": None} if row.held_at is None else {}
        store.change_sink(connection, row.uuid, **held, deploy_id=about, decided_by=mark)


def release_sink(connection: Connection, identity: UUID, choice: str, now_ms: int) -> None:
    """Decide about a sink that is held, or about any other: ``resend``, or ``resume_from_new``.

    ``resume_from_new`` sends the rows that were added since the source was replaced, or from now on if the sink is not
    held.
    """
    row = store.load_sink(connection, identity)
    if row is None:
        raise ConfigurationError("sink", f"no sink with the id {identity} is registered", "deploy it first")
    if choice not in CHOICES[1:]:
        raise ConfigurationError("choice", f"{choice!r} is unknown", f"one of {', '.join(CHOICES[1:])}")
    if choice != "resend" and row.behind is not None:
        store.change_sink(connection, row.uuid, **_FREE, window=None, cursor=row.behind, sequence=None)
    else:
        _decide(connection, row, choice, now_ms if row.held_at is None else row.held_at, row.deploy_id)


def _decide(connection: Connection, row: SinkRow, choice: str, since: int, about: str | None, **more: Any) -> None:
    values: dict[str, Any] = {"since": since, "deploy_id": about}
    if choice == "resend":
        values = {**_FROM_THE_START, "since": None, "round": row.round + 1}
    store.change_sink(connection, row.uuid, **_FREE, **values, **more)


def hold_snapshots(catalog: Catalog, name: str, identity: UUID, row: SinkRow | None = None) -> None:
    """Write from which sequence number on the sink needs the table of this name; without a row, that it needs none."""
    table = SourceTable.load(catalog, name)
    if table is None:
        return
    begin, end = hold_property("sink."), f".{identity.hex[:8]}"
    # Also under a name that it had.
    ours = (name for name in table.properties if name.startswith(begin) and name.endswith(end))
    holds: dict[str, str | None] = dict.fromkeys(ours)
    if row is not None:
        needed = None
        if row.since is None and row.physical in (None, table.uuid):
            at = table.head if row.cursor is None else row.cursor
            needed = table.sequence(at if row.window is None else Window.loads(row.window).needs)
        holds[f"{begin}{row.name}{end}"] = str(needed or 0)
    if holds:
        write_table_properties(catalog, name, holds)
