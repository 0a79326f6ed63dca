"""Columns that a query asks of a table which does not have them."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from airflow_provider_rfr.builtins.names import nearest
from airflow_provider_rfr.builtins.sql.outputs import ColumnsOf, written
from airflow_provider_rfr.builtins.sql.scopes import full_name, scopes_of, sources_of, table_parts


def unknown_columns(query: str, columns_of: ColumnsOf, namespace: str) -> Iterator[tuple[str, str]]:
    """Problem and remedy for each ``alias.column`` that is not there.

    Only where an alias says whose the column is: a bare name may be a function, a unit of time or an alias. Names that
    begin with an underscore are left alone: Spark, Iceberg and the refresh add such columns to tables.

    :raises QueryError: as :func:`parse_query`
    """
    seen = set[tuple[str, str]]()
    for scope in scopes_of(query):
        tables = {alias: each for alias, each in sources_of(scope).items() if isinstance(each, exp.Table)}
        for column in scope.find_all(exp.Column):
            parts = [each.name for each in column.parts]
            table = tables.get(parts[0]) if len(parts) > 1 and not isinstance(column.this, exp.Star) else None
            if table is None or not table_parts(table) or table.alias_column_names or table.args.get("pivots"):
                continue
            name = full_name(table_parts(table), namespace)
            known = columns_of(name)
            if known is None or parts[1].startswith("_") or parts[1] in (each.casefold() for each in known):
                continue
            if (name, parts[1]) not in seen:
                seen.add((name, parts[1]))
                yield f"{name} has no column {written(column.parts[1])}", nearest(parts[1], known)
