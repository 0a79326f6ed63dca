"""Data files are written in one place, committed in another, and read by anybody."""

from __future__ import annotations

import datetime as dt
import errno
import pickle
import statistics
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DecimalType, DoubleType, LongType, NestedField, StringType, StructType

from airflow_provider_rfr.exceptions import SchemaError
from airflow_provider_rfr.lake.commits import append_files
from airflow_provider_rfr.lake.data_files import (
    FileLayout,
    FileTarget,
    StoredFile,
    _store_file,
    conform,
    load_file,
)
from airflow_provider_rfr.lake.files import FileStore, naming
from airflow_provider_rfr.lake.migrated_table import table_definition
from airflow_provider_rfr.lake.schemas import SYSTEM_COLUMNS, TIMESTAMP, file_schema, target_schema
from airflow_provider_rfr.lake.tables import LiveColumn
from tests.unit.messages import check_messages, raises

ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.float64()),
        ("day", pa.date32()),
        ("at", TIMESTAMP),
        ("name", pa.string()),
        ("address", pa.struct([("city", pa.string()), ("zip", pa.int64())])),
        ("tags", pa.list_(pa.struct([("k", pa.string()), ("v", pa.float64())]))),
    ]
)
RECORDS: list[dict[str, Any]] = [
    {
        "id": n,
        "price": None if n == 3 else n / 2,
        "day": dt.date(2026, 1, 1 + n % 3),
        "at": dt.datetime(2026, 1, 1 + n % 2, 12, tzinfo=dt.timezone.utc),
        "name": f"name {n}",
        "address": None if n == 2 else {"city": f"c{n}", "zip": n},
        "tags": None if n == 4 else [{"k": "a", "v": 1.5}] * (n % 3),
    }
    for n in range(9)
]


STORE = FileStore({})


def write_data_file(location: str, table: pa.Table, layout: FileLayout, **more: Any) -> DataFile:
    return _store_file(STORE, location, table, layout, **more).describe(layout)


def write_data_files(folder: str, table: pa.Table, layout: FileLayout) -> list[DataFile]:
    return [stored.describe(layout) for stored, _ in FileTarget(layout, STORE, folder, layout.arrow).write(table)]


def rows(records: list[dict[str, Any]] = RECORDS, schema: pa.Schema = ROWS) -> pa.Table:
    return pa.Table.from_pylist(records, schema)


def test_columns_whose_values_hardly_repeat_get_no_dictionary(tmp_path: Path) -> None:
    count = 20_000
    texts = pa.array([f"t{number:032}" for number in range(count)])
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "text", StringType()),
        NestedField(3, "repeated", StringType()),
        NestedField(4, "nothing", LongType()),
        NestedField(5, "place", StructType(NestedField(6, "city", StringType()))),
    )
    rows = pa.table(
        {
            "id": pa.array(range(count)),
            "text": texts,
            "repeated": pa.array([f"value {number % 7}" for number in range(count)]),
            "nothing": pa.nulls(count, pa.int64()),
            "place": pa.StructArray.from_arrays([texts], ["city"]),
        }
    )
    location = str(tmp_path / "rows.parquet")
    _store_file(FileStore({}), location, rows, FileLayout(schema))

    group = pq.read_metadata(location).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    with_dictionary = {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}
    assert with_dictionary == {"repeated", "nothing", "place.city"}
    assert pq.read_table(location)["id"].to_pylist() == list(range(count))


def test_a_file_described_elsewhere_is_committed_and_read_back(catalog: SqlCatalog) -> None:
    table = catalog.create_table("raw.t", target_schema(ROWS))
    layout = pickle.loads(pickle.dumps(FileLayout.of(table)))
    file = write_data_file(f"{table.location()}/data/a.parquet", rows(), layout)
    travelled = pickle.loads(pickle.dumps(file))
    assert travelled == file
    assert len(pickle.dumps(file)) < 1000
    append_files(table, [travelled], {})
    found = table.scan().to_arrow().sort_by("id")
    assert found.select(ROWS.names).to_pylist() == RECORDS
    assert found["_rfr_meta"].null_count == len(RECORDS)
    assert pq.read_table(file.file_path.removeprefix("file://")).select(ROWS.names).to_pylist() == RECORDS


def test_counts_and_bounds_are_those_of_the_rows(tmp_path: Path) -> None:
    layout = FileLayout(target_schema(ROWS))
    file = write_data_file(f"{tmp_path}/a.parquet", rows(), layout)
    ids = {name: layout.schema.find_field(name).field_id for name in ("id", "price", "day", "name", "at")}
    assert file.record_count == 9
    assert file.file_size_in_bytes == (tmp_path / "a.parquet").stat().st_size
    assert file.null_value_counts[ids["price"]] == 1
    bounds: dict[str, list[Any]] = {
        name: [from_bytes(layout.schema.find_type(name), raw[number]) for raw in (file.lower_bounds, file.upper_bounds)]  # type: ignore[arg-type]
        for name, number in ids.items()
    }
    assert bounds["id"] == [0, 8]
    assert bounds["price"] == [0.0, 4.0]
    assert bounds["day"] == [20454, 20456]
    assert bounds["name"] == ["name 0", "name 8"]


def test_a_filter_finds_its_rows_through_the_bounds(catalog: SqlCatalog) -> None:
    table = catalog.create_table("raw.t", target_schema(ROWS))
    layout = FileLayout.of(table)
    halves = [rows(RECORDS[:4]), rows(RECORDS[4:])]
    files = [write_data_file(f"{table.location()}/{n}.parquet", part, layout) for n, part in enumerate(halves)]
    append_files(table, files, {})
    scan = table.scan(row_filter="id = 7")
    assert len(list(scan.plan_files())) == 1
    assert scan.to_arrow()["name"].to_pylist() == ["name 7"]


def test_the_footer_names_the_writer_and_describes_the_file_again(tmp_path: Path) -> None:
    layout = FileLayout(target_schema(ROWS))
    location = f"{tmp_path}/a.parquet"
    file = write_data_file(location, rows(), layout, footer={"rfr": "label"})
    found = STORE.read_footer(location)
    assert found is not None
    label, metadata = found
    assert label == "label"
    again = StoredFile(location, file.file_size_in_bytes, metadata, {}).describe(layout)
    assert again.lower_bounds == file.lower_bounds
    assert again.record_count == file.record_count


def test_storing_needs_neither_pandas_nor_the_slow_modules_of_pyiceberg(tmp_path: Path) -> None:
    (tmp_path / "layout").write_bytes(pickle.dumps(FileLayout(target_schema(ROWS))))
    program = """
import pathlib, pickle, sys
import pyarrow as pa
from airflow_provider_rfr.lake.data_files import _store_file
from airflow_provider_rfr.lake.files import FileStore, naming
folder = pathlib.Path(sys.argv[1])
layout = pickle.loads((folder / "layout").read_bytes())
ids = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(bytes(16))])
file = _store_file(FileStore({}), str(folder / "a.parquet"), pa.table([ids], names=["id"]), layout)
(folder / "files").write_bytes(pickle.dumps([file]))
assert not {"pandas", "pyarrow.dataset", "pyiceberg.io.pyarrow"} & set(sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (file,) = pickle.loads((tmp_path / "files").read_bytes())
    assert file.rows == 2
    assert file.describe(FileLayout(target_schema(ROWS))).record_count == 2


def test_a_torn_file_has_no_footer_wherever_it_was_cut(tmp_path: Path) -> None:
    layout = FileLayout(target_schema(pa.schema([("id", pa.int64()), ("text", pa.string())])))
    # A Parquet file inside a column: what a cut leaves may end like a whole one.
    inner = {"id": 1, "text": "PAR1" * 8}
    table = pa.Table.from_pylist([inner] * 3, pa.schema([("id", pa.int64()), ("text", pa.string())]))
    write_data_file(f"{tmp_path}/whole.parquet", table, layout, footer={"rfr": "label"})
    whole = (tmp_path / "whole.parquet").read_bytes()
    cut = tmp_path / "cut.parquet"
    for end in range(len(whole)):
        cut.write_bytes(whole[:end])
        assert STORE.read_footer(str(cut)) is None, end
    for end in range(0, len(whole), 7):
        cut.write_bytes(whole[:end].ljust(len(whole), b"\0"))
        assert STORE.read_footer(str(cut)) is None, end
    assert STORE.read_footer(str(tmp_path / "whole.parquet")) is not None


def test_a_missing_and_a_foreign_file_have_no_footer(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    (tmp_path / "text.parquet").write_text("no Parquet at all")
    for name in ("foreign.parquet", "text.parquet", "missing.parquet"):
        assert STORE.read_footer(f"{tmp_path}/{name}") is None


def test_an_error_of_the_system_keeps_the_path_that_it_names_and_gets_one_where_it_names_none(tmp_path: Path) -> None:
    missing = f"{tmp_path}/metadata/snap-1.avro"
    with pytest.raises(FileNotFoundError) as lost, naming("s3://lake/raw.db/t"):
        pafs.LocalFileSystem().open_input_file(missing)
    assert missing in str(lost.value) and "No such file or directory" in str(lost.value)
    check_messages(str(lost.value))
    with raises(OSError), naming("s3://lake/raw.db/t"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")


def test_rows_go_to_the_file_of_their_partition(catalog: SqlCatalog) -> None:
    schema = target_schema(ROWS)
    spec = PartitionSpec(
        PartitionField(schema.find_field("day").field_id, 1000, IdentityTransform(), "day"),
        PartitionField(schema.find_field("at").field_id, 1001, DayTransform(), "at_day"),
    )
    table = catalog.create_table("raw.t", schema, partition_spec=spec)
    records = [*RECORDS, {"id": 99, "day": None, "at": None}]
    files = write_data_files(table.location(), rows(records), FileLayout.of(table))
    assert sum(file.record_count for file in files) == 10
    assert len(files) == 7
    append_files(table, files, {})
    scan = table.scan(row_filter="day = '2026-01-02'")
    assert len(list(scan.plan_files())) == 2
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [1, 4, 7]
    assert table.scan(row_filter="day is null").to_arrow()["id"].to_pylist() == [99]
    assert table.scan().count() == 10


def test_an_inner_field_can_be_the_partition(catalog: SqlCatalog) -> None:
    schema = target_schema(ROWS)
    city = PartitionField(schema.find_field("address.city").field_id, 1000, IdentityTransform(), "city")
    layout = FileLayout(schema, PartitionSpec(city))
    files = write_data_files(catalog.properties["warehouse"], rows(RECORDS[:3]), layout)
    assert [file.partition[0] for file in files] == ["c0", "c1", None]


def test_a_partition_without_a_value_is_refused(tmp_path: Path) -> None:
    schema = target_schema(ROWS)
    spec = PartitionSpec(PartitionField(schema.find_field("id").field_id, 1000, IdentityTransform(), "id"))
    with raises(ValueError):
        write_data_file(f"{tmp_path}/a", rows(), FileLayout(schema, spec))


def test_a_struct_that_no_row_has_is_null_although_its_fields_are_required(catalog: SqlCatalog) -> None:
    sync = StructType(NestedField(3, "sync_id", LongType(), required=True))
    both = StructType(NestedField(4, "of", sync, required=False), NestedField(5, "more", StringType(), required=False))
    columns = (NestedField(1, "id", LongType()), NestedField(2, "meta", sync), NestedField(6, "outer", both))
    table = catalog.create_table("raw.other", Schema(*columns))
    layout = FileLayout.of(table.metadata)
    rows_of_ours = pa.Table.from_pylist([{"id": 1, "outer": {"more": "x"}}, {"id": 2, "outer": None}])
    [file] = write_data_files(f"{table.location()}/data", conform(rows_of_ours, layout.arrow), layout)
    append_files(table, [file], {})
    assert table.scan().to_arrow().to_pylist() == [
        {"id": 1, "meta": None, "outer": {"of": None, "more": "x"}},
        {"id": 2, "meta": None, "outer": None},
    ]


def test_names_that_avro_lacks_are_replaced_in_the_file_and_found_by_id(catalog: SqlCatalog) -> None:
    records: list[dict[str, Any]]
    schema = pa.schema([("größe in cm", pa.int64()), ("a-b", pa.list_(pa.struct([("1 x", pa.string())])))])
    records = [{"größe in cm": 5, "a-b": [{"1 x": "y"}]}, {"größe in cm": None, "a-b": []}]
    table = catalog.create_table("raw.t", target_schema(schema))
    file = write_data_file(f"{table.location()}/a", rows(records, schema), FileLayout.of(table))
    assert all(name.replace("_", "").isalnum() for name in pq.read_schema(file.file_path.removeprefix("file://")).names)
    append_files(table, [file], {})
    assert table.scan().to_arrow().select(schema.names).to_pylist() == records


def test_a_small_file_is_cheap(tmp_path: Path) -> None:
    schema = pa.schema([(f"c{n}", pa.string() if n % 2 else pa.int64()) for n in range(14)])
    values = [[str(n) * 20 for n in range(20)] if field.type == pa.string() else list(range(20)) for field in schema]
    table, layout = pa.table(values, schema=schema), FileLayout(target_schema(schema))
    seconds: dict[str, list[float]] = {"ours": [], "arrow's": []}
    for number in range(30):
        began = time.perf_counter()
        pq.write_table(table, f"{tmp_path}/{number}.arrow", compression="zstd")
        between = time.perf_counter()
        write_data_file(f"{tmp_path}/{number}", table, layout)
        seconds["arrow's"].append(between - began)
        seconds["ours"].append(time.perf_counter() - between)
    ours, arrows = (statistics.median(seconds[whose]) for whose in ("ours", "arrow's"))
    print(f"a file of 17 columns and 20 rows: {ours * 1000:.2f} ms, {ours / arrows:.1f} times Arrow's own writer")
    assert ours < 30 * arrows, "another order of magnitude than the writer below it"


def shaped(values: list[Any], kind: pa.DataType, wanted: Any, *, required: bool = False) -> list[Any]:
    schema = file_schema(Schema(NestedField(1, "a", wanted, required=required)))
    found: list[Any] = conform(pa.table({"a": pa.array(values, kind)}), schema)["a"].to_pylist()
    return found


def test_values_are_matched_by_name_at_every_depth() -> None:
    wanted = StructType(
        NestedField(2, "y", StringType(), required=False), NestedField(3, "x", LongType(), required=False),
        NestedField(4, "new", LongType(), required=False),
    )  # fmt: skip
    values = [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]
    found = shaped(values, pa.struct([("x", pa.int32()), ("y", pa.string())]), wanted)
    assert found == [{"y": "a", "x": 1, "new": None}, None, {"y": "b", "x": None, "new": None}]


def maps(*fields: str) -> pa.DataType:
    """Maps in lists, with structs that have these fields as keys and values."""
    struct = pa.struct([(name, pa.int64()) for name in fields])
    return pa.list_(pa.map_(struct, struct))


def test_values_of_maps_are_matched_by_name_and_keep_their_values_in_files(tmp_path: Path) -> None:
    def in_map(**struct: int | None) -> list[Any]:
        return [[(struct, struct), (struct, None)], None]

    rows = pa.table({"m": pa.array([None, in_map(a=1, **{"x-y": 2}), [], in_map(a=3, **{"x-y": 4})], maps("a", "x-y"))})
    wider = maps("x-y", "new", "a")
    found = conform(rows.slice(1), pa.schema([("m", wider)]))
    assert found["m"].to_pylist() == [in_map(**{"x-y": 2}, new=None, a=1), [], in_map(**{"x-y": 4}, new=None, a=3)]
    with raises(SchemaError):
        conform(rows, pa.schema([("m", maps("a"))]))
    struct = "struct<a:bigint,`x-y`:bigint>"
    layout = FileLayout(table_definition([LiveColumn("m", f"array<map<{struct},{struct}>>")])[0])
    stored = _store_file(STORE, f"{tmp_path}/maps.parquet", rows, layout)
    assert load_file(STORE, stored.location, layout)["m"].to_pylist() == rows["m"].to_pylist()


def test_sliced_lists_keep_their_values() -> None:
    kind = pa.list_(pa.struct([("x", pa.int32())]))
    table = pa.table({"a": pa.array([[{"x": 0}], None, [{"x": 1}, {"x": 2}], []], kind)}).slice(1)
    wanted = target_schema(pa.schema([("a", pa.list_(pa.struct([("x", pa.int64())])))]))
    assert conform(table, file_schema(wanted))["a"].to_pylist() == [None, [{"x": 1}, {"x": 2}], []]


@pytest.mark.parametrize(
    ("values", "kind", "wanted", "required"),
    [
        ([2**60 + 1], pa.int64(), DoubleType(), False),
        (["x"], pa.string(), LongType(), False),
        ([Decimal("1.25")], pa.decimal128(9, 2), DecimalType(9, 1), False),
        ([1, None], pa.int64(), LongType(), True),
        ([{"unknown": 1}], pa.struct([("unknown", pa.int64())]), StructType(), False),
        (
            [{"x": None}],
            pa.struct([("x", pa.int64())]),
            StructType(NestedField(2, "x", LongType(), required=True)),
            False,
        ),
    ],
)
def test_what_would_lose_a_value_is_refused(values: list[Any], kind: pa.DataType, wanted: Any, required: bool) -> None:
    with pytest.raises(SchemaError):
        shaped(values, kind, wanted, required=required)


def test_a_column_that_the_table_lacks_is_refused() -> None:
    with raises(SchemaError):
        conform(pa.table({"extra": [1]}), file_schema(target_schema(pa.schema([]))))
    assert SYSTEM_COLUMNS.names == ["_rfr_generation", "_rfr_extracted_at", "_rfr_meta"]


REGION_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
)
REGION_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
REGION_ROWS = pa.table({"id": [1, 2, 3], "region": ["a", None, "b"]})


def target_in(folder: Path) -> FileTarget:
    layout = FileLayout(REGION_SCHEMA, REGION_SPEC)
    return pickle.loads(pickle.dumps(FileTarget(layout, STORE, f"{folder}/data", layout.arrow, family="d-1-")))


def test_everything_of_the_work_but_what_was_committed_is_collected_by_its_family(tmp_path: Path) -> None:
    dead, alive = (list(target_in(tmp_path).write(REGION_ROWS)) for _ in range(2))
    assert len(dead) == len(alive) == 3
    (tmp_path / "data" / "d-1").mkdir()
    # Where versions before this one kept such files.
    (tmp_path / "data" / "d-1" / "d-1-unit.done.json").write_text("{}")
    other = tmp_path / "data" / "somebody-else.parquet"
    other.write_bytes(b"x")
    target_in(tmp_path).collect([alive[0][0]])
    left = {path for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert left == {other, Path(alive[0][0].location)}


def test_deletions_that_fail_hide_no_result_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no right to delete")

    list(target_in(tmp_path).write(REGION_ROWS))
    monkeypatch.setattr(FileStore, "delete", refuse)
    target_in(tmp_path).discard()
    target_in(tmp_path).collect([])
    monkeypatch.setattr(FileStore, "_open", refuse)
    STORE.tidy_folder(f"{tmp_path}/scratch")
    assert caplog.text.count("no right to delete") == 3
    assert len(list((tmp_path / "data").iterdir())) == 3


def test_rows_that_do_not_fit_the_layout_are_refused(tmp_path: Path) -> None:
    with raises(SchemaError):
        list(target_in(tmp_path).write(REGION_ROWS.append_column("more", [[1, 2, 3]])))
    assert not (tmp_path / "data").exists()
