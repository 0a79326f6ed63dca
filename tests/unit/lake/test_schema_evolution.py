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
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    UUIDType,
)

from airflow_provider_rfr.exceptions import ConfigurationError, SchemaEvolutionError
from airflow_provider_rfr.lake.evolution import EvolutionPlan, apply_evolution, pinned_columns, plan_evolution
from airflow_provider_rfr.lake.inference import infer_records
from airflow_provider_rfr.lake.schemas import (
    TIMESTAMP,
    file_schema,
    iceberg_type,
    json_text_field,
    mixed_text_field,
    row_column,
    target_schema,
    with_system_columns,
)
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


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": pa.int64(), "l": pa.list_(pa.string())}, {"a": pa.int64(), "l": pa.list_(pa.string())}, []),
        ({"a": pa.int64(), "gone": pa.string()}, {"a": pa.int64(), "new": pa.string()}, ["add new string"]),
        ({"a": pa.int32()}, {"a": pa.int64()}, ["widen a long"]),
        ({"a": pa.float32()}, {"a": pa.float64()}, ["widen a double"]),
        ({"a": pa.decimal128(9, 2)}, {"a": pa.decimal128(12, 2)}, ["widen a decimal(12, 2)"]),
        (
            {"s": struct(x=pa.int32()), "l": pa.list_(struct(x=pa.float32()))},
            {"s": struct(x=pa.int64(), y=pa.string()), "l": pa.list_(struct(y=pa.bool_(), x=pa.float64()))},
            ["widen s.x long", "add s.y string", "add l.element.y boolean", "widen l.element.x double"],
        ),
    ],
    ids=["equal", "added", "int", "float", "decimal", "inner"],
)
def test_columns_are_added_and_widened_where_the_format_allows_it_and_missing_ones_stay(
    old: dict[str, pa.DataType], new: dict[str, pa.DataType], expected: list[str]
) -> None:
    rows = pa.schema(list(new.items()))
    plan = plan_evolution(target_schema(pa.schema(list(old.items()))), rows, "evolve")
    assert changes(plan) == expected
    assert plan.rows == rows


def test_records_are_read_into_a_table_s_columns_where_they_can_be() -> None:
    ours = pa.schema(
        [
            ("l", pa.list_(struct(x=pa.int64(), y=pa.list_(pa.string())))),
            ("s", struct(d=pa.decimal128(9, 2), t=TIMESTAMP, b=pa.bool_())),
            json_text_field("j"),
        ]
    )
    for column, field in zip(ours, target_schema(ours).fields, strict=False):
        assert row_column(field).equals(column, check_metadata=True)
    required = NestedField(51, "x", LongType(), required=True)
    for kind in (
        BinaryType(),
        ListType(50, LongType(), True),
        ListType(50, IntegerType(), False),
        StructType(required),
    ):
        assert row_column(NestedField(1, "a", kind)) is None
    some = StructType(NestedField(50, "x", LongType()), NestedField(51, "y", BinaryType()))
    assert row_column(NestedField(1, "a", some)) == pa.field("a", struct(x=pa.int64()))


def test_a_table_of_somebody_else_gets_the_system_columns() -> None:
    table = Schema(NestedField(1, "id", LongType(), required=False))
    plan = plan_evolution(table, pa.schema([("id", pa.int64())]), "evolve")
    assert [change.path for change in plan.changes] == [("_rfr_generation",), ("_rfr_extracted_at",), ("_rfr_meta",)]
    assert plan.rows.names == ["id"]


@pytest.mark.parametrize(
    ("current", "wanted"),
    [
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
    ],
)
def test_every_other_change_of_type_is_refused_where_rows_stay_and_else_replaces_the_column(
    current: Any, wanted: pa.DataType
) -> None:
    table, rows = table_with(("a", current)), pa.schema([("a", wanted)])
    with raises(SchemaEvolutionError):
        plan_evolution(table, rows, "evolve")
    plan = plan_evolution(table, rows, "evolve", pinned={})
    assert [str(change).split()[:2] for change in plan.changes] == [["replace", "a"]]
    assert plan.rows.field("a").type == wanted


def test_the_error_names_every_column_that_does_not_fit_and_what_to_do() -> None:
    old = table_with(("a", LongType()), ("b", StructType(NestedField(50, "c", StringType()))))
    with raises(SchemaEvolutionError):
        plan_evolution(old, pa.schema([("a", pa.string()), ("b", struct(c=pa.bool_()))]), "evolve")


TEXT, JSON = pa.field("a", pa.string()), json_text_field("a")


@pytest.mark.parametrize(
    ("column", "wanted", "expected"),
    [
        (pa.field("a", pa.float64()), pa.int64(), pa.field("a", pa.float64())),
        (pa.field("a", pa.decimal128(9, 2)), pa.decimal128(8, 2), pa.field("a", pa.decimal128(9, 2))),
        (TEXT, pa.int64(), TEXT),
        (TEXT, pa.bool_(), TEXT),
        (TEXT, struct(x=pa.int64()), JSON),
        (TEXT, pa.list_(pa.string()), JSON),
        (JSON, pa.string(), JSON),
        (TEXT, JSON, mixed_text_field("a")),
        (JSON, JSON, JSON),
        (JSON, struct(x=pa.int64()), JSON),
    ],
    ids=[
        *("double", "decimal", "number in text", "boolean in text", "struct in text", "list in text", "text in JSON"),
        *("mixed in text", "mixed in JSON", "struct in JSON"),
    ],
)
def test_inferred_rows_are_read_as_the_table_s_column_where_it_holds_more(
    column: pa.Field, wanted: pa.DataType | pa.Field, expected: pa.Field
) -> None:
    rows = pa.schema([wanted if isinstance(wanted, pa.Field) else pa.field("a", wanted)])
    for pinned in (None, {}):
        plan = plan_evolution(target_schema(pa.schema([column])), rows, "fail", inferred={"a"}, pinned=pinned)
        assert plan.rows.field("a").equals(expected, check_metadata=True)


def test_a_declared_column_of_json_texts_has_quotes_in_a_column_of_texts_too() -> None:
    plan = plan_evolution(target_schema(pa.schema([TEXT])), pa.schema([JSON]), "fail")
    assert plan.rows.field("a").equals(JSON, check_metadata=True)


def test_declared_rows_are_read_as_a_wider_number_of_the_table_too() -> None:
    table = target_schema(pa.schema([("a", pa.float64())]))
    assert plan_evolution(table, pa.schema([("a", pa.int64())]), "fail").rows.field("a").type == pa.float64()


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


@pytest.mark.parametrize(
    ("kind", "partly"),
    [
        (UUIDType(), False),
        (MapType(201, StringType(), 202, LongType(), False), False),
        (ListType(201, UUIDType(), False), False),
        (StructType(NestedField(201, "inner", UUIDType(), required=False)), False),
        (UUIDType(), True),
    ],
)
def test_no_one_is_asked_to_declare_a_type_that_no_stream_can_have(kind: Any, partly: bool) -> None:
    others = {"n": (LongType(), pa.string())} if partly else {}
    table = table_with(("a", kind), *((name, old) for name, (old, _) in others.items()))
    rows = pa.schema([("a", pa.string()), *((name, new) for name, (_, new) in others.items())])
    with raises(SchemaEvolutionError) as caught:
        plan_evolution(table, rows, "evolve")
    assert ("Declare the table's type" in str(caught.value)) is partly
