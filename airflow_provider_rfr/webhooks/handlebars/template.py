"""A compiled template, a bounded cache of them, and errors as ``TemplateError``."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.webhooks.handlebars.blocks import parse
from airflow_provider_rfr.webhooks.handlebars.evaluation import Evaluation, Frame, JsonOutput, PlainOutput
from airflow_provider_rfr.webhooks.handlebars.helpers import Missing
from airflow_provider_rfr.webhooks.handlebars.lexer import Mustache, Program
from airflow_provider_rfr.webhooks.handlebars.values import Budget, Problem, copied

T = TypeVar("T")


class _TextCache(Generic[T]):
    """What ``make`` makes of a text, kept while it is among those that were asked for last.

    Two threads that ask at once may both make it; one result is kept. Failures are not kept.

    :ivar entries: how many are kept
    :ivar characters: how long their texts are together; a longer text alone is made and not kept
    """

    def __init__(self, make: Callable[[str], T], *, entries: int, characters: int) -> None:
        self._make = make
        self._entries = entries
        self._characters = characters
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, text: str) -> T:
        with self._lock:
            if text in self._kept:
                self._kept.move_to_end(text)
                return self._kept[text]
        made = self._make(text)
        with self._lock:
            if text in self._kept:
                return self._kept[text]
            self._kept[text] = made
            self._size += len(text)
            while self._kept and (len(self._kept) > self._entries or self._size > self._characters):
                dropped, _ = self._kept.popitem(last=False)
                self._size -= len(dropped)
        return made

    def __len__(self) -> int:
        return len(self._kept)


_CACHED_TEMPLATES = 256
_CACHED_CHARACTERS = 1 << 20


class Template:
    """A template that has been read. It does not change, and any number of threads may render it at once."""

    __slots__ = ("_json_mode", "_program", "_text")

    def __init__(self, text: str, program: Program, *, json_mode: bool) -> None:
        self._text = text
        self._program = program
        self._json_mode = json_mode

    def __repr__(self) -> str:
        return f"<Template of {len(self._text)} characters>"

    def render(self, variables: Mapping[str, Any], *, budget: Budget | None = None) -> str:
        """The text.

        In JSON mode, what stands between the quotes of a JSON string is escaped for it, and what stands outside is
        printed as a JSON scalar: no value can break the JSON that the template is.

        :param budget: shared with other renderings; without one, this one has all that one may take
        :raises TemplateError: a variable is not there, or can't be printed, or a limit is reached
        """
        budget = budget or Budget()
        output = JsonOutput(budget) if self._json_mode else PlainOutput(budget)
        try:
            Evaluation(output, budget).program(self._program, Frame.root(variables))
            return output.whole()
        except (Problem, RecursionError) as problem:
            found = problem
        raise _error(self._text, found)

    @property
    def expression(self) -> Mustache | None:
        """The one expression that the template is, if it is that and nothing else."""
        body = self._program.body
        return body[0] if len(body) == 1 and isinstance(body[0], Mustache) else None

    def value(self, variables: Mapping[str, Any], *, budget: Budget | None = None) -> Any:
        """As :meth:`render`, but a template that is exactly one expression gives its value as JSON has it."""
        if self.expression is None:
            return self.render(variables, budget=budget)
        budget = budget or Budget()
        expression = self.expression.expression
        try:
            evaluation = Evaluation(PlainOutput(budget), budget)
            value = evaluation.value(expression, Frame.root(variables), Missing.ERROR)
            return copied(value, budget, expression.label, self.expression.at)
        except (Problem, RecursionError) as problem:
            found = problem
        raise _error(self._text, found)


def compile_template(text: str, *, json_mode: bool = False) -> Template:
    """The template, read and checked; those that were asked for last are kept by content.

    :raises TemplateError: it can't be read, or names a helper that does not exist
    """
    if not isinstance(text, str):
        raise TemplateError(f"a template is text, and this is a {type(text).__name__}", 1, 1)
    try:
        plain, of_json = _TEMPLATES.get(text)
        return of_json if json_mode else plain
    except (Problem, RecursionError) as problem:
        found = problem
    raise _error(text, found)


def render(template: str, variables: Mapping[str, Any], *, json_mode: bool = False) -> str:
    """The template's text with these variables.

    :raises TemplateError: as :func:`compile_template` and :meth:`Template.render`
    """
    return compile_template(template, json_mode=json_mode).render(variables)


def _error(text: str, problem: Problem | RecursionError) -> TemplateError:
    if isinstance(problem, RecursionError):
        return TemplateError("it is nested too deeply for what is left of Python's stack", 1, 1)
    before = text[: problem.at]
    # Names may hold halves of surrogate pairs, which no log takes.
    words = problem.problem.encode("utf-8", "backslashreplace").decode("utf-8")
    return TemplateError(words, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


def _read(text: str) -> tuple[Template, Template]:
    program = parse(text)
    return Template(text, program, json_mode=False), Template(text, program, json_mode=True)


_TEMPLATES = _TextCache(_read, entries=_CACHED_TEMPLATES, characters=_CACHED_CHARACTERS)
