"""Rows of tables without Spark: the increments that sinks read, and rows that are appended.

Each snapshot after a given one is classified by how a reader of increments must treat it: new rows, replaced rows, a
compaction, a migration. Rows of a snapshot are always read in the same order: files in the order of their commits, rows
in the order of their file.

History tables get many rows in one commit, each row once, and the files of a day are compacted into one. The identifier
fields of such a table are the keys of its rows. A table that grows with each refresh is partitioned by the day of a
required column; one without partitions is treated as a single day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import DayTransform

from airflow_provider_rfr.exceptions import LedgerError, SnapshotsExpiredError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import (
    CommitConflictError,
    TableTransaction,
    ancestors,
    append_files,
    commit_strictly,
    moves_state_alone,
    retry_conflicts,
    stage_overwrite,
    summary_of,
)
from airflow_provider_rfr.lake.data_files import FileTarget
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.projection import ArrowScan
from airflow_provider_rfr.lake.row_changes import CHANGES_KEY, read_changes, read_deleted
from airflow_provider_rfr.lake.side_files import SideFileError
from airflow_provider_rfr.lake.target import GENERATION_KEY, LEDGER_KEY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MIGRATION_TAG: Final = "rfr.migration"
"""Summary property of each snapshot that a migration makes: ``<deploy>/<step>``."""
REPORTED_AGAIN: Final = timedelta(days=2)
"""How far back a process looks for rows that others did not report, because they died or had no control store."""
_TRIES: Final = 12
_FILES_OF_A_DAY: Final = 10


class SnapshotKind(str, Enum):
    """The meaning of a snapshot for a reader that has read the one before."""

    ADDS_ROWS = "rows"
    """Files were added, and nothing else."""
    COMPACTS = "nothing"
    """The same rows: a compaction, or a commit of a sync's state alone."""
    DELETES_ROWS = "less"
    """Rows were deleted, and none added."""
    REPLACES_ROWS = "others"
    """Rows were replaced, or all deleted. Some of the added rows may have been in the table before."""
    CHANGES_ROWS = "changes"
    """An incremental sync merged rows, and recorded which files hold new versions and which keys it deleted."""
    MIGRATES = "migration"
    """A migration wrote the same rows, in other files or with another schema."""


@dataclass(frozen=True, slots=True)
class Increment:
    """One snapshot of the main line, as a reader of increments sees it.

    :ivar sequence: sequence number of the snapshot
    :ivar schema_id: id of the schema that it was written with
    :ivar rows: number of rows that it added; for a merge, of new versions and deletions
    :ivar keys: field ids of the columns by which rows were merged; empty for other snapshots
    """

    kind: SnapshotKind
    snapshot_id: int
    sequence: int
    schema_id: int | None
    rows: int
    keys: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The rows that one merge deleted, by their keys.

    :ivar rows: number of deleted rows
    :ivar keys: field ids of the key's columns
    :ivar summary: summary of the merge's snapshot
    """

    rows: int
    keys: tuple[int, ...]
    summary: Mapping[str, str]


SourcePart = FileScanTask | DeletedRows
"""The rows of one file that a snapshot added, or the rows that it deleted."""


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
        """Return name and field id of each column in the schema that the snapshot was written with.

        :param snapshot_id: None for the current schema
        :raises SnapshotsExpiredError: the snapshot has expired
        """
        return tuple((field.name, field.field_id) for field in self._schema(snapshot_id).fields)

    def sequence(self, snapshot_id: int | None) -> int | None:
        """Return the sequence number of a snapshot; None if the snapshot does not exist any more."""
        snapshot = self._table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        return None if snapshot is None else snapshot.sequence_number

    def increments(self, after: int | None, until: int | None = None, sequence: int | None = None) -> list[Increment]:
        """Return the snapshots later than ``after``, oldest first.

        :param after: the snapshot to start after; None for the beginning of the table
        :param until: the last snapshot; None for the current one
        :param sequence: the sequence number of ``after``, if known; then ``after`` itself may have expired
        :raises SnapshotsExpiredError: some of them have expired, or ``after`` is not on the main line
        """
        increments: list[Increment] = []
        at = self.head if until is None else until
        for ancestor in ancestors(self._table.metadata, at):
            if ancestor.snapshot_id == after:
                break
            summary = summary_of(ancestor)
            kind, rows, keys = self._kind_of(ancestor, summary), _count(summary, "added-records"), frozenset[int]()
            if kind is SnapshotKind.CHANGES_ROWS and (changes := read_changes(summary)) is not None:
                rows, keys = changes.rows + changes.deleted, frozenset(changes.keys)
            sequence_number = ancestor.sequence_number or 0
            increments.append(Increment(kind, ancestor.snapshot_id, sequence_number, ancestor.schema_id, rows, keys))
            at = ancestor.parent_snapshot_id
        # Some engines clear a snapshot's parent id when they expire the parent.
        follows_after = sequence is not None and bool(increments) and increments[-1].sequence == sequence + 1
        if at != after and not follows_after:
            raise SnapshotsExpiredError(f"{self.name}: snapshots between {after} and {until or self.head} have expired")
        increments.reverse()
        return increments

    def has_passed(self, snapshot_id: int | None, cursor: int | None) -> bool:
        """Tell whether ``cursor`` is ``snapshot_id`` or descends from it."""
        if snapshot_id is None or cursor == snapshot_id:
            return True
        return any(ancestor.snapshot_id == snapshot_id for ancestor in ancestors(self._table.metadata, cursor))

    def last_of(self, deploy_id: str | None) -> int | None:
        """Return the newest snapshot of the main line that this deploy made; None if there is none."""
        tags = ((snapshot, summary_of(snapshot).get(MIGRATION_TAG, "")) for snapshot in self._main_line())
        return next((snapshot.snapshot_id for snapshot, tag in tags if tag.partition("/")[0] == deploy_id), None)

    def last_before(self, timestamp_ms: int) -> int | None:
        """Return the newest snapshot of the main line that was made at that time or before; None if there is none."""
        return next(
            (snapshot.snapshot_id for snapshot in self._main_line() if snapshot.timestamp_ms <= timestamp_ms), None
        )

    def contents(self, snapshot_id: int) -> list[FileScanTask]:
        """Return the files to read for all rows of the snapshot, always in the same order.

        :raises SnapshotsExpiredError: it has expired
        """
        # A scan yields files in any order, but a sink that stopped half way needs the same order again.
        order = {
            entry.data_file.file_path: (entry.sequence_number or 0, number)
            for manifest in self._data_manifests(self._snapshot(snapshot_id))
            for number, entry in enumerate(manifest.fetch_manifest_entry(self._table.io))
        }
        tasks = self._table.scan(snapshot_id=snapshot_id).plan_files()
        return sorted(tasks, key=lambda task: (*order[task.file.file_path], task.file.file_path))

    def added(self, after: int, until: int, sequence: int | None = None) -> list[SourcePart]:
        """Return the parts to read for the rows that the increments added, with arguments as of :meth:`increments`.

        The rows that a merge deleted are a part of their own, after the rows that it added.

        :raises SnapshotsExpiredError: one of them has expired
        """
        parts: list[SourcePart] = []
        for increment in self.increments(after, until, sequence):
            if increment.kind not in (SnapshotKind.ADDS_ROWS, SnapshotKind.CHANGES_ROWS):
                continue
            snapshot = self._snapshot(increment.snapshot_id)
            changes = read_changes(summary_of(snapshot)) if increment.kind is SnapshotKind.CHANGES_ROWS else None
            files = self._added_files(snapshot)
            parts += [FileScanTask(file) for file in files if changes is None or not changes.has_moved(file.file_path)]
            if changes is not None and changes.deleted:
                parts.append(DeletedRows(changes.deleted, changes.keys, summary_of(snapshot)))
        return parts

    def _added_files(self, snapshot: Snapshot) -> list[DataFile]:
        return [
            entry.data_file
            for manifest in self._data_manifests(snapshot)
            # A merged manifest also holds the files of earlier commits.
            if manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(self._table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        ]

    @staticmethod
    def skip(parts: Sequence[SourcePart], rows: int) -> tuple[list[SourcePart], int]:
        """Drop the parts that are wholly within the first ``rows`` rows.

        A file with delete files is not dropped, because its record count includes deleted rows.

        :returns: the remaining parts, and the number of rows still to skip
        """
        remaining = list(parts)
        while remaining:
            part = remaining[0]
            count = part.rows if isinstance(part, DeletedRows) else part.file.record_count
            if count > rows or (isinstance(part, FileScanTask) and part.delete_files):
                break
            rows -= count
            del remaining[0]
        return remaining, rows

    def projection(self, columns: Iterable[tuple[str, int]], snapshot_id: int) -> Schema:
        """Return the schema of the columns with these field ids, under these names.

        Their types are those of the snapshot, or of the current schema where the snapshot lacks a column.

        :raises SnapshotsExpiredError: it has expired
        """
        by_id = {field.field_id: field for at in (None, snapshot_id) for field in self._schema(at).fields}
        # Rows from before a column was added have no value for it, whatever it is declared as.
        fields = [by_id[number].model_copy(update={"name": name, "required": False}) for name, number in columns]
        return Schema(*fields)

    @staticmethod
    def arrow(wanted: Schema) -> pa.Schema:
        """Return the Arrow schema of the batches of :meth:`read`."""
        return schema_to_pyarrow(wanted, include_field_ids=False)

    def read(self, parts: Iterable[SourcePart], wanted: Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with one file in memory at a time; in deleted rows only the key's columns have values.

        :raises SnapshotsExpiredError: a file with keys of deleted rows is missing
        """
        scan = ArrowScan(self._table.metadata, self._table.io, wanted, AlwaysTrue())
        shape = self.arrow(wanted)
        for part in parts:
            if isinstance(part, DeletedRows):
                yield self._deleted(part, wanted)
                continue
            for batch in scan.to_record_batches([part]):
                yield from pa.Table.from_batches([batch]).cast(shape).to_batches()

    def _deleted(self, part: DeletedRows, wanted: Schema) -> pa.RecordBatch:
        try:
            keys = read_deleted(part.summary, FileStore.of(self._table.io))
        except SideFileError as error:
            raise SnapshotsExpiredError(f"{self.name}: {error}") from None
        columns, shape = dict(zip(part.keys, keys.columns, strict=True)), self.arrow(wanted)
        arrays = [
            columns[field.field_id].combine_chunks().cast(column.type)
            if field.field_id in columns
            else pa.nulls(part.rows, column.type)
            for field, column in zip(wanted.fields, shape, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=shape)

    def _data_manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        return [manifest for manifest in snapshot.manifests(self._table.io) if manifest.content == ManifestContent.DATA]

    def _kind_of(self, snapshot: Snapshot, summary: Mapping[str, str]) -> SnapshotKind:
        operation = snapshot.summary.operation if snapshot.summary is not None else None
        if MIGRATION_TAG in summary:
            return SnapshotKind.MIGRATES
        if operation == Operation.REPLACE or moves_state_alone(snapshot):
            return SnapshotKind.COMPACTS
        if operation == Operation.OVERWRITE and CHANGES_KEY in summary:
            return SnapshotKind.CHANGES_ROWS
        if operation == Operation.APPEND:
            # A refresh replaces a part of the table by a delete and an append: two snapshots with the same ledger and
            # generation.
            parent = snapshot.parent_snapshot_id
            before = self._table.metadata.snapshot_by_id(parent) if parent is not None else None
            if before is None or before.summary is None or before.summary.operation == Operation.APPEND:
                return SnapshotKind.ADDS_ROWS
            marks = [summary.get(key) for key in (LEDGER_KEY, GENERATION_KEY)]
            same = None not in marks and marks == [summary_of(before).get(key) for key in (LEDGER_KEY, GENERATION_KEY)]
            return SnapshotKind.REPLACES_ROWS if same else SnapshotKind.ADDS_ROWS
        if _count(summary, "added-data-files"):
            deleted = _count(summary, "deleted-data-files") + _count(summary, "added-delete-files")
            return SnapshotKind.REPLACES_ROWS if deleted else SnapshotKind.ADDS_ROWS
        emptied = _count(summary, "deleted-data-files") and summary.get("total-records") == "0"
        # A reader of the rows before must drop all of them, so this counts as their replacement by nothing.
        return SnapshotKind.REPLACES_ROWS if emptied else SnapshotKind.DELETES_ROWS

    def _main_line(self) -> Iterator[Snapshot]:
        return ancestors(self._table.metadata, self.head)

    def _schema(self, snapshot_id: int | None) -> Schema:
        """Return the schema that the snapshot was written with.

        Return the current schema for None, or if the snapshot's schema is not known.
        """
        metadata = self._table.metadata
        schema_id = None if snapshot_id is None else self._snapshot(snapshot_id).schema_id
        return next((schema for schema in metadata.schemas if schema.schema_id == schema_id), metadata.schema())

    def _snapshot(self, snapshot_id: int) -> Snapshot:
        snapshot = self._table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise SnapshotsExpiredError(f"{self.name}: the snapshot {snapshot_id} has expired")
        return snapshot


def only_appended(table: Table, after: int, until: int) -> bool:
    """Tell whether all commits between two snapshots of the main line only appended rows."""
    for ancestor in ancestors(table.metadata, until):
        if ancestor.snapshot_id == after:
            return True
        if ancestor.summary is None or ancestor.summary.operation != Operation.APPEND:
            break
    return False


def _count(summary: Mapping[str, str], key: str) -> int:
    return int(summary.get(key) or 0)


def append_rows(catalog: Catalog, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows in one commit, which is retried after a conflict; columns that a row lacks are NULL.

    :raises ValueError: there is no such table, or no such column
    """
    table = load_table(catalog, name)
    if table is None:
        raise ValueError(f"there is no table {name}")
    schema = table.schema().as_arrow()
    if unknown := sorted({column for row in rows for column in row} - set(schema.names)):
        raise ValueError(f"{name} has no column {unknown[0]}; it has {', '.join(schema.names)}")
    table.append(pa.Table.from_pylist(list(rows), schema=schema))


def append_rows_once(catalog: Catalog, name: str, rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Append the rows whose keys the table lacks, in one commit; return how many, None if there is no such table.

    If the table is partitioned by day, keys are compared only within the time span of these rows.

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
                # The commit was certainly refused, so no snapshot names the files; the next try writes new ones.
                target.store.delete([file.location for file in stored])
                raise
        return len(new)

    try:
        return retry_conflicts(_TRIES)(append)
    except CommitConflictError as error:
        raise LedgerError(f"{name}: other commits came first each of {_TRIES} times") from error


def merge_days(catalog: Catalog, name: str) -> int:
    """Compact the files of each day into one; return the number of days for which this was done.

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
        # On the table as it was loaded, so that it is refused if rows were appended since, which it would lose.
        transaction = TableTransaction(table)
        new = (file.describe(target.layout) for file in stored)
        stage_overwrite(transaction, (task.file for task in tasks), new, {}, compacts=True)
        commit_strictly(transaction)
    except CommitConflictError:
        target.store.delete([file.location for file in stored])
        return 0
    return len(due)


def _typed(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return the row with a value for each of the table's columns, and with texts of timestamps parsed."""
    values = {}
    for column in schema:
        value: Any = row.get(column.name)
        is_time = pa.types.is_timestamp(column.type) and isinstance(value, str)
        values[column.name] = datetime.fromisoformat(value) if is_time else value
    return values


def _keys_between(table: Table, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> set[tuple[Any, ...]]:
    """Return the keys of the table's rows in the time span of ``rows``; of all rows without a partition by day."""
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
    """Return the files to compact, in one group for each day.

    Files of a former partitioning are always compacted. A group with delete files is left out.
    """
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
