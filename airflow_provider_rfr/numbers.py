"""Parsing and writing of JSON that keeps all digits of numbers, from an answer's body to the target.

A double preserves 15 digits of any number and 17 of some. A longer number is parsed as a :class:`LongNumber`, which
behaves as its nearest double and is written with the digits that were sent. An integer beyond 64 bits is parsed as its
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

EXACT_INTEGERS: Final = 2.0**53
"""Up to this value, each integer has a double of its own."""
BEYOND_INT64: Final = 2.0**63
"""From this value on, a double may stand for an integer beyond 64 bits."""
INFINITE: Final = (float("inf"), float("-inf"))
"""Values as which Python parses a number beyond the range of doubles."""

_BEYOND_UINT64 = 2.0**64
_SURE_DIGITS = 15  # a double preserves so many digits of any decimal number
_LONG_INTEGER = 19
_FOLDED = bytes.maketrans(b"123456789.E", b"0000000000e")
_LONG = b"0" * (_SURE_DIGITS + 1)
_TINY = b"e-000"  # an exponent of three digits: the double may be subnormal, with fewer digits
_LONGEST = re.compile(rb"[0-9.]*(?:[eE][+-]?[0-9]+)?")


class LongNumber(float):
    """A number with more digits than its nearest double preserves.

    :ivar text: the number as written in the JSON
    """

    __slots__ = ("text",)

    def __new__(cls, text: str) -> LongNumber:
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[LongNumber], tuple[str]]:
        return LongNumber, (self.text,)


def loads(text: bytes, *, parse_int: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON and return its value.

    :param parse_int: parser of integers for a text with a long number; by default :func:`read_integer`
    :raises orjson.JSONDecodeError: it is not JSON
    """
    value = orjson.loads(text)
    if not loses_digits(text):
        return value
    return json.loads(text, parse_float=read_number, parse_int=parse_int or read_integer)


def dumps(value: Any, option: int = 0) -> bytes:
    """Return compact JSON with the digits of long numbers, and of a Python source's decimals.

    :param option: options of ``orjson.dumps``
    :raises TypeError: the value is not JSON, or an integer is beyond 64 bits
    """
    return orjson.dumps(value, default=_digits, option=option)


def holds_long_number(value: Any) -> bool:
    """Tell whether a value is or holds a long number, of which ``json.dumps`` writes the nearest double."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return any(map(holds_long_number, value)) if isinstance(value, (list, tuple)) else isinstance(value, LongNumber)


def loses_digits(text: bytes) -> bool:
    """Tell whether doubles and integers of 64 bits would change a number in a JSON text.

    May also be True for a string that looks like such a number. If no number is long, the test takes some nanoseconds a
    byte: digits and points are mapped to zeros, and a run of zeros is searched for.
    """
    folded = text.translate(_FOLDED)
    start = folded.find(_LONG)
    while start >= 0:
        digits = _LONGEST.match(text, start)[0]  # type: ignore[index]  # it matches any text
        before = text[start - 1 : start]
        if before != b'"' and _is_lossy(digits, negative=before == b"-"):
            return True
        start = folded.find(_LONG, start + len(digits))
    return _TINY in folded


def read_number(text: str) -> float:
    """Return a JSON number as a double, or as a :class:`LongNumber` if the double differs."""
    value = float(text)
    return value if _holds(value, text) else LongNumber(text)


def read_integer(digits: str) -> int | str:
    """Return a JSON integer; if beyond 64 bits, return its text, since two ids could become the same double."""
    whole = int(digits) if len(digits) < 21 else None
    return whole if whole is not None and -(2**63) <= whole < 2**64 else digits


def exact(value: float) -> Decimal:
    """Return the exact number of the JSON, as a decimal.

    :raises decimal.InvalidOperation: its exponent has more than 18 digits
    """
    if isinstance(value, int):
        return Decimal(value)
    return Decimal(value.text if isinstance(value, LongNumber) else repr(value))


def is_int64(value: int) -> bool:
    """Tell whether an integer fits into 64 bits."""
    return -(2**63) <= value < 2**63


def as_int64(value: Any) -> int | None:
    """Return a number that is whole, ``1.0`` included, as an integer of 64 bits; None for anything else."""
    if isinstance(value, float) and abs(value) < _BEYOND_UINT64 and exact(value) == int(exact(value)):
        value = int(exact(value))
    return value if type(value) is int and is_int64(value) else None


def as_double(value: Any) -> float | None:
    """Return the double nearest to a number; None for anything else, and for a number beyond the range of doubles."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if number in INFINITE else number


def _is_lossy(digits: bytes, negative: bool) -> bool:
    if digits.isdigit():
        integer = f"-{digits.decode()}" if negative else digits.decode()
        return len(digits) >= _LONG_INTEGER and isinstance(read_integer(integer), str)
    try:
        return not _holds(float(digits), digits.decode())
    except ValueError:
        return False  # part of a string, such as an IP address or a version


def _holds(value: float, text: str) -> bool:
    if len(text) <= _SURE_DIGITS and "-" not in text[1:]:
        return True
    shortest = repr(value)
    try:
        return shortest == text or Decimal(shortest) == Decimal(text)
    except InvalidOperation:
        return False  # an exponent that even a Decimal can't hold


def _digits(value: Any) -> orjson.Fragment:
    if isinstance(value, LongNumber):
        return orjson.Fragment(value.text)
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(str(value))
    raise TypeError(f"{type(value).__name__} is not JSON")


def json_text(value: Any) -> str:
    """Return compact JSON of any parsed value."""
    try:
        return dumps(value).decode()
    except TypeError:  # an integer beyond 64 bits, half a surrogate pair, a very deep value
        return json.dumps(value, separators=(",", ":"))
