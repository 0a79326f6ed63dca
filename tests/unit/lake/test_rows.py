"""Rows of history are there once, whoever appends them and however often, and a day costs one file.

And snapshots that only appended rows are told from others.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, TimestamptzType

from airflow_provider_rfr.exceptions import LedgerError
from airflow_provider_rfr.lake import rows as lake_rows
from airflow_provider_rfr.lake.catalog import create_table
from airflow_provider_rfr.lake.commits import write_table_properties
from airflow_provider_rfr.lake.expiry import TABLE_PROPERTIES, expire_table
from airflow_provider_rfr.lake.rows import SnapshotKind, SourceTable, append_rows_once, merge_days, only_appended
from airflow_provider_rfr.lake.schemas import partition_spec
from tests.unit.messages import raises

NAME = "rfr.ended"
FEW_MANIFESTS = {"commit.manifest.min-count-to-merge": "10"}
"""As the package's own tables are declared."""
MORNING = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
SCHEMA = Schema(
    NestedField(1, "target", StringType(), required=True),
    NestedField(2, "number", LongType(), required=True),
    NestedField(3, "at", TimestamptzType(), required=True),
    NestedField(4, "names", ListType(5, StringType(), element_required=False)),
    identifier_field_ids=[1, 2],
)


@pytest.fixture
def table(catalog: Catalog) -> None:
    create_table(catalog, NAME, SCHEMA, partition_spec(["day(at)"], SCHEMA), {**TABLE_PROPERTIES, **FEW_MANIFESTS})


def rows_of(*numbers: int, target: str = "raw.a", day: int = 0, **more: object) -> list[dict[str, Any]]:
    """Rows as the control store returns them: a minute after each other, times as text."""
    times = [(MORNING + timedelta(days=day, minutes=number)).isoformat() for number in numbers]
    return [{"target": target, "number": n, "at": time, **more} for n, time in zip(numbers, times, strict=True)]


def stored(catalog: Catalog) -> list[tuple[str, int]]:
    rows = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    return sorted((row["target"], row["number"]) for row in rows)


def files_by_day(table: Table) -> list[int]:
    days = Counter(task.file.partition[0] for task in table.scan().plan_files())
    return [days[day] for day in sorted(days, key=str)]


def test_where_there_is_no_table_nothing_is_kept_and_nothing_fails(catalog: Catalog) -> None:
    assert append_rows_once(catalog, NAME, rows_of(1)) is None
    assert merge_days(catalog, NAME) == 0


@pytest.mark.usefixtures("table")
def test_a_row_that_is_appended_twice_is_there_once(catalog: Catalog) -> None:
    assert append_rows_once(catalog, NAME, rows_of(1, 2, 2, names=["a"])) == 2
    assert append_rows_once(catalog, NAME, rows_of(2, 3)) == 1
    assert append_rows_once(catalog, NAME, rows_of(1, target="raw.b")) == 1
    assert stored(catalog) == [("raw.a", 1), ("raw.a", 2), ("raw.a", 3), ("raw.b", 1)]


@pytest.mark.usefixtures("table")
def test_columns_that_the_table_lacks_are_left_out_and_nothing_new_makes_no_commit(catalog: Catalog) -> None:
    assert append_rows_once(catalog, NAME, rows_of(1, invented="x")) == 1
    (row,) = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    assert row == {"target": "raw.a", "number": 1, "at": MORNING + timedelta(minutes=1), "names": None}
    before = catalog.load_table(NAME).current_snapshot()
    assert append_rows_once(catalog, NAME, rows_of(1)) == 0
    assert catalog.load_table(NAME).current_snapshot() == before


@pytest.mark.usefixtures("table")
def test_four_that_append_the_same_at_once_append_it_once(catalog: Catalog) -> None:
    def run(_: int) -> int:
        return sum(append_rows_once(catalog, NAME, rows_of(number)) or 0 for number in range(5))

    with ThreadPoolExecutor(4) as pool:
        appended = list(pool.map(run, range(4)))
    assert sum(appended) == 5
    assert stored(catalog) == [("raw.a", number) for number in range(5)]


def let_another_write_first(catalog: Catalog, numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Append a row after each of the next loads of the table, as long as there are numbers."""
    load = lake_rows.load_table

    def load_before_another_writes(*arguments: Any) -> Any:
        table = load(*arguments)
        if numbers:
            monkeypatch.setattr(lake_rows, "load_table", load)
            append_rows_once(catalog, NAME, rows_of(numbers.pop()))
            monkeypatch.setattr(lake_rows, "load_table", load_before_another_writes)
        return table

    monkeypatch.setattr(lake_rows, "load_table", load_before_another_writes)


@pytest.mark.usefixtures("table")
def test_a_process_that_is_always_too_late_says_so_and_leaves_no_file(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_rows, "_TRIES", 2)
    let_another_write_first(catalog, [100, 101], monkeypatch)
    with raises(LedgerError):
        append_rows_once(catalog, NAME, rows_of(1))
    named = {task.file.file_path for task in catalog.load_table(NAME).scan().plan_files()}
    assert {f"file://{file}" for file in (tmp_path / "w").rglob("*.parquet")} == named


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files that were opened for reading."""
    names: list[str] = []
    new_input = PyArrowFileIO.new_input

    def counted(self: PyArrowFileIO, location: str) -> Any:
        names.append(location)
        return new_input(self, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", counted)
    return names


def upkeep(catalog: Catalog, rows: list[dict[str, Any]]) -> None:
    assert append_rows_once(catalog, NAME, rows) == len(rows)
    if merge_days(catalog, NAME):
        expire_table(catalog, NAME)


@pytest.mark.parametrize(("appends", "early"), [(48, 12), pytest.param(500, 50, marks=pytest.mark.full)])
@pytest.mark.usefixtures("table")
def test_a_late_append_reads_less_than_twice_what_an_early_one_read(
    catalog: Catalog, opened: list[str], appends: int, early: int
) -> None:
    # Snapshots are kept for a day, and these appends take seconds.
    assert write_table_properties(catalog, NAME, {"history.expire.max-snapshot-age-ms": "0"})
    costs: list[int] = []
    for number in range(appends):
        before = len(opened)
        upkeep(catalog, rows_of(number, day=number // 200))
        costs.append(len(opened) - before)
    # Twelve at a time, because about each tenth append is followed by a merge.
    first, last = sum(costs[early - 12 : early]), sum(costs[-12:])
    assert last < 2 * first, f"{first} files were read for twelve early appends, {last} for the last ones"
    assert len(stored(catalog)) == appends
    *closed, newest = files_by_day(catalog.load_table(NAME))
    assert closed == [1] * (appends // 201)
    assert newest < 10
    assert len(catalog.load_table(NAME).inspect.manifests()) < 25


@pytest.mark.usefixtures("table")
def test_the_files_of_a_day_become_one_when_the_next_day_begins(catalog: Catalog) -> None:
    for number in range(4):
        upkeep(catalog, rows_of(number))
    assert files_by_day(catalog.load_table(NAME)) == [4]
    upkeep(catalog, rows_of(9, day=1))
    assert files_by_day(catalog.load_table(NAME)) == [1, 1]
    assert len(stored(catalog)) == 5


@pytest.mark.usefixtures("table")
def test_a_merge_brings_nothing_to_sinks(catalog: Catalog) -> None:
    for number in range(10):
        append_rows_once(catalog, NAME, rows_of(number))
    assert merge_days(catalog, NAME) == 1
    source = SourceTable.load(catalog, NAME)
    assert source is not None
    *appended, merged = source.increments(None)
    assert {increment.kind for increment in appended} == {SnapshotKind.ADDS_ROWS}
    assert merged.kind is SnapshotKind.COMPACTS


@pytest.mark.usefixtures("table")
def test_a_merge_gives_way_to_another_commit_and_leaves_no_file(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        append_rows_once(catalog, NAME, rows_of(number))
    let_another_write_first(catalog, [50], monkeypatch)
    assert merge_days(catalog, NAME) == 0
    assert len(list((tmp_path / "w").rglob("*.parquet"))) == 11
    assert len(stored(catalog)) == 11
    assert merge_days(catalog, NAME) == 1


def test_files_from_before_the_table_was_partitioned_are_put_into_its_days(catalog: Catalog) -> None:
    table = create_table(catalog, NAME, SCHEMA, UNPARTITIONED_PARTITION_SPEC, dict(TABLE_PROPERTIES))
    for day in range(3):
        for number in range(3):
            assert append_rows_once(catalog, NAME, rows_of(number, target=f"raw.{day}", day=day)) == 1
    assert merge_days(catalog, NAME) == 0, "nine files of a single day"
    assert append_rows_once(catalog, NAME, rows_of(2, target="raw.1", day=1)) == 0
    table = catalog.load_table(NAME)
    with table.update_spec() as update:
        update.add_field("at", DayTransform(), "at_day")
    assert append_rows_once(catalog, NAME, rows_of(2, target="raw.1", day=1)) == 0, "found in a file without a day"
    upkeep(catalog, rows_of(7, target="raw.2", day=2))
    table = catalog.load_table(NAME)
    assert {task.file.spec_id for task in table.scan().plan_files()} == {table.spec().spec_id}
    assert len(stored(catalog)) == 10
    assert table.scan().to_arrow().schema.field("at").type == pa.timestamp("us", "UTC")


def test_appends_are_told_from_everything_else(catalog: Catalog) -> None:
    table, snapshots = catalog.create_table("raw.t", pa.schema([("id", pa.int64())])), []
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
