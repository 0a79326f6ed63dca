"""The ledger as an Iceberg table: its schema, strict commits of files that tasks wrote, and removal of old metadata.

PyIceberg expires snapshots but deletes no files, so the metadata files of trimmed snapshots are deleted here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import EqualTo, LessThan
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import IdentityTransform

from airflow_provider_rfr.exceptions import DamagedLedgerError, LedgerError
from airflow_provider_rfr.lake.catalog import create_table, load_table, namespaces
from airflow_provider_rfr.lake.commits import (
    CommitConflictError,
    TableTransaction,
    append_files,
    commit_strictly,
    newest_summary_with,
    stale_files_are_conflicts,
)
from airflow_provider_rfr.lake.data_files import FileLayout, StoredFile
from airflow_provider_rfr.lake.expiry import KIND
from airflow_provider_rfr.lake.files import (
    FileStore,
    is_local,
    ledger_arrow_schema,
    naming,
    renewal_time,
    select_columns,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_LEDGER_SCHEMA = pyarrow_to_schema(ledger_arrow_schema())
_LEDGER_SPEC = PartitionSpec(
    PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="generation")
)
_LEDGER_PROPERTIES = {
    # The fence: a commit from a stale table is refused instead of repeated on top of the newer one.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "24",
    # Full manifests are left alone, so a merge never rewrites the whole history.
    "commit.manifest.target-size-bytes": str(256 * 1024),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "4",
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.generation": "full",
    "write.metadata.metrics.column.partition_ordinal": "full",
    KIND: "ledger",
}
_LEDGER_NAME = re.compile(r"(?P<target>.+)__rfr_ledger(?:_(?P<part>[0-9a-f]{12}))?")
_KEPT_SNAPSHOTS = 3
_PARALLEL_READS = 16


def ledger_name(target: str, part: str | None = None) -> str:
    """Return the name of the ledger of a target or of a part of it, in the target's namespace."""
    return f"{target}__rfr_ledger" + (f"_{part}" if part else "")


def ledgers_in(catalog: Catalog) -> Iterator[tuple[str, str | None]]:
    """Yield target and part of every table of the lake whose name is a ledger's, without loading the tables."""
    return (ledger for namespace in namespaces(catalog) for ledger in _ledgers_of(catalog, namespace))


def _ledgers_of(catalog: Catalog, namespace: str | tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    try:
        tables = catalog.list_tables(namespace)
    except NoSuchNamespaceError:
        # The target was never created, or the namespace was dropped a moment ago.
        return
    for name in map(".".join, tables):
        if match := _LEDGER_NAME.fullmatch(name):
            yield match["target"], match["part"]


class LedgerTable:
    """The ledger of one target, or of a part of it, as it was last loaded.

    :ivar name: ``namespace.table`` of the ledger itself
    """

    def __init__(self, catalog: Catalog, name: str, table: Table) -> None:
        self._catalog = catalog
        self.name = name
        self._table = table
        self._layout = FileLayout.of(table)
        self._renewal = renewal_time(table)
        self.id = str(table.metadata.table_uuid)

    @classmethod
    def load(cls, catalog: Catalog, target: str, part: str | None = None) -> LedgerTable | None:
        """Load the ledger; return None if it does not exist, as before the first refresh."""
        name = ledger_name(target, part)
        table = load_table(catalog, name)
        return None if table is None else cls(catalog, name, table)

    @classmethod
    def load_or_create(cls, catalog: Catalog, target: str, part: str | None = None) -> LedgerTable:
        """Load or create the ledger; add the columns that it lacks because an older release created it."""
        name = ledger_name(target, part)
        table = load_table(catalog, name) or create_table(
            catalog, name, _LEDGER_SCHEMA, _LEDGER_SPEC, _LEDGER_PROPERTIES
        )
        if len(table.schema().columns) < len(_LEDGER_SCHEMA.columns):
            try:
                with table.update_schema() as update:
                    update.union_by_name(_LEDGER_SCHEMA)
            except CommitFailedException:
                # Another attempt adds the same columns.
                table.refresh()
        return cls(catalog, name, table)

    @classmethod
    def parts(cls, catalog: Catalog, target: str) -> list[str]:
        """Return the parts of the target that have a ledger of their own, in no particular order."""
        ledgers = _ledgers_of(catalog, target.rpartition(".")[0])
        return [part for name, part in ledgers if name == target and part is not None]

    @property
    def store(self) -> FileStore:
        """Return the store of the table's files, with the credentials of the table as it was last loaded."""
        return FileStore.of(self._table.io)

    @property
    def needs_renewal(self) -> bool:
        """Tell whether the credentials of the table's files are old, so that the table must be loaded again."""
        return time.monotonic() >= self._renewal

    @property
    def is_ledger(self) -> bool:
        """Tell whether this package created the table as a ledger. Its name alone does not prove that."""
        return self._table.properties.get(KIND) == _LEDGER_PROPERTIES[KIND]

    @property
    def changed_ms(self) -> int:
        """Return the time of the table's last change, in milliseconds since 1970."""
        return int(self._table.metadata.last_updated_ms)

    @property
    def location(self) -> str:
        return self._table.location()

    @property
    def snapshot_id(self) -> int | None:
        """Return the id of the snapshot that the next commit builds on."""
        return self._table.metadata.current_snapshot_id

    def reload(self) -> None:
        self._table = self._catalog.load_table(self.name)
        self._renewal = renewal_time(self._table)

    def summary(self, key: str) -> Mapping[str, str] | None:
        """Return the newest snapshot summary that has ``key``; None if there is none."""
        return newest_summary_with(self._table, key)

    def commit(self, files: Sequence[StoredFile], summary: Mapping[str, str]) -> int:
        """Commit the files in one snapshot on top of the one that was loaded; return the snapshot's id.

        :raises CommitConflictError: another commit came first; nothing was written
        :raises LedgerError: a task wrote a file to a local disk that is not the driver's
        """
        for file in files:
            # Without this check the commit would succeed, and the publish would miss the file much later.
            if is_local(file.location) and not self.store.exists(file.location):
                raise LedgerError(
                    f"{file.location} was written, and is not on the driver's disk. Use a warehouse that the driver and"
                    " all executors share, e.g. an object store"
                )
        with naming(self.location), self._intact():
            return append_files(self._table, [file.describe(self._layout) for file in files], summary)

    def committed_files(self, generation: int) -> dict[str, int]:
        """Return the sizes in bytes of the generation's committed files, by location."""
        scan = self._table.scan(row_filter=EqualTo("generation", generation))
        with self._intact():
            return {task.file.file_path: task.file.file_size_in_bytes for task in scan.plan_files()}

    def read(self, locations: Iterable[str], columns: Sequence[str]) -> list[pa.Table]:
        """Read these columns of these files; return one table for each file, in the same order.

        A column that did not exist yet when a file was written is null.
        """

        def read(location: str) -> pa.Table:
            return select_columns(self.store.read_table(location, columns), columns)

        with self._intact(), ThreadPoolExecutor(_PARALLEL_READS) as pool:
            return list(pool.map(read, locations))

    @contextmanager
    def _intact(self) -> Iterator[None]:
        """Raise :class:`DamagedLedgerError` for a missing file, unless another commit made it superfluous.

        :raises CommitConflictError: another commit came first
        """
        try:
            with stale_files_are_conflicts(self._catalog, self.name, self._table):
                yield
        except FileNotFoundError as error:
            raise DamagedLedgerError(
                f"the ledger {self.name} is damaged: {error}. Drop it with `airflow rfr refresh drop TABLE`: the table"
                " itself stays as it is, and the next run reads all pages again"
            ) from error

    def trim(self) -> None:
        """Expire all but the newest snapshots and delete the metadata files that only those named.

        If another commit comes first, nothing is done, and the next call trims.
        """
        table = self._table
        line = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        old, kept = line[:-_KEPT_SNAPSHOTS], line[-_KEPT_SNAPSHOTS:]
        if not old:
            return
        unneeded = _metadata_files(table, old) - _metadata_files(table, kept)
        transaction = TableTransaction(table)
        with ExpireSnapshots(transaction) as expire:
            expire.by_ids([snapshot.snapshot_id for snapshot in old])
        try:
            commit_strictly(transaction)
        except CommitConflictError:
            return
        # After the commit: until then the table names these files. A process that dies here leaves them behind, which
        # costs a few kilobytes until the ledger is dropped.
        self.store.delete(unneeded)

    def drop_generations_below(self, generation: int) -> None:
        """Remove the rows and files of older generations, including files that late writers left.

        :raises CommitConflictError: another commit came first
        """
        older = LessThan("generation", generation)
        if any(True for _ in self._table.scan(row_filter=older).plan_files()):
            # The newest summary is the state of the refresh, so this snapshot has to repeat it.
            newest = self.summary("rfr.generation") or {}
            kept = {key: value for key, value in newest.items() if key.startswith("rfr.")}
            transaction = TableTransaction(self._table)
            with self._intact():
                transaction.delete(older, snapshot_properties=kept)
            commit_strictly(transaction)
        # After the commit, because until then the table names files of these generations.
        # Found by listing the folder, because no commit names what an orphaned task of an older generation wrote.
        folder = f"{self.location.rstrip('/')}/data"
        prefix = f"{folder}/generation="
        for location, _ in self.store.list(folder):
            number = location.removeprefix(prefix).partition("/")[0]
            if location.startswith(prefix) and number.isdigit() and int(number) < generation:
                self.store.delete([location])

    def drop(self) -> None:
        """Drop the table and delete its files; a table that does not exist is not an error."""
        # Listed first: a ledger that is created under the same name afterwards uses the same folder.
        files = [location for location, _ in self.store.list(self.location)]
        try:
            # Dropped before the files: a process that dies here leaves files that nothing names, and never a table
            # without its files.
            self._catalog.drop_table(self.name)
        except NoSuchTableError:
            return
        self.store.delete(files)


def _metadata_files(table: Table, snapshots: Sequence[Snapshot]) -> set[str]:
    manifests = {manifest.manifest_path for snapshot in snapshots for manifest in snapshot.manifests(table.io)}
    return manifests | {snapshot.manifest_list for snapshot in snapshots}
