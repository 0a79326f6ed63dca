"""The expiry of a table's snapshots, which also deletes the files that only those needed.

Snapshots are kept by Iceberg's own rules and table properties, as in its ``expire_snapshots``: heads of branches, tags,
and on each branch the newest snapshots and those young enough. On a branch, the age of a snapshot counts from the
commit that replaced it, because readers began with it until then. The property ``rfr.expire.max-copies`` limits how
many replaced copies of the files stay beyond the last hours. In addition, a reader of snapshots declares its need in a
property of the table, ``rfr.hold.<holder>``: the main branch is kept from this sequence number on. So the table alone
decides what may be deleted, and no control store has to be asked.

The list of files to delete is written before the commit that forgets the snapshots, and removed once they are deleted.
If a process dies in between, the next expiry continues from the list.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import (
    AssertBase,
    CommitConflictError,
    ancestors,
    conflicts_raised,
    metadata_folder,
    retry_conflicts,
    stale_files_are_conflicts,
    summary_of,
)
from airflow_provider_rfr.lake.files import OWN_FILE, FileStore
from airflow_provider_rfr.lake.side_files import is_abandoned, named_side_files
from airflow_provider_rfr.lake.sync_state import note_after_expiry, snapshot_with_state

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)
_Item = TypeVar("_Item")
_Entry = TypeVar("_Entry")

KIND: Final = "rfr.kind"
HOLD: Final = "rfr.hold."
_MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
_MAX_REF_AGE: Final = "history.expire.max-ref-age-ms"
MAX_COPIES: Final = "rfr.expire.max-copies"
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    KIND: "table",
    _MAX_AGE: str(7 * 86_400_000),
    _MIN_SNAPSHOTS: "10",
    # A day of hourly refreshes. By age alone, a week of them would keep 168 copies of all rows.
    MAX_COPIES: "24",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of each table that a refresh or a deploy creates, unless its declaration has others."""
READER_HOURS: Final = 6
"""Hours for which a replaced snapshot stays, however many copies there are, so that readers can finish.

A backfill or parallel parts make 24 copies in a minute. 24 copies in six hours are one each quarter of an hour, so
only a table that is replaced more often keeps more of them.
"""

_DEFAULT_MAX_AGE: Final = 5 * 86_400_000
_LIST_PREFIX: Final = "rfr-expire-"
# A younger list may be of an expiry that is about to commit. Without its list, one that dies after the commit would
# leave its files for ever.
_ABANDONED_MS: Final = 3_600_000
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class _ExpiryPlan:
    """The snapshots, branches and tags to expire.

    :ivar refs: names of branches and tags that are past their own age
    :ivar held: by holder, number of snapshots that would expire without holds and that its hold keeps
    :ivar note: table properties that say where the state of the table's sync is
    """

    snapshots: frozenset[int]
    refs: tuple[str, ...]
    held: Mapping[str, int]
    note: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Expired:
    """The result of an expiry, or in a dry run its plan.

    :ivar files: number of deleted files, including those that an earlier expiry left
    :ivar undeleted: files that could not be deleted; the next expiry tries again
    :ivar held: number of snapshots that would expire and are kept, by holder
    """

    snapshots: int = 0
    files: int = 0
    undeleted: int = 0
    held: Mapping[str, int] = field(default_factory=dict)


def is_ours(properties: Mapping[str, str]) -> bool:
    """Tell whether this package created the table: a refresh, or a deploy of built-in objects."""
    return properties.get(KIND) == TABLE_PROPERTIES[KIND]


def hold_property(holder: str) -> str:
    """Return the table property by which the holder keeps snapshots; its value is a sequence number."""
    return HOLD + holder


def expire_table(
    catalog: Catalog, name: str, *, dry_run: bool = False, released: Collection[str] = (), now_ms: int | None = None
) -> _Expired:
    """Expire the snapshots that the table's properties do not keep, and delete their files.

    Do nothing if there is no table. This is safe beside other writers and expiries: the commit is refused if a branch
    or a tag has moved, and no file is deleted that a remaining snapshot names.

    :param dry_run: return the plan, and change nothing
    :param released: holders whose holds do not count
    :param now_ms: milliseconds since 1970; None for now
    :raises ConfigurationError: a property of the table is not a number
    :raises OSError: the store does not answer, or a file that the table needs is missing
    """

    def expire() -> _Expired:
        table = load_table(catalog, name)
        # Iceberg's own switch, for tables whose files may belong to another table, too.
        if table is None or table.properties.get("gc.enabled", "true").lower() == "false":
            return _Expired()
        properties = {key: value for key, value in table.properties.items() if key.removeprefix(HOLD) not in released}
        metadata = table.metadata.model_copy(update={"properties": properties})
        plan = _plan_expiry(metadata, int(time.time() * 1000) if now_ms is None else now_ms)
        # Another expiry may have deleted files that the metadata loaded here still names.
        with stale_files_are_conflicts(catalog, name, table):
            if dry_run:
                files = _Files(table).needed_only_by(plan.snapshots)
                return _Expired(len(plan.snapshots), len(files), 0, plan.held)
            return _Expiry(catalog, table).run(plan)

    try:
        return retry_conflicts(_TRIES)(expire)
    except CommitConflictError:
        log.info("%s: other commits came first each of %s times; the next publish expires snapshots", name, _TRIES)
        return _Expired()


def _plan_expiry(metadata: TableMetadata, now_ms: int) -> _ExpiryPlan:
    """Choose the snapshots, branches and tags to expire, by Iceberg's rules and by the holds.

    :raises ConfigurationError: a property is not a number
    """
    age = _number(metadata.properties, _MAX_AGE, _DEFAULT_MAX_AGE)
    least = _number(metadata.properties, _MIN_SNAPSHOTS, 1)
    old_refs = []
    kept: set[int] = set()
    on_branches: set[int] = set()
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH:
            most = ref.max_ref_age_ms
            if most is None:
                most = _number(metadata.properties, _MAX_REF_AGE, now_ms)
            snapshot = metadata.snapshot_by_id(ref.snapshot_id)
            if snapshot is not None and snapshot.timestamp_ms < now_ms - most:
                old_refs.append(name)
                continue
        kept.add(ref.snapshot_id)
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            line = list(ancestors(metadata, ref.snapshot_id))
            on_branches.update(snapshot.snapshot_id for snapshot in line)
            newest = ref.min_snapshots_to_keep or least
            since = now_ms - (age if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms)
            # Without the property the limit is never reached, because there are no more copies than snapshots.
            copies = _number(metadata.properties, MAX_COPIES, len(line))
            kept.update(snapshot.snapshot_id for snapshot in _kept_part(line, newest, since, copies, now_ms))
    ages = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in metadata.snapshots}
    # Snapshots of no branch, such as those that were rolled back, expire by their age alone.
    kept.update(number for number, time_ms in ages.items() if number not in on_branches and time_ms >= now_ms - age)
    held = _hold(metadata, kept)
    with_state = snapshot_with_state(metadata)
    if with_state is not None:
        # Without it, the next incremental sync would read everything.
        kept.add(with_state.snapshot_id)
    expired = frozenset(ages) - kept
    return _ExpiryPlan(expired, tuple(old_refs), held, note_after_expiry(metadata, with_state, expired))


def _kept_part(line: Sequence[Snapshot], least: int, since: int, copies: int, now_ms: int) -> Sequence[Snapshot]:
    """Return the snapshots of a branch to keep: the newest ``least``, and those that were replaced not long ago.

    Snapshots that only added files share a copy with the next one.

    :param line: the branch's snapshots, newest first
    :param since: a snapshot that was replaced at this time or later stays, in milliseconds since 1970
    :param copies: number of replaced copies, beyond which only the last :data:`READER_HOURS` hours are kept
    """
    since_copies = max(since, now_ms - READER_HOURS * 3_600_000)
    for place, (newer, _) in enumerate(pairwise(line), start=1):
        if summary_of(newer).get("deleted-data-files", "0") != "0":
            copies -= 1
        if place >= least and newer.timestamp_ms < (since_copies if copies < 0 else since):
            return line[:place]
    return line


def _hold(metadata: TableMetadata, kept: set[int]) -> dict[str, int]:
    """Add the snapshots that holders need to ``kept``; return how many snapshots each holder keeps."""
    line = [
        ancestor for ancestor in ancestors(metadata, metadata.current_snapshot_id) if ancestor.snapshot_id not in kept
    ]
    held = {}
    for key, value in metadata.properties.items():
        if key.startswith(HOLD):
            # A value that is not a number holds everything.
            needed = int(value) if value.isdecimal() and value.isascii() else 0
            if count := sum((snapshot.sequence_number or 0) >= needed for snapshot in line):
                held[key.removeprefix(HOLD)] = count
    # The line starts with the newest snapshot, and each holder needs all from some snapshot up to the newest.
    kept.update(snapshot.snapshot_id for snapshot in line[: max(held.values(), default=0)])
    return held


def _number(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key, str(default))
    if not text.isdecimal():
        raise ConfigurationError(f"table property {key}", f"{text!r} is not a whole number", f"e.g. {default}")
    return int(text)


class _Expiry:
    """One expiry of a table as it was loaded."""

    def __init__(self, catalog: Catalog, table: Table) -> None:
        self._catalog = catalog
        self._table = table
        self._store = FileStore.of(table.io)
        self._folder = metadata_folder(table.metadata)
        self._deleted = 0
        self._undeleted = 0

    def run(self, plan: _ExpiryPlan) -> _Expired:
        self._finish_earlier()
        if plan.snapshots or plan.refs:
            # List, commit, delete: a crash before the commit changes nothing, one after it leaves the list of files.
            files = _Files(self._table).needed_only_by(plan.snapshots)
            location = f"{self._folder}/{_LIST_PREFIX}{int(time.time() * 1000)}-{uuid.uuid4().hex}{OWN_FILE}"
            listed = {"snapshots": sorted(plan.snapshots), "files": files}
            self._store.write(location, json.dumps(listed).encode())
            # The list stays after an error, even after a refusal: if the response to the commit was lost and a client
            # library resent it, the resent one was refused. The next expiry deletes the listed files, or the list.
            self._commit(plan)
            self._delete(files, location)
        if self._undeleted:
            log.warning(
                "%s: %s files of expired snapshots could not be deleted; the next expiry tries again",
                ".".join(self._table.name()),
                self._undeleted,
            )
        return _Expired(len(plan.snapshots), self._deleted, self._undeleted, plan.held)

    def _commit(self, plan: _ExpiryPlan) -> None:
        metadata = self._table.metadata
        updates: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": ref}) for ref in plan.refs]
        updates += [
            RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": partition_statistic.snapshot_id})
            for partition_statistic in metadata.partition_statistics
            if partition_statistic.snapshot_id in plan.snapshots
        ]
        if plan.snapshots:
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(plan.snapshots)}))
        if plan.note:
            updates.append(SetPropertiesUpdate(updates=dict(plan.note)))
        requirements: list[TableRequirement] = [AssertTableUUID(uuid=metadata.table_uuid)]
        requirements += [
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
            for name, ref in metadata.refs.items()
        ]
        if isinstance(self._catalog, MetastoreCatalog):
            # Iceberg's own requirements cover only the refs that they name, not a tag that was created since.
            requirements.append(AssertBase.of(metadata))  # type: ignore[arg-type]
        with conflicts_raised():
            self._table._do_commit(tuple(updates), tuple(requirements))

    def _finish_earlier(self) -> None:
        """Delete the files that earlier expiries listed and did not delete, because they died after their commit.

        Also delete the side files of commits that were never made.
        """
        present = {snapshot.snapshot_id for snapshot in self._table.metadata.snapshots}
        named = named_side_files(self._table.metadata.snapshots)
        needed: set[str] | None = None
        for location, _ in self._store.list(self._folder):
            name = location.rpartition("/")[2]
            if is_abandoned(location, named):
                self._deleted += self._store.delete([location])
            if not name.startswith(_LIST_PREFIX):
                continue
            try:
                listed = json.loads(self._store.read(location))
            except (FileNotFoundError, ValueError):
                listed = None  # its writer has just finished, or died while writing
            # All of its snapshots are gone, so its commit has landed. Another expiry may delete the same files now,
            # which is no error.
            if listed is not None and present.isdisjoint(listed["snapshots"]):
                # Computed only if there is such a list, because this reads every manifest of the table.
                needed = _Files(self._table).all() if needed is None else needed
                self._delete([file for file in listed["files"] if file not in needed], location)
                continue
            written = name.removeprefix(_LIST_PREFIX).partition("-")[0]
            if written.isdecimal() and int(time.time() * 1000) - int(written) > _ABANDONED_MS:
                # Its commit was never made.
                self._store.delete([location])

    def _delete(self, files: Sequence[str], location: str) -> None:
        """Delete the files, then their list; the list stays if a file could not be deleted."""

        def delete(file: str) -> int | None:
            try:
                return self._store.delete([file])
            except OSError as error:
                log.debug("%s can't be deleted: %s", file, error)
                return None

        # One by one, so that a file that can't be deleted does not prevent the deletion of the others.
        done = list(ExecutorFactory.get_or_create().map(delete, files))
        self._deleted += sum(count or 0 for count in done)
        failed = done.count(None)
        self._undeleted += failed
        if not failed:
            self._store.delete([location])


class _Files:
    """The files that a table's snapshots name."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def needed_only_by(self, expired: Collection[int]) -> list[str]:
        """List the files that only these snapshots need: data, statistics, side files, then manifests and lists."""
        leaving = [snapshot for snapshot in self._table.metadata.snapshots if snapshot.snapshot_id in expired]
        staying = [snapshot for snapshot in self._table.metadata.snapshots if snapshot.snapshot_id not in expired]
        kept = self._manifests(staying, may_miss=False)
        alone = {
            path: manifest for path, manifest in self._manifests(leaving, may_miss=True).items() if path not in kept
        }
        data = self._live(alone.values(), may_miss=True)
        if data:
            # A merge may have moved a data file's entry into a manifest of a snapshot that stays.
            data -= self._live(kept.values(), may_miss=False)
        lists = {snapshot.manifest_list for snapshot in leaving} - {snapshot.manifest_list for snapshot in staying}
        stats = self._statistics(leaving) - self._statistics(staying)
        side = named_side_files(leaving) - named_side_files(staying)
        return [*sorted(data), *sorted(stats), *sorted(side), *sorted(alone), *sorted(lists)]

    def all(self) -> set[str]:
        snapshots = self._table.metadata.snapshots
        manifests = self._manifests(snapshots, may_miss=False)
        lists = {snapshot.manifest_list for snapshot in snapshots}
        live = self._live(manifests.values(), may_miss=False)
        return live | manifests.keys() | lists | self._statistics(snapshots) | named_side_files(snapshots)

    def _manifests(self, snapshots: Iterable[Snapshot], *, may_miss: bool) -> dict[str, ManifestFile]:
        io = self._table.io
        lists = _read_all(lambda snapshot: snapshot.manifests(io), snapshots, may_miss)
        return {manifest.manifest_path: manifest for manifests in lists for manifest in manifests}

    def _live(self, manifests: Iterable[ManifestFile], *, may_miss: bool) -> set[str]:
        """Return the data and delete files that the manifests show, without those that they only note as deleted."""
        io = self._table.io
        entries = _read_all(lambda manifest: manifest.fetch_manifest_entry(io), manifests, may_miss)
        return {entry.data_file.file_path for of_manifest in entries for entry in of_manifest}

    def _statistics(self, snapshots: Iterable[Snapshot]) -> set[str]:
        ids = {snapshot.snapshot_id for snapshot in snapshots}
        every = (*self._table.metadata.statistics, *self._table.metadata.partition_statistics)
        return {statistics.statistics_path for statistics in every if statistics.snapshot_id in ids}


def _read_all(read: Callable[[_Item], list[_Entry]], items: Iterable[_Item], may_miss: bool) -> list[list[_Entry]]:
    """Read all items, on several threads.

    :param may_miss: a missing file counts as empty; must be False for files that say what is still needed
    """

    def one(item: _Item) -> list[_Entry]:
        try:
            return read(item)
        except FileNotFoundError:
            if not may_miss:
                raise
            return []

    return list(ExecutorFactory.get_or_create().map(one, items))
