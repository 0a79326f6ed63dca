"""Where rendered text goes: plain, or as JSON that no value can break."""

from __future__ import annotations

import re
from typing import Protocol

from airflow_provider_rfr.webhooks.handlebars.budget import Budget, size_of
from airflow_provider_rfr.webhooks.handlebars.json_values import quoted, quoted_size, scalar, whole
from airflow_provider_rfr.webhooks.handlebars.nodes import Expression, Path, Text
from airflow_provider_rfr.webhooks.handlebars.terms import LONGEST_SHOWN, Problem
from airflow_provider_rfr.webhooks.handlebars.values import JsonText, NoText, is_list, is_map, text_of

_OUTSIDE, _INSIDE, _ESCAPE = 0, 1, 2
_DIGITS = 4
"""States of JSON text: outside of strings, inside of one, behind a backslash; and above, ``_ESCAPE`` plus the number
of hexadecimal digits that a ``\\u`` still lacks."""
_TO_QUOTE = re.compile(r'[^"]*"?')
_TO_END = re.compile(r'[^"\\]*(["\\]?)')


class Output(Protocol):
    """Takes what is rendered, in order."""

    def text(self, text: Text) -> None: ...

    def value(self, value: object, expression: Expression, at: int) -> None: ...

    def whole(self) -> str: ...


class PlainOutput:
    """Text as it is, and of values what JavaScript prints."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._parts: list[str] = []

    def text(self, text: Text) -> None:
        self._write(text.value, text.at)

    def value(self, value: object, expression: Expression, at: int) -> None:
        self._write(printed(value, expression, at), at)

    def whole(self) -> str:
        return whole("".join(self._parts))

    def _write(self, text: str, at: int) -> None:
        self._budget.writes(size_of(text), at)
        self._parts.append(text)


class JsonOutput(PlainOutput):
    """Text as it is; a value inside a string literal escaped for it, and elsewhere as a JSON scalar.

    So whatever a value holds, it stays within the string, or the place of one scalar, that the template has for it.
    """

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._state = _OUTSIDE

    def text(self, text: Text) -> None:
        super().text(text)
        after = text.after.get(self._state)
        if after is None:
            after = text.after[self._state] = behind(text.value, self._state)
        self._state = after

    def value(self, value: object, expression: Expression, at: int) -> None:
        if self._state not in (_INSIDE, _OUTSIDE):
            raise Problem("a value can't stand right behind a backslash; for one before it, write three", at)
        inside = self._state == _INSIDE
        if not inside and (isinstance(value, JsonText) or not isinstance(value, str)):
            self._write(_scalar(value, expression, at), at)
            return
        text = printed(value, expression, at)
        self._budget.writes(quoted_size(text) - (2 if inside else 0), at)
        self._parts.append(quoted(text)[1:-1] if inside else quoted(text))


def behind(text: str, state: int) -> int:
    """The state of JSON behind this text."""
    place = 0
    while place < len(text):
        if state == _OUTSIDE:
            found = _TO_QUOTE.match(text, place)
            assert found is not None
            place = found.end()
            state = _INSIDE if found.group().endswith('"') else _OUTSIDE
        elif state == _INSIDE:
            found = _TO_END.match(text, place)
            assert found is not None
            place = found.end()
            state = {'"': _OUTSIDE, "\\": _ESCAPE, "": _INSIDE}[found.group(1)]
        elif state == _ESCAPE:
            state = _ESCAPE + _DIGITS if text[place] == "u" else _INSIDE
            place += 1
        else:
            state = _INSIDE if state == _ESCAPE + 1 else state - 1
            place += 1
    return state


def printed(value: object, expression: Expression, at: int) -> str:
    """The text of a value.

    :raises Problem: it has none; lists and maps are printed by ``{{json x}}``
    """
    try:
        return text_of(value)
    except NoText as error:
        kind = error.kind
    raise _unprintable(value, kind, expression, at)


def _scalar(value: object, expression: Expression, at: int) -> str:
    try:
        return scalar(value)
    except NoText as error:
        kind = error.kind
    raise _unprintable(value, kind, expression, at)


def _unprintable(value: object, kind: str, expression: Expression, at: int) -> Problem:
    remedy = ""
    if is_list(value) or is_map(value):
        name = expression.original[:LONGEST_SHOWN] if isinstance(expression, Path) else expression.label
        remedy = f"; write {{{{json {name}}}}}, or go through it with {{{{#each {name}}}}}"
    return Problem(f"{expression.label} is {kind}{remedy}", at)
