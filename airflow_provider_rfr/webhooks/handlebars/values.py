"""What JavaScript makes of a value: its text, its truth, its properties, the order of its keys.

Values are what JSON has (None, bool, int, float, str, lists, maps) and ``UNDEFINED``. Whole numbers are exact, however
large: a snapshot id does not survive JavaScript's one kind of number. Nothing here reads an attribute of a value, calls
one, or makes text of a list or map.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, TypeGuard

from airflow_provider_rfr.webhooks.handlebars.terms import UNDEFINED

MAX_SAFE_INTEGER = 2**53 - 1
LONGEST_INTEGER_BITS = 13_000
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
    return f"a {type(value).__name__}, which is no value of JSON"


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
        if value.bit_length() > LONGEST_INTEGER_BITS:
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
    exact = isinstance(value, int) and abs(value) <= MAX_SAFE_INTEGER
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
