"""Tables of history: many rows are appended in one commit, each row once, and a day ends up in one data file.

The identifier columns of such a table are the keys of its rows. A table that grows with each refresh is partitioned by
the day of a required column; one without partitions is treated as a single day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.transforms import DayTransform

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import (
    CommitConflictError,
    append_files,
    commit_strictly,
    retry_conflicts,
    stage_overwrite,
)
from airflow_provider_rfr.lake.data_files import FileTarget

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table

REPORTED_AGAIN: Final = timedelta(days=2)
"""How far back a process looks for rows that others did not report, because they died or had no control store."""
_TRIES: Final = 12
_FILES_OF_A_DAY: Final = 10


def append_rows_once(catalog: Catalog, name: str, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Append the rows whose keys the table lacks, in one commit; return how many, None if there is no such table.

    Keys are compared only with those of rows between the earliest and the latest time of these rows.

    :param rows: columns that the table lacks are left out; times are ISO 8601
    :raises LedgerError: other commits came first each time
    """

    def append() -> int | None:
        table = load_table(catalog, name)
        if table is None:
            return None
        target = FileTarget.of(table.metadata, table.io)
        typed = [_typed(row, target.rows) for row in rows]
        keys = sorted(table.schema().identifier_field_names())
        present = _keys_between(table, typed, keys)
        new = {key: row for row in typed if (key := tuple(row[name] for name in keys)) not in present}
        if new:
            rows_table = pa.Table.from_pylist(list(new.values()), schema=target.rows)
            stored = [file for file, _ in target.write(rows_table)]
            try:
                append_files(table, (file.describe(target.layout) for file in stored), {})
            except CommitConflictError:
                # Refused for sure, so no snapshot names the files; the next try writes new ones.
                target.store.delete([file.location for file in stored])
                raise
        return len(new)

    try:
        return retry_conflicts(_TRIES)(append)
    except CommitConflictError as error:
        raise LedgerError(f"{name}: other commits came first each of {_TRIES} times") from error


def merge_days(catalog: Catalog, name: str) -> int:
    """Write the files of a day into one; return for how many days this was done.

    The newest day is left alone until it has ten files. Nothing is done if another commit comes first.
    """
    table = load_table(catalog, name)
    due = _files_to_merge(table) if table is not None else []
    if table is None or not due:
        return 0
    tasks = [task for group in due for task in group]
    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    target = FileTarget.of(table.metadata, table.io)
    stored = [file for file, _ in target.write(rows)]
    try:
        # On the table as it was loaded, so that no rows are lost that were appended since: then this is refused.
        transaction = table.transaction()
        new = (file.describe(target.layout) for file in stored)
        stage_overwrite(transaction, (task.file for task in tasks), new, {}, compacts=True)
        commit_strictly(transaction)
    except CommitConflictError:
        target.store.delete([file.location for file in stored])
        return 0
    return len(due)


def _typed(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return the row as the table's columns, with times instead of texts."""
    values = {}
    for column in schema:
        value: Any = row.get(column.name)
        is_time = pa.types.is_timestamp(column.type) and isinstance(value, str)
        values[column.name] = datetime.fromisoformat(value) if is_time else value
    return values


def _keys_between(table: Table, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> set[tuple[Any, ...]]:
    """Return the keys in the table between the earliest and the latest of the rows."""
    schema, fields = table.schema(), table.spec().fields
    days = (schema.find_column_name(field.source_id) for field in fields if isinstance(field.transform, DayTransform))
    # Only the days of these rows are read, where the table is partitioned by day.
    column, where = next(days, None), AlwaysTrue()
    if column is not None:
        times = [row[column] for row in rows]
        where = And(GreaterThanOrEqual(column, min(times).isoformat()), LessThanOrEqual(column, max(times).isoformat()))
    present = table.scan(row_filter=where, selected_fields=tuple(keys)).to_arrow()
    return set(zip(*(present.column(key).to_pylist() for key in keys), strict=True))


def _files_to_merge(table: Table) -> list[list[FileScanTask]]:
    """Return the files that are to become one, by day; those of a former partitioning as well."""
    days: defaultdict[tuple[int, Any], list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        partition = task.file.partition
        days[task.file.spec_id, partition[0] if len(partition) else None].append(task)
    present = table.spec().spec_id
    newest = max((day for spec, day in days if spec == present and day is not None), default=None)
    return [
        tasks
        for (spec, day), tasks in days.items()
        if not any(task.delete_files for task in tasks)
        and (spec != present or len(tasks) >= (_FILES_OF_A_DAY if day == newest else 2))
    ]
