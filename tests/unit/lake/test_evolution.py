"""A published table takes new rows by name: columns are added and widened, and the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from airflow_provider_rfr.exceptions import ConfigurationError, SchemaEvolutionError
from airflow_provider_rfr.lake.columns import TIMESTAMP, is_json_text, json_text_field
from airflow_provider_rfr.lake.evolution import EvolutionPlan, apply_evolution, plan_evolution
from airflow_provider_rfr.lake.schemas import file_schema, iceberg_type, target_schema, with_system_columns


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


def table_with(*fields: tuple[str, Any], required: bool = False) -> Schema:
    system = target_schema(pa.schema([])).fields
    own = [NestedField(100 + n, name, kind, required=required) for n, (name, kind) in enumerate(fields)]
    return Schema(*own, *system)


def changes(plan: EvolutionPlan) -> list[str]:
    return [str(change) for change in plan.changes]


def test_a_new_tables_schema_has_the_system_columns_behind_the_rows() -> None:
    schema = target_schema(pa.schema([("id", pa.int64()), json_text_field("extra")]))
    assert [str(field.field_type) for field in schema.fields] == ["long", "string", "long", "timestamptz", "string"]
    assert schema.column_names[-3:] == ["_rfr_generation", "_rfr_extracted_at", "_rfr_meta"]
    assert all(field.optional for field in schema.fields)
    assert schema.find_field("extra").doc == "JSON text"


def test_every_type_survives_the_way_to_iceberg_and_back() -> None:
    kinds = [pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.date32(), pa.time64("us"), TIMESTAMP]
    rows = pa.schema([(f"c{n}", kind) for n, kind in enumerate([*kinds, pa.timestamp("us"), pa.decimal128(9, 2)])])
    rows = rows.append(pa.field("s", struct(x=pa.int64(), y=pa.list_(struct(z=TIMESTAMP)))))
    again = file_schema(target_schema(rows))
    assert pa.table(rows.empty_table()).cast(pa.schema([again.field(name) for name in rows.names])) is not None
    assert all(b"PARQUET:field_id" in field.metadata for field in again)


def test_a_type_that_tables_lack_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="duration"):
        iceberg_type(pa.duration("s"), lambda: 1)
    with pytest.raises(ConfigurationError, match="system column"):
        with_system_columns(pa.schema([("_rfr_meta", pa.string())]))


def test_equal_schemas_need_no_change() -> None:
    rows = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    plan = plan_evolution(target_schema(rows), rows, "fail")
    assert plan.changes == ()
    assert plan.rows == rows


def test_new_columns_are_added_and_missing_ones_stay() -> None:
    old = target_schema(pa.schema([("id", pa.int64()), ("gone", pa.string())]))
    assert changes(plan_evolution(old, pa.schema([("id", pa.int64()), ("new", pa.string())]), "evolve")) == [
        "add new string"
    ]


def test_inner_columns_of_structs_and_lists_are_added_and_widened() -> None:
    old = target_schema(pa.schema([("s", struct(x=pa.int32())), ("l", pa.list_(struct(x=pa.float32())))]))
    new = pa.schema([("s", struct(x=pa.int64(), y=pa.string())), ("l", pa.list_(struct(y=pa.bool_(), x=pa.float64())))])
    assert changes(plan_evolution(old, new, "evolve")) == [
        "widen s.x long",
        "add s.y string",
        "add l.element.y boolean",
        "widen l.element.x double",
    ]


def test_a_table_of_somebody_else_gets_the_system_columns() -> None:
    plan = plan_evolution(
        Schema(NestedField(1, "id", LongType(), required=False)), pa.schema([("id", pa.int64())]), "evolve"
    )
    assert [change.path for change in plan.changes] == [("_rfr_generation",), ("_rfr_extracted_at",), ("_rfr_meta",)]
    assert plan.rows.names == ["id"]


@pytest.mark.parametrize(
    ("current", "wanted", "change"),
    [
        (IntegerType(), pa.int64(), ["widen a long"]),
        (FloatType(), pa.float64(), ["widen a double"]),
        (DecimalType(9, 2), pa.decimal128(12, 2), ["widen a decimal(12, 2)"]),
    ],
)
def test_a_column_is_widened_where_the_format_allows_it(current: Any, wanted: pa.DataType, change: list[str]) -> None:
    assert changes(plan_evolution(table_with(("a", current)), pa.schema([("a", wanted)]), "evolve")) == change


@pytest.mark.parametrize(
    ("current", "wanted"),
    [
        (LongType(), pa.float64()),
        (LongType(), pa.string()),
        (StringType(), pa.int64()),
        (DecimalType(9, 2), pa.decimal128(12, 3)),
        (DecimalType(9, 2), pa.decimal128(8, 2)),
        (DateType(), TIMESTAMP),
        (TimestampType(), TIMESTAMP),
        (StringType(), TIMESTAMP),
        (StructType(NestedField(50, "x", LongType())), pa.string()),
        (StringType(), struct(x=pa.int64())),
        (ListType(50, LongType()), pa.list_(pa.string())),
        (ListType(50, LongType()), pa.int64()),
    ],
)
def test_every_other_change_of_type_is_refused(current: Any, wanted: pa.DataType) -> None:
    with pytest.raises(SchemaEvolutionError, match=r"a(\.element)?: the table has .*, the rows have"):
        plan_evolution(table_with(("a", current)), pa.schema([("a", wanted)]), "evolve")


def test_the_error_names_every_column_that_does_not_fit_and_what_to_do() -> None:
    old = table_with(("a", LongType()), ("b", StructType(NestedField(50, "c", StringType()))))
    with pytest.raises(SchemaEvolutionError) as caught:
        plan_evolution(old, pa.schema([("a", pa.string()), ("b", struct(c=pa.bool_()))]), "evolve")
    assert "a: the table has long, the rows have string" in str(caught.value)
    assert "b.c: the table has string, the rows have boolean" in str(caught.value)
    assert "Declare the table's type" in str(caught.value)


def test_rows_are_read_in_the_tables_type_where_it_holds_more() -> None:
    plan = plan_evolution(table_with(("a", DoubleType())), pa.schema([("a", pa.int64())]), "fail")
    assert plan.changes == ()
    assert plan.rows.field("a").type == pa.float64()


@pytest.mark.parametrize("wanted", [pa.int64(), pa.bool_(), pa.float64()])
def test_a_string_column_stays_text_for_inferred_scalars(wanted: pa.DataType) -> None:
    plan = plan_evolution(table_with(("a", StringType())), pa.schema([("a", wanted)]), "fail", inferred=True)
    assert plan.rows.field("a").type == pa.string()
    assert not is_json_text(plan.rows.field("a"))


@pytest.mark.parametrize("wanted", [struct(x=pa.int64()), pa.list_(pa.string())])
def test_a_string_column_becomes_json_text_for_inferred_shapes(wanted: pa.DataType) -> None:
    plan = plan_evolution(table_with(("a", StringType())), pa.schema([("a", wanted)]), "fail", inferred=True)
    assert is_json_text(plan.rows.field("a"))


def test_the_policy_fail_names_the_changes_it_refuses() -> None:
    with pytest.raises(SchemaEvolutionError, match=r"add b string.*schema_evolution is fail"):
        plan_evolution(table_with(("a", LongType())), pa.schema([("a", pa.int64()), ("b", pa.string())]), "fail")


def test_a_column_that_differs_by_case_from_the_tables_is_refused() -> None:
    with pytest.raises(SchemaEvolutionError, match="the table has 'Id'"):
        plan_evolution(table_with(("Id", LongType())), pa.schema([("ID", pa.int64())]), "evolve")


def test_a_required_column_that_rows_lack_is_refused_and_one_they_have_is_not() -> None:
    old = table_with(("id", LongType()), required=True)
    assert plan_evolution(old, pa.schema([("id", pa.int64())]), "fail").changes == ()
    with pytest.raises(SchemaEvolutionError, match="requires a value"):
        plan_evolution(old, pa.schema([("other", pa.int64())]), "evolve")


@pytest.fixture
def published(tmp_path: Path) -> Table:
    catalog = SqlCatalog("rfr", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("raw")
    rows = pa.schema([("id", pa.int32()), ("s", struct(x=pa.float32())), ("l", pa.list_(struct(a=pa.int64())))])
    return catalog.create_table("raw.t", target_schema(rows))


def test_a_plan_is_applied_to_a_real_table(published: Table) -> None:
    wanted = pa.schema(
        [
            ("id", pa.int64()),
            ("s", struct(x=pa.float64(), deep=struct(y=pa.string()))),
            ("l", pa.list_(struct(a=pa.int64(), b=TIMESTAMP))),
            json_text_field("free"),
        ]
    )
    with published.update_schema() as update:
        apply_evolution(update, plan_evolution(published.schema(), wanted, "evolve"))
    schema = published.schema()
    assert str(schema.find_type("id")) == "long"
    assert str(schema.find_type("s.x")) == "double"
    assert str(schema.find_type("s.deep.y")) == "string"
    assert str(schema.find_type("l.element.b")) == "timestamptz"
    assert schema.find_field("free").doc == "JSON text"
    assert plan_evolution(schema, wanted, "fail").changes == ()
