"""The published table: how its columns change for new rows, and one strict commit that shows the prepared files.

A commit that meets another one is refused. The caller then reloads the table, looks whether this generation or a newer
one is published already, and only then repeats the commit. ``replace_where`` names the part that a publish replaces.

:func:`plan_evolution` compares a published table with the columns of new rows, by name, and says which changes make
them fit, or why it can't.

PyIceberg accepts some changes that the table format forbids (a decimal's scale), so changes are classified here. Where
the commit replaces every row, no row needs an old column: one whose type can't be widened is dropped and added under a
new field id, at its place, and older snapshots still read the old one. Where rows stay, that is refused.

A column that the new rows lack stays, and is null in them. A column that requires a value still does: writing a file
checks that.

Columns that lose all their values are found by the counts that Iceberg keeps for each data file. A file may lack counts
for a column, because of another writer or the table's ``write.metadata.metrics.*``. Then nothing is reported. Null,
``[]`` and ``{}`` are not values, as in an inferred schema.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.expressions import parser
from pyiceberg.expressions.visitors import _StrictMetricsEvaluator
from pyiceberg.schema import Schema, index_by_id, index_by_name

from airflow_provider_rfr.exceptions import ConfigurationError, SchemaEvolutionError
from airflow_provider_rfr.lake.catalog import ensure_namespace, load_table
from airflow_provider_rfr.lake.commit_event import EVENT_KEY
from airflow_provider_rfr.lake.commits import (
    AddedManifest,
    TableTransaction,
    TargetChangedError,
    commit_strictly,
    newest_summary_with,
    stage_append,
    stage_overwrite,
    stale_files_are_conflicts,
    summary_of,
)
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.files import renewal_time
from airflow_provider_rfr.lake.row_filter import RowFilter
from airflow_provider_rfr.lake.schemas import (
    JSON_TEXT_DOC,
    SYSTEM_COLUMNS,
    column_doc,
    counted,
    full_names,
    iceberg_type,
    json_text_field,
    listed,
    move_column,
    target_schema,
    with_system_columns,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

log = logging.getLogger(__name__)
# PyIceberg warns, with a path of this package, where a part that is replaced has no rows yet.
warnings.filterwarnings("ignore", "Delete operation did not match any records", UserWarning)

PUBLISHED_PROPERTY = "rfr.published"
LEDGER_KEY, GENERATION_KEY, SCHEMA_CHANGES_KEY = "rfr.ledger", "rfr.generation", "rfr.schema-changes"
NO_VALUE = "got no value"
Policy = Literal["evolve", "fail"]
_Path = tuple[str, ...]
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Publication:
    """A commit on the target.

    :ivar summary: its properties; empty when the snapshot has expired
    """

    generation: int
    snapshot_id: int
    summary: Mapping[str, str] = field(default_factory=dict)


class _ChangeKind(str, Enum):
    """A kind of change of one column. ``REPLACE`` drops it and adds one of that name under a new field id."""

    ADD = "add"
    WIDEN = "widen"
    REPLACE = "replace"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class _ColumnChange:
    """One change of one column.

    :ivar path: names from the table's root; a list's inner column is below ``element``
    :ivar type: the column's new type; of a dropped column, its old one
    :ivar old: the type before, of a column that is replaced
    """

    kind: _ChangeKind
    path: _Path
    type: iceberg.IcebergType
    doc: str | None = None
    old: iceberg.IcebergType | None = None
    required: bool = False

    def __str__(self) -> str:
        old = "" if self.old is None else f"{_brief(self.old)} by "
        return f"{self.kind.value} {'.'.join(self.path)} {old}{_brief(self.type)}"


@dataclass(frozen=True, slots=True)
class EvolutionPlan:
    """The changes that make the rows fit.

    :ivar changes: to apply in this order; empty when the table takes the rows as it is
    :ivar rows: the columns to read the rows as: the wanted ones, in the table's type where that holds more
    """

    changes: tuple[_ColumnChange, ...]
    rows: pa.Schema

    def __str__(self) -> str:
        shown = [str(change) for change in self.changes[:_SHOWN]]
        more = len(self.changes) - len(shown)
        return "; ".join([*shown, f"and {more} more"] if more else shown)


@dataclass(slots=True)
class _Findings:
    """The changes and problems that the comparison has found so far.

    :ivar inferred: as in :func:`plan_evolution`; ``pinned``, too
    :ivar stale: columns of the table that the rows lack, by path
    """

    inferred: Collection[str]
    pinned: Mapping[int, str] | None
    changes: list[_ColumnChange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stale: dict[_Path, iceberg.NestedField] = field(default_factory=dict)

    def reject(self, path: _Path, problem: str) -> None:
        self.problems.append(f"{'.'.join(path)}: {problem}")

    def drop(self, change: _ColumnChange, column: iceberg.NestedField, problem: str) -> None:
        """Add a change that drops the table's column; or the problem, if the column is still needed."""
        if self.pinned is None:
            self.reject(change.path, problem)
            return
        ids = index_by_id(Schema(column))  # of the column and of all inside it
        if reasons := sorted({self.pinned[number] for number in ids if number in self.pinned}):
            self.reject(change.path, f"{problem}, and the old column can't be dropped: {', '.join(reasons)}")
        else:
            self.changes.append(change)


def plan_evolution(
    current: Schema,
    wanted: pa.Schema,
    policy: Policy,
    *,
    inferred: Collection[str] = (),
    pinned: Mapping[int, str] | None = None,
) -> EvolutionPlan:
    """Compare the table's schema with the wanted columns of rows (without system columns; those are added).

    :param inferred: columns that were inferred from rows: as a string column they take everything as text, as no user
        asked for another type
    :param pinned: where the commit replaces every row: why a column can't be dropped, by field id
        (:func:`pinned_columns`). None where rows stay in the table, so that columns are only added and widened
    :raises SchemaEvolutionError: naming each column that the table can't take and what to do; or, under ``fail``,
        each change that would be needed
    """
    findings = _Findings(inferred, pinned)
    columns = with_system_columns(wanted)
    fields = list(_columns(current.fields, columns, (), findings))
    # Columns that rows lack: some are required, or have a name that the rows use for another column.
    taken = {name.casefold(): name for column in columns for name in full_names(column.name, column.type)}
    for path, column in findings.stale.items():
        prefix = "".join(f"{name}." for name in path[:-1])
        names = [(prefix + name).casefold() for name in index_by_name(Schema(column))]
        clash = next((taken[name] for name in names if name in taken), None)
        if clash is not None:
            problem = f"the table has {'.'.join(path)!r}, the rows have {clash!r}, and engines can't tell them apart"
            findings.drop(_ColumnChange(_ChangeKind.DROP, path, column.field_type), column, problem)
        elif column.required:
            findings.reject(path, "the table requires a value and the rows have no such column")
    if findings.problems:
        why, instead = "", "change the table"
        if pinned is None:
            why = ": the publish keeps other rows of it, so a column can be added and widened, not replaced"
            instead = "replace the whole table once (mode: replace without replace_where)"
        raise SchemaEvolutionError(
            f"the table can't take the new schema ({'; '.join(findings.problems)}){why}. Declare the table's type for "
            f"these columns, {instead}, or publish into a new table; what was fetched is kept"
        )
    plan = EvolutionPlan(tuple(findings.changes), pa.schema(fields[: len(wanted)]))
    if policy == "fail" and plan.changes:
        raise SchemaEvolutionError(
            f"the table's schema would have to change ({plan}) and on_schema_change is fail; "
            "set it to evolve, or change the table or the declared schema"
        )
    return plan


def pinned_columns(metadata: TableMetadata) -> Mapping[int, str]:
    """Return the reason why a column can't be dropped, by field id: the table itself refers to it."""
    # Every partition spec counts: readers of older snapshots need theirs.
    specs = (field.source_id for spec in metadata.partition_specs for field in spec.fields)
    orders = [
        sort_order for sort_order in metadata.sort_orders if sort_order.order_id == metadata.default_sort_order_id
    ]
    return {
        **dict.fromkeys(specs, "the table is, or was, partitioned by it"),
        **{field.source_id: "the table is sorted by it" for order in orders for field in order.fields},
        **dict.fromkeys(metadata.schema().identifier_field_ids, "it identifies the table's rows"),
    }


def apply_evolution(transaction: Transaction, plan: EvolutionPlan) -> None:
    """Stage the plan's changes; the caller commits the transaction."""
    before = transaction.table_metadata.schema()
    temporary_names = {
        change.path: f"_rfr_dropped_{before.find_field('.'.join(change.path)).field_id}"
        for change in plan.changes
        if change.kind in (_ChangeKind.DROP, _ChangeKind.REPLACE)
    }
    if temporary_names:
        # First renamed: PyIceberg adds no column under a name that the same update drops.
        with transaction.update_schema() as update:
            for path, name in temporary_names.items():
                update.rename_column(path, name)
    if not plan.changes:
        return
    # Classified above; and where no row stays, a new column may be required.
    with transaction.update_schema(allow_incompatible_changes=True) as update:
        for path, name in temporary_names.items():
            update.delete_column((*path[:-1], name))
        for change in plan.changes:
            if change.kind is _ChangeKind.WIDEN:
                update.update_column(change.path, field_type=change.type)
            elif change.kind is not _ChangeKind.DROP:
                update.add_column(change.path, change.type, doc=change.doc, required=change.required)
        for path, after in _moves(before, plan):
            move_column(update, path, after)


def _moves(before: Schema, plan: EvolutionPlan) -> Iterator[tuple[_Path, str | None]]:
    """Yield replaced columns in the table's order, each with the name of the column before it; None for the first."""
    dropped = {change.path for change in plan.changes if change.kind is _ChangeKind.DROP}
    replaced = {change.path for change in plan.changes if change.kind is _ChangeKind.REPLACE}
    for parent in sorted({path[:-1] for path in replaced}):
        struct = before.find_type(".".join(parent)) if parent else before.as_struct()
        assert isinstance(struct, iceberg.StructType)
        names = [field.name for field in struct.fields if (*parent, field.name) not in dropped]
        for after, name in zip([None, *names], names, strict=False):
            if (*parent, name) in replaced:
                yield (*parent, name), after


def _columns(
    current: Sequence[iceberg.NestedField], wanted: Iterable[pa.Field], path: _Path, findings: _Findings
) -> Iterator[pa.Field]:
    """Yield the fields to read rows as; add changes and problems to the findings."""
    remaining = {column.name: column for column in current}
    for column in wanted:
        place = (*path, column.name)
        if (present := remaining.pop(column.name, None)) is None:
            new = iceberg_type(column.type)
            findings.changes.append(_ColumnChange(_ChangeKind.ADD, place, new, column_doc(column)))
            yield column
        elif (
            place[0] in findings.inferred
            and present.doc == JSON_TEXT_DOC
            and isinstance(present.field_type, iceberg.StringType)
        ):
            yield json_text_field(column.name)
        elif (field := _typed(present.field_type, column, place, findings)) is not None:
            yield field
        else:
            old, new = present.field_type, iceberg_type(column.type)
            doc = column_doc(column) or (present.doc if present.doc != JSON_TEXT_DOC else None)
            change = _ColumnChange(_ChangeKind.REPLACE, place, new, doc, old, present.required)
            findings.drop(change, present, f"the table has {_brief(old)}, the rows have {_brief(new)}")
            yield column
    findings.stale.update({(*path, name): column for name, column in remaining.items()})


def _typed(current: iceberg.IcebergType, wanted: pa.Field, path: _Path, findings: _Findings) -> pa.Field | None:
    """Return the field to read rows as, where the type stays or widens; else None."""
    if isinstance(current, iceberg.StructType) and pa.types.is_struct(wanted.type):
        fields = list(_columns(current.fields, list(wanted.type), path, findings))
        return wanted.with_type(pa.struct(fields))
    if isinstance(current, iceberg.ListType) and pa.types.is_list(wanted.type):
        element = _typed(current.element_type, wanted.type.value_field, (*path, "element"), findings)
        return None if element is None else wanted.with_type(pa.list_(element))
    new = iceberg_type(wanted.type)
    if new == current:
        return wanted
    # The table's own type, where that holds every value of the wanted one.
    if isinstance(current, iceberg.DoubleType) and wanted.type in (pa.int64(), pa.int32(), pa.float32()):
        return wanted.with_type(pa.float64())
    if isinstance(current, iceberg.LongType) and wanted.type == pa.int32():
        return wanted.with_type(pa.int64())
    if isinstance(current, iceberg.DecimalType) and _widens(new, current):
        return wanted.with_type(pa.decimal128(current.precision, current.scale))
    if isinstance(current, iceberg.StringType) and path[0] in findings.inferred:
        return json_text_field(wanted.name) if pa.types.is_nested(wanted.type) else wanted.with_type(pa.string())
    if not _widens(current, new):
        return None
    findings.changes.append(_ColumnChange(_ChangeKind.WIDEN, path, new))
    return wanted


def _widens(current: iceberg.IcebergType, new: iceberg.IcebergType) -> bool:
    if isinstance(current, iceberg.DecimalType) and isinstance(new, iceberg.DecimalType):
        return current.scale == new.scale and current.precision < new.precision
    wider = ((iceberg.IntegerType, iceberg.LongType), (iceberg.FloatType, iceberg.DoubleType))
    return (type(current), type(new)) in wider


def _brief(kind: iceberg.IcebergType) -> str:
    if isinstance(kind, iceberg.ListType):
        return f"list<{_brief(kind.element_type)}>"
    return "struct" if isinstance(kind, iceberg.StructType) else str(kind)


class TargetTable:
    """The target as it was last loaded, or the table that it will be."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self.name = name
        self._table: Table | None = None
        self._layout: FileLayout | None = None
        self._added = AddedManifest()
        self._no_values: list[str] | None = None
        self._location: str | None = None
        self.reload()

    def reload(self) -> None:
        self._table = load_table(self._catalog, self.name)
        self._renewal = math.inf if self._table is None else renewal_time(self._table)

    def renew_credentials(self) -> None:
        """Load the table again where the credentials of its files are old."""
        if time.monotonic() >= self._renewal:
            self.reload()

    @property
    def columns(self) -> str | None:
        """Return a text that differs when the table's columns or its partitioning do; None without a table."""
        if self._table is None:
            return None
        metadata = self._table.metadata
        return f"{metadata.schema().as_struct().model_dump_json()} {metadata.spec().model_dump_json()}"

    def published(self, ledger: str) -> Publication | None:
        """Return the newest publication from this ledger."""
        if self._table is None:
            return None
        # The property names the last publication of all, even if its snapshot has expired; snapshots name the others.
        parts = self._table.metadata.properties.get(PUBLISHED_PROPERTY, "").split(":")
        if len(parts) == 3 and parts[0] == ledger:
            snapshot_id = int(parts[2])
            return Publication(int(parts[1]), snapshot_id, summary_of(self._table.snapshot_by_id(snapshot_id)))
        summary = newest_summary_with(self._table, LEDGER_KEY, ledger)
        if summary is None:
            return None
        return Publication(int(summary[GENERATION_KEY]), int(summary["snapshot-id"]), summary)

    def prepare(
        self,
        wanted: pa.Schema,
        policy: Policy,
        *,
        inferred: bool,
        rows_stay: bool,
        declared: Collection[str] = (),
    ) -> FileTarget:
        """Plan the table's schema for these columns, so that files can be written for it.

        :param wanted: columns of the rows, without system columns
        :param inferred: the columns were inferred from the rows, apart from those in ``declared``
        :param rows_stay: the commit keeps rows of the table, so their columns can't be replaced
        :raises SchemaEvolutionError: the table can't take the columns
        """
        # The commit needs them, too, to plan again on a table that was reloaded.
        self._wanted, self._policy, self._rows_stay = wanted, policy, rows_stay
        self._inferred = frozenset(wanted.names).difference(declared) if inferred else frozenset()
        # Both are of these files; a manifest of an earlier plan would name others.
        self._added, self._no_values, self._location = AddedManifest(), None, None
        transaction, evolution = self._begin()
        self._location = transaction.table_metadata.location
        target = FileTarget.of(transaction.table_metadata, transaction._table.io, rows=evolution.rows)
        self._layout = target.layout
        return target

    def commit(
        self,
        files: Sequence[DataFile],
        publication: tuple[str, int],
        *,
        mode: str,
        replace_where: str | None,
        summary: Mapping[str, str],
        sent: Collection[str] = (),
    ) -> Publication:
        """Show the files, in one commit.

        :param publication: ledger and generation
        :param sent: fields that the records have, by path, with or without a value
        :raises CommitConflictError: the table changed since it was loaded; nothing was written
        :raises TargetChangedError: its columns changed since the files were planned
        :raises SchemaEvolutionError: the table can't take the columns, or may not change; nothing was written
        """
        transaction, evolution = self._begin()
        now, planned = transaction.table_metadata, self._layout
        assert planned is not None
        # Files name columns by the ids of the first commit. A column that others added meanwhile is no conflict: in
        # files without it, it reads as NULL.
        by_id = {column.field_id: column for column in now.schema().fields}
        same = all(by_id.get(column.field_id) == column for column in planned.schema.fields)
        if not same or now.spec().fields != planned.spec.fields:
            raise TargetChangedError(f"the columns or the partitioning of {self.name} changed while files were written")
        if mode != "append" or self._no_values is None:
            # An append asks once: reading all manifests at each try would lose against a writer that commits often.
            self._no_values = self._emptied(now.schema(), files, replace_where, sent)
        emptied = self._no_values
        if changes := "; ".join(filter(None, (str(evolution), _described(emptied)))):
            summary = {**summary, SCHEMA_CHANGES_KEY: changes}
        with stale_files_are_conflicts(self._catalog, self.name, self._table):
            snapshot_id = self._stage(transaction, files, mode, replace_where, summary)
        # With the snapshot in one commit, so that no crash leaves rows that the property does not know of.
        transaction.set_properties({PUBLISHED_PROPERTY: ":".join(map(str, (*publication, snapshot_id)))})
        commit_strictly(transaction)
        if evolution.changes:
            log.info("%s: the schema changed: %s", self.name, evolution)
        if emptied:
            log.warning("%s: %s", self.name, _described(emptied))
        return Publication(publication[1], snapshot_id, summary)

    def _stage(
        self,
        transaction: Transaction,
        files: Sequence[DataFile],
        mode: str,
        replace_where: str | None,
        summary: Mapping[str, str],
    ) -> int:
        """Add the snapshot to the transaction; return its id."""
        if mode == "append":
            # Other writers may append all the time, so a repeated try must cost as little as possible.
            return stage_append(transaction, files, summary, self._added)
        if replace_where is None:
            old = self._table.scan().plan_files() if self._table is not None else ()
            return stage_overwrite(transaction, (task.file for task in old), files, summary)
        # PyIceberg replaces by a filter in two snapshots of one commit; only the second says what changed.
        silent = {key: value for key, value in summary.items() if key not in (EVENT_KEY, SCHEMA_CHANGES_KEY)}
        transaction.delete(replace_where, snapshot_properties=silent)
        return stage_append(transaction, files, summary)

    def _emptied(
        self, after: Schema, files: Sequence[DataFile], replace_where: str | None, sent: Collection[str]
    ) -> list[str]:
        """Return the columns that have values in the table, or in the replaced part, but none in the files.

        If rows stay, a field that is null in all records is no change: a few rows may lack a value.

        :raises SchemaEvolutionError: columns would lose their values, and the policy is ``fail``
        """
        if self._table is None or not files:
            return []
        columns, has = self._table.schema().fields, _columns_with_values(files)
        own = (column for column in columns if column.name not in SYSTEM_COLUMNS.names)
        if all(has.get(field_id, True) for column in own for field_id in _leaves(column)):
            # No column lacks all values, so the manifests of the table need not be read.
            return []
        had = _columns_with_values(self._live_files(replace_where))
        emptied = list(_emptied_columns(columns, had, after.fields, has))
        if self._rows_stay:
            emptied = [name for name in emptied if name not in sent]
        if emptied and self._policy == "fail":
            become = "would get no value" if self._rows_stay else "would become empty"
            raise SchemaEvolutionError(
                f"{counted(emptied, 'column')} of {self.name} {become}: {listed(emptied)}; and on_schema_change is"
                " fail: set it to evolve, or correct the source or the declared schema"
            )
        return emptied

    def _live_files(self, replace_where: str | None) -> Iterator[DataFile]:
        """Yield the table's data files; of a part, only files without other rows."""
        table = self._table
        assert table is not None
        if replace_where is None:
            yield from (task.file for task in table.scan().plan_files())
            return
        part = RowFilter(replace_where, table.schema())
        try:
            part.bound()
        except ConfigurationError:
            return  # the rows bring the filter's column, so no row of the table is of the part
        # Strict: only a file whose bounds prove that every row matches. The counts of another one are not the part's.
        is_of_part = _StrictMetricsEvaluator(table.schema(), parser.parse(replace_where)).eval
        for task in table.scan(row_filter=replace_where).plan_files():
            if is_of_part(task.file):
                yield task.file

    def _begin(self) -> tuple[Transaction, EvolutionPlan]:
        """Return a transaction that has the schema changes staged, or that creates the table."""
        if self._table is None:
            ensure_namespace(self._catalog, self.name)
            schema, properties = target_schema(self._wanted), dict(TABLE_PROPERTIES)
            # The files are written to where the catalog wanted the table first. Some catalogs choose another location
            # each time, and vend credentials for that alone.
            creation = self._catalog.create_table_transaction(
                self.name, schema, location=self._location, properties=properties
            )
            return creation, EvolutionPlan((), self._wanted)
        transaction = TableTransaction(self._table)
        metadata = transaction.table_metadata
        pinned = None if self._rows_stay else pinned_columns(metadata)
        plan = plan_evolution(metadata.schema(), self._wanted, self._policy, inferred=self._inferred, pinned=pinned)
        apply_evolution(transaction, plan)
        return transaction, plan


def _columns_with_values(files: Iterable[DataFile]) -> Mapping[int, bool]:
    """Return by field id whether any row has a value. Columns without counts in any file are left out."""
    has_values: dict[int, bool] = {}
    for file in files:
        nulls = file.null_value_counts or {}
        for field_id, count in (file.value_counts or {}).items():
            if field_id in nulls:
                has_values[field_id] = has_values.get(field_id, False) or count > nulls[field_id]
    return has_values


def _emptied_columns(
    before: Sequence[iceberg.NestedField],
    had: Mapping[int, bool],
    after: Sequence[iceberg.NestedField],
    has: Mapping[int, bool],
    path: str = "",
) -> Iterator[str]:
    """Yield the columns of both schemas, by path, that had a value before and have none after.

    :param had: as :func:`_columns_with_values` returns it
    """
    now = {column.name: column for column in after}
    for column in before:
        new = now.get(column.name)
        if new is None or (not path and column.name in SYSTEM_COLUMNS.names):
            continue
        # Where counts are missing, nothing is reported: before, such a column counts as empty, and after, as filled.
        if not any(had.get(field_id, False) for field_id in _leaves(column)):
            continue
        if not any(has.get(field_id, True) for field_id in _leaves(new)):
            yield path + column.name
        else:
            yield from _emptied_columns(_inner(column), had, _inner(new), has, f"{path}{column.name}.")


def _described(names: Collection[str]) -> str:
    """Return a text such as ``2 columns got no value: open, tags``; empty for no names."""
    return f"{counted(names, 'column')} {NO_VALUE}: {listed(names)}" if names else ""


def _leaves(column: iceberg.NestedField) -> Iterator[int]:
    """Yield the ids of a column's innermost fields, which hold the values."""
    inner = _inner(column)
    if not inner:
        yield column.field_id
    for child in inner:
        yield from _leaves(child)


def _inner(column: iceberg.NestedField) -> Sequence[iceberg.NestedField]:
    kind = column.field_type
    if isinstance(kind, iceberg.ListType):
        return (kind.element_field,)
    if isinstance(kind, iceberg.MapType):
        return kind.key_field, kind.value_field
    return kind.fields if isinstance(kind, iceberg.StructType) else ()
