"""The batches of a window: the same rows in the same batches, whoever asks and whenever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_rfr.builtins.sinks.changes import Changes, told
from airflow_provider_rfr.builtins.sinks.payload import OP
from airflow_provider_rfr.builtins.sinks.pins import Pins
from airflow_provider_rfr.builtins.sinks.window import What, Window
from airflow_provider_rfr.exceptions.sinks import SinkError
from airflow_provider_rfr.lake.increments import Brings, SourceTable


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one batch.

    :ivar number: in its window, from 0
    :ivar last: whether nothing of the window comes behind it
    """

    number: int
    rows: pa.Table
    last: bool


def parts_of(window: Window, table: SourceTable, sink: str, alive: Callable[[], None]) -> Iterator[Part]:
    """The window's batches from ``window.part`` on; none if there is nothing (more) to send.

    :param alive: is called often while rows are read
    :raises SnapshotsExpiredError: the window's snapshots are gone
    :raises SinkError: the table can't be exported as it is declared
    """
    batches = _batches(window, table, sink, alive)
    number, pending = window.part, None
    for rows in _cut(batches, window.size):
        if pending is not None:
            yield Part(number, pending, False)
            number += 1
        pending = rows
    if pending is not None:
        yield Part(number, pending, True)


def _batches(window: Window, table: SourceTable, sink: str, alive: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    if window.keys and OP in dict(window.columns):
        raise SinkError(sink, f"its source has a column {OP}, the name that tells changes", "name other columns")
    skip = window.part * window.size
    if window.what is What.CHANGED:
        return _without_first(_changes(window, table, sink, alive), skip)
    if window.what is What.ALL:
        tasks = table.contents(window.after)
    else:
        line = table.increments(window.before, window.after, window.sequence)
        tasks = table.added([each.snapshot_id for each in line if each.brings is Brings.ROWS])
    tasks, skip = table.skip(tasks, skip)
    rows = _kept(table.read(tasks, table.projection(window.columns, window.schema_id)), alive)
    rows = _without_first(rows, skip)
    return told(rows) if window.keys else rows


def _changes(window: Window, table: SourceTable, sink: str, alive: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    assert window.before is not None
    earlier = table.schema_at(window.before)
    # By the ids where they are, by the names where a migration made columns anew.
    pins = Pins.of_columns(window.columns).resolve(table.columns(earlier), table.columns(window.schema_id), sink)
    before = table.read(table.contents(window.before), table.projection(pins, earlier))
    wanted = table.projection(window.columns, window.schema_id)
    after = table.read(table.contents(window.after), wanted)
    return Changes(sink, window.keys, table.arrow(wanted)).find(_kept(before, alive), _kept(after, alive))


def _kept(batches: Iterable[pa.RecordBatch], alive: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        alive()
        yield batch


def _without_first(batches: Iterable[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if skip < batch.num_rows:
            yield batch.slice(skip) if skip else batch
        skip = max(0, skip - batch.num_rows)


def _cut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            taken = batch.slice(0, size - count)
            waiting.append(taken)
            count += taken.num_rows
            batch = batch.slice(taken.num_rows)
            if count == size:
                yield pa.Table.from_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
