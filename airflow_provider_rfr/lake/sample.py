"""A sample of a table's rows for display, from the beginning of one data file.

Columns whose names suggest a secret are not read, and secrets inside other values are masked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent

from airflow_provider_rfr.http.redaction import MASK, is_secret, without_credentials
from airflow_provider_rfr.text import one_line

if TYPE_CHECKING:
    from pyiceberg.table import Table

_ROWS: Final = 10
_COLUMNS: Final = 30
_LONGEST_VALUE: Final = 100
_FIELD_ID: Final = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class TableSample:
    """A few rows of a table, as texts.

    :ivar rows: one text for each column
    :ivar hidden: columns that are not shown because of their names
    :ivar more: number of other columns that are not shown
    :ivar why: the reason why there are no rows, as a sentence; empty if there are rows
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    hidden: tuple[str, ...] = ()
    more: int = 0
    why: str = ""


def sample_of(table: Table) -> TableSample:
    """Read the first rows of the table's first data file that has rows, and no more of the file than needed."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
        return TableSample(why="Another program deleted rows in files of their own, which are not read here.")
    files = (
        entry.data_file
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.record_count
    )
    file = next(files, None)
    if file is None:
        return TableSample(why="The table has no rows.")
    if file.file_format != FileFormat.PARQUET:
        return TableSample(why="The table's files are not Parquet, and no others are read here.")
    return _sample_of_file(table, file)


def _sample_of_file(table: Table, file: DataFile) -> TableSample:
    fields = table.schema().fields
    hidden = tuple(field.name for field in fields if is_secret(field.name))
    wanted = [field for field in fields if field.name not in hidden]
    shown = {field.field_id: field.name for field in wanted[:_COLUMNS]}
    with table.io.new_input(file.file_path).open() as stream:
        content = pq.ParquetFile(stream)
        # By id: the file may have been written before a column was renamed.
        stored = {_id_of(column): column.name for column in content.schema_arrow}
        names = [stored[number] for number in shown if number in stored]
        batches = content.iter_batches(_ROWS, columns=names) if names else iter(())
        values = next(batches, None)
        rows = [] if values is None else values.to_pylist()
    return TableSample(
        tuple(shown.values()),
        tuple(tuple(_text(row.get(stored.get(number))) for number in shown) for row in rows),
        hidden,
        len(wanted) - len(shown),
        "" if rows else "The first file of the table has none of its columns.",
    )


def _id_of(column: Any) -> int:
    return int((column.metadata or {}).get(_FIELD_ID, -1))


def _text(value: Any) -> str:
    """Return a value as a short text on one line, without secrets; an empty text for null."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, (Mapping, list)):
        value = json.dumps(_masked(value), ensure_ascii=False, default=str)
    return one_line(without_credentials(str(value)), _LONGEST_VALUE)


def _masked(value: Any) -> Any:
    """Mask the values of keys with secret names in a nested JSON value."""
    if isinstance(value, Mapping):
        return {str(name): MASK if is_secret(str(name)) else _masked(item) for name, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value
