"""What a published table's schema has to become so that new rows fit, by name; or why it can't.

PyIceberg would accept some changes that the table format forbids (a decimal's scale), so changes are classified here.
A column that the new rows lack is never dropped: it stays, and is null in them. A column that requires a value goes on
requiring it: writing a file checks that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from airflow_provider_rfr.exceptions import SchemaEvolutionError
from airflow_provider_rfr.lake.columns import json_text_field
from airflow_provider_rfr.lake.schemas import column_doc, iceberg_type, with_system_columns

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.update.schema import UpdateSchema

Policy = Literal["evolve", "fail"]
Path = tuple[str, ...]


class ChangeKind(str, Enum):
    """What happens to one column."""

    ADD = "add"
    WIDEN = "widen"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One change of one column.

    :ivar path: names from the table's root; a list's inner column is below ``element``
    :ivar type: the column's new type
    """

    kind: ChangeKind
    path: Path
    type: IcebergType
    doc: str | None = None

    def __str__(self) -> str:
        return f"{self.kind.value} {'.'.join(self.path)} {_brief(self.type)}"


@dataclass(frozen=True, slots=True)
class EvolutionPlan:
    """The changes that make the rows fit.

    :ivar changes: to apply in this order; empty when the table takes the rows as it is
    :ivar rows: the columns to read the rows as: the wanted ones, in the table's type where that holds more
    """

    changes: tuple[SchemaChange, ...]
    rows: pa.Schema


@dataclass(slots=True)
class _Findings:
    changes: list[SchemaChange]
    problems: list[str]
    inferred: bool

    def reject(self, path: Path, problem: str) -> None:
        self.problems.append(f"{'.'.join(path)}: {problem}")


def plan_evolution(current: Schema, wanted: pa.Schema, policy: Policy, *, inferred: bool = False) -> EvolutionPlan:
    """Compare the table's schema with the wanted columns of rows (without system columns; those are added).

    :param inferred: ``wanted`` was inferred from rows. Then a string column goes on taking everything as text, as
        no user asked for another type
    :raises SchemaEvolutionError: naming each column that the table can't take and what to do; or, under ``fail``,
        each change that would be needed
    """
    findings = _Findings([], [], inferred)
    fields = list(_columns(current.fields, with_system_columns(wanted), (), findings))
    if findings.problems:
        raise SchemaEvolutionError(_message(findings.problems))
    if policy == "fail" and findings.changes:
        needed = ", ".join(map(str, findings.changes))
        raise SchemaEvolutionError(
            f"the table's schema would have to change ({needed}) and schema_evolution is fail; "
            "set it to evolve, or change the table or the declared schema"
        )
    return EvolutionPlan(tuple(findings.changes), pa.schema(fields[: len(wanted)]))


def apply_evolution(update: UpdateSchema, plan: EvolutionPlan) -> None:
    """Put the plan's changes into ``transaction.update_schema()``; the caller commits it."""
    for change in plan.changes:
        if change.kind is ChangeKind.ADD:
            update.add_column(change.path, change.type, doc=change.doc)
        else:
            update.update_column(change.path, field_type=change.type)


def _columns(
    current: Iterable[NestedField], wanted: Iterable[pa.Field], path: Path, findings: _Findings
) -> Iterator[pa.Field]:
    known = {field.name: field for field in current}
    folded = {field.name.casefold(): field.name for field in known.values()}
    names = set()
    for field in wanted:
        place = (*path, field.name)
        names.add(field.name)
        other = folded.get(field.name.casefold(), field.name)
        if other != field.name:
            findings.reject(place, f"the table has {other!r}; rename the field by a transformation")
            yield field
        elif field.name in known:
            yield _typed(known[field.name].field_type, field, place, findings)
        else:
            findings.changes.append(SchemaChange(ChangeKind.ADD, place, _new_type(field.type), column_doc(field)))
            yield field
    for name in known.keys() - names:
        if known[name].required:
            findings.reject((*path, name), "the table requires a value and the rows have no such column")


def _typed(current: IcebergType, wanted: pa.Field, path: Path, findings: _Findings) -> pa.Field:
    """Compare two types and return the field to read rows as."""
    if isinstance(current, StructType) and pa.types.is_struct(wanted.type):
        fields = list(_columns(current.fields, list(wanted.type), path, findings))
        return wanted.with_type(pa.struct(fields))
    if isinstance(current, ListType) and pa.types.is_list(wanted.type):
        element = _typed(current.element_type, wanted.type.value_field, (*path, "element"), findings)
        return wanted.with_type(pa.list_(element))
    new = _new_type(wanted.type)
    if new == current:
        return wanted
    if (kept := _kept(current, wanted, findings.inferred)) is not None:
        return kept
    if _widens(current, new):
        findings.changes.append(SchemaChange(ChangeKind.WIDEN, path, new))
    else:
        findings.reject(path, f"the table has {_brief(current)}, the rows have {_brief(new)}")
    return wanted


def _kept(current: IcebergType, wanted: pa.Field, inferred: bool) -> pa.Field | None:
    """The field in the table's own type, where that holds every value of the wanted one."""
    if isinstance(current, DoubleType) and wanted.type in (pa.int64(), pa.int32(), pa.float32()):
        return wanted.with_type(pa.float64())
    if isinstance(current, LongType) and wanted.type == pa.int32():
        return wanted.with_type(pa.int64())
    if isinstance(current, StringType) and inferred:
        return json_text_field(wanted.name) if pa.types.is_nested(wanted.type) else wanted.with_type(pa.string())
    return None


def _widens(current: IcebergType, new: IcebergType) -> bool:
    if isinstance(current, DecimalType) and isinstance(new, DecimalType):
        return current.scale == new.scale and current.precision < new.precision
    return (isinstance(current, IntegerType) and isinstance(new, LongType)) or (
        isinstance(current, FloatType) and isinstance(new, DoubleType)
    )


def _new_type(kind: pa.DataType) -> IcebergType:
    numbers = count(1)
    return iceberg_type(kind, lambda: next(numbers))


def _brief(kind: IcebergType) -> str:
    return "struct" if isinstance(kind, StructType) else "list" if isinstance(kind, ListType) else str(kind)


def _message(problems: list[str]) -> str:
    listed = "; ".join(problems)
    return (
        f"the table can't take the new schema ({listed}). Declare the table's type for these columns, rename the "
        "fields by a transformation, or publish into a new table; what was fetched is kept"
    )
