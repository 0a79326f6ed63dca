"""Plain JSON values out of what YAML and Python give: copied, bounded, and refused where JSON has no such thing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import SecretStr
from pydantic_core import InitErrorDetails

from airflow_provider_rfr.webhooks.configuration.mistakes import details, mistake, refusal

DEEPEST = 40
MOST_VALUES = 20_000
_LARGEST = 10**300
_IN_QUOTES = "put it in quotes"


def plain_tree(value: Any) -> Any:
    """A copy in dicts, lists and scalars.

    :raises ValidationError: there is something in it that JSON has not, or too much of it
    """
    copy = _Copy()
    plain = copy.of(value, ())
    if copy.found:
        raise refusal("tree", copy.found)
    return plain


def leaves(tree: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value that is neither map nor list, and where it stands."""
    if isinstance(tree, Mapping):
        for key, each in tree.items():
            yield from leaves(each, (*place, key))
    elif isinstance(tree, (list, tuple)):
        for number, each in enumerate(tree):
            yield from leaves(each, (*place, number))
    else:
        yield place, tree


class _Copy:
    """One walk; an alias of YAML can make a small document large, or endless."""

    def __init__(self) -> None:
        self._count = 0
        self._deep = False
        self.found: list[InitErrorDetails] = []

    def of(self, value: Any, place: tuple[str | int, ...]) -> Any:
        self._count += 1
        if self._count > MOST_VALUES:
            return self._refuse((), f"has more than {MOST_VALUES} values") if self._count == MOST_VALUES + 1 else None
        if len(place) > DEEPEST:
            return self._refuse_depth(place)
        if isinstance(value, SecretStr):
            return value.get_secret_value()
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, Mapping):
            return {self._key(key, place): self.of(each, (*place, str(key))) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(each, (*place, number)) for number, each in enumerate(value)]
        return self._scalar(value, place)

    def _key(self, key: Any, place: tuple[str | int, ...]) -> str:
        if not isinstance(key, str):
            self._refuse(place, f"a key is {_kind(key)}", _IN_QUOTES)
        return str(key)

    def _scalar(self, value: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return self._refuse(place, "JSON has no infinite numbers", _IN_QUOTES)
        if isinstance(value, int) and abs(value) > _LARGEST:
            return self._refuse(place, "is too large a number", _IN_QUOTES)
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        return self._refuse(place, f"is {_kind(value)}, which JSON has not", _IN_QUOTES)

    def _refuse_depth(self, place: tuple[str | int, ...]) -> None:
        if not self._deep:
            self._refuse(place[:3], f"is nested deeper than {DEEPEST} levels")
        self._deep = True

    def _refuse(self, place: tuple[str | int, ...], problem: str, remedy: str = "") -> None:
        self.found.append(details(mistake(problem, remedy), place))


def _kind(value: Any) -> str:
    return {"bool": "true or false", "int": "a number", "float": "a number", "NoneType": "null"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )
