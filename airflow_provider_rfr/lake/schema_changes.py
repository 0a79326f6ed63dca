"""Definitions of declared tables, and changes of their columns, partitioning and keys in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType

from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES
from airflow_provider_rfr.lake.inventory import KEYS
from airflow_provider_rfr.lake.schemas import (
    iceberg_transform,
    partition_spec,
    partition_text,
    type_from_text,
    type_text,
)
from airflow_provider_rfr.lake.types import parse_transform

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType

_Path = tuple[str, ...]
_FORMAT = "format-version"
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

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
    properties: Mapping[str, str] = field(default_factory=lambda: _NO_PROPERTIES)
    unset: Sequence[str] = ()


def table_definition(
    columns: Sequence[ColumnLike],
    partitioning: Sequence[str] = (),
    keys: Sequence[str] = (),
    properties: Mapping[str, str] = _NO_PROPERTIES,
) -> TableDefinition:
    """Return the schema, partitioning and properties that a table is created with.

    :param partitioning: canonical texts
    :param keys: names of columns
    """
    ids = count(1)
    fields = [
        NestedField(
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
    """Stage required columns, keys, format and properties, after the rows were staged that fulfil them."""
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
    """Return the key's columns as Iceberg's identifier fields, which must be required; none if one of them is not."""
    found = [schema.find_field(key, case_sensitive=False) for key in keys]
    return [field.name for field in found] if all(field.required for field in found) else []


def _kept_partitions(transaction: Transaction, wanted: Sequence[str]) -> int:
    """Count the first partition fields that are the wanted ones already."""
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
            _move(update, path, operation["after"])
        case "comment":
            # None would keep the old comment.
            update.update_column(path, doc=operation["comment"] or "")
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _move(update: UpdateSchema, path: _Path, after: str | None) -> None:
    if after is None:
        update.move_first(path)
    else:
        update.move_after(path, (*path[:-1], after))


def _retype(update: UpdateSchema, path: _Path, old: IcebergType, new: IcebergType) -> None:
    """Change one type to another in place; structs field by field, because each field has an id of its own."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        _retype_struct(update, path, old, new)
    elif isinstance(old, ListType) and isinstance(new, ListType):
        _retype(update, (*path, "element"), old.element_type, new.element_type)
    elif isinstance(old, MapType) and isinstance(new, MapType):
        _retype(update, (*path, "value"), old.value_type, new.value_type)
    elif old != new:
        update.update_column(path, field_type=new)


def _retype_struct(update: UpdateSchema, path: _Path, old: StructType, new: StructType) -> None:
    before = {field.name.casefold(): field for field in old.fields}
    kept = {inner.name.casefold() for inner in new.fields}
    present = [inner.name for name, inner in before.items() if name in kept]
    for dropped in (inner.name for name, inner in before.items() if name not in kept):
        update.delete_column((*path, dropped))
    wanted = []
    for new_field in new.fields:
        known = before.get(new_field.name.casefold())
        if known is None:
            update.add_column((*path, new_field.name), new_field.field_type)
            present.append(new_field.name)
        else:
            _retype(update, (*path, known.name), known.field_type, new_field.field_type)
        wanted.append(new_field.name if known is None else known.name)
    for place, name in enumerate(wanted):
        if present[place] != name:
            present.remove(name)
            present.insert(place, name)
            _move(update, (*path, name), wanted[place - 1] if place else None)
