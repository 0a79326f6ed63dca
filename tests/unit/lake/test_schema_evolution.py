"""A published table takes new rows by name: columns are added and widened.

Another type replaces the column where the commit replaces all rows, and is refused where rows stay.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform
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
from airflow_provider_rfr.lake.inference import infer_records
from airflow_provider_rfr.lake.schemas import (
    TIMESTAMP,
    file_schema,
    iceberg_type,
    is_json_text,
    json_text_field,
    target_schema,
    with_system_columns,
)
from airflow_provider_rfr.lake.target import EvolutionPlan, apply_evolution, pinned_columns, plan_evolution
from tests.unit.messages import raises


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
    with raises(ConfigurationError):
        iceberg_type(pa.duration("s"))
    with raises(ConfigurationError):
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


OTHER_TYPES = [
    (LongType(), pa.float64()),
    (LongType(), pa.string()),
    (LongType(), pa.decimal128(12, 2)),
    (StringType(), pa.int64()),
    (DoubleType(), pa.decimal128(12, 2)),
    (DecimalType(9, 2), pa.decimal128(12, 3)),
    (DecimalType(9, 2), pa.float64()),
    (DateType(), TIMESTAMP),
    (TimestampType(), TIMESTAMP),
    (StringType(), TIMESTAMP),
    (StructType(NestedField(50, "x", LongType())), pa.string()),
    (StringType(), struct(x=pa.int64())),
    (ListType(50, LongType()), pa.list_(pa.string())),
    (ListType(50, LongType()), pa.int64()),
]


@pytest.mark.parametrize(("current", "wanted"), OTHER_TYPES)
def test_every_other_change_of_type_is_refused_where_rows_stay(current: Any, wanted: pa.DataType) -> None:
    with raises(SchemaEvolutionError):
        plan_evolution(table_with(("a", current)), pa.schema([("a", wanted)]), "evolve")


@pytest.mark.parametrize(("current", "wanted"), OTHER_TYPES)
def test_every_other_change_of_type_replaces_the_column_where_all_rows_are_replaced(
    current: Any, wanted: pa.DataType
) -> None:
    plan = plan_evolution(table_with(("a", current)), pa.schema([("a", wanted)]), "evolve", pinned={})
    assert [str(change).split()[:2] for change in plan.changes] == [["replace", "a"]]
    assert plan.rows.field("a").type == wanted


def test_the_error_names_every_column_that_does_not_fit_and_what_to_do() -> None:
    old = table_with(("a", LongType()), ("b", StructType(NestedField(50, "c", StringType()))))
    with raises(SchemaEvolutionError):
        plan_evolution(old, pa.schema([("a", pa.string()), ("b", struct(c=pa.bool_()))]), "evolve")


def test_rows_are_read_in_the_tables_type_where_it_holds_more() -> None:
    plan = plan_evolution(table_with(("a", DoubleType())), pa.schema([("a", pa.int64())]), "fail")
    assert plan.changes == ()
    assert plan.rows.field("a").type == pa.float64()
    plan = plan_evolution(table_with(("a", DecimalType(9, 2))), pa.schema([("a", pa.decimal128(8, 2))]), "fail")
    assert plan.rows.field("a").type == pa.decimal128(9, 2)


@pytest.mark.parametrize("wanted", [pa.int64(), pa.bool_(), pa.float64()])
def test_a_string_column_stays_text_for_inferred_scalars(wanted: pa.DataType) -> None:
    plan = plan_evolution(table_with(("a", StringType())), pa.schema([("a", wanted)]), "fail", inferred={"a"})
    assert plan.rows.field("a").type == pa.string()
    assert not is_json_text(plan.rows.field("a"))


@pytest.mark.parametrize("wanted", [struct(x=pa.int64()), pa.list_(pa.string())])
def test_a_string_column_becomes_json_text_for_inferred_shapes(wanted: pa.DataType) -> None:
    plan = plan_evolution(table_with(("a", StringType())), pa.schema([("a", wanted)]), "fail", inferred={"a"})
    assert is_json_text(plan.rows.field("a"))


def test_a_column_of_json_texts_goes_on_holding_json_where_texts_are_inferred() -> None:
    old = target_schema(pa.schema([json_text_field("a")]))
    assert is_json_text(plan_evolution(old, pa.schema([("a", pa.string())]), "fail", inferred={"a"}).rows.field("a"))


@pytest.mark.parametrize(
    "wanted", [[("a", pa.float64())], [("a", pa.int64()), ("b", pa.string())]], ids=["replace", "add"]
)
def test_the_policy_fail_names_the_changes_it_refuses(wanted: list[tuple[str, pa.DataType]]) -> None:
    with raises(SchemaEvolutionError):
        plan_evolution(table_with(("a", LongType())), pa.schema(wanted), "fail", pinned={})


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({"Id": 1}, {"ID": 1}, ["add ID long", "drop Id long"]),
        ({"a.b": 1}, {"a": {"b": 1}}, ["add a struct", "drop a.b long"]),
        ({"a": {"b": 1}}, {"a.b": 1}, ["add a.b long", "drop a struct"]),
        ({"a": {"b": 1, "c": 1}}, {"a": {"c": 1}, "a.b": 1}, ["add a.b long", "drop a.b long"]),
        ({"l": [{"x": 1}], "s": "t"}, {"l.x": 1, "s": "t"}, ["add l.x long", "drop l list<struct>"]),
    ],
)
def test_a_column_that_rows_lack_goes_where_its_name_can_t_be_told_from_one_of_theirs(
    catalog: SqlCatalog, before: Any, after: Any, change: list[str]
) -> None:
    rows = [infer_records(json.dumps(record).encode()).to_arrow() for record in (before, after)]
    table = catalog.create_table("raw.names", target_schema(rows[0]))
    assert evolve(table, rows[1], rows_stay=False) == change
    assert plan_evolution(table.schema(), rows[1], "fail").changes == ()
    other = catalog.create_table("raw.kept", target_schema(rows[0]))
    with raises(SchemaEvolutionError):
        evolve(other, rows[1])


def test_a_required_column_that_rows_lack_is_refused_and_one_they_have_is_not() -> None:
    old = table_with(("id", LongType()), required=True)
    assert plan_evolution(old, pa.schema([("id", pa.int64())]), "fail").changes == ()
    with raises(SchemaEvolutionError):
        plan_evolution(old, pa.schema([("other", pa.int64())]), "evolve")


@pytest.fixture
def published(catalog: SqlCatalog) -> Table:
    rows = pa.schema([("id", pa.int32()), ("s", struct(x=pa.float32())), ("l", pa.list_(struct(a=pa.int64())))])
    return catalog.create_table("raw.t", target_schema(rows))


def evolve(table: Table, wanted: pa.Schema, *, rows_stay: bool = True) -> list[str]:
    pinned = None if rows_stay else pinned_columns(table.metadata)
    plan = plan_evolution(table.schema(), wanted, "evolve", pinned=pinned)
    with table.transaction() as transaction:
        apply_evolution(transaction, plan)
    return changes(plan)


def test_a_plan_is_applied_to_a_real_table(published: Table) -> None:
    wanted = pa.schema(
        [
            ("id", pa.int64()),
            ("s", struct(x=pa.float64(), deep=struct(y=pa.string()))),
            ("l", pa.list_(struct(a=pa.int64(), b=TIMESTAMP))),
            json_text_field("free"),
        ]
    )
    evolve(published, wanted)
    schema = published.schema()
    assert str(schema.find_type("id")) == "long"
    assert str(schema.find_type("s.x")) == "double"
    assert str(schema.find_type("s.deep.y")) == "string"
    assert str(schema.find_type("l.element.b")) == "timestamptz"
    assert schema.find_field("free").doc == "JSON text"
    assert plan_evolution(schema, wanted, "fail").changes == ()


def test_replaced_columns_get_new_ids_at_their_old_places_and_the_others_stay(published: Table) -> None:
    before = published.schema()
    rows = pa.schema([("l", pa.list_(struct(a=pa.string()))), ("s", struct(x=pa.string())), ("id", pa.string())])
    assert evolve(published, rows, rows_stay=False) == [
        "replace l.element.a long by string",
        "replace s.x float by string",
        "replace id int by string",
    ]
    after = published.schema()
    assert after.column_names == before.column_names
    for name in ("id", "s.x", "l.element.a"):
        assert str(after.find_type(name)) == "string"
        assert after.find_field(name).field_id > before.highest_field_id
    for name in ("s", "l", "l.element", "_rfr_generation"):
        assert after.find_field(name).field_id == before.find_field(name).field_id


def test_a_list_of_other_values_is_replaced_as_a_whole(catalog: SqlCatalog) -> None:
    table = catalog.create_table("raw.lists", target_schema(pa.schema([("l", pa.list_(pa.int64()))])))
    wanted = pa.schema([("l", pa.list_(pa.float64()))])
    assert evolve(table, wanted, rows_stay=False) == ["replace l list<long> by list<double>"]
    assert str(table.schema().find_type("l")) == "list<double>"


def test_a_replaced_column_stays_required_and_keeps_its_comment(catalog: SqlCatalog) -> None:
    table = catalog.create_table("raw.strict", Schema(NestedField(1, "id", LongType(), required=True, doc="the key")))
    evolve(table, pa.schema([("id", pa.string())]), rows_stay=False)
    column = table.schema().find_field("id")
    assert (str(column.field_type), column.required, column.doc) == ("string", True, "the key")


def test_a_column_that_the_table_itself_refers_to_is_not_replaced(catalog: SqlCatalog) -> None:
    columns = [NestedField(n, name, LongType(), required=True) for n, name in enumerate("abcd", start=1)]
    schema = Schema(*columns, identifier_field_ids=[3])
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "a_bucket"))
    table = catalog.create_table("raw.t2", schema, partition_spec=spec, sort_order=SortOrder(SortField(2)))
    with table.update_spec() as update:
        update.remove_field("a_bucket")
    with raises(SchemaEvolutionError) as caught:
        evolve(table, pa.schema([(name, pa.string()) for name in "abcd"]), rows_stay=False)
    assert "; d: " not in str(caught.value)
