"""The run of a sink with its targets, and the registered sinks: decisions about them, and the snapshots they protect.

A run goes window by window and batch by batch, and stores its progress after each acknowledgement. If a run is killed
before it stored that, at most one batch is sent again, with the same id. A target takes batches as POST requests, or as
files; a batch that is taken without an error is acknowledged.

Decisions of deploys and users are stored in the caller's transactions; only a run sends rows.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID, uuid4

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    CursorExpiredError,
    SinkDeliveryError,
    SinkError,
    SinkHeldError,
    SinkLeaseLostError,
    SnapshotsExpiredError,
)
from airflow_provider_rfr.http import client as http
from airflow_provider_rfr.http.redaction import Masker, host_of, secrets_of_url
from airflow_provider_rfr.http.sockets import AddressGuard, Deadline
from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.lake.commits import write_table_properties
from airflow_provider_rfr.lake.expiry import hold_property
from airflow_provider_rfr.lake.rows import SourceTable
from airflow_provider_rfr.sinks import CHOICES, SinkSpec, SinkState, findings
from airflow_provider_rfr.sinks.windows import (
    Batch,
    SentColumns,
    SinkWindow,
    batches_of,
    cursor_at,
    dumps,
    hold_values,
    next_values,
    rows_of,
)
from airflow_provider_rfr.store import deploys as sink_rows
from airflow_provider_rfr.store.deploys import SinkRow
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Lease, default_holder


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """An HTTP endpoint with its resolved connection; ``repr`` shows no secret.

    :ivar timeout: seconds for one request, from connecting to the acknowledgement
    :ivar patience: seconds for which a batch is retried after errors that may pass
    :ivar allowed_hosts: private hosts, addresses and networks that may be called
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30.0
    patience: float = 60.0
    verify: bool | str = True
    allowed_hosts: Sequence[str] = ()


_BUSY: Final = (408, 425, 429)
_STATUS_COUNTS: Final = http.Limits(body=1.0)
"""The status acknowledges or refuses a batch. The body is only for messages, so it gets a second at most."""


class HttpSender:
    """A sender that posts to one address."""

    def __init__(self, settings: Mapping[str, Any], target: HttpTarget) -> None:
        self._target = target
        self._url = "/".join((target.url.rstrip("/"), str(settings.get("path", "")).lstrip("/"))).rstrip("/")
        self._host = host_of(self._url)
        if not self._host.startswith(("http://", "https://")):
            remedy = "a host, and http or https as its schema"
            raise ConfigurationError("sink.settings.connection", "must be an HTTP address", remedy)
        self._verify = http.trusted_certificates(target.verify)
        self._guard = AddressGuard.of(target.allowed_hosts)
        self._masker = Masker((*secrets_of_url(self._url), *target.headers.values()))
        self._client = http.Client()

    def send(self, batch: Batch) -> None:
        """Post the batch, and retry it after errors that may pass, for as long as the target's ``patience``.

        :raises ConfigurationError: no try with this connection can get an answer
        :raises SinkDeliveryError: the target refuses the batch, or does not take it in time
        """
        window = batch.window
        body = {
            "sink": batch.sink,
            "batch_id": batch.id,
            # As texts, because JavaScript rounds numbers of this size.
            "from_snapshot": None if window.before is None else str(window.before),
            "to_snapshot": str(window.after),
            "part": window.part,
            "last": batch.last,
            "resend": batch.again,
            "rows": list(rows_of(batch.rows, window.keys)),
        }
        headers = {**self._target.headers, "Content-Type": "application/json", "Idempotency-Key": batch.id}
        request = http.Request("POST", self._url, headers, dumps(body), self._verify)
        until, longest = time.monotonic() + self._target.patience, 0.2
        while (busy := self._post(batch, request)) is not None:
            problem, asked = busy
            # At least the backoff: a target may always ask for a wait of 0.
            wait = max(random.uniform(0, longest), asked or 0.0)
            longest *= 2
            if time.monotonic() + wait >= until:
                raise SinkDeliveryError(batch.sink, f"{self._host} did not take batch {batch.id}: {problem}")
            time.sleep(wait)

    def close(self) -> None:
        self._client.close()

    def _post(self, batch: Batch, request: http.Request) -> tuple[str, float | None] | None:
        """Post the batch once; None if it is acknowledged.

        :returns: the problem, if another try may succeed, and the seconds that the target asked to wait, if it did
        :raises ConfigurationError: no try with this connection can get an answer
        :raises SinkDeliveryError: the target refuses the batch
        """
        answer = self._client.send(request, Deadline(self._target.timeout), self._guard, _STATUS_COUNTS)
        if isinstance(answer, http.NoAnswer):
            if answer.permanent:
                raise ConfigurationError("sink.settings.connection", answer.detail)
            return answer.detail, None
        if 200 <= answer.status < 300:
            return None
        problem = f"HTTP {answer.status}"
        if answer.body:
            problem += f": {self._masker.one_line(self._masker.kept(answer.body))}"
        asked = http.retry_after(answer.headers.get("Retry-After"))
        if answer.status in _BUSY or answer.status >= 500 or (answer.status == 403 and asked is not None):
            return problem, asked
        problem = f"{self._host} refused batch {batch.id} with {problem}"
        raise SinkDeliveryError(batch.sink, problem, "correct what it refuses; the next run sends the batch again")


_WHOLE: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})
"""Protocols of stores that show an object only when it is complete."""


class FileSender:
    """A sender that writes each batch as a file in one folder of a file system."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._collected = False
        self._format = str(settings.get("format", "jsonl"))
        try:
            self._files, root = fsspec.core.url_to_fs(str(settings["path"]))
        except (ValueError, ImportError, OSError) as error:
            problem = f"a file system of this protocol can't be opened ({type(error).__name__})"
            raise ConfigurationError("sink.settings.path", problem, "install fsspec's package for it") from None
        self._folder = root.rstrip("/")
        protocol = self._files.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else {*protocol}

    def send(self, batch: Batch) -> None:
        """Write the file unless it exists: an existing file is complete."""
        try:
            if not self._files.exists(f"{self._folder}/{batch.id}.{self._format}"):
                self._write(batch)
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own; some print credentials
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise SinkDeliveryError(batch.sink, f"the file {batch.id} can't be written: {why}") from None

    def close(self) -> None:
        """Do nothing: the sender holds no resources."""

    def _write(self, batch: Batch) -> None:
        name = f"{batch.id}.{self._format}"
        path = f"{self._folder}/{name}"
        if self._format == "jsonl":
            data = b"".join(dumps(row) + b"\n" for row in rows_of(batch.rows, batch.window.keys))
        else:
            buffer = pa.BufferOutputStream()
            marks = {"rfr.sink": batch.sink, "rfr.batch": batch.id, "rfr.resend": str(batch.again)}
            pq.write_table(batch.rows.replace_schema_metadata(marks), buffer, compression="zstd")
            data = bytes(buffer.getvalue())
        if self._protocols & _WHOLE:
            self._files.pipe_file(path, data)
            return
        self._files.makedirs(self._folder, exist_ok=True)
        if not self._collected:
            # A killed run left partial files only of its last batch, which is the first one of this run.
            for file in map(str, self._files.ls(self._folder, detail=False)):
                if file.rpartition("/")[2].startswith(f".{name}."):
                    self._files.rm_file(file)
            self._collected = True
        # A hidden name, so that readers of the folder skip it; a new one, so that two runs never share it.
        hidden = f"{self._folder}/.{name}.{uuid4().hex}.part"
        self._files.pipe_file(hidden, data)
        if "file" not in self._protocols:
            self._files.mv(hidden, path)
            return
        # Synced, so that an acknowledged batch survives a power cut.
        _sync(hidden)
        os.replace(hidden, path)
        _sync(self._folder)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FREE: Final[Mapping[str, Any]] = {"held_at": None, "held_reason": None, "behind": None}
_FROM_THE_START: Final[Mapping[str, Any]] = {"cursor": None, "physical": None, "window": None, "deploy_id": None}


def sink_states(connection: Connection) -> tuple[SinkState, ...]:
    """Return the states of all sinks, sorted by name, as plans compare them."""
    rows = sink_rows.all_sinks(connection)
    return tuple(SinkState(row.uuid, row.name, row.source, row.cursor, row.on_replace) for row in rows)


def needed_physicals(connection: Connection) -> frozenset[str]:
    """Return the UUIDs of tables that a sink still has to read; garbage collection does not delete these tables."""
    return frozenset(row.physical for row in sink_rows.all_sinks(connection) if row.physical is not None)


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
    row = sink_rows.load_sink(connection, identity)
    moved = row is not None and row.source != source
    before = SentColumns.loads(row.pins) if row is not None and not moved else None
    sent = SentColumns.of(spec, columns, before, renamed).dumps()
    if row is None:
        sink_rows.insert_sink(connection, identity, name, source, sent, spec.on_replace, now_ms)
        return
    values: dict[str, Any] = {"name": name, "pins": sent, "on_replace": spec.on_replace, "source": str(source)}
    if moved:
        # A cursor means nothing in another table. Later in the deploy it is decided how the sink continues.
        values |= {**_FROM_THE_START, "behind": None, "held_at": now_ms, "held_reason": "it has another source now"}
    sink_rows.change_sink(connection, row.uuid, **values)


def decide_sink(connection: Connection, identity: UUID, choice: str, reason: str, now_ms: int, *, about: str) -> None:
    """Store a decision about a sink whose source was emptied or replaced; do nothing if the sink no longer exists.

    The same decision about the same thing changes nothing a second time, even by a later deploy.

    :param about: id of the deploy that emptied the source, as in the summary of its snapshots; or of the new source
    """
    row = sink_rows.load_sink(connection, identity)
    mark = f"{about}/{choice}"
    if row is None or row.decided_by == mark:
        return
    if choice != "hold":
        _decide(connection, row, choice, now_ms, about, decided_by=mark)
    elif row.behind is None:
        # A sink with ``behind`` is already held, for rows that others replaced, and continues after those.
        held = {"held_at": now_ms, "held_reason": reason, "window": None} if row.held_at is None else {}
        sink_rows.change_sink(connection, row.uuid, **held, deploy_id=about, decided_by=mark)


def release_sink(connection: Connection, identity: UUID, choice: str, now_ms: int) -> None:
    """Store a user's decision about a sink, held or not, and release it.

    :param choice: ``resend`` sends all rows again. ``resume_from_new`` sends the rows that were added since the source
        was replaced, or from now on if the sink is not held
    :raises ConfigurationError: there is no such sink or choice
    """
    row = sink_rows.load_sink(connection, identity)
    if row is None:
        raise ConfigurationError("sink", f"no sink with the id {identity} is registered", "deploy it first")
    if choice not in CHOICES[1:]:
        raise ConfigurationError("choice", f"{choice!r} is unknown", f"one of {', '.join(CHOICES[1:])}")
    if choice != "resend" and row.behind is not None:
        sink_rows.change_sink(connection, row.uuid, **_FREE, window=None, cursor=row.behind, sequence=None)
    else:
        _decide(connection, row, choice, now_ms if row.held_at is None else row.held_at, row.deploy_id)


def _decide(connection: Connection, row: SinkRow, choice: str, since: int, about: str | None, **more: Any) -> None:
    values: dict[str, Any] = {"since": since, "deploy_id": about}
    if choice == "resend":
        values = {**_FROM_THE_START, "since": None, "round": row.round + 1}
    sink_rows.change_sink(connection, row.uuid, **_FREE, **values, **more)


def hold_snapshots(catalog: Catalog, name: str, identity: UUID, row: SinkRow | None = None) -> None:
    """Set the table property by which the sink keeps the snapshots that it needs; without a row, remove it."""
    table = SourceTable.load(catalog, name)
    if table is None:
        return
    begin, end = hold_property("sink."), f".{identity.hex[:8]}"
    # Includes properties under former names of the sink, which are removed.
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
"""Time after which another run may take over from a killed one."""
_DECIDE: Final = "decide what becomes of it: resume_from_new or resend"


@dataclass(frozen=True, slots=True)
class SinkRun:
    """The result of a run: acknowledged batches, their rows, the sink's cursor, and whether everything was sent."""

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
    source_id: UUID | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SinkRun:
    """Send the rows that were added since the last run.

    :param target: the connection of an HTTP sink
    :param source_table: name of the table with the source's rows; None for the source's name
    :param source_id: id of that object, by which a source of another deploy is refused; None if it was not deployed
    :param stop: is called before each batch; the run ends if it returns True
    :raises ConfigurationError: the declaration is wrong, or was never deployed
    :raises SinkError: it is held, another run has it, its target refuses a batch, or a deploy gave it another source
    """
    if problems := tuple(findings(spec)):
        raise ConfigurationError.of(problems)
    if (spec.to == "http") != (target is not None):
        raise ConfigurationError("target", f"is not one of a sink to {spec.to}", "HTTP alone has a connection")
    sender = FileSender(spec.settings) if target is None else HttpSender(spec.settings, target)
    with closing(sender):
        of = (identity, default_holder(), _LEASE_MILLISECONDS)
        grant = store.run(lambda connection: sink_rows.take_sink_lease(connection, store.now(connection), *of))
        if grant is None:
            remedy = "deploy first, e.g. airflow rfr objects apply"
            raise ConfigurationError("sink", f"{name} is not registered in the control store", remedy)
        with Lease(store, grant, lambda ours, present: SinkLeaseLostError(name)) as lease:
            table = source_table or spec.source
            return Run(store, lease, identity, name, catalog, table, source_id, spec, sender, stop).go()


@dataclass(frozen=True)
class Run:
    """One run of a sink under its lease.

    :ivar source: name of the source's table
    :ivar source_id: the source's id; None if it is not checked
    """

    store: ControlStore
    lease: Lease
    identity: UUID
    name: str
    catalog: Catalog
    source: str
    source_id: UUID | None
    spec: SinkSpec
    sender: FileSender | HttpSender
    stop: Callable[[], bool]

    def go(self) -> SinkRun:
        """Send until no rows are left, or until the run has to stop."""
        first = self._row()
        # Before anything is read, because a concurrent expiry must keep the snapshots that are still to be sent.
        hold_snapshots(self.catalog, self.source, self.identity, first)
        while True:
            row = self._row()
            if row.held_at is not None:
                raise SinkHeldError(row.name, f"it is held: {row.held_reason}", _DECIDE)
            table = SourceTable.load(self.catalog, self.source)
            if table is None:
                problem = f"its source {self.source} has no table"
                raise SinkError(row.name, problem, "deploy it or name another one")
            if row.since is None and row.physical not in (None, table.uuid):
                # A deploy that recreates the table may not have stored its decision about this sink yet.
                problem = "its source is another table now, and nothing says where its cursor continues"
                remedy = f"run it again after the deploy; if none is running, {_DECIDE}"
                raise SinkError(row.name, problem, remedy)
            try:
                window = None if row.window is None or row.since is not None else SinkWindow.loads(row.window)
                values = next_values(row, table, self.spec) if window is None else {}
                if values is None or self.stop():
                    break
                if window is None:
                    self.move(**values)
                else:
                    self._send(row, window, table)
            except SnapshotsExpiredError as error:
                problem = f"rows that it has not sent can't be known any more: {error}"
                self.move(**hold_values(problem, None))
                raise CursorExpiredError(row.name, problem, _DECIDE) from None
        self.lease.ensure()
        # The cursor has moved, so snapshots that only this sink needed may expire now.
        hold_snapshots(self.catalog, self.source, self.identity, self._row())
        row = self._row()
        return SinkRun(row.batches - first.batches, row.rows - first.rows, row.cursor, done=values is None)

    def move(self, **values: Any) -> None:
        """Update columns of the sink's row under the lease; with ``held_reason``, set ``held_at``, too.

        :raises SinkLeaseLostError: another run took the lease; nothing was written
        """

        def write(connection: Connection, now: int) -> None:
            since = {"held_at": now} if "held_reason" in values else {}
            sink_rows.move_sink(connection, self.identity, **values, **since)

        self.lease.write(write)

    def _row(self) -> SinkRow:
        with self.store.read() as connection:
            row = sink_rows.load_sink(connection, self.identity)
        if row is None:
            raise SinkLeaseLostError(self.name)
        if self.source_id not in (None, row.source):
            # A hold that was set after the deploy had released it would keep the former source's snapshots for ever.
            # A new source may have the former one's name: its hold belongs to other runs.
            table = SourceTable.load(self.catalog, self.source)
            if table is not None and table.uuid != row.physical:
                hold_snapshots(self.catalog, self.source, self.identity)
            problem = f"it does not export {self.source} any more: a deploy gave it another source"
            raise SinkError(row.name, problem, "run it with the declarations of that deploy, or deploy these")
        return row

    def _send(self, row: SinkRow, window: SinkWindow, table: SourceTable) -> None:
        sent = row.rows
        for acknowledged, batch in enumerate(batches_of(window, table, row), row.batches + 1):
            if self.stop():
                return
            self.lease.ensure()
            self.sender.send(batch)
            sent += batch.rows.num_rows
            after = replace(batch.window, part=batch.window.part + 1)
            at = cursor_at(window.after, table) if batch.last else {"window": after.dumps()}
            # Progress is stored only now: if the run dies before, the next one resends the batch, with the same id.
            self.move(**at, batches=acknowledged, rows=sent, last_batch=batch.id)
            if batch.last:
                return
        self.move(**cursor_at(window.after, table))
