"""Compiled templates, and ``render``. Every error is a ``TemplateError`` with line and column."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.webhooks.handlebars._blocks import Mustache, Program, parse
from airflow_provider_rfr.webhooks.handlebars._evaluation import evaluate, render_program
from airflow_provider_rfr.webhooks.handlebars.values import Budget, TemplateProblem

_CACHED_TEMPLATES = 128


class Template:
    """A compiled template. It is immutable, and threads may render it at the same time."""

    __slots__ = ("_json_mode", "_program", "_text")

    def __init__(self, text: str, program: Program, *, json_mode: bool) -> None:
        self._text = text
        self._program = program
        self._json_mode = json_mode

    def render(self, variables: Mapping[str, Any], *, budget: Budget | None = None) -> str:
        """Return the template's text with these variables.

        In JSON mode, a value inside a JSON string is escaped for it and a value elsewhere is printed as a JSON scalar,
        so no value can break the JSON that the template is.

        :param budget: shared with other renderings; by default this rendering has one of its own
        :raises TemplateError: a variable is missing or can't be printed, or a limit is reached
        """
        try:
            return render_program(self._program, variables, budget or Budget(), json_mode=self._json_mode)
        except (TemplateProblem, RecursionError) as problem:
            found = problem
        # Outside of the handler, so that no context with values is attached to the error.
        raise _error(self._text, found)

    def value(self, variables: Mapping[str, Any], *, budget: Budget | None = None) -> Any:
        """Return the text as :meth:`render` does, or the typed value if the template is exactly one expression."""
        body = self._program.body
        if len(body) != 1 or not isinstance(body[0], Mustache):
            return self.render(variables, budget=budget)
        try:
            return evaluate(body[0], variables, budget or Budget())
        except (TemplateProblem, RecursionError) as problem:
            found = problem
        raise _error(self._text, found)


def compile_template(text: str, *, json_mode: bool = False) -> Template:
    """Compile a template; the newest are cached.

    :raises TemplateError: it can't be read, or calls an unknown helper
    """
    if not isinstance(text, str):
        raise TemplateError(f"a template must be text, not {type(text).__name__}", 1, 1)
    try:
        return _compiled(text, json_mode)
    except (TemplateProblem, RecursionError) as problem:
        found = problem
    raise _error(text, found)


def render(template: str, variables: Mapping[str, Any], *, json_mode: bool = False) -> str:
    """Return the template's text with these variables.

    :raises TemplateError: as :func:`compile_template` and :meth:`Template.render`
    """
    return compile_template(template, json_mode=json_mode).render(variables)


@lru_cache(maxsize=_CACHED_TEMPLATES)
def _compiled(text: str, json_mode: bool) -> Template:
    return Template(text, parse(text), json_mode=json_mode)


def _error(text: str, problem: TemplateProblem | RecursionError) -> TemplateError:
    if isinstance(problem, RecursionError):
        return TemplateError("it is nested too deeply for what is left of Python's stack", 1, 1)
    before = text[: problem.at]
    # Names may hold lone surrogates, which can't be logged.
    message = problem.problem.encode("utf-8", "backslashreplace").decode("utf-8")
    return TemplateError(message, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
