"""Files of a piece of work that may die, and whether a table was only appended to while they were written."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from airflow_provider_rfr.exceptions import SchemaError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.data_files import FileLayout, FileTarget
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.rows import only_appended
from tests.unit.messages import raises

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
)
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
ROWS = pa.table({"id": [1, 2, 3], "region": ["a", None, "b"]})


def target_in(folder: Path) -> FileTarget:
    layout = FileLayout(SCHEMA, SPEC)
    return pickle.loads(pickle.dumps(FileTarget(layout, FileStore({}), f"{folder}/data", layout.arrow, family="d-1-")))


def test_everything_of_the_work_but_what_was_committed_is_collected_by_its_family(tmp_path: Path) -> None:
    dead, alive = (list(target_in(tmp_path).write(ROWS)) for _ in range(2))
    assert len(dead) == len(alive) == 3
    (tmp_path / "data" / "d-1").mkdir()
    # Where versions before this one kept such files.
    (tmp_path / "data" / "d-1" / "d-1-unit.done.json").write_text("{}")
    other = tmp_path / "data" / "somebody-else.parquet"
    other.write_bytes(b"x")
    target_in(tmp_path).collect([alive[0][0]])
    left = {path for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert left == {other, Path(alive[0][0].location)}


def test_rows_that_do_not_fit_the_layout_are_refused(tmp_path: Path) -> None:
    with raises(SchemaError):
        list(target_in(tmp_path).write(ROWS.append_column("more", [[1, 2, 3]])))
    assert not (tmp_path / "data").exists()


@pytest.fixture
def table(tmp_path: Path) -> Any:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog(LakeSettings("rfr", properties))
    catalog.create_namespace("ops")
    return catalog.create_table("ops.t", pa.schema([("id", pa.int64())]))


def test_appends_are_told_from_everything_else(table: Any) -> None:
    snapshots = []
    for number in range(3):
        table.append(pa.table({"id": [number]}))
        snapshots.append(table.current_snapshot().snapshot_id)
    first, second, third = snapshots
    assert only_appended(table, first, third) and only_appended(table, second, third)
    assert only_appended(table, third, third)
    assert not only_appended(table, third, first), "a later snapshot is not on the way to an earlier one"
    assert not only_appended(table, 17, third)
    table.delete("id = 1")
    table.append(pa.table({"id": [4]}))
    assert not only_appended(table, third, table.current_snapshot().snapshot_id)
