"""The batches of a window: the same rows in the same batches on every run.

For an export of changes two states of the table are compared by key. The keys of the earlier state are held in memory
with a digest of each row, about 400 bytes a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.exceptions import SinkError
from airflow_provider_rfr.lake.increments import Brings, SourceTable
from airflow_provider_rfr.sinks._windows import Window
from airflow_provider_rfr.sinks.targets import DELETE, OP, UPSERT, dumps, rows_of

_Batches = Iterable[pa.RecordBatch]


def batches_of(
    window: Window, table: SourceTable, sink: str, alive: Callable[[], None]
) -> Iterator[tuple[pa.Table, bool]]:
    """The rows of each batch from ``window.part`` on, and whether it is the window's last; none for no rows.

    :param alive: is called often while rows are read
    :raises SnapshotsExpiredError: the window's snapshots are expired
    :raises SinkError: the table can't be exported as it is declared
    """
    if window.keys and OP in dict(window.columns):
        problem = f"its source has a column {OP}, the name of the column that marks changes"
        raise SinkError(sink, problem, "name other columns")
    pending = None
    for rows in _cut(*_rows(window, table, sink, alive), window.size):
        if pending is not None:
            yield pending, False
        pending = rows
    if pending is not None:
        yield pending, True


def _rows(window: Window, table: SourceTable, sink: str, alive: Callable[[], None]) -> tuple[_Batches, int]:
    """The window's rows, and how many of the first of them were sent."""
    wanted, sent = table.projection(window.columns, window.schema_id), window.part * window.size

    def read(tasks: Iterable[Any], shape: Any) -> Iterator[pa.RecordBatch]:
        for batch in table.read(tasks, shape):
            alive()
            yield batch

    if window.before is not None and window.earlier is not None:
        before = table.projection(window.earlier, table.schema_at(window.before))
        states = read(table.contents(window.before), before), read(table.contents(window.after), wanted)
        return _changes(sink, window.keys, table.arrow(wanted), *states), sent
    if window.before is None:
        tasks = table.contents(window.after)
    else:
        line = table.increments(window.before, window.after, window.sequence)
        tasks = table.added([each.snapshot_id for each in line if each.brings is Brings.ROWS])
    tasks, sent = table.skip(tasks, sent)
    rows = read(tasks, wanted)
    return (_with_op(each, UPSERT) for each in rows) if window.keys else rows, sent


def _changes(sink: str, keys: Sequence[str], shape: pa.Schema, before: _Batches, after: _Batches) -> _Batches:
    """Upserts in the later state's order, then deletes in the earlier one's.

    :param shape: columns of the later state; the earlier one's values are taken as these types where they can be, so
        that a column of another type is not a difference by itself
    :raises SinkError: two rows have one key
    """
    problem = f"several rows have the same {', '.join(keys)}, so changes can't be determined"
    twice = SinkError(sink, problem, "name columns in settings.keys that tell rows apart")
    known: dict[bytes, tuple[bytes, tuple[Any, ...]] | None] = {}
    for batch in before:
        columns = [_cast(batch.column(field.name), field.type) for field in shape]
        shaped = pa.RecordBatch.from_arrays(columns, names=shape.names)
        values = zip(*(shaped.column(name).to_pylist() for name in keys), strict=True)
        for (key, digest), raw in zip(_digests(shaped, keys), values, strict=True):
            if key in known:
                raise twice
            known[key] = (digest, raw)
    for batch in after:
        changed = []
        for key, digest in _digests(batch, keys):
            met = known.get(key)
            if met is None and key in known:
                raise twice
            # Met in the later state.
            known[key] = None
            changed.append(met is None or met[0] != digest)
        yield _with_op(batch.filter(pa.array(changed, pa.bool_())), UPSERT)
    left = [each[1] for each in known.values() if each is not None]
    # A deleted row has its keys alone.
    shown = {name: [raw[at] for raw in left] for at, name in enumerate(keys)}
    columns = [pa.array(shown.get(field.name, [None] * len(left)), field.type) for field in shape]
    yield _with_op(pa.RecordBatch.from_arrays(columns, schema=shape), DELETE)


def _digests(batch: pa.RecordBatch, keys: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    for row in rows_of(batch):
        # Of the keys digests too: their own texts are kept in buffers that are much larger than they are.
        yield _digest([row[name] for name in keys]), _digest(row)


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


def _cut(batches: _Batches, skip: int, size: int) -> Iterator[pa.Table]:
    """Tables of so many rows, without the first ones."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        skipped = min(skip, batch.num_rows)
        batch, skip = batch.slice(skipped), skip - skipped
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
