"""Commits on top of a named parent, refused and never rebased when another commit came first; and reading them back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import ValidatableTableRequirement
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from airflow_provider_rfr.exceptions import ConfigurationError, LedgerError
from airflow_provider_rfr.lake.catalog import load_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
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


log = logging.getLogger(__name__)

_TRIES = 6


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One snapshot of the main line.

    :ivar sequence: its sequence number; greater than that of every commit before it
    :ivar timestamp_ms: since 1970, by the clock of who committed
    """

    snapshot_id: int
    sequence: int
    timestamp_ms: int
    summary: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class CommitLog:
    """A table's main line at one moment.

    :ivar table_uuid: another table by the same name has another one, and counts its commits from 1 again
    """

    name: str
    table_uuid: str
    properties: Mapping[str, str]
    _line: tuple[Snapshot, ...] = field(repr=False)

    @classmethod
    def load(cls, catalog: Catalog, name: str) -> CommitLog | None:
        """The table as it is now; None where there is none.

        :raises ConfigurationError: its commits have no sequence numbers
        """
        table = load_table(catalog, name)
        if table is None:
            return None
        if table.metadata.format_version < 2:
            remedy = "upgrade it, e.g. ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2')"
            raise ConfigurationError(name, "a table of format version 1 does not number its commits", remedy)
        return cls(name, str(table.metadata.table_uuid), dict(table.properties), _main_line(table))

    def commits(self, after_sequence: int | None = None) -> list[CommitRecord]:
        """Those later than the sequence number, oldest first. Expired ones are missing; if one between may have owed
        something, a warning says so.
        """
        floor = -1 if after_sequence is None else after_sequence
        found = [_record(each) for each in self._line if _sequence(each) > floor]
        found.sort(key=lambda record: record.sequence)
        self._warn_of_gap(found, after_sequence)
        return found

    def _warn_of_gap(self, found: list[CommitRecord], after_sequence: int | None) -> None:
        if after_sequence is None or not found or found[0].snapshot_id != self._line[-1].snapshot_id:
            return
        if found[0].sequence > max(0, after_sequence) + 1:
            log.warning(
                "%s: snapshots between %s and %s have expired before they were looked at; "
                "what they owed can't be known. Keep snapshots longer, or look more often",
                self.name,
                after_sequence,
                found[0].sequence,
            )


def read_commits(catalog: Catalog, table_name: str, after_sequence: int | None = None) -> list[CommitRecord]:
    """Commits of the table's main line that are later than the sequence number, oldest first; none for no table."""
    found = CommitLog.load(catalog, table_name)
    return [] if found is None else found.commits(after_sequence)


def write_table_properties(catalog: Catalog, table_name: str, values: Mapping[str, str | None]) -> bool:
    """Set properties, or remove those without a value, in a commit of its own, which makes no snapshot.

    Publishers repeat a commit that meets another one; so does this.

    :return: False if the catalog does not let us, or the table was always busy; the log says why, and nothing is raised
    """
    retrying = Retrying(
        retry=retry_if_exception_type(CommitConflictError),
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        reraise=True,
    )
    try:
        retrying(_set_properties, catalog, table_name, values)
    except Exception as error:  # noqa: BLE001 - each catalog refuses in its own way
        log.warning(
            "%s: the properties %s can't be written (%s). All goes on without them; but they tell a control store that"
            " was lost where to begin, and an expiry of snapshots what is still needed",
            table_name,
            ", ".join(values),
            type(error).__name__,
        )
        return False
    return True


def _set_properties(catalog: Catalog, table_name: str, values: Mapping[str, str | None]) -> None:
    table: Any = catalog.load_table(table_name)
    changed = {key: value for key, value in values.items() if table.properties.get(key) != value}
    if not changed:
        return
    try:
        with table.transaction() as transaction:
            if wanted := {key: value for key, value in changed.items() if value is not None}:
                transaction.set_properties(wanted)
            if unwanted := [key for key, value in changed.items() if value is None]:
                transaction.remove_properties(*unwanted)
    except CommitFailedException as error:
        raise CommitConflictError(str(error)) from error


def _main_line(table: Table) -> tuple[Snapshot, ...]:
    """From the current snapshot back, as far as its ancestors are known."""
    line: list[Snapshot] = []
    by_id = {each.snapshot_id: each for each in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        line.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = by_id.pop(parent, None) if parent is not None else None
    return tuple(line)


def _record(snapshot: Snapshot) -> CommitRecord:
    return CommitRecord(snapshot.snapshot_id, _sequence(snapshot), snapshot.timestamp_ms, summary_of(snapshot))


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
