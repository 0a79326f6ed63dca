"""Handlebars as handlebars.js 4.7 understands it with ``{strict: true, noEscape: true}``, without running any code.

This module compiles and renders templates, with contexts, ``../``, ``@`` and ``as |...|`` as handlebars.js has them.
Names are looked up in maps and lists only, and nothing is called but the helpers of this package. Output is plain text,
or JSON that no value can break. Every error is a ``TemplateError`` with line and column.

It builds on ``values`` (with limits and helpers), ``_parser`` (tags, and the expression in a tag) and ``_blocks`` (the
tree and its whitespace). Each of them imports only those named before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_provider_rfr.documents import nearest
from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.text import well_formed
from airflow_provider_rfr.webhooks.handlebars._blocks import Block, Mustache, Program, Text, parse
from airflow_provider_rfr.webhooks.handlebars._parser import Expression, Literal, Path
from airflow_provider_rfr.webhooks.handlebars.values import (
    HELPERS,
    LONGEST_SHOWN,
    MAX_VALUE_DEPTH,
    UNDEFINED,
    Argument,
    Arguments,
    JsonText,
    Missing,
    NoText,
    RenderBudget,
    TemplateProblem,
    get,
    is_list,
    is_map,
    is_nothing,
    is_true,
    keys,
    kind_of,
    quoted,
    quoted_name,
    quoted_size,
    scalar,
    size_of,
    text_of,
)


def _copied(value: Any, budget: RenderBudget, label: str, at: int, depth: int = 0) -> Any:
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
            return {well_formed(name): _copied(value[name], budget, label, at, depth + 1) for name in names}
        if is_list(value):
            return [_copied(item, budget, label, at, depth + 1) for item in value]
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


class _PlainOutput:
    """A collector of output, in which values are printed as in JavaScript."""

    def __init__(self, budget: RenderBudget) -> None:
        self._budget = budget
        self.parts: list[str] = []

    def text(self, text: Text) -> None:
        self._write(text.value, text.at)

    def value(self, value: object, expression: Expression, at: int) -> None:
        self._write(_printed(value, expression, at), at)

    def _write(self, text: str, at: int) -> None:
        self._budget.write(size_of(text), at)
        self.parts.append(text)


# States of JSON text. Above _ESCAPE: _ESCAPE plus the number of hexadecimal digits that a \u still lacks.
_OUTSIDE, _INSIDE, _ESCAPE = 0, 1, 2
_UNICODE_DIGITS = 4
_QUOTE_OR_BACKSLASH = re.compile(r'["\\]')


class _JsonOutput(_PlainOutput):
    """A collector of JSON: text is verbatim; a value is escaped in a string literal, and elsewhere is a JSON scalar."""

    def __init__(self, budget: RenderBudget) -> None:
        super().__init__(budget)
        self._state = _OUTSIDE

    def text(self, text: Text) -> None:
        super().text(text)
        self._state = state_behind(text.value, self._state)

    def value(self, value: object, expression: Expression, at: int) -> None:
        if self._state not in (_INSIDE, _OUTSIDE):
            raise TemplateProblem("a value must not follow a backslash directly; for one before it, write three", at)
        inside = self._state == _INSIDE
        if not inside and (isinstance(value, JsonText) or not isinstance(value, str)):
            self._write(_printed(value, expression, at, scalar), at)
            return
        text = _printed(value, expression, at)
        self._budget.write(quoted_size(text) - (2 if inside else 0), at)
        self.parts.append(quoted(text)[1:-1] if inside else quoted(text))


def state_behind(text: str, state: int) -> int:
    """Return the state of JSON (outside a string, inside one, in an escape) after a text, given the one before it."""
    place = 0
    while place < len(text):
        if state == _OUTSIDE:
            quote = text.find('"', place)
            if quote < 0:
                break
            place, state = quote + 1, _INSIDE
        elif state == _INSIDE:
            match = _QUOTE_OR_BACKSLASH.search(text, place)
            if match is None:
                break
            place = match.end()
            state = _ESCAPE if match.group() == "\\" else _OUTSIDE
        elif state == _ESCAPE:
            state = _ESCAPE + _UNICODE_DIGITS if text[place] == "u" else _INSIDE
            place += 1
        else:
            state = _INSIDE if state == _ESCAPE + 1 else state - 1
            place += 1
    return state


def _printed(value: object, expression: Expression, at: int, as_text: Callable[[object], str] = text_of) -> str:
    """Return the text of a value.

    :raises TemplateProblem: it is a list or map, or JSON does not have it
    """
    try:
        return as_text(value)
    except NoText as error:
        kind = error.kind
    remedy = ""
    if is_list(value) or is_map(value):
        name = expression.original[:LONGEST_SHOWN] if isinstance(expression, Path) else expression.label
        remedy = f"; write {{{{json {name}}}}}, or iterate over it with {{{{#each {name}}}}}"
    raise TemplateProblem(f"{expression.label} is {kind}{remedy}", at)


# JavaScript's objects inherit these names, so handlebars.js finds them in maps and prints nothing. Here they exist and
# are undefined.
_INHERITED = frozenset(
    {
        *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString", "toString"),
        *("valueOf", "__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__", "__proto__"),
    }
)


def _has(value: object, name: str) -> bool:
    """Tell whether a value has this name in strict mode; only lists and maps have names."""
    if is_map(value):
        return name in value or name in _INHERITED
    return is_list(value) and get(value, name) is not UNDEFINED


# The context inside of {{#if}} and similar blocks if the outer context is null: it has no names.
_NO_CONTEXT: Mapping[str, object] = {}
# The value of a name in ``as |...|`` of a block that gives it none.
_NO_VALUE = object()


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame in which a program is rendered.

    :ivar context: ``this``
    :ivar contexts: those that ``../`` climbs, the innermost last
    :ivar data: values of names with ``@``; ``_parent`` holds those of the block around
    :ivar params: names of ``as |...|`` with their values
    """

    context: object
    contexts: tuple[object, ...]
    data: dict[str, object]
    params: Mapping[str, object]

    @classmethod
    def root(cls, variables: Mapping[str, object]) -> _Frame:
        return cls(variables, (variables,), {"root": variables}, {})

    def inner(
        self,
        context: object,
        names: tuple[str, ...],
        values: tuple[object, ...] | None = None,
        data: dict[str, object] | None = None,
    ) -> _Frame:
        outer, params = self.contexts[-1], self.params
        # As in handlebars.js, a level for ``../`` is only added if the context differs, which templates rely on:
        # {{#if}} and {{#with this}} add none. Lists and maps are compared by identity.
        if is_nothing(context):
            same = is_nothing(outer)
        else:
            is_equal = (
                isinstance(context, (str, int, float)) and kind_of(context) == kind_of(outer) and context == outer
            )
            same = context is outer or is_equal or (context is _NO_CONTEXT and outer is None)
        if names:
            missing = _NO_VALUE if values is None else UNDEFINED
            padded = (*(values or ()), *(missing for _ in names))[: len(names)]
            # Reversed, as of two equal names the first counts.
            params = {**params, **dict(zip(reversed(names), reversed(padded), strict=True))}
        return _Frame(context, self.contexts if same else (*self.contexts, context), data or self.data, params)

    def base(self, path: Path) -> tuple[object, tuple[str, ...]]:
        """Return the value that a path begins at, and the parts that are to be looked up in it."""
        parts, value = path.parts, self.context
        if path.block_param:
            value = self.params[parts[0]]
            if value is _NO_VALUE:
                problem = f"{quoted_name(parts[0])} has no value: this block gives none to names in as |...|"
                raise TemplateProblem(problem, path.at)
            return value, parts[1:]
        if path.data and parts:
            value = self.data
            for _ in range(path.depth):
                value = value.get("_parent", UNDEFINED) if isinstance(value, dict) else UNDEFINED
        elif path.depth:
            value = self.contexts[-1 - path.depth] if path.depth < len(self.contexts) else UNDEFINED
        return value, parts


class _Evaluation:
    """One rendering of a template."""

    def __init__(self, output: _PlainOutput, budget: RenderBudget) -> None:
        self._output = output
        self._budget = budget

    def program(self, program: Program, frame: _Frame) -> None:
        for statement in program.body:
            self._budget.step(statement.at)
            if isinstance(statement, Text):
                self._output.text(statement)
            elif isinstance(statement, Mustache):
                value = self.value(statement.expression, frame, Missing.ERROR)
                value = None if value is _NO_CONTEXT else value
                self._output.value(value, statement.expression, statement.at)
            block, inner = statement if isinstance(statement, Block) else None, frame
            # A loop and no recursion, as there may be thousands of {{else if}} in a block.
            while block is not None:
                self._budget.step(block.at)
                branch, inner = self._branch(block, inner)
                if branch is not None and branch.chained is None:
                    self.program(branch, inner)
                block = branch.chained if branch is not None else None

    def _branch(self, block: Block, frame: _Frame) -> tuple[Program | None, _Frame]:
        """Return the branch to render and its frame; no branch if it is rendered already."""
        subject = block.subject
        named = {key: self.value(value, frame, Missing.UNDEFINED_AT_THE_END) for key, value in subject.named}
        if subject.kind == "section":
            value = self.value(subject.expression, frame, Missing.ERROR)
            if isinstance(value, bool) or is_nothing(value):
                return _chosen(block.program if value else block.inverse, frame, frame.context)
            if is_list(value):
                return self._each(block, frame, value, frame.context)
            return _chosen(block.program, frame, value)
        this = _NO_CONTEXT if is_nothing(frame.context) else frame.context
        if subject.kind in ("if", "unless"):
            value = self.value(subject.expression, frame, Missing.UNDEFINED_AT_THE_END)
            holds = is_true(value, include_zero=is_true(named.get("includeZero", False)))
            return _chosen(block.program if holds == (subject.kind == "if") else block.inverse, frame, this)
        # Without an {{else}}, only an error shows that something is missing.
        missing = Missing.UNDEFINED_AT_THE_END if block.inverse is not None else Missing.ERROR
        value = self.value(subject.expression, frame, missing)
        if subject.kind == "each":
            return self._each(block, frame, value, this)
        if not is_true(value, include_zero=True):
            return _chosen(block.inverse, frame, this)
        return _chosen(block.program, frame, value, (value,))

    def _each(self, block: Block, frame: _Frame, value: Any, this: object) -> tuple[Program | None, _Frame]:
        names = _item_names(value, block)
        if not names:
            return _chosen(block.inverse, frame, this)
        data: dict[str, object] = {**frame.data, "_parent": frame.data}
        for index, name in enumerate(names):
            self._budget.step(block.at)
            data.update(key=name, index=index, first=index == 0, last=index == len(names) - 1)
            if block.program is not None:
                item = value[name]
                self.program(block.program, frame.inner(item, block.program.names, (item, name), data))
        return None, frame

    def value(self, expression: Expression, frame: _Frame, missing: Missing) -> object:
        if isinstance(expression, Path):
            return self._path(expression, frame, missing)
        self._budget.step(expression.at)
        if isinstance(expression, Literal):
            return expression.value
        helper = expression.helper

        def argument(parameter: Expression, missing: Missing) -> Argument:
            value = self.value(parameter, frame, missing)
            return Argument(None if value is _NO_CONTEXT else value, parameter.label, parameter.at)

        positional = [
            argument(parameter, helper.missing if index < helper.lenient else Missing.ERROR)
            for index, parameter in enumerate(expression.params)
        ]
        for_named = helper.missing if helper.ignores_named else Missing.ERROR
        named = {key: argument(parameter, for_named) for key, parameter in expression.named}
        return helper.run(Arguments(positional, named, self._budget, expression.at))

    def _path(self, path: Path, frame: _Frame, missing: Missing) -> object:
        self._budget.step(path.at, 1 + len(path.parts))
        value, parts = frame.base(path)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if missing is Missing.ERROR and last and not _has(value, part):
                raise _missing(path, part, value, frame)
            if is_nothing(value) and missing is not Missing.UNDEFINED:
                raise _missing(path, part, value, frame)
            value = get(value, part)
        return value


def _chosen(
    program: Program | None, frame: _Frame, context: object, values: tuple[object, ...] | None = None
) -> tuple[Program | None, _Frame]:
    return program, frame.inner(context, program.names if program is not None else (), values)


def _item_names(value: object, block: Block) -> Sequence[Any]:
    """Return the indices of a list or the keys of a map; nothing for scalars."""
    if is_list(value):
        return range(len(value))
    try:
        if is_map(value):
            return keys(value)
        if is_nothing(value) or isinstance(value, (str, int, float)):
            return ()
        kind = kind_of(value)
    except NoText as error:
        kind = error.kind
    raise TemplateProblem(f"{block.subject.expression.label} is {kind}", block.at)


def _missing(path: Path, name: str, value: object, frame: _Frame) -> TemplateProblem:
    """Return the error for a name that does not exist.

    It suggests names of variables and no others: keys may be secret.
    """
    message = f"{path.label} is not there"
    if len(path.parts) > 1:
        message += f": no {quoted_name(name)}"
    root = frame.data.get("root")
    names = islice(root, 1000) if isinstance(root, Mapping) else ()
    variables = [name for name in names if isinstance(name, str) and len(name) <= LONGEST_SHOWN]
    hint = ""
    if path.simple and name in HELPERS:
        hint = f"; the helper is written {HELPERS[name].usage}"
    elif path.simple and name in variables:
        hint = f"; inside of this block, write @root.{name[:60]}"
    elif value is root and (near := nearest(name, variables)):
        hint = f"; did you mean {near}?"
    return TemplateProblem(message + hint, path.at)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CompiledTemplate:
    """A compiled template. It is immutable, and threads may render it at the same time."""

    text: str
    program: Program
    json_mode: bool

    def render(self, variables: Mapping[str, Any], *, budget: RenderBudget | None = None) -> str:
        """Return the template's text with these variables.

        In JSON mode, a value inside a JSON string is escaped for it and a value elsewhere is printed as a JSON scalar,
        so no value can break the JSON that the template is.

        :param budget: shared with other renderings; by default this rendering has one of its own
        :raises TemplateError: a variable is missing or can't be printed, or a limit is reached
        """
        try:
            budget = budget or RenderBudget()
            output = _JsonOutput(budget) if self.json_mode else _PlainOutput(budget)
            _Evaluation(output, budget).program(self.program, _Frame.root(variables))
            return well_formed("".join(output.parts))
        except (TemplateProblem, RecursionError) as problem:
            failure = problem
        # Outside of the handler, so that no context with values is attached to the error.
        raise _error(self.text, failure)

    def value(self, variables: Mapping[str, Any], *, budget: RenderBudget | None = None) -> Any:
        """Return the text as :meth:`render` does, or the typed value if the template is exactly one expression."""
        body = self.program.body
        if len(body) != 1 or not isinstance(body[0], Mustache):
            return self.render(variables, budget=budget)
        try:
            budget, expression = budget or RenderBudget(), body[0].expression
            value = _Evaluation(_PlainOutput(budget), budget).value(expression, _Frame.root(variables), Missing.ERROR)
            return _copied(value, budget, expression.label, body[0].at)
        except (TemplateProblem, RecursionError) as problem:
            failure = problem
        raise _error(self.text, failure)


def compile_template(text: str, *, json_mode: bool = False) -> CompiledTemplate:
    """Compile a template; the trees of the most recently used ones are cached.

    :raises TemplateError: it can't be read, or calls an unknown helper
    """
    if not isinstance(text, str):
        raise TemplateError(f"a template must be text, not {type(text).__name__}", 1, 1)
    try:
        return CompiledTemplate(text, parse(text), json_mode)
    except (TemplateProblem, RecursionError) as problem:
        failure = problem
    raise _error(text, failure)


def render(template: str, variables: Mapping[str, Any], *, json_mode: bool = False) -> str:
    """Return the template's text with these variables.

    :raises TemplateError: as :func:`compile_template` and :meth:`CompiledTemplate.render`
    """
    return compile_template(template, json_mode=json_mode).render(variables)


def _error(text: str, problem: TemplateProblem | RecursionError) -> TemplateError:
    if isinstance(problem, RecursionError):
        return TemplateError("it is nested too deeply for what is left of Python's stack", 1, 1)
    before = text[: problem.at]
    # Names may hold lone surrogates, which can't be logged.
    message = problem.problem.encode("utf-8", "backslashreplace").decode("utf-8")
    return TemplateError(message, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
