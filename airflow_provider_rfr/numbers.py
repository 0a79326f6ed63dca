"""Exact integers and decimals of JSON, whose numbers keep their digits from an answer's body to the target.

A double holds 15 digits of any number and 17 of some. What is longer is parsed as a :class:`LongNumber`, which counts
as its nearest double and is written with the digits that were sent. An integer beyond 64 bits is parsed as its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

EXACT_INTEGERS: Final = 2.0**53
"""Up to here, integers that differ are doubles that differ."""
BEYOND_INT64: Final = 2.0**63
"""From here on, a double may stand for an integer beyond 64 bits."""
INFINITE: Final = (float("inf"), float("-inf"))
"""What Python reads a number beyond the doubles as."""

_BEYOND_UINT64 = 2.0**64
_SURE_DIGITS = 15  # of any decimal number, a double gives so many back
_LONG_INTEGER = 19
_FOLDED = bytes.maketrans(b"123456789.E", b"0000000000e")
_LONG = b"0" * (_SURE_DIGITS + 1)
_TINY = b"e-000"  # an exponent of three digits: beyond the doubles that have all theirs
_LONGEST = re.compile(rb"[0-9.]*(?:[eE][+-]?[0-9]+)?")


class LongNumber(float):
    """A number with more digits than its nearest double gives back.

    :ivar text: as the JSON had it
    """

    __slots__ = ("text",)

    def __new__(cls, text: str) -> LongNumber:
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str

    def __reduce__(self) -> tuple[type[LongNumber], tuple[str]]:
        return LongNumber, (self.text,)


def loads(text: bytes, *, parse_int: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON and return its value.

    :param parse_int: makes an integer of digits, where a number is long; None: :func:`read_integer`
    :raises orjson.JSONDecodeError: it is not JSON
    """
    value = orjson.loads(text)
    if not loses_digits(text):
        return value
    return json.loads(text, parse_float=read_number, parse_int=parse_int or read_integer)


def dumps(value: Any, option: int = 0) -> bytes:
    """Return compact JSON with the digits of long numbers, and of a Python source's decimals.

    :param option: of orjson
    :raises TypeError: the value is not JSON, or an integer is beyond 64 bits
    """
    return orjson.dumps(value, default=_digits, option=option)


def loses_digits(text: bytes) -> bool:
    """Tell whether a number in a JSON text would be changed by doubles and integers of 64 bits.

    True also for some texts that only look like such a number. Where no number is long, a look of some nanoseconds a
    byte: digits and points all become zeros, and a row of them is searched for.
    """
    folded = text.translate(_FOLDED)
    start = folded.find(_LONG)
    while start >= 0:
        digits = _LONGEST.match(text, start)[0]  # type: ignore[index]  # it matches any text
        if _is_lossy(digits) and text[start - 1 : start] != b'"':
            return True
        start = folded.find(_LONG, start + len(digits))
    return _TINY in folded


def read_number(text: str) -> float:
    """Return a JSON number as a double, or as a :class:`LongNumber` if the double differs."""
    value = float(text)
    return value if _holds(value, text) else LongNumber(text)


def read_integer(digits: str) -> int | str:
    """Return a JSON integer; one of more than 64 bits as its text, since as doubles two ids could become the same."""
    whole = int(digits) if len(digits) < 21 else None
    return whole if whole is not None and -(2**63) <= whole < 2**64 else digits


def exact(value: float) -> Decimal:
    """Return the number that the JSON had, also of an integer.

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
    """Return the double next to a number; None for anything else, and for a number beyond the doubles."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if number in INFINITE else number


def _is_lossy(digits: bytes) -> bool:
    if digits.isdigit():
        return len(digits) >= _LONG_INTEGER and isinstance(read_integer(digits.decode()), str)
    try:
        return not _holds(float(digits), digits.decode())
    except ValueError:
        return False  # an address, a version: in a text


def _holds(value: float, text: str) -> bool:
    if len(text) <= _SURE_DIGITS and "-" not in text[1:]:
        return True
    shortest = repr(value)
    try:
        return shortest == text or Decimal(shortest) == Decimal(text)
    except InvalidOperation:
        return False  # an exponent beyond even decimals


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
