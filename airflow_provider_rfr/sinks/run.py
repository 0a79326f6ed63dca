"""Running a sink: window by window, batch by batch, the cursor stored after each acknowledgement.

What a killed run had sent and not stored, at most one batch, is sent again with the same id."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow_provider_rfr.sinks._batches import parts_of
from airflow_provider_rfr.sinks._windows import (
    Hold,
    Move,
    Send,
    SinkOptions,
    Window,
    batch_id,
    hold_snapshots,
    next_move,
)
from airflow_provider_rfr.sinks.targets import Batch, FileSender, FilesTarget, HttpSender, HttpTarget, Sender
from airflow_provider_rfr.builtins.spec import BuiltinObject, SinkSpec
from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    CursorExpiredError,
    SinkError,
    SinkHeldError,
    SinkLeaseLostError,
    SnapshotsExpiredError,
)
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.store import sinks as rows
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import default_holder
from airflow_provider_rfr.store.sinks import SinkLease, SinkRow

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def _table_of(row: SinkRow, catalog: Catalog, name: str) -> SourceTable | Move | Hold:
    """The table to send from, or what has to be written first.

    :param name: of the source's table
    :raises SinkError: there is none
    """
    table = SourceTable.load(catalog, name)
    if table is None:
        raise SinkError(row.name, f"its source {name} has no table", "deploy it, or name another source")
    if row.start == "new":
        return Move(_from_now_on(row, table))
    if row.physical is None or row.physical == table.uuid:
        return table
    # A deploy that makes the table anew may not have come to say so yet.
    return Hold("its source is another table now, and nothing says where its cursor continues", lasting=False)


def _from_now_on(row: SinkRow, table: SourceTable) -> dict[str, Any]:
    """A cursor behind what was there when it was decided that this is not to be sent.

    What was sent after that, by a run that came before the decision, is left where it is.
    """
    decided = {"start": None, "since": None, "deploy_id": None, "physical": table.uuid}
    if row.deploy_id is not None and row.physical not in (None, table.uuid):
        return {**decided, "cursor": None, "window": None}
    cursor = table.last_of(row.deploy_id) if row.deploy_id is not None else None
    if cursor is None:
        cursor = table.last_before(row.since or 0)
    if row.physical == table.uuid:
        at = row.cursor
        if row.window is not None:
            window = Window.loads(row.window)
            at = window.after if window.before is None else window.before
        if at is not None and table.has_passed(cursor, at):
            return decided
    return {**decided, "cursor": cursor, "window": None}


class _HeldSink:
    """A sink that no other run moves, as long as its lease is renewed in time."""

    def __init__(self, store: ControlStore, lease: SinkLease) -> None:
        self._store = store
        self.lease = lease
        self._renewed = time.monotonic()

    def row(self) -> SinkRow:
        """The sink as it is now.

        :raises SinkLeaseLostError: it was removed
        """
        with self._store.read() as connection:
            found = rows.load_sink(connection, self.lease.uuid)
        if found is None:
            raise SinkLeaseLostError(self.lease.name)
        return found

    def move(self, **values: Any) -> None:
        """Write columns of the sink's row.

        :raises SinkLeaseLostError: another run or a deploy took it over; nothing was written
        """
        self._store.run(lambda each: rows.move_sink(each, self._store.now(each), self.lease, **values))
        self._renewed = time.monotonic()

    def alive(self) -> None:
        """Renew the lease when a third of it has passed."""
        if (time.monotonic() - self._renewed) * 3000 > self.lease.grant.milliseconds:
            self.move()

    def now(self) -> int:
        """The store's time, in milliseconds since 1970."""
        with self._store.read() as connection:
            return self._store.now(connection)


@contextmanager
def held(store: ControlStore, identity: UUID, name: str, seconds: float) -> Iterator[_HeldSink]:
    """The sink, held by this process.

    :raises SinkBusyError: another run is exporting it
    :raises ConfigurationError: no deploy has registered it
    """
    owner, milliseconds = default_holder(), int(seconds * 1000)
    lease = store.run(lambda each: rows.take_sink_lease(each, store.now(each), identity, owner, milliseconds))
    if lease is None:
        remedy = "deploy first, e.g. airflow rfr builtins apply"
        raise ConfigurationError("sink", f"{name} is not registered in the control store", remedy)
    try:
        yield _HeldSink(store, lease)
    finally:
        store.run(lease.grant.release)


_DECIDE = "decide what becomes of it: resume_from_new or resend"


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends.

    :ivar batches: the run ends after so many; None: when everything is sent
    :ivar lease_seconds: after which another run may take over from one that was killed; it is renewed before each
        batch, and is never shorter than a batch may take by the target's own patience
    :ivar stop: once set, it ends after the current batch; the cursor says how far it came
    """

    batches: int | None = None
    lease_seconds: float = 300.0
    stop: threading.Event | None = None


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
    obj: BuiltinObject,
    *,
    catalog: Catalog,
    store: ControlStore,
    target: HttpTarget | FilesTarget | None = None,
    limits: Limits | None = None,
    source_table: str | None = None,
) -> SinkRun:
    """Send what came since the last run.

    :param obj: a sink, as it is declared
    :param target: the connection of an HTTP sink; for files, how their file system is opened
    :param source_table: where the source's rows are, if not under its name
    :raises ConfigurationError: what is declared is wrong, or was never deployed
    :raises SinkBusyError: another run is exporting it
    :raises SinkHeldError: its source was replaced, and it has to be released
    :raises CursorExpiredError: snapshots that it has not sent are expired
    :raises SinkError: its source has no table, or none that it knows: a deploy may be making another one
    :raises SinkDeliveryError: the target does not take a batch
    :raises SinkLeaseLostError: another run or a deploy took it over
    """
    spec = obj.sink
    if spec is None:
        raise ConfigurationError("sink", f"{obj.name} is a {obj.kind.value}, not a sink")
    limits = limits or Limits()
    sender = _sender(obj.name, spec, target)
    seconds = limits.lease_seconds
    if isinstance(target, HttpTarget):
        seconds = max(seconds, target.patience + 3 * target.timeout)
    try:
        with held(store, obj.id, obj.name, seconds) as sink:
            run, name = _Run(sink, obj.name, spec, sender, limits), source_table or spec.source
            hold_snapshots(catalog, name, sink.row())
            done = run.go(lambda row: _table_of(row, catalog, name))
            hold_snapshots(catalog, name, sink.row())
            return done
    finally:
        sender.close()


@dataclass
class _Run:
    """One run of a sink.

    :ivar batches: acknowledged so far; ``rows``: in them
    """

    sink: _HeldSink
    name: str
    spec: SinkSpec
    sender: Sender
    limits: Limits
    batches: int = 0
    rows: int = 0

    def go(self, find: Callable[[SinkRow], SourceTable | Move | Hold]) -> SinkRun:
        while True:
            row = self.sink.row()
            if row.held_at is not None:
                raise SinkHeldError(row.name, f"it is held: {row.held_reason}", _DECIDE)
            try:
                found, table = find(row), None
                move: Send | Move | Hold | None
                if isinstance(found, SourceTable):
                    table = found
                    move = next_move(row, table, SinkOptions.of(self.spec, table))
                else:
                    move = found
                if move is None or self._spent:
                    return SinkRun(self.batches, self.rows, row.cursor, move is None)
                self._do(row, move, table)
            except SnapshotsExpiredError as error:
                problem = f"rows that it has not sent can't be known any more: {error}"
                self._hold(problem, None)
                raise CursorExpiredError(row.name, problem, _DECIDE) from None

    @property
    def _spent(self) -> bool:
        if self.limits.stop is not None and self.limits.stop.is_set():
            return True
        return self.limits.batches is not None and self.batches >= self.limits.batches

    def _do(self, row: SinkRow, move: Send | Move | Hold, table: SourceTable | None) -> None:
        if isinstance(move, Hold):
            if not move.lasting:
                raise SinkError(row.name, move.reason, f"run it again after the deploy; if none is running, {_DECIDE}")
            self._hold(move.reason, move.behind)
        elif isinstance(move, Move):
            self.sink.move(**_with_sequence(move.values, table))
        else:
            assert table is not None
            if row.window is None:
                self.sink.move(window=move.window.dumps(), name=self.name, **move.values)
                row = self.sink.row()
            self._send(row, move.window, table)

    def _hold(self, reason: str, behind: int | None) -> None:
        values = {"held_reason": reason, "behind": behind, "deploy_id": None, "window": None}
        self.sink.move(held_at=self.sink.now(), **values)

    def _send(self, row: SinkRow, window: Window, table: SourceTable) -> None:
        for part in parts_of(window, table, row.name, self.sink.alive):
            if self._spent:
                return
            window = replace(window, part=part.number)
            identity = batch_id(row.uuid, table.uuid, window, row.batches, row.round)
            batch = Batch(identity, row.name, window, part.rows, part.last, row.round, self.sink.lease.grant.token)
            # A run that lost the lease must not begin a batch.
            self.sink.move()
            self.sender.send(batch)
            row = replace(row, batches=row.batches + 1, rows=row.rows + part.rows.num_rows)
            counts = {"batches": row.batches, "rows": row.rows, "last_batch": batch.id, "sent_at": self.sink.now()}
            # The cursor moves only now: a run that dies before this sends the batch again, with the same id.
            if part.last:
                self.sink.move(**_with_sequence({"window": None, "cursor": window.after}, table), **counts)
            else:
                self.sink.move(window=replace(window, part=window.part + 1).dumps(), **counts)
            self.batches += 1
            self.rows += part.rows.num_rows
            if part.last:
                return
        self.sink.move(**_with_sequence({"window": None, "cursor": window.after}, table))


def _with_sequence(values: Mapping[str, Any], table: SourceTable | None) -> dict[str, Any]:
    if "cursor" not in values:
        return dict(values)
    return {**values, "sequence": None if table is None else table.sequence(values["cursor"])}


def _sender(name: str, spec: SinkSpec, target: HttpTarget | FilesTarget | None) -> Sender:
    if spec.to == "files" and not isinstance(target, HttpTarget):
        return FileSender(name, spec.settings, target or FilesTarget())
    if spec.to == "http" and isinstance(target, HttpTarget):
        return HttpSender(name, spec.settings, target)
    wanted = {"http": "an HttpTarget, its connection resolved", "files": "a FilesTarget, or none"}
    raise ConfigurationError("target", f"is not a target of a sink to {spec.to}", wanted.get(spec.to, "files or http"))
