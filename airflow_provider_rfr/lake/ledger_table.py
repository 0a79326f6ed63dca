"""The ledger as an Iceberg table: schema, fenced commits of files written elsewhere, and trimming of snapshots.

PyIceberg expires snapshots but deletes no file, so metadata files of trimmed snapshots are deleted here. Data files are
never deleted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import EqualTo, LessThan
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake.catalog import create_table, load_table
from airflow_provider_rfr.lake.commits import CommitConflictError, append_files, newest_summary_with, without_retries
from airflow_provider_rfr.lake.data_files import FileLayout, describe_file
from airflow_provider_rfr.lake.files import FileStore, naming
from airflow_provider_rfr.lake.ledger_columns import ledger_arrow_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
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
    "rfr.kind": "ledger",
}


def _ledger_name(target: str, part: str | None = None) -> str:
    """The ledger's table name for a target, or for a part of it: beside it, in the same namespace.

    :param part: as :func:`~airflow_provider_rfr.lake.target.part_of` names it
    """
    return f"{target}__rfr_ledger" + (f"_{part}" if part else "")


def _target_of_ledger(name: str) -> tuple[str, str | None] | None:
    """The target and the part that a ledger of this name is of; None where the name is no ledger's."""
    found = _NAME.match(name)
    return None if found is None else (found["target"], found["part"])


_NAME = re.compile(r"^(?P<target>.+)__rfr_ledger(?:_(?P<part>[0-9a-f]{12}))?$")

_KEEP_SNAPSHOTS = 3


def _trim_snapshots(table: Table, store: FileStore, keep: int = _KEEP_SNAPSHOTS) -> Table:
    """Keep the newest snapshots; returns the table as it is afterwards. Losing a race is no harm: next time."""
    line = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    old = line[:-keep]
    if not old:
        return table
    doomed = _metadata_files(table, old) - _metadata_files(table, line[-keep:])
    try:
        with table.maintenance.expire_snapshots() as expire:
            expire.by_ids([snapshot.snapshot_id for snapshot in old])
    except CommitFailedException:
        return table
    store.delete(doomed)
    return table


def _metadata_files(table: Table, snapshots: list[Snapshot]) -> set[str]:
    files: set[str] = set()
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        files.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
    return files


_PARALLEL_READS = 16


class LedgerTable:
    """The ledger of one target, or of a part of it, as of its last :meth:`reload`."""

    def __init__(self, catalog: Catalog, name: str, table: Table) -> None:
        self._catalog = catalog
        self._name = name
        self._table = table
        self._layout = FileLayout.of(table)
        self.store = FileStore(dict(table.io.properties))
        self.id = str(table.metadata.table_uuid)

    @classmethod
    def load(cls, catalog: Catalog, target: str, part: str | None = None) -> LedgerTable | None:
        """The ledger, or None before the first refresh."""
        name = _ledger_name(target, part)
        table = load_table(catalog, name)
        return None if table is None else cls(catalog, name, table)

    @classmethod
    def load_or_create(cls, catalog: Catalog, target: str, part: str | None = None) -> LedgerTable:
        """The ledger, new where there was none."""
        name = _ledger_name(target, part)
        table = load_table(catalog, name) or create_table(
            catalog, name, _LEDGER_SCHEMA, _LEDGER_SPEC, _LEDGER_PROPERTIES
        )
        return cls(catalog, name, table)

    @classmethod
    def parts(cls, catalog: Catalog, target: str) -> list[str]:
        """The parts of the target that have a ledger of their own, in no order."""
        namespace = target.rpartition(".")[0]
        named = (_target_of_ledger(".".join(each)) for each in catalog.list_tables(namespace))
        return [each[1] for each in named if each is not None and each[0] == target and each[1] is not None]

    @property
    def name(self) -> str:
        """``namespace.table`` of the ledger itself."""
        return self._name

    @property
    def changed_ms(self) -> int:
        """When the table changed last, in milliseconds since 1970."""
        return int(self._table.metadata.last_updated_ms)

    @property
    def location(self) -> str:
        """Folder of the table."""
        return self._table.location()

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that the next commit builds on."""
        return self._table.metadata.current_snapshot_id

    def reload(self) -> None:
        """See the table as it is now."""
        self._table = self._catalog.load_table(self._name)

    def summary(self, key: str) -> Mapping[str, str] | None:
        """The newest snapshot summary that carries ``key``."""
        return newest_summary_with(self._table, key)

    def commit(self, locations: Sequence[str], generation: int, summary: Mapping[str, str]) -> int:
        """Name the files in one snapshot on top of the one that was loaded; returns the snapshot's id.

        :raises CommitConflictError: another commit came first; nothing was written
        """
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            files = list(pool.map(lambda location: self._data_file(location, generation), locations))
        with naming(self.location):
            return append_files(self._table, files, summary).snapshot_id

    def committed_files(self, generation: int) -> list[str]:
        """Locations of the generation's files that commits name."""
        scan = self._table.scan(row_filter=EqualTo("generation", generation))
        return [task.file.file_path for task in scan.plan_files()]

    def read(self, locations: Iterable[str], columns: Sequence[str]) -> pa.Table | None:
        """Some columns of some files, in one table; None for no files."""
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            tables = list(pool.map(lambda location: self.store.read_table(location, columns), locations))
        return pa.concat_tables(tables) if tables else None

    def trim(self) -> None:
        """Forget old snapshots and delete what only they named, so that the ledger's size follows its rows."""
        self._table = _trim_snapshots(self._table, self.store)

    def drop_generations_below(self, generation: int) -> None:
        """Remove older generations' rows and files, orphans of late writers among them.

        :raises CommitConflictError: another commit came first
        """
        older = LessThan("generation", generation)
        if any(True for _ in self._table.scan(row_filter=older).plan_files()):
            try:
                with without_retries(self._table).transaction() as transaction:
                    transaction.delete(older, snapshot_properties=self._kept_summary())
            except CommitFailedException as error:
                raise CommitConflictError(str(error)) from error
        prefix = f"{self.location.rstrip('/')}/data"
        for location, _ in self.store.list(prefix):
            number = _generation_of(location, prefix)
            if number is not None and number < generation:
                self.store.delete([location])

    def drop(self) -> None:
        """Drop the table and delete its files; one that is gone already is no mistake."""
        # Listed before: a ledger that is made by the same name afterwards lies in the same folder.
        files = [location for location, _ in self.store.list(self.location)]
        try:
            self._catalog.drop_table(self._name)
        except NoSuchTableError:
            return
        self.store.delete(files)

    def _kept_summary(self) -> dict[str, str]:
        newest = self.summary("rfr.generation") or {}
        return {key: value for key, value in newest.items() if key.startswith("rfr.")}

    def _data_file(self, location: str, generation: int) -> DataFile:
        footer = self.store.read_footer(location)
        if footer is None:
            raise LedgerError(f"{location} is torn or gone; its task has to run again")
        size = self.store.size(location)
        return describe_file(location, size, footer[1], self._layout, partition={"generation": generation})


def _generation_of(location: str, prefix: str) -> int | None:
    folder = location.removeprefix(prefix).strip("/").partition("/")[0]
    number = folder.removeprefix("generation=")
    return int(number) if folder.startswith("generation=") and number.isdigit() else None
