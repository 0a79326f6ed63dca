"""Conversions between Arrow's and Spark's types of columns, for records that are read into a DataFrame.

A column of JSON texts has the same comment as in a published table. The comment identifies it in a schema that comes
back from Spark, or was taken from such a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError, TypeMismatchError
from airflow_provider_rfr.lake.schemas import JSON_TEXT_DOC, TIMESTAMP, check_columns, is_json_text, json_text_field

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_SPARK_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BooleanType",
    pa.int64(): "LongType",
    pa.float64(): "DoubleType",
    pa.string(): "StringType",
    pa.date32(): "DateType",
    TIMESTAMP: "TimestampType",
    pa.timestamp("us"): "TimestampNTZType",
    # Spark 4.0 has no type for it, and reads no table with such a column.
    pa.time64("us"): "StringType",
}
_READ_AS: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    **dict.fromkeys(("byte", "short", "integer", "long"), pa.int64()),
    **dict.fromkeys(("float", "double"), pa.float64()),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_GIVEN_AS: Final[Mapping[str, pa.DataType]] = {
    **_READ_AS,
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "float": pa.float32(),
}


def spark_schema(columns: pa.Schema) -> StructType:
    """Return the schema of a DataFrame with these columns: the types that Spark reads from a published table."""
    from pyspark.sql.types import StructType

    return StructType([_spark_field(column) for column in columns])


def _spark_field(column: pa.Field) -> StructField:
    from pyspark.sql.types import StructField

    leaf = column
    while pa.types.is_list(leaf.type):
        leaf = leaf.type.value_field
    comment = {"comment": JSON_TEXT_DOC} if is_json_text(leaf) else None
    return StructField(column.name, _spark_type(column.type), metadata=comment)


def _spark_type(kind: pa.DataType) -> DataType:
    from pyspark.sql import types

    if pa.types.is_struct(kind):
        return types.StructType([_spark_field(field) for field in kind])
    if pa.types.is_list(kind):
        return types.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    made: DataType = getattr(types, _SPARK_TYPES[kind])()
    return made


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of a DataFrame as Arrow schemas.

    :ivar read: the columns that JSON is read into, with the marks of JSON texts
    :ivar given: the same columns in the types that batches for Spark have
    """

    read: pa.Schema
    given: pa.Schema

    @classmethod
    def of(cls, schema: StructType) -> RowLayout:
        """Return the layout of a DataFrame's schema.

        :raises ConfigurationError: records can't be read into one of its types, or two columns can't be distinguished
        """
        read, given = (
            pa.schema([_arrow_field(field, leaves, "") for field in schema.fields]) for leaves in (_READ_AS, _GIVEN_AS)
        )
        check_columns(list(read), "schema", top_level=True)
        return cls(read, given)

    def fitted(self, table: pa.Table, place: str) -> pa.Table:
        """Cast rows that were read to the types of batches for Spark.

        :param place: of the rows, for the error
        :raises TypeMismatchError: a number is too large for its column, or a value is missing that may not be
        """
        columns = []
        for field in self.given:
            column = table[field.name]
            if column.null_count and not field.nullable:
                raise TypeMismatchError(f"{place}: {field.name} is null in a record, and NOT NULL in the schema")
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise TypeMismatchError(f"{place}: {field.name}: {error}; give the column a wider type") from None
        return pa.Table.from_arrays(columns, schema=self.given)


def _arrow_field(field: StructField, leaves: Mapping[str, pa.DataType], above: str) -> pa.Field:
    """Return the Arrow field for a field of a Spark schema.

    :param leaves: Arrow types by the names of Spark's types
    :param above: path of the struct that the field belongs to, with a dot at its end; empty for a column
    """
    if above and not field.nullable:
        raise _unreadable(above + field.name, "NOT NULL inside of a column is not checked", "leave NOT NULL out")
    is_json = (field.metadata or {}).get("comment") == JSON_TEXT_DOC
    typed = _typed(field.name, field.dataType, leaves, is_json, above + field.name)
    return typed.with_nullable(field.nullable)


def _typed(name: str, kind: DataType, leaves: Mapping[str, pa.DataType], is_json: bool, path: str) -> pa.Field:
    # The attributes differ by class, and Spark's classes have no type hints.
    spark_type: Any = kind
    type_name = kind.typeName()
    if type_name == "struct":
        return pa.field(name, pa.struct([_arrow_field(field, leaves, f"{path}.") for field in spark_type.fields]))
    if type_name == "array":
        if not spark_type.containsNull:
            raise _unreadable(path, "NOT NULL inside of a column is not checked", "set containsNull")
        return pa.field(name, pa.list_(_typed("element", spark_type.elementType, leaves, is_json, f"{path}.element")))
    if type_name == "decimal":
        return pa.field(name, pa.decimal128(spark_type.precision, spark_type.scale))
    if type_name not in leaves:
        allowed = "write string, boolean, a number, decimal, date, timestamp, timestamp_ntz, array or struct"
        raise _unreadable(path, f"records can't be read into {kind.simpleString()}", allowed)
    return json_text_field(name) if is_json and type_name == "string" else pa.field(name, leaves[type_name])


def _unreadable(path: str, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"schema.{path}", problem, remedy)
