"""Values of templates, as text and as JSON; the budget of one rendering; and the helpers: ``json``, ``eq``, ``date``...

Values are what JSON has (None, bool, int, float, str, lists, maps) and ``UNDEFINED``. Integers are exact, however
large: a snapshot id does not fit JavaScript's only number type. Nothing here reads an attribute of a value, calls one,
or makes text of a list or map. Sizes are counted before a text is made. A helper returns a value and has no
side effects.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, TypeGuard
from urllib.parse import quote
from zoneinfo import ZoneInfo

from airflow_provider_rfr.text import cut

WHITESPACE = " \t\n\r\v\f\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""JavaScript's ``\\s``; Python's has a few control characters more."""

LONGEST_SHOWN = 60
MAX_SAFE_INTEGER = 2**53 - 1
MAX_VALUE_DEPTH = 100
_MAX_INTEGER_BITS = 13_000
_LAST_INDEX = 2**32 - 2
_FIRST_WITH_EXPONENT = 1e21

_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z", re.ASCII)


class _Undefined:
    """JavaScript's ``undefined``; the only object is :data:`UNDEFINED`."""

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED = _Undefined()


class TemplateProblem(Exception):
    """An error at an offset of the template. Callers of this package see it as a ``TemplateError``.

    :ivar problem: message, which may hold names of the template, never a value
    :ivar at: offset in the template
    """

    def __init__(self, problem: str, at: int) -> None:
        self.problem = problem
        self.at = at
        super().__init__(problem)


class NoText(Exception):
    """An error for a value that can't be printed.

    :ivar kind: the kind of the value, for an error message; never the value itself
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(kind)


_MAX_STEPS = 200_000
MAX_TEXT = 1 << 20
_CHARACTERS_PER_STEP = 256


class RenderBudget:
    """A budget that limits steps and bytes of one rendering, or of the renderings of one payload together.

    A step is a statement, a name or literal, an iteration of ``{{#each}}``, a node of a value written as JSON, or 256
    characters that a helper reads or makes, so steps bound the time. Bytes are counted **before** a text is made: one
    that is too large is never in memory.
    """

    __slots__ = ("_output", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._output = 0

    def step(self, at: int, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise TemplateProblem(f"rendering takes more than {_MAX_STEPS:,} steps", at)

    def read(self, characters: int, at: int) -> None:
        """Count characters that a helper is about to read."""
        self.step(at, characters // _CHARACTERS_PER_STEP)

    def make(self, size: int, at: int, *, size_so_far: int = 0) -> int:
        """Count bytes that a helper is about to add to a text.

        :param size_so_far: bytes that the text has already
        :returns: bytes that the text will have
        """
        if size_so_far + size > MAX_TEXT:
            raise TemplateProblem(f"a helper would make a text of more than {MAX_TEXT:,} bytes", at)
        self.read(size, at)
        return size_so_far + size

    def write(self, size: int, at: int) -> None:
        """Count bytes that are about to be added to the output."""
        self._output += size
        if self._output > MAX_TEXT:
            raise TemplateProblem(f"the output is larger than {MAX_TEXT:,} bytes", at)


def quoted_name(name: str) -> str:
    """Quote and shorten a name of the template for an error message."""
    return repr(cut(name, LONGEST_SHOWN))


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def is_map(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, (dict, Mapping))


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_nothing(value: object) -> bool:
    return value is None or value is UNDEFINED


def is_true(value: object, *, include_zero: bool = False) -> bool:
    """Tell whether ``{{#if}}`` takes its first branch.

    It does not for false, null, "", 0, NaN and ``[]``, but for an empty map.
    """
    if is_list(value):
        return len(value) > 0
    if is_number(value):
        return value == value and (include_zero or value != 0)  # NaN does not equal itself
    return bool(value) if isinstance(value, (str, bool)) else not is_nothing(value)


def kind_of(value: object) -> str:
    """Name the kind of a value, for an error message."""
    for kind, types in (("true or false", bool), ("a number", (int, float)), ("text", str)):
        if isinstance(value, types):
            return kind
    if is_list(value):
        return "a list"
    if is_map(value):
        return "a map"
    return "null" if is_nothing(value) else f"a {type(value).__name__}, which is not a value of JSON"


def text_of(value: object) -> str:
    """Return the value as printed.

    :raises NoText: for lists, maps, numbers that are not finite, and values that JSON does not have
    """
    if isinstance(value, str):
        # A subclass may override __str__.
        return value if type(value) is str else str.__str__(value)
    if is_nothing(value):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if value.bit_length() > _MAX_INTEGER_BITS:
            raise NoText("a number that is too long")
        return int.__repr__(value)
    if not isinstance(value, float):
        raise NoText(kind_of(value))
    # As JavaScript writes it: Python's digits, with an exponent only from 1e21 and below 1e-6.
    if not math.isfinite(value):
        raise NoText("a number that is not finite")
    digits = float.__repr__(value)
    if value == 0 or 1e-6 <= abs(value) < _FIRST_WITH_EXPONENT:
        text = f"{Decimal(digits) + 0:f}"  # there is no -0
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa}e{int(exponent):+d}"


def get(value: object, name: str) -> object:
    """Return the key of a map, item of a list, or character of a text; ``UNDEFINED`` if there is none."""
    if is_map(value):
        return value.get(name, UNDEFINED)
    if isinstance(value, str):
        # A subclass may override what is used of it below.
        value = text_of(value)
    if is_list(value) or isinstance(value, str):
        if name == "length":
            return len(value)
        if _INDEX.match(name) and int(name) < len(value):
            return value[int(name)]
    return UNDEFINED


def keys(value: Mapping[Any, object]) -> list[str]:
    """Return keys in JavaScript's order: list indices by size, then the others as inserted.

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
    return [*map(str, sorted(indices)), *others]


def size_of(text: str) -> int:
    """Return the bytes of the text in UTF-8; beyond the limit a lower bound, the text's characters."""
    if text.isascii() or len(text) > MAX_TEXT:
        return len(text)
    return len(str.encode(text, "utf-8", "surrogatepass"))


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT_ESCAPES = '"\\\n\r\t\b\f'
_LONG_ESCAPES = "".join(chr(code) for code in range(32) if chr(code) not in _SHORT_ESCAPES)


class JsonText(str):
    """Text that is one whole JSON value."""

    __slots__ = ()


def quoted(text: str) -> str:
    """Return the text as a JSON string. Lone surrogates, which UTF-8 can't carry, are written as escapes."""
    encoded = json.dumps(text, ensure_ascii=False)
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", encoded)


def quoted_size(text: str) -> int:
    """Return the bytes of :func:`quoted` without making it; beyond the limit a lower bound, the text's characters."""
    if len(text) > MAX_TEXT:
        return len(text)
    # The error handler writes a lone surrogate as six ASCII characters, as JSON does.
    size = len(text) if text.isascii() else len(str.encode(text, "utf-8", "backslashreplace"))
    escapes = sum(text.count(escape) for escape in _SHORT_ESCAPES)
    if not text.isprintable():
        escapes += 5 * sum(text.count(escape) for escape in _LONG_ESCAPES)
    return 2 + size + escapes


def scalar(value: object) -> str:
    """Return the JSON of a scalar that is not text, or of text that is JSON already.

    :raises NoText: as :func:`text_of`
    """
    if isinstance(value, JsonText):
        return value
    if is_nothing(value):
        return "null"
    if isinstance(value, float) and MAX_SAFE_INTEGER < abs(value) < _FIRST_WITH_EXPONENT:
        # JavaScript prints zeros for the last digits; a reader with exact integers would read another number.
        return str(int(value))
    return text_of(value)


class _JsonWriter:
    """A writer that collects the parts of one JSON text; each is counted before it is made."""

    def __init__(self, budget: RenderBudget, at: int) -> None:
        self.parts: list[str] = []
        self._budget = budget
        self._at = at
        self._size = 0

    def write(self, value: Any, depth: int) -> None:
        self._budget.step(self._at)
        if depth > MAX_VALUE_DEPTH:
            raise NoText(f"more than {MAX_VALUE_DEPTH} nested lists and maps")
        if isinstance(value, str):
            self._string(text_of(value))
        elif is_list(value):
            for index, item in enumerate(value):
                self._token("," if index else "[")
                self.write(item, depth + 1)
            self._token("]" if value else "[]")
        elif is_map(value):
            names = keys(value)
            for index, key in enumerate(names):
                self._token("," if index else "{")
                self._string(key)
                self._token(":")
                self.write(value[key], depth + 1)
            self._token("}" if names else "{}")
        else:
            self._token(scalar(value))

    def _string(self, text: str) -> None:
        self._size = self._budget.make(quoted_size(text), self._at, size_so_far=self._size)
        self.parts.append(quoted(text))

    def _token(self, text: str) -> None:
        self._size = self._budget.make(len(text), self._at, size_so_far=self._size)
        self.parts.append(text)


class Missing(Enum):
    """A rule for a name that does not exist."""

    ERROR = 1
    UNDEFINED_AT_THE_END = 2
    """``b`` of ``a.b`` may be missing; a missing ``a`` is an error, as for arguments in handlebars.js."""
    UNDEFINED = 3


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a call; ``label``: as the template writes it."""

    value: Any
    label: str
    at: int

    def wrong(self, wanted: str) -> TemplateProblem:
        return TemplateProblem(f"{self.label} is {kind_of(self.value)}; this helper takes {wanted}", self.at)

    def text(self) -> str:
        try:
            return text_of(self.value)
        except NoText:
            pass
        raise self.wrong("text")  # outside of the handler, so that the error has no context


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call: by position (``arguments[0]``) and by name."""

    positional: Sequence[Argument]
    named: Mapping[str, Argument]
    budget: RenderBudget
    at: int

    def __getitem__(self, index: int) -> Argument:
        return self.positional[index]


@dataclass(frozen=True, eq=False)
class Helper:
    """A helper that templates can call.

    :ivar usage: an example for error messages
    :ivar least, most: how many arguments it takes; ``most`` is ``None`` for any number
    :ivar missing: rule for missing names in the first ``lenient`` arguments; in others they are errors
    :ivar named: the names of arguments that it takes
    :ivar ignores_named: it takes arguments of any name and ignores them
    """

    name: str
    run: Callable[[Arguments], object]
    usage: str
    least: int
    most: int | None
    missing: Missing = Missing.ERROR
    lenient: int = 0
    named: tuple[str, ...] = ()
    ignores_named: bool = False


def _json(arguments: Arguments) -> object:
    """Return compact JSON, as JavaScript's ``JSON.stringify`` writes it."""
    first = arguments[0]
    writer = _JsonWriter(arguments.budget, first.at)
    try:
        writer.write(first.value, 0)
        return JsonText("".join(writer.parts))
    except NoText as error:
        kind = error.kind
    raise TemplateProblem(f"{first.label} has no JSON: it is, or holds, {kind}", first.at)


def _lookup(arguments: Arguments) -> object:
    value, name = arguments[0].value, arguments[1]
    try:
        return get(value, text_of(name.value))
    except NoText:
        pass
    raise name.wrong("a name or a number")


def _len(arguments: Arguments) -> object:
    value = arguments[0].value
    if isinstance(value, str) or is_list(value) or is_map(value):
        return len(value)
    raise arguments[0].wrong("a list, a map or text")


def _eq(arguments: Arguments) -> bool:
    return _equal(arguments[0].value, arguments[1].value, arguments.budget, arguments.at)


def _equal(one: Any, other: Any, budget: RenderBudget, at: int, depth: int = 0) -> bool:
    """Tell whether two values are deeply equal in kind and value; null equals undefined."""
    budget.step(at)
    if depth > MAX_VALUE_DEPTH:
        raise TemplateProblem(f"values with more than {MAX_VALUE_DEPTH} nested lists and maps can't be compared", at)
    if is_number(one) and is_number(other):
        return bool(one == other)
    if isinstance(one, str) and isinstance(other, str):
        budget.read(min(len(one), len(other)), at)
        return one == other
    if is_list(one) and is_list(other):
        return len(one) == len(other) and all(
            _equal(left, right, budget, at, depth + 1) for left, right in zip(one, other, strict=True)
        )
    if is_map(one) and is_map(other):
        budget.step(at, min(len(one), len(other)))
        return one.keys() == other.keys() and all(_equal(one[key], other[key], budget, at, depth + 1) for key in one)
    return one is other or (is_nothing(one) and is_nothing(other))


def _compares(wanted: Callable[[int], bool]) -> Callable[[Arguments], bool]:
    """Return a helper that orders numbers, times or texts; ``wanted`` gets -1, 0 or 1 for less, equal and greater."""

    def run(arguments: Arguments) -> bool:
        one, other = arguments[0].value, arguments[1].value
        if isinstance(one, str) and isinstance(other, str):
            arguments.budget.read(min(len(one), len(other)), arguments.at)
            times = parse_time(one), parse_time(other)
            one, other = times if None not in times else (one, other)
        elif not (is_number(one) and is_number(other)):
            raise arguments[1].wrong(f"two numbers or two texts, and {arguments[0].label} is {kind_of(one)}")
        return wanted((one > other) - (one < other))

    return run


def _combines(holds: Callable[[Iterable[bool]], bool]) -> Callable[[Arguments], bool]:
    return lambda arguments: holds(is_true(operand.value) for operand in arguments.positional)


def _is_blank(value: object) -> bool:
    return is_nothing(value) or (isinstance(value, str) and not value)


def _default(arguments: Arguments) -> object:
    value = arguments[0].value
    return arguments[1].value if _is_blank(value) else value


def _join(arguments: Arguments) -> object:
    first, budget = arguments[0], arguments.budget
    if not is_list(first.value):
        raise first.wrong("a list")
    separator = arguments[1].text() if len(arguments.positional) > 1 else ","
    budget.step(arguments.at, len(first.value))
    texts = [Argument(item, f"an item of {first.label}", first.at).text() for item in first.value]
    size = size_of(separator) * max(0, len(texts) - 1)
    for text in texts:
        budget.read(len(text), arguments.at)
        size += size_of(text)
    budget.make(size, arguments.at)
    return separator.join(texts)


def _maps_characters(change: Callable[[str], str]) -> Callable[[Arguments], object]:
    """Return a helper that replaces each character.

    The length of a character's replacement must not depend on other characters.
    """

    def run(arguments: Arguments) -> object:
        first, budget = arguments[0], arguments.budget
        text = first.text()
        budget.make(size_of(text), first.at)
        # The result may be several times longer: its size is counted character by character before it is made.
        characters = Counter(text)
        budget.step(arguments.at, len(characters))
        budget.make(sum(count * size_of(change(character)) for character, count in characters.items()), first.at)
        return change(text)

    return run


_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))\Z"
)
_LONGEST_ZONE = 64
_UTC_FORMAT, _LOCAL_FORMAT = "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%z"
# Names in English, whatever the locale.
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WINTER_TO_SUMMER = ("January", "February", "March", "April", "May", "June")
_MONTHS = (*_WINTER_TO_SUMMER, "July", "August", "September", "October", "November", "December")


def _offset(when: datetime) -> str:
    minutes = int((when.utcoffset() or timedelta()) / timedelta(minutes=1))
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


# Not strftime: it depends on locale and C library, and takes widths such as %999999999d.
_DIRECTIVES: dict[str, Callable[[datetime], str]] = {
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
    "z": _offset,
    "s": lambda when: str(int((when - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(seconds=1))),
    "%": lambda when: "%",
}
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)


def parse_time(text: str) -> tuple[datetime, str] | None:
    """Parse an RFC 3339 time into its whole second in UTC and the digits of its fraction.

    Such pairs compare as instants.
    """
    match = _RFC3339.match(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    fraction, sign, hours, minutes = match.group(7, 8, 9, 10)
    if sign and (hours > "23" or minutes > "59"):
        return None
    offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
        return local + offset if sign == "-" else local - offset, (fraction or "").rstrip("0")
    except (ValueError, OverflowError):
        return None


def _date(arguments: Arguments) -> object:
    first = arguments[0]
    if _is_blank(first.value):
        return ""
    when = parse_time(first.value) if isinstance(first.value, str) else None
    if when is None:
        raise TemplateProblem(f"{first.label} is not a time as in 2024-05-06T07:08:09Z", first.at)
    zone = arguments.named.get("timezone")
    where: tzinfo | None = timezone.utc
    if zone and (name := zone.text()) not in ("UTC", "Z"):
        try:
            where = ZoneInfo(name) if len(name) <= _LONGEST_ZONE else None
        except (ValueError, OSError, KeyError):
            where = None
        if where is None:
            raise TemplateProblem("there is no such time zone", zone.at)
    form = (_LOCAL_FORMAT if zone else _UTC_FORMAT) if len(arguments.positional) < 2 else arguments[1].text()
    # Two characters, as %s or %B, become twelve at most.
    arguments.budget.make(6 * size_of(form), first.at)
    if any(directive.group(1) not in _DIRECTIVES for directive in _DIRECTIVE.finditer(form)):
        directives = " ".join(f"%{letter}" for letter in _DIRECTIVES)
        raise TemplateProblem(f"the format of date can only have these fields: {directives}", first.at)
    second, fraction = when
    try:
        local = second.replace(microsecond=int(fraction[:6].ljust(6, "0"))).astimezone(where)
        return _DIRECTIVE.sub(lambda directive: _DIRECTIVES[directive.group(1)](local), form)
    except (ValueError, OverflowError):
        pass
    raise TemplateProblem(f"{first.label} is beyond the years 1 to 9999 in that time zone", first.at)


_ANY = 1_000_000
_AT_THE_END = Missing.UNDEFINED_AT_THE_END
_percent_encoded = partial(quote, safe="", errors="replace")
HELPERS: Mapping[str, Helper] = {
    helper.name: helper
    for helper in (
        Helper("json", _json, "{{json name}}", 1, 1),
        Helper("lookup", _lookup, "{{lookup map name}}", 2, 2, ignores_named=True),
        Helper("len", _len, "{{len name}}", 1, 1),
        Helper("eq", _eq, "(eq one other)", 2, 2),
        Helper("ne", lambda arguments: not _eq(arguments), "(ne one other)", 2, 2),
        Helper("gt", _compares(lambda order: order > 0), "(gt one other)", 2, 2),
        Helper("gte", _compares(lambda order: order >= 0), "(gte one other)", 2, 2),
        Helper("lt", _compares(lambda order: order < 0), "(lt one other)", 2, 2),
        Helper("lte", _compares(lambda order: order <= 0), "(lte one other)", 2, 2),
        Helper("and", _combines(all), "(and one other)", 2, None, Missing.UNDEFINED, _ANY),
        Helper("or", _combines(any), "(or one other)", 2, None, Missing.UNDEFINED, _ANY),
        Helper("not", lambda arguments: not is_true(arguments[0].value), "(not name)", 1, 1),
        Helper("default", _default, "{{default name 'text'}}", 2, 2, Missing.UNDEFINED, 1),
        Helper("join", _join, "{{join names ', '}}", 1, 2),
        Helper("upper", _maps_characters(str.upper), "{{upper name}}", 1, 1),
        Helper("lower", _maps_characters(str.lower), "{{lower name}}", 1, 1),
        Helper("urlencode", _maps_characters(_percent_encoded), "{{urlencode name}}", 1, 1),
        Helper("date", _date, "{{date name '%Y-%m-%d' timezone='UTC'}}", 1, 2, named=("timezone",)),
        Helper("log", lambda _: UNDEFINED, "{{log name}}", 0, None, _AT_THE_END, _ANY, ignores_named=True),
    )
}
