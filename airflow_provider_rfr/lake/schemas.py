"""Schemas of published tables: Arrow's columns and Iceberg's, and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
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
    TimestampType,
    TimestamptzType,
    TimeType,
)

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.columns import SYSTEM_COLUMNS, check_columns, is_json_text

JSON_TEXT_DOC = "JSON text"
"""The comment, in the table, of a column of JSON texts."""

_PRIMITIVES: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.large_string(): StringType(),
    pa.date32(): DateType(),
    pa.time64("us"): TimeType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
}


def with_system_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of rows with the system columns behind them.

    :raises ConfigurationError: as :func:`~airflow_provider_rfr.lake.columns.check_columns`
    """
    check_columns(list(schema), "schema", top_level=True)
    return pa.schema([*schema, *SYSTEM_COLUMNS])


def target_schema(rows: pa.Schema) -> Schema:
    """The Iceberg schema of a new table for such rows, system columns included, with fresh field ids.

    :raises ConfigurationError: as :func:`with_system_columns`
    """
    numbers = count(1)
    return Schema(*_fields(list(with_system_columns(rows)), lambda: next(numbers)))


def file_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a table's data files, with field ids."""
    # Here, because this module of PyIceberg takes longer to import than all the others together.
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema)


def iceberg_type(kind: pa.DataType, next_id: Callable[[], int]) -> IcebergType:
    """The Iceberg type of an Arrow type; inner fields are optional.

    :raises ConfigurationError: there is none
    """
    if pa.types.is_struct(kind):
        return StructType(*_fields(list(kind), next_id))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        number = next_id()
        return ListType(element_id=number, element=iceberg_type(kind.value_type, next_id), element_required=False)
    if pa.types.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    if kind not in _PRIMITIVES:
        raise ConfigurationError("schema", f"a table can't hold Arrow's type {kind}")
    return _PRIMITIVES[kind]


def _fields(fields: list[pa.Field], next_id: Callable[[], int]) -> list[NestedField]:
    # Ids of one level first, then those below: the order in which Iceberg itself numbers a new table.
    ids = [next_id() for _ in fields]
    return [
        NestedField(number, field.name, iceberg_type(field.type, next_id), required=False, doc=column_doc(field))
        for number, field in zip(ids, fields, strict=True)
    ]


def column_doc(field: pa.Field) -> str | None:
    """The comment of a column in the table."""
    return JSON_TEXT_DOC if is_json_text(field) else None
