"""Merges into a table that other engines write to: between two tries of a commit, and between two syncs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh import merge
from airflow_provider_rfr.refresh.publish_changes import ChangesPublisher
from tests.kill_points import intercept
from tests.unit.messages import raises
from tests.unit.refresh.changing_source import ASKED, RECORDS, moment
from tests.unit.refresh.test_incremental import Shop, begun, counted
from tests.unit.refresh.test_incremental import shop as shop

_PATH_ID, _POSITION_ID = 2147483546, 2147483545


class _DeletesWriter(ManifestWriterV2):
    """A writer of a manifest of delete files, which PyIceberg reads and does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A snapshot that adds one file of deletes, as Spark's merge-on-read DELETE and Flink's upserts make it."""

    deletes: DataFile

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self._io.new_output(f"{metadata.location}/metadata/{uuid4().hex}-m0.avro")
        entry = {"status": ManifestEntryStatus.ADDED, "snapshot_id": self.snapshot_id, "data_file": self.deletes}
        entry |= {"sequence_number": None, "file_sequence_number": None}
        with _DeletesWriter(metadata.spec(), metadata.schema(), output, self.snapshot_id, "deflate") as writer:
            writer.add_entry(ManifestEntry.from_args(**entry))
        before = metadata.current_snapshot()
        return [writer.to_manifest_file(), *(before.manifests(self._io) if before is not None else ())]


def delete_positions(table: Table, data_file: str, *ids: int) -> None:
    """Delete rows of a data file by their places, in a file of position deletes."""
    # A publish writes rows in any order.
    written = pq.read_table(data_file.removeprefix("file://"), columns=["id"])["id"].to_pylist()
    positions = sorted(written.index(number) for number in ids)
    columns = (("file_path", pa.string(), _PATH_ID), ("pos", pa.int64(), _POSITION_ID))
    rows = {"file_path": [data_file] * len(positions), "pos": positions}
    add_deletes(table, rows, columns, DataFileContent.POSITION_DELETES, {_PATH_ID: data_file.encode()})


def add_deletes(
    table: Table,
    rows: Any,
    columns: Sequence[tuple[str, pa.DataType, int]],
    content: DataFileContent,
    bounds: Any,
    ids: list[int] | None = None,
) -> None:
    """Add a file of deletes.

    :param columns: name, type and field id of each column
    :param ids: fields that are compared, of equality deletes
    """
    location = f"{table.location()}/data/{uuid4().hex}-deletes.parquet"
    schema = pa.schema([pa.field(name, kind, False, {"PARQUET:field_id": str(at)}) for name, kind, at in columns])
    path = Path(location.removeprefix("file://"))
    written = pa.table(rows, schema=schema)
    pq.write_table(written, path)
    unknown = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "split_offsets")
    deletes = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=written.num_rows,
        file_size_in_bytes=path.stat().st_size,
        lower_bounds=bounds,
        upper_bounds=bounds,
        equality_ids=ids,
        **dict.fromkeys((*unknown, "sort_order_id", "key_metadata")),
    )
    deletes.spec_id = 0
    with table.transaction() as transaction, _RowDelta(Operation.OVERWRITE, transaction, table.io) as delta:
        delta.deletes = deletes


def data_file(shop: Shop) -> str:
    [task] = shop.table.scan().plan_files()
    return str(task.file.file_path)


def before_the_first_try(monkeypatch: pytest.MonkeyPatch, write: Any, times: int = 1) -> list[TargetTable]:
    """Let another writer commit between the plan and the commit; return the tries."""
    tries: list[TargetTable] = []

    def come_first(target: TargetTable, *_: Any) -> None:
        tries.append(target)
        if len(tries) <= times:
            write()

    intercept(TargetTable, "merge", before=come_first, put=monkeypatch.setattr)
    return tries


def test_rows_that_others_delete_by_position_stay_deleted(shop: Shop) -> None:
    begun(shop, 4)
    delete_positions(shop.table, data_file(shop), 2)
    shop.change(1, 10, "changed")
    assert counted(shop.sync()) == {"updated": 1, "unchanged": 1}
    assert shop.rows() == [(0, "x"), (1, "changed"), (3, "x")]


def test_a_full_refresh_replaces_rows_with_equality_deletes_which_a_sync_refuses(shop: Shop) -> None:
    shop.config = {"shops": ["a", "b"]}
    shop.change(9, 0, shop="b")
    begun(shop)
    field_id = shop.table.schema().find_field("id").field_id
    columns = (("id", pa.int64(), field_id),)
    add_deletes(shop.table, {"id": [1]}, columns, DataFileContent.EQUALITY_DELETES, {}, [field_id])
    files = {path.name for path in Path(shop.properties["warehouse"][7:]).glob("raw/orders/data/*")}
    shop.change(2, 10, "changed")
    with raises(ConfigurationError):
        shop.sync()
    shop.config = {"shops": ["b"]}
    with raises(ConfigurationError):
        shop.sync(full=True, replace_where="shop = 'b'")
    assert {path.name for path in Path(shop.properties["warehouse"][7:]).glob("raw/orders/data/*")} == files
    shop.config = {"shops": ["a", "b"]}
    shop.sync(full=True)
    assert shop.rows() == [(0, "x"), (1, "x"), (2, "changed"), (9, "x")]
    assert shop.table.current_snapshot().summary["total-equality-deletes"] == "0"
    assert counted(shop.sync()) == {"unchanged": 2}


def test_a_sync_without_records_counts_the_rows_that_others_left(shop: Shop) -> None:
    begun(shop, 4)
    delete_positions(shop.table, data_file(shop), 2)
    RECORDS.clear()
    assert shop.sync().rows == 3


def test_rows_that_others_delete_between_two_tries_stay_deleted(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(shop, 5)
    file = data_file(shop)
    # One row before the replaced one, so that places in the file differ at the second try.
    tries = before_the_first_try(monkeypatch, lambda: delete_positions(shop.table, file, 0, 2))
    shop.change(1, 10, "changed")
    shop.change(3, 10, "changed")
    figures = shop.sync()
    assert len(tries) == 2
    assert (counted(figures), figures.rows) == ({"updated": 2, "unchanged": 1}, 3)
    assert shop.rows() == [(1, "changed"), (3, "changed"), (4, "x")]


def fill_new_column(shop: Shop) -> None:
    """Add a column as another engine does, with a value in each row."""
    with shop.table.update_schema() as update:
        update.add_column("category", StringType())
    rows = shop.table.scan().to_arrow()
    place = rows.column_names.index("category")
    shop.table.overwrite(rows.set_column(place, "category", pa.array(["gold"] * len(rows))))


@pytest.mark.parametrize("place", ["the plan", "the commit"])
def test_rows_keep_the_values_of_a_column_that_others_add_before(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    begun(shop, 4)
    shop.change(1, 10, "changed")
    if place == "the commit":
        before_the_first_try(monkeypatch, lambda: fill_new_column(shop))
    else:
        writes = [lambda: fill_new_column(shop)]

        def fill(*_: Any) -> None:
            if writes:
                writes.pop()()

        intercept(ChangesPublisher, "_merge_and_commit", before=fill, put=monkeypatch.setattr)
    assert counted(shop.sync())["updated"] >= 1
    rows = shop.table.scan(selected_fields=("id", "value", "category")).to_arrow().to_pylist()
    values = {row["id"]: (row["value"], row["category"]) for row in rows}
    assert (values[0], values[2], values[1][0]) == (("x", "gold"), ("x", "gold"), "changed")


@pytest.mark.parametrize("path", ["id", "place.code", "updated_at"])
def test_a_key_or_cursor_that_others_rename_is_an_error_before_anything_is_read(shop: Shop, path: str) -> None:
    shop.config = {"key": ["id", ["place", "code"]]}
    shop.change(1, 1, place={"code": "a"})
    shop.sync()
    with shop.table.update_schema() as update:
        update.rename_column(tuple(path.split(".")), "other")
    shop.change(1, 10, "changed", place={"code": "a"})
    for window in (None, f"{moment(0)}/{moment(20)}"):
        with raises(ConfigurationError):
            shop.sync(window=window)
    assert (ASKED, shop.table.scan().to_arrow().num_rows) == ([], 1)
    shop.sync(full=True)
    assert shop.rows() == [(1, "changed")]


def test_a_table_without_rows_gets_the_key_from_the_first_record(shop: Shop) -> None:
    shop.sync(allow_empty=True)
    shop.change(1, 1)
    shop.sync()
    shop.change(1, 2, "changed")
    assert counted(shop.sync()) == {"updated": 1, "older_versions": 1}


def rewritten(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of files of each task that writes some again."""
    counts: list[int] = []
    intercept(merge, "rewrite", before=lambda task: counts.append(len(task.replaced)), put=monkeypatch.setattr)
    return counts


def append_other(shop: Shop, number: int) -> None:
    row = shop.table.scan(row_filter="id = 0").to_arrow().slice(0, 1)
    shop.table.append(row.set_column(0, "id", pa.array([number])))


def test_small_files_of_many_partitions_are_left_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.config = {"page_size": 40}
    shop.change(0, 0)
    shop.sync()
    with shop.table.update_spec() as update:
        update.add_identity("value")
    for number in range(1, 36):
        shop.change(number, 1, f"value {number}")
    shop.sync()
    counts = rewritten(monkeypatch)
    RECORDS.clear()
    shop.change(99, 2, "new")
    assert counted(shop.sync()) == {"inserted": 1}
    assert counts == []


def test_small_files_are_written_together_once_however_often_others_come_first(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(shop)
    for number in range(10, 45):
        append_other(shop, number)
    counts = rewritten(monkeypatch)
    numbers = iter((101, 102, 103))
    tries = before_the_first_try(monkeypatch, lambda: append_other(shop, next(numbers)), times=3)
    shop.change(50, 50)
    shop.sync("append")
    assert (len(tries), counts) == (4, [36])
    assert [number for number, _ in shop.rows()] == [0, 1, 2, *range(10, 45), 50, 101, 102, 103]
