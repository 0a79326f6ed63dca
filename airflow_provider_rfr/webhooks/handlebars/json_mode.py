"""Values as JSON, with exact integers; sizes are counted before a text is made."""

from __future__ import annotations

import json
import re
from typing import Any

from airflow_provider_rfr.webhooks.handlebars.values import (
    MAX_SAFE_INTEGER,
    MAX_TEXT,
    MAX_VALUE_DEPTH,
    UNDEFINED,
    Budget,
    NoText,
    TemplateProblem,
    is_list,
    is_map,
    is_nothing,
    keys,
    size_of,
    text_of,
)

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


def json_text(value: object, budget: Budget, label: str, at: int) -> JsonText:
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

    def __init__(self, budget: Budget, at: int) -> None:
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
        self._size = self._budget.make(quoted_size(text), self._at, made=self._size)
        self.parts.append(quoted(text))

    def _token(self, text: str) -> None:
        self._size = self._budget.make(len(text), self._at, made=self._size)
        self.parts.append(text)


def copied(value: Any, budget: Budget, label: str, at: int, depth: int = 0) -> Any:
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
