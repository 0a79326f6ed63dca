"""Commits that name their parent: refused, never rebased, when somebody else was faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import ValidatableTableRequirement

from airflow_provider_rfr.exceptions import LedgerError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update.snapshot import _OverwriteFiles


class CommitConflictError(LedgerError):
    """The table moved on since it was loaded; nothing was written. Load it again and look."""


class TargetChangedError(LedgerError):
    """The table's columns or partitioning are no longer those that the files were written for; write them again."""


class AssertBase(ValidatableTableRequirement):
    """The table is as it was. Only for catalogs that check requirements in this process: others don't know it."""

    type: Literal["rfr-assert-base"] = "rfr-assert-base"
    base: str = ""

    @classmethod
    def of(cls, metadata: TableMetadata) -> AssertBase:
        """The requirement that the table's metadata is this."""
        # As text: PyIceberg does not find two empty schemas equal.
        return cls(base=metadata.model_dump_json())

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or AssertBase.of(base_metadata) != self:
            raise CommitFailedException("Requirement failed: the table has changed")


def drop_spent_manifests(overwrite: _OverwriteFiles) -> None:
    """Leave out manifests that show no file any more: PyIceberg carries one on for each earlier overwrite."""

    def show_files(manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [
            each
            for each in manifests
            if each.has_added_files() or each.has_existing_files() or each.added_snapshot_id == overwrite.snapshot_id
        ]

    overwrite._process_manifests = show_files  # type: ignore[method-assign]


def without_retries(table: Table) -> Table:
    """Make this object's commits strict, whatever the stored table properties allow other writers.

    PyIceberg reads the number of retries from the metadata in memory and never sends it, so the stored
    property, which other engines obey, stays as it is.
    """
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def append_files(table: Table, files: Iterable[DataFile], summary: Mapping[str, str]) -> Snapshot:
    """Add files in one snapshot whose parent is the snapshot ``table`` shows.

    :raises CommitConflictError: another commit came first; nothing was written
    """
    try:
        with without_retries(table).transaction() as transaction:
            with transaction.update_snapshot(snapshot_properties=dict(summary)).merge_append() as append:
                for file in files:
                    append.append_data_file(file)
    except CommitFailedException as error:
        raise CommitConflictError(str(error)) from error
    snapshot = table.current_snapshot()
    if snapshot is None:
        raise LedgerError("a commit left no snapshot")
    return snapshot


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """The snapshot's summary properties; empty where there is no snapshot or summary."""
    if snapshot is None or snapshot.summary is None:
        return {}
    return dict(snapshot.summary.additional_properties)


def newest_summary_with(table: Table, key: str, value: str | None = None) -> Mapping[str, str] | None:
    """The newest summary on the main line that carries ``key`` (a maintenance job's snapshot lacks it).

    :param value: that the key has to have; None for any
    """
    metadata = table.metadata
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = summary_of(snapshot)
        if key in summary and value in (None, summary[key]):
            return {**summary, "snapshot-id": str(snapshot.snapshot_id)}
        parent = snapshot.parent_snapshot_id
        snapshot = metadata.snapshot_by_id(parent) if parent is not None else None
    return None
