"""Running a sink: window by window, batch by batch, the cursor stored after each acknowledgement.

What a killed run had sent and not stored, at most one batch, is sent again with the same id."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    CursorExpiredError,
    SinkError,
    SinkHeldError,
    SinkLeaseLostError,
    SnapshotsExpiredError,
)
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.sinks._batches import batches_of
from airflow_provider_rfr.sinks._windows import Window, batch_id, cursor_at, held, next_values
from airflow_provider_rfr.sinks.registry import hold_snapshots
from airflow_provider_rfr.sinks.spec import SinkSpec, findings
from airflow_provider_rfr.sinks.targets import Batch, FileSender, HttpSender, HttpTarget
from airflow_provider_rfr.store import sinks as rows
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Lease, default_holder
from airflow_provider_rfr.store.sinks import SinkRow

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_LEASE_MILLISECONDS: Final = 300_000
"""After which another run may take over from one that was killed."""
_DECIDE: Final = "decide what becomes of it: resume_from_new or resend"


@dataclass(frozen=True, slots=True)
class SinkRun:
    """What a run did.

    :ivar batches: acknowledged; ``rows``: in them
    :ivar cursor: snapshot up to which everything was sent, by this run and those before
    :ivar done: whether everything was sent
    """

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
    stop: Callable[[int], bool] = lambda sent: False,
) -> SinkRun:
    """Send what came since the last run.

    :param target: the connection of an HTTP sink
    :param source_table: where the source's rows are, if not under its name
    :param stop: asked before each batch, with the number of those that this run has sent: whether it is to end; the
        cursor says how far it came
    :raises ConfigurationError: what is declared is wrong, or was never deployed
    :raises SinkBusyError: another run is exporting it
    :raises SinkHeldError: its source was replaced, and it has to be released
    :raises CursorExpiredError: snapshots that it has not sent are expired
    :raises SinkError: its source has no table, or none that it knows: a deploy may be making another one
    :raises SinkDeliveryError: the target does not take a batch
    :raises SinkLeaseLostError: another run or a deploy took it over
    """
    if problems := tuple(findings(spec)):
        raise ConfigurationError.of(problems)
    if (spec.to == "http") != (target is not None):
        raise ConfigurationError("target", f"is not one of a sink to {spec.to}", "resolve the connection of HTTP alone")
    sender = FileSender(spec.settings) if target is None else HttpSender(spec.settings, target)
    with closing(sender):
        of = (identity, default_holder(), _LEASE_MILLISECONDS)
        grant = store.run(lambda each: rows.take_sink_lease(each, store.now(each), *of))
        if grant is None:
            remedy = "deploy first, e.g. airflow rfr builtins apply"
            raise ConfigurationError("sink", f"{name} is not registered in the control store", remedy)
        with Lease(store, grant, lambda ours, present: SinkLeaseLostError(name)) as lease:
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
    stop: Callable[[int], bool]

    def go(self) -> SinkRun:
        """Send until nothing is left, or until it is to stop."""
        first = self._row()
        hold_snapshots(self.catalog, self.source, self.identity, first)
        done = self._send_all(first.batches)
        row = self._row()
        hold_snapshots(self.catalog, self.source, self.identity, row)
        return SinkRun(row.batches - first.batches, row.rows - first.rows, row.cursor, done)

    def move(self, **values: Any) -> None:
        """Write columns of the sink's row; with a reason to hold it, also since when.

        :raises SinkLeaseLostError: another run or a deploy took it over; nothing was written
        """

        def write(connection: Connection, now: int) -> None:
            since = {"held_at": now} if "held_reason" in values else {}
            rows.move_sink(connection, self.identity, **values, **since)

        self.lease.write(write)

    def _send_all(self, begun: int) -> bool:
        """Whether everything was sent; ``begun`` batches were acknowledged before this run."""
        while True:
            row = self._row()
            if row.held_at is not None:
                raise SinkHeldError(row.name, f"it is held: {row.held_reason}", _DECIDE)
            table = self._table(row)
            try:
                window = None if row.window is None or row.since is not None else Window.loads(row.window)
                values = next_values(row, table, self.spec) if window is None else {}
                if values is None or self.stop(row.batches - begun):
                    return values is None
                if window is None:
                    self.move(**values)
                else:
                    self._send(row, window, table, begun)
            except SnapshotsExpiredError as error:
                problem = f"rows that it has not sent can't be known any more: {error}"
                self.move(**held(problem, None))
                raise CursorExpiredError(row.name, problem, _DECIDE) from None

    def _row(self) -> SinkRow:
        with self.store.read() as connection:
            found = rows.load_sink(connection, self.identity)
        if found is None:
            raise SinkLeaseLostError(self.name)
        return found

    def _table(self, row: SinkRow) -> SourceTable:
        table = SourceTable.load(self.catalog, self.source)
        if table is None:
            raise SinkError(row.name, f"its source {self.source} has no table", "deploy it, or name another source")
        if row.since is None and row.physical not in (None, table.uuid):
            # A deploy that makes the table anew may not have come to say so yet.
            problem = "its source is another table now, and nothing says where its cursor continues"
            raise SinkError(row.name, problem, f"run it again after the deploy; if none is running, {_DECIDE}")
        return table

    def _send(self, row: SinkRow, window: Window, table: SourceTable, begun: int) -> None:
        for sent, last in batches_of(window, table, row):
            if self.stop(row.batches - begun):
                return
            identity = batch_id(row.uuid, table.uuid, window, row.batches, row.round)
            self.lease.ensure()
            self.sender.send(Batch(identity, row.name, window, sent, last, row.round))
            row = replace(row, batches=row.batches + 1, rows=row.rows + sent.num_rows)
            window = replace(window, part=window.part + 1)
            at = cursor_at(window.after, table) if last else {"window": window.dumps()}
            # The cursor moves only now: a run that dies before this sends the batch again, with the same id.
            self.move(**at, batches=row.batches, rows=row.rows, last_batch=identity)
            if last:
                return
        self.move(**cursor_at(window.after, table))
