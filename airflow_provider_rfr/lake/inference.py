"""The columns that records have, when nobody declared them.

What was seen is kept as a set of kinds at each place, and sets are joined: so the result does not depend on how
records were split, in which order, or by whom they were looked at. Types are chosen once, at the end.

A text stays a text, whatever it looks like: a column of dates is one value away from a column of texts. A field is a
column once it held something: null, ``[]`` and ``{}`` tell no type. Columns are in alphabetical order, the only one
that all ways of splitting agree on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.columns import check_names, json_text_field, with_distinct_names

MAX_DEPTH = 16
"""Objects and lists further down are kept as JSON text."""

MAX_FIELDS = 1000
"""An inner object with more different fields is a map by nature, and kept as JSON text."""

_BLOCK_BYTES = 64 * 1024 * 1024
_BEYOND_INT64 = 2.0**63
_NESTED = frozenset({"array", "object", "deep"})
_KINDS = {bool: "boolean", float: "number", str: "string"}


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """What was seen at one place of the records; at the root, the records themselves.

    :ivar kinds: of ``boolean integer bigint number string array object deep``; never null; ``number`` includes
        ``integer``. ``bigint`` is an integer beyond 64 bits, ``deep`` anything nested below :data:`MAX_DEPTH`
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
    """What newline-delimited JSON records hold; a line that is no object counts for nothing."""
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
    if pa.types.is_nested(kind) and depth >= MAX_DEPTH:
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
        if depth >= MAX_DEPTH:
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
    if len(seen.kinds) > 1 or "deep" in seen.kinds or len(seen.fields) > MAX_FIELDS:
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
