"""Values as JSON: as text, in a string, and as copies."""

from __future__ import annotations

import json
import re
from typing import Any

from airflow_provider_rfr.webhooks.handlebars.budget import MAX_TEXT, Budget, size_of
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
_SHORT_ESCAPES = '"\\\n\r\t\b\f'
_LONG_ESCAPES = "".join(chr(code) for code in range(32) if chr(code) not in _SHORT_ESCAPES)


def quoted(text: str) -> str:
    """A JSON string. Halves of surrogate pairs, which UTF-8 can't carry, are written as escapes."""
    encoded = json.dumps(text, ensure_ascii=False)
    return _HALF_PAIR.sub(lambda found: f"\\u{ord(found.group()):04x}", encoded)


def quoted_size(text: str) -> int:
    """Bytes of :func:`quoted`, without making it; of a text that is too large in any case, at least its characters."""
    if len(text) > MAX_TEXT:
        return len(text)
    # A half of a pair becomes six ASCII characters, as JSON writes it.
    size = len(text) if text.isascii() else len(str.encode(text, "utf-8", "backslashreplace"))
    escapes = sum(text.count(each) for each in _SHORT_ESCAPES)
    if not text.isprintable():
        escapes += 5 * sum(text.count(each) for each in _LONG_ESCAPES)
    return 2 + size + escapes


def scalar(value: object) -> str:
    """What is printed as JSON for what is no text, or is JSON already. :raises NoText: as :func:`text_of`"""
    if isinstance(value, JsonText):
        return value
    if value is None or value is UNDEFINED:
        return "null"
    if isinstance(value, float) and MAX_SAFE_INTEGER < abs(value) < _FIRST_WITH_EXPONENT:
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
