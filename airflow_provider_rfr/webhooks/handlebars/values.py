"""Values of templates as JavaScript sees them, and the budget of one rendering.

Values are what JSON has (None, bool, int, float, str, lists, maps) and ``UNDEFINED``. Whole numbers are exact, however
large: a snapshot id does not survive JavaScript's one kind of number. Nothing here reads an attribute of a value, calls
one, or makes text of a list or map. Times are RFC 3339, compared as instants.

A budget counts steps, and bytes of UTF-8 **before** a text is made: :meth:`Budget.fits` and :meth:`Budget.writes` are
asked first, so a text that is too large is never in memory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import chain
from typing import Any, TypeGuard
from zoneinfo import ZoneInfo

WHITESPACE = " \t\n\r\v\f\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""What JavaScript means by ``\\s``; Python's has a few control characters more."""

LONGEST_SHOWN = 60


class _Undefined:
    """What JavaScript has besides null: there is no such thing. One object, :data:`UNDEFINED`."""

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED = _Undefined()


class Problem(Exception):
    """Something is wrong at this offset of the template; it leaves the room as a ``TemplateError``.

    :ivar problem: what is wrong; it may hold names of the template, and never a value
    """

    def __init__(self, problem: str, at: int) -> None:
        self.problem = problem
        self.at = at
        super().__init__(problem)


def shown(name: str) -> str:
    """A name of the template as it stands in an error."""
    return repr(name if len(name) <= LONGEST_SHOWN else name[: LONGEST_SHOWN - 3] + "...")


_MAX_SAFE_INTEGER = 2**53 - 1
_LONGEST_INTEGER_BITS = 13_000
_LAST_INDEX = 2**32 - 2
_DEEPEST = 100

# A name that every object or list of JavaScript has from its prototype is there, and handlebars.js gives undefined.
_OF_OBJECTS = (
    "constructor hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString toString valueOf"
    " __defineGetter__ __defineSetter__ __lookupGetter__ __lookupSetter__ __proto__"
)
_OF_LISTS = (
    "at concat copyWithin entries every fill filter find findIndex findLast findLastIndex flat flatMap forEach includes"
    " indexOf join keys lastIndexOf map pop push reduce reduceRight reverse shift slice some sort splice toReversed"
    " toSorted toSpliced unshift values with"
)
_OBJECT_NAMES = frozenset(_OF_OBJECTS.split())
_LIST_NAMES = _OBJECT_NAMES | frozenset(_OF_LISTS.split())
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z", re.ASCII)
_JS_NUMBER = re.compile(r"(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\Z", re.ASCII)


class JsonText(str):
    """Text that is one whole JSON value."""

    __slots__ = ()


class NoText(Exception):
    """This value has no text in a template.

    :ivar kind: what it is, as an error says it; never the value
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(kind)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def is_map(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, (dict, Mapping))


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_scalar(value: object) -> bool:
    return value is None or value is UNDEFINED or isinstance(value, (str, int, float))


def kind_of(value: object) -> str:
    """What it is, for an error."""
    for kind, sort in (("true or false", bool), ("a number", (int, float)), ("text", str)):
        if isinstance(value, sort):
            return kind
    if is_list(value):
        return "a list"
    if is_map(value):
        return "a map"
    if value is None or value is UNDEFINED:
        return "null"
    return f"a {type(value).__name__}, which is not a value of JSON"


def text_of(value: object) -> str:
    """What is printed for it.

    :raises NoText: for lists, maps, numbers that are not finite, and what JSON does not have
    """
    if isinstance(value, str):
        return value if type(value) is str else str.__str__(value)
    if value is None or value is UNDEFINED:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if value.bit_length() > _LONGEST_INTEGER_BITS:
            raise NoText("a number that is too long")
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoText("a number that is not finite")
        return _float_text(value)
    raise NoText(kind_of(value))


def _float_text(value: float) -> str:
    """A number as JavaScript writes it: the same digits as Python's, and an exponent only from 1e21 and below 1e-6."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(float.__repr__(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + exponent
    if len(text) <= point <= 21:
        text += "0" * (point - len(text))
    elif 0 < point <= 21:
        text = f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{text}"
    else:
        text = f"{text[0]}{'.' if text[1:] else ''}{text[1:]}e{point - 1:+d}"
    return f"-{text}" if sign else text


def number_name(value: float) -> str:
    """The name that a number spells where a name is expected: ``{{1.50}}`` is the variable ``1.5``."""
    exact = isinstance(value, int) and abs(value) <= _MAX_SAFE_INTEGER
    return str(value) if exact else _float_text(float(value))


def key_of(value: object) -> str:
    """The name of the property that JavaScript looks for.

    :raises NoText: as :func:`text_of`
    """
    if value is None:
        return "null"
    return "undefined" if value is UNDEFINED else text_of(value)


def is_true(value: object, *, include_zero: bool = False) -> bool:
    """Whether ``{{#if}}`` takes its first branch: not for false, null, "", 0 and ``[]``, but for an empty map."""
    if is_list(value):
        return len(value) > 0
    if is_number(value):
        return value == value and (include_zero or value != 0)  # no branch for NaN
    return bool(value) if isinstance(value, (str, bool)) else not (value is None or value is UNDEFINED)


def is_empty(value: object) -> bool:
    """Whether ``{{#with}}`` takes its ``{{else}}``."""
    return not is_true(value, include_zero=True)


def has(value: object, name: str) -> bool:
    """Whether strict mode finds the name: on lists and maps alone."""
    if is_map(value):
        return name in value or name in _OBJECT_NAMES
    if is_list(value):
        return name == "length" or name in _LIST_NAMES or _item(value, name) is not UNDEFINED
    return False


def get(value: object, name: str) -> object:
    """What is there by that name, without asking anything's attributes; ``UNDEFINED`` where there is nothing."""
    if is_map(value):
        return value.get(name, UNDEFINED)
    if is_list(value):
        return len(value) if name == "length" else _item(value, name)
    if isinstance(value, str) and (name == "length" or _INDEX.match(name)):
        units = text_of(value).encode("utf-16-le", "surrogatepass")
        if name == "length":
            return len(units) // 2
        unit = units[2 * int(name) : 2 * int(name) + 2]
        return unit.decode("utf-16-le", "surrogatepass") if unit else UNDEFINED
    return UNDEFINED


def _item(value: Sequence[Any], name: str) -> object:
    if not _INDEX.match(name):
        return UNDEFINED
    index = int(name)
    return value[index] if index < len(value) else UNDEFINED


def keys(value: Mapping[Any, object]) -> list[str]:
    """Keys in JavaScript's order: those that are list indices by size, then the others as they were put in.

    :raises NoText: a key is not text
    """
    indices: list[int] = []
    others: list[str] = []
    for key in value:
        if not isinstance(key, str):
            raise NoText("a map with a key that is not text")
        if _INDEX.match(key) and int(key) <= _LAST_INDEX:
            indices.append(int(key))
        else:
            others.append(key)
    return list(chain(map(str, sorted(indices)), others)) if indices else others


def same(one: object, other: object) -> bool:
    """JavaScript's ``==``, by which handlebars.js decides whether ``../`` of a block leads to what is around it."""
    if one is other:
        return True
    nothing = (one is None or one is UNDEFINED, other is None or other is UNDEFINED)
    if any(nothing):
        return all(nothing)
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    containers = (is_list(one) or is_map(one), is_list(other) or is_map(other))
    if all(containers):
        return False
    if containers[0]:
        one = _primitive(one)
    if containers[1]:
        other = _primitive(other)
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    return _number(one) == _number(other)


def _primitive(value: object) -> str:
    """What JavaScript compares a list or map as. A list of several is never the like of what templates compare."""
    for _ in range(_DEEPEST):
        if not is_list(value) or len(value) != 1:
            break
        value = value[0]
    if is_map(value):
        return "[object Object]"
    try:
        return "" if is_list(value) and not value else text_of(value)
    except NoText:
        return ",\0"


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return value
    text = str.strip(value) if isinstance(value, str) else "-"
    if not text:
        return 0
    return float(text) if len(text) < 300 and _JS_NUMBER.match(text) else math.nan


_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))\Z"
)
# English, whatever the locale.
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WINTER_TO_SUMMER = ("January", "February", "March", "April", "May", "June")
_MONTHS = (*_WINTER_TO_SUMMER, "July", "August", "September", "October", "November", "December")
_LONGEST_ZONE = 64
UTC_FORMAT, LOCAL_FORMAT = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%z"

# strftime itself depends on locale and C library, and takes widths like %999999999d.
_FIELDS: dict[str, Callable[[datetime], str]] = {
    "Y": lambda when: f"{when.year:04d}",
    "y": lambda when: f"{when.year % 100:02d}",
    "m": lambda when: f"{when.month:02d}",
    "d": lambda when: f"{when.day:02d}",
    "j": lambda when: f"{when.timetuple().tm_yday:03d}",
    "H": lambda when: f"{when.hour:02d}",
    "I": lambda when: f"{when.hour % 12 or 12:02d}",
    "p": lambda when: "AM" if when.hour < 12 else "PM",
    "M": lambda when: f"{when.minute:02d}",
    "S": lambda when: f"{when.second:02d}",
    "L": lambda when: f"{when.microsecond // 1000:03d}",
    "f": lambda when: f"{when.microsecond:06d}",
    "A": lambda when: _DAYS[when.weekday()],
    "a": lambda when: _DAYS[when.weekday()][:3],
    "B": lambda when: _MONTHS[when.month - 1],
    "b": lambda when: _MONTHS[when.month - 1][:3],
    "z": lambda when: _offset(when),
    "s": lambda when: str(int((when - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1))),
    "%": lambda when: "%",
}
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)
FIELDS = " ".join(f"%{letter}" for letter in _FIELDS)


def moment(text: str) -> tuple[datetime, str] | None:
    """The whole second in UTC, and the digits behind it without zeros at the end: pairs compare as instants."""
    found = _RFC3339.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
    fraction, sign, hours, minutes = found.group(7, 9, 10, 11)
    if sign and (hours > "23" or minutes > "59"):
        return None
    offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
        return local + offset if sign == "-" else local - offset, (fraction or "").rstrip("0")
    except (ValueError, OverflowError):
        return None


def zone(name: str) -> tzinfo | None:
    """The time zone of that name, if there is one."""
    if name in ("UTC", "Z"):
        return timezone.utc
    if len(name) > _LONGEST_ZONE:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


def unknown_field(form: str) -> str | None:
    """The first directive of a format that is none of :data:`FIELDS`."""
    return next((found.group() for found in _DIRECTIVE.finditer(form) if found.group(1) not in _FIELDS), None)


def formatted(when: tuple[datetime, str], form: str, where: tzinfo) -> str | None:
    """The time in that zone; ``None`` where the zone puts it beyond the years 1 to 9999."""
    second, digits = when
    try:
        local = second.replace(microsecond=int(digits[:6].ljust(6, "0"))).astimezone(where)
        return _DIRECTIVE.sub(lambda found: _FIELDS[found.group(1)](local), form)
    except (ValueError, OverflowError):
        return None


def _offset(when: datetime) -> str:
    minutes = int((when.utcoffset() or timedelta()) / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


_MAX_STEPS = 200_000
_MAX_TEXT = 1 << 20
_PER_STEP = 256


def size_of(text: str) -> int:
    """Bytes of the text in UTF-8; of one that is too large in any case, its characters."""
    if text.isascii() or len(text) > _MAX_TEXT:
        return len(text)
    return len(str.encode(text, "utf-8", "surrogatepass"))


class Budget:
    """Counts steps and bytes of one rendering, or of one payload's renderings together.

    A step is a statement, a name or literal, a turn of ``{{#each}}``, a node of a value made into JSON, or 256
    characters that a helper goes through or makes, so that time is bounded by steps.
    """

    __slots__ = ("_output", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._output = 0

    def step(self, at: int, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise Problem(f"rendering takes more than {_MAX_STEPS:,} steps", at)

    def read(self, characters: int, at: int) -> None:
        """A helper is about to go through as many characters that are there."""
        self.step(at, characters // _PER_STEP)

    def fits(self, size: int, at: int, *, made: int = 0) -> int:
        """A helper is about to make so many bytes of a text.

        :param made: bytes that the text has already
        :returns: bytes that it will have
        """
        if made + size > _MAX_TEXT:
            raise Problem(f"a helper would make a text of more than {_MAX_TEXT:,} bytes", at)
        self.read(size, at)
        return made + size

    def writes(self, size: int, at: int) -> None:
        """The output is about to get so many bytes."""
        self._output += size
        if self._output > _MAX_TEXT:
            raise Problem(f"the output is larger than {_MAX_TEXT:,} bytes", at)


_FIRST_WITH_EXPONENT = 1e21
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_SHORT_ESCAPES = '"\\\n\r\t\b\f'
_LONG_ESCAPES = "".join(chr(code) for code in range(32) if chr(code) not in _SHORT_ESCAPES)


def quoted(text: str) -> str:
    """A JSON string. Halves of surrogate pairs, which UTF-8 can't carry, are written as escapes."""
    encoded = json.dumps(text, ensure_ascii=False)
    return _HALF_PAIR.sub(lambda found: f"\\u{ord(found.group()):04x}", encoded)


def quoted_size(text: str) -> int:
    """Bytes of :func:`quoted`, without making it; of a text that is too large in any case, at least its characters."""
    if len(text) > _MAX_TEXT:
        return len(text)
    # A half of a pair becomes six ASCII characters, as JSON writes it.
    size = len(text) if text.isascii() else len(str.encode(text, "utf-8", "backslashreplace"))
    escapes = sum(text.count(each) for each in _SHORT_ESCAPES)
    if not text.isprintable():
        escapes += 5 * sum(text.count(each) for each in _LONG_ESCAPES)
    return 2 + size + escapes


def scalar(value: object) -> str:
    """What is printed as JSON for what is not text, or is JSON already. :raises NoText: as :func:`text_of`"""
    if isinstance(value, JsonText):
        return value
    if value is None or value is UNDEFINED:
        return "null"
    if isinstance(value, float) and _MAX_SAFE_INTEGER < abs(value) < _FIRST_WITH_EXPONENT:
        # JavaScript writes zeros for the last digits, which whoever reads whole numbers exactly reads as another one.
        return str(int(value))
    return text_of(value)


def json_text(value: object, budget: Budget, label: str, at: int) -> JsonText:
    """The value as one JSON value, without spaces, as JavaScript's JSON.stringify writes it."""
    writer = _JsonWriter(budget, at)
    try:
        writer.value(value, 0)
        return JsonText("".join(writer.parts))
    except NoText as error:
        kind = error.kind
    raise Problem(f"{label} has no JSON: it is, or holds, {kind}", at)


class _JsonWriter:
    """Makes the parts of one JSON text; each is counted before it is made."""

    def __init__(self, budget: Budget, at: int) -> None:
        self.parts: list[str] = []
        self._budget = budget
        self._at = at
        self._size = 0

    def value(self, value: Any, depth: int) -> None:
        self._budget.step(self._at)
        if depth > _DEEPEST:
            raise NoText(f"more than {_DEEPEST} lists and maps inside each other")
        if isinstance(value, str):
            self._string(text_of(value))
        elif is_list(value):
            for index, item in enumerate(value):
                self._write("," if index else "[")
                self.value(item, depth + 1)
            self._write("]" if value else "[]")
        elif is_map(value):
            names = keys(value)
            for index, key in enumerate(names):
                self._write("," if index else "{")
                self._string(key)
                self._write(":")
                self.value(value[key], depth + 1)
            self._write("}" if names else "{}")
        else:
            self._write(scalar(value))

    def _string(self, text: str) -> None:
        self._size = self._budget.fits(quoted_size(text), self._at, made=self._size)
        self.parts.append(quoted(text))

    def _write(self, text: str) -> None:
        """Punctuation, or a number, which is short."""
        self._size = self._budget.fits(len(text), self._at, made=self._size)
        self.parts.append(text)


def copied(value: Any, budget: Budget, label: str, at: int, depth: int = 0) -> Any:
    """The value with lists and maps of its own, as JSON has them."""
    budget.step(at)
    problem = ""
    try:
        if is_map(value) and depth <= _DEEPEST:
            names = keys(value)
            for name in names:
                budget.writes(size_of(name), at)
            return {whole(name): copied(value[name], budget, label, at, depth + 1) for name in names}
        if is_list(value) and depth <= _DEEPEST:
            return [copied(item, budget, label, at, depth + 1) for item in value]
        budget.writes(size_of(text_of(value)), at)
        return _plain(value)
    except NoText as error:
        problem = error.kind if depth <= _DEEPEST else f"more than {_DEEPEST} lists and maps inside each other"
    raise Problem(f"{label} has no JSON: it is, or holds, {problem}", at)


def _plain(value: object) -> object:
    """A scalar of JSON without what a subclass may add to it."""
    if isinstance(value, str):
        return whole(text_of(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return None if value is UNDEFINED else value


def whole(text: str) -> str:
    """Text that every encoding of Unicode can carry: halves of pairs are joined, and a single half replaced."""
    if _HALF_PAIR.search(text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
