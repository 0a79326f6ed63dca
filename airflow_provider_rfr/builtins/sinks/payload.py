"""Rows as JSON: what JSON has no word for is written as text, always in the same way.

Decimals, dates, times and UUIDs are texts (ISO 8601; UTC is ``Z``), bytes are base64, numbers that are none are
``"NaN"``, ``"Infinity"`` and ``"-Infinity"``; a map with text keys is an object, any other a list of pairs.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final

import orjson
import pyarrow as pa

OP: Final = "_op"
"""Name of the field that says what became of a row, in exports of changes."""
UPSERT: Final = "upsert"
DELETE: Final = "delete"

_Write = Callable[[Any], Any]


def rows_of(table: pa.Table | pa.RecordBatch, keys: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows as JSON objects, by column; a deleted one has its keys alone."""
    writers = [(field.name, _writer(field.type)) for field in table.schema]
    columns = [_written(column.to_pylist(), write) for column, (_, write) in zip(table.columns, writers, strict=True)]
    names = [name for name, _ in writers]
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        yield {name: row[name] for name in (OP, *keys)} if row.get(OP) == DELETE and keys else row


def dumps(value: Any) -> bytes:
    """JSON in one line, in UTF-8."""
    return orjson.dumps(value)


def _written(values: list[Any], write: _Write | None) -> list[Any]:
    return values if write is None else [None if each is None else write(each) for each in values]


def _writer(kind: pa.DataType) -> _Write | None:
    """How a value of this type is written; None: as it is."""
    if pa.types.is_map(kind):
        return _map_writer(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _writer(kind.value_type)
        return None if inner is None else lambda values: _written(values, inner)
    if pa.types.is_struct(kind):
        parts = {field.name: _writer(field.type) for field in kind}
        return lambda value: {name: _written([value[name]], write)[0] for name, write in parts.items()}
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind):
        return None
    return None if pa.types.is_large_string(kind) or pa.types.is_null(kind) else _text


def _map_writer(kind: pa.MapType) -> _Write:
    key, item = _writer(kind.key_type), _writer(kind.item_type)

    def write(pairs: list[tuple[Any, Any]]) -> Any:
        found = [(_written([name], key)[0], _written([value], item)[0]) for name, value in pairs]
        return dict(found) if all(isinstance(name, str) for name, _ in found) else [list(each) for each in found]

    return write


def _text(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, datetime):
        utc = value.utcoffset() == timedelta(0)
        return value.isoformat().removesuffix("+00:00") + "Z" if utc else value.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
