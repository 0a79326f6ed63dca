"""pybars3's grammar, which says how one expression is built. No other module imports pybars3.

The question is an expression of placeholders (see :mod:`airflow_provider_rfr.webhooks.handlebars`), so nothing that an
author wrote gets here; the answer is a tuple of the grammar, and counts only where all of the question was read.
``Compiler.compile``, which executes what it makes of a template, is never called.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

_LOCK = threading.Lock()
_BEFORE, _BEHIND = "{{", "}}"


@dataclass(frozen=True)
class Refusal:
    """The grammar does not know such an expression.

    :ivar place: where in the question it could not go on
    """

    place: int


_PLACEHOLDER = ("path", ["x"])
# What is asked in nearly every template. Importing pybars3 takes half a second, each time a DAG's file is parsed.
KNOWN: Mapping[str, tuple[Any, ...]] = {
    " ".join(["x"] * (count + 1)): ("escapedexpand", _PLACEHOLDER, [_PLACEHOLDER] * count) for count in range(3)
}


@cache
def _grammar() -> Any:
    from pybars._compiler import Compiler  # type: ignore[import-untyped]
    from pymeta.runtime import ParseError  # type: ignore[import-untyped]

    # A private name of a library that is no longer changed; the version is pinned, and a test looks at its tuples.
    return Compiler._handlebars, ParseError


def structure(question: str) -> tuple[Any, ...] | Refusal:
    """``("escapedexpand", ("path", [...]), [argument, ...])``, and the same inside for each argument.

    The answers are shared and must not be changed.
    """
    return KNOWN.get(question) or asked(question)


@lru_cache(maxsize=4096)
def asked(question: str) -> tuple[Any, ...] | Refusal:
    """The grammar's own answer. One thread at a time: the grammar keeps state where all can reach."""
    with _LOCK:
        grammar, parse_error = _grammar()
        parser = grammar(_BEFORE + question + _BEHIND)
        try:
            answer, _ = parser.apply("escapedexpression")
        except parse_error as error:
            return Refusal(int(error.position) - len(_BEFORE))
        read = parser.input.position
        if read != len(parser.input.data):
            return Refusal(read - len(_BEFORE))
        return tuple(answer)
