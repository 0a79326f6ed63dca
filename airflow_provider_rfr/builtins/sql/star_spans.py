"""Where the stars of a query stand, and what is to stand there instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile

from sqlglot import TokenType, exp
from sqlglot.optimizer.scope import Scope

from airflow_provider_rfr.builtins.sql.facts import facts_of
from airflow_provider_rfr.builtins.sql.outputs import ColumnsOf, Outputs, UnknownColumnsError
from airflow_provider_rfr.builtins.sql.scopes import reads_columns, scopes_of
from airflow_provider_rfr.builtins.sql.text import identifier, tokens
from airflow_provider_rfr.exceptions import QueryError


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a text, and what comes in its place."""

    start: int
    end: int
    text: str


def star_edits(query: str, columns_of: ColumnsOf, namespace: str, *, keep_unknown: bool) -> list[Edit]:
    """What has to be done to a query so that it has no stars, in the text's order.

    :raises QueryError: a star can't be written out
    """
    if not facts_of(query).starred:
        return []
    outputs = Outputs(columns_of, namespace)
    edits = [edit for scope in scopes_of(query) for edit in _edits(query, scope, outputs, keep_unknown)]
    return sorted(edits, key=lambda each: each.start)


def result_columns(query: str, columns_of: ColumnsOf, namespace: str) -> tuple[str, ...]:
    """The names of a query's columns, as their author wrote them.

    :raises QueryError: one has no name, or a star can't be written out
    """
    found = facts_of(query).outputs
    return Outputs(columns_of, namespace).of(scopes_of(query)[-1]) if found is None else found


def _edits(query: str, scope: Scope, outputs: Outputs, keep_unknown: bool) -> Iterator[Edit]:
    for node in scope.walk():
        try:
            if isinstance(node, exp.Join) and node.method.upper() == "NATURAL":
                outputs.items(scope)
            elif isinstance(node, exp.Star) and reads_columns(node):
                yield _edit(query, scope, node, outputs)
        except UnknownColumnsError:
            if not keep_unknown:
                raise


def _edit(query: str, scope: Scope, star: exp.Star, outputs: Outputs) -> Edit:
    start = star.meta.get("start")
    if not isinstance(start, int) or query[start : start + 1] != "*":
        raise QueryError("a query without a SELECT of its own hides a star", "write SELECT and the columns")
    end = _end(query, start, star)
    column = star.parent
    if isinstance(column, exp.Column):
        names = [identifier(name) for name in outputs.qualified(scope, column)]
        first, last = column.parts[0].meta, column.parts[-2].meta
        between = f", {query[first['start'] : last['end'] + 1]}."
        return Edit(start, end, between.join(names))
    return Edit(start, end, ", ".join(map(str, outputs.star(scope, star))))


def _end(query: str, start: int, star: exp.Star) -> int:
    """Where the star ends, with its EXCEPT if it has one."""
    if not star.args.get("except_"):
        return start + 1
    depth = 0
    for each in dropwhile(lambda word: word.start <= start, tokens(query)):
        depth += (each.token_type is TokenType.L_PAREN) - (each.token_type is TokenType.R_PAREN)
        if each.token_type is TokenType.R_PAREN and not depth:
            return int(each.end) + 1
    raise QueryError("the EXCEPT of a star has no end")
