"""The columns of records: inferred from their values, or declared as a JSON schema.

Inference collects the set of JSON kinds that occur at each path. Sets are merged, so the result depends neither on the
order of the records nor on how they were split. Types are chosen once, at the end. Strings are never parsed as another
type. A field becomes a column once a record has a value for it; null, ``[]`` and ``{}`` are no values. If all values
are ``[]`` or ``{}``, the field takes the type of the table's column. Columns are in the order that the caller gives,
else in alphabetical order.

In a declared schema (draft 07) every column is optional. A schema without a fixed shape becomes a string column of JSON
text; ``format: decimal(p,s)`` makes a decimal column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.schemas import (
    TIMESTAMP,
    check_columns,
    is_json_text,
    json_text_field,
    with_distinct_names,
)
from airflow_provider_rfr.numbers import BEYOND_INT64, is_int64
from airflow_provider_rfr.text import cut

MAX_DEPTH: Final = 16
"""Objects and lists nested deeper are kept as JSON text."""

Place = tuple[int, int, int]
"""The first appearance of a field: partition, page, and number of fields that appeared before it in that page."""

_MAX_FIELDS: Final = 1000
"""An inner object with more different fields than this counts as a map, and is kept as JSON text."""
_BLOCK_BYTES = 64 * 1024 * 1024
_NESTED: Final = frozenset({"array", "object", "deep"})
_KINDS: Final = {bool: "boolean", float: "number", str: "string"}
_COLUMN_TYPES: Final = {
    frozenset({"boolean"}): pa.bool_(),
    frozenset({"integer"}): pa.int64(),
    frozenset({"number"}): pa.float64(),
}
"""Column types by the kinds of their values; any other set of kinds without nested values becomes a string column."""

_JSON_TEXT: Final = json_text_field("")
_JSON_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCALARS: Final = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_FORMATS: Final = {"date": pa.date32(), "date-time": TIMESTAMP, "time": pa.time64("us")}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)", re.ASCII)
_MAX_DIGITS: Final = 38
_LAST: Final[Place] = (2**63, 0, 0)


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """The kinds of the values at one path of the records; the root describes the records themselves.

    :ivar kinds: some of ``boolean integer bigint number string array object deep``; null has no kind. ``number``
        includes ``integer``, ``bigint`` is an integer beyond 64 bits, ``deep`` anything nested deeper than
        :data:`MAX_DEPTH`
    :ivar fields: the fields of the objects among the values, by name
    :ivar items: the items of all lists among the values, merged; None if there are no lists
    :ivar deletions: at the root, the schema of the records that delete rows, which is kept apart because not all of
        their fields may count; None without any
    """

    kinds: frozenset[str] = frozenset()
    fields: Mapping[str, InferredSchema] = field(default_factory=dict)
    items: InferredSchema | None = None
    deletions: InferredSchema | None = None

    def to_arrow(
        self,
        places: Mapping[str, Place] = {},
        types: Mapping[str, pa.Field] = {},
        present: Mapping[str, pa.Field] = {},
    ) -> pa.Schema:
        """Return the columns. A field for which no record has a value gets none.

        Values of different kinds become text: strings, numbers and booleans share a string column, in which strings
        stay as they are; objects or lists mixed with other kinds make a column of JSON texts. An integer beyond 64 bits
        makes its column a string, because a double would round ids. An object with the same name as the path of another
        field (``a.b`` with ``a: {b}``) is kept as JSON text.

        :param places: first appearances of fields, by path. They give the order; fields without one follow, in
            alphabetical order
        :param types: columns that replace inferred ones, for fields that some record has
        :param present: the table's columns, by name: a field whose only values are ``[]`` or ``{}`` takes its type
            from there
        :raises ConfigurationError: names that differ by case only, or a system column's name
        """
        order, fields = _Order(places), self.with_deletions(None).fields
        candidates = (
            types.get(name) or order.column(name, fields[name], present.get(name)) for name in order.names(fields, "")
        )
        columns = [column for column in candidates if column is not None]
        return pa.schema(with_distinct_names(columns, "schema", top_level=True))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as a JSON value, which :meth:`from_json` reads."""
        value: dict[str, Any] = {"kinds": sorted(self.kinds)} if self.kinds else {}
        if self.fields:
            value["fields"] = {name: inner.to_json() for name, inner in self.fields.items()}
        for name, inner in (("items", self.items), ("deletions", self.deletions)):
            if inner is not None:
                value[name] = inner.to_json()
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> InferredSchema:
        """Return the schema that :meth:`to_json` wrote."""
        fields = {name: cls.from_json(inner) for name, inner in value.get("fields", {}).items()}
        items, deletions = (cls.from_json(value[name]) if name in value else None for name in ("items", "deletions"))
        return cls(frozenset(value.get("kinds", ())), fields, items, deletions)

    def with_deletions(self, names: Collection[str] | None) -> InferredSchema:
        """Return the schema of all records: of those that delete rows, only these fields count; None for all fields."""
        if self.deletions is None:
            return self
        fields = {name: inner for name, inner in self.deletions.fields.items() if names is None or name in names}
        return merge(replace(self, deletions=None), replace(self.deletions, fields=fields))

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the path of every field that some record has, null or not, except the keys of objects used as maps."""
        if self.items is not None:
            yield from self.items.paths(f"{prefix}element.")
        if len(self.fields) <= _MAX_FIELDS or not prefix:
            for name, inner in self.fields.items():
                yield prefix + name
                yield from inner.paths(f"{prefix}{name}.")


def merge(a: InferredSchema, b: InferredSchema) -> InferredSchema:
    """Merge the kinds and fields seen in either schema. The operation is associative, commutative and idempotent."""
    fields = dict(a.fields)
    for name, inner in b.fields.items():
        fields[name] = merge(fields[name], inner) if name in fields else inner
    items, deletions = _merged(a.items, b.items), _merged(a.deletions, b.deletions)
    return InferredSchema(_absorbed(a.kinds | b.kinds), fields, items, deletions)


def _merged(a: InferredSchema | None, b: InferredSchema | None) -> InferredSchema | None:
    return merge(a, b) if a is not None and b is not None else a or b


def infer_records(ndjson: bytes, mark: str | None = None) -> InferredSchema:
    """Infer the schema of newline-delimited JSON records; ignore lines that are not objects.

    :param mark: the field that is true in records that delete rows; None if there are no such records
    """
    if mark is not None and mark.encode() in ndjson:
        lines: dict[bool, list[bytes]] = {True: [], False: []}
        for line in ndjson.split(b"\n"):
            lines[is_marked(line, mark)].append(line)
        if lines[True]:
            kept, gone = (infer_records(b"\n".join(lines[is_deletion])) for is_deletion in (False, True))
            return replace(kept, deletions=gone)
    schema = InferredSchema()
    start = 0
    while start < len(ndjson):
        end = ndjson.find(b"\n", start + _BLOCK_BYTES)
        end = len(ndjson) if end < 0 else end
        schema = merge(schema, _infer_block(ndjson[start:end]))
        start = end + 1
    return schema


def is_marked(line: bytes, mark: str) -> bool:
    """Tell whether the field ``mark`` of a JSON record is true."""
    if mark.encode() not in line:
        return False
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(record, dict) and record.get(mark) is True


def _infer_block(block: bytes) -> InferredSchema:
    # Arrow 26 crashes the process on a record that is a bare null, so every line has to begin an object.
    if block[:1] == b"{" and block.count(b"\n{") == block.count(b"\n"):
        try:
            return _by_arrow(block)
        except pa.ArrowInvalid:
            pass  # some field has values of several kinds, which only the slower Python code accepts
    return _by_walking(block)


def _by_arrow(block: bytes) -> InferredSchema:
    """Infer the schema of a block with Arrow's JSON reader.

    :raises pa.ArrowInvalid: Arrow can't read the records, or its types do not determine the kinds of the values
    """
    options = pj.ReadOptions(use_threads=False, block_size=len(block) + 1)
    # Arrow's default memory pool takes twice as long for the first block.
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
    if pa.types.is_nested(kind) and depth >= MAX_DEPTH:
        return InferredSchema(frozenset({"deep"}))
    if pa.types.is_struct(kind):
        inner = {item.name: _of_array(array.field(number), depth + 1) for number, item in enumerate(kind)}
        return InferredSchema(frozenset({"object"}), inner)
    if pa.types.is_list(kind):
        return InferredSchema(frozenset({"array"}), items=_of_array(array.values, depth + 1))
    if pa.types.is_boolean(kind):
        return InferredSchema(frozenset({"boolean"}))
    if pa.types.is_int64(kind):
        return InferredSchema(frozenset({"integer"}))
    if not pa.types.is_float64(kind):
        return InferredSchema(frozenset({"string"}))  # Arrow reads some strings as timestamps
    bounds = pc.min_max(array).as_py()
    if max(-bounds["min"], bounds["max"]) >= BEYOND_INT64:
        raise pa.ArrowInvalid("a double, or an integer beyond 64 bits that Arrow has rounded")
    return InferredSchema(frozenset({"number"}))


class _GrowingSchema:
    """A mutable :class:`InferredSchema`, to which values are added one by one."""

    __slots__ = ("fields", "items", "kinds")

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, _GrowingSchema] = {}
        self.items: _GrowingSchema | None = None

    def observe(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is int:
            self.kinds.add("integer" if is_int64(value) else "bigint")
        elif kind is not dict and kind is not list:
            if value is not None:
                self.kinds.add(_KINDS[kind])
        elif depth >= MAX_DEPTH:
            self.kinds.add("deep")
        elif kind is dict:
            self.kinds.add("object")
            for name, inner in value.items():
                place = self.fields.get(name)
                if place is None:
                    place = self.fields[name] = _GrowingSchema()
                place.observe(inner, depth + 1)
        else:
            self.kinds.add("array")
            self.items = self.items or _GrowingSchema()
            for inner in value:
                self.items.observe(inner, depth + 1)

    def frozen(self) -> InferredSchema:
        fields = {name: inner.frozen() for name, inner in self.fields.items()}
        items = None if self.items is None else self.items.frozen()
        return InferredSchema(_absorbed(frozenset(self.kinds)), fields, items)


def _by_walking(block: bytes) -> InferredSchema:
    root = _GrowingSchema()
    for line in block.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            root.observe(record, 0)
    return root.frozen()


def _absorbed(kinds: frozenset[str]) -> frozenset[str]:
    # A double column also holds the integers. Done at each merge, so that the order of the records makes no difference.
    return kinds - {"integer"} if "number" in kinds else kinds


@dataclass(frozen=True, slots=True)
class _Order:
    """A builder of ordered columns from inferred schemas.

    :ivar places: first appearances of fields, by path
    """

    places: Mapping[str, Place]

    def names(self, fields: Mapping[str, InferredSchema], prefix: str) -> list[str]:
        return sorted(fields, key=lambda name: (self.places.get(prefix + name, _LAST), name))

    def column(
        self, name: str, seen: InferredSchema, present: pa.Field | None = None, prefix: str = ""
    ) -> pa.Field | None:
        """Return the column for an inferred schema; None if no value was seen.

        :param present: the table's column of this name; None if it has none
        """
        if not seen.kinds:
            return None
        if not seen.kinds & _NESTED:
            return pa.field(name, _COLUMN_TYPES.get(seen.kinds, pa.string()))
        if len(seen.kinds) > 1 or "deep" in seen.kinds or len(seen.fields) > _MAX_FIELDS:
            return json_text_field(name)
        inside = f"{prefix}{name}."
        if seen.items is not None:
            element = self.column("element", seen.items, _element_of(present), inside)
            return _of_empty(name, seen, present) if element is None else pa.field(name, pa.list_(element))
        fields = _fields_of(present)
        candidates = (
            self.column(inner, seen.fields[inner], fields.get(inner), inside)
            for inner in self.names(seen.fields, inside)
        )
        try:
            columns = with_distinct_names([column for column in candidates if column is not None], name)
        except ConfigurationError:
            return json_text_field(name)
        return pa.field(name, pa.struct(columns)) if columns else _of_empty(name, seen, present)


def _of_empty(name: str, seen: InferredSchema, present: pa.Field | None) -> pa.Field | None:
    """Return the column for values that are all ``[]`` or ``{}``: the table's, if that can hold them; else None."""
    if present is None:
        return None
    if pa.types.is_string(present.type):
        return json_text_field(name)
    if seen.items is None:
        return present if pa.types.is_struct(present.type) else None
    return present if pa.types.is_list(present.type) and not seen.items.kinds else None


def _element_of(column: pa.Field | None) -> pa.Field | None:
    """Return the element's field of a column of lists of objects or lists; None for any other column."""
    if column is None or not pa.types.is_list(column.type) or not pa.types.is_nested(column.type.value_type):
        return None
    return column.type.value_field


def _fields_of(column: pa.Field | None) -> Mapping[str, pa.Field]:
    """Return the fields of a struct column, by name; an empty mapping for any other column."""
    if column is None or not pa.types.is_struct(column.type):
        return {}
    return {field.name: field for field in column.type}


def arrow_schema(schema: Mapping[str, Any], name: str = "schema") -> pa.Schema:
    """Return the columns that a stream's JSON schema declares, in its order.

    :param name: name of the document in errors, e.g. ``streams.orders.schema``
    :raises ConfigurationError: it is not a schema, in which case the error has the path; or it declares no usable
        columns
    """
    columns = _SchemaReader(schema).column(schema, name)
    if is_json_text(columns) or not pa.types.is_struct(columns.type):
        raise ConfigurationError(
            name, "declares no columns", "write an object with properties, or leave the schema out to infer it"
        )
    check_columns(list(columns.type), name, top_level=True)
    return pa.schema(list(columns.type))


class _SchemaReader:
    """A converter of parts of a JSON schema to columns without a name, which have a type and the mark of JSON text."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def column(self, schema: Any, path: str, followed: tuple[str, ...] = ()) -> pa.Field:
        """Return the column for a schema.

        :param followed: references on the way to it, to detect a recursive structure
        """
        if isinstance(schema, bool):
            return _JSON_TEXT
        if not isinstance(schema, Mapping):
            raise ConfigurationError(path, f"{_short(schema)} is not a schema", "write e.g. {type: string}")
        if "$ref" in schema:
            return self._reference(schema["$ref"], path, followed)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                alternatives = [
                    self.column(option, place, followed)
                    for place, option in _options(schema[keyword], f"{path}.{keyword}")
                    if not (isinstance(option, Mapping) and option.get("type") == "null")
                ]
                return _joined(alternatives)
        if "allOf" in schema:
            return self._all_of(schema, path, followed)
        return _joined([self._of_kind(kind, schema, path, followed) for kind in sorted(_kinds(schema, path))])

    def _of_kind(self, kind: str, schema: Mapping[str, Any], path: str, followed: tuple[str, ...]) -> pa.Field:
        if kind == "object":
            properties = schema.get("properties", {})
            place = f"{path}.properties"
            if not isinstance(properties, Mapping):
                raise ConfigurationError(
                    place, f"{_short(properties)} is not a mapping of columns", "write name: schema"
                )
            columns = [
                self.column(inner, f"{place}.{key}", followed).with_name(str(key)) for key, inner in properties.items()
            ]
            check_columns(columns, place)
            return pa.field("", pa.struct(columns)) if columns else _JSON_TEXT
        if kind == "array":
            items = schema.get("items")
            if items is None or isinstance(items, bool | list) or items == {}:
                return _JSON_TEXT
            element = self.column(items, f"{path}.items", followed)
            return pa.field("", pa.list_(element.with_name("element")))
        return _JSON_TEXT if kind == "null" else pa.field("", _scalar(kind, schema, path))

    def _all_of(self, schema: Mapping[str, Any], path: str, followed: tuple[str, ...]) -> pa.Field:
        own = {key: value for key, value in schema.items() if key != "allOf"}
        options = _options(schema["allOf"], f"{path}.allOf")
        columns = [self.column(option, place, followed) for place, option in options]
        if "type" in own or "properties" in own:
            columns.append(self.column(own, path, followed))
        if not all(pa.types.is_struct(column.type) for column in columns):
            return _joined(columns)
        merged = {inner.name: inner for column in columns for inner in column.type}
        check_columns(list(merged.values()), f"{path}.allOf")
        return pa.field("", pa.struct(list(merged.values())))

    def _reference(self, reference: Any, path: str, followed: tuple[str, ...]) -> pa.Field:
        if reference in followed:
            return _JSON_TEXT  # a recursive structure has no finite columns
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ConfigurationError(f"{path}.$ref", f"{_short(reference)} is outside the schema", "put it inline")
        target = self._root
        for part in reference.lstrip("#").strip("/").split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if key and (not isinstance(target, Mapping) or key not in target):
                raise ConfigurationError(f"{path}.$ref", f"there is no {reference} in the schema")
            target = target[key] if key else target
        return self.column(target, path, (*followed, reference))


def _kinds(schema: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the JSON types that the schema allows besides null; null alone if it does not restrict the type."""
    named = schema.get("type")
    if named is not None:
        names = named if isinstance(named, list | tuple) else [named]
        for type_name in names:
            if type_name not in _JSON_TYPES:
                raise ConfigurationError(
                    f"{path}.type", f"{_short(type_name)} is not a type", f"one of {', '.join(_JSON_TYPES)}"
                )
        return frozenset(names) - {"null"} or frozenset({"null"})
    if "properties" in schema:
        return frozenset({"object"})
    if "items" in schema:
        return frozenset({"array"})
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    is_text = bool(values) and all(isinstance(value, str | None) for value in values)
    return frozenset({"string" if is_text else "null"})


def _scalar(kind: str, schema: Mapping[str, Any], path: str) -> pa.DataType:
    hint = schema.get("airbyte_type")
    if kind == "number" and hint == "integer":
        return pa.int64()
    named = schema.get("format")
    if named is not None and not isinstance(named, str):
        raise ConfigurationError(f"{path}.format", f"{_short(named)} is not a format")
    if named is not None and kind != "boolean" and named.startswith("decimal"):
        match = _DECIMAL.fullmatch(named)
        precision, scale = map(int, match.groups()) if match else (0, 0)
        if not 1 <= precision <= _MAX_DIGITS or scale > precision:
            raise ConfigurationError(
                f"{path}.format",
                f"{_short(named)} is not a decimal type",
                f"write e.g. decimal(18,4): at most {_MAX_DIGITS} digits, of which 4 are behind the point",
            )
        return pa.decimal128(precision, scale)
    if kind != "string":
        return _SCALARS[kind]
    if named == "date-time" and hint == "timestamp_without_timezone":
        return pa.timestamp("us")
    return _FORMATS.get(named or "", pa.string())


def _joined(alternatives: Sequence[pa.Field]) -> pa.Field:
    """Join alternatives into one column: equal ones as they are, numbers as the wider type, scalars as text, else JSON.

    Without alternatives, the column is JSON text, too.
    """
    if not alternatives:
        return _JSON_TEXT
    if all(column.equals(alternatives[0], check_metadata=True) for column in alternatives):
        return alternatives[0]
    if any(is_json_text(column) or pa.types.is_nested(column.type) for column in alternatives):
        return _JSON_TEXT
    numbers = {column.type for column in alternatives} == {pa.int64(), pa.float64()}
    return pa.field("", pa.float64() if numbers else pa.string())


def _options(schemas: Any, path: str) -> list[tuple[str, Any]]:
    if not isinstance(schemas, list | tuple) or not schemas:
        raise ConfigurationError(path, f"{_short(schemas)} is not a list of schemas")
    return [(f"{path}[{number}]", schema) for number, schema in enumerate(schemas)]


def _short(value: Any) -> str:
    return cut(repr(value), 60)
