"""Who is who inside a query: its scopes, and what the names in them mean."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from airflow_provider_rfr.builtins.names import quoted
from airflow_provider_rfr.builtins.sql.parse import parse_query
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError

STAR = "*"


@dataclass(frozen=True, slots=True)
class Mention:
    """A name in an expression, from left to right; a star is its last part.

    :ivar inner: aliases of queries inside, in which the name stands
    """

    parts: tuple[str, ...]
    inner: frozenset[str] = frozenset()


def scopes_of(query: str) -> tuple[Scope, ...]:
    """The scopes of a query, inner ones first. They are shared, as the parsed query is.

    :raises QueryError: as :func:`parse_query`, or two sources have one name
    """
    return _scopes(query, threading.get_ident())


@lru_cache(maxsize=128)
def _scopes(query: str, _thread: int) -> tuple[Scope, ...]:
    # Of one thread each: a scope collects what is in it when it is first asked, without a lock.
    try:
        return tuple(traverse_scope(parse_query(query)))
    except SqlglotError as error:
        raise QueryError(str(error).lower(), "give each table and subquery an alias of its own") from None
    except RecursionError:
        raise UnreadableQueryError("it is nested too deeply") from None


def table_parts(table: exp.Table) -> tuple[str, ...]:
    """The parts of a table's name; none, if it is a function."""
    parts = table.parts if isinstance(table.this, (exp.Identifier, exp.Dot)) else []
    return tuple(each.name for each in parts)


def full_name(parts: tuple[str, ...], namespace: str) -> str:
    """The name as objects' names are compared."""
    whole = ".".join(map(quoted, parts))
    return f"{namespace.casefold()}.{whole}" if len(parts) == 1 and namespace else whole


def tables_of(scope: Scope) -> Iterator[tuple[str, exp.Table]]:
    """Alias and table, for each real table among the sources of a scope."""
    for alias, source in scope.sources.items():
        if isinstance(source, exp.Table) and table_parts(source):
            yield alias, source


def sources_of(scope: Scope) -> dict[str, exp.Table | Scope]:
    """What stands in FROM and JOIN, by alias; for a LATERAL, what stands before it."""
    if isinstance(scope.expression, exp.Lateral):
        return dict(scope.sources)
    return {name: scope.sources[name] for name, _ in scope.references if name in scope.sources}


def made_by_laterals(scope: Scope) -> frozenset[str]:
    """Columns that the scope's lateral views make; no table beside them has one of the same name."""
    found = (each.args.get("alias") for each in scope.expression.args.get("laterals") or ())
    return frozenset(name.name for alias in found if isinstance(alias, exp.TableAlias) for name in alias.columns)


def mentions(scope: Scope) -> Iterator[Mention]:
    """Every column that a scope names, and what queries inside of it name, for that may be its own too."""
    yield from _own(scope, frozenset())
    for child in (*scope.subquery_scopes, *scope.udtf_scopes):
        yield from _inside(child, frozenset())


def _inside(scope: Scope, outer: frozenset[str]) -> Iterator[Mention]:
    inner = outer | sources_of(scope).keys()
    yield from (each for each in _own(scope, inner) if each.parts != (STAR,))
    children = (scope.subquery_scopes, scope.udtf_scopes, scope.derived_table_scopes, scope.set_operation_scopes)
    for child in (child for each in (*children, scope.cte_scopes) for child in each):
        yield from _inside(child, inner)


def _own(scope: Scope, inner: frozenset[str]) -> Iterator[Mention]:
    for node in scope.walk():
        if isinstance(node, exp.Column):
            parts = tuple(STAR if isinstance(each, exp.Star) else each.name for each in node.parts)
            yield Mention(parts, inner)
        elif isinstance(node, exp.Star) and not isinstance(node.parent, exp.Column) and reads_columns(node):
            yield Mention((STAR,), inner)
        elif isinstance(node, exp.Join):
            yield from (Mention((each.name,), inner) for each in node.args.get("using") or ())


def reads_columns(star: exp.Star) -> bool:
    """Whether a star stands for columns: that of ``count(*)`` and of ``EXISTS (SELECT *)`` stands for none."""
    holder = star.parent
    if isinstance(holder, exp.Count):
        return star.args.get("except_") is not None
    return not (isinstance(holder, exp.Select) and isinstance(holder.parent, exp.Exists))


def column_of(mention: Mention, alias: str, table: exp.Table, scope: Scope) -> str | None:
    """The column of this table that a mention may mean, None if it can't mean any."""
    parts = mention.parts
    if len(parts) > 1 and parts[0] in mention.inner:
        return None
    length = _prefix(parts, alias, table)
    if length:
        return parts[length]
    if parts[0] in made_by_laterals(scope):
        return None
    others = (each for each in sources_of(scope).items() if each[0] != alias)
    return None if any(_prefix(parts, name, source) for name, source in others) else parts[0]


def _prefix(parts: tuple[str, ...], alias: str, source: exp.Table | Scope) -> int:
    """How many of the parts name the source, before the one that names its column."""
    if len(parts) > 1 and parts[0] == alias:
        return 1
    if isinstance(source, exp.Table) and not source.alias:
        name = table_parts(source)
        for length in range(2, min(len(name), len(parts) - 1) + 1):
            if parts[:length] == name[-length:]:
                return length
    return 0
