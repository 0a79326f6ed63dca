"""Old snapshots go, with the files that only they need; whatever somebody still reads stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake import expiry
from airflow_provider_rfr.lake.commits import CommitConflictError, retry_conflicts
from airflow_provider_rfr.lake.expiry import (
    _MAX_AGE,
    _MIN_SNAPSHOTS,
    MAX_COPIES,
    _Expired,
    expire_table,
    hold_property,
)
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.migrated_table import MigratedTable, table_definition
from airflow_provider_rfr.lake.tables import LiveColumn
from airflow_provider_rfr.lake.target import TargetTable
from tests.strict_commits import write_files
from tests.unit.lake.conftest import once, repeated
from tests.unit.messages import raises

NAME = "raw.daily"
DAY = 86_400_000
_LATER = 6.1 / 24
"""Days after which no reader needs what was replaced."""


class Lake:
    """A table that is published to as refreshes do it, without Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        where = {"uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/warehouse"}
        self.catalog = SqlCatalog("t", **where)

    def publish(self, *values: int, mode: str = "replace", part: str | None = None) -> int:
        target = TargetTable(self.catalog, NAME)
        rows = pa.table({"id": pa.array(values, pa.int64()), "day": [part or "none"] * len(values)})
        files = write_files(target, rows, rows_stay=mode == "append" or part is not None)
        where = None if part is None else f"day = '{part}'"
        summary = {"rfr.ledger": "ledger"}
        return target.commit(files, ("ledger", 1), mode=mode, replace_where=where, summary=summary).snapshot_id

    def publish_all(self, times: int) -> list[int]:
        """Replace the rows so many times, by 0, 1, 2 and so on, of which an expiry keeps the newest snapshot."""
        snapshots = [self.publish(number) for number in range(times)]
        self.keep(1)
        return snapshots

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def write(self, **properties: str) -> None:
        with self.table.transaction() as transaction:
            transaction.set_properties({key.replace("__", "."): value for key, value in properties.items()})

    def keep(self, snapshots: int) -> None:
        """So many snapshots, however young the others are."""
        self.write(**{_MAX_AGE: "0", _MIN_SNAPSHOTS: str(snapshots)})

    def expire(self, days: float = 0.0) -> _Expired:
        """As it would go so many days from now."""
        return expire_table(self.catalog, NAME, now_ms=int(time.time() * 1000 + days * DAY) + 1)

    def files(self, ending: str = "") -> set[str]:
        return {str(path) for path in (self.folder / "warehouse").rglob(f"*{ending}") if path.is_file()}

    def orphans(self) -> set[str]:
        """Files that no snapshot names, but for metadata."""
        return self.files() - self.named() - self.files(".metadata.json")

    def named(self) -> set[str]:
        return {path.removeprefix("file://") for path in expiry._Files(self.table).all()}

    def ids(self, snapshot_id: int | None = None) -> list[int]:
        return sorted(self.table.scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist())

    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.table.metadata.snapshots]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_fifty_refreshes_leave_as_many_files_as_ten_and_disturb_no_reader_within_the_age(lake: Lake) -> None:
    lake.publish(0)
    lake.keep(10)
    counts = []
    for number in range(1, 51):
        reader = lake.table.scan()
        lake.publish(number, number + 1)
        lake.expire()
        counts.append((len(lake.files(".parquet")), len(lake.files(".avro")), len(lake.files(".json"))))
        # Who began to read before the refresh reads what there was, though its table is replaced by now.
        assert sorted(reader.to_arrow()["id"].to_pylist())[0] == number - 1
    assert counts[-1] == (10, counts[20][1], counts[20][2])
    assert max(json for _, _, json in counts) <= 21
    assert [lake.ids(snapshot)[0] for snapshot in lake.snapshots()] == list(range(41, 51))
    assert not [name for name in lake.files() if "rfr-expire" in name]
    assert lake.named() == lake.files() - lake.files(".metadata.json")


def test_a_table_that_a_refresh_makes_keeps_seven_days_and_ten_snapshots(lake: Lake) -> None:
    first = lake.publish(1)
    for number in range(2, 13):
        lake.publish(number)
    assert lake.expire(days=6.9) == _Expired()
    assert lake.ids(first) == [1]
    done = lake.expire(days=7.1)
    assert (done.snapshots, len(lake.snapshots())) == (2, 10)
    properties = lake.table.properties
    assert (properties[_MAX_AGE], properties[_MIN_SNAPSHOTS]) == (str(7 * DAY), "10")
    assert properties["write.metadata.delete-after-commit.enabled"] == "true"


def test_of_full_refreshes_24_replaced_copies_stay_beyond_the_hours_that_a_reader_has(lake: Lake) -> None:
    for number in range(28):
        lake.publish(number)
    assert lake.expire(days=5.9 / 24) == _Expired(), "a reader may have begun before the first was replaced"
    assert lake.expire(days=_LATER).snapshots == 3
    assert [lake.ids(snapshot) for snapshot in lake.snapshots()] == [[number] for number in range(3, 28)]
    assert lake.table.properties[MAX_COPIES] == "24"
    lake.write(**{MAX_COPIES: "2"})
    lake.expire(days=_LATER)
    assert len(lake.snapshots()) == 10, "min-snapshots-to-keep counts for more"
    lake.write(**{_MIN_SNAPSHOTS: "1"})
    lake.expire(days=_LATER)
    assert [lake.ids(snapshot) for snapshot in lake.snapshots()] == [[25], [26], [27]]


def test_the_age_of_a_snapshot_counts_from_the_commit_that_replaced_it(lake: Lake) -> None:
    first = lake.publish(1)
    lake.write(**{_MAX_AGE: str(DAY), _MIN_SNAPSHOTS: "1"})
    head = lake.table.metadata.snapshot_by_id(first)
    assert head is not None
    old = head.model_copy(update={"timestamp_ms": head.timestamp_ms - 8 * DAY})
    lake.publish(2)
    metadata = lake.table.metadata
    weekly = metadata.model_copy(update={"snapshots": [old, metadata.snapshots[1]]})
    now = metadata.snapshots[1].timestamp_ms
    assert expiry._plan_expiry(weekly, now + DAY).snapshots == frozenset(), "readers of the last day began with it"
    assert expiry._plan_expiry(weekly, now + DAY + 1).snapshots == {first}


def test_snapshots_that_replaced_nothing_are_no_copies(lake: Lake) -> None:
    lake.publish(0)
    lake.write(**{MAX_COPIES: "2", _MIN_SNAPSHOTS: "1"})
    for number in range(1, 6):
        lake.publish(number, mode="append")
    assert lake.expire(days=_LATER) == _Expired()
    lake.publish(6)
    lake.publish(7, mode="append")
    assert lake.expire(days=_LATER) == _Expired(), "the snapshots before share the files of one copy"
    for number in (8, 9):
        lake.publish(number)
    assert [len(lake.ids(snapshot)) for snapshot in lake.snapshots()] == [1, 2, 3, 4, 5, 6, 1, 2, 1, 1]
    lake.expire(days=_LATER)
    assert [lake.ids(snapshot) for snapshot in lake.snapshots()] == [[6], [6, 7], [8], [9]]


def test_a_held_snapshot_and_one_of_a_branch_stay_beyond_the_number_of_copies(lake: Lake) -> None:
    first = lake.publish(0)
    lake.write(**{MAX_COPIES: "0", _MIN_SNAPSHOTS: "1"})
    lake.table.manage_snapshots().create_tag(first, "audit").commit()
    second = lake.publish(1)
    lake.publish(2)
    held = lake.table.metadata.snapshot_by_id(second)
    assert held is not None
    lake.write(**{hold_property("sink"): str(held.sequence_number)})
    lake.publish(3)
    lake.expire(days=_LATER)
    assert lake.snapshots()[:2] == [first, second]
    lake.write(**{hold_property("sink"): "99"})
    lake.expire(days=_LATER)
    assert (lake.snapshots()[0], len(lake.snapshots())) == (first, 2)


def test_a_table_of_somebody_else_is_expired_by_iceberg_s_own_defaults(lake: Lake) -> None:
    lake.catalog.create_namespace("raw")
    table = lake.catalog.create_table(NAME, pa.schema([pa.field("id", pa.int64())]))
    for number in range(3):
        table.overwrite(pa.table({"id": pa.array([number], pa.int64())}))
    assert not expiry.is_ours(table.properties)
    assert lake.expire(days=4.9) == _Expired()
    lake.expire(days=5.1)
    assert lake.ids() == [2] and len(lake.snapshots()) == 1


def test_a_table_that_a_deploy_makes_begins_with_the_same_properties_unless_it_is_declared_with_others(
    lake: Lake,
) -> None:
    definition = table_definition([LiveColumn("id", "bigint")], properties={_MIN_SNAPSHOTS: "3"})
    properties = MigratedTable.create(lake.catalog, NAME, definition).properties
    assert expiry.is_ours(properties)
    assert (properties[_MAX_AGE], properties[_MIN_SNAPSHOTS]) == (str(7 * DAY), "3")


def test_a_publish_that_was_prepared_on_a_snapshot_that_has_expired_is_refused_and_done_again(lake: Lake) -> None:
    lake.publish(1)
    slow = TargetTable(lake.catalog, NAME)
    rows = pa.table({"id": pa.array([9], pa.int64()), "day": ["none"]})
    files = write_files(slow, rows)
    lake.publish(2)
    lake.keep(1)
    assert lake.expire().snapshots == 1
    with raises(CommitConflictError):
        slow.commit(files, ("other", 1), mode="replace", replace_where=None, summary={})
    slow.reload()
    slow.commit(files, ("other", 1), mode="replace", replace_where=None, summary={})
    assert lake.ids() == [9]


def test_rows_that_stay_in_the_table_keep_their_files(lake: Lake) -> None:
    lake.publish(1, part="monday")
    lake.keep(1)
    lake.publish(2, part="tuesday")
    lake.publish(3, 4, part="monday")
    assert lake.expire().snapshots > 0
    assert lake.ids() == [2, 3, 4]
    assert len(lake.files(".parquet")) == 2


def test_tags_and_branches_keep_their_snapshots_until_they_are_too_old_themselves(lake: Lake) -> None:
    found = lake.publish_all(6)
    with lake.table.manage_snapshots() as refs:
        refs.create_tag(found[0], "first")
        refs.create_tag(found[1], "for_a_day", max_ref_age_ms=DAY)
        refs.create_branch(found[3], "work", min_snapshots_to_keep=2, max_snapshot_age_ms=1)
    lake.expire(days=0.5)
    assert lake.snapshots() == [found[0], found[1], found[2], found[3], found[5]]
    lake.expire(days=2)
    assert "for_a_day" not in lake.table.refs()
    assert lake.snapshots() == [found[0], found[2], found[3], found[5]]
    assert [lake.ids(snapshot) for snapshot in lake.snapshots()] == [[0], [2], [3], [5]]


def test_what_was_rolled_back_goes_by_its_age_alone(lake: Lake) -> None:
    first, second = lake.publish(1), lake.publish(2)
    with lake.table.manage_snapshots() as refs:
        refs.rollback_to_snapshot(first)
    lake.expire(days=6)
    assert lake.snapshots() == [first, second]
    lake.expire(days=8)
    assert lake.snapshots() == [first] and lake.ids() == [1]
    assert len(lake.files(".parquet")) == 1


def test_a_hold_keeps_all_snapshots_from_its_sequence_number_on(lake: Lake) -> None:
    lake.publish_all(6)
    needed = lake.table.metadata.snapshots[3].sequence_number
    lake.write(**{hold_property("webhook.erp"): str(needed), hold_property("sink.copy"): "99"})
    done = lake.expire()
    assert (done.snapshots, done.held) == (3, {"webhook.erp": 2})
    assert [lake.ids(snapshot) for snapshot in lake.snapshots()] == [[3], [4], [5]]
    lake.write(**{hold_property("webhook.erp"): "99"})
    assert lake.expire().snapshots == 2
    # What can't be read keeps everything.
    lake.publish(6)
    lake.write(**{hold_property("webhook.erp"): "soon"})
    assert lake.expire().snapshots == 0


def test_nothing_is_deleted_where_the_table_forbids_it(lake: Lake) -> None:
    lake.publish_all(3)
    lake.write(gc__enabled="false")
    assert lake.expire() == _Expired()
    lake.write(**{"gc.enabled": "true", _MIN_SNAPSHOTS: "many"})
    with raises(ConfigurationError):
        lake.expire()


def test_a_dry_run_counts_and_changes_nothing(lake: Lake) -> None:
    lake.publish_all(3)
    before = lake.files()
    would = expire_table(lake.catalog, NAME, dry_run=True, now_ms=int(time.time() * 1000) + 1)
    assert lake.files() == before
    assert lake.expire() == would
    assert (would.snapshots, len(before - lake.files() - lake.files(".json"))) == (2, would.files)


def die_in(lake: Lake, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an expiry of two of three snapshots end in this method."""
    lake.publish_all(3)
    with monkeypatch.context() as dying:
        dying.setattr(expiry._Expiry, method, _die)
        with pytest.raises(KeyboardInterrupt):
            lake.expire()


def test_what_an_expiry_that_died_after_its_commit_has_left_is_deleted_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_in(lake, "_delete", monkeypatch)
    assert len(lake.snapshots()) == 1 and len(lake.files(".parquet")) == 3
    assert lake.expire().files > 2
    assert len(lake.files(".parquet")) == 1 and lake.orphans() == set()


def test_an_expiry_that_died_before_its_commit_has_done_nothing_and_its_list_goes_later(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_in(lake, "_commit", monkeypatch)
    lake.keep(3)
    assert lake.expire() == _Expired()
    assert len([name for name in lake.files() if "rfr-expire" in name]) == 1, "its owner may be about to commit"
    monkeypatch.setattr(expiry, "_ABANDONED_MS", -1)
    assert lake.expire() == _Expired()
    assert not [name for name in lake.files() if "rfr-expire" in name]
    assert [lake.ids(snapshot) for snapshot in lake.snapshots()] == [[0], [1], [2]]


def test_files_that_can_t_be_deleted_are_counted_and_tried_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake.publish_all(3)
    delete = FileStore.delete

    def refuse(self: FileStore, locations: Any) -> int:
        found = list(locations)
        if any(file.endswith(".parquet") for file in found):
            raise PermissionError("no")
        return delete(self, found)

    with monkeypatch.context() as forbidding:
        forbidding.setattr(FileStore, "delete", refuse)
        assert lake.expire().undeleted == 2
    assert "2 files of expired snapshots could not be deleted" in caplog.text
    assert lake.expire() == _Expired(0, 2)
    assert lake.ids() == [2] and lake.orphans() == set()


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def _once(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, first: Callable[[], object]) -> None:
    """Let this happen between the look at the table and the expiry's commit."""

    def late(commit: Callable[..., Any], *arguments: Any) -> Any:
        first()
        return commit(*arguments)

    once(monkeypatch, catalog, late)


def test_a_tag_that_comes_in_between_keeps_its_snapshot(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lake.publish(1)
    lake.publish(2)
    lake.keep(1)
    _once(lake.catalog, monkeypatch, lambda: lake.table.manage_snapshots().create_tag(first, "audit").commit())
    assert lake.expire() == _Expired()
    assert lake.ids(first) == [1]


def test_a_rollback_that_comes_in_between_finds_its_snapshot(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lake.publish(1), lake.publish(2)
    lake.keep(1)
    _once(lake.catalog, monkeypatch, lambda: lake.table.manage_snapshots().rollback_to_snapshot(first).commit())
    lake.expire()
    assert lake.ids() == [1]
    assert second not in lake.snapshots()


def test_an_expiry_whose_table_another_one_cleaned_meanwhile_looks_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish_all(2)
    needed_only_by = expiry._Files.needed_only_by

    def late(files: expiry._Files, doomed: Any) -> list[str]:
        monkeypatch.setattr(expiry._Files, "needed_only_by", needed_only_by)
        lake.publish(3)
        assert lake.expire().snapshots == 2
        return needed_only_by(files, doomed)

    monkeypatch.setattr(expiry._Files, "needed_only_by", late)
    assert lake.expire() == _Expired()
    assert lake.ids() == [3]
    assert not lake.orphans()


def test_a_publish_that_comes_in_between_loses_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.publish(1, mode="append")
    lake.publish(2, mode="append")
    lake.keep(1)
    _once(lake.catalog, monkeypatch, lambda: lake.publish(3, mode="append"))
    assert lake.expire().snapshots == 1, "the second was replaced after the expiry began"
    assert lake.ids() == [1, 2, 3]


def test_another_expiry_that_comes_in_between_does_the_work_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.publish_all(4)
    done: list[_Expired] = []
    _once(lake.catalog, monkeypatch, lambda: done.append(lake.expire()))
    assert lake.expire() == _Expired()
    assert done[0].snapshots == 3 and lake.orphans() == set()


def test_an_expiry_that_landed_though_its_repeat_was_refused_deletes_its_files(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish_all(3)
    once(monkeypatch, lake.catalog, repeated)
    assert lake.expire().files > 0
    assert lake.ids() == [2] and lake.orphans() == set() and not lake.files("rfr-expire-*")


def test_parts_that_publish_and_expire_at_once_lose_no_row(lake: Lake) -> None:
    lake.publish(0, part="day0")
    lake.keep(1)

    def work(part: int) -> None:
        mine = Lake(lake.folder)
        for _ in range(4):
            retry_conflicts(200)(mine.publish, part, part=f"day{part}")
            mine.expire()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (1, 2, 3)))
    lake.expire()
    assert lake.ids() == [0, 1, 2, 3]
    assert lake.named() <= lake.files()
