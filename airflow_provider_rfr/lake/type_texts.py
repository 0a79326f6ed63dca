"""Iceberg's types and Spark SQL's names of them, in the one way in which declarations write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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
    UUIDType,
)

from airflow_provider_rfr.exceptions import ConfigurationError

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
        return ConfigurationError("type", f"{self._text[:80]!r} is no type of a table", "write e.g. bigint")

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
