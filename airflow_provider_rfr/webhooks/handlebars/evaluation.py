"""Renders a template's tree, with contexts, ``../``, ``@`` and ``as |...|`` as handlebars.js has them.

Names are looked up in maps and lists only. Nothing is called but the helpers of this package. Text is written plainly,
or as JSON that no value can break.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple, Protocol

from airflow_provider_rfr.webhooks.handlebars.helpers import HELPERS, Arguments, Given, Missing
from airflow_provider_rfr.webhooks.handlebars.lexer import (
    Block,
    Expression,
    HelperCall,
    Literal,
    Mustache,
    Path,
    Program,
    Text,
)
from airflow_provider_rfr.webhooks.handlebars.values import (
    LONGEST_SHOWN,
    UNDEFINED,
    Budget,
    JsonText,
    NoText,
    Problem,
    get,
    has,
    is_empty,
    is_list,
    is_map,
    is_scalar,
    is_true,
    keys,
    kind_of,
    quoted,
    quoted_size,
    same,
    scalar,
    shown,
    size_of,
    text_of,
    whole,
)

_OUTSIDE, _INSIDE, _ESCAPE = 0, 1, 2
_DIGITS = 4
"""States of JSON text: outside of strings, inside of one, behind a backslash; and above, ``_ESCAPE`` plus the number
of hexadecimal digits that a ``\\u`` still lacks."""
_TO_QUOTE = re.compile(r'[^"]*"?')
_TO_END = re.compile(r'[^"\\]*(["\\]?)')


class _Output(Protocol):
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
        self._write(_printed(value, expression, at), at)

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
        text = _printed(value, expression, at)
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


def _printed(value: object, expression: Expression, at: int) -> str:
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


_NO_CONTEXT: Mapping[str, object] = {}
"""``this`` inside of ``{{#if}}`` and the like where it is null outside of it: nothing is in it."""


class _Outer(NamedTuple):
    """A context, and those around it: what ``../`` climbs."""

    context: object
    around: _Outer | None


class _Params(NamedTuple):
    """Names of ``as |...|`` with their values, and those around them."""

    names: tuple[str, ...]
    values: tuple[object, ...] | None
    around: _Params | None


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a program is rendered.

    :ivar data: what ``@`` names; ``_parent`` is the data around it
    """

    context: object
    outer: _Outer
    data: dict[str, object]
    params: _Params | None

    @classmethod
    def root(cls, variables: Mapping[str, object]) -> Frame:
        return cls(variables, _Outer(variables, None), {"root": variables}, None)

    def inner(
        self,
        context: object,
        names: tuple[str, ...],
        values: tuple[object, ...] | None = None,
        data: dict[str, object] | None = None,
    ) -> Frame:
        stays = same(context, self.outer.context) or (context is _NO_CONTEXT and self.outer.context is None)
        outer = self.outer if stays else _Outer(context, self.outer)
        params = _Params(names, values, self.params) if names else self.params
        return Frame(context, outer, self.data if data is None else data, params)


class _Next(NamedTuple):
    """What is rendered next."""

    program: Program | None
    frame: Frame


class Evaluation:
    """One rendering."""

    def __init__(self, output: _Output, budget: Budget) -> None:
        self._output = output
        self._budget = budget

    def program(self, program: Program, frame: Frame) -> None:
        for statement in program.body:
            self._budget.step(statement.at)
            if isinstance(statement, Text):
                self._output.text(statement)
            elif isinstance(statement, Mustache):
                expression = statement.expression
                value = self.value(expression, frame, Missing.ERROR)
                self._output.value(None if value is _NO_CONTEXT else value, expression, statement.at)
            elif isinstance(statement, Block):
                self._block(statement, frame)

    def _block(self, block: Block, frame: Frame) -> None:
        while True:
            self._budget.step(block.at)
            program, frame = self._choice(block, frame)
            if program is None:
                return
            if not program.chained:
                self.program(program, frame)
                return
            chained = program.body[0]
            assert isinstance(chained, Block)
            block = chained

    def _choice(self, block: Block, frame: Frame) -> _Next:
        """The branch to render; none where that is done."""
        for _, named in block.named:
            self.value(named, frame, Missing.UNDEFINED_AT_THE_END)
        if block.kind == "section":
            return self._section(block, frame)
        this = _NO_CONTEXT if frame.context is None or frame.context is UNDEFINED else frame.context
        if block.kind in ("if", "unless"):
            value = self.value(block.subject, frame, Missing.UNDEFINED_AT_THE_END)
            zero = next((named for key, named in block.named if key == "includeZero"), None)
            include_zero = zero is not None and is_true(self.value(zero, frame, Missing.UNDEFINED_AT_THE_END))
            return _inner(block, frame, this, first=is_true(value, include_zero=include_zero) == (block.kind == "if"))
        # Without an {{else}}, that something is missing would only show as something missing.
        lenient = Missing.UNDEFINED_AT_THE_END if block.inverse is not None else Missing.ERROR
        value = self.value(block.subject, frame, lenient)
        if block.kind == "each":
            return self._each(block, frame, value, this)
        if is_empty(value):
            return _inner(block, frame, this, first=False)
        return _Next(block.program, frame.inner(value, _names(block, first=True), (value,)))

    def _section(self, block: Block, frame: Frame) -> _Next:
        value = self.value(block.subject, frame, Missing.ERROR)
        if value is True or value is False or value is None or value is UNDEFINED:
            return _inner(block, frame, frame.context, first=value is True)
        if is_list(value):
            return self._each(block, frame, value, frame.context)
        return _Next(block.program, frame.inner(value, _names(block, first=True)))

    def _each(self, block: Block, frame: Frame, value: Any, this: object) -> _Next:
        names = _names_of(value, block)
        if not names:
            return _inner(block, frame, this, first=False)
        data: dict[str, object] = {**frame.data, "_parent": frame.data}
        for index, name in enumerate(names):
            self._budget.step(block.at)
            data.update(key=name, index=index, first=index == 0, last=index == len(names) - 1)
            if block.program is not None:
                item = value[name]
                params = _names(block, first=True)
                self.program(block.program, frame.inner(item, params, (item, name), data))
        return _Next(None, frame)

    def value(self, expression: Expression, frame: Frame, missing: Missing) -> object:
        """What an expression stands for."""
        if isinstance(expression, Path):
            return self._path(expression, frame, missing)
        if isinstance(expression, Literal):
            self._budget.step(expression.at)
            return expression.value
        return self._called(expression, frame)

    def _called(self, call: HelperCall, frame: Frame) -> object:
        helper = call.helper
        self._budget.step(call.at)
        given = [
            self._given(each, frame, helper.missing if index < helper.strict_from else Missing.ERROR)
            for index, each in enumerate(call.params)
        ]
        missing = helper.missing if helper.free_names else Missing.ERROR
        named = {key: self._given(each, frame, missing) for key, each in call.named}
        return helper.run(Arguments(given, named, self._budget, call.at))

    def _given(self, expression: Expression, frame: Frame, missing: Missing) -> Given:
        value = self.value(expression, frame, missing)
        return Given(None if value is _NO_CONTEXT else value, expression.label, expression.at)

    def _path(self, path: Path, frame: Frame, missing: Missing) -> object:
        self._budget.step(path.at, 1 + len(path.parts))
        parts = path.parts
        if path.block_param:
            value, parts = _param(path, frame), parts[1:]
        elif not parts or not parts[0]:
            return _climbed(frame, path.depth)
        elif path.data:
            value = _data(frame, path.depth)
        else:
            value = _climbed(frame, path.depth)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if missing is Missing.ERROR and last and not has(value, part):
                raise _missing(path, part, value, frame)
            if (value is None or value is UNDEFINED) and missing is not Missing.UNDEFINED:
                raise _missing(path, part, value, frame)
            if isinstance(value, str):
                self._budget.read(len(value), path.at)
            value = get(value, part)
        return value


def _names_of(value: object, block: Block) -> Sequence[Any]:
    """The indices of a list, or the keys of a map; none of what is neither."""
    if is_list(value):
        return range(len(value))
    try:
        if is_map(value):
            return keys(value)
        if is_scalar(value):
            return ()
        kind = kind_of(value)
    except NoText as error:
        kind = error.kind
    raise Problem(f"{block.subject.label} is {kind}", block.at)


def _names(block: Block, *, first: bool) -> tuple[str, ...]:
    """The names that hold in the branch."""
    return block.names if first != block.names_in_inverse else ()


def _inner(block: Block, frame: Frame, context: object, *, first: bool) -> _Next:
    names = _names(block, first=first)
    return _Next(block.program if first else block.inverse, frame.inner(context, names))


def _climbed(frame: Frame, depth: int) -> object:
    if not depth:
        return frame.context
    outer: _Outer | None = frame.outer
    for _ in range(depth):
        outer = outer.around if outer is not None else None
    return outer.context if outer is not None else UNDEFINED


def _data(frame: Frame, depth: int) -> object:
    data: object = frame.data
    for _ in range(depth):
        data = data.get("_parent", UNDEFINED) if isinstance(data, dict) else UNDEFINED
    return data


def _param(path: Path, frame: Frame) -> object:
    params = frame.params
    while params is not None and path.parts[0] not in params.names:
        params = params.around
    if params is None or params.values is None:
        raise Problem(f"{shown(path.parts[0])} has no value: this block gives none to names in as |...|", path.at)
    index = params.names.index(path.parts[0])
    return params.values[index] if index < len(params.values) else UNDEFINED


def _names_in(root: object) -> list[str]:
    """Names of variables that an error may suggest."""
    names = islice(root, 1000) if isinstance(root, Mapping) else ()
    return [name for name in names if isinstance(name, str) and len(name) <= LONGEST_SHOWN]


def _missing(path: Path, name: str, value: object, frame: Frame) -> Problem:
    """There is no such name. Of what there is instead, only names of variables are told."""
    found = f"{path.label} is not there" if len(path.parts) == 1 else f"{path.label} is not there: no {shown(name)}"
    root = frame.data.get("root")
    variables = _names_in(root)
    hint = ""
    if path.simple and name in HELPERS:
        hint = f"; the helper is written {HELPERS[name].usage}"
    elif path.simple and name in variables:
        hint = f"; inside of this block, write @root.{name[:60]}"
    elif value is root and (near := get_close_matches(name[:60], variables, n=1)):
        hint = f"; did you mean {near[0]}?"
    return Problem(found + hint, path.at)
