"""Finds columns that lose all their values, from the counts that Iceberg keeps for each data file. Reads no rows.

A file may lack counts for a column, because of another writer or the table's ``write.metadata.metrics.*``. Then
nothing is reported. Null, ``[]`` and ``{}`` are not values, as in an inferred schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg import types as iceberg

from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS, counted, listed

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

NO_VALUE = "got no value"


def columns_with_values(files: Iterable[DataFile]) -> Mapping[int, bool]:
    """Return by field id whether any row has a value. Columns without counts in any file are left out."""
    has_values: dict[int, bool] = {}
    for file in files:
        nulls = file.null_value_counts or {}
        for field_id, count in (file.value_counts or {}).items():
            if field_id in nulls:
                has_values[field_id] = has_values.get(field_id, False) or count > nulls[field_id]
    return has_values


def without_values(columns: Sequence[iceberg.NestedField], has: Mapping[int, bool]) -> bool:
    """Return True if the counts show a column, other than a system column, without any value."""
    own = [column for column in columns if column.name not in SYSTEM_COLUMNS.names]
    return any(not has.get(field_id, True) for column in own for field_id in _leaves(column))


def emptied_columns(
    before: Sequence[iceberg.NestedField],
    had: Mapping[int, bool],
    after: Sequence[iceberg.NestedField],
    has: Mapping[int, bool],
    path: str = "",
) -> Iterator[str]:
    """Yield the columns of both schemas, by path, that had a value before and have none after.

    :param had: as :func:`columns_with_values` returns it
    """
    now = {column.name: column for column in after}
    for column in before:
        new = now.get(column.name)
        if new is None or (not path and column.name in SYSTEM_COLUMNS.names):
            continue
        if not any(had.get(field_id, False) for field_id in _leaves(column)):
            continue
        if not any(has.get(field_id, True) for field_id in _leaves(new)):
            yield path + column.name
        else:
            yield from emptied_columns(_inner(column), had, _inner(new), has, f"{path}{column.name}.")


def described(names: Collection[str]) -> str:
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
