"""The run of a sink, and the registered sinks: decisions about them, and the snapshots that they protect.

A run goes window by window and batch by batch, with the cursor stored after each acknowledgement. Rows that a killed
run had sent and not stored, at most one batch, are sent again with the same id.

Decisions of deploys and users are made in the caller's transactions, and nothing is sent for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr import exceptions as errors
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.lake.commits import write_table_properties
from airflow_provider_rfr.lake.expiry import hold_property
from airflow_provider_rfr.lake.rows import SourceTable
from airflow_provider_rfr.sinks.spec import CHOICES, SinkSpec, SinkState, findings
from airflow_provider_rfr.sinks.targets import FileSender, HttpSender, HttpTarget
from airflow_provider_rfr.sinks.windows import SentColumns, SinkWindow, batches_of, cursor_at, hold_values, next_values
from airflow_provider_rfr.store import deploys as rows
from airflow_provider_rfr.store import deploys as store
from airflow_provider_rfr.store.deploys import SinkRow
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Lease, default_holder

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
    before = SentColumns.loads(row.pins) if row is not None and not moved else None
    sent = SentColumns.of(spec, columns, before, renamed).dumps()
    if row is None:
        store.insert_sink(connection, identity, name, source, sent, spec.on_replace, now_ms)
        return
    values: dict[str, Any] = {"name": name, "pins": sent, "on_replace": spec.on_replace, "source": str(source)}
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
            needed = table.sequence(at if row.window is None else SinkWindow.loads(row.window).needs)
        holds[f"{begin}{row.name}{end}"] = str(needed or 0)
    if holds:
        write_table_properties(catalog, name, holds)


_LEASE_MILLISECONDS: Final = 300_000
"""After which another run may take over from one that was killed."""
_DECIDE: Final = "decide what becomes of it: resume_from_new or resend"


@dataclass(frozen=True, slots=True)
class SinkRun:
    """The batches that a run got acknowledged, their rows, the sink's cursor, and whether everything was sent."""

    batches: int
    rows: int
    cursor: int | None
    done: bool = True


def run_sink(
    identity: UUID,
    name: str,
    spec: SinkSpec,
    *,
    catalog: Catalog,
    store: ControlStore,
    target: HttpTarget | None = None,
    source_table: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SinkRun:
    """Send the rows that were added since the last run.

    :param target: the connection of an HTTP sink
    :param source_table: the table with the source's rows, if it is not under the source's name
    :param stop: is called before each batch; the run ends if it returns True
    :raises ConfigurationError: the declaration is wrong, or was never deployed
    :raises SinkError: it is held, another run has it, its target refuses a batch, or its source has changed
    """
    if problems := tuple(findings(spec)):
        raise errors.ConfigurationError.of(problems)
    if (spec.to == "http") != (target is not None):
        raise errors.ConfigurationError("target", f"is not one of a sink to {spec.to}", "HTTP alone has a connection")
    sender = FileSender(spec.settings) if target is None else HttpSender(spec.settings, target)
    with closing(sender):
        of = (identity, default_holder(), _LEASE_MILLISECONDS)
        grant = store.run(lambda connection: rows.take_sink_lease(connection, store.now(connection), *of))
        if grant is None:
            remedy = "deploy first, e.g. airflow rfr builtins apply"
            raise errors.ConfigurationError("sink", f"{name} is not registered in the control store", remedy)
        with Lease(store, grant, lambda ours, present: errors.SinkLeaseLostError(name)) as lease:
            return Run(store, lease, identity, name, catalog, source_table or spec.source, spec, sender, stop).go()


@dataclass(frozen=True)
class Run:
    """One run of a sink that no other run moves; ``source`` is the name of the source's table."""

    store: ControlStore
    lease: Lease
    identity: UUID
    name: str
    catalog: Catalog
    source: str
    spec: SinkSpec
    sender: FileSender | HttpSender
    stop: Callable[[], bool]

    def go(self) -> SinkRun:
        first = self._row()
        # Before anything is read: an expiration that runs meanwhile must keep the snapshots that are still to be sent.
        hold_snapshots(self.catalog, self.source, self.identity, first)
        done = self._send_all()
        row = self._row()
        # The cursor has moved: what only this sink needed may expire now.
        hold_snapshots(self.catalog, self.source, self.identity, row)
        return SinkRun(row.batches - first.batches, row.rows - first.rows, row.cursor, done)

    def move(self, **values: Any) -> None:
        """Write columns of the sink's row, unless its lease is lost; with a reason to hold it, also the time."""

        def write(connection: Connection, now: int) -> None:
            since = {"held_at": now} if "held_reason" in values else {}
            rows.move_sink(connection, self.identity, **values, **since)

        self.lease.write(write)

    def _send_all(self) -> bool:
        """Send until no rows are left, or until the run has to stop, and return whether everything was sent."""
        while True:
            row = self._row()
            if row.held_at is not None:
                raise errors.SinkHeldError(row.name, f"it is held: {row.held_reason}", _DECIDE)
            table = self._table(row)
            try:
                window = None if row.window is None or row.since is not None else SinkWindow.loads(row.window)
                values = next_values(row, table, self.spec) if window is None else {}
                if values is None or self.stop():
                    return values is None
                if window is None:
                    self.move(**values)
                else:
                    self._send(row, window, table)
            except errors.SnapshotsExpiredError as error:
                problem = f"rows that it has not sent can't be known any more: {error}"
                self.move(**hold_values(problem, None))
                raise errors.CursorExpiredError(row.name, problem, _DECIDE) from None

    def _row(self) -> rows.SinkRow:
        with self.store.read() as connection:
            row = rows.load_sink(connection, self.identity)
        if row is None:
            raise errors.SinkLeaseLostError(self.name)
        return row

    def _table(self, row: rows.SinkRow) -> SourceTable:
        table = SourceTable.load(self.catalog, self.source)
        if table is None:
            raise errors.SinkError(row.name, f"its source {self.source} has no table", "deploy it or name another one")
        if row.since is None and row.physical not in (None, table.uuid):
            # A deploy that makes the table anew may not have come to say so yet.
            problem = "its source is another table now, and nothing says where its cursor continues"
            raise errors.SinkError(row.name, problem, f"run it again after the deploy; if none is running, {_DECIDE}")
        return table

    def _send(self, row: rows.SinkRow, window: SinkWindow, table: SourceTable) -> None:
        sent = row.rows
        for acknowledged, batch in enumerate(batches_of(window, table, row), row.batches + 1):
            if self.stop():
                return
            self.lease.ensure()
            self.sender.send(batch)
            sent += batch.rows.num_rows
            after = replace(batch.window, part=batch.window.part + 1)
            at = cursor_at(window.after, table) if batch.last else {"window": after.dumps()}
            # The cursor moves only now: a run that dies before this sends the batch again, with the same id.
            self.move(**at, batches=acknowledged, rows=sent, last_batch=batch.id)
            if batch.last:
                return
        self.move(**cursor_at(window.after, table))
