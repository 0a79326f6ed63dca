"""The batches of a window: the same rows in the same batches on every run.

For an export of changes two states of the table are compared by key. The keys of the earlier state are held in memory
with a digest of each row, about 400 bytes a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.sinks._windows import Pin, Pins, What, Window
from airflow_provider_rfr.sinks.targets import DELETE, OP, UPSERT, dumps, rows_of
from airflow_provider_rfr.exceptions import SinkError
from airflow_provider_rfr.lake.increments import Brings, SourceTable


class Changes:
    """The comparison of two states.

    :ivar shape: columns of the later state; the earlier one's values are taken as these types where they can be, so
        that a column of another type is not a difference by itself
    """

    def __init__(self, sink: str, keys: Sequence[str], shape: pa.Schema) -> None:
        self._sink = sink
        self._keys = tuple(keys)
        self._shape = shape
        self._known: dict[bytes, tuple[bytes, tuple[Any, ...]] | None] = {}

    def find(self, before: Iterable[pa.RecordBatch], after: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Upserts in the later state's order, then deletes in the earlier one's.

        :raises SinkError: two rows have one key
        """
        for batch in before:
            columns = [_cast(batch.column(field.name), field.type) for field in self._shape]
            shaped = pa.RecordBatch.from_arrays(columns, names=self._shape.names)
            values = zip(*(shaped.column(name).to_pylist() for name in self._keys), strict=True)
            for (key, digest), raw in zip(self._digests(shaped), values, strict=True):
                if key in self._known:
                    raise self._twice()
                self._known[key] = (digest, raw)
        for batch in after:
            changed = []
            for key, digest in self._digests(batch):
                known = self._known.get(key)
                if known is None and key in self._known:
                    raise self._twice()
                # Met in the later state.
                self._known[key] = None
                changed.append(known is None or known[0] != digest)
            yield _with_op(batch.filter(pa.array(changed, pa.bool_())), UPSERT)
        left = [each[1] for each in self._known.values() if each is not None]
        columns = []
        for field in self._shape:
            # A deleted row has its keys alone.
            at = self._keys.index(field.name) if field.name in self._keys else None
            shown = [None] * len(left) if at is None else [raw[at] for raw in left]
            columns.append(pa.array(shown, field.type))
        yield _with_op(pa.RecordBatch.from_arrays(columns, schema=self._shape), DELETE)

    def _digests(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        for row in rows_of(batch):
            # Of the keys digests too: their own texts are kept in buffers that are much larger than they are.
            yield _digest([row[name] for name in self._keys]), _digest(row)

    def _twice(self) -> SinkError:
        problem = f"several rows have the same {', '.join(self._keys)}, so changes can't be determined"
        return SinkError(self._sink, problem, "name columns in settings.keys that tell rows apart")


def _digest(value: Any) -> bytes:
    return blake2b(dumps(value), digest_size=16).digest()


def _with_op(batch: pa.RecordBatch, op: str) -> pa.RecordBatch:
    ops = pa.array([op] * batch.num_rows, pa.string())
    fields = [pa.field(OP, pa.string()), *batch.schema]
    return pa.RecordBatch.from_arrays([ops, *batch.columns], schema=pa.schema(fields))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


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
    :raises SnapshotsExpiredError: the window's snapshots are expired
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
        raise SinkError(
            sink, f"its source has a column {OP}, the name of the column that marks changes", "name other columns"
        )
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
    return (_with_op(each, UPSERT) for each in rows) if window.keys else rows


def _changes(window: Window, table: SourceTable, sink: str, alive: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    assert window.before is not None
    earlier = table.schema_at(window.before)
    # By id where the ids exist, by name where a migration dropped and added columns again.
    pins = Pins(tuple(Pin(*each) for each in window.columns))
    sent = pins.resolve(table.columns(earlier), table.columns(window.schema_id), sink)
    before = table.read(table.contents(window.before), table.projection(sent, earlier))
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
