"""One change of a table as one Iceberg commit, on top of exactly the state that was looked at.

Columns, partitioning, keys, rows and markers change together or not at all. If anyone committed meanwhile, the commit
is refused, so a paused process that wakes up late does no harm. A new table with rows appears with its first commit.

A rename in a SQL catalog checks name and metadata location in one statement, because Iceberg's own rename goes by name
alone and would rename whatever has the name by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue, IsNull
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
)
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from airflow_provider_rfr.lake.catalog import create_table, load_table
from airflow_provider_rfr.lake.commits import (
    AssertBase,
    CommitConflictError,
    TargetChangedError,
    drop_spent_manifests,
    newest_summary_with,
    without_retries,
)
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget, StoredFile
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.inventory import TableEntry, entry_of
from airflow_provider_rfr.lake.schema_changes import (
    ColumnLike,
    TableChange,
    key_properties,
    new_schema,
    stage_columns,
    stage_rest,
)
from airflow_provider_rfr.lake.types import partition_spec

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction


class NewTable:
    """A table that is not there yet. Its namespace is made at once."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        columns: Sequence[ColumnLike],
        *,
        partitioning: Sequence[str] = (),
        keys: Sequence[str] = (),
        properties: Mapping[str, str],
    ) -> None:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        schema = new_schema(columns, keys)
        self._name = name
        self._transaction = catalog.create_table_transaction(
            name,
            schema,
            partition_spec=partition_spec(partitioning, schema) or UNPARTITIONED_PARTITION_SPEC,
            properties={**TABLE_PROPERTIES, **properties, **key_properties(keys)},
        )

    def target(self, family: str) -> FileTarget:
        """How its data files look.

        :param family: what the files' names begin with
        """
        metadata, table = self._transaction.table_metadata, self._transaction._table
        layout = FileLayout(metadata.schema(), metadata.spec(), dict(metadata.properties))
        folder = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data")
        return FileTarget(layout, FileStore(dict(table.io.properties)), folder.rstrip("/"), layout.arrow, family=family)

    def commit(self, files: Sequence[StoredFile], summary: Mapping[str, str]) -> None:
        """Make it, with these rows.

        :param summary: goes into the snapshot's
        :raises CommitConflictError: something has its name by now; nothing was written
        """
        layout = self.target("").layout
        if files:
            with self._transaction.update_snapshot(snapshot_properties=dict(summary)).fast_append() as append:
                for file in files:
                    append.append_data_file(file.describe(layout))
        try:
            self._transaction.commit_transaction()
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise CommitConflictError(str(error)) from error


def rename_exactly(catalog: SqlCatalog, old: str, new: str, metadata_location: str) -> None:
    """Rename the table whose metadata is there.

    :raises CommitConflictError: it has other metadata by now, is gone, or the new name is taken; nothing was done
    """
    row = (
        (IcebergTables.catalog_name == catalog.name)
        & (IcebergTables.table_namespace == _namespace(old))
        & (IcebergTables.table_name == Catalog.table_name_from(old))
        & (IcebergTables.metadata_location == metadata_location)
    )
    values = {"table_namespace": _namespace(new), "table_name": Catalog.table_name_from(new)}
    with Session(catalog.engine) as session:
        try:
            renamed = session.execute(update(IcebergTables).where(row).values(**values)).rowcount  # type: ignore[attr-defined]
            session.commit()
        except IntegrityError as error:
            raise CommitConflictError(f"{new} is taken") from error
    if renamed != 1:
        raise CommitConflictError(f"{old} is no longer the table that was looked at")


def _namespace(name: str) -> str:
    return Catalog.namespace_to_string(Catalog.namespace_from(name))


class MigratedTable:
    """A table as it was when it was loaded.

    :ivar entry: what it was
    """

    def __init__(self, catalog: Catalog, name: str, table: Table) -> None:
        self._catalog = catalog
        self.name = name
        self._base = table.metadata
        self.entry: TableEntry = entry_of(name, table)
        self._table = without_retries(table)

    @classmethod
    def load(cls, catalog: Catalog, name: str) -> MigratedTable | None:
        """The table as it is now; None if there is none."""
        table = load_table(catalog, name)
        return None if table is None else cls(catalog, name, table)

    @classmethod
    def create(
        cls,
        catalog: Catalog,
        name: str,
        columns: Sequence[ColumnLike],
        *,
        partitioning: Sequence[str] = (),
        keys: Sequence[str] = (),
        properties: Mapping[str, str],
    ) -> MigratedTable:
        """The new table with its markers, or the one that somebody else made first: look whose it is."""
        schema = new_schema(columns, keys)
        spec = partition_spec(partitioning, schema)
        made = {**TABLE_PROPERTIES, **properties, **key_properties(keys)}
        table = create_table(catalog, name, schema, spec, made)
        return cls(catalog, name, table)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self._base.properties

    @property
    def snapshot_id(self) -> int | None:
        """The newest snapshot; None: it never had a row."""
        return self._base.current_snapshot_id

    def is_as(self, other: MigratedTable) -> bool:
        """Whether nobody has changed it between the two."""
        return AssertBase.of(self._base) == AssertBase.of(other._base)

    def rows(self) -> int:
        """How many there are."""
        return self._table.scan().count()

    def with_nulls(self, columns: Iterable[str]) -> list[str]:
        """Those of the columns in which a NULL is found."""
        if self.snapshot_id is None:
            return []
        names = [self._table.schema().find_field(each, case_sensitive=False).name for each in columns]
        return [name for name in names if self._table.scan(row_filter=IsNull(name)).count()]

    def alter(self, change: TableChange) -> None:
        """Change everything but the rows; no snapshot is made.

        :raises CommitConflictError: the table is no longer as it was loaded; nothing was written
        """
        transaction = self._begin()
        stage_columns(transaction, change)
        stage_rest(transaction, change)
        self._commit(transaction)

    def coming(self, change: TableChange, family: str) -> FileTarget:
        """How data files of the changed table look; nothing is written.

        :param family: what the files' names begin with
        """
        transaction = self._begin()
        stage_columns(transaction, change)
        metadata = transaction.table_metadata
        layout = FileLayout(metadata.schema(), metadata.spec(), dict(self._base.properties))
        folder = self._base.properties.get("write.data.path", f"{self._table.location().rstrip('/')}/data")
        store = FileStore(dict(self._table.io.properties))
        return FileTarget(layout, store, folder.rstrip("/"), layout.arrow, family=family)

    def replace_rows(
        self, change: TableChange, files: Sequence[StoredFile], target: FileTarget, summary: Mapping[str, str]
    ) -> int | None:
        """Change everything, and put these rows in the place of all others; returns the snapshot.

        :param target: that the files were written for
        :param summary: goes into the snapshot's
        :raises CommitConflictError: the table is no longer as it was loaded; nothing was written
        :raises TargetChangedError: its columns are not those that the files were written for
        """
        transaction = self._begin()
        stage_columns(transaction, change)
        metadata = transaction.table_metadata
        if (
            metadata.schema().fields != target.layout.schema.fields
            or metadata.spec().fields != target.layout.spec.fields
        ):
            raise TargetChangedError(f"the columns or the partitioning of {self.name} changed while files were written")
        layout = FileLayout(metadata.schema(), metadata.spec(), dict(self._base.properties))
        old = list(self._table.scan(AlwaysTrue()).plan_files()) if self.snapshot_id is not None else []
        snapshot = None
        if old or files:
            with transaction.update_snapshot(snapshot_properties=dict(summary)).overwrite() as overwrite:
                drop_spent_manifests(overwrite)
                overwrite.delete_by_predicate(AlwaysTrue())
                for task in old:
                    overwrite.delete_data_file(task.file)
                for file in files:
                    overwrite.append_data_file(file.describe(layout))
            snapshot = overwrite.snapshot_id
        stage_rest(transaction, change)
        self._commit(transaction)
        return snapshot

    def rename(self, name: str) -> None:
        """Give the table another name, which has to be free; its namespace is made where it is missing.

        :raises CommitConflictError: the name is taken; in a SQL catalog also if the table is no longer as it was loaded
        """
        try:
            self._catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            if isinstance(self._catalog, SqlCatalog):
                rename_exactly(self._catalog, self.name, name, self._table.metadata_location)
            else:
                self._catalog.rename_table(self.name, name)
        except (TableAlreadyExistsError, NoSuchTableError) as error:
            raise CommitConflictError(str(error)) from error

    def tagged_snapshot(self, key: str, value: str) -> int | None:
        """The newest snapshot whose summary says so."""
        found = newest_summary_with(self._table, key, value)
        return None if found is None else int(found["snapshot-id"])

    def _begin(self) -> Transaction:
        transaction = self._table.transaction()
        base = self._base
        requirements: tuple[Any, ...] = (
            AssertCurrentSchemaId.model_validate({"current-schema-id": base.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": base.default_spec_id}),
            AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": base.last_column_id}),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": base.current_snapshot_id}),
        )
        if isinstance(self._catalog, MetastoreCatalog):
            requirements += (AssertBase.of(base),)
        transaction._requirements = requirements
        return transaction

    def _commit(self, transaction: Transaction) -> None:
        try:
            transaction.commit_transaction()
        except (CommitFailedException, ValidationException) as error:
            raise CommitConflictError(str(error)) from error


def nulls_in_files(files: Iterable[StoredFile], target: FileTarget, columns: Iterable[str]) -> list[str]:
    """Those of the columns in which a file that is written, but in no commit yet, has a NULL."""
    layout = target.layout
    places = {layout.schema.find_field(each, case_sensitive=False).field_id: each for each in columns}
    paths = {path: places[number] for path, number in layout.ids.items() if number in places}
    nested = {name for name in places.values() if name not in paths.values()}
    found = set[str]()
    for file in files:
        found |= set(_nulls_by_footer(file, paths))
        for name in nested:
            stored = layout.stored.find_column_name(layout.schema.find_field(name, case_sensitive=False).field_id)
            if target.store.read_table(file.location, [stored or name]).column(0).null_count:
                found.add(name)
    return sorted(found)


def _nulls_by_footer(file: StoredFile, paths: Mapping[str, str]) -> Iterator[str]:
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = paths.get(column.path_in_schema)
            if name is not None and column.statistics is not None and column.statistics.null_count:
                yield name


def purge_table(catalog: Catalog, name: str) -> None:
    """Delete the table with all its files; one that isn't there is no mistake. Files that others name are not its."""
    try:
        catalog.purge_table(name)
    except NoSuchTableError:
        return
