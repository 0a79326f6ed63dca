"""One change of a table as one Iceberg commit, on top of exactly the state that was loaded.

Columns, partitioning, keys, rows and markers change together or not at all. If anyone has committed meanwhile, the
commit is refused, so a process that was paused and resumes late does no harm. A new table with rows appears with its
first commit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg import types as iceberg
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue, IsNull
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
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

from airflow_provider_rfr.lake.catalog import create_table, ensure_namespace, load_table
from airflow_provider_rfr.lake.commits import (
    AssertBase,
    CommitConflictError,
    TableTransaction,
    TargetChangedError,
    commit_strictly,
    last_change,
    newest_summary_with,
    stage_append,
    stage_overwrite,
    summary_of,
)
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget, StoredFile
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.schemas import (
    iceberg_transform,
    move_column,
    partition_spec,
    partition_text,
    type_from_text,
    type_text,
)
from airflow_provider_rfr.lake.tables import KEYS, TableEntry, entry_of
from airflow_provider_rfr.lake.types import parse_transform

if TYPE_CHECKING:
    from pyiceberg.table import DataScan, Table, Transaction
    from pyiceberg.table.update.schema import UpdateSchema

_Path = tuple[str, ...]
_FORMAT = "format-version"

TableDefinition = tuple[Schema, PartitionSpec, dict[str, str]]
"""Schema, partitioning and properties of a table that is to be created."""


class ColumnLike(Protocol):
    """A declared column; its type is a canonical text."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def required(self) -> bool: ...

    @property
    def comment(self) -> str | None: ...


@dataclass(frozen=True)
class TableChange:
    """A change of everything but the rows.

    :ivar updates: batches of operations (``drop``, ``rename``, ``widen``, ``narrow``, ``relax``, ``add``, ``move``,
        ``comment``), one schema update each; ``rename`` may have ``field``, the path to one inside the column
    :ivar tighten: ``require`` operations, applied once no row has a NULL there
    :ivar partitioning: canonical texts; None for no change
    :ivar keys: names of columns; None for no change
    """

    updates: Sequence[Sequence[Mapping[str, Any]]] = ()
    tighten: Sequence[Mapping[str, Any]] = ()
    partitioning: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    unset: Sequence[str] = ()


def table_definition(
    columns: Sequence[ColumnLike],
    partitioning: Sequence[str] = (),
    keys: Sequence[str] = (),
    properties: Mapping[str, str] = {},
) -> TableDefinition:
    """Return the schema, partitioning and properties that a table is created with.

    :param partitioning: canonical texts
    :param keys: names of columns
    """
    ids = count(1)
    fields = [
        iceberg.NestedField(
            next(ids), column.name, type_from_text(column.type, ids), required=column.required, doc=column.comment
        )
        for column in columns
    ]
    schema = Schema(*fields)
    identifiers = [schema.find_field(name).field_id for name in _identifier_names(schema, keys)]
    schema = Schema(*fields, identifier_field_ids=identifiers)
    return schema, partition_spec(partitioning, schema), {**TABLE_PROPERTIES, **properties, **_key_properties(keys)}


def stage_columns(transaction: Transaction, change: TableChange) -> None:
    """Stage changes of columns and partitioning, except those that depend on the finished rows (:func:`stage_rest`)."""
    # A column can't be dropped while it partitions the table or identifies rows, and can't partition before it exists.
    if change.partitioning is not None:
        fields = transaction.table_metadata.spec().fields
        if removed := fields[_kept_partitions(transaction, change.partitioning) :]:
            with transaction.update_spec() as spec:
                for partition_field in removed:
                    spec.remove_field(partition_field.name)
    if change.keys is not None:
        with transaction.update_schema(allow_incompatible_changes=True, case_sensitive=False) as update:
            update.set_identifier_fields()
    for batch in change.updates:
        with transaction.update_schema(allow_incompatible_changes=True, case_sensitive=False) as update:
            for operation in batch:
                _stage_operation(update, operation)
    if change.partitioning is not None:
        schema = transaction.table_metadata.schema()
        if added := change.partitioning[_kept_partitions(transaction, change.partitioning) :]:
            with transaction.update_spec() as spec:
                for transform in map(parse_transform, added):
                    column = schema.find_field(transform.column, case_sensitive=False)
                    spec.add_field(column.name, iceberg_transform(transform))


def stage_rest(transaction: Transaction, change: TableChange) -> None:
    """Stage required columns, keys, format and properties, after the rows that satisfy them were staged."""
    if change.tighten:
        with transaction.update_schema(allow_incompatible_changes=True, case_sensitive=False) as update:
            for operation in change.tighten:
                update.update_column((operation["column"],), required=True)
    if change.keys is not None:
        identifiers = _identifier_names(transaction.table_metadata.schema(), change.keys)
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            update.set_identifier_fields(*identifiers)
    properties = {name: value for name, value in change.properties.items() if name != _FORMAT}
    present = transaction.table_metadata.properties
    unset = [name for name in change.unset if name in present]
    if change.keys is not None:
        properties |= _key_properties(change.keys)
        unset += [KEYS] if not change.keys and KEYS in present else []
    if unset:
        transaction.remove_properties(*unset)
    version = change.properties.get(_FORMAT, "")
    # A format can't be downgraded.
    if version.isdigit() and int(version) > transaction.table_metadata.format_version:
        transaction.upgrade_table_version(int(version))  # type: ignore[arg-type]
    transaction.set_properties(properties)


def _key_properties(keys: Sequence[str]) -> dict[str, str]:
    return {KEYS: json.dumps(list(keys))} if keys else {}


def _identifier_names(schema: Schema, keys: Iterable[str]) -> list[str]:
    """Return the key's columns for Iceberg's identifier fields, which must be required; none if one of them is not."""
    columns = [schema.find_field(key, case_sensitive=False) for key in keys]
    return [column.name for column in columns] if all(column.required for column in columns) else []


def _kept_partitions(transaction: Transaction, wanted: Sequence[str]) -> int:
    """Count the leading partition fields that equal the wanted ones already."""
    metadata = transaction.table_metadata
    present = (partition_text(field, metadata.schema()) for field in metadata.spec().fields)
    pairs = zip(present, wanted, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].casefold() == pair[1].casefold(), pairs))


def _stage_operation(update: UpdateSchema, operation: Mapping[str, Any]) -> None:
    path = (operation["column"], *operation.get("field", ()))
    match operation["op"]:
        case "drop":
            update.delete_column(path)
        case "rename":
            update.rename_column(path, operation["to"])
        case "relax":
            update.make_column_optional(path)
        case "add":
            # A refresh adds columns to its target by itself, so the column may exist already.
            wanted = operation["column"].casefold(), operation["type"].casefold()
            present = (field for field in update._schema.fields if field.field_id not in update._deletes)
            if wanted not in ((field.name.casefold(), type_text(field.field_type).casefold()) for field in present):
                update.add_column(path, type_from_text(operation["type"]))
        case "widen" | "narrow":
            column = update._schema.find_field(operation["column"], case_sensitive=False)
            _retype(update, (column.name,), column.field_type, type_from_text(operation["type"]))
        case "move":
            move_column(update, path, operation["after"])
        case "comment":
            # None would keep the old comment.
            update.update_column(path, doc=operation["comment"] or "")
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _retype(update: UpdateSchema, path: _Path, old: iceberg.IcebergType, new: iceberg.IcebergType) -> None:
    """Change one type to another in place; structs field by field, because each field has an id of its own."""
    if isinstance(old, iceberg.ListType) and isinstance(new, iceberg.ListType):
        _retype(update, (*path, "element"), old.element_type, new.element_type)
    elif isinstance(old, iceberg.MapType) and isinstance(new, iceberg.MapType):
        _retype(update, (*path, "value"), old.value_type, new.value_type)
    elif not (isinstance(old, iceberg.StructType) and isinstance(new, iceberg.StructType)):
        if old != new:
            update.update_column(path, field_type=new)
    else:
        before = {field.name.casefold(): field for field in old.fields}
        kept = {inner.name.casefold() for inner in new.fields}
        present = [inner.name for name, inner in before.items() if name in kept]
        for dropped in (inner.name for name, inner in before.items() if name not in kept):
            update.delete_column((*path, dropped))
        wanted = []
        for new_field in new.fields:
            old_field = before.get(new_field.name.casefold())
            if old_field is None:
                update.add_column((*path, new_field.name), new_field.field_type)
                present.append(new_field.name)
            else:
                _retype(update, (*path, old_field.name), old_field.field_type, new_field.field_type)
            wanted.append(new_field.name if old_field is None else old_field.name)
        for place, name in enumerate(wanted):
            if present[place] != name:
                present.remove(name)
                present.insert(place, name)
                move_column(update, (*path, name), wanted[place - 1] if place else None)


class NewTable:
    """A table that is created by its first commit, with its rows. Its namespace is created at once."""

    def __init__(self, catalog: Catalog, name: str, definition: TableDefinition) -> None:
        ensure_namespace(catalog, name)
        schema, spec, properties = definition
        self._transaction = catalog.create_table_transaction(name, schema, partition_spec=spec, properties=properties)

    def target(self, family: str) -> FileTarget:
        """Return the target to write the table's data files to."""
        return FileTarget.of(self._transaction.table_metadata, self._transaction._table.io, family=family)

    def commit(self, files: Sequence[StoredFile], summary: Mapping[str, str]) -> None:
        """Create the table with these rows.

        :raises CommitConflictError: another table has the name now; nothing was written
        """
        layout = FileLayout.of(self._transaction.table_metadata)
        if files:
            stage_append(self._transaction, (file.describe(layout) for file in files), summary)
        commit_strictly(self._transaction)


class MigratedTable:
    """A table as it was loaded, which commits change only if it is still in that state."""

    def __init__(self, catalog: Catalog, name: str, table: Table) -> None:
        self._catalog = catalog
        self.name = name
        self._base = table.metadata
        self.entry: TableEntry = entry_of(name, table)
        self._table = table

    @classmethod
    def load(cls, catalog: Catalog, name: str) -> MigratedTable | None:
        table = load_table(catalog, name)
        return None if table is None else cls(catalog, name, table)

    @classmethod
    def create(cls, catalog: Catalog, name: str, definition: TableDefinition) -> MigratedTable:
        """Create the table with its markers, or load it if another process was first; callers check whose it is."""
        return cls(catalog, name, create_table(catalog, name, *definition))

    @property
    def properties(self) -> Mapping[str, str]:
        return self._base.properties

    @property
    def snapshot_id(self) -> int | None:
        """Return the id of the newest snapshot; None if the table never had a row."""
        return self._base.current_snapshot_id

    def is_as(self, other: MigratedTable) -> bool:
        """Tell whether both were loaded in the same state."""
        return AssertBase.of(self._base) == AssertBase.of(other._base)

    def rows(self) -> int:
        return self._table.scan().count()

    def with_nulls(self, columns: Iterable[str]) -> list[str]:
        """Return those of the columns that have a NULL."""
        return [name for name, scan in self._scans_for_nulls(columns) if scan.count()]

    def may_have_nulls(self, columns: Iterable[str]) -> list[str]:
        """Return those of the columns for which the counts of some data file show a NULL, or are missing."""
        return [name for name, scan in self._scans_for_nulls(columns) if any(scan.plan_files())]

    def _scans_for_nulls(self, columns: Iterable[str]) -> Iterator[tuple[str, DataScan]]:
        """Yield each column with a scan for its NULLs; lists and maps can't be filtered, so with one for any row."""
        for column in columns if self.snapshot_id is not None else ():
            field = self._table.schema().find_field(column, case_sensitive=False)
            can_ask = field.field_type.is_primitive or field.field_type.is_struct
            yield field.name, self._table.scan(row_filter=IsNull(field.name) if can_ask else AlwaysTrue())

    def alter(self, change: TableChange) -> None:
        """Change everything but the rows; no snapshot is made.

        :raises CommitConflictError: the table is no longer as it was loaded; nothing was written
        """
        transaction = self._begin(change)
        stage_rest(transaction, change)
        commit_strictly(transaction)

    def coming(self, change: TableChange, family: str) -> FileTarget:
        """Return the target to write data files of the changed table to; write nothing."""
        transaction = self._begin(change)
        return FileTarget.of(transaction.table_metadata, self._table.io, family=family)

    def origins(self, change: TableChange) -> dict[str, str]:
        """Map the new name of each column of the changed table, in lower case, to its present name.

        New columns are left out.
        """
        transaction = self._begin(change)
        names = {field.field_id: field.name for field in self._table.schema().fields}
        changed = transaction.table_metadata.schema().fields
        return {column.name.casefold(): names[column.field_id] for column in changed if column.field_id in names}

    def replace_rows(
        self,
        change: TableChange,
        files: Sequence[StoredFile],
        target: FileTarget,
        summary: Mapping[str, str],
        *,
        always: bool = False,
    ) -> int | None:
        """Apply the change and replace all rows by these; return the snapshot's id, None if no snapshot was made.

        :param target: the target that the files were written for
        :param always: make a snapshot, for its summary, even if there were no rows and are none now
        :raises CommitConflictError: the table is no longer as it was loaded; nothing was written
        :raises TargetChangedError: its columns are not those that the files were written for
        """
        transaction = self._begin(change)
        layout = FileLayout.of(transaction.table_metadata)
        planned = target.layout
        if layout.schema.fields != planned.schema.fields or layout.spec.fields != planned.spec.fields:
            raise TargetChangedError(f"the columns or the partitioning of {self.name} changed while files were written")
        old = [task.file for task in self._table.scan().plan_files()] if self.snapshot_id is not None else []
        snapshot = None
        if old or files or always:
            snapshot = stage_overwrite(transaction, old, (file.describe(layout) for file in files), summary)
        stage_rest(transaction, change)
        commit_strictly(transaction)
        return snapshot

    def rename(self, name: str) -> None:
        """Give the table another name, which has to be free; the namespace is created if it is missing.

        :raises CommitConflictError: the name is taken; in a SQL catalog also if the table is no longer as it was loaded
        """
        ensure_namespace(self._catalog, name)
        if isinstance(self._catalog, SqlCatalog):
            _rename_in_database(self._catalog, self.name, name, self._table.metadata_location)
            return
        try:
            self._catalog.rename_table(self.name, name)
        # A client that resends a rename whose response was lost gets the same errors. So the rename may have been done:
        # the caller checks which name the table has.
        except (TableAlreadyExistsError, NoSuchTableError) as error:
            raise CommitConflictError(str(error)) from error

    def tagged_snapshot(self, key: str, value: str) -> int | None:
        """Return the id of the newest snapshot whose summary has this value for ``key``; None if there is none."""
        summary = newest_summary_with(self._table, key, value)
        return None if summary is None else int(summary["snapshot-id"])

    def last_summary(self) -> Mapping[str, str]:
        """Return the summary of the newest snapshot that is not a compaction; an empty mapping where there is none."""
        return summary_of(last_change(self._table))

    def _begin(self, change: TableChange) -> Transaction:
        """Return a transaction with the change of columns and partitioning staged, on exactly the loaded state."""
        transaction = TableTransaction(self._table)
        base = self._base
        # PyIceberg's own requirements cover only what an update touches. These refuse the commit after other changes,
        # too. A catalog that checks requirements in this process can even compare the whole metadata.
        requirements: tuple[Any, ...] = (
            AssertCurrentSchemaId.model_validate({"current-schema-id": base.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": base.default_spec_id}),
            AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": base.last_column_id}),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": base.current_snapshot_id}),
        )
        if isinstance(self._catalog, MetastoreCatalog):
            requirements += (AssertBase.of(base),)
        transaction._requirements = requirements
        stage_columns(transaction, change)
        return transaction


def _rename_in_database(catalog: SqlCatalog, old: str, new: str, metadata_location: str) -> None:
    """Rename the table if it still has this metadata.

    One UPDATE is a compare-and-set: PyIceberg's own rename compares only the name, and would rename any table that has
    that name now.

    :raises CommitConflictError: it has other metadata now, does not exist, or the new name is taken
    """

    def namespace(name: str) -> str:
        return Catalog.namespace_to_string(Catalog.namespace_from(name))

    row = (
        (IcebergTables.catalog_name == catalog.name)
        & (IcebergTables.table_namespace == namespace(old))
        & (IcebergTables.table_name == Catalog.table_name_from(old))
        & (IcebergTables.metadata_location == metadata_location)
    )
    values = {"table_namespace": namespace(new), "table_name": Catalog.table_name_from(new)}
    with Session(catalog.engine) as session:
        try:
            renamed = session.execute(update(IcebergTables).where(row).values(**values)).rowcount  # type: ignore[attr-defined]
            session.commit()
        except IntegrityError as error:
            raise CommitConflictError(f"the name {new} is taken") from error
    if renamed != 1:
        raise CommitConflictError(f"{old} is no longer the table that was loaded")


def nulls_in_files(files: Iterable[StoredFile], target: FileTarget, columns: Iterable[str]) -> list[str]:
    """Return those of the columns in which a file that is written, but not yet committed, has a NULL."""
    layout = target.layout
    by_id = {layout.schema.find_field(column, case_sensitive=False).field_id: column for column in columns}
    with_nulls = set[str]()
    for file in files:
        counts = file.describe(layout).null_value_counts or {}
        for number, name in by_id.items():
            nulls = counts.get(number)
            if nulls is None:
                # Footers count the NULLs of leaf columns only, and not where the table forbids metrics.
                stored = layout.stored.find_column_name(number) or name
                nulls = target.store.read_table(file.location, [stored]).column(0).null_count
            if nulls:
                with_nulls.add(name)
    return sorted(with_nulls)


def purge_table(catalog: Catalog, name: str) -> None:
    """Delete the table and the files that it names; one that does not exist is not an error."""
    with contextlib.suppress(NoSuchTableError):
        catalog.purge_table(name)
