"""The live rows of a table by its data files, for work that goes file by file and may go on after a crash.

Iceberg's own runtime for Spark reads tables, and can't be told which files of one to read (its option for that,
``scan-task-set-id``, was given up in 1.12 and is ignored in silence). Rows deleted by position are left out here as
they are there; a table with equality deletes is not read here at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class InputFile:
    """A data file of a snapshot; picklable.

    :ivar size: in bytes
    :ivar rows: None where some of the file's rows are deleted
    :ivar identity: the same as long as the same rows are read from it
    """

    scan: FileScanTask
    size: int
    rows: int | None
    identity: str


@dataclass(frozen=True, slots=True)
class InputReader:
    """Reads data files of one table with the columns that the table has now; picklable.

    :ivar properties: of the table's FileIO; they may hold secrets
    """

    metadata: TableMetadata
    location: str
    properties: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"InputReader({self.location!r})"

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.metadata.schema()

    def read(self, file: InputFile) -> Iterator[pa.RecordBatch]:
        """The file's live rows, a batch at a time."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io import load_file_io
        from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files

        io = load_file_io(dict(self.properties), self.location)
        scan = ArrowScan(self.metadata, io, self.schema, AlwaysTrue())
        # The public method holds a whole file in memory before it gives its first batch.
        deletes = _read_all_delete_files(io, [file.scan])
        yield from scan._record_batches_from_scan_tasks_and_deletes([file.scan], deletes)


def input_files(table: Table, snapshot_id: int) -> tuple[InputReader, tuple[InputFile, ...]] | None:
    """What a snapshot consists of, in the order of the files' names; None if it can't be read file by file."""
    try:
        scans = list(table.scan(snapshot_id=snapshot_id).plan_files())
    except (ValueError, NotImplementedError):
        return None
    # Tasks need the columns; a long history would only travel.
    metadata = table.metadata.model_copy(
        update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}, "current_snapshot_id": None}
    )
    reader = InputReader(metadata, table.location(), tuple(sorted(table.io.properties.items())))
    return reader, tuple(sorted(map(_input_file, scans), key=lambda each: each.identity))


def _input_file(scan: FileScanTask) -> InputFile:
    deletes = sorted(each.file_path for each in scan.delete_files)
    rows = None if deletes else scan.file.record_count
    return InputFile(scan, scan.file.file_size_in_bytes, rows, "\n".join([scan.file.file_path, *deletes]))
