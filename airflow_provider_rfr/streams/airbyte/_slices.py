"""Slices and page tokens of a manifest as JSON: they are stored, and read by another process.

Values must come back with their types. The CDK evaluates the result of a template as a Python literal, so a token
``1,2`` is a tuple; plain JSON would make it a list, and the request another one.

A slice has three parts of the CDK, which are left out where they are empty: ``partition``, ``cursor_slice`` and
``extra_fields``. The first two are its key: other fields of a parent's record may change between two attempts. A fourth
part, ``frozen``, is what an incremental sync fixed when it listed the slices.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from requests import Response

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.moments import read_moment, write_moment

_LITERAL: Final = "__literal__"
_ANSWER: Final = "__answer__"
_PARTS: Final = ("partition", "cursor_slice", "extra_fields")
_KEY: Final = frozenset({"partition", "cursor_slice"})
_FROZEN: Final = "frozen"


@dataclass(frozen=True, slots=True)
class FrozenPart:
    """The part of a slice that an incremental sync fixed when it listed the slices.

    :ivar bounds: moments between which records count; None where the request itself asks for these records only
    :ivar parent_state: state of the parents after the slices were listed; only the last slice has it
    :ivar reads_changes: whether the slice is of the definition for changes, where the stream has another one for a full
        refresh
    """

    bounds: tuple[datetime, datetime] | None = None
    parent_state: Mapping[str, Any] | None = None
    reads_changes: bool = False

    @classmethod
    def of(cls, stream_slice: Mapping[str, Any]) -> FrozenPart:
        """Read the frozen part of a slice."""
        part = stream_slice.get(_FROZEN, {})
        bounds = part.get("bounds")
        moments = None if bounds is None else (read_moment(bounds[0]), read_moment(bounds[1]))
        return cls(moments, part.get("parent_state"), part.get("reads_changes", False))

    def within(self, stream_slice: Mapping[str, Any]) -> dict[str, Any]:
        """Return the slice with this part."""
        part: dict[str, Any] = {}
        if self.bounds is not None:
            part["bounds"] = [write_moment(moment) for moment in self.bounds]
        if self.parent_state is not None:
            part["parent_state"] = dict(self.parent_state)
        if self.reads_changes:
            part["reads_changes"] = True
        return {**stream_slice, _FROZEN: part} if part else dict(stream_slice)


def key_of_slice(stream_slice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that identify a slice."""
    return {name: part for name, part in stream_slice.items() if name in _KEY}


def frozen_parent_state(slices: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the state of the parents after the listing; None if none of them is read incrementally."""
    states = (FrozenPart.of(stream_slice).parent_state for stream_slice in slices)
    return next((state for state in states if state is not None), None)


def to_json(value: Any, place: str) -> Any:
    """Return a value as JSON, from which :func:`from_json` makes an equal one of the same types.

    :param place: the field that an error names
    :raises ConfigurationError: it holds something that is neither JSON nor a Python literal
    """
    if isinstance(value, float) and math.isinf(value):
        # A cursor of numbers ends at infinity. JSON has none; the Python literal of a number that is too large is it.
        return {_LITERAL: "1e999" if value > 0 else "-1e999"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [to_json(item, place) for item in value]
    if isinstance(value, Mapping):
        plain = dict(value.items())
        if not {_LITERAL, _ANSWER} & plain.keys() and all(isinstance(key, str) for key in plain):
            return {key: to_json(item, place) for key, item in plain.items()}
        return _literal(plain, place)
    if isinstance(value, Response):
        # A parent's record may hold its children's first page, which the CDK wraps in a response.
        return {_ANSWER: value.text}
    return _literal(value, place)


def from_json(value: Any) -> Any:
    """Return the value that :func:`to_json` was given; mappings of the CDK's own classes become plain ones."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {_LITERAL}:
        return ast.literal_eval(value[_LITERAL])
    if value.keys() == {_ANSWER}:
        answer = Response()
        answer.status_code, answer._content, answer.encoding = 200, value[_ANSWER].encode(), "utf-8"
        return answer
    return {key: from_json(item) for key, item in value.items()}


def slice_to_json(stream_slice: Any) -> dict[str, Any]:
    """Return a slice of the CDK as JSON; ``{}`` for a stream that isn't divided.

    :raises ConfigurationError: it holds something that is alive only in this process, such as a response
    """
    parts = {name: dict(getattr(stream_slice, name)) for name in _PARTS}
    return {name: to_json(part, "stream_slices") for name, part in parts.items() if part}


def slice_parts(stream_slice: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the arguments from which the CDK makes the slice again."""
    for name in _PARTS:
        yield name, from_json(stream_slice.get(name, {}))


def _literal(value: Any, place: str) -> dict[str, str]:
    text = repr(value)
    try:
        same = bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError):
        same = False
    if not same:
        problem = f"holds a value of type {type(value).__name__}, which can't be stored"
        raise ConfigurationError(place, problem, "leave the stream out: no other process could read on")
    return {_LITERAL: text}
