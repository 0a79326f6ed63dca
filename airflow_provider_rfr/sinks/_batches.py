"""The batches of a window, the same rows in the same batches on every run; and rows as JSON.

For an export of changes two states of the table are compared by key. The keys of the earlier state are held in memory
with a digest of each row, about 400 bytes a row."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import orjson
import pyarrow as pa

from airflow_provider_rfr.exceptions import SinkError
from airflow_provider_rfr.lake.increments import SourceTable
from airflow_provider_rfr.sinks._windows import Window, batch_id
from airflow_provider_rfr.store.sinks import SinkRow

_Batches = Iterable[pa.RecordBatch]
_OP: Final = "_op"
"""Name of the field that says what became of a row, in exports of changes."""
_UPSERT: Final = "upsert"
_DELETE: Final = "delete"
_NOT_FINITE: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent at once.

    :ivar window: its ``part`` is the batch's number
    :ivar last: whether it ends its window
    :ivar again: how often everything was sent again before: above 0, rows are declared duplicates
    """

    id: str
    sink: str
    window: Window
    rows: pa.Table
    last: bool
    again: int


def batches_of(window: Window, table: SourceTable, row: SinkRow) -> Iterator[Batch]:
    """The batches from ``window.part`` on; none for no rows."""
    if window.keys and _OP in dict(window.columns):
        problem = f"its source has a column {_OP}, the name of the column that marks changes"
        raise SinkError(row.name, problem, "name other columns")
    for number, (rows, last) in enumerate(_cut(*_rows(window, table, row), window.size)):
        at = replace(window, part=window.part + number)
        identity = batch_id(row.uuid, table.uuid, at, row.batches + number, row.round)
        yield Batch(identity, row.name, at, rows, last, row.round)


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
    return (_with_op(each, _UPSERT) for each in rows) if window.keys else rows, sent


def _changes(sink: str, keys: Sequence[str], shape: pa.Schema, before: _Batches, after: _Batches) -> _Batches:
    """Upserts in the later state's order, then deletes in the earlier one's.

    :param shape: columns of the later state; the earlier one's values are taken as these types where they can be, so
        that a column of another type is not a difference by itself
    """
    problem = f"several rows have the same {', '.join(keys)}, so changes can't be determined"
    twice = SinkError(sink, problem, "name columns in settings.keys that tell rows apart")
    known: dict[bytes, tuple[bytes, tuple[Any, ...]]] = {}
    met = set[bytes]()
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
            if key in met:
                raise twice
            met.add(key)
            changed.append(known.pop(key, (b"",))[0] != digest)
        yield _with_op(batch.filter(pa.array(changed, pa.bool_())), _UPSERT)
    # A deleted row has its keys alone.
    left = [dict(zip(keys, raw, strict=True)) for _, raw in known.values()]
    yield _with_op(pa.RecordBatch.from_pylist(left, schema=shape), _DELETE)


def _digests(batch: pa.RecordBatch, keys: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    """Of each row's key, whose own text is kept in a buffer that is much larger than it is, and of the row."""
    for row in rows_of(batch):
        yield _digest([row[name] for name in keys]), _digest(row)


def _digest(value: Any) -> bytes:
    return blake2b(dumps(value), digest_size=16).digest()


def _with_op(batch: pa.RecordBatch, op: str) -> pa.RecordBatch:
    return batch.add_column(0, pa.field(_OP, pa.string()), pa.array([op] * batch.num_rows, pa.string()))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


def _cut(batches: _Batches, skip: int, size: int) -> Iterator[tuple[pa.Table, bool]]:
    """Tables of so many rows, without the first ones; and whether it is the last."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        skipped = min(skip, batch.num_rows)
        skip -= skipped
        waiting.append(batch.slice(skipped))
        count += batch.num_rows - skipped
        if count > size:
            table = pa.Table.from_batches(waiting)
            while table.num_rows > size:
                yield table.slice(0, size), False
                table = table.slice(size)
            waiting, count = table.to_batches(), table.num_rows
    if count:
        yield pa.Table.from_batches(waiting), True


def rows_of(table: pa.Table | pa.RecordBatch, keys: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows by column, as :func:`dumps` takes them; a deleted one has its keys alone."""
    columns = [map(_writer(column.type), column.to_pylist()) for column in table.columns]
    for values in zip(*columns, strict=True):
        row = dict(zip(table.schema.names, values, strict=True))
        yield {name: row[name] for name in (_OP, *keys)} if row.get(_OP) == _DELETE and keys else row


def dumps(value: Any) -> bytes:
    """JSON in one line: dates and times are ISO 8601 (UTC is ``Z``), decimals are texts, bytes are base64."""
    return orjson.dumps(value, default=_text, option=orjson.OPT_UTC_Z)


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        # A class of its own, with nanoseconds.
        return value.isoformat().replace("+00:00", "Z")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _writer(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes values of a type such that JSON has words for them: a map without text keys is a list of pairs."""
    types = pa.types
    if types.is_floating(kind):
        return lambda each: each if each is None or math.isfinite(each) else _NOT_FINITE.get(each, "NaN")
    if types.is_map(kind):
        make = dict if kind.key_type in (pa.string(), pa.large_string()) else list
        key, item = _writer(kind.key_type), _writer(kind.item_type)
        return lambda each: None if each is None else make((key(name), item(value)) for name, value in each)
    if types.is_list(kind) or types.is_large_list(kind):
        part = _writer(kind.value_type)
        return lambda each: None if each is None else list(map(part, each))
    if types.is_struct(kind):
        parts = {field.name: _writer(field.type) for field in kind}
        return lambda each: None if each is None else {name: write(each[name]) for name, write in parts.items()}
    return lambda each: each
