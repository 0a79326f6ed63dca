"""What PyIceberg reads and writes is what the files hold: nulls and nested values, also after a rename."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.lake.projection import NullKeepingProjection
from airflow_provider_rfr.lake.rows import SourceTable
from airflow_provider_rfr.lake.table_reader import TableReader


def item(number: int) -> StructType:
    return StructType(NestedField(number, "a", LongType()), NestedField(number + 1, "s", StringType()))


def list_of(number: int, element: Any, required: bool = False) -> ListType:
    return ListType(number, element, required)


def map_of(number: int, value: Any) -> MapType:
    return MapType(number, StringType(), number + 1, value, False)


SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "structs", list_of(10, item(11))),
    NestedField(3, "lists", list_of(20, list_of(21, item(22)))),
    NestedField(4, "map", map_of(30, item(32))),
    NestedField(5, "map_of_lists", map_of(40, list_of(42, item(43)))),
    NestedField(6, "inside", StructType(NestedField(50, "x", list_of(51, item(52))))),
    NestedField(7, "numbers", list_of(60, LongType())),
    NestedField(8, "maps", list_of(70, map_of(71, item(73)))),
    NestedField(9, "required", list_of(80, StructType(NestedField(81, "n", LongType(), required=True)), True)),
)
STRUCTS = ("structs.element", "lists.element.element", "map.value", "map_of_lists.value.element", "inside.x.element")
ARROW = schema_to_pyarrow(SCHEMA, include_field_ids=False)


def made(kind: pa.DataType, dice: random.Random, nullable: bool = True) -> Any:
    """Make a value of the type; each kind of null and of empty value is among some hundred of them."""
    if nullable and dice.random() < 0.3:
        return None
    if pa.types.is_struct(kind):
        return {field.name: made(field.type, dice, field.nullable) for field in kind}
    if pa.types.is_large_list(kind):
        return [made(kind.value_type, dice, kind.value_field.nullable) for _ in range(dice.randrange(3))]
    if pa.types.is_map(kind):
        return [(key, made(kind.item_type, dice)) for key in "ab"[: dice.randrange(3)]]
    return "x" if pa.types.is_large_string(kind) else dice.randrange(9)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    dice = random.Random(1)
    values = [{field.name: made(field.type, dice) for field in ARROW} | {"id": number} for number in range(300)]
    return pa.Table.from_pylist(values, schema=ARROW)


@pytest.fixture
def table(catalog: Catalog, rows: pa.Table) -> Table:
    table = catalog.create_table("raw.t", SCHEMA)
    table.append(rows)
    return table


def stored(table: Table) -> list[dict[str, Any]]:
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return sorted((row for file in files for row in pq.read_table(file).to_pylist()), key=lambda row: row["id"])


def renamed(value: Any) -> Any:
    """Return the value with ``a`` under the name ``b``, and a new field without a value after it."""
    if isinstance(value, dict):
        fields = {"b" if name == "a" else name: renamed(inner) for name, inner in value.items()}
        return {**fields, "new": None} if "b" in fields else fields
    return type(value)(map(renamed, value)) if isinstance(value, (list, tuple)) else value


def test_pyiceberg_writes_nested_nulls_as_they_are(table: Table, rows: pa.Table) -> None:
    assert stored(table) == rows.to_pylist()


def test_rows_beside_those_that_pyiceberg_deletes_keep_their_nulls(table: Table, rows: pa.Table) -> None:
    table.delete("id >= 100")
    assert stored(table) == rows.to_pylist()[:100]


def test_every_reader_reads_nested_nulls_as_they_are(table: Table, rows: pa.Table) -> None:
    (file,) = table.scan().plan_files()
    reader = TableReader.of(table.metadata, table.io)
    source = SourceTable(table, "raw.t")
    snapshot_id = source.head
    assert snapshot_id is not None
    wanted = source.projection(source.columns(), snapshot_id)
    exported = pa.Table.from_batches(source.read(source.contents(snapshot_id), wanted))
    for read in (table.scan().to_arrow(), reader.read(file, reader.columns()), exported):
        read.validate(full=True)
        assert read.to_pylist() == rows.to_pylist()
    assert table.scan(row_filter="id >= 250").to_arrow().to_pylist() == rows.to_pylist()[250:]


def test_values_of_nested_fields_that_were_renamed_are_read(table: Table, rows: pa.Table) -> None:
    with table.update_schema() as update:
        for path in (*STRUCTS, "maps.element.value"):
            update.rename_column((*path.split("."), "a"), "b")
            update.add_column((*path.split("."), "new"), LongType())
    read = table.scan().to_arrow()
    read.validate(full=True)
    assert read.to_pylist() == [renamed(row) for row in rows.to_pylist()]


def test_slices_of_rows_are_projected(rows: pa.Table) -> None:
    (batch,) = rows.slice(100, 57).to_batches()
    projected = pyiceberg_arrow._to_requested_schema(SCHEMA, SCHEMA, batch)
    projected.validate(full=True)
    assert projected.to_pylist() == rows.to_pylist()[100:157]


def test_pyiceberg_still_needs_the_correction(table: Table, rows: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, PyIceberg keeps nulls itself: remove ``lake/projection.py``, and keep the tests above."""
    (own,) = NullKeepingProjection.__bases__
    monkeypatch.setattr(pyiceberg_arrow, "ArrowProjectionVisitor", own)
    read = table.scan().to_arrow().to_pylist()
    lost = {name for old, new in zip(rows.to_pylist(), read, strict=True) for name in old if old[name] != new[name]}
    assert lost == {"structs", "map", "inside", "required"}


def test_a_process_that_only_opens_the_catalog_reads_nulls(
    table: Table, rows: pa.Table, settings: LakeSettings
) -> None:
    program = (
        "from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog\n"
        f"table = open_catalog(LakeSettings('rfr', {dict(settings.properties)})).load_table('raw.t')\n"
        "print(table.scan().to_arrow()['structs'].null_count)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == rows["structs"].null_count > 0
