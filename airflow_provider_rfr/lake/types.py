"""Types and schemas of published tables: Spark SQL's names, Iceberg's types, Arrow's, and partition transforms.

Also the rules for every published schema: names of columns, system columns, and the mark of a JSON text column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from airflow_provider_rfr.exceptions import ConfigurationError

if TYPE_CHECKING:
    from typing import Any

    from pyiceberg.schema import Schema


_NAMED: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
    "string": StringType(),
    "binary": BinaryType(),
}
_NAMES = {kind: name for name, kind in _NAMED.items()}
_TOKEN = re.compile(r"`((?:[^`]|``)+)`|(\w+)|([<>(),:])")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def type_text(kind: IcebergType) -> str:
    """The name of a type. Types that Spark SQL has no name for are shown as Iceberg calls them."""
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    if isinstance(kind, ListType):
        return f"array<{type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.key_type)},{type_text(kind.value_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{_quoted(each.name)}:{type_text(each.field_type)}' for each in kind.fields)}>"
    if isinstance(kind, FixedType):
        return "binary"
    return "string" if isinstance(kind, UUIDType) else _NAMES.get(kind, str(kind))


def type_of(text: str, next_id: Callable[[], int]) -> IcebergType:
    """The type that a canonical text names; everything inside it is optional, and gets a field id.

    :raises ConfigurationError: the text is not canonical
    """
    parser = _Parser(text, next_id)
    kind = parser.type()
    if parser.rest():
        raise parser.wrong()
    return kind


class _Parser:
    def __init__(self, text: str, next_id: Callable[[], int]) -> None:
        self._text = text
        self._tokens: Iterator[re.Match[str]] = _TOKEN.finditer(text)
        self._next_id = next_id
        self._held = next(self._tokens, None)

    def rest(self) -> bool:
        return self._held is not None

    def wrong(self) -> ConfigurationError:
        return ConfigurationError("type", f"{self._text[:80]!r} is not a type of a table", "write e.g. bigint")

    def type(self) -> IcebergType:
        name = self._word()
        if name == "decimal":
            return self._decimal()
        if name == "array":
            return self._list()
        if name == "map":
            return self._map()
        if name == "struct":
            return self._struct()
        if name not in _NAMED:
            raise self.wrong()
        return _NAMED[name]

    def _decimal(self) -> IcebergType:
        self._take("(")
        precision = int(self._word())
        self._take(",")
        scale = int(self._word())
        self._take(")")
        return DecimalType(precision, scale)

    def _list(self) -> IcebergType:
        self._take("<")
        number = self._next_id()
        element = self.type()
        self._take(">")
        return ListType(element_id=number, element=element, element_required=False)

    def _map(self) -> IcebergType:
        self._take("<")
        key_id, value_id = self._next_id(), self._next_id()
        key = self.type()
        self._take(",")
        value = self.type()
        self._take(">")
        return MapType(key_id=key_id, key_type=key, value_id=value_id, value_type=value, value_required=False)

    def _struct(self) -> IcebergType:
        fields = []
        separator = "<"
        while separator != ">":
            self._take(separator)
            name, number = self._word(), self._next_id()
            self._take(":")
            fields.append(NestedField(number, name, self.type(), required=False))
            separator = "," if self._at(",") else ">"
        self._take(">")
        return StructType(*fields)

    def _at(self, sign: str) -> bool:
        return self._held is not None and self._held.group(3) == sign

    def _take(self, sign: str) -> None:
        if not self._at(sign):
            raise self.wrong()
        self._held = next(self._tokens, None)

    def _word(self) -> str:
        found = self._held
        if found is None or found.group(3) is not None:
            raise self.wrong()
        self._held = next(self._tokens, None)
        return found.group(2) if found.group(1) is None else found.group(1).replace("``", "`")


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


_GENERATION = "_rfr_generation"
_EXTRACTED_AT = "_rfr_extracted_at"
_META = "_rfr_meta"

TIMESTAMP = pa.timestamp("us", tz="UTC")

SYSTEM_COLUMNS = pa.schema(
    [pa.field(_GENERATION, pa.int64()), pa.field(_EXTRACTED_AT, TIMESTAMP), pa.field(_META, pa.string())]
)

_MARK = b"rfr.json"

JSON_TEXT = pa.field("", pa.string(), metadata={_MARK: b"1"})
"""A nameless string column of JSON text: any value of any shape, a string in its quotes."""


def json_text_field(name: str) -> pa.Field:
    """A string column whose values are JSON texts."""
    return JSON_TEXT.with_name(name)


def is_json_text(field: pa.Field) -> bool:
    """Whether the column holds JSON texts instead of plain strings."""
    return _MARK in (field.metadata or {})


def check_names(names: Sequence[str], path: str, *, top_level: bool = False) -> None:
    """Refuse names that no engine, or not every engine, could tell apart.

    :raises ConfigurationError: an empty name, two that differ by case only, or a system column's
    """
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        if not name:
            raise ConfigurationError(path, "a column has an empty name", "rename the field by a transformation")
        if folded in seen:
            raise ConfigurationError(
                path,
                f"columns {seen[folded]!r} and {name!r} differ by case only",
                "rename or remove one of them by a transformation: most engines can't tell them apart",
            )
        if top_level and folded in SYSTEM_COLUMNS.names:
            raise ConfigurationError(path, f"{name!r} is a system column", "rename the field by a transformation")
        seen[folded] = name


def check_columns(columns: Sequence[pa.Field], path: str, *, top_level: bool = False) -> None:
    """:func:`check_names`, and no name that is also the path to an inner field: ``a.b`` beside ``a: {b}``.

    :raises ConfigurationError: naming both
    """
    check_names([column.name for column in columns], path, top_level=top_level)
    for name, one, other in _clashes(columns):
        raise ConfigurationError(
            path,
            f"{name!r} would be a name of two columns, in {one.name!r} and in {other.name!r}",
            "rename or remove one of them by a transformation: a dot in a name and the way into an object look alike",
        )


def with_distinct_names(columns: Sequence[pa.Field]) -> list[pa.Field]:
    """The columns; an object or a list that has a name in common with another column is kept as JSON text."""
    mixed = {column.name for _, *both in _clashes(columns) for column in both if pa.types.is_nested(column.type)}
    return [json_text_field(column.name) if column.name in mixed else column for column in columns]


def full_names(name: str, kind: pa.DataType) -> Iterator[str]:
    """The names by which engines reach a column and all that is in it; a list's fields with ``element`` and without."""
    yield name
    if pa.types.is_list(kind):
        yield from full_names(f"{name}.element", kind.value_type)
        kind = kind.value_type
    if pa.types.is_struct(kind):
        for each in kind:
            yield from full_names(f"{name}.{each.name}", each.type)


def _clashes(columns: Sequence[pa.Field]) -> list[tuple[str, pa.Field, pa.Field]]:
    """Names that two columns have in common, with the columns."""
    seen: dict[str, pa.Field] = {}
    found = []
    for column in columns:
        for name in dict.fromkeys(full_names(column.name, column.type)):
            other = seen.setdefault(name.casefold(), column)
            if other is not column:
                found.append((name, other, column))
    return found


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

    :raises ConfigurationError: as :func:`~airflow_provider_rfr.lake.types.check_columns`
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


_TIMES: dict[str, Transform[Any, Any]] = {
    "years": YearTransform(),
    "months": MonthTransform(),
    "days": DayTransform(),
    "hours": HourTransform(),
}
_CALL = re.compile(r"(\w+)\((?:(\d+), )?(.+)\)")


@dataclass(frozen=True, slots=True)
class _Partitioned:
    """One transform of one column. :ivar suffix: what the partition's name has behind the column's"""

    column: str
    transform: Transform[Any, Any]
    suffix: str = ""


def parse_partition(text: str) -> _Partitioned:
    """What a canonical text says.

    :raises ConfigurationError: it is not canonical
    """
    found = _CALL.fullmatch(text)
    if found is None:
        return _Partitioned(_bare(text), IdentityTransform())
    name, size, column = found.group(1), found.group(2), _bare(found.group(3))
    if name in _TIMES and size is None:
        return _Partitioned(column, _TIMES[name], f"_{name[:-1]}")
    if name == "bucket" and size is not None:
        return _Partitioned(column, BucketTransform(int(size)), f"_bucket_{size}")
    if name == "truncate" and size is not None:
        return _Partitioned(column, TruncateTransform(int(size)), f"_trunc_{size}")
    raise ConfigurationError("partitioning", f"{text!r} is not a transform", "write e.g. days(at)")


def partition_spec(texts: Sequence[str], schema: Schema) -> PartitionSpec | None:
    """The partitioning of a new table; None for none."""
    if not texts:
        return None
    fields = []
    for number, text in enumerate(texts):
        part = parse_partition(text)
        source = schema.find_field(part.column, case_sensitive=False)
        name = f"{source.name}{part.suffix}"
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + number, part.transform, name))
    return PartitionSpec(*fields)


def partition_texts(spec: PartitionSpec, schema: Schema) -> tuple[str, ...]:
    """How a table is partitioned."""
    return tuple(
        partition_text(field, schema) for field in spec.fields if not isinstance(field.transform, VoidTransform)
    )


def partition_text(field: PartitionField, schema: Schema) -> str:
    """One partition field; a transform that declarations don't have is shown as Iceberg calls it."""
    name = schema.find_column_name(field.source_id) or f"#{field.source_id}"
    column = name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, BucketTransform):
        return f"bucket({transform.num_buckets}, {column})"
    if isinstance(transform, TruncateTransform):
        return f"truncate({transform.width}, {column})"
    word = next((word for word, kind in _TIMES.items() if transform == kind), str(transform))
    return f"{word}({column})"


def _bare(name: str) -> str:
    quoted = len(name) > 2 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if quoted else name
