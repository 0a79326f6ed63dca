"""Expressions put in the place of the columns that other expressions read, in the author's own text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError


@lru_cache(maxsize=4096)
def column_spans(expression: str) -> tuple[tuple[str, int, int], ...]:
    """The columns that an expression reads, as they are compared, with the places of their names in its text.

    Of ``a.b`` it is ``a``: expressions are over one table's columns, so the rest is a field of a struct.

    :raises ValueError: it is no expression that can be read
    """
    try:
        tree = sqlglot.parse_one(expression, read="spark")
    except SqlglotError as error:
        raise ValueError(f"{expression!r} can't be read as an expression") from error
    found = set()
    for column in tree.find_all(exp.Column):
        name = column.parts[0]
        place = name.meta
        if "start" not in place:
            raise ValueError(f"{expression!r} can't be read as an expression over columns")
        found.add((name.name.casefold(), int(place["start"]), int(place["end"]) + 1))
    return tuple(sorted(found, key=lambda each: each[1]))


def columns_read(expression: str) -> tuple[str, ...]:
    """The columns that an expression reads, as they are compared."""
    return tuple(dict.fromkeys(name for name, _, _ in column_spans(expression)))


def bare_column(expression: str) -> str | None:
    """The column, if the expression is nothing but one."""
    spans = column_spans(expression)
    text = expression.strip()
    return spans[0][0] if len(spans) == 1 and spans[0][2] - spans[0][1] == len(text) else None


def compose(expression: str, inner: Mapping[str, str]) -> str:
    """``expression`` over what ``inner`` makes of the columns; nothing but the columns' names is touched."""
    known = {name.casefold(): text for name, text in inner.items()}
    for name, start, end in reversed(column_spans(expression)):
        if name in known:
            text = known[name].strip()
            whole = end - start == len(expression.strip())
            put = text if whole or bare_column(text) is not None else f"({text})"
            expression = expression[:start] + put + expression[end:]
    return expression
