"""Arrow tables brought into the shape of an Iceberg table's files: by name, nested columns included.

Arrow's own cast matches struct fields by position and fills nothing in, so it would put values under wrong names.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_rfr.exceptions import SchemaError


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's values in the columns, order and types of ``schema``; what the table lacks is null.

    Only lossless casts are made. A required column is checked.

    :raises SchemaError: the table has a column that ``schema`` lacks, lacks one that is required, holds null in one,
        or holds a value that does not fit
    """
    if unknown := sorted(set(table.column_names) - set(schema.names)):
        raise SchemaError(f"columns {', '.join(unknown)} are not in the table that the file is for")
    columns = [_column(table, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        values = pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    else:
        found = table.column(field.name)
        values = pa.chunked_array([_values(chunk, field.type, field.name) for chunk in found.chunks], field.type)
    if not field.nullable and values.null_count:
        raise SchemaError(f"column {field.name} is required and {values.null_count} rows have no value for it")
    return values


def _values(array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    if array.type == wanted:
        return array
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        return _struct(array, wanted, path)
    if _is_list(wanted) and _is_list(array.type):
        return _list(array, wanted, path)
    try:
        return pc.cast(array, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {path}: {array.type} does not fit into {wanted}: {error}") from error


def _struct(array: pa.StructArray, wanted: pa.StructType, path: str) -> pa.Array:
    found = {field.name for field in array.type}
    if unknown := sorted(found - {field.name for field in wanted}):
        raise SchemaError(f"columns {', '.join(f'{path}.{name}' for name in unknown)} are not in the table")
    children = []
    for field in wanted:
        place = f"{path}.{field.name}"
        # field() respects the slice, and leaves the parent's nulls to the mask of the new struct.
        child = pa.nulls(len(array), field.type)
        if field.name in found:
            child = _values(array.field(field.name), field.type, place)
        if not field.nullable and pc.any(pc.and_not(child.is_null(), array.is_null())).as_py():
            raise SchemaError(f"column {place} is required and some rows have no value for it")
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())


def _list(array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    large = pa.types.is_large_list(wanted)
    if array.offset:
        array = pa.concat_arrays([array])  # from_arrays() takes no sliced offsets together with a mask
    offsets = array.offsets.cast(pa.int64() if large else pa.int32())
    values = _values(array.values, wanted.value_type, f"{path}.element")
    kind = pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(offsets, values, type=wanted, mask=array.is_null() if array.null_count else None)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
