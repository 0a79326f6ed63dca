"""Newline-delimited JSON to typed Arrow columns, whole blocks at once: all rows fit, or none is returned.

Arrow's JSON reader does the work. Dates and times are read as strings and cast column by column, because its own
reading of them wants every value to carry a zone, or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_MAX_BLOCK = 2**31 - 1
_FIRST_DAY = -719162  # 0001-01-01: years before it, or of five digits, most engines can't show
_LAST_DAY = 2932896  # 9999-12-31
_DAY = 86_400_000_000
_EXACT_INTEGERS = 2.0**53  # up to here, integers that differ are doubles that differ
_LONG_INTEGER = re.compile(rb"[0-9]{16}")

_PARTS = r"^(\d{4}-\d\d-\d\d)[Tt ](\d\d(?::\d\d){0,2})(?:(\.\d{1,6})\d*)?(?:([Zz])|([+-]\d\d:?\d\d|[+-]\d\d))?$"
_DATE_ONLY = r"^(\d{4}-\d\d-\d\d)$"
_TIME_OF_DAY = r"^(\d\d(?::\d\d){0,2})(?:(\.\d{1,6})\d*)?(?:[Zz]|[+-]00:?00)?$"
_ZONELESS = r"^(.{10}T[0-9:.]+)$"


class MisfitError(Exception):
    """Some row of the block does not fit; which one is for others to find out."""


def read_columns(block: bytes, rows: int, schema: pa.Schema) -> pa.Table:
    """The rows of one block as a table of ``schema``; fields that it lacks are dropped.

    :param rows: that the block must hold, at least one
    :raises MisfitError: some value does not fit its column, or a line is no JSON object
    """
    _check_lines(block, rows)
    try:
        table = _read(block, schema)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise MisfitError(str(error)) from error
    if table.num_rows != rows:
        raise MisfitError(f"{table.num_rows} rows instead of {rows}")
    columns = [_finished_column(table.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def has_doubles(kind: pa.DataType) -> bool:
    """Whether some column, or a part of one, is a double."""
    if pa.types.is_struct(kind):
        return any(has_doubles(field.type) for field in kind)
    return has_doubles(kind.value_type) if pa.types.is_list(kind) else kind == pa.float64()


def rounds_integers(table: pa.Table, block: bytes) -> bool:
    """Whether some integer of the block may have become another double."""
    large = any(_is_large(chunk) for column in table.columns if has_doubles(column.type) for chunk in column.chunks)
    return large and _LONG_INTEGER.search(block) is not None


def _is_large(array: pa.Array) -> bool:
    if pa.types.is_struct(array.type):
        return any(_is_large(array.field(number)) for number in range(array.type.num_fields))
    if pa.types.is_list(array.type):
        return _is_large(array.values)
    return array.type == pa.float64() and pc.any(pc.greater_equal(pc.abs(array), _EXACT_INTEGERS)).as_py() is True


def _check_lines(block: bytes, rows: int) -> None:
    # Arrow 26 crashes the process on a record that is a bare null, so every line has to begin an object.
    if block[:1] != b"{" or block.count(b"\n{") != rows - 1 or block.count(b"\n") != rows - 1:
        raise MisfitError("a line is no object")


def _read(block: bytes, schema: pa.Schema) -> pa.Table:
    reading = pa.schema([pa.field(field.name, _reading_type(field.type)) for field in schema])
    return pj.read_json(
        pa.BufferReader(pa.py_buffer(block)),
        read_options=pj.ReadOptions(use_threads=False, block_size=min(len(block) + 1, _MAX_BLOCK)),
        parse_options=pj.ParseOptions(explicit_schema=reading, unexpected_field_behavior="ignore"),
        # A task reads few blocks, and Arrow's default pool takes twice as long for the first.
        memory_pool=pa.system_memory_pool(),
    )


def _reading_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _reading_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_reading_type(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind


def _finished_column(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if not _has_work(wanted):
        return column
    try:
        return pa.chunked_array([_finished(chunk, wanted) for chunk in column.chunks], wanted)
    except pa.ArrowInvalid as error:
        raise MisfitError(str(error)) from error


def _has_work(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_work(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _has_work(kind.value_type)
    return kind in _LEAVES or pa.types.is_decimal(kind)


def _finished(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values as read, in the wanted type and checked."""
    if not _has_work(wanted):
        return array
    if pa.types.is_struct(wanted):
        children = [_finished(array.field(number), field.type) for number, field in enumerate(wanted)]
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    if pa.types.is_list(wanted):
        values = _finished(array.values, wanted.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=wanted, mask=array.is_null())
    if pa.types.is_decimal(wanted):
        array.validate(full=True)  # Arrow 26 reads 1000 into a decimal(5,2)
        return array
    return _LEAVES[wanted](array)


def _finite(numbers: pa.Array) -> pa.Array:
    # Arrow reads an integer beyond the doubles as infinity, and takes the literal NaN.
    if pc.all(pc.is_finite(numbers)).as_py() is False:
        raise pa.ArrowInvalid("a number beyond the doubles")
    return numbers


def _dates(text: pa.Array) -> pa.Array:
    return pc.cast(text, pa.date32())


def _instants(text: pa.Array) -> pa.Array:
    """RFC 3339 to microseconds in UTC; without a zone it is UTC, finer fractions are cut off, a date is midnight."""
    for attempt in (_zoned, _zoneless):
        try:
            return attempt(text)
        except pa.ArrowInvalid:
            continue
    return _zoned(_normalised(text))


def _zoned(text: pa.Array) -> pa.Array:
    return pc.cast(text, pa.timestamp("us", "UTC"))


def _zoneless(text: pa.Array) -> pa.Array:
    return pc.cast(text, pa.timestamp("us")).view(pa.timestamp("us", "UTC"))


def _normalised(text: pa.Array) -> pa.Array:
    text = pc.replace_substring_regex(text, pattern=_DATE_ONLY, replacement=r"\1T00:00:00Z")
    text = pc.replace_substring_regex(text, pattern=_PARTS, replacement=r"\1T\2\3\5")
    return pc.replace_substring_regex(text, pattern=_ZONELESS, replacement=r"\1Z")


def _naive_instants(text: pa.Array) -> pa.Array:
    return _instants(text).view(pa.timestamp("us"))


def _times(text: pa.Array) -> pa.Array:
    """Times of day; of zones only UTC has a meaning without a date."""
    bare = pc.replace_substring_regex(text, pattern=_TIME_OF_DAY, replacement=r"\1\2")
    full = pc.binary_join_element_wise(pa.scalar("1970-01-01T"), bare, pa.scalar(""))
    return pc.cast(pc.cast(full, pa.timestamp("us")), pa.time64("us"))


def _in_range(values: pa.Array) -> pa.Array:
    unit = 1 if pa.types.is_date(values.type) else _DAY
    bounds = pc.min_max(values.view(pa.int32() if unit == 1 else pa.int64())).as_py()
    if bounds["min"] is not None and (bounds["min"] < _FIRST_DAY * unit or bounds["max"] >= (_LAST_DAY + 1) * unit):
        raise pa.ArrowInvalid("a date outside the years 1 to 9999")
    return values


_LEAVES: dict[pa.DataType, Callable[[pa.Array], pa.Array]] = {
    pa.float64(): _finite,
    pa.date32(): lambda text: _in_range(_dates(text)),
    pa.time64("us"): _times,
    pa.timestamp("us"): lambda text: _in_range(_naive_instants(text)),
    pa.timestamp("us", tz="UTC"): lambda text: _in_range(_instants(text)),
}
