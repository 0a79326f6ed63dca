"""Strict commits, refused and never rebased when another commit came first; and reading commits back.

PyIceberg repeats a refused commit on top of the newer snapshot by itself, and deletes the manifests of a commit that
stays refused. Here nothing is repeated before the caller has loaded the table again and decided that the commit is
still wanted, and nothing is deleted before the table shows that the commit did not land.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import CreateTableTransaction, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, ValidatableTableRequirement
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles
from pyiceberg.utils.concurrent import ExecutorFactory
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_any,
    wait_random_exponential,
)

from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError, LedgerError
from airflow_provider_rfr.lake.catalog import load_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableUpdate
    from pyiceberg.table.update.snapshot import _FastAppendFiles

log = logging.getLogger(__name__)
_REFUSALS = (CommitFailedException, ValidationException, TableAlreadyExistsError)
_INVALID = (ValueError, BadRequestError)
"""Errors for a snapshot whose sequence number is no longer the next one. A commit on another branch, or one that was
rolled back, takes the number, although the requirements still hold."""
_TRIES = 12
_LOOKS = 4
"""How often a table is loaded, at most, to find out whether a commit landed."""
STATE_KEY, STATE_FILE_KEY = "rfr.state", "rfr.state-file"
"""Summary properties by which a snapshot carries the state of an incremental sync."""
_DELETE_TOTALS = ("total-delete-files", "total-position-deletes", "total-equality-deletes")
_MERGE_ENABLED, _LEAST_MERGED = "commit.manifest-merge.enabled", "commit.manifest.min-count-to-merge"


class CommitConflictError(LedgerError):
    """The table changed since it was loaded; nothing was written. Load it again and decide."""


class TargetChangedError(LedgerError):
    """The table's columns or partitioning are no longer those that the files were written for; write them again."""


class AssertBase(ValidatableTableRequirement):
    """The requirement that the table's metadata is unchanged.

    Only for catalogs that check requirements in this process.
    """

    type: Literal["rfr-assert-base"] = "rfr-assert-base"
    base: str = ""

    @classmethod
    def of(cls, metadata: TableMetadata) -> AssertBase:
        # As text: PyIceberg does not find two empty schemas equal.
        return cls(base=metadata.model_dump_json())

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or AssertBase.of(base_metadata) != self:
            raise CommitFailedException("Requirement failed: the table has changed")


@contextmanager
def conflicts_raised() -> Iterator[None]:
    """Raise :class:`CommitConflictError` where a catalog refuses a commit because another one came first."""
    try:
        yield
    except _REFUSALS as error:
        raise CommitConflictError(str(error)) from error


def retry_conflicts(tries: float = math.inf, *, seconds: float = math.inf) -> Retrying:
    """Return a retrying object that repeats a function after a :class:`CommitConflictError`, and raises the last one.

    The function must load the table itself. The waits are random, so that competing writers do not collide again.
    """
    return Retrying(
        retry=retry_if_exception_type(CommitConflictError),
        # Infinity works as a number of tries, though the type is int.
        stop=stop_any(stop_after_attempt(tries), stop_after_delay(seconds)),  # type: ignore[arg-type]
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        reraise=True,
    )


@contextmanager
def stale_files_are_conflicts(catalog: Catalog, name: str, loaded: Table | None) -> Iterator[None]:
    """Raise :class:`CommitConflictError` for a missing file where others have committed since the table was loaded.

    They may have expired the loaded snapshot, and deleted its files.
    """
    try:
        yield
    except FileNotFoundError as error:
        now = load_table(catalog, name)
        # If nobody has committed, nobody has expired anything either: the table itself lacks a file.
        if (now and now.metadata_location) == (loaded and loaded.metadata_location):
            raise
        raise CommitConflictError(f"{name}: a file of the table as it was loaded is gone: {error}") from error


class TableTransaction(Transaction):
    """A transaction that caches the metadata after its updates until the next update.

    PyIceberg's own copies all metadata of the table at each access, about twenty times for one snapshot.
    """

    _computed: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        known, base = self._computed, self._table.metadata
        if known is None or known[0] is not base or known[1] is not self._updates:
            known = self._computed = base, self._updates, super().table_metadata
        return known[2]


def commit_strictly(transaction: Transaction) -> None:
    """Commit once, on top of the table as it was loaded, even if the catalog's response is lost.

    A catalog may accept a commit whose response is lost. If a client library or a gateway then resends the commit, that
    is refused. So after any error the table is loaded: if it has the commit, the commit succeeded, and the
    transaction's table becomes the one loaded now, perhaps with later commits of others. Manifests are deleted only if
    the commit was refused and the table does not have it.

    :raises CommitConflictError: another commit came first; nothing was written
    :raises CatalogError: the catalog fails, and the table does not have the commit or can't be loaded
    """
    # Without its producers, PyIceberg neither rebases a refused commit nor deletes manifests.
    producers, transaction._snapshot_producers = transaction._snapshot_producers, []
    updates, expected = transaction._updates, transaction.table_metadata
    try:
        transaction.commit_transaction()
    except Exception as error:
        now = _load_again(transaction)
        if _has_landed(transaction, updates, expected, now):
            log.info("%s: the commit landed, though its answer was an error: %s", _name_of(transaction), error)
            return
        # Without a refusal, a slow catalog may still make this commit, so its manifests have to stay.
        if not isinstance(error, _REFUSALS) and not (isinstance(error, _INVALID) and _is_outnumbered(transaction, now)):
            raise
        for producer in producers:
            producer._clean_all_uncommitted()
        raise CommitConflictError(str(error)) from error


def _load_again(transaction: Transaction) -> Table | None:
    """Load the transaction's table as it is now; return None if it is gone.

    :raises CatalogError: the table can't be loaded
    """
    # A catalog whose response was lost may be unavailable for some seconds, and only the table shows whether the commit
    # landed.
    load = Retrying(
        retry=retry_if_exception_type(CatalogError),
        stop=stop_after_attempt(_LOOKS),
        wait=wait_random_exponential(multiplier=0.5, max=4.0),
        reraise=True,
    )
    return load(load_table, transaction._table.catalog, _name_of(transaction))


def _is_outnumbered(transaction: Transaction, now: Table | None) -> bool:
    """Tell whether somebody has made a snapshot, on any branch, since the transaction's table was loaded."""
    known = {snapshot.snapshot_id for snapshot in transaction._table.metadata.snapshots}
    return now is not None and any(snapshot.snapshot_id not in known for snapshot in now.metadata.snapshots)


def _has_landed(
    transaction: Transaction, updates: Sequence[TableUpdate], expected: TableMetadata, now: Table | None
) -> bool:
    """Tell whether the transaction's table, as it is now, has the updates."""
    table = transaction._table
    # Another uuid: somebody dropped the table, and another one has its name.
    if now is None or now.metadata.table_uuid != expected.table_uuid:
        return False
    if isinstance(transaction, CreateTableTransaction):
        # The uuid was made for this transaction, so nobody else can have created the table.
        return True
    snapshots = [update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)]
    if snapshots:
        # PyIceberg draws snapshot ids at random, so an id that the table has is that of this commit.
        landed = all(now.snapshot_by_id(snapshot_id) is not None for snapshot_id in snapshots)
    else:
        # Nothing in the table names this commit. If another process has made the very same change, that is as good.
        landed = _definition(now.metadata) == _definition(expected)
    if landed:
        # As a commit with a response leaves it, because callers continue with this table.
        table.metadata, table.metadata_location, table.io = now.metadata, now.metadata_location, now.io
    return landed


def _definition(metadata: TableMetadata) -> tuple[object, ...]:
    """Return all that a commit without a new snapshot may change, and the snapshot that it is based on."""
    schema, spec = metadata.schema(), metadata.spec()
    # As text: PyIceberg does not find two empty schemas equal.
    columns = (schema.as_struct().model_dump_json(), sorted(schema.identifier_field_ids), spec.fields)
    snapshots = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    return *columns, metadata.properties, metadata.format_version, metadata.current_snapshot_id, snapshots


def _name_of(transaction: Transaction) -> str:
    return ".".join(transaction._table.name())


class AddedManifest:
    """The manifest of appended files. The first try of a commit writes it, and later tries reuse it.

    :ivar may_merge: whether the next try may merge manifests; a repeated try must be fast, to win against busy writers
    """

    def __init__(self) -> None:
        self.may_merge = True
        self._manifest: ManifestFile | None = None
        self._snapshot_id = 0
        self._table: object = None

    def share(self, append: _FastAppendFiles) -> None:
        """Let the snapshot reuse the manifest of an earlier try, with the snapshot id of that try."""
        write, table = append._manifests, append._transaction.table_metadata.table_uuid
        if self._manifest is not None and self._table == table:
            # A manifest names the snapshot that added it, so all tries of one commit have the id of the first.
            append._snapshot_id = self._snapshot_id

        def manifests() -> list[ManifestFile]:
            if self._manifest is None or self._table != table:
                written = write()
                # A deep copy each time: the writer of the list sets the sequence number even in a shallow one.
                self._manifest = copy.deepcopy(next(m for m in written if m.added_snapshot_id == append.snapshot_id))
                self._snapshot_id, self._table = append.snapshot_id, table
                append._written_manifests.clear()  # PyIceberg deletes these when the commit is refused
                return written
            return [copy.deepcopy(self._manifest), *append._existing_manifests()]

        append._manifests = manifests  # type: ignore[method-assign]


def stage_append(
    transaction: Transaction,
    files: Iterable[DataFile],
    summary: Mapping[str, str],
    added: AddedManifest | None = None,
) -> int:
    """Add files in one snapshot of the transaction; return its id.

    Merges small manifests into one where the table has many, unless an earlier try did so and was refused.

    :param added: kept by the caller for all tries to commit the same files; None if there is one try
    """
    update = transaction.update_snapshot(snapshot_properties=dict(summary))
    properties, newest = transaction.table_metadata.properties, transaction.table_metadata.current_snapshot()
    merges = False
    # In this order: to count the manifests costs a request, which a repeated try can't afford.
    if newest is not None and (added is None or added.may_merge):
        merges = len(newest.manifests(transaction._table.io)) >= int(properties.get(_LEAST_MERGED, "100"))
    with update.merge_append() if merges else update.fast_append() as append:
        if isinstance(append, _MergeAppendFiles):
            # Iceberg's default, which PyIceberg does not share.
            append._merge_enabled = properties.get(_MERGE_ENABLED, "true") == "true"
        for file in files:
            append.append_data_file(file)
        if added is not None:
            if merges:
                added.may_merge = False
            elif append._added_data_files:
                added.share(append)
    return append.snapshot_id


class _Overwrite(_OverwriteFiles):
    """An overwrite without the manifests of deleted files that earlier ones left, which PyIceberg keeps forever."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [
            manifest
            for manifest in manifests
            if manifest.has_added_files()
            or manifest.has_existing_files()
            or manifest.added_snapshot_id == self.snapshot_id
        ]


class _Compaction(_Overwrite):
    """A snapshot of the same rows in other files, which sinks and readers of increments skip."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        # PyIceberg makes summaries of appends, overwrites and deletes only.
        return Summary(Operation.REPLACE, **super()._summary(snapshot_properties or {}).additional_properties)


class _Replacement(_Overwrite):
    """An overwrite of all data files, which leaves out the delete files, too: they concern no row any more."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [file for file in super()._process_manifests(manifests) if file.content == ManifestContent.DATA]

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        summary = super()._summary(snapshot_properties or {})
        totals = dict.fromkeys(_DELETE_TOTALS, "0")
        return Summary(summary.operation, **{**summary.additional_properties, **totals})


def data_files(table: Table) -> Iterator[DataFile]:
    """Yield the table's data files, whatever deletes their rows: PyIceberg plans no scan beside equality deletes."""
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    manifests = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
    for entries in ExecutorFactory.get_or_create().map(lambda file: file.fetch_manifest_entry(table.io), manifests):
        yield from (entry.data_file for entry in entries)


def stage_overwrite(
    transaction: Transaction,
    old: Iterable[DataFile],
    new: Iterable[DataFile],
    summary: Mapping[str, str],
    *,
    compacts: bool = False,
    is_whole: bool = False,
) -> int:
    """Replace files in one snapshot of the transaction; return its id.

    :param old: files of the table as it was loaded
    :param compacts: the new files have the rows of the old ones
    :param is_whole: the old files are all of the table's
    """
    has_rows = transaction.table_metadata.current_snapshot() is not None
    operation = Operation.OVERWRITE if has_rows else Operation.APPEND
    kind, properties = _Compaction if compacts else _Replacement if is_whole else _Overwrite, dict(summary)
    with kind(operation, transaction, transaction._table.io, snapshot_properties=properties) as overwrite:
        overwrite.delete_by_predicate(AlwaysTrue())
        for file in old:
            overwrite.delete_data_file(file)
        for file in new:
            overwrite.append_data_file(file)
    return overwrite.snapshot_id


def append_files(table: Table, files: Iterable[DataFile], summary: Mapping[str, str]) -> int:
    """Add files in one snapshot whose parent is the snapshot ``table`` shows; return its id.

    :raises CommitConflictError: another commit came first; nothing was written
    """
    transaction = TableTransaction(table)
    snapshot_id = stage_append(transaction, files, summary)
    commit_strictly(transaction)
    return snapshot_id


def metadata_folder(metadata: TableMetadata) -> str:
    """Return the folder of a table's metadata."""
    return metadata.properties.get("write.metadata.path", f"{metadata.location.rstrip('/')}/metadata").rstrip("/")


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """Return the snapshot's summary properties; an empty mapping where there is no snapshot or summary."""
    if snapshot is None or snapshot.summary is None:
        return {}
    return dict(snapshot.summary.additional_properties)


def ancestors(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """Yield the snapshot and its ancestors, newest first, as far back as they have not expired."""
    # PyIceberg's ancestors_of() searches the list of snapshots for each parent: quadratic in a long history.
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while snapshot_id is not None and (snapshot := by_id.pop(snapshot_id, None)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def last_change(table: Table) -> Snapshot | None:
    """Return the newest snapshot of the main line that may have changed rows.

    Compactions, and commits of a sync's state alone, do not change rows. If all snapshots before those have expired,
    return the newest snapshot; return None if there is no snapshot.
    """
    line = ancestors(table.metadata, table.metadata.current_snapshot_id)
    return next((snapshot for snapshot in line if may_change_rows(snapshot)), table.current_snapshot())


def may_change_rows(snapshot: Snapshot) -> bool:
    """Tell whether the snapshot is neither a compaction nor a commit of a sync's state alone."""
    return not is_compaction(snapshot) and not moves_state_alone(snapshot)


def is_compaction(snapshot: Snapshot) -> bool:
    """Tell whether the snapshot has its parent's rows in other files, as after Spark's ``rewrite_data_files``."""
    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def moves_state_alone(snapshot: Snapshot) -> bool:
    """Tell whether the snapshot sets or ends the state of an incremental sync, and has its parent's files."""
    summary = summary_of(snapshot)
    return carries_state(summary) and summary.keys().isdisjoint(("added-data-files", "deleted-data-files"))


def carries_state(summary: Mapping[str, str]) -> bool:
    """Tell whether a snapshot with this summary sets or ends the state of an incremental sync."""
    return not summary.keys().isdisjoint((STATE_KEY, STATE_FILE_KEY))


def newest_summary_with(table: Table, key: str, value: str | None = None) -> Mapping[str, str] | None:
    """Return the newest summary on the main line that has ``key`` (a maintenance job's snapshot lacks it).

    :param value: the value that the key must have; None for any
    :return: the summary, with the snapshot's id as ``snapshot-id``; None if there is none
    """
    for snapshot in ancestors(table.metadata, table.metadata.current_snapshot_id):
        summary = summary_of(snapshot)
        if key in summary and value in (None, summary[key]):
            return {**summary, "snapshot-id": str(snapshot.snapshot_id)}
    return None


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One snapshot of the main line.

    :ivar sequence: its sequence number; greater than that of every commit before it
    :ivar timestamp_ms: milliseconds since 1970, by the clock of the process that committed
    :ivar changes_rows: false for a compaction, and for a commit of a sync's state alone
    """

    snapshot_id: int
    sequence: int
    timestamp_ms: int
    summary: Mapping[str, str] = field(repr=False)
    changes_rows: bool = True


@dataclass(frozen=True, slots=True)
class CommitLog:
    """A table's main line at one moment.

    :ivar table_uuid: UUID of the table. Another table of the same name has another one, and counts sequences from 1
    """

    name: str
    table_uuid: str
    properties: Mapping[str, str]
    _line: tuple[CommitRecord, ...] = field(repr=False)

    @classmethod
    def load(cls, catalog: Catalog, name: str) -> CommitLog | None:
        """Load the table's commits as they are now; return None if the table does not exist.

        :raises ConfigurationError: its commits have no sequence numbers
        """
        table = load_table(catalog, name)
        if table is None:
            return None
        if table.metadata.format_version < 2:
            remedy = "upgrade it, e.g. ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2')"
            raise ConfigurationError(name, "a table of format version 1 does not number its commits", remedy)
        line = tuple(
            CommitRecord(
                snapshot.snapshot_id,
                snapshot.sequence_number or 0,
                snapshot.timestamp_ms,
                summary_of(snapshot),
                changes_rows=may_change_rows(snapshot),
            )
            for snapshot in ancestors(table.metadata, table.metadata.current_snapshot_id)
        )
        return cls(name, str(table.metadata.table_uuid), dict(table.properties), line)

    def commits(self, after_sequence: int | None = None) -> list[CommitRecord]:
        """Return the commits with a later sequence number, oldest first.

        Expired commits are missing; if an event may be lost by that, a warning is logged.

        :param after_sequence: None for all commits
        """
        after = -1 if after_sequence is None else after_sequence
        later = sorted((commit for commit in self._line if commit.sequence > after), key=lambda commit: commit.sequence)
        # Sequence numbers may have gaps, of other branches; a gap at the end of the line means expired snapshots.
        at_the_end = bool(later) and later[0] == self._line[-1]
        if after_sequence is not None and at_the_end and later[0].sequence > max(0, after) + 1:
            log.warning(
                "%s: snapshots between %s and %s have expired before they were read; events that they called for "
                "are lost. Keep snapshots longer, or read more often",
                self.name,
                after_sequence,
                later[0].sequence,
            )
        return later


def write_table_properties(catalog: Catalog, table_name: str, values: Mapping[str, str | None]) -> bool:
    """Set properties, or remove those whose value is None, in a commit of its own, which makes no snapshot.

    If another commit comes first, this is retried.

    :return: False if the catalog refuses, or other commits came first each time; this is logged and nothing is raised
    """

    def write() -> None:
        table = catalog.load_table(table_name)
        changed = {key: value for key, value in values.items() if table.properties.get(key) != value}
        # A commit that changes nothing could still make a publish at the same moment fail.
        if not changed:
            return
        transaction = TableTransaction(table)
        if wanted := {key: value for key, value in changed.items() if value is not None}:
            transaction.set_properties(wanted)
        if unwanted := [key for key, value in changed.items() if value is None]:
            transaction.remove_properties(*unwanted)
        commit_strictly(transaction)

    try:
        retry_conflicts(_TRIES)(write)
    except Exception as error:  # noqa: BLE001 - each catalog refuses in its own way
        log.warning(
            "%s: the properties %s can't be written (%s). Work continues without them; but a control store that was"
            " lost needs them to know where to start, and an expiry of snapshots to know what is still needed",
            table_name,
            ", ".join(values),
            type(error).__name__,
        )
        return False
    return True
