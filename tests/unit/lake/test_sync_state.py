"""The state of a sync in the table's snapshots: small and large, after rollbacks and expiries, and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate

from airflow_provider_rfr.exceptions import ConfigurationError, SyncStateError
from airflow_provider_rfr.lake import sync_state
from airflow_provider_rfr.lake.commits import CommitLog, last_change
from airflow_provider_rfr.lake.sync_state import NO_STATE, SyncState, has_lost_state, read_state, write_state
from airflow_provider_rfr.numbers import LongNumber, dumps
from tests.kill_points import intercept
from tests.unit.lake.test_expiry import NAME, Lake
from tests.unit.messages import raises

RULES = {"cursor": {"field": "updated_at"}, "primary_key": [["id"]]}


def state_of(*values: str) -> SyncState:
    return SyncState(RULES, {f"partition {number}": value for number, value in enumerate(values)})


LARGE = state_of(*(f"2026-01-01T00:00:00.{number:06d}Z" for number in range(10_000)))


OF_SOURCE = SyncState(RULES, {}, of_source={"updated_at": "2026", "states": [{"partition": {"a": 1}, "cursor": None}]})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.publish(1)
    return lake


def table_of(lake: Lake) -> Table:
    return lake.catalog.load_table(NAME)


@pytest.mark.parametrize("state", [state_of("a"), LARGE, SyncState(RULES, {"x": "1"}, {"x": 3}), OF_SOURCE])
def test_a_state_is_read_back_and_readers_see_the_same_rows(lake: Lake, state: SyncState) -> None:
    write_state(lake.catalog, NAME, state)
    assert read_state(table_of(lake)) == state
    assert table_of(lake).scan().to_arrow()["id"].to_pylist() == [1]


def test_a_long_number_in_a_state_keeps_its_digits(lake: Lake) -> None:
    write_state(lake.catalog, NAME, SyncState(RULES, {}, of_source={"a": LongNumber("0.12345678901234567891")}))
    state = read_state(table_of(lake))
    assert state is not None
    assert dumps(state.of_source) == b'{"a":0.12345678901234567891}'


def test_a_large_state_is_a_file_and_the_metadata_stay_small(lake: Lake) -> None:
    write_state(lake.catalog, NAME, LARGE)
    assert len(lake.files("/rfr-state-*")) == 1
    assert len(table_of(lake).metadata.model_dump_json()) < 20_000


def test_a_table_without_a_state_has_none_and_a_replacing_commit_may_remove_it(lake: Lake) -> None:
    assert read_state(table_of(lake)) is None
    write_state(lake.catalog, NAME, state_of("a"))
    lake.publish(2)
    assert read_state(table_of(lake)) == state_of("a")
    with table_of(lake).transaction() as transaction, transaction.update_snapshot(dict(NO_STATE)).fast_append():
        pass
    assert read_state(table_of(lake)) is None


def test_a_rollback_takes_the_state_back(lake: Lake) -> None:
    first = write_state(lake.catalog, NAME, state_of("a"))
    write_state(lake.catalog, NAME, state_of("b"))
    table_of(lake).manage_snapshots().rollback_to_snapshot(first).commit()
    assert read_state(table_of(lake)) == state_of("a")


@pytest.mark.parametrize("state", [state_of("a"), LARGE])
def test_an_expiry_keeps_the_newest_state_and_deletes_the_files_of_older_ones(lake: Lake, state: SyncState) -> None:
    for older in ("1", "2"):
        write_state(lake.catalog, NAME, SyncState(RULES, {**LARGE.values, "partition 0": older}))
    write_state(lake.catalog, NAME, state)
    for number in range(5):
        lake.publish(number)
    lake.keep(1)
    lake.expire()
    assert read_state(table_of(lake)) == state
    assert len(lake.files("/rfr-state-*")) == (1 if state is LARGE else 0)
    assert len(table_of(lake).metadata.snapshots) == 2


def test_a_rollback_to_before_the_state_that_an_expiry_kept_has_none(lake: Lake) -> None:
    first = lake.publish(7)
    lake.catalog.load_table(NAME).manage_snapshots().create_tag(first, "kept").commit()
    write_state(lake.catalog, NAME, state_of("a"))
    for number in range(3):
        lake.publish(number)
    lake.keep(1)
    lake.expire()
    assert read_state(table_of(lake)) == state_of("a")
    table_of(lake).manage_snapshots().set_current_snapshot(first).commit()
    assert read_state(table_of(lake)) is None


def replace_by_another_engine(lake: Lake) -> None:
    """Replace the table as CREATE OR REPLACE TABLE does: main begins anew, the older snapshots stay."""
    table = table_of(lake)
    rows, uuid = table.scan().to_arrow(), AssertTableUUID(uuid=table.metadata.table_uuid)
    table._do_commit((RemoveSnapshotRefUpdate.model_validate({"ref-name": "main"}),), (uuid,))
    table_of(lake).append(rows)


def expire_by_another_engine(lake: Lake, *snapshots: int) -> None:
    """Drop snapshots without a note of where the state is."""
    table = table_of(lake)
    uuid = AssertTableUUID(uuid=table.metadata.table_uuid)
    table._do_commit((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(snapshots)}),), (uuid,))


def expired_behind(lake: Lake, state: SyncState) -> None:
    """Give the table a state, and expire all snapshots between that one and the newest."""
    write_state(lake.catalog, NAME, state)
    lake.publish_all(3)
    lake.expire()
    assert read_state(table_of(lake)) == state


def test_a_table_that_another_engine_replaced_has_no_state_though_an_expiry_had_kept_one(lake: Lake) -> None:
    expired_behind(lake, state_of("a"))
    replace_by_another_engine(lake)
    assert read_state(table_of(lake)) is None
    assert not has_lost_state(table_of(lake).metadata)


def test_a_rollback_to_before_the_state_is_seen_after_the_expiry_of_another_engine(lake: Lake) -> None:
    first = lake.publish(7)
    table_of(lake).manage_snapshots().create_tag(first, "kept").commit()
    expired_behind(lake, state_of("a"))
    table_of(lake).manage_snapshots().set_current_snapshot(first).commit()
    table_of(lake).manage_snapshots().remove_tag("kept").commit()
    lake.publish(8)
    expire_by_another_engine(lake, first)
    assert read_state(table_of(lake)) is None


def test_a_state_behind_an_expiry_stays_over_further_expiries_and_a_rollback(lake: Lake) -> None:
    expired_behind(lake, state_of("a"))
    lake.publish_all(3)
    lake.expire()
    assert read_state(table_of(lake)) == state_of("a")
    before = lake.publish(5)
    write_state(lake.catalog, NAME, state_of("b"))
    table_of(lake).manage_snapshots().rollback_to_snapshot(before).commit()
    assert read_state(table_of(lake)) == state_of("a")


@pytest.mark.parametrize("is_tagged", [False, True])
def test_a_state_that_another_engine_expired_is_lost(lake: Lake, is_tagged: bool) -> None:
    older = write_state(lake.catalog, NAME, state_of("a"))
    newer = write_state(lake.catalog, NAME, state_of("b"))
    if is_tagged:
        table_of(lake).manage_snapshots().create_tag(older, "kept").commit()
    lake.publish(7)
    assert not has_lost_state(table_of(lake).metadata)
    expire_by_another_engine(lake, *([] if is_tagged else [older]), newer)
    assert read_state(table_of(lake)) is None
    assert has_lost_state(table_of(lake).metadata)
    write_state(lake.catalog, NAME, state_of("c"))
    assert not has_lost_state(table_of(lake).metadata)


def test_a_table_that_never_had_a_state_has_lost_none_nor_has_one_that_was_rolled_back(lake: Lake) -> None:
    first = lake.publish(7)
    assert not has_lost_state(table_of(lake).metadata)
    write_state(lake.catalog, NAME, state_of("a"))
    table_of(lake).manage_snapshots().rollback_to_snapshot(first).commit()
    assert not has_lost_state(table_of(lake).metadata)
    lake.publish_all(2)
    lake.expire()
    assert not has_lost_state(table_of(lake).metadata), "our own expiry dropped the snapshot of the state"


def test_a_commit_of_the_state_alone_is_none_that_changes_rows(lake: Lake) -> None:
    write_state(lake.catalog, NAME, state_of("a"))
    log = CommitLog.load(lake.catalog, NAME)
    assert log is not None
    assert [commit.changes_rows for commit in log.commits()] == [True, False]
    newest = last_change(table_of(lake))
    assert newest is not None and newest.snapshot_id == log.commits()[0].snapshot_id


def test_a_damaged_or_missing_file_is_told(lake: Lake) -> None:
    write_state(lake.catalog, NAME, LARGE)
    [file] = lake.files("/rfr-state-*")
    content = Path(file).read_bytes()
    for damaged in (content[:-40], content[:8] + content[20:], b""):
        Path(file).write_bytes(damaged)
        with pytest.raises(SyncStateError):
            read_state(table_of(lake))
    Path(file).unlink()
    with pytest.raises(SyncStateError, match="is missing"):
        read_state(table_of(lake))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"version": 2},
        {"version": True},
        {"version": 1, "rules": [], "values": {}},
        {"version": 1, "rules": {}, "values": {"a": 1}},
        {"version": 1, "rules": {}, "values": {}, "unlisted": {"a": "x"}},
        {"version": 1, "rules": {}, "values": {}, "more": 1},
        {"version": 1, "rules": {}, "values": {}, "of_source": []},
    ],
)
def test_another_value_is_no_state(value: object) -> None:
    with raises(SyncStateError):
        SyncState.from_json(json.loads(json.dumps(value)))


def test_a_state_with_half_a_character_is_not_set(lake: Lake) -> None:
    with raises(SyncStateError):
        write_state(lake.catalog, NAME, state_of("\ud800"))


def test_a_table_that_is_not_there_has_no_state_to_set(lake: Lake) -> None:
    with raises(ConfigurationError):
        write_state(lake.catalog, "raw.nothing", state_of("a"))


def test_a_try_that_another_commit_came_before_leaves_no_file(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def come_first(*_: object) -> None:
        tries.append(1)
        if len(tries) < 3:
            lake.publish(len(tries))

    intercept(sync_state, "commit_strictly", before=come_first, put=monkeypatch.setattr)
    write_state(lake.catalog, NAME, LARGE)
    assert len(tries) == 3
    assert len(lake.files("/rfr-state-*")) == 1
    assert read_state(table_of(lake)) == LARGE


def test_a_file_whose_commit_never_came_is_deleted_a_day_later(lake: Lake) -> None:
    write_state(lake.catalog, NAME, LARGE)
    [live] = map(Path, lake.files("/rfr-state-*"))
    time_ms, _, rest = live.name.removeprefix("rfr-state-file-").partition("-")
    young, old = (live.with_name(f"rfr-state-file-{int(time_ms) - hours * 3_600_000}-{rest}") for hours in (23, 25))
    for path in (young, old):
        path.write_bytes(live.read_bytes())
    assert lake.expire().files == 1
    assert lake.files("/rfr-state-*") == {str(live), str(young)}
