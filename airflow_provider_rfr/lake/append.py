"""Rows appended to a table as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_rfr.lake.catalog import load_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def append_rows(catalog: Catalog, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows in one commit; columns that a row lacks are NULL. A commit that meets another one is repeated.

    :raises ValueError: there is no such table, or no such column
    """
    table = load_table(catalog, name)
    if table is None:
        raise ValueError(f"{name} is not there")
    schema = table.schema().as_arrow()
    if unknown := sorted({column for row in rows for column in row} - set(schema.names)):
        raise ValueError(f"{name} has no column {unknown[0]}; it has {', '.join(schema.names)}")
    table.append(pa.Table.from_pylist(list(rows), schema=schema))
