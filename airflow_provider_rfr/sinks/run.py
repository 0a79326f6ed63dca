"""The run of a sink: window by window, batch by batch, with the cursor stored after each acknowledgement.

Rows that a killed run had sent and not stored, at most one batch, are sent again with the same id.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from airflow_provider_rfr import exceptions as errors
from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.sinks._windows import Window, batches_of, cursor_at, held, next_values
from airflow_provider_rfr.sinks.registry import hold_snapshots
from airflow_provider_rfr.sinks.spec import SinkSpec, findings
from airflow_provider_rfr.sinks.targets import FileSender, HttpSender, HttpTarget
from airflow_provider_rfr.store import sinks as rows
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Lease, default_holder

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
        grant = store.run(lambda each: rows.take_sink_lease(each, store.now(each), *of))
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
        hold_snapshots(self.catalog, self.source, self.identity, first)
        done = self._send_all()
        row = self._row()
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
                window = None if row.window is None or row.since is not None else Window.loads(row.window)
                values = next_values(row, table, self.spec) if window is None else {}
                if values is None or self.stop():
                    return values is None
                if window is None:
                    self.move(**values)
                else:
                    self._send(row, window, table)
            except errors.SnapshotsExpiredError as error:
                problem = f"rows that it has not sent can't be known any more: {error}"
                self.move(**held(problem, None))
                raise errors.CursorExpiredError(row.name, problem, _DECIDE) from None

    def _row(self) -> rows.SinkRow:
        with self.store.read() as connection:
            found = rows.load_sink(connection, self.identity)
        if found is None:
            raise errors.SinkLeaseLostError(self.name)
        return found

    def _table(self, row: rows.SinkRow) -> SourceTable:
        table = SourceTable.load(self.catalog, self.source)
        if table is None:
            raise errors.SinkError(row.name, f"its source {self.source} has no table", "deploy it or name another one")
        if row.since is None and row.physical not in (None, table.uuid):
            # A deploy that makes the table anew may not have come to say so yet.
            problem = "its source is another table now, and nothing says where its cursor continues"
            raise errors.SinkError(row.name, problem, f"run it again after the deploy; if none is running, {_DECIDE}")
        return table

    def _send(self, row: rows.SinkRow, window: Window, table: SourceTable) -> None:
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
