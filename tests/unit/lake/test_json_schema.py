"""What a connector declares becomes columns, or an error that names the place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.inference import arrow_schema
from airflow_provider_rfr.lake.schemas import TIMESTAMP, is_json_text
from tests.unit.messages import raises


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
    ],
)
def test_a_declared_type_has_its_column_type(declared: Any, expected: pa.DataType) -> None:
    found = column(declared)
    assert found.type == expected
    assert found.nullable
    assert not is_json_text(found)


@pytest.mark.parametrize(
    "declared",
    [
        {},
        True,
        {"type": "null"},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "array"},
        {"type": "array", "items": {}},
        {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]},
        {"type": ["object", "string"], "properties": {"x": {"type": "integer"}}},
        {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"x": {"type": "integer"}}}]},
    ],
)
def test_what_has_no_fixed_shape_is_json_text(declared: Any) -> None:
    found = column(declared)
    assert found.type == pa.string()
    assert is_json_text(found)


def test_nested_shapes_keep_their_marks_of_json_text() -> None:
    found = column({"type": "array", "items": {"type": "object", "properties": {"free": {"type": "object"}}}})
    assert is_json_text(found.type.value_type.field("free"))


def test_columns_keep_the_declared_order() -> None:
    schema = arrow_schema({"properties": {"z": {"type": "string"}, "a": {"type": "string"}, "m": {"type": "string"}}})
    assert schema.names == ["z", "a", "m"]


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
        ({"properties": {"Id": {"type": "string"}, "ID": {"type": "string"}}}, "schema.properties.a.properties"),
        ({"properties": {"": {"type": "string"}}}, "schema.properties.a.properties"),
        (
            {"properties": {"b.C": {"type": "string"}, "b": {"properties": {"c": {"type": "string"}}}}},
            "schema.properties.a.properties",
        ),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(declared: Any, path: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        column(declared)
    assert caught.value.field == path


@pytest.mark.parametrize("declared", [{}, {"type": "string"}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_schema_without_columns_is_refused(declared: Any) -> None:
    with raises(ConfigurationError):
        arrow_schema(declared)


def test_a_root_that_is_no_mapping_is_refused() -> None:
    with raises(ConfigurationError):
        arrow_schema(["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["_rfr_generation", "_RFR_Meta", "_rfr_extracted_at"])
def test_a_system_column_of_the_users_is_refused(name: str) -> None:
    with raises(ConfigurationError):
        arrow_schema({"properties": {name: {"type": "string"}}})


def test_a_nested_field_may_have_a_system_columns_name() -> None:
    assert column({"properties": {"_rfr_meta": {"type": "string"}}}).type.field("_rfr_meta").type == pa.string()


def test_names_that_differ_by_case_only_are_refused() -> None:
    with raises(ConfigurationError):
        arrow_schema({"properties": {"straße": {"type": "string"}, "STRASSE": {"type": "string"}}})


def test_a_name_with_a_dot_that_is_also_the_way_into_an_object_is_refused_naming_both() -> None:
    inner = {"properties": {"b": {"type": "integer"}}}
    with raises(ConfigurationError):
        arrow_schema({"properties": {"a.b": {"type": "integer"}, "a": inner}})
