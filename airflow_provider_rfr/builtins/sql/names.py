"""Names of tables in a query, followed or replaced by something else in the author's own text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from airflow_provider_rfr.builtins.names import quoted
from airflow_provider_rfr.builtins.sql.scopes import full_name, scopes_of, table_parts, tables_of

__all__ = ["NamedTable", "at_snapshots", "rename_tables", "replace_tables"]


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table where a query names it.

    :ivar name: as objects' names are compared
    :ivar written: as the author wrote it
    :ivar parts: of the name, as they are compared
    :ivar aliased: it has a name of its own in the query
    :ivar fixed: the query says at which snapshot or time it reads it
    """

    name: str
    written: str
    parts: tuple[str, ...]
    aliased: bool
    fixed: bool


def replace_tables(query: str, namespace: str, replace: Callable[[NamedTable], str | None]) -> str:
    """The query with some tables' names replaced; nothing else is touched.

    :param namespace: of names that have none
    :param replace: what stands for a table's name from now on; None: the name
    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    places: dict[tuple[int, int], NamedTable] = {}
    for scope in scopes_of(query):
        for _, table in tables_of(scope):
            first, last = table.parts[0].meta, table.parts[-1].meta
            if "start" in first and "end" in last:
                span = (int(first["start"]), int(last["end"]) + 1)
                places[span] = _named(table, query[slice(*span)], namespace)
    for (start, end), named in sorted(places.items(), key=lambda each: each[0], reverse=True):
        put = replace(named)
        if put is not None:
            query = query[:start] + put + query[end:]
    return query


def _named(table: exp.Table, written: str, namespace: str) -> NamedTable:
    parts = table_parts(table)
    fixed = bool(table.args.get("version") or table.args.get("when"))
    return NamedTable(full_name(parts, namespace), written, parts, bool(table.alias), fixed)


def at_snapshots(query: str, namespace: str, snapshots: Mapping[str, int]) -> str:
    """The query, which reads these tables at these snapshots, unless it says itself which one it reads.

    :param snapshots: by the table's name as it is compared
    """

    def pinned(table: NamedTable) -> str | None:
        snapshot = snapshots.get(table.name)
        return None if snapshot is None or table.fixed else f"{table.written} VERSION AS OF {snapshot}"

    return replace_tables(query, namespace, pinned)


def rename_tables(query: str, namespace: str, names: Mapping[str, str]) -> str:
    """The query, which reads something else in the place of these tables, under the same alias.

    :param names: what is read instead, quoted, by the table's name as it is compared
    """

    def renamed(table: NamedTable) -> str | None:
        other = names.get(table.name)
        if other is None or table.fixed:
            return None
        return other if table.aliased else f"{other} AS {quoted(table.parts[-1])}"

    return replace_tables(query, namespace, renamed)
