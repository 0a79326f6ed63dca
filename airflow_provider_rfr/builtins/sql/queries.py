"""What a query reads: tables and the columns of them, found by its scopes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from airflow_provider_rfr.builtins.names import namespace_of
from airflow_provider_rfr.builtins.spec import BuiltinObject
from airflow_provider_rfr.builtins.sql.facts import facts_of
from airflow_provider_rfr.builtins.sql.parse import parse_query
from airflow_provider_rfr.builtins.sql.scopes import full_name, scopes_of, table_parts, tables_of
from airflow_provider_rfr.builtins.sql.text import CANONICALIZER, canonical_sql
from airflow_provider_rfr.exceptions import UnreadableQueryError

__all__ = ["CANONICALIZER", "Reads", "canonical_sql", "dependencies", "object_reads", "parse_query", "unqualified"]

METADATA_TABLES: Final = frozenset(
    {
        *("history", "snapshots", "metadata_log_entries", "refs", "entries", "manifests", "partitions", "changes"),
        *("files", "data_files", "delete_files", "position_deletes", "position_delete_files"),
        *("all_entries", "all_files", "all_data_files", "all_delete_files", "all_manifests"),
    }
)
"""What Iceberg shows of a table below the table's name."""
_SELECTORS = ("branch_", "tag_", "snapshot_id_", "at_timestamp_")


@dataclass(frozen=True, slots=True)
class Reads:
    """A name that a query reads.

    :ivar name: as objects' names are compared
    :ivar columns: the columns of it that are used, sorted, as they are compared; some too many where the query does
        not tell whose a column is. None: all, or it can't be told
    """

    name: str
    columns: tuple[str, ...] | None = None


def dependencies(query: str, namespace: str, *, known: Container[str] | None = None) -> tuple[Reads, ...]:
    """What a query reads, sorted by name.

    :param namespace: of names that have none
    :param known: names of tables, as they are compared. Of ``ops.runs.history`` it is ``ops.runs`` that is read, if
        that one is known; without this, both are
    :raises QueryError: it is not one query
    :raises UnreadableQueryError: it can't be parsed
    """
    found = _Found(namespace, known)
    for parts, columns in facts_of(query).tables:
        found.add(parts, columns)
    return found.reads()


def object_reads(obj: BuiltinObject, *, known: Container[str] | None = None) -> tuple[Reads, ...]:
    """What an object reads: by its query, its ``depends_on``, or as a sink.

    :raises QueryError: as :func:`dependencies`; a query that can't be parsed is taken to read what ``depends_on`` says
    """
    if obj.sink is not None:
        columns = tuple(sorted(name.casefold() for name in obj.sink.columns)) or None
        return (Reads(obj.sink.source.casefold(), columns),)
    told = {name.casefold(): Reads(name.casefold()) for name in obj.depends_on}
    try:
        found = dependencies(obj.query, namespace_of(obj.name), known=known) if obj.query is not None else ()
    except UnreadableQueryError:
        if not told:
            raise
        found = ()
    told.update({each.name: each for each in found})
    return tuple(told[name] for name in sorted(told))


def unqualified(query: str) -> tuple[str, ...]:
    """Tables that a query names without a namespace; none, if it can't be parsed."""
    try:
        tables = [each for scope in scopes_of(query) for each in tables_of(scope)]
    except UnreadableQueryError:
        return ()
    names = (table_parts(table) for _, table in tables)
    return tuple(sorted({full_name(parts, "") for parts in names if len(parts) == 1}))


class _Found:
    def __init__(self, namespace: str, known: Container[str] | None) -> None:
        self._namespace = namespace
        self._known = known
        self._columns: dict[str, set[str] | None] = {}

    def add(self, parts: tuple[str, ...], columns: Iterable[str] | None) -> None:
        for name, exact in self._names(parts):
            before = self._columns.setdefault(name, set())
            if before is None or columns is None or not exact:
                self._columns[name] = None
            else:
                before.update(columns)

    def _names(self, parts: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
        """What is read, and whether the columns are its own."""
        whole, table = full_name(parts, self._namespace), full_name(parts[:-1], self._namespace)
        inside = parts[-1] in METADATA_TABLES or parts[-1].startswith(_SELECTORS)
        if len(parts) < 3 or (self._known is not None and (whole in self._known or table not in self._known)):
            yield whole, True
        elif self._known is not None:
            yield table, False
        else:
            yield whole, True
            if inside:
                yield table, False

    def reads(self) -> tuple[Reads, ...]:
        items = sorted(self._columns.items())
        return tuple(Reads(name, None if columns is None else tuple(sorted(columns))) for name, columns in items)
