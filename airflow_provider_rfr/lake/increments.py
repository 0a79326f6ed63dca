"""What came to a table after a snapshot: its later snapshots in order, and the rows that they brought.

Snapshots that a migration made carry its tag; compactions bring nothing. Both are told apart from those that bring rows
and from those that replace rows, so that whoever exports can go by them. Rows are read in an order that is always the
same for the same snapshot: of files in the order of their commits, and of rows as they are in the files.
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
from airflow_provider_rfr.lake.commits import summary_of
from airflow_provider_rfr.lake.target import GENERATION_KEY, LEDGER_KEY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

MIGRATION_TAG: Final = "rfr.migration"
"""In the summary of each snapshot that a migration makes: ``<deploy>/<step>``."""


class Brings(str, Enum):
    """What a snapshot means for who has seen the one before."""

    ROWS = "rows"
    """Files were added, and nothing else."""
    NOTHING = "nothing"
    """The same rows in other files."""
    LESS = "less"
    """Rows left, and none came."""
    OTHERS = "others"
    """Rows were replaced by others, or none is left. Among those that came may be some that were there before."""
    MIGRATION = "migration"
    """Made by a migration: what was there, in other files or by another schema."""


@dataclass(frozen=True, slots=True)
class Increment:
    """One snapshot of the main line.

    :ivar schema_id: of the columns that its writer knew
    :ivar rows: that it added
    """

    brings: Brings
    snapshot_id: int
    parent: int | None
    sequence: int
    timestamp_ms: int
    schema_id: int | None
    rows: int


class SourceTable:
    """A table at one moment, as an export sees it."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self.name = name
        self.uuid = str(table.metadata.table_uuid)
        self.head = table.metadata.current_snapshot_id
        self.schema_id = table.metadata.current_schema_id

    @classmethod
    def load(cls, catalog: Catalog, name: str) -> SourceTable | None:
        """The table as it is now; None where there is none."""
        table = load_table(catalog, name)
        return None if table is None else cls(table, name)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self._table.properties

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the identifier columns."""
        return tuple(sorted(self._table.metadata.schema().identifier_field_names()))

    def columns(self, schema_id: int | None = None) -> dict[str, tuple[str, int]]:
        """Spelling and field id of each column by its name as it is compared, in the schema's order."""
        return {each.name.casefold(): (each.name, each.field_id) for each in self._schema(schema_id).fields}

    def schema_at(self, snapshot_id: int) -> int:
        """The schema that the snapshot's writer knew."""
        return _or_else(self._snapshot(snapshot_id).schema_id, self.schema_id)

    def sequence(self, snapshot_id: int | None) -> int | None:
        """The sequence number of a snapshot; None where it is not there."""
        found = self._table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        return None if found is None else found.sequence_number

    def increments(self, after: int | None, until: int | None = None, sequence: int | None = None) -> list[Increment]:
        """The snapshots later than ``after``, oldest first.

        :param after: None: from the beginning
        :param until: the last one; None: the current snapshot
        :param sequence: of ``after``, if known: it may then have expired itself
        :raises SnapshotsExpiredError: some of them are gone, or ``after`` is not on the main line
        """
        found: list[Increment] = []
        at = self.head if until is None else until
        while at != after:
            snapshot = self._table.metadata.snapshot_by_id(at) if at is not None else None
            if snapshot is None:
                # Some engines forget the parent when they expire it.
                if sequence is not None and found and found[-1].sequence == sequence + 1:
                    break
                raise SnapshotsExpiredError(
                    f"{self.name} has no way from snapshot {after} to {until or self.head} left"
                )
            found.append(self._increment(snapshot))
            at = snapshot.parent_snapshot_id
        found.reverse()
        return found

    def has_passed(self, snapshot_id: int | None, cursor: int | None) -> bool:
        """Whether ``cursor`` is ``snapshot_id`` or came after it."""
        at = cursor
        while at != snapshot_id and at is not None:
            snapshot = self._table.metadata.snapshot_by_id(at)
            at = snapshot.parent_snapshot_id if snapshot is not None else None
        return at == snapshot_id

    def last_of(self, deploy_id: str) -> int | None:
        """The newest snapshot of the main line that this deploy made."""
        tags = ((each, summary_of(each).get(MIGRATION_TAG, "")) for each in self._line())
        return next((each.snapshot_id for each, tag in tags if tag.partition("/")[0] == deploy_id), None)

    def last_before(self, timestamp_ms: int) -> int | None:
        """The newest snapshot of the main line that was made then or before."""
        return next((each.snapshot_id for each in self._line() if each.timestamp_ms <= timestamp_ms), None)

    def contents(self, snapshot_id: int) -> list[FileScanTask]:
        """What to read for all rows that the snapshot shows.

        :raises SnapshotsExpiredError: it is gone
        """
        came = {
            entry.data_file.file_path: (entry.sequence_number or 0, number)
            for manifest in self._data_manifests(self._snapshot(snapshot_id))
            for number, entry in enumerate(manifest.fetch_manifest_entry(self._table.io))
        }
        tasks = self._table.scan(snapshot_id=snapshot_id).plan_files()
        return sorted(tasks, key=lambda task: (*came[task.file.file_path], task.file.file_path))

    def added(self, snapshot_ids: Sequence[int]) -> list[FileScanTask]:
        """What to read for the rows that the snapshots added.

        :raises SnapshotsExpiredError: one of them is gone
        """
        return [task for each in snapshot_ids for task in self._added(self._snapshot(each))]

    @staticmethod
    def skip(tasks: Sequence[FileScanTask], rows: int) -> tuple[list[FileScanTask], int]:
        """The tasks without whole files of the first so many rows, and how many rows are still to be skipped."""
        left = list(tasks)
        while left and not left[0].delete_files and left[0].file.record_count <= rows:
            rows -= left.pop(0).file.record_count
        return left, rows

    def projection(self, columns: Iterable[tuple[str, int]], schema_id: int) -> Schema:
        """The columns with these field ids, under these names; what the schema lacks is as it is in the table now."""
        then, now = self._schema(schema_id), self._schema(None)
        known = {**{each.field_id: each for each in now.fields}, **{each.field_id: each for each in then.fields}}
        # Rows from before a column came have no value of it, whatever it is declared as.
        fields = [known[number].model_copy(update={"name": name, "required": False}) for name, number in columns]
        return Schema(*fields)

    @staticmethod
    def arrow(wanted: Schema) -> pa.Schema:
        """The columns as :meth:`read` returns them."""
        return schema_to_pyarrow(wanted, include_field_ids=False)

    def read(self, tasks: Iterable[FileScanTask], wanted: Schema) -> Iterator[pa.RecordBatch]:
        """The rows, one file in memory at a time."""
        scan = ArrowScan(self._table.metadata, self._table.io, wanted, AlwaysTrue())
        shape = self.arrow(wanted)
        for task in tasks:
            for batch in scan.to_record_batches([task]):
                yield from pa.Table.from_batches([batch]).cast(shape).to_batches()

    def _added(self, snapshot: Snapshot) -> Iterator[FileScanTask]:
        for manifest in self._data_manifests(snapshot):
            # A merged manifest holds the files of earlier commits as well.
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(self._table.io):
                    if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                        yield FileScanTask(entry.data_file)

    def _data_manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        return [each for each in snapshot.manifests(self._table.io) if each.content == ManifestContent.DATA]

    def _increment(self, snapshot: Snapshot) -> Increment:
        summary = summary_of(snapshot)
        return Increment(
            self._brings(snapshot, summary),
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            snapshot.sequence_number or 0,
            snapshot.timestamp_ms,
            snapshot.schema_id,
            _count(summary, "added-records"),
        )

    def _brings(self, snapshot: Snapshot, summary: Mapping[str, str]) -> Brings:
        operation = snapshot.summary.operation if snapshot.summary is not None else None
        if MIGRATION_TAG in summary:
            return Brings.MIGRATION
        if operation == Operation.REPLACE:
            return Brings.NOTHING
        if operation == Operation.APPEND:
            return Brings.OTHERS if self._ends_replacement(snapshot, summary) else Brings.ROWS
        if _count(summary, "added-data-files"):
            left = _count(summary, "deleted-data-files") + _count(summary, "added-delete-files")
            return Brings.OTHERS if left else Brings.ROWS
        emptied = _count(summary, "deleted-data-files") and summary.get("total-records") == "0"
        return Brings.OTHERS if emptied else Brings.LESS

    def _ends_replacement(self, snapshot: Snapshot, summary: Mapping[str, str]) -> bool:
        """Whether it is the second half of a refresh that replaced a part of the table: it deletes, then appends."""
        parent = snapshot.parent_snapshot_id
        before = self._table.metadata.snapshot_by_id(parent) if parent is not None else None
        if before is None or before.summary is None or before.summary.operation == Operation.APPEND:
            return False
        marks = [summary.get(key) for key in (LEDGER_KEY, GENERATION_KEY)]
        return None not in marks and marks == [summary_of(before).get(key) for key in (LEDGER_KEY, GENERATION_KEY)]

    def _line(self) -> Iterator[Snapshot]:
        at = self.head
        while at is not None and (snapshot := self._table.metadata.snapshot_by_id(at)) is not None:
            yield snapshot
            at = snapshot.parent_snapshot_id

    def _schema(self, schema_id: int | None) -> Schema:
        schemas = {each.schema_id: each for each in self._table.metadata.schemas}
        return schemas.get(_or_else(schema_id, self.schema_id), self._table.metadata.schema())

    def _snapshot(self, snapshot_id: int) -> Snapshot:
        found = self._table.metadata.snapshot_by_id(snapshot_id)
        if found is None:
            raise SnapshotsExpiredError(f"{self.name} has no snapshot {snapshot_id} any more")
        return found


def _count(summary: Mapping[str, str], key: str) -> int:
    return int(summary.get(key) or 0)


def _or_else(value: int | None, other: int) -> int:
    return other if value is None else value
