"""One JSON value at a time into what its column takes: the slow way, which can say what is wrong.

What is kept without loss is taken: 1.0 in an integer column, an integer in a number column, a number or a boolean as
its JSON text in a string column, a number as a text in a decimal column. A number that a double can't hold is rounded
in a number column, and said so. A text that looks like a number stays a text, and so is wrong in an integer column.
The values returned are JSON again, in the one form that :mod:`.json_columns` reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timezone
from decimal import Context, Decimal
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_rfr.lake.columns import is_json_text
from airflow_provider_rfr.streams.json_numbers import LongNumber, dumps, exact


class Report(Protocol):
    """Takes what can't be kept as it is."""

    def __call__(self, path: str, value: Any, expected: str) -> None:
        """A value that does not fit its column and becomes null."""

    def rounded(self, path: str, value: Any) -> None:
        """A number that becomes its nearest double."""


Coercer = Callable[[Any, Report], Any]

_INFINITE = (float("inf"), float("-inf"))  # what Python reads a number beyond the doubles as
_BEYOND_INT64 = 2.0**64
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_ZONE = r"([Zz]|[+-]\d\d(?::?\d\d)?)?"
_CLOCK = r"(\d\d)(:\d\d)?(:\d\d)?(?:(?<=:\d\d:\d\d)\.(\d+))?"
_INSTANT = re.compile(rf"(\d{{4}}-\d\d-\d\d)(?:[Tt ]{_CLOCK}{_ZONE})?", re.ASCII)
_TIME = re.compile(rf"{_CLOCK}(?:[Zz]|[+-]00:?00)?", re.ASCII)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[Tt ]00:00(?::00)?(?:\.0+)?(?:[Zz]|[+-]00:?00)?)?", re.ASCII)


def record_coercer(schema: pa.Schema) -> Coercer:
    """A function that brings one parsed record into the schema's columns; undeclared fields are left out."""
    columns = _struct(list(schema), "")

    def coerce(record: Any, report: Report) -> Any:
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


def _coercer(field: pa.Field, path: str) -> Coercer:
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


def _struct(fields: list[pa.Field], path: str) -> Coercer:
    prefix = f"{path}." if path else ""
    columns = [(field.name, _coercer(field, prefix + field.name)) for field in fields]

    def coerce(value: Any, report: Report) -> Any:
        if not isinstance(value, dict):
            return report(path, value, "object")
        return {name: column(inner, report) for name, column in columns if (inner := value.get(name)) is not None}

    return coerce


def _list(element: Coercer, path: str) -> Coercer:
    def coerce(value: Any, report: Report) -> Any:
        if not isinstance(value, list):
            return report(path, value, "array")
        return [None if item is None else element(item, report) for item in value]

    return coerce


def _scalar(convert: Callable[[Any], Any], expected: str, path: str) -> Coercer:
    def coerce(value: Any, report: Report) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError, ArithmeticError):
            return report(path, value, expected)

    return coerce


def _json(value: Any, report: Report) -> Any:
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


def _number(path: str) -> Coercer:
    def coerce(value: Any, report: Report) -> Any:
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
        value.encode()  # half a surrogate pair is no text
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
