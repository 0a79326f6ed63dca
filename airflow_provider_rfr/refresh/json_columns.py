"""Newline-delimited JSON to typed Arrow columns, in whole blocks: all rows fit, or none is returned.

Arrow's JSON reader does the work. Dates and times are read as strings and cast by column, because its own parsing wants
every value to carry a zone, or none. Columns of JSON text are filled before Arrow reads.

Value by value, what is kept without loss is taken: 1.0 in an integer column, an integer in a number column, a number or
boolean as its JSON text in a string column, a number as text in a decimal column. A number that a double can't hold is
rounded in a number column, and noted. Text that looks like a number is wrong in an integer column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timezone
from decimal import Context, Decimal
from typing import Any, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_rfr.lake.types import is_json_text
from airflow_provider_rfr.streams.json_numbers import LongNumber, dumps, exact, loads

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
    :raises MisfitError: some value does not fit its column, or a line is not a JSON object
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
        raise MisfitError("a line is not an object")


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

_Write = Callable[[Any], Any]


def text_writer(schema: pa.Schema) -> Callable[[bytes], bytes] | None:
    """A function that replaces, in a block of lines, each value of a JSON text column by its text.

    None where the schema has no such column. The function raises :class:`MisfitError` for a line that is not JSON, and
    leaves values of a wrong shape as they are, for others to find.
    """
    write = _struct_writer(list(schema))
    if write is None:
        return None

    def rewrite(block: bytes) -> bytes:
        try:
            return b"\n".join([dumps(write(loads(line))) for line in block.split(b"\n")])
        except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
            raise MisfitError(str(error)) from error

    return rewrite


def _writer(field: pa.Field) -> _Write | None:
    if is_json_text(field):
        return _text
    if pa.types.is_struct(field.type):
        return _struct_writer(list(field.type))
    if pa.types.is_list(field.type):
        return _list_writer(_writer(field.type.value_field))
    return None


def _text(value: Any) -> str:
    return dumps(value).decode()


def _struct_writer(fields: list[pa.Field]) -> _Write | None:
    writers = [(field.name, write) for field in fields if (write := _writer(field)) is not None]
    if not writers:
        return None

    def write_fields(value: Any) -> Any:
        if isinstance(value, dict):
            for name, write in writers:
                if (inner := value.get(name)) is not None:
                    value[name] = write(inner)
        return value

    return write_fields


def _list_writer(write: _Write | None) -> _Write | None:
    if write is None:
        return None

    def write_items(value: Any) -> Any:
        return [None if item is None else write(item) for item in value] if isinstance(value, list) else value

    return write_items


class _Report(Protocol):
    """Takes what can't be kept as it is."""

    def __call__(self, path: str, value: Any, expected: str) -> None:
        """A value that does not fit its column and becomes null."""

    def rounded(self, path: str, value: Any) -> None:
        """A number that becomes its nearest double."""


_Coercer = Callable[[Any, _Report], Any]

_INFINITE = (float("inf"), float("-inf"))  # what Python reads a number beyond the doubles as
_BEYOND_INT64 = 2.0**64
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_ZONE = r"([Zz]|[+-]\d\d(?::?\d\d)?)?"
_CLOCK = r"(\d\d)(:\d\d)?(:\d\d)?(?:(?<=:\d\d:\d\d)\.(\d+))?"
_INSTANT = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[Tt ]{_CLOCK}{_ZONE})?", re.ASCII)
_TIME = re.compile(rf"{_CLOCK}(?:[Zz]|[+-]00:?00)?", re.ASCII)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ]00:00(?::00)?(?:\.0+)?(?:[Zz]|[+-]00:?00)?)?", re.ASCII)


def record_coercer(schema: pa.Schema) -> _Coercer:
    """A function that brings one parsed record into the schema's columns; undeclared fields are left out."""
    columns = _struct(list(schema), "")

    def coerce(record: Any, report: _Report) -> Any:
        if isinstance(record, dict):
            return columns(record, report)
        report("$", record, "object")
        return {}

    return coerce


def json_text(value: Any) -> str:
    """Compact JSON of any parsed value."""
    try:
        return dumps(value).decode()
    except TypeError:  # an integer beyond 64 bits, half a surrogate pair, a very deep value
        return json.dumps(value, separators=(",", ":"))


def _coercer(field: pa.Field, path: str) -> _Coercer:
    if is_json_text(field):
        return _json
    kind = field.type
    if pa.types.is_struct(kind):
        return _struct(list(kind), path)
    if pa.types.is_list(kind):
        return _list(_coercer(kind.value_field, f"{path}[]"), path)
    if kind == pa.float64():
        return _number(path)
    convert, expected = _decimal(kind) if pa.types.is_decimal(kind) else _SCALARS[kind]
    return _scalar(convert, expected, path)


def _struct(fields: list[pa.Field], path: str) -> _Coercer:
    prefix = f"{path}." if path else ""
    columns = [(field.name, _coercer(field, prefix + field.name)) for field in fields]

    def coerce(value: Any, report: _Report) -> Any:
        if not isinstance(value, dict):
            return report(path, value, "object")
        return {name: column(inner, report) for name, column in columns if (inner := value.get(name)) is not None}

    return coerce


def _list(element: _Coercer, path: str) -> _Coercer:
    def coerce(value: Any, report: _Report) -> Any:
        if not isinstance(value, list):
            return report(path, value, "array")
        return [None if item is None else element(item, report) for item in value]

    return coerce


def _scalar(convert: Callable[[Any], Any], expected: str, path: str) -> _Coercer:
    def coerce(value: Any, report: _Report) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError, ArithmeticError):
            return report(path, value, expected)

    return coerce


def _json(value: Any, report: _Report) -> Any:
    return json_text(value)


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number = value
        if isinstance(value, float) and abs(value) < _BEYOND_INT64 and exact(value) == int(exact(value)):
            number = int(exact(value))
        if type(number) is int and low <= number <= high:
            return number
        raise TypeError

    return convert


def _number(path: str) -> _Coercer:
    def coerce(value: Any, report: _Report) -> Any:
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else _INFINITE[0]
        except OverflowError:
            number = _INFINITE[0]
        if number in _INFINITE:
            return report(path, value, "number")
        if isinstance(value, LongNumber) or value != number:
            report.rounded(path, value)
        return number

    return coerce


def _decimal(kind: pa.Decimal128Type) -> tuple[Callable[[Any], str], str]:
    step, digits = Decimal(1).scaleb(-kind.scale), Context(prec=kind.precision)

    def convert(value: Any) -> str:
        if isinstance(value, str) and _DECIMAL.fullmatch(value):
            number = Decimal(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            number = exact(value) if isinstance(value, float) else Decimal(value)
        else:
            raise TypeError
        fixed = number.quantize(step, context=digits)  # an error where it takes more digits
        if fixed != number:
            raise ValueError
        return f"{fixed:f}"

    return convert, f"decimal({kind.precision},{kind.scale})"


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError


def _string(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # half a surrogate pair is not text
        return value
    if isinstance(value, int | float) and value not in _INFINITE:
        return json_text(value)
    raise TypeError


def _instant(value: Any) -> str:
    found = _INSTANT.fullmatch(value)
    if found is None:
        raise ValueError
    day, *clock, zone = found.groups()
    instant = datetime.fromisoformat(f"{day}T{_clock(*clock)}{_offset(zone)}")
    return instant.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _date(value: Any) -> str:
    found = _DATE.fullmatch(value)
    if found is None:
        raise ValueError
    return date.fromisoformat(found[1]).isoformat()


def _time(value: Any) -> str:
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError
    return time.fromisoformat(_clock(*found.groups())).isoformat(timespec="microseconds")


def _clock(hour: str | None, minute: str | None, second: str | None, fraction: str | None) -> str:
    return f"{hour or '00'}{minute or ':00'}{second or ':00'}.{(fraction or '')[:6]:0<6}"


def _offset(zone: str | None) -> str:
    if zone is None or zone in "Zz":
        return "+00:00"
    return f"{zone[:3]}:{zone[-2:] if len(zone) > 3 else '00'}"


_SCALARS: dict[pa.DataType, tuple[Callable[[Any], Any], str]] = {
    pa.bool_(): (_boolean, "boolean"),
    pa.int64(): (_integer(-(2**63), 2**63 - 1), "integer of 64 bits"),
    pa.string(): (_string, "string"),
    pa.date32(): (_date, "date as YYYY-MM-DD"),
    pa.time64("us"): (_time, "time of day as HH:MM:SS without an offset"),
    pa.timestamp("us"): (_instant, "date-time as in RFC 3339"),
    pa.timestamp("us", tz="UTC"): (_instant, "date-time as in RFC 3339"),
}
