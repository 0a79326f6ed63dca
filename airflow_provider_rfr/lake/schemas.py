"""Schemas of published tables: Arrow and Spark SQL types in Iceberg's terms, system columns, and partitioning.

Also the rules for every published schema: which names columns may have, and how a column of JSON texts is marked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg import transforms
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.types import ColumnType, PartitionTransform, parse_transform, parse_type, quoted

if TYPE_CHECKING:
    from pyiceberg.table.update.schema import UpdateSchema

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

SYSTEM_COLUMNS: Final = pa.schema(
    [
        pa.field("_rfr_generation", pa.int64()),
        pa.field("_rfr_extracted_at", TIMESTAMP),
        pa.field("_rfr_meta", pa.string()),
    ]
)
"""The columns that follow those of the rows in every published table."""
COLUMNS_OF_OTHERS: Final = ("_airbyte_", "_dlt_")
"""Prefixes of the columns that Airbyte and dlt add themselves."""


def is_system_column(name: str) -> bool:
    """Tell whether the column does not come from a source, but is added by this package, Airbyte or dlt."""
    return name in SYSTEM_COLUMNS.names or name.startswith(COLUMNS_OF_OTHERS)


_JSON_TEXT_KEY: Final = b"rfr.json"
_MIXED_TEXT_KEY: Final = b"rfr.mixed"
_LOCAL_TIME_KEY: Final = b"rfr.local-time"

JSON_TEXT_DOC: Final = "JSON text"
"""The comment that marks a table's column as one of JSON texts."""

_SHOWN_NAMES: Final = 20

_FROM_SPARK: Final[dict[str, iceberg.IcebergType]] = {
    "boolean": iceberg.BooleanType(),
    "int": iceberg.IntegerType(),
    "bigint": iceberg.LongType(),
    "float": iceberg.FloatType(),
    "double": iceberg.DoubleType(),
    "date": iceberg.DateType(),
    "timestamp": iceberg.TimestamptzType(),
    "timestamp_ntz": iceberg.TimestampType(),
    "string": iceberg.StringType(),
    "binary": iceberg.BinaryType(),
}
_TO_SPARK: Final = {kind: name for name, kind in _FROM_SPARK.items()}
_FROM_ARROW: Final[dict[pa.DataType, iceberg.IcebergType]] = {
    pa.bool_(): iceberg.BooleanType(),
    pa.int32(): iceberg.IntegerType(),
    pa.int64(): iceberg.LongType(),
    pa.float32(): iceberg.FloatType(),
    pa.float64(): iceberg.DoubleType(),
    pa.string(): iceberg.StringType(),
    pa.large_string(): iceberg.StringType(),
    pa.date32(): iceberg.DateType(),
    pa.time64("us"): iceberg.TimeType(),
    pa.timestamp("us"): iceberg.TimestampType(),
    TIMESTAMP: iceberg.TimestamptzType(),
}
_TO_ARROW: Final = {kind: column for column, kind in reversed(_FROM_ARROW.items())}
_UNREAD: Final = (iceberg.IntegerType, iceberg.FloatType)
"""Types of columns that records are not read into, because their numbers are read as longs and doubles."""
DECLARABLE_TYPES: Final = frozenset(_FROM_ARROW.values())
"""Types that columns of rows can have, besides decimals, lists and structs."""
_TIME_TRANSFORMS: Final[dict[str, transforms.Transform[Any, Any]]] = {
    "years": transforms.YearTransform(),
    "months": transforms.MonthTransform(),
    "days": transforms.DayTransform(),
    "hours": transforms.HourTransform(),
}
_NAME_SUFFIXES: Final = {
    "": "",
    "years": "_year",
    "months": "_month",
    "days": "_day",
    "hours": "_hour",
    "bucket": "_bucket_{size}",
    "truncate": "_trunc_{size}",
}
"""Suffixes that Iceberg adds to a column's name to name a partition field, by transform."""


def type_text(kind: iceberg.IcebergType) -> str:
    """Return the canonical text of a type. Types that Spark SQL has no name for get their Iceberg name."""
    if isinstance(kind, iceberg.DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    if isinstance(kind, iceberg.ListType):
        return f"array<{type_text(kind.element_type)}>"
    if isinstance(kind, iceberg.MapType):
        return f"map<{type_text(kind.key_type)},{type_text(kind.value_type)}>"
    if isinstance(kind, iceberg.StructType):
        return f"struct<{','.join(f'{quoted(field.name)}:{type_text(field.field_type)}' for field in kind.fields)}>"
    if isinstance(kind, iceberg.FixedType):
        return "binary"
    return "string" if isinstance(kind, iceberg.UUIDType) else _TO_SPARK.get(kind, str(kind))


def type_from_text(text: str, ids: Iterator[int] | None = None) -> iceberg.IcebergType:
    """Return the Iceberg type of a Spark SQL text; nested fields, elements and values are optional.

    :param ids: source of the ids of nested fields; None to count from 1
    :raises ConfigurationError: the text is not a type
    """
    return _iceberg_type(parse_type(text), count(1) if ids is None else ids)


def _iceberg_type(kind: ColumnType, ids: Iterator[int]) -> iceberg.IcebergType:
    if kind.name == "decimal":
        return iceberg.DecimalType(*kind.numbers)
    if kind.name == "array":
        number = next(ids)
        return iceberg.ListType(element_id=number, element=_iceberg_type(kind.inner[0], ids), element_required=False)
    if kind.name == "map":
        key_id, value_id = next(ids), next(ids)
        key, value = (_iceberg_type(inner, ids) for inner in kind.inner)
        return iceberg.MapType(key_id=key_id, key_type=key, value_id=value_id, value_type=value, value_required=False)
    if kind.name == "struct":
        fields = zip(kind.fields, kind.inner, strict=True)
        return iceberg.StructType(
            *(iceberg.NestedField(next(ids), name, _iceberg_type(field, ids), required=False) for name, field in fields)
        )
    return _FROM_SPARK[kind.name]


def iceberg_type(kind: pa.DataType, ids: Iterator[int] | None = None) -> iceberg.IcebergType:
    """Return the Iceberg type of an Arrow type; nested fields, elements and values are optional.

    :param ids: source of the ids of nested fields; None to count from 1
    :raises ConfigurationError: Iceberg has no such type
    """
    ids = count(1) if ids is None else ids
    if pa.types.is_struct(kind):
        return iceberg.StructType(*_fields(list(kind), ids))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        number = next(ids)
        return iceberg.ListType(element_id=number, element=iceberg_type(kind.value_type, ids), element_required=False)
    if pa.types.is_decimal128(kind):
        return iceberg.DecimalType(kind.precision, kind.scale)
    if kind not in _FROM_ARROW:
        raise ConfigurationError("schema", f"a table can't hold Arrow's type {kind}")
    return _FROM_ARROW[kind]


def _fields(columns: Sequence[pa.Field], ids: Iterator[int]) -> list[iceberg.NestedField]:
    # Ids of one level first, then those below: the order in which Iceberg itself numbers a new table.
    numbers = [next(ids) for _ in columns]
    return [
        iceberg.NestedField(number, column.name, iceberg_type(column.type, ids), required=False, doc=column_doc(column))
        for number, column in zip(numbers, columns, strict=True)
    ]


def row_column(column: iceberg.NestedField) -> pa.Field | None:
    """Return the Arrow column that records are read as for a table's column; None if they can't be read as its type.

    Fields of a struct that can't be read are left out. A column with a required nested field can't be read either.
    """
    kind = _row_type(column.field_type)
    if kind is None:
        return None
    return json_text_field(column.name) if column.doc == JSON_TEXT_DOC else pa.field(column.name, kind)


def _row_type(kind: iceberg.IcebergType) -> pa.DataType | None:
    if isinstance(kind, iceberg.StructType):
        if any(field.required for field in kind.fields):
            return None
        fields = [field for field in map(row_column, kind.fields) if field is not None]
        return pa.struct(fields) if fields else None
    if isinstance(kind, iceberg.ListType):
        element = None if kind.element_required else _row_type(kind.element_type)
        return None if element is None else pa.list_(element)
    if isinstance(kind, iceberg.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return None if isinstance(kind, _UNREAD) else _TO_ARROW.get(kind)


def column_doc(column: pa.Field) -> str | None:
    return JSON_TEXT_DOC if is_json_text(column) else None


def json_text_field(name: str) -> pa.Field:
    """Return a string column of JSON texts: values of any shape, strings in quotes."""
    return pa.field(name, pa.string(), metadata={_JSON_TEXT_KEY: b"1"})


def is_json_text(column: pa.Field) -> bool:
    """Tell whether the column holds JSON texts instead of plain strings."""
    return _JSON_TEXT_KEY in (column.metadata or {})


def mixed_text_field(name: str) -> pa.Field:
    """Return a string column that keeps strings as they are, and takes objects and lists as JSON texts."""
    return pa.field(name, pa.string(), metadata={_MIXED_TEXT_KEY: b"1"})


def is_mixed_text(column: pa.Field) -> bool:
    """Tell whether the column is one of :func:`mixed_text_field`."""
    return _MIXED_TEXT_KEY in (column.metadata or {})


def local_time_field(column: pa.Field) -> pa.Field:
    """Mark a column of local timestamps, so that values with a UTC offset are refused."""
    return column.with_metadata({**(column.metadata or {}), _LOCAL_TIME_KEY: b"1"})


def is_local_time(column: pa.Field) -> bool:
    """Tell whether the column refuses timestamps with a UTC offset."""
    return _LOCAL_TIME_KEY in (column.metadata or {})


def with_system_columns(rows: pa.Schema) -> pa.Schema:
    """Return the columns of rows, followed by the system columns.

    :raises ConfigurationError: as :func:`check_columns`
    """
    check_columns(list(rows), "schema", top_level=True)
    return pa.schema([*rows, *SYSTEM_COLUMNS])


def target_schema(rows: pa.Schema) -> Schema:
    """Return the Iceberg schema of a new table for such rows, system columns included.

    :raises ConfigurationError: as :func:`check_columns`
    """
    return Schema(*_fields(list(with_system_columns(rows)), count(1)))


def file_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table's data files, with field ids."""
    # Imported here, because this module of PyIceberg takes longer to import than all others together.
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema)


def check_columns(columns: Sequence[pa.Field], path: str, *, top_level: bool = False) -> None:
    """Check that every engine can distinguish the columns by their names.

    :param path: path of the schema, for the error
    :param top_level: the columns share the table with the system columns
    :raises ConfigurationError: an empty name, a system column's, two that differ by case only, or one that is also the
        path to an inner field: ``a.b`` with ``a: {b}``
    """
    _check_names([column.name for column in columns], path, top_level)
    for name, one, other in _clashes(columns):
        raise ConfigurationError(
            path,
            f"{name!r} would be the name of two columns, in {one.name!r} and in {other.name!r}",
            "rename or remove one of them by a transformation: a dot in a name looks like the path to an inner field",
        )


def with_distinct_names(columns: Sequence[pa.Field], path: str, *, top_level: bool = False) -> list[pa.Field]:
    """Return the columns; a struct or list that shares a dotted name with another column becomes JSON text.

    :raises ConfigurationError: a name is empty or a system column's, or two names differ by case only
    """
    _check_names([column.name for column in columns], path, top_level)
    mixed = {column.name for _, *both in _clashes(columns) for column in both if pa.types.is_nested(column.type)}
    return [json_text_field(column.name) if column.name in mixed else column for column in columns]


def full_names(name: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the dotted names by which engines address a column and its nested fields.

    A field inside a list is yielded both with ``element`` in its path and without.
    """
    yield name
    if pa.types.is_list(kind):
        yield from full_names(f"{name}.element", kind.value_type)
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for field in kind:
            yield from full_names(f"{name}.{field.name}", field.type)


def listed(names: Collection[str]) -> str:
    """Return the names in one line, at most the first 20 of them."""
    shown = ", ".join(list(names)[:_SHOWN_NAMES])
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} and {len(names) - _SHOWN_NAMES} more"


def _check_names(names: Sequence[str], path: str, top_level: bool) -> None:
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        if not name:
            raise ConfigurationError(path, "a column has an empty name", "rename the field by a transformation")
        if folded in seen:
            raise ConfigurationError(
                path,
                f"columns {seen[folded]!r} and {name!r} differ by case only",
                "rename or remove one of them by a transformation: most engines can't distinguish them",
            )
        if top_level and folded in SYSTEM_COLUMNS.names:
            raise ConfigurationError(path, f"{name!r} is a system column", "rename the field by a transformation")
        seen[folded] = name


def _clashes(columns: Sequence[pa.Field]) -> Iterator[tuple[str, pa.Field, pa.Field]]:
    """Yield each dotted name that two columns have in common, with both columns."""
    seen: dict[str, pa.Field] = {}
    for column in columns:
        for name in dict.fromkeys(full_names(column.name, column.type)):
            other = seen.setdefault(name.casefold(), column)
            if other is not column:
                yield name, other, column


def move_column(update: UpdateSchema, path: tuple[str, ...], after: str | None) -> None:
    """Stage the move of a column to the place after another one of its struct, or to the first place for None."""
    if after is None:
        update.move_first(path)
    else:
        update.move_after(path, (*path[:-1], after))


def iceberg_transform(transform: PartitionTransform) -> transforms.Transform[Any, Any]:
    if transform.name == "bucket":
        return transforms.BucketTransform(transform.size)
    if transform.name == "truncate":
        return transforms.TruncateTransform(transform.size)
    return _TIME_TRANSFORMS[transform.name] if transform.name else transforms.IdentityTransform()


def partition_spec(texts: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the partitioning of a new table.

    :raises ConfigurationError: a text is not a transform
    """
    fields = []
    for number, text in enumerate(texts, PARTITION_FIELD_ID_START):
        transform = parse_transform(text)
        source = schema.find_field(transform.column, case_sensitive=False)
        name = source.name + _NAME_SUFFIXES[transform.name].format(size=transform.size)
        fields.append(PartitionField(source.field_id, number, iceberg_transform(transform), name))
    return PartitionSpec(*fields)


def partition_texts(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """Return the partitioning of a table in canonical texts."""
    return tuple(
        partition_text(field, schema)
        for field in spec.fields
        if not isinstance(field.transform, transforms.VoidTransform)
    )


def partition_text(field: PartitionField, schema: Schema) -> str:
    """Return the text of one partition field; a transform that declarations don't have gets its Iceberg name."""
    column = schema.find_column_name(field.source_id) or f"#{field.source_id}"
    transform = field.transform
    if isinstance(transform, transforms.BucketTransform):
        return str(PartitionTransform(column, "bucket", transform.num_buckets))
    if isinstance(transform, transforms.TruncateTransform):
        return str(PartitionTransform(column, "truncate", transform.width))
    if isinstance(transform, transforms.IdentityTransform):
        return str(PartitionTransform(column))
    name = next((name for name, kind in _TIME_TRANSFORMS.items() if transform == kind), str(transform))
    return str(PartitionTransform(column, name))
