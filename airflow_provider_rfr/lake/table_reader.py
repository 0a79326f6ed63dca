"""A reader of a table's data files in tasks, which sees the rows that every reader of the table sees.

Files that other engines wrote are read by their field ids, in the table's present types, and without the rows that
position deletes remove.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.io import load_file_io

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.files import FileStore

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata

_FORMAT = 2
"""The newest format version that PyIceberg writes."""


def live_files(table: Table) -> list[FileScanTask]:
    """Return the data files of the table as it was loaded, each with its position deletes.

    :raises ConfigurationError: rows of the table can't be replaced: it has equality deletes, or a format version that
        can be read and not written
    """
    name = ".".join(table.name())
    if table.metadata.format_version > _FORMAT:
        raise ConfigurationError(
            name,
            f"has format version {table.metadata.format_version}, which can't be written",
            f"use a table of format version {_FORMAT}",
        )
    with equality_deletes_refused(name):
        return list(table.scan().plan_files())


@contextmanager
def equality_deletes_refused(name: str) -> Iterator[None]:
    """Raise :class:`ConfigurationError` where PyIceberg finds that the table has equality deletes."""
    try:
        yield
    except ValueError as error:
        if "equality" not in str(error).lower():
            raise
        raise ConfigurationError(
            name, "has equality deletes, which can't be read", "compact it by the engine that wrote them, and try again"
        ) from None


@dataclass(frozen=True)
class TableReader:
    """A reader of a table's data files; picklable.

    :ivar metadata: the table's metadata, without its snapshots
    """

    metadata: TableMetadata
    io: FileIO

    @classmethod
    def of(cls, metadata: TableMetadata, io: FileIO) -> TableReader:
        """Return the reader of a table as a transaction will leave it."""
        history = ("snapshots", "snapshot_log", "metadata_log", "statistics", "partition_statistics")
        bare = metadata.model_copy(update={**{name: [] for name in history}, "refs": {}, "current_snapshot_id": None})
        # Without the catalog's credentials, because the reader is pickled into tasks.
        return cls(bare, load_file_io(dict(FileStore.of(io).properties), metadata.location))

    def columns(self, names: Collection[str] | None = None) -> Schema:
        """Return the table's columns of these names; all of them for None."""
        schema = self.metadata.schema()
        return schema if names is None else schema.select(*names)

    def read(self, file: FileScanTask, columns: Schema) -> pa.Table:
        """Return the rows of a file, in its order; columns that it lacks are null."""
        tables = list(self.tables(file, columns))
        return pa.concat_tables(tables) if tables else self._arrow(columns).empty_table()

    def tables(self, file: FileScanTask, columns: Schema) -> Iterator[pa.Table]:
        """Yield the rows of a file in its order, one batch at a time."""
        # Imported here: this module of PyIceberg takes longer to import than all others together.
        from pyiceberg.expressions import AlwaysTrue

        from airflow_provider_rfr.lake.projection import ArrowScan

        scan, shape = ArrowScan(self.metadata, self.io, columns, AlwaysTrue()), self._arrow(columns)
        for batch in scan.to_record_batches([file]):
            yield pa.Table.from_batches([batch]).cast(shape)

    @staticmethod
    def _arrow(columns: Schema) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(columns, include_field_ids=False)


def bounds_of(file: DataFile, schema: Schema, field_id: int) -> tuple[Any, Any] | None:
    """Return the lower and the upper bound of a column's values in the file; None if its statistics lack them.

    Bounds of texts may be truncated: the lower one is not greater than any value, the upper one not less.
    """
    from pyiceberg.conversions import from_bytes

    lower, upper = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    if lower is None or upper is None:
        return None
    kind = schema.find_type(field_id)
    try:
        return from_bytes(kind, lower), from_bytes(kind, upper)  # type: ignore[arg-type]
    except (struct.error, ValueError):
        return None  # written before the column was widened
