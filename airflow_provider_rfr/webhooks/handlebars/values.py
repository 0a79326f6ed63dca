"""Values of templates, as text and as JSON, and the budget of one rendering.

Values are what JSON has (None, bool, int, float, str, lists, maps) and ``UNDEFINED``. Integers are exact, however
large: a snapshot id does not fit JavaScript's only number type. Nothing here reads an attribute of a value, calls one,
or makes text of a list or map. Sizes are counted before a text is made.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeGuard

from airflow_provider_rfr.text import cut

WHITESPACE = " \t\n\r\v\f\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""JavaScript's ``\\s``; Python's has a few control characters more."""

LONGEST_SHOWN = 60
MAX_SAFE_INTEGER = 2**53 - 1
MAX_VALUE_DEPTH = 100
_MAX_INTEGER_BITS = 13_000
_LAST_INDEX = 2**32 - 2

# JavaScript's objects inherit these names, so handlebars.js finds them in maps and prints nothing. Here they exist and
# are undefined.
_INHERITED = frozenset(
    {
        *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString"),
        *("valueOf", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__", "__proto__"),
    }
)
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,9})\Z", re.ASCII)
_JS_NUMBER = re.compile(r"(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\Z", re.ASCII)


class _Undefined:
    """JavaScript's ``undefined``; the only object is :data:`UNDEFINED`."""

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED = _Undefined()


class TemplateProblem(Exception):
    """An error at an offset of the template. Callers of this package see it as a ``TemplateError``.

    :ivar problem: may hold names of the template, never a value
    """

    def __init__(self, problem: str, at: int) -> None:
        self.problem = problem
        self.at = at
        super().__init__(problem)


class NoText(Exception):
    """A value that can't be printed.

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
    if isinstance(value, float):
        return _float_text(value)
    raise NoText(kind_of(value))


def _float_text(value: float) -> str:
    """Write a number as JavaScript does: Python's digits, with an exponent only from 1e21 and below 1e-6."""
    if not math.isfinite(value):
        raise NoText("a number that is not finite")
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


def has(value: object, name: str) -> bool:
    """Tell whether strict mode finds the name: only on lists and maps."""
    if is_map(value):
        return name in value or name in _INHERITED
    return is_list(value) and (name == "length" or _item(value, name) is not UNDEFINED)


def get(value: object, name: str) -> object:
    """Return the key of a map, item of a list, or character of a text; ``UNDEFINED`` if there is none."""
    if is_map(value):
        return value.get(name, UNDEFINED)
    if isinstance(value, str):
        # A subclass may override what is used of it below.
        value = text_of(value)
    if is_list(value) or isinstance(value, str):
        return len(value) if name == "length" else _item(value, name)
    return UNDEFINED


def _item(value: Sequence[Any], name: str) -> object:
    return value[int(name)] if _INDEX.match(name) and int(name) < len(value) else UNDEFINED


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


def loosely_equal(one: object, other: object) -> bool:
    """Compare as JavaScript's ``==``, by which handlebars.js decides whether a block adds a level to ``../``."""
    if one is other:
        return True
    if is_nothing(one) or is_nothing(other):
        return is_nothing(one) and is_nothing(other)
    one_is_container, other_is_container = is_list(one) or is_map(one), is_list(other) or is_map(other)
    if one_is_container and other_is_container:
        return False
    one, other = _primitive(one), _primitive(other)
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    return _number(one) == _number(other)


def _primitive(value: object) -> object:
    """Return the value that ``==`` compares: JavaScript converts a list or map to text first."""
    if not is_list(value) and not is_map(value):
        return value
    for _ in range(MAX_VALUE_DEPTH):
        if not is_list(value) or len(value) != 1:
            break
        value = value[0]
    if is_map(value):
        return "[object Object]"
    try:
        return "" if is_list(value) and not value else text_of(value)
    except NoText:
        return ",\0"  # the text of a list of several items equals nothing that templates compare


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return value
    text = str.strip(value) if isinstance(value, str) else "-"
    if not text:
        return 0
    return float(text) if len(text) < 300 and _JS_NUMBER.match(text) else math.nan


def size_of(text: str) -> int:
    """Return the bytes of the text in UTF-8; for a text beyond the limit at least its characters."""
    if text.isascii() or len(text) > MAX_TEXT:
        return len(text)
    return len(str.encode(text, "utf-8", "surrogatepass"))


_FIRST_WITH_EXPONENT = 1e21
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
    """Return the bytes of :func:`quoted` without making it; for a text beyond the limit at least its characters."""
    if len(text) > MAX_TEXT:
        return len(text)
    # The error handler writes a lone surrogate as six ASCII characters, as JSON does.
    size = len(text) if text.isascii() else len(str.encode(text, "utf-8", "backslashreplace"))
    escapes = sum(text.count(escape) for escape in _SHORT_ESCAPES)
    if not text.isprintable():
        escapes += 5 * sum(text.count(escape) for escape in _LONG_ESCAPES)
    return 2 + size + escapes


def scalar(value: object) -> str:
    """Return the JSON of a value that is not text, or is JSON already.

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


def json_text(value: object, budget: RenderBudget, label: str, at: int) -> JsonText:
    """Return the value as compact JSON, as JavaScript's ``JSON.stringify`` writes it.

    :param label: names the value in errors
    """
    writer = _JsonWriter(budget, at)
    try:
        writer.write(value, 0)
        return JsonText("".join(writer.parts))
    except NoText as error:
        kind = error.kind
    raise TemplateProblem(f"{label} has no JSON: it is, or holds, {kind}", at)


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


def copied(value: Any, budget: RenderBudget, label: str, at: int, depth: int = 0) -> Any:
    """Return a copy of the value with dicts, lists and scalars of Python's own types.

    :param label: names the value in errors
    """
    budget.step(at)
    try:
        if depth > MAX_VALUE_DEPTH and (is_map(value) or is_list(value)):
            raise NoText(f"more than {MAX_VALUE_DEPTH} nested lists and maps")
        if is_map(value):
            names = keys(value)
            for name in names:
                budget.write(size_of(name), at)
            return {well_formed(name): copied(value[name], budget, label, at, depth + 1) for name in names}
        if is_list(value):
            return [copied(item, budget, label, at, depth + 1) for item in value]
        text = text_of(value)
        budget.write(size_of(text), at)
        # Of Python's own types, and not of subclasses.
        if isinstance(value, str):
            return well_formed(text)
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, float):
            return float(value)
        return None if value is UNDEFINED else value
    except NoText as error:
        kind = error.kind
    raise TemplateProblem(f"{label} has no JSON: it is, or holds, {kind}", at)


def well_formed(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates, so that every encoding can carry the text."""
    if _LONE_SURROGATE.search(text):
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
