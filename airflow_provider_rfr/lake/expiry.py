"""Expiring a table's snapshots, and deleting the files that only those needed.

What is kept follows Iceberg's own rules and table properties, as in its ``expire_snapshots``: heads of branches, tags,
and of each branch the newest snapshots and those young enough. Beside them, whoever still has to read a snapshot says
so in a property of the table, ``rfr.hold.<holder>``: from this sequence number on, the main branch is kept. So the
table alone says what may go, and no control store has to be asked.

A list of the files is written before the commit that forgets the snapshots, and removed when they are deleted. Whoever
dies in between leaves the list, and the next expiry goes on with it.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.commits import AssertBase
from airflow_provider_rfr.lake.files import FileStore

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

KIND: Final = "rfr.kind"
HOLD: Final = "rfr.hold."
_MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
_MAX_REF_AGE: Final = "history.expire.max-ref-age-ms"
TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    KIND: "table",
    _MAX_AGE: str(7 * 86_400_000),
    _MIN_SNAPSHOTS: "10",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Of each table that a refresh or a deploy makes, unless it is declared with others."""

_DEFAULTS: Final = {_MAX_AGE: 5 * 86_400_000, _MIN_SNAPSHOTS: 1}
_LISTS: Final = "rfr-expire-"
_ABANDONED_MS: Final = 3_600_000
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What may go.

    :ivar snapshots: ids
    :ivar refs: names of branches and tags that are older than they may get
    :ivar held: how many snapshots would go as well if this holder did not need them
    """

    snapshots: frozenset[int]
    refs: tuple[str, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Expired:
    """What an expiry did, or in a dry run would do.

    :ivar snapshots: expired
    :ivar files: deleted, those that an earlier expiry had left included
    :ivar undeleted: files that could not be deleted; the next expiry tries again
    :ivar held: snapshots past their age that are kept, by who needs them
    """

    snapshots: int = 0
    files: int = 0
    undeleted: int = 0
    held: Mapping[str, int] = field(default_factory=dict)


def is_ours(properties: Mapping[str, str]) -> bool:
    """Whether this package made the table: a refresh, or a deploy of built-in objects."""
    return properties.get(KIND) == TABLE_PROPERTIES[KIND]


def hold_property(holder: str) -> str:
    """The table property by which the holder keeps snapshots; its value is a sequence number."""
    return HOLD + holder


def expire_table(catalog: Catalog, name: str, *, dry_run: bool = False, now_ms: int | None = None) -> _Expired:
    """Expire what the table's properties let go, and delete the files; nothing for no table.

    Safe beside writers and other expiries: the commit is refused where a branch or a tag has moved, and no file is
    deleted that a remaining snapshot names.

    :param now_ms: milliseconds since 1970; None for now
    :raises ConfigurationError: a property of the table is not a number
    :raises OSError: the store does not answer, or a file that the table needs is missing
    """
    for attempt in range(_TRIES):
        table = load_table(catalog, name)
        if table is None or table.properties.get("gc.enabled", "true").lower() == "false":
            return _Expired()
        plan = _plan_expiry(table.metadata, int(time.time() * 1000) if now_ms is None else now_ms)
        try:
            return _would(table, plan) if dry_run else _Expiry(catalog, table).run(plan)
        except FileNotFoundError:
            # Another expiry may have deleted files of snapshots that stay by the metadata that was loaded here.
            now = load_table(catalog, name)
            if now is not None and now.metadata_location == table.metadata_location:
                raise
        except CommitFailedException:
            pass
        time.sleep(0.05 * 2**attempt)
    log.info("%s: others committed before each of %s tries to expire snapshots; the next publish tries", name, _TRIES)
    return _Expired()


def _plan_expiry(metadata: TableMetadata, now_ms: int) -> Plan:
    """Choose by Iceberg's rules, and by the holds.

    :raises ConfigurationError: a property is not a number
    """
    age, least = (_number(metadata.properties, key, default) for key, default in _DEFAULTS.items())
    gone = tuple(name for name, ref in metadata.refs.items() if name != MAIN_BRANCH and _is_old(metadata, ref, now_ms))
    kept: set[int] = set()
    known: set[int] = set()
    for name, ref in metadata.refs.items():
        if name in gone:
            continue
        line = list(_line(metadata, ref.snapshot_id)) if ref.snapshot_ref_type is SnapshotRefType.BRANCH else []
        since = now_ms - (age if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms)
        kept.add(ref.snapshot_id)
        kept.update(_young(line, since, ref.min_snapshots_to_keep or least))
        known.update(each.snapshot_id for each in line)
    kept.update(
        each.snapshot_id
        for each in metadata.snapshots
        if each.snapshot_id not in known and each.timestamp_ms >= now_ms - age
    )
    return _with_holds(metadata, kept, gone)


def _with_holds(metadata: TableMetadata, kept: set[int], gone: tuple[str, ...]) -> Plan:
    line = list(_line(metadata, metadata.current_snapshot_id))
    may_go = [each for each in line if each.snapshot_id not in kept]
    held = {
        holder: count
        for holder, needed in _holds(metadata.properties).items()
        if (count := sum((each.sequence_number or 0) >= needed for each in may_go))
    }
    most = max(held.values(), default=0)
    # The line begins with the newest: each holder needs a beginning of it.
    kept.update(each.snapshot_id for each in may_go[:most])
    return Plan(frozenset(each.snapshot_id for each in metadata.snapshots) - kept, gone, held)


def _holds(properties: Mapping[str, str]) -> dict[str, int]:
    """From which sequence number on each holder needs the main branch; all of it where the value is not a number."""
    found = {key.removeprefix(HOLD): value for key, value in properties.items() if key.startswith(HOLD)}
    return {holder: int(value) if value.isdecimal() and value.isascii() else 0 for holder, value in found.items()}


def _young(line: Iterable[Snapshot], since: int, least: int) -> Iterator[int]:
    for number, each in enumerate(line):
        if number >= least and each.timestamp_ms < since:
            return
        yield each.snapshot_id


def _is_old(metadata: TableMetadata, ref: SnapshotRef, now_ms: int) -> bool:
    most = ref.max_ref_age_ms
    if most is None:
        most = _number(metadata.properties, _MAX_REF_AGE, now_ms)
    snapshot = metadata.snapshot_by_id(ref.snapshot_id)
    return snapshot is not None and snapshot.timestamp_ms < now_ms - most


def _line(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """The snapshot and its ancestors, as far as they are known."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    while snapshot_id is not None and (snapshot := by_id.pop(snapshot_id, None)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def _number(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key, str(default))
    if not text.isdecimal():
        raise ConfigurationError(f"table property {key}", f"{text!r} is not a whole number", f"e.g. {default}")
    return int(text)


def _would(table: Table, plan: Plan) -> _Expired:
    return _Expired(len(plan.snapshots), len(_Files(table).needed_only_by(plan.snapshots)), 0, plan.held)


class _Expiry:
    """One expiry of a table as it was loaded."""

    def __init__(self, catalog: Catalog, table: Table) -> None:
        self._catalog = catalog
        self._table = table
        self._store = FileStore(dict(table.io.properties))
        folder = table.properties.get("write.metadata.path", f"{table.location().rstrip('/')}/metadata")
        self._folder = folder.rstrip("/")
        self._deleted = 0
        self._undeleted = 0

    def run(self, plan: Plan) -> _Expired:
        self._go_on()
        if plan.snapshots or plan.refs:
            files = _Files(self._table).needed_only_by(plan.snapshots)
            location = f"{self._folder}/{_LISTS}{int(time.time() * 1000)}-{uuid.uuid4().hex}.json"
            listed = {"snapshots": sorted(plan.snapshots), "files": files}
            self._store.write(location, json.dumps(listed).encode())
            try:
                self._commit(plan)
            except CommitFailedException:
                self._store.delete([location])
                raise
            self._delete(files, location)
        if self._undeleted:
            log.warning(
                "%s: %s files of expired snapshots could not be deleted; the next expiry tries again",
                ".".join(self._table.name()),
                self._undeleted,
            )
        return _Expired(len(plan.snapshots), self._deleted, self._undeleted, plan.held)

    def _commit(self, plan: Plan) -> None:
        metadata = self._table.metadata
        updates: list[TableUpdate] = [RemoveSnapshotRefUpdate.model_validate({"ref-name": each}) for each in plan.refs]
        updates += [
            RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": each.snapshot_id})
            for each in metadata.partition_statistics
            if each.snapshot_id in plan.snapshots
        ]
        if plan.snapshots:
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(plan.snapshots)}))
        requirements: list[TableRequirement] = [AssertTableUUID(uuid=metadata.table_uuid)]
        requirements += [
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
            for name, ref in metadata.refs.items()
        ]
        if isinstance(self._catalog, MetastoreCatalog):
            # A tag that came since: Iceberg's own assertions know only those that are named.
            requirements.append(AssertBase.of(metadata))  # type: ignore[arg-type]
        self._table._do_commit(tuple(updates), tuple(requirements))

    def _go_on(self) -> None:
        """Delete what an expiry that died after its commit has listed."""
        there = {each.snapshot_id for each in self._table.metadata.snapshots}
        needed: set[str] | None = None
        for location, _ in self._store.list(self._folder):
            name = location.rpartition("/")[2]
            if not name.startswith(_LISTS):
                continue
            listed = self._read(location)
            if listed is not None and there.isdisjoint(listed["snapshots"]):
                needed = _Files(self._table).all() if needed is None else needed
                self._delete([each for each in listed["files"] if each not in needed], location)
            elif _age(name) > _ABANDONED_MS:
                # Its commit never came.
                self._store.delete([location])

    def _read(self, location: str) -> dict[str, Any] | None:
        """The list; None where it is torn, or somebody else has just finished with it."""
        try:
            found: dict[str, Any] = json.loads(self._store.read(location))
            return found
        except (FileNotFoundError, ValueError):
            return None

    def _delete(self, files: Sequence[str], location: str) -> None:
        done = list(ExecutorFactory.get_or_create().map(self._delete_one, files))
        self._deleted += sum(each or 0 for each in done)
        failed = done.count(None)
        self._undeleted += failed
        if not failed:
            self._store.delete([location])

    def _delete_one(self, location: str) -> int | None:
        try:
            return self._store.delete([location])
        except OSError as error:
            log.debug("%s can't be deleted: %s", location, error)
            return None


class _Files:
    """The files that a table's snapshots name."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._metadata = table.metadata

    def needed_only_by(self, doomed: Collection[int]) -> list[str]:
        """Files that no other snapshot needs: data, then statistics, manifests, and lists of manifests."""
        going = [each for each in self._metadata.snapshots if each.snapshot_id in doomed]
        staying = [each for each in self._metadata.snapshots if each.snapshot_id not in doomed]
        kept = self._manifests(staying, may_miss=False)
        alone = {path: each for path, each in self._manifests(going, may_miss=True).items() if path not in kept}
        data = self._live(alone.values(), may_miss=True)
        if data:
            data -= self._live(kept.values(), may_miss=False)
        lists = {each.manifest_list for each in going} - {each.manifest_list for each in staying}
        stats = self._statistics(doomed) - self._statistics({each.snapshot_id for each in staying})
        return [*sorted(data), *sorted(stats), *sorted(alone), *sorted(lists)]

    def all(self) -> set[str]:
        """Every file that a snapshot names."""
        snapshots = self._metadata.snapshots
        manifests = self._manifests(snapshots, may_miss=False)
        lists = {each.manifest_list for each in snapshots}
        stats = self._statistics({each.snapshot_id for each in snapshots})
        return self._live(manifests.values(), may_miss=False) | manifests.keys() | lists | stats

    def _manifests(self, snapshots: Iterable[Snapshot], *, may_miss: bool) -> dict[str, ManifestFile]:
        def read(snapshot: Snapshot) -> list[ManifestFile]:
            return snapshot.manifests(self._table.io)

        return {each.manifest_path: each for found in _read_all(read, snapshots, may_miss) for each in found}

    def _live(self, manifests: Iterable[ManifestFile], *, may_miss: bool) -> set[str]:
        """Data and delete files that the manifests show; those that they only note as deleted are others'."""

        def read(manifest: ManifestFile) -> list[str]:
            return [each.data_file.file_path for each in manifest.fetch_manifest_entry(self._table.io)]

        return {path for found in _read_all(read, manifests, may_miss) for path in found}

    def _statistics(self, snapshots: Collection[int]) -> set[str]:
        every = (*self._metadata.statistics, *self._metadata.partition_statistics)
        return {each.statistics_path for each in every if each.snapshot_id in snapshots}


def _read_all(read: Any, items: Iterable[Any], may_miss: bool) -> list[Any]:
    """Read on several threads.

    :param may_miss: a file that is gone already counts as empty. Where it tells what is still needed, it must not
    """

    def one(item: Any) -> Any:
        try:
            return read(item)
        except FileNotFoundError:
            if not may_miss:
                raise
            return []

    return list(ExecutorFactory.get_or_create().map(one, items))


def _age(name: str) -> int:
    text = name.removeprefix(_LISTS).partition("-")[0]
    return int(time.time() * 1000) - int(text) if text.isdecimal() else 0
