"""Incremental syncs against a table: append and merge, what the records become, and the state that the commit keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    LedgerError,
    PublishRefusedError,
    SchemaError,
    SyncStateError,
    TypeMismatchError,
)
from airflow_provider_rfr.lake.sync_state import read_state, write_state
from airflow_provider_rfr.numbers import LongNumber
from airflow_provider_rfr.refresh import merge, merge_task, page_rows
from airflow_provider_rfr.refresh.after_publish import RefreshFigures
from airflow_provider_rfr.refresh.merge_task import SearchTask
from airflow_provider_rfr.refresh.publish import Publisher
from airflow_provider_rfr.refresh.publish_changes import ChangesPublisher
from tests.kill_points import intercept
from tests.unit.messages import raises
from tests.unit.refresh import changing_source
from tests.unit.refresh.changing_source import ASKED, RECORDS, moment
from tests.unit.refresh.in_driver import TABLE, SyncedTable, killed_before_the_mark


class Shop(SyncedTable):
    """A table, and an API whose records change."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config: dict[str, Any] = {}
        self.moved: list[dict[str, str]] = []

    def change(self, number: float, at: float, value: str = "x", shop: str = "a", **more: Any) -> None:
        """Add a version of a record to what the API gives."""
        RECORDS.append({"id": number, "updated_at": moment(at), "value": value, "shop": shop, **more})

    def sync(
        self, mode: str = "merge", full: bool = False, window: str | None = None, run: str | None = None, **options: Any
    ) -> RefreshFigures:
        mode = "replace" if full and mode != "append" else mode
        ASKED.clear()
        return self.run(
            {"class": f"{changing_source.__name__}:Orders", "config": self.config},
            sync="full" if full else "incremental",
            window=window,
            run={"key": run, "moved": self.moved},
            options={"mode": mode, "max_deleted": 1, "max_shrink": None, **options},
        )

    @property
    def state(self) -> dict[str, str]:
        state = read_state(self.table)
        assert state is not None
        return dict(state.values)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    RECORDS.clear()
    yield Shop(tmp_path)
    RECORDS.clear()


def test_the_first_sync_reads_everything_and_the_next_one_changes_alone(shop: Shop) -> None:
    for number in range(5):
        shop.change(number, number)
    first = shop.sync()
    assert (first.rows, first.changes) == (5, None)
    assert shop.state == {'{"shop":"a"}': "2024-01-01T00:00:04.000000Z"}
    shop.change(1, 10, "changed")
    shop.change(7, 11, "new")
    second = shop.sync()
    assert {bound for bound, _ in ASKED} == {"2024-01-01T00:00:04.000000Z"}
    assert shop.rows() == [(0, "x"), (1, "changed"), (2, "x"), (3, "x"), (4, "x"), (7, "new")]
    assert second.changes == {
        "inserted": 1,
        "updated": 1,
        "unchanged": 1,  # the last record of the first sync, which is at the bound
        "stale": 0,
        "deleted": 0,
        "unknown_deletions": 0,
        "older_versions": 0,
        "outside": 0,
    }
    assert second.rows == 6
    assert shop.state == {'{"shop":"a"}': "2024-01-01T00:00:11.000000Z"}


def counted(figures: RefreshFigures) -> dict[str, int]:
    """What became of the records, without zeros."""
    assert figures.changes is not None
    return {name: count for name, count in figures.changes.items() if count}


def begun(shop: Shop, rows: int = 3, mode: str = "merge") -> None:
    """Sync a table with these rows."""
    for number in range(rows):
        shop.change(number, number)
    shop.sync(mode)


def test_a_record_that_is_deleted_removes_its_row_and_an_unknown_one_nothing(shop: Shop) -> None:
    begun(shop)
    shop.change(1, 10, deleted=True)
    shop.change(9, 10, deleted=True)
    assert counted(shop.sync()) == {"deleted": 1, "unknown_deletions": 1, "unchanged": 1}
    assert shop.rows() == [(0, "x"), (2, "x")]


def delete(number: int | None, **more: Any) -> None:
    """Add a deletion without a cursor value, as feeds of changes send it."""
    RECORDS.append({"id": number, "shop": "a", "deleted": True, **more})


@pytest.mark.parametrize("page_size", [1, 10])
@pytest.mark.parametrize("full", [False, True])
def test_a_deletion_without_a_cursor_value_is_newer_than_all_that_was_fetched_before(
    shop: Shop, page_size: int, full: bool
) -> None:
    shop.config = {"page_size": page_size}
    begun(shop, 5)
    if not full:
        RECORDS.clear()
    delete(1)
    shop.change(2, 40, "new")
    delete(2)
    delete(3)
    shop.change(3, 40, "again")
    shop.change(3, 41, "and newer")
    shop.change(3, 40, "older")
    figures = shop.sync(full=full)
    assert full or counted(figures) == {"deleted": 2, "updated": 1, "older_versions": 4}
    assert shop.rows() == [(0, "x"), (3, "and newer"), (4, "x")]


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_sync_may_read_nothing_but_deletions_without_cursor_values(shop: Shop, mode: str) -> None:
    begun(shop, mode=mode)
    RECORDS.clear()
    delete(1, updated_at=None)
    delete(9)
    changes = {"deleted": 1, "unknown_deletions": 1} if mode == "merge" else {"inserted": 2}
    assert counted(shop.sync(mode)) == changes
    assert shop.state == {'{"shop":"a"}': "2024-01-01T00:00:02.000000Z"}


def test_other_fields_of_a_deletion_make_no_column_and_need_fit_none(shop: Shop) -> None:
    for number in range(3):
        shop.change(number, number, amount=number)
    shop.sync()
    delete(1, amount="none", reason="sold")
    shop.change(2, 10, amount=7)
    assert counted(shop.sync()) == {"deleted": 1, "updated": 1, "older_versions": 1}
    columns = shop.table.schema()
    assert (str(columns.find_type("amount")), "reason" in columns.column_names) == ("long", False)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_required_column_needs_no_value_where_no_row_is_written(shop: Shop, deletes: bool) -> None:
    begun(shop)
    with shop.table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("value", required=True)
    RECORDS.clear()
    if deletes:
        delete(1)
    assert counted(shop.sync()) == ({"deleted": 1} if deletes else {})
    if not deletes:
        shop.sync(full=True, allow_empty=True)
        assert shop.rows() == []


def test_deleted_records_are_left_out_of_a_full_refresh(shop: Shop) -> None:
    shop.change(0, 0)
    shop.change(1, 1, deleted=True)
    shop.sync()
    assert shop.rows() == [(0, "x")]
    assert "_rfr_deleted" not in shop.table.schema().column_names


def test_of_several_versions_in_a_batch_the_newest_by_cursor_counts(shop: Shop) -> None:
    begun(shop)
    shop.change(1, 12, "newest")
    shop.change(1, 11, "older")
    shop.change(5, 13, "gone")
    shop.change(5, 14, deleted=True)
    assert counted(shop.sync()) == {"updated": 1, "older_versions": 2, "unknown_deletions": 1, "unchanged": 1}
    assert shop.rows() == [(0, "x"), (1, "newest"), (2, "x")]


def test_a_record_that_is_older_than_the_row_is_stale(shop: Shop) -> None:
    begun(shop)
    shop.change(1, 20, "new")
    shop.sync()
    RECORDS.clear()
    shop.config = {"shops": ["a", "b"]}
    shop.change(1, 15, "of a second shop, and older", shop="b")
    assert counted(shop.sync()) == {"stale": 1}
    assert (1, "new") in shop.rows()


def test_a_record_without_a_cursor_value_is_older_than_any_row_with_one(shop: Shop) -> None:
    begun(shop)
    for number, value in ((0, "lost"), (7, "added")):
        shop.change(number, 0, value)
        RECORDS[-1]["updated_at"] = None
    assert counted(shop.sync()) == {"inserted": 1, "stale": 1, "unchanged": 1}
    assert {(0, "x"), (7, "added")} <= set(shop.rows())
    RECORDS[-1]["value"] = "again"
    assert counted(shop.sync()) == {"updated": 1, "stale": 1, "unchanged": 1}


def test_unchanged_records_make_no_commit_and_no_file(shop: Shop) -> None:
    begun(shop)
    before = (
        shop.table.metadata.current_snapshot_id,
        sorted(Path(shop.properties["warehouse"][7:]).glob("raw/orders/data/*")),
    )
    assert counted(shop.sync()) == {"unchanged": 1}
    assert (
        shop.table.metadata.current_snapshot_id,
        sorted(Path(shop.properties["warehouse"][7:]).glob("raw/orders/data/*")),
    ) == before


def test_append_keeps_every_version_and_none_twice(shop: Shop) -> None:
    begun(shop)
    shop.change(1, 10, "a")
    shop.change(1, 11, "b")
    assert counted(shop.sync("append")) == {"inserted": 2, "unchanged": 1}
    assert shop.rows() == [(0, "x"), (1, "a"), (1, "b"), (1, "x"), (2, "x")]
    assert counted(shop.sync("append")) == {"unchanged": 1}


def test_append_without_a_key_compares_whole_rows(shop: Shop) -> None:
    shop.config = {"key": None, "deletes": False}
    begun(shop, mode="append")
    shop.change(2, 2, "other")
    assert counted(shop.sync("append")) == {"inserted": 1, "unchanged": 1}


def test_of_equal_cursors_in_a_page_the_last_record_counts(shop: Shop) -> None:
    begun(shop)
    with shop.table.update_spec() as spec:
        spec.add_identity("value")
    shop.change(1, 10, deleted=True)
    shop.change(1, 10, "again")
    shop.change(2, 10, "z")
    shop.change(2, 10, "a")
    shop.change(0, 10, "gone")
    shop.change(0, 10, deleted=True)
    shop.config = {"page_size": 10}
    assert counted(shop.sync()) == {"updated": 2, "deleted": 1, "older_versions": 4}
    assert shop.rows() == [(1, "again"), (2, "a")]


@pytest.mark.parametrize("full", [False, True])
def test_of_equal_cursors_the_later_page_counts_whatever_the_clock_says(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    begun(shop)
    shop.config = {"page_size": 1}
    for number in range(4):
        shop.change(1, 10, f"version {number}")
    calls = count()
    monkeypatch.setattr(page_rows, "time", SimpleNamespace(time_ns=lambda: (100 - next(calls)) * 1_000_000))
    shop.sync(full=full)
    assert dict(shop.rows())[1] == "version 3"


def test_append_without_a_key_takes_nulls_nested_values_and_equal_rows(shop: Shop) -> None:
    shop.config = {"key": None, "deletes": False}
    more = {"note": None, "size": {"width": 1}, "tags": ["a", "b"]}
    shop.change(1, 1, **more)
    shop.change(1, 1, **more)
    shop.sync("append")
    assert shop.rows() == [(1, "x"), (1, "x")]
    assert counted(shop.sync("append")) == {"unchanged": 2}
    shop.change(1, 1, **{**more, "size": {"width": 2}})
    shop.change(1, 2, **more)
    shop.change(1, 2, **more)
    shop.change(1, 2, **{**more, "note": ""})
    assert counted(shop.sync("append")) == {"inserted": 4, "unchanged": 2}
    assert counted(shop.sync("append")) == {"unchanged": 3}
    assert len(shop.rows()) == 6


def test_append_without_a_key_compares_columns_that_the_batch_lacks(shop: Shop) -> None:
    shop.config = {"key": None, "deletes": False}
    shop.change(1, 1, note="a")
    shop.sync("append")
    RECORDS.clear()
    shop.change(1, 1)
    assert counted(shop.sync("append")) == {"inserted": 1}
    shop.change(1, 1, note="a")
    assert counted(shop.sync("append")) == {"unchanged": 2}


def test_append_without_a_key_ignores_columns_that_other_tools_wrote(shop: Shop) -> None:
    shop.config = {"key": None, "deletes": False}
    begun(shop, mode="append")
    with shop.table.update_schema() as update:
        update.add_column("_dlt_id", StringType())
    rows = shop.table.scan().to_arrow()
    shop.table.overwrite(rows.set_column(rows.schema.get_field_index("_dlt_id"), "_dlt_id", pa.array(["i"] * 3)))
    assert counted(shop.sync("append")) == {"unchanged": 1}


def test_append_takes_a_stream_whose_cursor_is_its_only_column(shop: Shop) -> None:
    shop.config = {"key": None, "deletes": False, "only": ["updated_at"]}
    shop.change(1, 1)
    shop.sync("append")
    shop.change(1, 2)
    assert counted(shop.sync("append")) == {"inserted": 1, "unchanged": 1}


def test_append_takes_a_record_without_a_cursor_once(shop: Shop) -> None:
    begun(shop, mode="append")
    shop.change(7, 0)
    RECORDS[-1]["updated_at"] = None
    assert counted(shop.sync("append")) == {"inserted": 1, "unchanged": 1}
    assert counted(shop.sync("append")) == {"unchanged": 2}
    shop.change(8, 9)
    RECORDS[-1]["id"] = None
    with pytest.raises(PublishRefusedError, match="id is null"):
        shop.sync("append")


def files_searched(shop: Shop, monkeypatch: pytest.MonkeyPatch, mode: str) -> int:
    """Sync, and return how many files of the table were searched for keys."""
    searched = [0]

    def note(task: SearchTask) -> None:
        searched[0] += len(task.files)

    with monkeypatch.context() as patch:
        intercept(merge, "find_hits", before=note, put=patch.setattr)
        shop.sync(mode)
    return searched[0]


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_files_that_can_not_have_the_keys_are_not_read(shop: Shop, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    begun(shop, mode=mode)
    for number in range(10, 20):
        shop.change(number, number)
        shop.sync(mode)
    assert len(list(shop.table.scan().plan_files())) == 11
    shop.change(30, 30)
    # The file of the record at the bound, which is read again.
    assert files_searched(shop, monkeypatch, mode) == 1


def test_files_are_chosen_by_each_column_of_a_key(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.config = {"key": ["shop", "id"]}
    begun(shop)
    for number in range(10, 20):
        shop.change(number, number)
        shop.sync()
    shop.change(30, 30)
    assert files_searched(shop, monkeypatch, "merge") == 1, "all have the shop, and one a key from 19 to 30"


def test_keys_of_a_large_batch_are_searched_share_by_share(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_task, "_KEYS_AT_ONCE", 3)
    begun(shop, rows=20)
    for number in [*range(5, 17), *range(30, 40)]:
        shop.change(number, 100 + number, "new")
    shop.change(9, 500, "newest")
    assert counted(shop.sync()) == {"inserted": 10, "updated": 12, "unchanged": 1, "older_versions": 1}
    kept = [(number, "x") for number in (*range(5), 17, 18, 19)]
    changed = [(number, "newest" if number == 9 else "new") for number in (*range(5, 17), *range(30, 40))]
    assert shop.rows() == sorted(kept + changed)


def test_a_rollback_takes_the_state_back_with_the_rows(shop: Shop) -> None:
    begun(shop)
    before = shop.table.metadata.current_snapshot_id
    shop.change(1, 10, "changed")
    shop.sync()
    shop.table.manage_snapshots().rollback_to_snapshot(before).commit()
    assert shop.state == {'{"shop":"a"}': "2024-01-01T00:00:02.000000Z"}
    assert counted(shop.sync()) == {"updated": 1, "unchanged": 1}
    assert (1, "changed") in shop.rows()


def test_a_sync_whose_state_another_engine_expired_is_refused_until_a_full_refresh(shop: Shop) -> None:
    begun(shop)
    shop.table.append(shop.table.scan(row_filter="id = 0").to_arrow().set_column(0, "id", pa.array([77])))
    [with_state, _] = [snapshot.snapshot_id for snapshot in shop.table.metadata.snapshots]
    shop.table.maintenance.expire_snapshots().by_id(with_state).commit()
    with raises(SyncStateError):
        shop.sync()
    assert not ASKED
    assert [number for number, _ in shop.rows()] == [0, 1, 2, 77]
    shop.sync(full=True)
    assert counted(shop.sync()) == {"unchanged": 1}


def test_a_full_refresh_in_between_replaces_rows_and_state(shop: Shop) -> None:
    begun(shop)
    RECORDS.clear()
    shop.change(5, 50)
    shop.sync(full=True)
    assert shop.rows() == [(5, "x")]
    assert shop.state == {'{"shop":"a"}': "2024-01-01T00:00:50.000000Z"}


def test_keys_that_the_table_has_twice_are_replaced_as_a_whole(shop: Shop) -> None:
    begun(shop)
    shop.table.append(shop.table.scan(row_filter="id = 1").to_arrow())
    shop.change(1, 10, "once")
    assert counted(shop.sync()) == {"updated": 1, "unchanged": 1}
    assert shop.rows() == [(0, "x"), (1, "once"), (2, "x")]


def test_rows_that_others_deleted_stay_deleted(shop: Shop) -> None:
    begun(shop, 4)
    shop.table.delete("id = 0")
    shop.change(1, 10, "changed")
    shop.sync()
    assert shop.rows() == [(1, "changed"), (2, "x"), (3, "x")]


def test_new_columns_are_added_and_old_rows_have_none(shop: Shop) -> None:
    begun(shop)
    shop.change(1, 10, "changed", more=5)
    shop.sync()
    rows = shop.table.scan().to_arrow().to_pylist()
    assert {row["id"]: row["more"] for row in rows} == {0: None, 1: 5, 2: None}


def test_a_cursor_of_local_times_takes_no_offset(shop: Shop) -> None:
    shop.config = {"timezone": "America/New_York"}
    shop.change(1, 0)
    with raises(TypeMismatchError):
        shop.sync()
    RECORDS[0]["updated_at"] = "2024-01-01T00:00:00"
    shop.change(2, 0)
    RECORDS[1]["updated_at"] = "2024-01-01"
    shop.sync()
    assert shop.state == {'{"shop":"a"}': "2024-01-01T05:00:00.000000Z"}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("zone", "first", "later"),
    [
        ("Europe/Berlin", "2024-10-27T02:50:00", "2024-10-27T02:10:00"),
        ("Australia/Lord_Howe", "2024-04-07T01:55:00", "2024-04-07T01:35:00"),
    ],
)
def test_of_local_times_in_an_hour_that_comes_twice_the_one_that_was_fetched_later_is_newer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, zone: str, first: str, later: str, full: bool
) -> None:
    monkeypatch.setattr(changing_source.Orders, "_asked", staticmethod(lambda *_: True))
    shop.config = {"timezone": zone}
    for number in range(2):
        shop.change(number, 0, "first")
        RECORDS[-1]["updated_at"] = first
    shop.sync()
    shop.change(0, 0, "later")
    shop.change(1, 0, deleted=True)
    shop.change(2, 0, "an hour before")
    for record, local in zip(RECORDS[2:], (later, later, f"{first[:11]}01:00:00"), strict=True):
        record["updated_at"] = local
    RECORDS.append({**RECORDS[2], "updated_at": f"{first[:11]}01:10:00"})
    shop.sync(full=full)
    assert shop.rows() == [(0, "later"), (2, "an hour before")]


def test_integers_and_partitions_have_states_of_their_own(shop: Shop) -> None:
    shop.config = {"shops": ["a", "b"], "cursor": "version"}
    shop.change(1, 0, version=2**60)
    shop.change(2, 0, shop="b", version=7)
    shop.sync()
    assert shop.state == {'{"shop":"a"}': str(2**60), '{"shop":"b"}': "7"}
    shop.config["shops"] = ["a", "b", "c"]
    shop.change(3, 0, shop="c", version=1)
    shop.change(2, 0, "changed", shop="b", version=8)
    assert counted(shop.sync()) == {"inserted": 1, "updated": 1, "unchanged": 1, "older_versions": 1}
    assert {bound for bound, token in ASKED if not token} == {"", "7", str(2**60)}


@pytest.mark.parametrize("full", [False, True])
def test_a_deletion_without_a_cursor_value_removes_no_row_of_another_partition(shop: Shop, full: bool) -> None:
    """The record moved from b to a, which is read first."""
    shop.config = {"shops": ["a", "b"], "key": "id"}
    shop.change(1, 0, shop="b")
    shop.change(2, 0, shop="a")
    shop.sync()
    RECORDS[:] = [record for record in RECORDS if record["id"] != 1]
    shop.change(1, 50, "moved", shop="a")
    RECORDS.append({"id": 1, "shop": "b", "deleted": True})
    shop.sync(full=full)
    assert shop.rows() == [(1, "moved"), (2, "x")]


def test_a_time_that_has_not_come_yet_does_not_hide_later_changes(shop: Shop) -> None:
    begun(shop)
    RECORDS.append({"id": 8, "updated_at": "9999-01-01T00:00:00Z", "value": "mistake", "shop": "a"})
    shop.sync()
    opened = shop.state['{"shop":"a"}']
    assert opened < "2100"
    shop.change(9, 0, "late")
    RECORDS[-1]["updated_at"] = opened
    shop.sync()
    assert (9, "late") in shop.rows()


def test_a_state_that_has_not_come_yet_is_refused_but_by_a_window(shop: Shop) -> None:
    begun(shop)
    state = read_state(shop.table)
    assert state is not None
    write_state(shop.catalog, TABLE, replace(state, values={'{"shop":"a"}': "2900-01-01T00:00:00.000000Z"}))
    with raises(SyncStateError):
        shop.sync()
    assert not ASKED
    shop.sync(window=f"{moment(0)}/{moment(2)}")
    shop.sync(full=True)
    assert counted(shop.sync()) == {"unchanged": 1}


def test_keys_of_several_columns_and_nested_values_are_compared_exactly(shop: Shop) -> None:
    shop.config = {"key": ["id", ["place", "code"]]}
    for number, code in ((1, "1"), (11, ""), (1, "11"), (2, "x")):
        shop.change(number, 0, place={"code": code, "tags": ["a", None]})
    shop.sync()
    RECORDS.clear()
    shop.change(1, 0, place={"code": "1", "tags": ["a", None]})
    shop.change(11, 1, "changed", place={"code": "", "tags": ["a"]})
    shop.change(1, 1, place={"code": "111", "tags": []})
    assert counted(shop.sync()) == {"unchanged": 1, "updated": 1, "inserted": 1}
    assert shop.rows() == [(1, "x"), (1, "x"), (1, "x"), (2, "x"), (11, "changed")]


def test_a_record_without_a_key_is_named(shop: Shop) -> None:
    begun(shop)
    shop.change(3, 10)
    RECORDS[-1]["id"] = None
    with pytest.raises(PublishRefusedError, match=r"partition .*, page 1, record 2: id is null"):
        shop.sync()
    assert shop.rows() == [(0, "x"), (1, "x"), (2, "x")]


def test_rows_that_a_sync_will_merge_into_need_a_key_and_those_of_a_full_refresh_do_not(shop: Shop) -> None:
    shop.change(1, 0)
    shop.change(2, 5)
    RECORDS[-1]["id"] = None
    with raises(PublishRefusedError):
        shop.sync()
    assert not shop.catalog.table_exists(TABLE)
    assert shop.sync(full=True).rows == 2
    assert read_state(shop.table) is None
    with raises(PublishRefusedError):
        shop.sync()


def data_files(shop: Shop) -> set[str]:
    return {path.name for path in Path(shop.properties["warehouse"][7:]).glob("raw/orders/data/*")}


def test_a_first_sync_that_is_refused_leaves_no_files(shop: Shop) -> None:
    shop.change(6, 0)
    RECORDS[-1]["updated_at"] = "soon"
    with pytest.raises(PublishRefusedError):
        shop.sync()
    assert data_files(shop) == set()


def test_a_sync_that_is_refused_after_a_rollback_leaves_no_files(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(shop)
    snapshot = shop.table.metadata.current_snapshot_id
    shop.change(3, 3)
    shop.sync()
    before = data_files(shop)
    shop.change(4, 4)

    def roll_back(*_: Any) -> None:
        shop.table.manage_snapshots().rollback_to_snapshot(snapshot).commit()

    with monkeypatch.context() as patched, raises(LedgerError):
        intercept(ChangesPublisher, "_merge_and_commit", before=roll_back, put=patched.setattr)
        shop.sync()
    assert data_files(shop) == before


@pytest.mark.parametrize("key", [2**53, -1e18, 1234567890123456769, LongNumber("0.1234567890123456789")])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_key_that_doubles_can_not_tell_apart_is_refused(shop: Shop, key: float, is_first: bool) -> None:
    shop.config = {"columns": {"id": "double", "updated_at": "timestamp", "value": "string", "shop": "string"}}
    for number in (2**53 - 1, 1 - 2**53, 0.5):
        shop.change(number, 0)
    if not is_first:
        shop.sync()
    shop.change(key, 10)
    with raises(SchemaError):
        shop.sync()
    assert is_first or len(shop.rows()) == 3


@pytest.mark.parametrize("key", ["id", ["id", "shop"]])
def test_zeros_of_both_signs_are_one_key(shop: Shop, key: Any) -> None:
    shop.config = {"key": key, "columns": {"id": "double"}}
    for number, value in ((-0.0, "negative"), (1.5, "x")):
        shop.change(number, 0, value)
    shop.sync()
    RECORDS.clear()
    shop.change(0.0, 10, "positive")
    assert counted(shop.sync()) == {"updated": 1}
    RECORDS.clear()
    shop.change(-0.0, 20, "negative")
    shop.change(0.0, 21, "positive again")
    assert counted(shop.sync()) == {"updated": 1, "older_versions": 1}
    assert shop.rows() == [(0, "positive again"), (1.5, "x")]


@pytest.mark.parametrize(("place", "error"), [(None, ConfigurationError), ({"code": None}, PublishRefusedError)])
def test_a_nested_key_that_is_null_in_all_records_is_named(shop: Shop, place: Any, error: type[Exception]) -> None:
    shop.config = {"key": [["place", "code"]]}
    shop.change(1, 0, place={"code": "a"})
    shop.sync()
    RECORDS.clear()
    shop.change(2, 1, place=place)
    with raises(error):
        shop.sync()


def test_an_empty_sync_has_no_word_on_the_fields_of_its_records(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.config = {"columns": {"updated_at": "timestamp", "vlaue": "string"}}
    begun(shop)
    assert "no record has these fields, which are named in columns: vlaue" in caplog.text
    caplog.clear()
    RECORDS.clear()
    assert counted(shop.sync()) == {}
    assert "no record has" not in caplog.text


def test_too_many_deletions_are_refused_and_allowed_without_reading_again(shop: Shop) -> None:
    begun(shop)
    shop.change(1, 10, deleted=True)
    with pytest.raises(PublishRefusedError, match="max_deleted"):
        shop.sync(max_deleted=0.2)
    shop.sync(max_deleted=0.5)
    assert not ASKED
    assert shop.rows() == [(0, "x"), (2, "x")]


def test_a_merge_that_would_write_too_much_again_is_refused(shop: Shop) -> None:
    begun(shop)
    shop.change(1, 10, "changed")
    with pytest.raises(PublishRefusedError, match="max_rewrite_bytes"):
        shop.sync(max_rewrite_bytes=1)


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_small_files_are_written_together(shop: Shop, mode: str) -> None:
    begun(shop)
    for number in range(10, 50):
        shop.change(number, number)
        shop.sync(mode)
    assert len(list(shop.table.scan().plan_files())) < 36
    assert [number for number, _ in shop.rows()] == [0, 1, 2, *range(10, 50)]


def test_small_files_are_left_alone_by_a_sync_that_inserts_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(shop)
    for number in range(10, 45):
        shop.table.append(shop.table.scan(row_filter="id = 0").to_arrow().set_column(0, "id", pa.array([number])))
    files_of_tasks = []
    intercept(merge, "rewrite", before=lambda task: files_of_tasks.append(len(task.replaced)), put=monkeypatch.setattr)
    assert counted(shop.sync()) == {"unchanged": 1}
    assert files_of_tasks == [1]  # that of the record


def test_another_cursor_asks_for_a_full_refresh(shop: Shop) -> None:
    shop.config = {"cursor": "version"}
    shop.change(1, 0, version=1)
    shop.sync()
    shop.config = {}
    with pytest.raises(SyncStateError, match="full_refresh"):
        shop.sync()
    shop.sync(full=True)
    assert shop.state == {'{"shop":"a"}': "2024-01-01T00:00:00.000000Z"}


def test_a_full_load_that_landed_unmarked_is_not_read_again_by_the_next_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        shop.change(number, number)
    with killed_before_the_mark(monkeypatch):
        shop.sync(run="dag/first/task/-1/0")
    assert counted(shop.sync(run="dag/second/task/-1/0")) == {"unchanged": 1}


@pytest.mark.parametrize("mode", ["merge", "append"])
def test_another_api_behind_the_connection_is_read_whole_once(shop: Shop, mode: str) -> None:
    begun(shop, mode=mode)
    RECORDS.clear()
    shop.change(50, -10, "older than the state")
    shop.moved = [{"upstream": "other"}, {"base_url": "http://other"}]
    with pytest.raises(SyncStateError, match="another API|before"):
        shop.sync("merge", window="2024-01-01T00:00:00Z/2024-01-02T00:00:00Z")
    assert shop.sync(mode).changes is None
    assert shop.rows() == [(50, "older than the state")]
    shop.change(51, 20)
    assert counted(shop.sync(mode))["inserted"] == 1
    shop.moved = []  # the control store is away
    shop.change(52, 21)
    assert counted(shop.sync(mode))["inserted"] == 1
    shop.moved = [{"upstream": "third"}, {"base_url": "http://third"}]
    assert shop.sync(mode).changes is None


def test_no_break_and_no_former_state_lets_rows_of_two_apis_meet(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(shop, 20)
    rows, former, snapshot = shop.rows(), read_state(shop.table), shop.table.metadata.current_snapshot_id
    assert former is not None
    RECORDS.clear()
    shop.change(50, -10, "of the other")
    shop.moved = [{"upstream": "other"}, {"base_url": "http://other"}]
    with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
        patched.setattr(Publisher, "publish", fails)
        shop.sync()
    with pytest.raises(PublishRefusedError, match="max_shrink"):
        shop.sync(max_shrink=0.5)
    assert (ASKED, shop.rows()) == ([], rows)
    shop.sync()
    assert (ASKED, shop.rows()) == ([], [(50, "of the other")])
    for restore in (
        lambda: shop.table.manage_snapshots().rollback_to_snapshot(snapshot).commit(),
        lambda: write_state(shop.catalog, TABLE, former),
        lambda: shop.sync(full=True),
    ):
        restore()
        shop.sync()
        assert shop.rows() == [(50, "of the other")]
        assert counted(shop.sync()) == {"unchanged": 1}


def test_records_without_any_cursor_value_are_refused(shop: Shop) -> None:
    begun(shop)
    RECORDS.clear()
    shop.change(6, 0, "y")
    RECORDS[-1]["updated_at"] = "soon"
    with pytest.raises(PublishRefusedError, match="none of 1 records has a usable cursor"):
        shop.sync()


def test_a_first_sync_without_any_cursor_value_publishes_nothing_and_a_full_refresh_its_rows(shop: Shop) -> None:
    shop.change(6, 0, "y")
    RECORDS[-1]["updated_at"] = "soon"
    with pytest.raises(PublishRefusedError, match="none of 1 records has a usable cursor"):
        shop.sync()
    assert not shop.catalog.table_exists(TABLE)
    shop.sync(full=True)
    assert shop.rows() == [(6, "y")]


def test_keys_that_differ_only_in_type_are_refused_until_the_stream_declares_one(shop: Shop) -> None:
    shop.config = {"page_size": 4}  # one page, so that no retry asks again
    shop.change(4, 9)
    RECORDS[-1]["id"] = "4"
    shop.sync()
    shop.change(5, 10)
    shop.change(5, 11, "newest")
    RECORDS[-1]["id"] = "5"
    with raises(PublishRefusedError):
        shop.sync()
    shop.config |= {"columns": {"id": "string"}}
    assert counted(shop.sync()) == {"inserted": 1, "older_versions": 1, "unchanged": 1}
    merged = shop.rows()
    assert merged == [("4", "x"), ("5", "newest")]
    shop.sync(full=True)
    assert shop.rows() == merged


def test_a_nested_key_gets_its_type_from_json_schema(shop: Shop) -> None:
    shop.config = {"key": [["place", "code"]]}
    shop.change(1, 0, place={"code": "a"})
    shop.sync()
    for number, code in enumerate((7, "7"), 1):
        shop.change(number, number, place={"code": code})
    with pytest.raises(PublishRefusedError, match="place.code .* give it a type in json_schema of the stream"):
        shop.sync()
    texts = {name: {"type": "string"} for name in ("updated_at", "value", "shop")}
    place = {"type": "object", "properties": {"code": {"type": "string"}}}
    shop.config["json_schema"] = {"properties": {**texts, "id": {"type": "integer"}, "place": place}}
    assert counted(shop.sync()) == {"inserted": 1, "older_versions": 1, "unchanged": 1}


def fails(*_: Any, **__: Any) -> None:
    raise OSError("the catalog is away")


class TestWindow:
    """Backfills: a fixed window of the cursor, which leaves the state as it is."""

    WINDOW = f"{moment(1)}/{moment(3)}"

    def test_records_from_the_start_on_and_before_the_end_are_merged_and_the_others_left_out(self, shop: Shop) -> None:
        begun(shop, 6)
        state, snapshot = shop.state, shop.table.metadata.current_snapshot_id
        shop.table.delete("id > 0")
        shop.change(9, 20, "not synced yet")
        figures = shop.sync(window=self.WINDOW)
        assert counted(figures) == {"inserted": 2, "outside": 4}
        assert {bound for bound, _ in ASKED} == {"2024-01-01T00:00:01.000000Z"}
        assert shop.rows() == [(0, "x"), (1, "x"), (2, "x")]
        assert shop.state == state
        assert shop.table.metadata.current_snapshot_id != snapshot
        assert counted(shop.sync(window=self.WINDOW)) == {"unchanged": 2, "outside": 4}
        assert counted(shop.sync()) == {"inserted": 2}  # from the state on, as if there had been no window

    def test_a_newer_row_stays(self, shop: Shop) -> None:
        begun(shop)
        shop.change(1, 10, "newer")
        shop.sync()
        del RECORDS[-1]  # as an API that still gives the older version
        assert counted(shop.sync(window=self.WINDOW)) == {"stale": 1, "unchanged": 1}
        assert (1, "newer") in shop.rows()

    def test_a_deletion_without_a_cursor_value_leaves_rows_beyond_the_window(self, shop: Shop) -> None:
        begun(shop, 6)
        RECORDS.clear()
        delete(2)
        delete(3)
        assert counted(shop.sync(window=self.WINDOW)) == {"deleted": 1, "stale": 1}
        assert [number for number, _ in shop.rows()] == [0, 1, 3, 4, 5]

    def test_versions_of_a_window_are_appended_once(self, shop: Shop) -> None:
        begun(shop)
        shop.change(1, 2.5, "between")
        assert counted(shop.sync("append", window=self.WINDOW)) == {"inserted": 1, "unchanged": 2}
        assert counted(shop.sync("append", window=self.WINDOW)) == {"unchanged": 3}

    def test_numbers_have_windows_too(self, shop: Shop) -> None:
        shop.config = {"cursor": "version"}
        for number in range(4):
            shop.change(number, 0, version=number)
        shop.sync(window="1/3")
        assert [number for number, _ in shop.rows()] == [1, 2]
        assert read_state(shop.table) is None
        shop.sync()
        assert [number for number, _ in shop.rows()] == [0, 1, 2, 3]

    def test_an_empty_window_of_a_table_that_is_not_there_makes_none(self, shop: Shop) -> None:
        figures = shop.sync(window=self.WINDOW)
        assert (figures.rows, figures.snapshot_id) == (0, None)
        assert not shop.catalog.table_exists(TABLE)

    @pytest.mark.parametrize(
        ("cursor", "window"),
        [("updated_at", "1/3"), ("version", WINDOW), ("updated_at", "2026-01-01/2026-01-01"), ("version", "3/1")],
    )
    def test_a_window_of_another_type_is_refused_before_a_request(self, shop: Shop, cursor: str, window: str) -> None:
        shop.config = {"cursor": cursor}
        with raises(ConfigurationError):
            shop.sync(window=window)
        assert not ASKED

    def test_another_key_than_the_table_was_synced_with_is_refused(self, shop: Shop) -> None:
        begun(shop)
        shop.config = {"key": ["id", "value"]}
        with pytest.raises(SyncStateError, match="primary_key"):
            shop.sync(window=self.WINDOW)

    def test_windows_of_another_api_do_not_join_those_of_the_former(self, shop: Shop) -> None:
        for number in range(4):
            shop.change(number, number)
        shop.sync(window=self.WINDOW)
        RECORDS.clear()
        shop.change(2, 2, "of the other")
        shop.moved = [{"upstream": "other"}, {"base_url": "http://other"}]
        with raises(SyncStateError):
            shop.sync(window=self.WINDOW)
        assert shop.rows() == [(1, "x"), (2, "x")]
        shop.table.delete("id > 0")
        shop.sync(window=self.WINDOW)
        shop.change(1, 1, "of the other")
        shop.sync(window=self.WINDOW)
        assert shop.rows() == [(1, "of the other"), (2, "of the other")]
        shop.moved = [{"upstream": "third"}, {"base_url": "http://third"}]
        with pytest.raises(SyncStateError, match="without a window"):
            shop.sync(window=self.WINDOW)
        assert shop.sync().changes is None
        assert counted(shop.sync(window=self.WINDOW)) == {"unchanged": 2}

    def test_only_a_run_with_the_same_window_goes_on_with_its_pages(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun(shop, 8)

        window, other = f"{moment(0)}/{moment(7)}", f"{moment(0)}/{moment(8)}"
        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(ChangesPublisher, "publish", fails)
            shop.sync(window=window, run="d/backfill/t/1")
        assert [token for _, token in ASKED] == [None, 3, 6]
        shop.sync(window=window, run="d/backfill/t/1")
        assert not ASKED
        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(ChangesPublisher, "publish", fails)
            shop.sync(window=window, run="d/backfill/t/2")
        shop.sync(window=other, run="d/backfill_2/t/3")
        assert [token for _, token in ASKED] == [None, 3, 6]

    def test_a_sync_does_not_go_on_with_a_window_nor_a_window_with_a_sync(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun(shop, 8)

        shop.table.delete("id = 2")
        shop.change(9, 20)
        for first, then in ((self.WINDOW, None), (None, self.WINDOW)):
            with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
                patched.setattr(ChangesPublisher, "publish", fails)
                shop.sync(window=first)
            shop.sync(window=then)
            assert ASKED
        assert [number for number, _ in shop.rows()] == [0, 1, 2, 3, 4, 5, 6, 7, 9]

    def test_a_full_refresh_that_was_begun_is_finished_first(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(5):
            shop.change(number, number)

        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(Publisher, "publish", fails)
            shop.sync()
        assert shop.sync(window=self.WINDOW).changes is None
        assert not ASKED
        assert len(shop.rows()) == 5

    def test_a_full_refresh_of_a_synced_table_that_was_begun_is_finished_first(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun(shop)
        RECORDS.pop(0)
        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(Publisher, "publish", fails)
            shop.sync(full=True)
        assert shop.sync().changes is None
        assert not ASKED
        assert [number for number, _ in shop.rows()] == [1, 2]

    def test_a_full_refresh_that_a_guard_refused_is_not_published_by_a_sync(self, shop: Shop) -> None:
        begun(shop, 20)
        records = RECORDS[:]
        del RECORDS[2:]
        with pytest.raises(PublishRefusedError, match="max_shrink"):
            shop.sync(full=True, run="weekly/1", max_shrink=0.5)
        RECORDS[:] = records
        shop.change(99, 30, "new")
        assert counted(shop.sync(run="hourly/1")) == {"inserted": 1, "unchanged": 1}
        assert [number for number, _ in shop.rows()] == [*range(20), 99]

    def test_a_full_refresh_that_is_too_old_to_resume_does_not_make_a_sync_read_everything(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun(shop)
        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(Publisher, "publish", fails)
            shop.sync(full=True)
        assert counted(shop.sync(resume_within=0)) == {"unchanged": 1}

    def test_a_full_refresh_that_was_to_append_is_not_finished_as_one_that_replaces(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun(shop)
        with monkeypatch.context() as patched, pytest.raises(OSError, match="away"):
            patched.setattr(Publisher, "publish", fails)
            shop.sync("append", full=True)
        shop.table.append(shop.table.scan(row_filter="id = 0").to_arrow().set_column(0, "id", pa.array([77])))
        assert counted(shop.sync()) == {"unchanged": 1}
        assert [number for number, _ in shop.rows()] == [0, 1, 2, 77]
