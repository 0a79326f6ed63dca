"""Typed rows from pages of newline-delimited JSON: whole blocks by Arrow's reader, and single records value by value.

Whole batches go through Arrow's JSON reader. A batch that does not fit is read in smaller steps until the mismatch is
one page, and that page record by record; then the steps grow again. A block is read whole, or not at all if some row
does not fit. Dates and times are read as strings and cast by column, because Arrow's own parsing wants every value to
carry a zone, or none. Values for columns of JSON text become texts before Arrow reads the block.

Value by value, a value fits if nothing is lost: 1.0 in an integer column, an integer in a number column, a number or
boolean as its JSON text in a string column, a number as text in a decimal column. A number that a double can't hold is
rounded in a number column, and noted. Text that looks like a number does not fit an integer column, unless values are
cast: then text of a number or a boolean is converted, and an object or a list in a string column becomes JSON text.

Columns are built from buffers: ``pa.array(list)`` imports pandas where it is installed, which stops every reading
thread for more than a second.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Context, Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS, is_json_text, is_local_time, is_mixed_text
from airflow_provider_rfr.numbers import (
    EXACT_INTEGERS,
    INFINITE,
    LongNumber,
    as_double,
    as_int64,
    dumps,
    exact,
    json_text,
    loads,
    loses_digits,
    read_number,
)
from airflow_provider_rfr.streams.moments import OFFSET, without_offset
from airflow_provider_rfr.text import cut, page_place

_SHRINK, _GROW = 8, 2
_SHOWN_CHARACTERS = 77
_KINDS = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    LongNumber: "number",
    str: "string",
    dict: "object",
    list: "array",
}
_MAX_BLOCK = 2**31 - 1
_FIRST_DAY = -719162  # 0001-01-01: years before it, or of five digits, most engines can't show
_LAST_DAY = 2932896  # 9999-12-31
_DAY = 86_400_000_000
_LONG_INTEGER = re.compile(rb"[0-9]{16}")
_LONGEST_INTEGER = 20  # signs of an integer of 64 bits

_PARTS = r"^(\d{4}-\d\d-\d\d)[Tt ](\d\d(?::\d\d){0,2})(?:(\.\d{1,6})\d*)?(?:([Zz])|([+-]\d\d:?\d\d|[+-]\d\d))?$"
_DATE_ONLY = r"^(\d{4}-\d\d-\d\d)$"
_TIME_OF_DAY = r"^(\d\d(?::\d\d){0,2})(?:(\.\d{1,6})\d*)?(?:[Zz]|[+-]00:?00)?$"
_ZONELESS = r"^(.{10}T[0-9:.]+)$"


class BlockMismatchError(Exception):
    """Some row of a block does not fit the schema; the error does not say which."""


class BlockReader:
    """A reader of blocks of records into the columns of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._write_texts = _struct_writer(list(schema))
        self._doubles = [field.name for field in schema if _some_leaf(field.type, _is_double)]

    def read(self, block: bytes, rows: int) -> pa.Table:
        """Read the rows of one block, as :func:`read_columns` does, if no number in it is rounded.

        :raises BlockMismatchError: some value does not fit its column, a number is rounded, or a line is not an object
        """
        if self._doubles and loses_digits(block):
            raise BlockMismatchError("a number that a double can't hold")
        if (write := self._write_texts) is not None:
            # Values of a wrong shape stay as they are: Arrow's reader refuses them. parse_int keeps integers of more
            # than 64 bits, which orjson refuses: as strings they would have quotes in a column of JSON texts.
            try:
                block = b"\n".join([dumps(write(loads(line, parse_int=int))) for line in block.split(b"\n")])
            except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
                raise BlockMismatchError(str(error)) from error
        table = read_columns(block, rows, self._schema)
        chunks = (chunk for name in self._doubles for chunk in table.column(name).chunks)
        if any(map(_holds_large_double, chunks)) and _LONG_INTEGER.search(block) is not None:
            raise BlockMismatchError("an integer that a double can't hold")
        return table


def read_columns(block: bytes, rows: int, schema: pa.Schema) -> pa.Table:
    """Read the rows of one block as a table of ``schema``; drop fields that the schema lacks.

    :param rows: number of lines in the block, at least one
    :raises BlockMismatchError: some value does not fit its column, or a line is not a JSON object
    """
    # Arrow 26 crashes the process on a record that is a bare null, so every line has to begin an object.
    if block[:1] != b"{" or block.count(b"\n{") != rows - 1 or block.count(b"\n") != rows - 1:
        raise BlockMismatchError("a line is not an object")
    reading = pa.schema([pa.field(field.name, _reading_type(field.type)) for field in schema])
    try:
        table = pj.read_json(
            pa.BufferReader(pa.py_buffer(block)),
            read_options=pj.ReadOptions(use_threads=False, block_size=min(len(block) + 1, _MAX_BLOCK)),
            parse_options=pj.ParseOptions(explicit_schema=reading, unexpected_field_behavior="ignore"),
            # A task reads few blocks, and Arrow's default pool takes twice as long for the first.
            memory_pool=pa.system_memory_pool(),
        )
        if table.num_rows != rows:
            raise BlockMismatchError(f"{table.num_rows} rows instead of {rows}")
        columns = [
            pa.chunked_array([_finished(chunk, field.type) for chunk in table.column(field.name).chunks], field.type)
            for field in schema
        ]
        local = [table[field.name] for field in schema if is_local_time(field)]
        if any(pc.any(pc.match_substring_regex(column, OFFSET)).as_py() for column in local):
            raise BlockMismatchError("a moment with an offset")
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise BlockMismatchError(str(error)) from error
    return pa.Table.from_arrays(columns, schema=schema)


def _some_leaf(kind: pa.DataType, holds: Callable[[pa.DataType], bool]) -> bool:
    """Tell whether a type, or some type inside of its structs and lists, is of this kind."""
    if pa.types.is_struct(kind):
        return any(_some_leaf(field.type, holds) for field in kind)
    return _some_leaf(kind.value_type, holds) if pa.types.is_list(kind) else holds(kind)


def _is_double(kind: pa.DataType) -> bool:
    return bool(kind == pa.float64())


def _holds_large_double(array: pa.Array) -> bool:
    if pa.types.is_struct(array.type):
        return any(_holds_large_double(array.field(number)) for number in range(array.type.num_fields))
    if pa.types.is_list(array.type):
        return _holds_large_double(array.values)
    return _is_double(array.type) and pc.any(pc.greater_equal(pc.abs(array), EXACT_INTEGERS)).as_py() is True


def _reading_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _reading_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_reading_type(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind


def _finished(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast the values that Arrow read to the wanted type, and check them; raise :class:`pyarrow.ArrowInvalid`."""
    if not _some_leaf(wanted, lambda kind: pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or _is_double(kind)):
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
    if _is_double(wanted):
        # Arrow reads an integer beyond the doubles as infinity, and takes the literal NaN.
        if pc.all(pc.is_finite(array)).as_py() is False:
            raise pa.ArrowInvalid("a number beyond the doubles")
        return array
    if pa.types.is_time(wanted):
        # Of zones only UTC has a meaning without a date.
        bare = pc.replace_substring_regex(array, pattern=_TIME_OF_DAY, replacement=r"\1\2")
        full = pc.binary_join_element_wise(pa.scalar("1970-01-01T"), bare, pa.scalar(""))
        return pc.cast(pc.cast(full, pa.timestamp("us")), wanted)
    unit, integers = (1, pa.int32()) if pa.types.is_date(wanted) else (_DAY, pa.int64())
    values = pc.cast(array, wanted) if pa.types.is_date(wanted) else _instants(array).view(wanted)
    bounds = pc.min_max(values.view(integers)).as_py()
    if bounds["min"] is not None and (bounds["min"] < _FIRST_DAY * unit or bounds["max"] >= (_LAST_DAY + 1) * unit):
        raise pa.ArrowInvalid("a date outside the years 1 to 9999")
    return values


def _instants(text: pa.Array) -> pa.Array:
    """Parse RFC 3339 texts to timestamps in UTC.

    A text without a zone is in UTC, digits beyond microseconds are cut off, and a date means its midnight.
    """
    utc = pa.timestamp("us", "UTC")
    # Arrow casts a column whose values all carry a zone, or none of them. Others are brought into one form first.
    for uniform in (utc, pa.timestamp("us")):
        try:
            return pc.cast(text, uniform).view(utc)
        except pa.ArrowInvalid:
            continue
    text = pc.replace_substring_regex(text, pattern=_DATE_ONLY, replacement=r"\1T00:00:00Z")
    text = pc.replace_substring_regex(text, pattern=_PARTS, replacement=r"\1T\2\3\5")
    return pc.cast(pc.replace_substring_regex(text, pattern=_ZONELESS, replacement=r"\1Z"), utc)


_Write = Callable[[Any], Any]


def _writer(field: pa.Field) -> _Write | None:
    if is_json_text(field):
        return lambda value: dumps(value).decode()
    if is_mixed_text(field):
        return lambda value: dumps(value).decode() if isinstance(value, dict | list) else value
    if pa.types.is_struct(field.type):
        return _struct_writer(list(field.type))
    if not pa.types.is_list(field.type):
        return None
    write = _writer(field.type.value_field)
    if write is None:
        return None

    def write_items(value: Any) -> Any:
        return [None if item is None else write(item) for item in value] if isinstance(value, list) else value

    return write_items


def _struct_writer(fields: list[pa.Field]) -> _Write | None:
    """Return a function that replaces values of JSON text columns by their texts; None if there is no such column."""
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


class Loss(NamedTuple):
    """A value that can't be kept unchanged.

    :ivar expected: the kind of values that its column takes; None for a number that is rounded instead of nulled
    """

    path: str
    value: Any
    expected: str | None


_Coercer = Callable[[Any, list[Loss]], Any]

_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_ZONE = r"([Zz]|[+-]\d\d(?::?\d\d)?)?"
_CLOCK = r"(\d\d)(:\d\d)?(:\d\d)?(?:(?<=:\d\d:\d\d)\.(\d+))?"
_INSTANT = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[Tt ]{_CLOCK}{_ZONE})?", re.ASCII)
_TIME = re.compile(rf"{_CLOCK}(?:[Zz]|[+-]00:?00)?", re.ASCII)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ]00:00(?::00)?(?:\.0+)?(?:[Zz]|[+-]00:?00)?)?", re.ASCII)


def record_coercer(schema: pa.Schema, *, casts: bool = False) -> _Coercer:
    """Return a function that fits one parsed record to the schema's columns and appends lost values to a list.

    Undeclared fields are dropped and do not count as lost.

    :param casts: whether to cast values of another type if nothing is lost
    """
    columns = _struct(list(schema), "", casts)

    def coerce(record: Any, losses: list[Loss]) -> Any:
        if isinstance(record, dict):
            return columns(record, losses)
        losses.append(Loss("$", record, "object"))
        return {}

    return coerce


def _coercer(field: pa.Field, path: str, casts: bool) -> _Coercer:
    kind = field.type
    if is_json_text(field):
        return lambda value, losses: json_text(value)
    if is_mixed_text(field):
        text = _scalar(field, path)
        return lambda value, losses: json_text(value) if isinstance(value, dict | list) else text(value, losses)
    if pa.types.is_struct(kind):
        return _struct(list(kind), path, casts)
    if pa.types.is_list(kind):
        return _list(_coercer(kind.value_field, f"{path}[]", casts), path)
    coerce = _number(path) if _is_double(kind) else _scalar(field, path)
    cast = _CASTS.get(kind) if casts else None
    return coerce if cast is None else lambda value, losses: coerce(cast(value), losses)


def _scalar(field: pa.Field, path: str) -> _Coercer:
    convert, expected = _decimal(field.type) if pa.types.is_decimal(field.type) else _SCALARS[field.type]
    if is_local_time(field):
        convert, expected = lambda value: _instant(without_offset(value)), "local time without an offset"

    def coerce(value: Any, losses: list[Loss]) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError, ArithmeticError):
            losses.append(Loss(path, value, expected))
            return None

    return coerce


def _struct(fields: list[pa.Field], path: str, casts: bool) -> _Coercer:
    prefix = f"{path}." if path else ""
    columns = [(field.name, _coercer(field, prefix + field.name, casts)) for field in fields]

    def coerce(value: Any, losses: list[Loss]) -> Any:
        if not isinstance(value, dict):
            losses.append(Loss(path, value, "object"))
            return None
        return {name: column(inner, losses) for name, column in columns if (inner := value.get(name)) is not None}

    return coerce


def _list(element: _Coercer, path: str) -> _Coercer:
    def coerce(value: Any, losses: list[Loss]) -> Any:
        if not isinstance(value, list):
            losses.append(Loss(path, value, "array"))
            return None
        return [None if item is None else element(item, losses) for item in value]

    return coerce


def _number(path: str) -> _Coercer:
    def coerce(value: Any, losses: list[Loss]) -> Any:
        number = as_double(value)
        if number is None:
            losses.append(Loss(path, value, "number"))
            return None
        if isinstance(value, LongNumber) or value != number:
            losses.append(Loss(path, value, None))
        return number

    return coerce


def _integer(value: Any) -> int:
    if (number := as_int64(value)) is None:
        raise TypeError
    return number


def _decimal(kind: pa.Decimal128Type) -> tuple[Callable[[Any], str], str]:
    step, digits = Decimal(1).scaleb(-kind.scale), Context(prec=kind.precision)

    def convert(value: Any) -> str:
        if isinstance(value, str) and _DECIMAL.fullmatch(value):
            number = Decimal(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            number = exact(value)
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
    if isinstance(value, int | float) and value not in INFINITE:
        return json_text(value)
    raise TypeError


def _matched(pattern: re.Pattern[str], value: str) -> re.Match[str]:
    match = pattern.fullmatch(value)
    if match is None:
        raise ValueError
    return match


def _instant(value: str) -> str:
    day, *clock, zone = _matched(_INSTANT, value).groups()
    offset = "+00:00"
    if zone is not None and zone not in "Zz":
        offset = f"{zone[:3]}:{zone[-2:] if len(zone) > 3 else '00'}"
    instant = datetime.fromisoformat(f"{day}T{_clock(*clock)}{offset}")
    return instant.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _time(value: str) -> str:
    return time.fromisoformat(_clock(*_matched(_TIME, value).groups())).isoformat(timespec="microseconds")


def _clock(hour: str | None, minute: str | None, second: str | None, fraction: str | None) -> str:
    return f"{hour or '00'}{minute or ':00'}{second or ':00'}.{(fraction or '')[:6]:0<6}"


_SCALARS: dict[pa.DataType, tuple[Callable[[Any], Any], str]] = {
    pa.bool_(): (_boolean, "boolean"),
    pa.int64(): (_integer, "integer of 64 bits"),
    pa.string(): (_string, "string"),
    pa.date32(): (lambda value: date.fromisoformat(_matched(_DATE, value)[1]).isoformat(), "date as YYYY-MM-DD"),
    pa.time64("us"): (_time, "time of day as HH:MM:SS without an offset"),
    pa.timestamp("us"): (_instant, "date-time as in RFC 3339"),
    pa.timestamp("us", tz="UTC"): (_instant, "date-time as in RFC 3339"),
}


def _cast_to_number(value: Any) -> Any:
    """Convert a text to a number; return any other value unchanged."""
    if not isinstance(value, str) or not _DECIMAL.fullmatch(text := value.strip()):
        return value
    return int(text) if len(text) <= _LONGEST_INTEGER and text.lstrip("+-").isdigit() else read_number(text)


_BOOLEANS = {"true": True, "false": False}
_CASTS: dict[pa.DataType, _Write] = {
    pa.bool_(): lambda value: _BOOLEANS.get(value.strip().lower(), value) if isinstance(value, str) else value,
    pa.int64(): _cast_to_number,
    pa.float64(): _cast_to_number,
    pa.string(): lambda value: json_text(value) if isinstance(value, dict | list) else value,
}
"""Casts by type of column; Airbyte's destinations cast the same values."""


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """One page as the ledger holds it.

    :ivar partition: key of its partition
    :ivar page: its number in the chain, from 1
    :ivar records: newline-delimited JSON objects (bytes or anything with their buffer), with no integer beyond 64 bits
    :ivar extracted_at_us: when the page arrived, in microseconds since the epoch
    """

    partition: str
    page: int
    records: Any
    record_count: int
    extracted_at_us: int


@dataclass(frozen=True, slots=True)
class _Offender:
    """A value that does not fit its column.

    :ivar record: its number in the page, from 1
    :ivar column: path of the column, ``$`` for the record as a whole
    :ivar value: its JSON, cut to 80 characters
    """

    partition: str
    page: int
    record: int
    column: str
    value: str
    expected: str


@dataclass(frozen=True, slots=True)
class TypedRows:
    """The pages' rows in their order, every record as one row.

    :ivar table: the schema's columns and the system columns; a value that did not fit is null. Under ``fail`` a table
        with offenders must not be published
    :ivar offenders: the first values that did not fit, in the order of rows
    :ivar offender_count: number of all values that did not fit
    """

    table: pa.Table
    offenders: tuple[_Offender, ...] = ()
    offender_count: int = 0


def type_pages(
    pages: Sequence[LedgerPage],
    schema: pa.Schema,
    *,
    generation: int,
    on_type_error: Literal["fail", "null"] = "fail",
    max_offenders: int = 10,
    casts: bool = False,
) -> TypedRows:
    """Read pages into the schema's columns; fields that the schema lacks are dropped (the ledger keeps them).

    ``_rfr_meta`` notes each number that a double column rounded and, if ``on_type_error`` is ``null``, each value that
    became null.

    :param pages: with less than two GiB of records, the limit of a column of strings
    :param schema: without system columns; fields marked by :func:`~airflow_provider_rfr.lake.schemas.json_text_field`
        take any value as JSON text, those by :func:`~airflow_provider_rfr.lake.schemas.mixed_text_field` objects and
        lists
    :param casts: whether a value of another type than its column's is cast, where nothing is lost by it
    :raises LedgerError: a page has another number of lines than its ``record_count``
    """
    reader = _PageReader(schema, max_offenders, note_changes=on_type_error == "null", casts=casts)
    pieces = list(reader.read([page for page in pages if page.record_count or len(page.records)]))
    # Not empty_table(), which imports pandas.
    empty = pa.Table.from_arrays([pa.nulls(0, column.type) for column in schema], schema=schema)
    columns = pa.concat_tables(pieces) if pieces else empty
    generations, extracted_at, meta = (column.type for column in SYSTEM_COLUMNS)
    counts = np.fromiter((page.record_count for page in pages), np.int64, len(pages))
    times = np.fromiter((page.extracted_at_us for page in pages), np.int64, len(pages))
    notes = [reader.changes.get(row) for row in range(reader.rows)] if reader.changes else None
    system = (
        # From buffers: pa.array(list) imports pandas, which takes longer than all the rest.
        pa.Array.from_buffers(
            generations, reader.rows, [None, pa.py_buffer(np.full(reader.rows, generation, np.int64))]
        ),
        pa.Array.from_buffers(extracted_at, reader.rows, [None, pa.py_buffer(np.repeat(times, counts))]),
        pa.nulls(reader.rows, meta) if notes is None else arrow_column(notes, meta),
    )
    table = pa.Table.from_arrays([*columns.columns, *system], schema=pa.schema([*schema, *SYSTEM_COLUMNS]))
    return TypedRows(table, tuple(reader.offenders), reader.offender_count)


class _PageReader:
    """A reader that reads pages one after another, and keeps the values that did not fit.

    :ivar rows: number of rows read so far
    :ivar offenders: the first values that did not fit
    :ivar changes: ``_rfr_meta`` by row: JSON of rounded numbers and, with ``note_changes``, of values that became null
    """

    def __init__(self, schema: pa.Schema, max_offenders: int, *, note_changes: bool, casts: bool = False) -> None:
        self._schema = schema
        self._blocks = BlockReader(schema)
        self._coerce = record_coercer(schema, casts=casts)
        self._max_offenders = max_offenders
        self._note_changes = note_changes
        self.rows = 0
        self.offenders: list[_Offender] = []
        self.offender_count = 0
        self.changes: dict[int, str] = {}

    def read(self, pages: Sequence[LedgerPage]) -> Iterator[pa.Table]:
        """Yield the pages' rows, in pieces."""
        step = len(pages)
        while pages:
            batch = pages[:step]
            # Not the table's own count: a table without columns has none.
            rows = sum(page.record_count for page in batch)
            try:
                table = self._blocks.read(b"\n".join(page.records for page in batch), rows)
            except BlockMismatchError:
                if step > 1:
                    step = max(1, step // _SHRINK)
                    continue
                page = batch[0]
                lines = [line for line in bytes(page.records).split(b"\n") if line.strip()]
                if len(lines) != rows:
                    raise LedgerError(
                        f"{page_place(page.partition, page.page)} holds {len(lines)} records, not {rows}"
                    ) from None
                table = read_columns(self.rewrite(lines, page.partition, page.page), rows, self._schema)
            else:
                step *= _GROW
            self.rows += rows
            pages = pages[len(batch) :]
            yield table

    def rewrite(self, lines: Sequence[bytes], partition: str, page: int) -> bytes:
        """Rewrite the next lines as newline-delimited JSON that surely fits the schema, one line for each."""
        records = []
        for number, line in enumerate(lines, start=1):
            losses: list[Loss] = []
            try:
                value = _DECODER.decode(line.decode())
            except (ValueError, RecursionError):
                losses.append(Loss("$", line.decode(errors="replace"), "a JSON object"))
                records.append(b"{}")
            else:
                records.append(orjson.dumps(self._coerce(value, losses)))
            noted: list[dict[str, str]] = []
            for loss in losses:
                if loss.expected is None:
                    reason = f"a double can't hold {json_text(loss.value)}"
                    noted.append({"field": loss.path, "change": "ROUNDED", "reason": reason})
                    continue
                self.offender_count += 1
                if len(self.offenders) < self._max_offenders:
                    shown = cut(json_text(loss.value), _SHOWN_CHARACTERS)
                    self.offenders.append(_Offender(partition, page, number, loss.path, shown, loss.expected))
                if self._note_changes:
                    reason = f"expected {loss.expected}, got {_KINDS[type(loss.value)]}"
                    noted.append({"field": loss.path, "change": "NULLED", "reason": reason})
            if noted:
                self.changes[self.rows + number - 1] = orjson.dumps({"changes": noted}).decode()
        return b"\n".join(records)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=read_number)


def arrow_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of integers, microseconds, booleans, or (large) strings; None is null, bytes are UTF-8."""
    valid = None if None not in values else _bits([value is not None for value in values])
    if pa.types.is_boolean(kind):
        buffers = [_bits([bool(value) for value in values])]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        data = [b"" if value is None else value if isinstance(value, bytes) else value.encode() for value in values]
        offsets = np.zeros(len(data) + 1, np.int64 if pa.types.is_large_string(kind) else np.int32)
        np.cumsum([len(item) for item in data], out=offsets[1:])
        buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    else:
        code = "q" if kind.bit_width == 64 else "i"
        buffers = [pa.py_buffer(array(code, [0 if value is None else value for value in values]))]
    return pa.Array.from_buffers(kind, len(values), [valid, *buffers])


def _bits(flags: Sequence[bool]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, np.bool_), bitorder="little"))
