"""Declared JSON schemas (draft 07, as connectors write them) to Arrow schemas.

Every column is optional: an API that leaves a field out is no reason to stop. What has no fixed shape (an object
without properties, an array without items, alternatives that disagree) becomes a string column of JSON text.

``format: decimal(p,s)`` makes a decimal column of numbers, or of texts that hold numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.columns import JSON_TEXT, TIMESTAMP, check_columns, is_json_text

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCALARS = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_NAMED_FORMATS = {"date": pa.date32(), "date-time": TIMESTAMP, "time": pa.time64("us")}
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)", re.ASCII)
_DIGITS = 38
_NAIVE = "timestamp_without_timezone"


def arrow_schema(schema: Mapping[str, Any], name: str = "schema") -> pa.Schema:
    """The columns that a stream's JSON schema declares, in its order.

    :param name: how errors call the document, e.g. ``streams.orders.schema``
    :raises ConfigurationError: it is no schema, with the path in it; or it declares no usable columns
    """
    found = _Reader(schema, name).column_type(schema, name, ())
    if is_json_text(found) or not pa.types.is_struct(found.type):
        raise ConfigurationError(
            name, "declares no columns", "write an object with properties, or leave the schema out to infer it"
        )
    check_columns(list(found.type), name, top_level=True)
    return pa.schema(list(found.type))


class _Reader:
    def __init__(self, root: Any, name: str) -> None:
        self._root = root
        self._name = name

    def column_type(self, schema: Any, path: str, seen: tuple[str, ...]) -> pa.Field:
        """A field whose name the caller replaces: its type, and the mark of JSON text."""
        if isinstance(schema, bool):
            return JSON_TEXT
        if not isinstance(schema, Mapping):
            raise ConfigurationError(path, f"{_short(schema)} is no schema", "write an object such as {type: string}")
        if "$ref" in schema:
            return self._reference(schema["$ref"], path, seen)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._alternatives(schema[keyword], f"{path}.{keyword}", seen)
        if "allOf" in schema:
            return self._all_of(schema, path, seen)
        kinds = _kinds(schema, path)
        if len(kinds) == 1:
            return self._single(next(iter(kinds)), schema, path, seen)
        return _joined([self._single(kind, schema, path, seen) for kind in sorted(kinds)])

    def _single(self, kind: str, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> pa.Field:
        if kind == "object":
            return self._object(schema, path, seen)
        if kind == "array":
            return self._array(schema, path, seen)
        return _field(_scalar(kind, schema, path))

    def _object(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> pa.Field:
        properties = schema.get("properties", {})
        place = f"{path}.properties"
        if not isinstance(properties, Mapping):
            raise ConfigurationError(place, f"{_short(properties)} is no mapping of columns", "write name: schema")
        if not properties:
            return JSON_TEXT
        columns = [
            self.column_type(inner, f"{place}.{key}", seen).with_name(str(key)) for key, inner in properties.items()
        ]
        check_columns(columns, place)
        return _field(pa.struct(columns))

    def _array(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> pa.Field:
        items = schema.get("items")
        if items is None or isinstance(items, bool | list) or items == {}:
            return JSON_TEXT
        return _field(pa.list_(self.column_type(items, f"{path}.items", seen).with_name("element")))

    def _alternatives(self, options: Any, path: str, seen: tuple[str, ...]) -> pa.Field:
        branches = _branches(options, path)
        found = [
            self.column_type(option, f"{path}[{number}]", seen)
            for number, option in enumerate(branches)
            if not (isinstance(option, Mapping) and option.get("type") == "null")
        ]
        return _joined(found)

    def _all_of(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> pa.Field:
        own = {key: value for key, value in schema.items() if key != "allOf"}
        branches = _branches(schema["allOf"], f"{path}.allOf")
        found = [self.column_type(part, f"{path}.allOf[{n}]", seen) for n, part in enumerate(branches)]
        if "type" in own or "properties" in own:
            found.append(self.column_type(own, path, seen))
        if not all(pa.types.is_struct(field.type) for field in found):
            return _joined(found)
        merged = {inner.name: inner for field in found for inner in field.type}
        check_columns(list(merged.values()), f"{path}.allOf")
        return _field(pa.struct(list(merged.values())))

    def _reference(self, reference: Any, path: str, seen: tuple[str, ...]) -> pa.Field:
        if reference in seen:
            # A recursive structure has no finite columns.
            return JSON_TEXT
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ConfigurationError(f"{path}.$ref", f"{_short(reference)} is outside the schema", "put it inline")
        target = self._root
        for part in reference.lstrip("#").strip("/").split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if key and (not isinstance(target, Mapping) or key not in target):
                raise ConfigurationError(f"{path}.$ref", f"there is no {reference} in the schema")
            target = target[key] if key else target
        return self.column_type(target, path, (*seen, reference))


def _kinds(schema: Mapping[str, Any], path: str) -> frozenset[str]:
    named = schema.get("type")
    if named is None:
        return _implied_kinds(schema)
    listed = named if isinstance(named, list | tuple) else [named]
    for item in listed:
        if item not in _TYPES:
            raise ConfigurationError(f"{path}.type", f"{_short(item)} is no type", f"write one of {', '.join(_TYPES)}")
    return frozenset(listed) - {"null"} or frozenset({"null"})


def _implied_kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    if "properties" in schema:
        return frozenset({"object"})
    if "items" in schema:
        return frozenset({"array"})
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values and all(isinstance(value, str | None) for value in values):
        return frozenset({"string"})
    return frozenset({"null"})


def _scalar(kind: str, schema: Mapping[str, Any], path: str) -> pa.DataType | None:
    if kind == "null":
        return None
    hint = schema.get("airbyte_type")
    if kind == "number" and hint == "integer":
        return pa.int64()
    named = schema.get("format")
    if named is not None and not isinstance(named, str):
        raise ConfigurationError(f"{path}.format", f"{_short(named)} is no format")
    if named is not None and kind != "boolean" and named.startswith("decimal"):
        return _decimal(named, path)
    if kind != "string":
        return _SCALARS[kind]
    if named == "date-time" and hint == _NAIVE:
        return pa.timestamp("us")
    return _NAMED_FORMATS.get(named or "", pa.string())


def _decimal(text: str, path: str) -> pa.DataType:
    found = _DECIMAL.fullmatch(text)
    precision, scale = map(int, found.groups()) if found else (0, 0)
    if not 1 <= precision <= _DIGITS or scale > precision:
        raise ConfigurationError(
            f"{path}.format",
            f"{_short(text)} is no decimal type",
            f"write e.g. decimal(18,4): at most {_DIGITS} digits, of which 4 are behind the point",
        )
    return pa.decimal128(precision, scale)


def _field(kind: pa.DataType | None) -> pa.Field:
    return JSON_TEXT if kind is None else pa.field("", kind)


def _joined(found: Sequence[pa.Field]) -> pa.Field:
    """One column for several alternatives: the only one, the wider number, text for scalars, else JSON text."""
    if not found:
        return JSON_TEXT
    if all(field.equals(found[0], check_metadata=True) for field in found):
        return found[0]
    kinds = {field.type for field in found}
    if any(is_json_text(field) or pa.types.is_nested(field.type) for field in found):
        return JSON_TEXT
    if kinds == {pa.int64(), pa.float64()}:
        return pa.field("", pa.float64())
    return pa.field("", pa.string())


def _branches(options: Any, path: str) -> Sequence[Any]:
    if not isinstance(options, list | tuple) or not options:
        raise ConfigurationError(path, f"{_short(options)} is no list of schemas")
    return options


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
