"""What a query reads and returns, and its text with the stars written out.

Facts that do not depend on the columns of tables are cached: parsing takes a millisecond, and a tree is too large to
be kept for thousands of queries.

A ``SELECT *`` is written out so that a column that is added later changes no view by itself. Only the star is
replaced; the rest stays as its author wrote it, and that text is executed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile
from typing import Final

from sqlglot import TokenType, exp
from sqlglot.optimizer.scope import Scope

from airflow_provider_rfr.builtins.spec import QUERIED, BuiltinObject, Dependency, namespace_of, nearest
from airflow_provider_rfr.builtins.sql.parse import canonical_sql, identifier, parse_query, tokens
from airflow_provider_rfr.builtins.sql.scopes import (
    STAR,
    ColumnsOf,
    Mention,
    Outputs,
    column_of,
    full_name,
    mentions,
    reads_columns,
    scopes_of,
    sources_of,
    table_parts,
    tables_of,
    written,
)
from airflow_provider_rfr.exceptions import QueryError, UnreadableQueryError

_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Facts:
    """All names are as they are compared.

    :ivar tables: the parts of each table's name where it is read, and the columns of it that are used there; None: all,
        or it can't be known
    :ivar qualified: the parts of a table's name, a column that the query asks of just that table, and the column as
        its author wrote it
    :ivar starred: its columns depend on those of its tables, by a star or a NATURAL JOIN
    :ivar outputs: the names of its columns as their author wrote them; None: they depend on those of its tables, or
        one has no name
    """

    tables: tuple[tuple[_Parts, tuple[str, ...] | None], ...]
    qualified: tuple[tuple[_Parts, str, str], ...]
    starred: bool
    outputs: tuple[str, ...] | None


@lru_cache(maxsize=65_536)
def _facts_of(query: str) -> _Facts:
    """The facts of a query.

    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    scopes = scopes_of(query)
    # Fills the cache of canonical texts while the tokens of this query are still cached.
    canonical_sql(query)
    starred = any(
        reads_columns(node) if isinstance(node, exp.Star) else node.method.upper() == "NATURAL"
        for scope in scopes
        for node in scope.walk()
        if isinstance(node, (exp.Star, exp.Join))
    )
    qualified = dict.fromkeys(each for scope in scopes for each in _qualified(scope))
    outputs = None
    if not starred:
        with suppress(QueryError):
            outputs = Outputs(lambda name: None, "").of(scopes[-1])
    return _Facts(tuple(_tables(query, scopes)), tuple(qualified), starred, outputs)


def _qualified(scope: Scope) -> Iterator[tuple[_Parts, str, str]]:
    """Only where an alias says whose the column is: a bare name may be a function, a unit of time or an alias."""
    tables = {alias: each for alias, each in sources_of(scope).items() if isinstance(each, exp.Table)}
    for column in scope.find_all(exp.Column):
        parts = column.parts
        table = tables.get(parts[0].name) if len(parts) > 1 and not isinstance(column.this, exp.Star) else None
        if table is not None and table_parts(table) and not (table.alias_column_names or table.args.get("pivots")):
            yield table_parts(table), parts[1].name, written(parts[1])


def _tables(query: str, scopes: Iterable[Scope]) -> Iterator[tuple[_Parts, tuple[str, ...] | None]]:
    seen: set[int] = set()
    for scope in scopes:
        named = tuple(mentions(scope))
        for alias, table in tables_of(scope):
            seen.add(id(table))
            used = _used(named, scope, alias, table)
            yield table_parts(table), None if used is None else tuple(sorted(used))
    for parts in _others(parse_query(query), seen):
        yield parts, None


def _used(named: Iterable[Mention], scope: Scope, alias: str, table: exp.Table) -> set[str] | None:
    """The columns of a table that a scope uses; None: all, or unknown."""
    # Columns that are not named matter, too, where they make the groups of a pivot, or join.
    natural = any(each.method.upper() == "NATURAL" for each in scope.find_all(exp.Join))
    if natural or table.args.get("pivots") or table.alias_column_names:
        return None
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


def _others(tree: exp.Query, seen: set[int]) -> Iterator[_Parts]:
    """Tables that no scope has for a source: those that are given to functions, and what may have been missed."""
    own = {each.alias for each in tree.find_all(exp.CTE)}
    for node in tree.walk():
        parts: _Parts = ()
        if isinstance(node, exp.Table) and id(node) not in seen:
            parts = table_parts(node)
        elif isinstance(node, exp.Column) and isinstance(node.parent, exp.Anonymous):
            parts = tuple(each.name for each in node.parts) if node.parent.name.upper() == "TABLE" else ()
        if parts and (len(parts) > 1 or parts[0] not in own):
            yield parts


_METADATA_TABLES: Final = frozenset(
    {
        *("history", "snapshots", "metadata_log_entries", "refs", "entries", "manifests", "partitions", "changes"),
        *("files", "data_files", "delete_files", "position_deletes", "position_delete_files"),
        *("all_entries", "all_files", "all_data_files", "all_delete_files", "all_manifests"),
    }
)
"""What Iceberg shows of a table below the table's name."""
_SELECTORS = ("branch_", "tag_", "snapshot_id_", "at_timestamp_")


def dependencies(query: str, namespace: str, *, known: Container[str] | None = None) -> tuple[Dependency, ...]:
    """What a query reads, sorted by name.

    :param namespace: of names that have none
    :param known: names of tables, as they are compared. Of ``ops.runs.history`` it is ``ops.runs`` that is read, if
        that one is known; without this, both are
    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    found: dict[str, set[str] | None] = {}
    for parts, used in _facts_of(query).tables:
        for name, is_own in _names_of(parts, namespace, known):
            before = found.setdefault(name, set())
            if before is None or used is None or not is_own:
                found[name] = None
            else:
                before.update(used)
    return tuple(
        Dependency(name, None, None if columns is None else tuple(sorted(columns)))
        for name, columns in sorted(found.items())
    )


def _names_of(parts: _Parts, namespace: str, known: Container[str] | None) -> Iterator[tuple[str, bool]]:
    """What is read where a query names these parts, and whether the columns are its own."""
    whole, table = full_name(parts, namespace), full_name(parts[:-1], namespace)
    inside = parts[-1] in _METADATA_TABLES or parts[-1].startswith(_SELECTORS)
    if len(parts) < 3 or (known is not None and (whole in known or table not in known)):
        yield whole, True
    elif known is not None:
        yield table, False
    else:
        yield whole, True
        if inside:
            yield table, False


def object_reads(obj: BuiltinObject, *, known: Container[str] | None = None) -> tuple[Dependency, ...]:
    """What an object reads: by its query, its ``depends_on``, or as a sink.

    :raises QueryError: as :func:`dependencies`; a query that can't be parsed is taken to read what ``depends_on`` says
    """
    if obj.sink is not None:
        columns = tuple(sorted(name.casefold() for name in obj.sink.columns)) or None
        return (Dependency(obj.sink.source.casefold(), None, columns),)
    declared = {name.casefold(): Dependency(name.casefold()) for name in obj.depends_on}
    try:
        found = dependencies(obj.query, namespace_of(obj.name), known=known) if obj.query is not None else ()
    except UnreadableQueryError:
        if not declared:
            raise
        found = ()
    declared.update({each.name: each for each in found})
    return tuple(declared[name] for name in sorted(declared))


def unqualified(query: str) -> tuple[str, ...]:
    """Tables that a query names without a namespace; none, if it can't be parsed."""
    try:
        tables = [each for scope in scopes_of(query) for each in tables_of(scope)]
    except UnreadableQueryError:
        return ()
    names = (table_parts(table) for _, table in tables)
    return tuple(sorted({full_name(parts, "") for parts in names if len(parts) == 1}))


def unknown_columns(query: str, columns_of: ColumnsOf, namespace: str) -> Iterator[tuple[str, str]]:
    """Problem and remedy for each ``alias.column`` that is not there.

    Names that begin with an underscore are left alone: Spark, Iceberg and the refresh add such columns to tables.

    :raises QueryError: as :func:`_facts_of`
    """
    seen = set[tuple[str, str]]()
    for parts, column, as_written in _facts_of(query).qualified:
        name = full_name(parts, namespace)
        known = columns_of(name)
        if known is None or column.startswith("_") or column in (each.casefold() for each in known):
            continue
        if (name, column) not in seen:
            seen.add((name, column))
            yield f"{name} has no column {as_written}", nearest(column, known)


def _edit(query: str, scope: Scope, star: exp.Star, outputs: Outputs) -> tuple[int, int, str]:
    """The place of a star in the text, and what comes there."""
    start = star.meta.get("start")
    if not isinstance(start, int) or query[start : start + 1] != "*":
        raise QueryError("a query without a SELECT of its own hides a star", "write SELECT and the columns")
    end = _end_of_except(query, start) if star.args.get("except_") else start + 1
    column = star.parent
    if isinstance(column, exp.Column):
        names = [identifier(name) for name in outputs.qualified(scope, column)]
        first, last = column.parts[0].meta, column.parts[-2].meta
        between = f", {query[first['start'] : last['end'] + 1]}."
        return start, end, between.join(names)
    return start, end, ", ".join(map(str, outputs.star(scope, star)))


def _end_of_except(query: str, start: int) -> int:
    depth = 0
    for each in dropwhile(lambda word: word.start <= start, tokens(query)):
        depth += (each.token_type is TokenType.L_PAREN) - (each.token_type is TokenType.R_PAREN)
        if each.token_type is TokenType.R_PAREN and not depth:
            return int(each.end) + 1
    raise QueryError("the EXCEPT of a star has no end")


def expand_stars(query: str, columns_of: ColumnsOf, namespace: str = "") -> str:
    """The query with every star replaced by column names, except that of ``count(*)``.

    ``NATURAL JOIN`` is refused as well, since it depends on columns that are not named.

    :param columns_of: the columns that are recorded, or declared, by name as it is compared
    :param namespace: of tables that are named without one
    :raises QueryError: a star can't be written out; what to write instead is its remedy
    """
    if not _facts_of(query).starred:
        return query
    outputs = Outputs(columns_of, namespace)
    edits = []
    for scope in scopes_of(query):
        for node in scope.walk():
            if isinstance(node, exp.Join) and node.method.upper() == "NATURAL":
                outputs.items(scope)
            elif isinstance(node, exp.Star) and reads_columns(node):
                edits.append(_edit(query, scope, node, outputs))
    # From the end, so that the places before an edit stay valid.
    for start, end, text in sorted(edits, reverse=True):
        query = query[:start] + text + query[end:]
    return query


def output_columns(query: str, columns_of: ColumnsOf, namespace: str = "") -> tuple[str, ...]:
    """The names of a query's columns, as their author wrote them.

    :raises QueryError: one has no name, or what a star stands for is not known
    """
    found = _facts_of(query).outputs
    return Outputs(columns_of, namespace).of(scopes_of(query)[-1]) if found is None else found


def declared_columns(objects: Iterable[BuiltinObject]) -> ColumnsOf:
    """The columns of declared objects; those of a view that names none are those of its query.

    Ask for what is read before you ask for its readers, or a long chain of views ends in a ``RecursionError``.
    """
    by_key = {each.key: each for each in objects}
    known: dict[str, tuple[str, ...] | None] = {}

    def columns_of(name: str) -> tuple[str, ...] | None:
        key = name.casefold()
        if key in known:
            return known[key]
        # Views in a circle have no columns; the rules report the circle.
        known[key], obj = None, by_key.get(key)
        if obj is not None and not obj.columns and obj.kind in QUERIED and obj.query is not None:
            with suppress(QueryError):
                known[key] = output_columns(obj.query, columns_of, namespace=namespace_of(obj.name))
        elif obj is not None:
            known[key] = tuple(each.name for each in obj.columns) or None
        return known[key]

    return columns_of
