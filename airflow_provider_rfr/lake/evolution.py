"""Changes of a table's columns that make new rows fit.

:func:`plan_evolution` compares a published table with the columns of new rows, by name, and returns the changes that
make them fit, or raises an error that says why they can't.

PyIceberg accepts some changes that the table format forbids (a decimal's scale), so changes are classified here. If the
commit replaces every row, a column whose type can't be widened is dropped, and added at its place under a new field id;
older snapshots still read the old one. If rows stay, that is refused.

A column that the new rows lack stays, and is null in them. A required column stays required: writing a file checks
that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema, index_by_id, index_by_name

from airflow_provider_rfr.exceptions import SchemaEvolutionError
from airflow_provider_rfr.lake.schemas import (
    DECLARABLE_TYPES,
    JSON_TEXT_DOC,
    column_doc,
    full_names,
    iceberg_type,
    is_json_text,
    json_text_field,
    mixed_text_field,
    move_column,
    with_system_columns,
)

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyiceberg.table.metadata import TableMetadata

Policy = Literal["evolve", "fail"]
_Path = tuple[str, ...]
_SHOWN = 20


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

    :ivar changes: changes to apply, in this order; empty if the table takes the rows as it is
    :ivar rows: the columns that rows are read as: the wanted ones, with the table's type where that is wider
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
    :ivar declaring_helps: whether a declared type may solve one of the problems
    """

    inferred: Collection[str]
    pinned: Mapping[int, str] | None
    changes: list[_ColumnChange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stale: dict[_Path, iceberg.NestedField] = field(default_factory=dict)
    declaring_helps: bool = False

    def reject(self, path: _Path, problem: str, old: iceberg.IcebergType | None = None) -> None:
        """Add a problem.

        :param old: the table's type, where the rows have another one
        """
        if old is None or _is_declarable(old):
            self.declaring_helps = True
        else:
            problem = f"{problem}, and no stream can declare the table's type"
        self.problems.append(f"{'.'.join(path)}: {problem}")

    def drop(self, change: _ColumnChange, column: iceberg.NestedField, problem: str) -> None:
        """Add a change that drops the table's column; or the problem, if the column is still needed."""
        if self.pinned is None:
            self.reject(change.path, problem, change.old)
            return
        ids = index_by_id(Schema(column))  # of the column and of all inside it
        if reasons := sorted({self.pinned[number] for number in ids if number in self.pinned}):
            pinned = f"{problem}, and the old column can't be dropped: {', '.join(reasons)}"
            self.reject(change.path, pinned, change.old)
        else:
            self.changes.append(change)

    def refusal(self) -> SchemaEvolutionError:
        """Return the error that names all problems."""
        why, remedies = "", ["change the table"]
        if self.pinned is None:
            why = ": the publish keeps other rows of it, so a column can be added and widened, not replaced"
            ways = "an incremental sync by full_refresh, a full refresh by mode: replace without replace_where"
            remedies = [f"replace the whole table once ({ways})"]
        if self.declaring_helps:
            remedies.insert(0, "declare the table's type for these columns")
        remedy = ", ".join([*remedies, "or publish into a new table"])
        return SchemaEvolutionError(
            f"the table can't take the new schema ({'; '.join(self.problems)}){why}."
            f" {remedy[0].upper()}{remedy[1:]}; what was fetched is kept"
        )


def plan_evolution(
    current: Schema,
    wanted: pa.Schema,
    policy: Policy,
    *,
    inferred: Collection[str] = (),
    pinned: Mapping[int, str] | None = None,
    has_rows: bool = True,
) -> EvolutionPlan:
    """Compare the table's schema with the wanted columns of rows (without system columns; those are added).

    :param inferred: columns that were inferred from rows. If the table has a string column of that name, all values
        become text, because no user asked for another type
    :param pinned: if the commit replaces every row: reasons why columns can't be dropped, by field id
        (:func:`pinned_columns`). None if rows stay in the table, so that columns are only added and widened
    :param has_rows: whether any row is written; without one, no required column lacks a value
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
        elif column.required and has_rows:
            findings.reject(path, "the table requires a value and the rows have no such column")
    if findings.problems:
        raise findings.refusal()
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
        # Renamed first, because PyIceberg adds no column under a name that the same update drops.
        with transaction.update_schema() as update:
            for path, name in temporary_names.items():
                update.rename_column(path, name)
    if not plan.changes:
        return
    # Allowed, because plan_evolution has classified the changes; and if no row stays, a new column may be required.
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
    """Yield the fields that rows are read as; add changes and problems to the findings."""
    remaining = {column.name: column for column in current}
    for column in wanted:
        place = (*path, column.name)
        if (present := remaining.pop(column.name, None)) is None:
            new = iceberg_type(column.type)
            findings.changes.append(_ColumnChange(_ChangeKind.ADD, place, new, column_doc(column)))
            yield column
        elif (text := _text_column(present, column)) is not None and place[0] in findings.inferred:
            yield text
        elif (field := _typed(present.field_type, column, place, findings)) is not None:
            yield field
        else:
            old, new = present.field_type, iceberg_type(column.type)
            doc = column_doc(column) or (present.doc if present.doc != JSON_TEXT_DOC else None)
            change = _ColumnChange(_ChangeKind.REPLACE, place, new, doc, old, present.required)
            findings.drop(change, present, f"the table has {_brief(old)}, the rows have {_brief(new)}")
            yield column
    findings.stale.update({(*path, name): column for name, column in remaining.items()})


def _text_column(present: iceberg.NestedField, column: pa.Field) -> pa.Field | None:
    """Return the string column that the rows' column must be read as, to match the table's texts; None for no change.

    In all rows of the table's column, strings have quotes (as JSON texts), or in none.
    """
    if not isinstance(present.field_type, iceberg.StringType):
        return None
    if present.doc == JSON_TEXT_DOC:
        return json_text_field(column.name)
    return mixed_text_field(column.name) if is_json_text(column) else None


def _typed(current: iceberg.IcebergType, wanted: pa.Field, path: _Path, findings: _Findings) -> pa.Field | None:
    """Return the field that rows are read as, if the table's type stays or widens; else None."""
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


def _is_declarable(kind: iceberg.IcebergType) -> bool:
    """Tell whether the columns of a stream can have the type, or one that widens it."""
    if isinstance(kind, iceberg.ListType):
        return _is_declarable(kind.element_type)
    if isinstance(kind, iceberg.StructType):
        return all(_is_declarable(inner.field_type) for inner in kind.fields)
    return isinstance(kind, iceberg.DecimalType) or kind in DECLARABLE_TYPES


def _brief(kind: iceberg.IcebergType) -> str:
    if isinstance(kind, iceberg.ListType):
        return f"list<{_brief(kind.element_type)}>"
    return "struct" if isinstance(kind, iceberg.StructType) else str(kind)
