"""The increments of a table: its snapshots after a given one, and the rows that each of them added.

Each snapshot is classified by what an export has to do about it: new rows, replaced rows, a compaction, a migration.
Rows of a snapshot are always read in the same order: files in the order of their commits, rows as they are in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation

from airflow_provider_rfr.exceptions import SnapshotsExpiredError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import ancestors, summary_of
from airflow_provider_rfr.lake.target import GENERATION_KEY, LEDGER_KEY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MIGRATION_TAG: Final = "rfr.migration"
"""In the summary of each snapshot that a migration makes: ``<deploy>/<step>``."""


class SnapshotKind(str, Enum):
    """The meaning of a snapshot for a reader that has seen the one before."""

    ADDS_ROWS = "rows"
    """Files were added, and nothing else."""
    REWRITES_FILES = "nothing"
    """The same rows in other files."""
    DELETES_ROWS = "less"
    """Rows were deleted, and none added."""
    REPLACES_ROWS = "others"
    """Rows were replaced, or all deleted. Among the added rows may be some that were there before."""
    MIGRATION = "migration"
    """Made by a migration: the same rows, in other files or by another schema."""


@dataclass(frozen=True, slots=True)
class Increment:
    """One snapshot of the main line.

    :ivar schema_id: of the schema that it was written with
    """

    kind: SnapshotKind
    snapshot_id: int
    sequence: int
    schema_id: int | None
    rows: int


class SourceTable:
    """A table as it was loaded for an export."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self.name = name
        self.uuid = str(table.metadata.table_uuid)
        self.head = table.metadata.current_snapshot_id

    @classmethod
    def load(cls, catalog: Catalog, name: str) -> SourceTable | None:
        table = load_table(catalog, name)
        return None if table is None else cls(table, name)

    @property
    def properties(self) -> Mapping[str, str]:
        return self._table.properties

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(sorted(self._table.metadata.schema().identifier_field_names()))

    def columns(self, snapshot_id: int | None = None) -> tuple[tuple[str, int], ...]:
        """Return name and field id of each column, by the schema that the snapshot was written with.

        For None, by the current schema.

        :raises SnapshotsExpiredError: it has expired
        """
        return tuple((field.name, field.field_id) for field in self._schema(snapshot_id).fields)

    def sequence(self, snapshot_id: int | None) -> int | None:
        """Return the sequence number of a snapshot; None if the snapshot does not exist any more."""
        found = self._table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        return None if found is None else found.sequence_number

    def increments(self, after: int | None, until: int | None = None, sequence: int | None = None) -> list[Increment]:
        """Return the snapshots later than ``after``, oldest first.

        :param after: None: from the beginning
        :param until: the last one; None: the current snapshot
        :param sequence: the sequence number of ``after``, if known; then ``after`` itself may have expired
        :raises SnapshotsExpiredError: some of them have expired, or ``after`` is not on the main line
        """
        found: list[Increment] = []
        at = self.head if until is None else until
        for ancestor in ancestors(self._table.metadata, at):
            if ancestor.snapshot_id == after:
                break
            summary = summary_of(ancestor)
            kind, rows = self._kind_of(ancestor, summary), _count(summary, "added-records")
            found.append(Increment(kind, ancestor.snapshot_id, ancestor.sequence_number or 0, ancestor.schema_id, rows))
            at = ancestor.parent_snapshot_id
        # When they expire a snapshot, some engines forget that it was another one's parent.
        follows_after = sequence is not None and bool(found) and found[-1].sequence == sequence + 1
        if at != after and not follows_after:
            raise SnapshotsExpiredError(f"{self.name}: snapshots between {after} and {until or self.head} have expired")
        found.reverse()
        return found

    def has_passed(self, snapshot_id: int | None, cursor: int | None) -> bool:
        """Tell whether ``cursor`` is ``snapshot_id`` or came after it."""
        if snapshot_id is None or cursor == snapshot_id:
            return True
        return any(ancestor.snapshot_id == snapshot_id for ancestor in ancestors(self._table.metadata, cursor))

    def last_of(self, deploy_id: str | None) -> int | None:
        """Return the newest snapshot of the main line that this deploy made."""
        tags = ((snapshot, summary_of(snapshot).get(MIGRATION_TAG, "")) for snapshot in self._main_line())
        return next((snapshot.snapshot_id for snapshot, tag in tags if tag.partition("/")[0] == deploy_id), None)

    def last_before(self, timestamp_ms: int) -> int | None:
        """Return the newest snapshot of the main line that was made at that time or before."""
        return next(
            (snapshot.snapshot_id for snapshot in self._main_line() if snapshot.timestamp_ms <= timestamp_ms), None
        )

    def contents(self, snapshot_id: int) -> list[FileScanTask]:
        """Plan the files to read for all rows that the snapshot shows.

        :raises SnapshotsExpiredError: it has expired
        """
        order = {
            entry.data_file.file_path: (entry.sequence_number or 0, number)
            for manifest in self._data_manifests(self._snapshot(snapshot_id))
            for number, entry in enumerate(manifest.fetch_manifest_entry(self._table.io))
        }
        tasks = self._table.scan(snapshot_id=snapshot_id).plan_files()
        return sorted(tasks, key=lambda task: (*order[task.file.file_path], task.file.file_path))

    def added(self, after: int, until: int, sequence: int | None = None) -> list[FileScanTask]:
        """Plan the files to read for the rows that the increments of :meth:`increments` added.

        :raises SnapshotsExpiredError: one of them has expired
        """
        line = self.increments(after, until, sequence)
        return [
            FileScanTask(entry.data_file)
            for snapshot_id in [increment.snapshot_id for increment in line if increment.kind is SnapshotKind.ADDS_ROWS]
            for manifest in self._data_manifests(self._snapshot(snapshot_id))
            # A merged manifest also holds the files of earlier commits.
            if manifest.added_snapshot_id == snapshot_id
            for entry in manifest.fetch_manifest_entry(self._table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id
        ]

    @staticmethod
    def skip(tasks: Sequence[FileScanTask], rows: int) -> tuple[list[FileScanTask], int]:
        """Drop the whole files among the first ``rows`` rows.

        :returns: the other tasks, and how many rows are still to skip
        """
        left = list(tasks)
        while left and not left[0].delete_files and left[0].file.record_count <= rows:
            rows -= left.pop(0).file.record_count
        return left, rows

    def projection(self, columns: Iterable[tuple[str, int]], snapshot_id: int) -> Schema:
        """Return the columns with these field ids, under these names.

        Their types are those of the snapshot, or of the current schema where the snapshot lacks a column.

        :raises SnapshotsExpiredError: it has expired
        """
        known = {field.field_id: field for at in (None, snapshot_id) for field in self._schema(at).fields}
        # Rows from before a column was added have no value for it, whatever it is declared as.
        fields = [known[number].model_copy(update={"name": name, "required": False}) for name, number in columns]
        return Schema(*fields)

    @staticmethod
    def arrow(wanted: Schema) -> pa.Schema:
        """Return the columns in the Arrow schema of :meth:`read`."""
        return schema_to_pyarrow(wanted, include_field_ids=False)

    def read(self, tasks: Iterable[FileScanTask], wanted: Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with one file in memory at a time."""
        scan = ArrowScan(self._table.metadata, self._table.io, wanted, AlwaysTrue())
        shape = self.arrow(wanted)
        for task in tasks:
            for batch in scan.to_record_batches([task]):
                yield from pa.Table.from_batches([batch]).cast(shape).to_batches()

    def _data_manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        return [manifest for manifest in snapshot.manifests(self._table.io) if manifest.content == ManifestContent.DATA]

    def _kind_of(self, snapshot: Snapshot, summary: Mapping[str, str]) -> SnapshotKind:
        operation = snapshot.summary.operation if snapshot.summary is not None else None
        if MIGRATION_TAG in summary:
            return SnapshotKind.MIGRATION
        if operation == Operation.REPLACE:
            return SnapshotKind.REWRITES_FILES
        if operation == Operation.APPEND:
            return SnapshotKind.REPLACES_ROWS if self._ends_replacement(snapshot, summary) else SnapshotKind.ADDS_ROWS
        if _count(summary, "added-data-files"):
            deleted = _count(summary, "deleted-data-files") + _count(summary, "added-delete-files")
            return SnapshotKind.REPLACES_ROWS if deleted else SnapshotKind.ADDS_ROWS
        emptied = _count(summary, "deleted-data-files") and summary.get("total-records") == "0"
        return SnapshotKind.REPLACES_ROWS if emptied else SnapshotKind.DELETES_ROWS

    def _ends_replacement(self, snapshot: Snapshot, summary: Mapping[str, str]) -> bool:
        """Tell whether this is the append of a refresh that replaced a part of the table by a delete and an append."""
        parent = snapshot.parent_snapshot_id
        before = self._table.metadata.snapshot_by_id(parent) if parent is not None else None
        if before is None or before.summary is None or before.summary.operation == Operation.APPEND:
            return False
        marks = [summary.get(key) for key in (LEDGER_KEY, GENERATION_KEY)]
        return None not in marks and marks == [summary_of(before).get(key) for key in (LEDGER_KEY, GENERATION_KEY)]

    def _main_line(self) -> Iterator[Snapshot]:
        return ancestors(self._table.metadata, self.head)

    def _schema(self, snapshot_id: int | None) -> Schema:
        """Return the schema that the snapshot was written with.

        Return the current schema for None, or where the former is not known.
        """
        metadata = self._table.metadata
        schema_id = None if snapshot_id is None else self._snapshot(snapshot_id).schema_id
        return next((schema for schema in metadata.schemas if schema.schema_id == schema_id), metadata.schema())

    def _snapshot(self, snapshot_id: int) -> Snapshot:
        found = self._table.metadata.snapshot_by_id(snapshot_id)
        if found is None:
            raise SnapshotsExpiredError(f"{self.name}: the snapshot {snapshot_id} has expired")
        return found


def only_appended(table: Table, after: int, until: int) -> bool:
    """Tell whether rows were appended between two snapshots of the main line, and nothing else was done."""
    for ancestor in ancestors(table.metadata, until):
        if ancestor.snapshot_id == after:
            return True
        if ancestor.summary is None or ancestor.summary.operation != Operation.APPEND:
            break
    return False


def _count(summary: Mapping[str, str], key: str) -> int:
    return int(summary.get(key) or 0)
