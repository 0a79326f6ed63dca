"""Changes of a table's columns, partitioning and keys, staged in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType

from airflow_provider_rfr.lake.inventory import KEYS
from airflow_provider_rfr.lake.types import parse_partition, partition_text, type_of, type_text

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType

_Operation = Mapping[str, Any]
_Path = tuple[str, ...]
_FORMAT = "format-version"


class ColumnLike(Protocol):
    """A column of a declaration; its type is a canonical text."""

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
    """What becomes of a table besides its rows.

    :ivar updates: batches of operations (``drop``, ``rename``, ``widen``, ``relax``, ``add``, ``move``, ``comment``),
        one schema update each
    :ivar tighten: ``require`` operations, for when no row has a NULL there
    :ivar partitioning: None: as it is
    :ivar keys: None: as they are
    :ivar unset: properties that go
    """

    updates: Sequence[Sequence[_Operation]] = ()
    tighten: Sequence[_Operation] = ()
    partitioning: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unset: Sequence[str] = ()


def new_schema(columns: Sequence[ColumnLike], keys: Sequence[str]) -> Schema:
    """The schema of a new table."""
    numbers = count(1)
    fields = []
    for column in columns:
        number = next(numbers)
        kind = type_of(column.type, lambda: next(numbers))
        fields.append(NestedField(number, column.name, kind, required=column.required, doc=column.comment))
    schema = Schema(*fields)
    return Schema(*fields, identifier_field_ids=[schema.find_field(each).field_id for each in _possible(schema, keys)])


def key_properties(keys: Sequence[str]) -> dict[str, str]:
    """How a key is kept in properties."""
    return {KEYS: json.dumps(list(keys))} if keys else {}


def stage_columns(transaction: Transaction, change: TableChange) -> None:
    """Columns and partitioning as they shall be, but for what only finished rows can show."""
    _leave_partitions(transaction, change.partitioning)
    if change.keys is not None:
        with transaction.update_schema(allow_incompatible_changes=True, case_sensitive=False) as update:
            update.set_identifier_fields()
    for batch in change.updates:
        with transaction.update_schema(allow_incompatible_changes=True, case_sensitive=False) as update:
            for operation in batch:
                _OPERATIONS[operation["op"]](update, operation)
    _come_partitions(transaction, change.partitioning)


def stage_rest(transaction: Transaction, change: TableChange) -> None:
    """Required columns, keys, properties: after the rows are what they shall be."""
    if change.tighten:
        with transaction.update_schema(allow_incompatible_changes=True, case_sensitive=False) as update:
            for operation in change.tighten:
                update.update_column((operation["column"],), required=True)
    if change.keys is not None:
        possible = _possible(transaction.table_metadata.schema(), change.keys)
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            update.set_identifier_fields(*possible)
    properties = {name: value for name, value in change.properties.items() if name != _FORMAT}
    there = transaction.table_metadata.properties
    unset = [name for name in change.unset if name in there]
    if change.keys is not None:
        properties |= key_properties(change.keys)
        unset += [KEYS] if not change.keys and KEYS in there else []
    if unset:
        transaction.remove_properties(*unset)
    _upgrade(transaction, change.properties.get(_FORMAT))
    transaction.set_properties(properties)


def _upgrade(transaction: Transaction, wanted: str | None) -> None:
    """A format only goes up."""
    if wanted is not None and wanted.isdigit() and int(wanted) > transaction.table_metadata.format_version:
        transaction.upgrade_table_version(int(wanted))  # type: ignore[arg-type]


def _possible(schema: Schema, keys: Iterable[str]) -> list[str]:
    """Iceberg takes a key of required columns only; another one is kept in the properties alone."""
    found = [schema.find_field(each, case_sensitive=False) for each in keys]
    return [each.name for each in found] if all(each.required for each in found) else []


def _leave_partitions(transaction: Transaction, wanted: Sequence[str] | None) -> None:
    if wanted is None:
        return
    metadata = transaction.table_metadata
    fields = metadata.spec().fields
    texts = [partition_text(each, metadata.schema()).casefold() for each in fields]
    same = _same_beginning(texts, wanted)
    if same < len(fields):
        with transaction.update_spec() as update:
            for each in fields[same:]:
                update.remove_field(each.name)


def _come_partitions(transaction: Transaction, wanted: Sequence[str] | None) -> None:
    if wanted is None:
        return
    metadata = transaction.table_metadata
    texts = [partition_text(each, metadata.schema()).casefold() for each in metadata.spec().fields]
    same = _same_beginning(texts, wanted)
    if same < len(wanted):
        with transaction.update_spec() as update:
            for text in wanted[same:]:
                part = parse_partition(text)
                column = metadata.schema().find_field(part.column, case_sensitive=False)
                update.add_field(column.name, part.transform)


def _same_beginning(texts: Sequence[str], wanted: Sequence[str]) -> int:
    pairs = zip(texts, (each.casefold() for each in wanted), strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(texts), len(wanted)))


def _drop(update: UpdateSchema, operation: _Operation) -> None:
    update.delete_column((operation["column"],))


def _rename(update: UpdateSchema, operation: _Operation) -> None:
    update.rename_column((operation["column"],), operation["to"])


def _relax(update: UpdateSchema, operation: _Operation) -> None:
    update.make_column_optional((operation["column"],))


def _add(update: UpdateSchema, operation: _Operation) -> None:
    numbers = count(1)
    for each in update._schema.fields:
        # A refresh adds columns to its target by itself; one that is there as it shall be is no mistake.
        same_name = each.name.casefold() == operation["column"].casefold() and each.field_id not in update._deletes
        if same_name and type_text(each.field_type).casefold() == operation["type"].casefold():
            return
    update.add_column((operation["column"],), type_of(operation["type"], lambda: next(numbers)))


def _move(update: UpdateSchema, operation: _Operation) -> None:
    if operation["after"] is None:
        update.move_first((operation["column"],))
    else:
        update.move_after((operation["column"],), (operation["after"],))


def _comment(update: UpdateSchema, operation: _Operation) -> None:
    # None would mean: as it is.
    update.update_column((operation["column"],), doc=operation["comment"] or "")


def _widen(update: UpdateSchema, operation: _Operation) -> None:
    numbers = count(1)
    there = update._schema.find_field(operation["column"], case_sensitive=False)
    _widen_type(update, (there.name,), there.field_type, type_of(operation["type"], lambda: next(numbers)))


def _widen_type(update: UpdateSchema, path: _Path, old: IcebergType, new: IcebergType) -> None:
    """From one type to a wider one; of a struct, field by field, for each has an id of its own."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        _widen_struct(update, path, old, new)
    elif isinstance(old, ListType) and isinstance(new, ListType):
        _widen_type(update, (*path, "element"), old.element_type, new.element_type)
    elif isinstance(old, MapType) and isinstance(new, MapType):
        _widen_type(update, (*path, "value"), old.value_type, new.value_type)
    elif old != new:
        update.update_column(path, field_type=new)


def _widen_struct(update: UpdateSchema, path: _Path, old: StructType, new: StructType) -> None:
    before = {each.name.casefold(): each for each in old.fields}
    names = [each.name for each in old.fields]
    for each in new.fields:
        known = before.get(each.name.casefold())
        if known is None:
            update.add_column((*path, each.name), each.field_type)
            names.append(each.name)
        else:
            _widen_type(update, (*path, known.name), known.field_type, each.field_type)
    for place, each in enumerate(new.fields):
        known = before.get(each.name.casefold())
        name = known.name if known is not None else each.name
        if names[place] != name:
            names.remove(name)
            names.insert(place, name)
            if place:
                update.move_after((*path, name), (*path, names[place - 1]))
            else:
                update.move_first((*path, name))


_OPERATIONS = {
    "drop": _drop,
    "rename": _rename,
    "relax": _relax,
    "add": _add,
    "move": _move,
    "comment": _comment,
    "widen": _widen,
}
