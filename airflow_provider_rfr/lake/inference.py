"""The columns of records: inferred from values, or declared as a JSON schema; and tables cast to them.

What was seen is kept as a set of kinds at each place, and sets are joined, so the result does not depend on how records
were split or in which order they came. Types are chosen once, at the end. Text stays text. A field is a column once it
held a value; null, ``[]`` and ``{}`` tell no type. Columns are in alphabetical order.

In a declared schema (draft 07) every column is optional. What has no fixed shape becomes a string column of JSON text;
``format: decimal(p,s)`` makes a decimal column. Tables are cast by name, nested fields included, because Arrow's own
cast matches struct fields by position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_rfr.exceptions import ConfigurationError, SchemaError
from airflow_provider_rfr.lake.types import (
    JSON_TEXT,
    TIMESTAMP,
    check_columns,
    check_names,
    is_json_text,
    json_text_field,
    with_distinct_names,
)

_MAX_DEPTH = 16
"""Objects and lists further down are kept as JSON text."""

_MAX_FIELDS = 1000
"""An inner object with more different fields is a map by nature, and kept as JSON text."""

_BLOCK_BYTES = 64 * 1024 * 1024
_BEYOND_INT64 = 2.0**63
_NESTED = frozenset({"array", "object", "deep"})
_KINDS = {bool: "boolean", float: "number", str: "string"}


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """What was seen at one place of the records; at the root, the records themselves.

    :ivar kinds: of ``boolean integer bigint number string array object deep``; never null; ``number`` includes
        ``integer``. ``bigint`` is an integer beyond 64 bits, ``deep`` anything nested below :data:`_MAX_DEPTH`
    :ivar fields: of the objects among them
    :ivar items: of the lists among them
    """

    kinds: frozenset[str] = frozenset()
    fields: Mapping[str, InferredSchema] = field(default_factory=dict)
    items: InferredSchema | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON; the same for equal schemas."""
        inner = {name: self.fields[name].to_json() for name in sorted(self.fields)}
        items = None if self.items is None else self.items.to_json()
        return {"kinds": sorted(self.kinds), "fields": inner, "items": items}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InferredSchema:
        """Read :meth:`to_json`."""
        fields = {name: cls.from_json(inner) for name, inner in value["fields"].items()}
        items = None if value["items"] is None else cls.from_json(value["items"])
        return cls(frozenset(value["kinds"]), fields, items)

    def to_arrow(self) -> pa.Schema:
        """The columns; none where no record had a value.

        Values that disagree become text: numbers and booleans among strings by a string column, which keeps strings
        as they are; objects or lists among others by a column of JSON texts. An integer beyond 64 bits makes its
        column a string, which is lossless where a double would round ids. An object beside a field whose name is the
        way into it (``a.b`` beside ``a: {b}``) is kept as JSON text.

        :raises ConfigurationError: names that differ by case only, or a system column's name
        """
        columns = [_column(name, self.fields[name], 1) for name in sorted(self.fields)]
        found = [column for column in columns if column is not None]
        check_names([column.name for column in found], "schema", top_level=True)
        return pa.schema(with_distinct_names(found))


def merge(a: InferredSchema, b: InferredSchema) -> InferredSchema:
    """What was seen in either: associative, commutative, and the same value twice changes nothing."""
    fields = dict(a.fields)
    for name, inner in b.fields.items():
        fields[name] = merge(fields[name], inner) if name in fields else inner
    items = merge(a.items, b.items) if a.items is not None and b.items is not None else a.items or b.items
    return InferredSchema(_absorbed(a.kinds | b.kinds), fields, items)


def infer_records(ndjson: bytes) -> InferredSchema:
    """What newline-delimited JSON records hold; a line that is not an object counts for nothing."""
    return reduce(merge, map(_infer_block, _blocks(ndjson)), InferredSchema())


def _blocks(ndjson: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(ndjson):
        end = ndjson.find(b"\n", start + _BLOCK_BYTES)
        end = len(ndjson) if end < 0 else end
        yield ndjson[start:end]
        start = end + 1


def _infer_block(block: bytes) -> InferredSchema:
    # Arrow 26 crashes the process on a record that is a bare null, so every line has to begin an object.
    if block[:1] == b"{" and block.count(b"\n{") == block.count(b"\n"):
        try:
            return _by_arrow(block)
        except (pa.ArrowInvalid, _UndecidedError):
            pass
    return _by_walking(block)


class _UndecidedError(Exception):
    """Arrow's types don't tell what was in the records."""


def _by_arrow(block: bytes) -> InferredSchema:
    options = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    # As in reading rows: Arrow's default pool takes twice as long for the first block.
    table = pj.read_json(
        pa.BufferReader(pa.py_buffer(block)), read_options=options, memory_pool=pa.system_memory_pool()
    )
    fields = {
        name: reduce(merge, [_of_array(chunk, 1) for chunk in column.chunks], InferredSchema())
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return InferredSchema(frozenset({"object"}), fields)


def _of_array(array: pa.Array, depth: int) -> InferredSchema:
    kind = array.type
    if array.null_count == len(array):
        return InferredSchema()
    if pa.types.is_nested(kind) and depth >= _MAX_DEPTH:
        return InferredSchema(frozenset({"deep"}))
    if pa.types.is_struct(kind):
        inner = {item.name: _of_array(array.field(number), depth + 1) for number, item in enumerate(kind)}
        return InferredSchema(frozenset({"object"}), inner)
    if pa.types.is_list(kind):
        return InferredSchema(frozenset({"array"}), items=_of_array(array.values, depth + 1))
    return InferredSchema(frozenset({_scalar_kind(array)}))


def _scalar_kind(array: pa.Array) -> str:
    if pa.types.is_boolean(array.type):
        return "boolean"
    if pa.types.is_int64(array.type):
        return "integer"
    if not pa.types.is_float64(array.type):
        return "string"  # also what Arrow took for a time
    bounds = pc.min_max(array).as_py()
    if max(-bounds["min"], bounds["max"]) >= _BEYOND_INT64:
        raise _UndecidedError  # a double, or an integer that was too long
    return "number"


class _Seen:
    """An :class:`InferredSchema` that grows."""

    __slots__ = ("fields", "items", "kinds")

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, _Seen] = {}
        self.items: _Seen | None = None

    def observe(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is dict or kind is list:
            self._observe_nested(value, depth)
        elif kind is int:
            self.kinds.add("integer" if -(2**63) <= value < 2**63 else "bigint")
        elif value is not None:
            self.kinds.add(_KINDS[kind])

    def _observe_nested(self, value: Any, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            self.kinds.add("deep")
        elif isinstance(value, dict):
            self.kinds.add("object")
            for name, inner in value.items():
                place = self.fields.get(name)
                if place is None:
                    place = self.fields[name] = _Seen()
                place.observe(inner, depth + 1)
        else:
            self.kinds.add("array")
            self.items = self.items or _Seen()
            for inner in value:
                self.items.observe(inner, depth + 1)

    def frozen(self) -> InferredSchema:
        fields = {name: inner.frozen() for name, inner in self.fields.items()}
        return InferredSchema(
            _absorbed(frozenset(self.kinds)), fields, None if self.items is None else self.items.frozen()
        )


def _by_walking(block: bytes) -> InferredSchema:
    root = _Seen()
    for line in block.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            root.observe(record, 0)
    return root.frozen()


def _absorbed(kinds: frozenset[str]) -> frozenset[str]:
    return kinds - {"integer"} if "number" in kinds else kinds


def _column(name: str, seen: InferredSchema, depth: int) -> pa.Field | None:
    """The column for what was seen, None for nothing."""
    if seen.kinds & _NESTED:
        return _nested_column(name, seen, depth)
    if not seen.kinds:
        return None
    if seen.kinds == {"boolean"}:
        return pa.field(name, pa.bool_())
    if seen.kinds == {"integer"}:
        return pa.field(name, pa.int64())
    return pa.field(name, pa.float64() if seen.kinds == {"number"} else pa.string())


def _nested_column(name: str, seen: InferredSchema, depth: int) -> pa.Field | None:
    if len(seen.kinds) > 1 or "deep" in seen.kinds or len(seen.fields) > _MAX_FIELDS:
        return json_text_field(name)
    if seen.items is not None:
        element = _column("element", seen.items, depth + 1)
        return None if element is None else pa.field(name, pa.list_(element))
    inner = [_column(key, seen.fields[key], depth + 1) for key in sorted(seen.fields)]
    found = [column for column in inner if column is not None]
    try:
        check_names([column.name for column in found], name)
    except ConfigurationError:
        return json_text_field(name)
    return pa.field(name, pa.struct(with_distinct_names(found))) if found else None


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's values in the columns, order and types of ``schema``; what the table lacks is null.

    Only lossless casts are made. A required column is checked.

    :raises SchemaError: the table has a column that ``schema`` lacks, lacks one that is required, holds null in one,
        or holds a value that does not fit
    """
    if unknown := sorted(set(table.column_names) - set(schema.names)):
        raise SchemaError(f"columns {', '.join(unknown)} are not in the table that the file is for")
    columns = [_conform_column(table, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _conform_column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
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
    for each in wanted:
        place = f"{path}.{each.name}"
        # field() respects the slice, and leaves the parent's nulls to the mask of the new struct.
        child = pa.nulls(len(array), each.type)
        if each.name in found:
            child = _values(array.field(each.name), each.type, place)
        if not each.nullable and pc.any(pc.and_not(child.is_null(), array.is_null())).as_py():
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


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCALARS = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_NAMED_FORMATS = {"date": pa.date32(), "date-time": TIMESTAMP, "time": pa.time64("us")}
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)", re.ASCII)
_DIGITS = 38
_NAIVE = "timestamp_without_timezone"


def arrow_schema(schema: Mapping[str, Any], name: str = "schema") -> pa.Schema:
    """The columns that a stream's JSON schema declares, in its order.

    :param name: how errors call the document, e.g. ``streams.orders.schema``
    :raises ConfigurationError: it is not a schema, with the path in it; or it declares no usable columns
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
            raise ConfigurationError(path, f"{_short(schema)} is not a schema", "write e.g. {type: string}")
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
            raise ConfigurationError(place, f"{_short(properties)} is not a mapping of columns", "write name: schema")
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
            raise ConfigurationError(f"{path}.type", f"{_short(item)} is not a type", f"one of {', '.join(_TYPES)}")
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
        raise ConfigurationError(f"{path}.format", f"{_short(named)} is not a format")
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
            f"{_short(text)} is not a decimal type",
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
        raise ConfigurationError(path, f"{_short(options)} is not a list of schemas")
    return options


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
