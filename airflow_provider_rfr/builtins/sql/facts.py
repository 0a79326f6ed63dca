"""What a query says by itself, whatever columns its tables have.

Taken from its tree once and kept: to parse takes a millisecond, and a tree is too large to be kept for thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from airflow_provider_rfr.builtins.sql.outputs import Outputs, written
from airflow_provider_rfr.builtins.sql.parse import parse_query
from airflow_provider_rfr.builtins.sql.scopes import (
    STAR,
    Mention,
    column_of,
    mentions,
    reads_columns,
    scopes_of,
    sources_of,
    table_parts,
    tables_of,
)
from airflow_provider_rfr.builtins.sql.text import canonical_sql
from airflow_provider_rfr.exceptions import QueryError

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """All names are as they are compared.

    :ivar tables: the parts of each table's name where it is read, and the columns of it that are used there; None: all,
        or it can't be told
    :ivar qualified: the parts of a table's name, a column that the query asks of just that table, and the column as
        its author wrote it
    :ivar starred: its columns depend on those of its tables, by a star or a NATURAL JOIN
    :ivar outputs: the names of its columns as their author wrote them; None: they depend on those of its tables, or
        one has no name
    """

    tables: tuple[tuple[Parts, tuple[str, ...] | None], ...]
    qualified: tuple[tuple[Parts, str, str], ...]
    starred: bool
    outputs: tuple[str, ...] | None


@lru_cache(maxsize=65_536)
def facts_of(query: str) -> Facts:
    """The facts of a query.

    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    scopes = scopes_of(query)
    # Its words are at hand now; whoever asks for this text later would have it taken apart once more.
    canonical_sql(query)
    starred = any(map(_is_starred, scopes))
    qualified = dict.fromkeys(each for scope in scopes for each in _qualified(scope))
    return Facts(tuple(_tables(query, scopes)), tuple(qualified), starred, None if starred else _outputs(scopes[-1]))


def _is_starred(scope: Scope) -> bool:
    return any(
        reads_columns(node) if isinstance(node, exp.Star) else node.method.upper() == "NATURAL"
        for node in scope.walk()
        if isinstance(node, (exp.Star, exp.Join))
    )


def _outputs(scope: Scope) -> tuple[str, ...] | None:
    try:
        return Outputs(lambda name: None, "").of(scope)
    except QueryError:
        return None


def _qualified(scope: Scope) -> Iterator[tuple[Parts, str, str]]:
    """Only where an alias says whose the column is: a bare name may be a function, a unit of time or an alias."""
    tables = {alias: each for alias, each in sources_of(scope).items() if isinstance(each, exp.Table)}
    for column in scope.find_all(exp.Column):
        parts = column.parts
        table = tables.get(parts[0].name) if len(parts) > 1 and not isinstance(column.this, exp.Star) else None
        if table is not None and table_parts(table) and not (table.alias_column_names or table.args.get("pivots")):
            yield table_parts(table), parts[1].name, written(parts[1])


def _tables(query: str, scopes: Iterable[Scope]) -> Iterator[tuple[Parts, tuple[str, ...] | None]]:
    seen: set[int] = set()
    for scope in scopes:
        named = tuple(mentions(scope))
        for alias, table in tables_of(scope):
            seen.add(id(table))
            used = None if _depends_on_all(scope, table) else _used(named, scope, alias, table)
            yield table_parts(table), None if used is None else tuple(sorted(used))
    for parts in _others(parse_query(query), seen):
        yield parts, None


def _used(named: Iterable[Mention], scope: Scope, alias: str, table: exp.Table) -> set[str] | None:
    found = set()
    for mention in named:
        if mention.parts == (STAR,):
            return None
        column = column_of(mention, alias, table, scope)
        if column == STAR:
            return None
        if column is not None:
            found.add(column)
    return found


def _depends_on_all(scope: Scope, table: exp.Table) -> bool:
    """Whether columns that nobody names matter: they join, or make the groups of a pivot."""
    if table.args.get("pivots") or table.alias_column_names:
        return True
    return any(each.method.upper() == "NATURAL" for each in scope.find_all(exp.Join))


def _others(tree: exp.Query, seen: set[int]) -> Iterator[Parts]:
    """Tables that no scope has for a source: those that are given to functions, and what may have been missed."""
    own = {each.alias for each in tree.find_all(exp.CTE)}
    for node in tree.walk():
        parts: Parts = ()
        if isinstance(node, exp.Table) and id(node) not in seen:
            parts = table_parts(node)
        elif isinstance(node, exp.Column) and isinstance(node.parent, exp.Anonymous):
            parts = tuple(each.name for each in node.parts) if node.parent.name.upper() == "TABLE" else ()
        if parts and (len(parts) > 1 or parts[0] not in own):
            yield parts
