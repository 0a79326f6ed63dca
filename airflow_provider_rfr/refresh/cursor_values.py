"""Conversions of cursor values: into a comparable form, and into the text that a state keeps.

The comparable form of a moment is microseconds since 1970, of an integer the integer, and of a text its UTF-8 bytes. A
value that can't be parsed becomes null: it is of no use as a cursor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.exceptions import ConfigurationError, SyncStateError
from airflow_provider_rfr.streams.incremental import CursorColumn
from airflow_provider_rfr.streams.moments import moment_of, read_moment, write_moment, zone_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TICK: Final = timedelta(microseconds=1)
_MANY_DIGITS: Final = pa.decimal128(38, 0)
_LARGEST: Final = 2.0**62
_FIRST: Final = (datetime.min.replace(tzinfo=timezone.utc) - _EPOCH) // _TICK
_LAST: Final = (datetime.max.replace(tzinfo=timezone.utc) - _EPOCH) // _TICK
_CLOCKS_APART: Final = timedelta(hours=1)
_INTEGER: Final = re.compile(r"-?[0-9]+")
_SCALE: Final = {"epoch": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1}


def comparable(values: pa.ChunkedArray, column: CursorColumn) -> pa.Array:
    """Return the column's values in their comparable form; null for a value that can't be parsed.

    :return: int64, decimal128(38, 0) or large_binary
    :raises ConfigurationError: the column's type can't be a cursor of that kind
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    kind = array.type
    if column.kind == "text" and _is_text(kind):
        return array.cast(pa.large_string()).view(pa.large_binary())
    if column.kind == "integer":
        if pa.types.is_integer(kind):
            return array.cast(pa.int64())
        if pa.types.is_decimal(kind) and kind.scale == 0:
            return array.cast(_MANY_DIGITS)
    if column.kind == "datetime" and (moments := _moments(array, column)) is not None:
        # Other moments come from a number that is in another unit than the format says.
        is_moment = pc.and_(pc.greater_equal(moments, _FIRST), pc.less_equal(moments, _LAST))
        return pc.if_else(is_moment, moments, None)
    raise ConfigurationError(
        f"incremental.cursor_field {column.name}",
        f"is a column of type {kind}, which is no {column.kind}",
        "declare the column's type (columns), or the cursor's own (incremental.type, incremental.format)",
    )


def _moments(array: pa.Array, column: CursorColumn) -> pa.Array | None:
    """Return moments as microseconds since 1970; None if the array's type can't hold moments."""
    kind = array.type
    if pa.types.is_date(kind):
        # A date is the midnight at which it begins in the cursor's time zone, as it is for a date in text form.
        array, kind = array.cast(pa.date32()).cast(pa.timestamp("us")), pa.timestamp("us")
    if pa.types.is_timestamp(kind):
        moments = array.cast(pa.timestamp("us", kind.tz))
        if kind.tz is None and column.timezone != "UTC":
            moments = pc.assume_timezone(moments, column.timezone, ambiguous="earliest", nonexistent="earliest")
        return moments.cast(pa.int64())
    # Numbers of an epoch format become null if their microseconds are beyond 64 bits.
    scale = next((_SCALE[form] for form in _formats(column) if form in _SCALE), None)
    if scale is not None and pa.types.is_floating(kind):
        values = pc.round(pc.multiply(array.cast(pa.float64()), float(scale)))
        return pc.if_else(pc.less(pc.abs(values), _LARGEST), values, None).cast(pa.int64())
    if scale is not None and pa.types.is_integer(kind):
        array, most = array.cast(pa.int64()), 2**63 // scale - 1
        fits = pc.and_(pc.greater_equal(array, -most), pc.less_equal(array, most))
        return pc.multiply(pc.if_else(fits, array, None), scale)
    if not _is_text(kind):
        return None
    # Each distinct text is parsed once, because texts repeat; one by one, because their formats may differ.
    read, encoded = _moment_reader(column), array.dictionary_encode()
    numbers = pa.array([read(text) for text in encoded.dictionary.to_pylist()], pa.int64())
    return numbers.take(encoded.indices)


def _formats(column: CursorColumn) -> tuple[str, ...]:
    """Return the formats in the order in which they are tried."""
    return (*column.tried_before, column.format)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _moment_reader(column: CursorColumn) -> Callable[[str], int | None]:
    """Return a function that parses a text to microseconds since 1970; it returns None if no format fits."""
    zone = zone_of(column.timezone)

    def parse(text: str, form: str) -> int:
        if form in _SCALE:
            number = int(Decimal(text) * _SCALE[form])
            if not _FIRST <= number <= _LAST:
                raise ValueError(f"{text!r} is beyond the years 1 to 9999")
            return number
        moment = moment_of(text, zone) if form == "iso" else datetime.strptime(text, form)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        return (moment - _EPOCH) // _TICK

    def read(text: str) -> int | None:
        for form in _formats(column):
            with suppress(ValueError, ArithmeticError):
                return parse(text, form)
        return None

    return read


def moment_in(value: Any) -> datetime:
    """Return the moment of a comparable value, in UTC."""
    return _EPOCH + timedelta(microseconds=int(value))


def text_of(value: Any, column: CursorColumn) -> str:
    """Return the text by which a state keeps a comparable value."""
    if column.kind == "datetime":
        return write_moment(moment_in(value))
    return value.decode() if column.kind == "text" else str(int(value))


def value_of(text: str, column: CursorColumn) -> Any:
    """Return the comparable value of a state's text.

    :raises SyncStateError: the text is not of the cursor's type
    """
    try:
        if column.kind == "datetime":
            return (read_moment(text) - _EPOCH) // _TICK
        return text.encode() if column.kind == "text" else int(text)
    except (ValueError, OverflowError):
        raise SyncStateError(f"{text!r} in the state is no {column.kind}") from None


def check_past(value: Any, column: CursorColumn, now: datetime) -> None:
    """Check that a state's comparable value is no moment in the future: syncs would miss all changes until then.

    :raises SyncStateError: it is more than an hour later than ``now``
    """
    if column.kind == "datetime" and value > (now + _CLOCKS_APART - _EPOCH) // _TICK:
        raise SyncStateError(
            f"the state has {text_of(value, column)}, which has not come yet, so no sync would read what changes until"
            " then; run once with full_refresh: true, or set an earlier state with airflow rfr refresh state set"
        )


def comparable_text(text: str, column: CursorColumn) -> Any:
    """Return the comparable value of a text that another tool or a source wrote; None if it can't be parsed."""
    if column.kind == "text":
        return text.encode()
    if column.kind == "integer":
        return int(text) if _INTEGER.fullmatch(text) else None
    values = (
        comparable(pa.chunked_array([[text]]), form)[0].as_py() for form in (column, replace(column, format="iso"))
    )
    return next((value for value in values if value is not None), None)


def least(*texts: str | None, column: CursorColumn) -> str | None:
    """Return the text with the least value; None without any."""
    present = [text for text in texts if text is not None]
    return min(present, key=lambda text: value_of(text, column), default=None)


def greatest(*texts: str | None, column: CursorColumn) -> str | None:
    """Return the text with the greatest value; None without any."""
    present = [text for text in texts if text is not None]
    return max(present, key=lambda text: value_of(text, column), default=None)
