"""Tables of history: each row is there once, whoever tells it, however often, and whoever else tells it at once.

The tables are made by a deploy of the package's own objects. Where there was none, nothing is kept, and nothing fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import without_retries

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

log = logging.getLogger(__name__)

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
    """Append the rows that are not there yet, in one commit; returns how many.

    :param name: a table that may be missing, or lack columns that the rows have
    :param keys: columns that tell rows apart; one without a value is a value of its own
    :param scope: columns and values that all the rows have, so that only those like them are looked at
    :param since: a column of times and a moment that none of the rows is before; likewise
    :raises LedgerError: others wrote before each of several tries
    """
    for attempt in range(_TRIES if rows else 0):
        table = load_table(catalog, name)
        if table is None:
            return 0
        known = _keys_in(table, keys, _where(scope or {}, since))
        fresh = {key: row for row in rows if (key := tuple(row.get(each) for each in keys)) not in known}
        if not fresh:
            return 0
        try:
            without_retries(table).append(_arrow(table, list(fresh.values())))
        except CommitFailedException:
            time.sleep(0.02 * 2 ** min(attempt, 6))
        else:
            return len(fresh)
    if rows:
        raise LedgerError(f"{name}: others wrote before each of {_TRIES} tries")
    return 0


def _where(scope: Mapping[str, str | int], since: tuple[str, datetime] | None) -> BooleanExpression:
    where: BooleanExpression = AlwaysTrue()
    for column, value in scope.items():
        where = And(where, EqualTo(column, value))
    return where if since is None else And(where, GreaterThanOrEqual(since[0], since[1].isoformat()))


def _keys_in(table: Table, keys: Sequence[str], where: BooleanExpression) -> set[tuple[Any, ...]]:
    found = table.scan(row_filter=where, selected_fields=tuple(keys)).to_arrow()
    return set(zip(*(found.column(each).to_pylist() for each in keys), strict=True))


def _arrow(table: Table, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Columns that the table lacks are left out: an older or a newer version of this package made it."""
    schema = table.schema().as_arrow()
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)
