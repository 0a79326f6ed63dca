"""Value types to JSON and back, by their type hints."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import orjson

Value = TypeVar("Value")
_SORTED = orjson.OPT_SORT_KEYS


def dumps(value: Any) -> bytes:
    """Canonical JSON of a value type: the same bytes for equal values."""
    return orjson.dumps(value, default=_plain, option=_SORTED)


def encode(value: Any) -> Any:
    """The value as JSON's own types: fields by name, enums by value, ids as texts."""
    return orjson.loads(dumps(value))


def decode(kind: type[Value], document: Mapping[str, Any]) -> Value:
    """The value that :func:`encode` made the document of. Fields that are missing take their defaults, unknown ones are
    left out.

    :raises TypeError: a field is missing that has no default
    :raises ValueError: a value is not one of its type
    """
    hints, known = _hints(typing.cast(Any, kind))
    given = {name: _value(hints[name], document[name]) for name in known if name in document}
    return kind(**given)


@cache
def _hints(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    return get_type_hints(kind), tuple(each.name for each in dataclasses.fields(kind) if each.init)


def _value(hint: Any, given: Any) -> Any:
    if given is None or hint is Any:
        return given
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next(each for each in arguments if each is not type(None)), given)
    if origin is tuple:
        return tuple(_value(arguments[0], each) for each in given)
    if origin is frozenset:
        return frozenset(_value(arguments[0], each) for each in given)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _value(arguments[1], each) for key, each in given.items()}
    return _single(hint, given)


def _single(hint: Any, given: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        if not isinstance(given, Mapping):
            raise ValueError(f"{given!r} is no object")
        return decode(typing.cast(type[Any], hint), given)
    if hint is UUID or issubclass(hint, Enum):
        return hint(given)
    if not isinstance(given, hint):
        raise ValueError(f"{given!r} is no {hint.__name__}")
    return given


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
