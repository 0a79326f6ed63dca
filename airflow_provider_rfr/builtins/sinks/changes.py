"""What differs between two states of a table, by key: the rows that came or are others now, and the keys that are gone.

In memory are the keys of the earlier state with a digest of each row, about 400 bytes a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.builtins.sinks.payload import DELETE, OP, UPSERT, dumps, rows_of
from airflow_provider_rfr.exceptions.sinks import SinkError


class Changes:
    """The comparison of two states.

    :ivar shape: columns of the later state; the earlier one's values are taken as these types where they can be, so
        that a column which only has another type now is no difference
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
            shaped = _as(batch, self._shape)
            values = zip(*(shaped.column(name).to_pylist() for name in self._keys), strict=True)
            for (key, digest), raw in zip(self._digests(shaped), values, strict=True):
                if key in self._known:
                    raise self._twice()
                self._known[key] = (digest, raw)
        for batch in after:
            changed = [self._differs(key, digest) for key, digest in self._digests(batch)]
            yield _told(batch.filter(pa.array(changed, pa.bool_())), UPSERT)
        yield self._gone()

    def _digests(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
        for row in rows_of(batch):
            # Of the keys digests too: their own texts are kept in buffers that are much larger than they are.
            yield _digest([row[name] for name in self._keys]), _digest(row)

    def _differs(self, key: bytes, digest: bytes) -> bool:
        before = self._known.get(key)
        if before is None and key in self._known:
            raise self._twice()
        # Met in the later state.
        self._known[key] = None
        return before is None or before[0] != digest

    def _gone(self) -> pa.RecordBatch:
        left = [each[1] for each in self._known.values() if each is not None]
        columns = []
        for field in self._shape:
            at = self._keys.index(field.name) if field.name in self._keys else None
            values = [None] * len(left) if at is None else [raw[at] for raw in left]
            columns.append(pa.array(values, field.type))
        return _told(pa.RecordBatch.from_arrays(columns, schema=self._shape), DELETE)

    def _twice(self) -> SinkError:
        problem = f"several rows have the same {', '.join(self._keys)}, so changes can't be told"
        return SinkError(self._sink, problem, "name columns in settings.keys that tell rows apart")


def _digest(value: Any) -> bytes:
    return blake2b(dumps(value), digest_size=16).digest()


def told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows that came, as changes."""
    return (_told(each, UPSERT) for each in batches)


def _told(batch: pa.RecordBatch, op: str) -> pa.RecordBatch:
    ops = pa.array([op] * batch.num_rows, pa.string())
    fields = [pa.field(OP, pa.string()), *batch.schema]
    return pa.RecordBatch.from_arrays([ops, *batch.columns], schema=pa.schema(fields))


def _as(batch: pa.RecordBatch, shape: pa.Schema) -> pa.RecordBatch:
    columns = [_cast(batch.column(field.name), field.type) for field in shape]
    return pa.RecordBatch.from_arrays(columns, names=shape.names)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column
