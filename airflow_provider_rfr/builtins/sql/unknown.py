"""Columns that a query asks of a table which does not have them."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_rfr.builtins.names import nearest
from airflow_provider_rfr.builtins.sql.facts import facts_of
from airflow_provider_rfr.builtins.sql.outputs import ColumnsOf
from airflow_provider_rfr.builtins.sql.scopes import full_name


def unknown_columns(query: str, columns_of: ColumnsOf, namespace: str) -> Iterator[tuple[str, str]]:
    """Problem and remedy for each ``alias.column`` that is not there.

    Names that begin with an underscore are left alone: Spark, Iceberg and the refresh add such columns to tables.

    :raises QueryError: as :func:`facts_of`
    """
    seen = set[tuple[str, str]]()
    for parts, column, as_written in facts_of(query).qualified:
        name = full_name(parts, namespace)
        known = columns_of(name)
        if known is None or column.startswith("_") or column in (each.casefold() for each in known):
            continue
        if (name, column) not in seen:
            seen.add((name, column))
            yield f"{name} has no column {as_written}", nearest(column, known)
