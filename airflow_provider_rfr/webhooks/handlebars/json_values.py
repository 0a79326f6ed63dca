"""Values as JSON: as text, in a string, and as copies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from airflow_provider_rfr.webhooks.handlebars.budget import Budget
from airflow_provider_rfr.webhooks.handlebars.terms import UNDEFINED, Problem
from airflow_provider_rfr.webhooks.handlebars.values import (
    MAX_SAFE_INTEGER,
    JsonText,
    NoText,
    is_list,
    is_map,
    keys,
    text_of,
)

_DEEPEST = 100
_FIRST_WITH_EXPONENT = 1e21
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def quoted(text: str) -> str:
    """A JSON string. Halves of surrogate pairs, which UTF-8 can't carry, are written as escapes."""
    encoded = json.dumps(text, ensure_ascii=False)
    return _HALF_PAIR.sub(lambda found: f"\\u{ord(found.group()):04x}", encoded)


def scalar(value: object) -> str:
    """What is printed for it as JSON. :raises NoText: as :func:`text_of`"""
    if isinstance(value, JsonText):
        return value
    if value is None or value is UNDEFINED:
        return "null"
    if isinstance(value, float) and MAX_SAFE_INTEGER < abs(value) < _FIRST_WITH_EXPONENT:
        # JavaScript writes zeros for the last digits, which whoever reads whole numbers exactly reads as another one.
        return str(int(value))
    return quoted(text_of(value)) if isinstance(value, str) else text_of(value)


def json_text(value: object, budget: Budget, label: str, at: int) -> JsonText:
    """The value as one JSON value, without spaces, as JavaScript's JSON.stringify writes it."""
    parts: list[str] = []
    size = 0

    def write(text: str) -> None:
        nonlocal size
        size += len(text)
        budget.fits(size - len(text), at)
        parts.append(text)

    try:
        _write(value, write, budget, at, 0)
        return JsonText("".join(parts))
    except NoText as error:
        kind = error.kind
    raise Problem(f"{label} has no JSON: it is, or holds, {kind}", at)


def _write(value: Any, write: Callable[[str], None], budget: Budget, at: int, depth: int) -> None:
    budget.step(at)
    if depth > _DEEPEST:
        raise NoText(f"more than {_DEEPEST} lists and maps inside each other")
    if is_list(value):
        for index, item in enumerate(value):
            write("," if index else "[")
            _write(item, write, budget, at, depth + 1)
        write("]" if value else "[]")
    elif is_map(value):
        names = keys(value)
        for index, key in enumerate(names):
            write(f"{',' if index else '{'}{quoted(key)}:")
            _write(value[key], write, budget, at, depth + 1)
        write("}" if names else "{}")
    else:
        write(quoted(text_of(value)) if isinstance(value, str) else scalar(value))


def copied(value: Any, budget: Budget, label: str, at: int, depth: int = 0) -> Any:
    """The value with lists and maps of its own, as JSON has them."""
    budget.step(at)
    problem = ""
    try:
        if is_map(value) and depth <= _DEEPEST:
            names = keys(value)
            for name in names:
                budget.wrote(name, at)
            return {whole(name): copied(value[name], budget, label, at, depth + 1) for name in names}
        if is_list(value) and depth <= _DEEPEST:
            return [copied(item, budget, label, at, depth + 1) for item in value]
        budget.wrote(text_of(value), at)
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
