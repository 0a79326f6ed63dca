"""Page rows to Arrow, column by column from buffers.

``pa.array(list)`` imports pandas, where it is installed, the first time a process calls it: more than a second
during which every reading thread of an executor stands still.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.refresh.rows import PageRow


def rows_to_table(rows: Sequence[PageRow], schema: pa.Schema) -> pa.Table:
    """The rows as a table of ``schema``, whose columns are named as the row's fields."""
    columns = [_BUILDERS[str(field.type)]([getattr(row, field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _integers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    code = "q" if kind.bit_width == 64 else "i"
    data = array(code, [0 if value is None else value for value in values])
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(data)])


def _booleans(values: Sequence[bool | None], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(_bits(map(bool, values)))])


def _texts(values: Sequence[str | bytes | None], kind: pa.DataType) -> pa.Array:
    data = [b"" if v is None else v if isinstance(v, bytes) else v.encode() for v in values]
    code = "q" if kind == pa.large_string() else "i"
    offsets, end = array(code, [0]), 0
    for item in data:
        end += len(item)
        offsets.append(end)
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(_bits(value is not None for value in values))


def _bits(flags: Any) -> bytes:
    number, length = 0, 0
    for flag in flags:
        number |= bool(flag) << length
        length += 1
    return number.to_bytes((length + 7) // 8 or 1, "little")


_BUILDERS: dict[str, Callable[[Any, pa.DataType], pa.Array]] = {
    "int64": _integers,
    "int32": _integers,
    "timestamp[us, tz=UTC]": _integers,
    "bool": _booleans,
    "string": _texts,
    "large_string": _texts,
}
