"""The target's one commit, when others commit too."""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.commits import CommitConflictError, TargetChangedError
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.row_filter import RowFilter, part_of
from airflow_provider_rfr.lake.schemas import target_schema
from airflow_provider_rfr.lake.target import TargetTable
from tests.soon import SOON
from tests.strict_commits import write_files
from tests.unit.messages import raises

NAME = "raw.daily"
written = partial(write_files, rows_stay=True)


def commit(target: TargetTable, files: list[DataFile], day: str, ledger: str = "ledger", generation: int = 1) -> int:
    summary = {"rfr.ledger": ledger, "rfr.generation": str(generation), "rfr.rows": "1"}
    where = f"day = '{day}'"
    return target.commit(files, (ledger, generation), mode="replace", replace_where=where, summary=summary).snapshot_id


def rows(day: str, **values: object) -> pa.Table:
    return pa.table({"day": [day], **{name: [value] for name, value in values.items()}})


def test_two_parts_that_bring_the_same_new_columns_in_another_order_never_mix_them_up(catalog: SqlCatalog) -> None:
    monday, tuesday = TargetTable(catalog, NAME), TargetTable(catalog, NAME)
    first = written(monday, rows("monday", a="A", b="B"))
    second = written(tuesday, rows("tuesday", b="B", a="A"))
    commit(monday, first, "monday")
    with pytest.raises(CommitConflictError):
        commit(tuesday, second, "tuesday")
    tuesday.reload()
    with raises(TargetChangedError):
        commit(tuesday, second, "tuesday")
    commit(tuesday, written(tuesday, rows("tuesday", b="B", a="A")), "tuesday")
    found = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    assert {row["day"]: (row["a"], row["b"]) for row in found} == {"monday": ("A", "B"), "tuesday": ("A", "B")}


def test_a_commit_that_left_the_columns_alone_is_no_reason_to_write_again(catalog: SqlCatalog) -> None:
    commit(target := TargetTable(catalog, NAME), written(target, rows("sunday", a="A")), "sunday")
    monday, tuesday = TargetTable(catalog, NAME), TargetTable(catalog, NAME)
    first, second = written(monday, rows("monday", a="A")), written(tuesday, rows("tuesday", a="A"))
    commit(monday, first, "monday")
    with pytest.raises(CommitConflictError):
        commit(tuesday, second, "tuesday")
    tuesday.reload()
    commit(tuesday, second, "tuesday")
    assert catalog.load_table(NAME).scan().to_arrow().num_rows == 3


def publish(target: TargetTable, rows: pa.Table, generation: int) -> int:
    """Replace the whole table."""
    files = write_files(target, rows, inferred=True)
    summary = {"rfr.ledger": "ledger", "rfr.generation": str(generation)}
    published = target.commit(files, ("ledger", generation), mode="replace", replace_where=None, summary=summary)
    return published.snapshot_id


def test_a_column_changes_its_type_with_the_rows_in_one_commit_and_old_snapshots_keep_theirs(
    catalog: SqlCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = publish(target := TargetTable(catalog, NAME), pa.table({"a": [1, 2], "b": ["x", "y"]}), 1)
    target.reload()
    opened = catalog.load_table(NAME)
    write_files(target, rows := pa.table({"a": [1.5, 2.0], "b": ["x", "y"]}), inferred=True)
    assert catalog.load_table(NAME).metadata_location == opened.metadata_location, "changed before the commit"
    second = publish(target, rows, 2)
    table = catalog.load_table(NAME)
    assert len(table.metadata.metadata_log) == len(opened.metadata.metadata_log) + 1
    assert table.scan().to_arrow()["a"].to_pylist() == [1.5, 2.0]
    assert table.schema().column_names[:2] == ["a", "b"]
    for old in (opened.scan(), table.scan(snapshot_id=first)):
        assert old.to_arrow()["a"].to_pylist() == [1, 2]
        assert old.to_arrow().schema.field("a").type == pa.int64()
    summary = table.snapshot_by_id(second).summary
    assert summary["rfr.schema-changes"] == "replace a long by double"
    assert "raw.daily: the schema changed: replace a long by double" in caplog.messages
    assert "rfr.schema-changes" not in table.snapshot_by_id(first).summary.additional_properties


@pytest.mark.parametrize("columns", [{}, {"c": [True]}])
def test_a_change_of_type_that_met_another_commit_is_planned_again(catalog: SqlCatalog, columns: Any) -> None:
    publish(TargetTable(catalog, NAME), pa.table({"a": [1]}), 1)
    slow, fast = TargetTable(catalog, NAME), TargetTable(catalog, NAME)
    files = write_files(slow, rows := pa.table({"a": [1.5]}), inferred=True)
    publish(fast, pa.table({"a": [7], **columns}), 2)
    args: Any = {"mode": "replace", "replace_where": None, "summary": {}}
    with pytest.raises(CommitConflictError):
        slow.commit(files, ("ledger", 3), **args)
    slow.reload()
    if columns:
        with pytest.raises(TargetChangedError):
            slow.commit(files, ("ledger", 3), **args)
        files = write_files(slow, rows, inferred=True)
    slow.commit(files, ("ledger", 3), **args)
    assert catalog.load_table(NAME).scan().to_arrow()["a"].to_pylist() == [1.5]


def test_each_ledger_s_publication_is_found_behind_those_of_others(catalog: SqlCatalog) -> None:
    target = TargetTable(catalog, NAME)
    snapshots = {}
    for day in ("monday", "tuesday"):
        snapshots[day] = commit(target, written(target, rows(day, a="A")), day, ledger=day, generation=4)
        target.reload()
    for day, snapshot_id in snapshots.items():
        found = target.published(day)
        assert found is not None
        assert (found.generation, found.snapshot_id) == (4, snapshot_id)
    assert target.published("wednesday") is None


def test_a_new_table_is_where_its_files_are_even_if_the_catalog_names_another_place_each_time(
    catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SqlCatalog.create_table_transaction

    def elsewhere(self: SqlCatalog, name: str, schema: Any, location: str | None = None, **more: Any) -> Any:
        return create(self, name, schema, location=location or f"file://{tmp_path}/{uuid4().hex}", **more)

    monkeypatch.setattr(SqlCatalog, "create_table_transaction", elsewhere)
    publish(TargetTable(catalog, "raw.daily"), rows("monday"), 1)
    table = catalog.load_table("raw.daily")
    [file] = [task.file.file_path for task in table.scan().plan_files()]
    assert file.startswith(f"{table.location()}/data/")


def test_a_part_has_one_name_however_its_filter_is_spaced() -> None:
    assert part_of("day = '2026-01-05'") == part_of("day='2026-01-05'")
    assert part_of("day = '2026-01-05'") != part_of("day = '2026-01-06'")
    assert part_of(None) is None


@pytest.mark.parametrize("text", ["", "x", "x =", "= 3", "day = '2026", "a = 1 AND", "; DROP TABLE a"])
def test_what_is_no_filter_is_refused_in_one_short_sentence(text: str) -> None:
    with raises(ConfigurationError) as refused:
        part_of(text)
    assert len(str(refused.value)) < 200


def test_a_column_of_the_filter_that_the_rows_lack_is_null_in_them(catalog: SqlCatalog) -> None:
    schema = target_schema(pa.schema([("id", pa.int64()), ("day", pa.string())]))
    rows_without = pa.table({"id": [1, 2]})
    assert RowFilter("day = 'monday'", schema).count_outside(rows_without) == 2
    assert RowFilter("day is null", schema).count_outside(rows_without) == 0
    with raises(ConfigurationError):
        RowFilter("dya = 'monday'", schema).count_outside(rows_without)


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "file://localhost"])
def test_a_local_file_is_found_by_every_form_of_its_address(tmp_path: Path, prefix: str) -> None:
    store = FileStore({})
    assert store.write(f"{prefix}{tmp_path}/a b%20c.txt", b"x") == 1
    assert (tmp_path / "a b%20c.txt").read_bytes() == b"x"
    assert store.list(f"{prefix}{tmp_path}") == [(f"{prefix}{tmp_path}/a b%20c.txt", 1)]


FIRST_PART = """
import sys
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from airflow_provider_rfr.lake.target import TargetTable
from tests.strict_commits import write_files
catalog = SqlCatalog("t", uri=f"sqlite:///{sys.argv[1]}/c.db", warehouse=f"file://{sys.argv[1]}/warehouse")
for day in "monday", "tuesday":
    rows, target = pa.table({"day": [day]}), TargetTable(catalog, "raw.daily")
    files = write_files(target, rows, rows_stay=True)
    target.commit(files, ("ledger", 1), mode="replace", replace_where=f"day = '{day}'", summary={})
print(catalog.load_table("raw.daily").scan().to_arrow().num_rows)
"""


def test_a_part_without_rows_is_replaced_without_a_warning_of_pyiceberg(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PART, str(tmp_path)], capture_output=True, text=True, check=False, timeout=SOON
    )
    assert (done.stdout, done.stderr) == ("2\n", "")
