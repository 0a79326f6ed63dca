"""Columns depend on the records alone, however they were split, or on the schema that a connector declares."""

from __future__ import annotations

import json
import pickle
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake import inference
from airflow_provider_rfr.lake.inference import (
    _MAX_FIELDS,
    MAX_DEPTH,
    InferredSchema,
    arrow_schema,
    infer_records,
    merge,
)
from airflow_provider_rfr.lake.schemas import TIMESTAMP, is_json_text, json_text_field, target_schema
from tests.profile import examples
from tests.unit.messages import raises


def lines(*records: Any) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


def inferred(*values: Any) -> pa.Schema:
    return infer_records(lines(*({"a": value} for value in values))).to_arrow()


JSON = json_text_field("a")


def has_type(field: pa.Field, expected: Any) -> bool:
    """Tell whether a column has the type, or is one of JSON texts if that is expected."""
    kind = JSON.type if expected is JSON else expected
    return field.type == kind and is_json_text(field) is (expected is JSON)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, None], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([1.0], pa.float64()),
        ([True, None], pa.bool_()),
        (["x"], pa.string()),
        (["2026-01-01", "2026-01-02"], pa.string()),
        (["2026-01-01T00:00:00Z"], pa.string()),
        ([1, "x"], pa.string()),
        ([True, 1], pa.string()),
        ([2**63 - 1, -(2**63)], pa.int64()),
        ([2**63], pa.string()),
        ([1, 2**70], pa.string()),
        ([2**70, 0.5], pa.string()),
        ([1e300, 1], pa.float64()),
        ([[], [1], [None, 2]], pa.list_(pa.int64())),
        ([[1], [2.5]], pa.list_(pa.float64())),
        ([{"x": 1}, {"y": "z"}, {}], pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ([[{"b": 1}], [{"a": True}]], pa.list_(pa.struct([("a", pa.bool_()), ("b", pa.int64())]))),
        *((values, JSON) for values in ([{"x": 1}, 5], [[1], {"x": 1}], [[1], "x"], [{"ID": 1, "id": 2}], [{"": 1}])),
        ([{str(number): number for number in range(_MAX_FIELDS + 1)}], JSON),
    ],
)
def test_values_decide_the_type_and_shapes_that_disagree_are_json_text(values: list[Any], expected: Any) -> None:
    assert has_type(inferred(*values).field("a"), expected)


@pytest.mark.parametrize("values", [[None], [[]], [{}], [[None, []]], [{"x": None}, None]])
def test_a_field_that_never_held_something_is_no_column(values: list[Any]) -> None:
    assert inferred(*values).names == []


STRINGS, SIZE = pa.list_(pa.string()), pa.struct([("marks", pa.list_(pa.string())), ("width", pa.int64())])


@pytest.mark.parametrize(
    ("values", "present", "expected"),
    [
        ([[], None], STRINGS, STRINGS),
        ([[None]], STRINGS, STRINGS),
        ([{}, None], SIZE, SIZE),
        ([{"width": 1, "marks": []}], SIZE, SIZE),
        ([{"marks": []}], SIZE, pa.struct([("marks", STRINGS)])),
        ([{"unknown": []}], SIZE, SIZE),
        ([[{"width": 1, "marks": []}], []], pa.list_(SIZE), pa.list_(SIZE)),
        ([[[]]], pa.list_(STRINGS), pa.list_(STRINGS)),
        ([[]], JSON.type, JSON),
        ([{}], JSON.type, JSON),
        *((values, kind, None) for kind in (STRINGS, SIZE, pa.string(), pa.int64()) for values in ([None], [])),
        *((values, pa.int64(), None) for values in ([[]], [{}])),
        ([[]], SIZE, None),
        ([{}], STRINGS, None),
        ([[[]]], STRINGS, None),
        ([[{}]], STRINGS, None),
    ],
)
def test_a_field_that_was_only_empty_has_the_type_of_the_table_s_column(
    values: list[Any], present: pa.DataType, expected: Any
) -> None:
    found = infer_records(lines(*({"a": value} for value in values)))
    columns = found.to_arrow(present={"a": pa.field("a", present), "b": pa.field("b", present)})
    assert columns.names == ([] if expected is None else ["a"])
    assert expected is None or has_type(columns.field("a"), expected)


def test_columns_are_in_the_given_order_and_else_in_alphabetical_order() -> None:
    found = infer_records(lines({"b": 1, "a": {"y": 1, "x": 2}}, {"c": 1}))
    assert found.to_arrow().names == ["a", "b", "c"]
    ordered = found.to_arrow({"c": (0, 1, 1), "b": (0, 1, 0), "a.y": (0, 2, 0), "a.x": (0, 2, 1)})
    assert ordered.names == ["b", "c", "a"]
    assert [column.name for column in ordered.field("a").type] == ["y", "x"]


def test_what_is_nested_very_deep_is_json_text_below_a_limit() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH + 5):
        value = {"a": value}
    for record in (value, {**value, "mixed": [1, "x"]}):
        kind = infer_records(lines(record)).to_arrow().field("a")
        for _ in range(MAX_DEPTH - 1):
            kind = kind.type.field("a")
        assert is_json_text(kind)


@pytest.mark.parametrize("record", [{"ID": 1, "id": 2}, {"_rfr_meta": "x"}, {"": 1}])
def test_columns_that_no_table_can_have_are_refused(record: Any) -> None:
    with raises(ConfigurationError):
        infer_records(lines(record)).to_arrow()


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ({"a.b": 1, "a": {"b": 2}}, ["a"]),
        ({"A.B": 1, "a": {"b": 2}}, ["a"]),
        ({"a.b.c": 1, "a": {"b.c": 2}, "a.b": {"c": 3}}, ["a", "a.b"]),
        ({"l": [{"x": 1}], "l.x": 2}, ["l"]),
        ({"l": [1], "l.element": 2}, ["l"]),
        ({"a.c": 1, "a": {"b": 2}}, []),
        ({"s": {"a.b": 1, "a": {"b": 2}}}, ["s.a"]),
    ],
)
def test_an_object_with_a_name_in_common_with_another_field_is_json_text(record: Any, texts: list[str]) -> None:
    schema = infer_records(lines(record)).to_arrow()
    inner = [
        (f"{column.name}.{one.name}", one)
        for column in schema
        if pa.types.is_struct(column.type)
        for one in column.type
    ]
    assert [name for name, one in [*((column.name, column) for column in schema), *inner] if is_json_text(one)] == texts
    assert len(target_schema(schema).fields) == len(schema) + 3


@pytest.mark.parametrize("block", [b"", b"null", b"5\n[1]", b"{broken", b"{}\nnull\n{}"])
def test_lines_that_are_no_records_count_for_nothing_and_hide_no_others(block: bytes) -> None:
    assert infer_records(block).to_arrow() == pa.schema([])
    assert infer_records(b'{"a":1}\n' + block).to_arrow() == pa.schema([("a", pa.int64())])


JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 5),
        st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64]),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["", "x", "5", "2026-01-01", "2026-01-01T00:00:00Z", "12:00:00", "é\n\x00"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "A"]), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON_VALUES, max_size=3), max_size=6)


@pytest.mark.parametrize("mark", [None, "a"])
@examples(400, derandomize=True)
@given(RECORDS, st.lists(st.integers(0, 6), max_size=3))
def test_the_result_is_the_same_however_records_are_split(
    mark: str | None, records: list[Any], cuts: list[int]
) -> None:
    whole = infer_records(lines(*records), mark)
    edges = [0, *sorted(cuts), len(records)]
    parts = [InferredSchema.from_json(infer_records(lines(*records[a:b]), mark).to_json()) for a, b in pairwise(edges)]
    assert reduce(merge, parts, InferredSchema()) == whole
    assert reduce(merge, reversed(parts), InferredSchema()) == whole
    kept, gone = ([item for item in records if (item.get(mark) is True) is deletes] for deletes in (False, True))
    assert inference._by_walking(lines(*kept)).fields == whole.fields
    assert inference._by_walking(lines(*records)).fields == whole.with_deletions(None).fields
    assert whole.deletions == (inference._by_walking(lines(*gone)) if gone else None)


@examples(300, derandomize=True)
@given(RECORDS, RECORDS, RECORDS)
def test_merging_is_associative_commutative_and_idempotent(a: list[Any], b: list[Any], c: list[Any]) -> None:
    x, y, z = (infer_records(lines(*records)) for records in (a, b, c))
    assert merge(merge(x, y), z) == merge(x, merge(y, z))
    assert merge(x, y) == merge(y, x)
    assert merge(x, x) == x
    assert merge(x, InferredSchema()) == x


@examples(100, derandomize=True)
@given(RECORDS)
def test_a_schema_travels_by_pickle(records: list[Any]) -> None:
    found = infer_records(lines(*records))
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_large_input_is_looked_at_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    records = lines(*({"a": n, "b": str(n)} for n in range(500)), {"a": 0.5})
    whole = infer_records(records)
    monkeypatch.setattr(inference, "_BLOCK_BYTES", 100)
    assert infer_records(records) == whole


TEXT = {"type": "string"}


def column(declared: Any, **root: Any) -> pa.Field:
    return arrow_schema({"type": "object", "properties": {"a": declared}, **root}).field("a")


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string"}, pa.string()),
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": ["string", "integer"]}, pa.string()),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": ["null", "string"], "format": "date-time"}, TIMESTAMP),
        (
            {"type": "string", "format": "date-time", "airbyte_type": "timestamp_without_timezone"},
            pa.timestamp("us"),
        ),
        ({"type": "string", "format": "time"}, pa.time64("us")),
        ({"type": "string", "format": "email"}, pa.string()),
        ({"type": "number", "airbyte_type": "integer"}, pa.int64()),
        ({"type": "number", "format": "decimal(18,4)"}, pa.decimal128(18, 4)),
        ({"type": ["null", "string"], "format": "decimal(38, 0)"}, pa.decimal128(38, 0)),
        ({"type": ["integer", "number"], "format": "decimal(5,2)"}, pa.decimal128(5, 2)),
        ({"enum": ["open", "closed", None]}, pa.string()),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, pa.int64()),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, pa.float64()),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, pa.string()),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.field("element", pa.int64()))),
        ({"items": {"type": "string"}}, pa.list_(pa.field("element", pa.string()))),
        ({"properties": {"x": {"type": "integer"}}}, pa.struct([("x", pa.int64())])),
        (
            {"allOf": [{"properties": {"x": {"type": "integer"}}}, {"properties": {"y": {"type": "string"}}}]},
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
        ),
        *(({}, JSON), (True, JSON), ({"type": "null"}, JSON), ({"type": "object"}, JSON), ({"type": "array"}, JSON)),
        ({"type": "object", "properties": {}}, JSON),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, JSON),
        ({"type": "array", "items": {}}, JSON),
        ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}, JSON),
        ({"type": ["object", "string"], "properties": {"x": {"type": "integer"}}}, JSON),
        ({"anyOf": [{"type": "string"}, {"properties": {"x": {"type": "integer"}}}]}, JSON),
    ],
)
def test_a_declared_type_has_its_column_type_and_what_has_no_fixed_shape_is_json_text(
    declared: Any, expected: Any
) -> None:
    found = column(declared)
    assert has_type(found, expected)
    assert found.nullable


def test_nested_shapes_keep_their_marks_of_json_text() -> None:
    found = column({"type": "array", "items": {"type": "object", "properties": {"free": {"type": "object"}}}})
    assert is_json_text(found.type.value_type.field("free"))


def test_columns_keep_the_declared_order() -> None:
    assert arrow_schema({"properties": {"z": TEXT, "a": TEXT, "m": TEXT}}).names == ["z", "a", "m"]


def test_a_local_reference_is_followed_and_a_recursive_one_ends_as_json_text() -> None:
    node = {"type": "object", "properties": {"id": {"type": "integer"}, "child": {"$ref": "#/definitions/node"}}}
    found = column({"$ref": "#/definitions/node"}, definitions={"node": node})
    assert found.type.field("id").type == pa.int64()
    assert is_json_text(found.type.field("child"))


@pytest.mark.parametrize(
    ("declared", "path"),
    [
        ({"type": "strnig"}, "schema.properties.a.type"),
        ({"type": 5}, "schema.properties.a.type"),
        (5, "schema.properties.a"),
        ({"type": "object", "properties": ["x"]}, "schema.properties.a.properties"),
        ({"type": "array", "items": "integer"}, "schema.properties.a.items"),
        ({"anyOf": []}, "schema.properties.a.anyOf"),
        ({"anyOf": [{"type": "wrong"}]}, "schema.properties.a.anyOf[0].type"),
        ({"type": "string", "format": 7}, "schema.properties.a.format"),
        ({"type": "number", "format": "decimal"}, "schema.properties.a.format"),
        ({"type": "number", "format": "decimal(39,2)"}, "schema.properties.a.format"),
        ({"type": "number", "format": "decimal(4,5)"}, "schema.properties.a.format"),
        ({"$ref": "https://example.com/x.json"}, "schema.properties.a.$ref"),
        ({"$ref": "#/definitions/none"}, "schema.properties.a.$ref"),
        ({"properties": {"Id": TEXT, "ID": TEXT}}, "schema.properties.a.properties"),
        ({"properties": {"": TEXT}}, "schema.properties.a.properties"),
        ({"properties": {"b.C": TEXT, "b": {"properties": {"c": TEXT}}}}, "schema.properties.a.properties"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(declared: Any, path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        column(declared)
    assert caught.value.field == path


@pytest.mark.parametrize(
    "declared",
    [
        *({}, {"type": "string"}, {"type": "object"}, {"type": "object", "properties": {}}, ["a"]),
        *({"properties": {name: TEXT}} for name in ("_rfr_generation", "_RFR_Meta", "_rfr_extracted_at")),
        {"properties": {"straße": TEXT, "STRASSE": TEXT}},
        {"properties": {"a.b": TEXT, "a": {"properties": {"b": TEXT}}}},
    ],
    ids=["empty", "text", "object", "none", "list", "generation", "meta", "extracted", "case", "dot"],
)
def test_a_schema_without_columns_or_with_columns_that_no_table_can_have_is_refused(declared: Any) -> None:
    with raises(ConfigurationError):
        arrow_schema(declared)


def test_a_nested_field_may_have_a_system_columns_name() -> None:
    assert column({"properties": {"_rfr_meta": {"type": "string"}}}).type.field("_rfr_meta").type == pa.string()
