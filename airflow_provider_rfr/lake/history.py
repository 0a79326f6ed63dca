"""Appends rows to history tables, each row once, however often and by however many processes it is reported.

The tables are created by a deploy of the package's own objects. Without a table nothing is kept, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import CommitConflictError, conflicts_raised, retry_conflicts, without_retries

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_TRIES = 12


def append_once(
    catalog: Catalog,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    keys: Sequence[str],
    scope: Mapping[str, str | int] | None = None,
    since: tuple[str, datetime] | None = None,
) -> int:
    """Append the rows that are not in the table yet, in one commit; returns how many.

    :param name: a table that may be missing, or lack columns that the rows have
    :param keys: columns that identify a row; NULL equals NULL
    :param scope: columns with values that all the rows have, so that only rows with them are compared
    :param since: a column of times and a moment before all the rows, for the same purpose
    :raises LedgerError: other commits came first each time
    """
    where: BooleanExpression = AlwaysTrue()
    for column, value in (scope or {}).items():
        where = And(where, EqualTo(column, value))
    if since is not None:
        where = And(where, GreaterThanOrEqual(since[0], since[1].isoformat()))

    def append() -> int:
        table = load_table(catalog, name)
        if table is None:
            return 0
        found = table.scan(row_filter=where, selected_fields=tuple(keys)).to_arrow()
        known = set(zip(*(found.column(each).to_pylist() for each in keys), strict=True))
        new = {key: row for row in rows if (key := tuple(row.get(each) for each in keys)) not in known}
        if new:
            schema = table.schema().as_arrow()
            # By the table's columns: an older or a newer version of this package may have created it.
            values = [{column: row.get(column) for column in schema.names} for row in new.values()]
            with conflicts_raised():
                without_retries(table).append(pa.Table.from_pylist(values, schema=schema))
        return len(new)

    try:
        return retry_conflicts(_TRIES)(append) if rows else 0
    except CommitConflictError as error:
        raise LedgerError(f"{name}: other commits came first each of {_TRIES} times") from error
