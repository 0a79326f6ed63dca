"""The batches of a window: the same rows in the same batches on every run.

For an export of changes two states of the table are compared by key. The keys of the earlier state are held in memory
with a digest of each row, about 400 bytes a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.exceptions import SinkError
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.sinks._windows import Window
from airflow_provider_rfr.sinks.targets import DELETE, OP, UPSERT, dumps, rows_of
from airflow_provider_rfr.store.sinks import SinkRow

_Batches = Iterable[pa.RecordBatch]


def batches_of(window: Window, table: SourceTable, row: SinkRow) -> Iterator[tuple[pa.Table, bool]]:
    """The rows of each batch from ``window.part`` on, and whether it is the window's last; none for no rows.

    :raises SnapshotsExpiredError: the window's snapshots are expired
    :raises SinkError: the table can't be exported as it is declared
    """
    if window.keys and OP in dict(window.columns):
        problem = f"its source has a column {OP}, the name of the column that marks changes"
        raise SinkError(row.name, problem, "name other columns")
    batches = _cut(*_rows(window, table, row), window.size)
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        yield batch, following is None
        batch = following


def _rows(window: Window, table: SourceTable, row: SinkRow) -> tuple[_Batches, int]:
    """The window's rows, and how many of the first of them were sent."""
    wanted, sent = table.projection(window.columns, window.after), window.part * window.size
    if window.before is not None and window.earlier is not None:
        earlier = table.projection(window.earlier, window.before)
        before = table.read(table.contents(window.before), earlier)
        after = table.read(table.contents(window.after), wanted)
        return _changes(row.name, window.keys, table.arrow(wanted), before, after), sent
    if window.before is None:
        tasks = table.contents(window.after)
    else:
        # The cursor stays at ``before`` until the window's end.
        tasks = table.added(window.before, window.after, row.sequence)
    tasks, sent = table.skip(tasks, sent)
    rows = table.read(tasks, wanted)
    return (_with_op(each, UPSERT) for each in rows) if window.keys else rows, sent


def _changes(sink: str, keys: Sequence[str], shape: pa.Schema, before: _Batches, after: _Batches) -> _Batches:
    """Upserts in the later state's order, then deletes in the earlier one's.

    :param shape: columns of the later state; the earlier one's values are taken as these types where they can be, so
        that a column of another type is not a difference by itself
    :raises SinkError: two rows have one key
    """
    problem = f"several rows have the same {', '.join(keys)}, so changes can't be determined"
    twice = SinkError(sink, problem, "name columns in settings.keys that tell rows apart")
    # None: met in the later state.
    known: dict[bytes, tuple[bytes, tuple[Any, ...]] | None] = {}
    for batch in before:
        columns = [_cast(batch.column(field.name), field.type) for field in shape]
        shaped = pa.RecordBatch.from_arrays(columns, names=shape.names)
        values = (tuple(each.values()) for each in shaped.select(keys).to_pylist())
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
            known[key] = None
            changed.append(met is None or met[0] != digest)
        yield _with_op(batch.filter(pa.array(changed, pa.bool_())), UPSERT)
    # A deleted row has its keys alone.
    left = [dict(zip(keys, each[1], strict=True)) for each in known.values() if each is not None]
    yield _with_op(pa.RecordBatch.from_pylist(left, schema=shape), DELETE)


def _digests(batch: pa.RecordBatch, keys: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Of each row's key, whose own text is kept in a buffer that is much larger than it is, and of the row."""
    for row in rows_of(batch):
        yield _digest([row[name] for name in keys]), _digest(row)


def _digest(value: Any) -> bytes:
    return blake2b(dumps(value), digest_size=16).digest()


def _with_op(batch: pa.RecordBatch, op: str) -> pa.RecordBatch:
    return batch.add_column(0, pa.field(OP, pa.string()), pa.array([op] * batch.num_rows, pa.string()))


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
