"""Files of a piece of work, and notes of what is finished; rows of a table by its data files."""

from __future__ import annotations

import decimal
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestamptzType

from airflow_provider_rfr.exceptions import SchemaError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget, WorkFolder
from airflow_provider_rfr.lake.files import FileStore, input_files

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
    NestedField(3, "at", TimestamptzType(), required=False),
    NestedField(4, "price", DecimalType(9, 2), required=False),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "region"),
    PartitionField(3, 1001, DayTransform(), "at_day"),
    PartitionField(1, 1002, BucketTransform(4), "id_bucket"),
    PartitionField(4, 1003, IdentityTransform(), "price"),
)
ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "region": ["a", None, "a"],
        "at": pa.array([0, 10**15, None], pa.timestamp("us", tz="UTC")),
        "price": pa.array([decimal.Decimal("-1.50"), None, decimal.Decimal("99.99")], pa.decimal128(9, 2)),
    }
)


def work_in(folder: Path, key: str = "k", spec: PartitionSpec = SPEC) -> WorkFolder:
    layout = FileLayout(SCHEMA, spec)
    return WorkFolder(FileTarget(layout, FileStore({}), f"{folder}/data", layout.arrow, family="d-1-"), key)


def test_what_is_noted_is_found_again_with_partitions_and_footers(tmp_path: Path) -> None:
    work = pickle.loads(pickle.dumps(work_in(tmp_path)))
    files = list(work.write(ROWS))
    assert len(files) == 3
    work.note("u1", ["in-1", "in-2"], files)
    work.note("u2", ["in-3"], [])
    one, two = work_in(tmp_path).finished()
    assert (one.inputs, one.rows, two.inputs, two.files) == (("in-1", "in-2"), 3, ("in-3",), ())
    by_location = {each.location: each for each in one.files}
    for file in files:
        found = by_location[file.location]
        assert (found.size, dict(found.partition), found.rows) == (file.size, dict(file.partition), 1)
        layout = work.target.layout
        assert found.describe(layout).lower_bounds == file.describe(layout).lower_bounds


def test_only_what_is_whole_and_of_the_same_work_is_found(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    for unit in ("good", "gone", "torn", "half"):
        work.note(unit, [unit], list(work.write(ROWS.slice(0, 1))))
    good, gone, torn, half = (_note(tmp_path, unit) for unit in ("good", "gone", "torn", "half"))
    Path(json.loads(gone.read_text())["files"][0]["location"]).unlink()
    data = Path(json.loads(torn.read_text())["files"][0]["location"])
    data.write_bytes(data.read_bytes()[:-20])
    half.write_text(half.read_text()[:30])
    assert [each.inputs for each in work.finished()] == [("good",)]
    assert work_in(tmp_path, key="another").finished() == ()
    said = json.loads(good.read_text())
    said["files"][0]["location"] = f"{tmp_path}/elsewhere.parquet"
    good.write_text(json.dumps(said))
    assert work.finished() == ()


def _note(folder: Path, unit: str) -> Path:
    return folder / "data" / "d-1" / f"d-1-{unit}.done.json"


def test_everything_of_the_work_but_what_was_committed_is_collected_by_its_family(tmp_path: Path) -> None:
    work = work_in(tmp_path)
    files = list(work.write(ROWS))
    work.note("u", ["in"], files)
    other = tmp_path / "data" / "somebody-else.parquet"
    other.write_bytes(b"x")
    work.target.collect(files[:1])
    left = {each for each in (tmp_path / "data").rglob("*") if each.is_file()}
    assert left == {other, Path(files[0].location)}


def test_rows_that_do_not_fit_the_layout_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="columns more are not in the table"):
        list(work_in(tmp_path).write(ROWS.append_column("more", [[1, 2, 3]])))
    assert work_in(tmp_path).finished() == ()


@pytest.fixture
def table(tmp_path: Path) -> Any:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog(LakeSettings("rfr", properties))
    catalog.create_namespace("ops")
    return catalog.create_table("ops.t", pa.schema([("id", pa.int64()), ("n", pa.int32())]))


def test_a_snapshot_is_read_file_by_file_with_the_columns_of_now(table: Any) -> None:
    for start in (0, 10):
        table.append(pa.table({"id": list(range(start, start + 3)), "n": pa.array([start] * 3, pa.int32())}))
    snapshot = table.current_snapshot().snapshot_id
    table.append(pa.table({"id": [99], "n": pa.array([99], pa.int32())}))
    with table.update_schema() as update:
        update.rename_column("n", "number")
        update.add_column("more", StringType())
    found = input_files(table, snapshot)
    assert found is not None
    reader, files = pickle.loads(pickle.dumps(found))
    assert [each.rows for each in files] == [3, 3]
    assert len({each.identity for each in files}) == 2
    rows = [row for each in files for batch in reader.read(each) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == [0, 1, 2, 10, 11, 12]
    assert {tuple(row) for row in rows} == {("id", "number", "more")}
    assert "secret" not in repr(reader)
