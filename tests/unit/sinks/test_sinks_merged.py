"""Exports of tables that incremental syncs change: each new version of a row and each deletion goes out once, and rows
that a merge only moved never."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_rfr.exceptions import CursorExpiredError, SinkHeldError
from airflow_provider_rfr.lake.expiry import expire_table
from airflow_provider_rfr.lake.files import FileStore
from airflow_provider_rfr.lake.rows import SnapshotKind, SourceTable
from airflow_provider_rfr.lake.sync_state import SyncState, read_state, write_state
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.store.engine import open_store
from tests.kill_points import intercept
from tests.unit.messages import raises
from tests.unit.refresh.changing_source import RECORDS
from tests.unit.refresh.in_driver import TABLE
from tests.unit.refresh.test_incremental import Shop
from tests.unit.sinks.exporting import Overwriting, Scene, declared, replace_files

DIFF = {"emit": "diff", "keys": ["id"]}
COLUMNS = ("id", "value")


@dataclass
class Merging:
    """A table that syncs change, and a sink of it."""

    shop: Shop
    scene: Scene
    _seen: int = 0

    def begin(self, rows: int = 3, **settings: Any) -> None:
        """Sync so many rows, and send them."""
        spec = {"source": TABLE, "columns": COLUMNS, "settings": settings}
        self.scene.redeclare(**spec)
        self.scene.create()
        for number in range(rows):
            self.shop.change(number, number)
        self.shop.sync()
        self.scene.run()
        assert self.scene.row().rows == rows
        self._seen = rows

    def sync(self, *changes: tuple[int, str | None], mode: str = "merge") -> None:
        """Give these records and sync; a value of None deletes the record."""
        self.give(*changes)
        self.shop.sync(mode)

    def give(self, *changes: tuple[int, str | None]) -> None:
        at = 100.0 * (1 + len(RECORDS))
        for number, value in changes:
            self.shop.change(number, at, value or "", **({"deleted": True} if value is None else {}))
            at += 1

    def news(self) -> list[tuple[Any, ...]]:
        """Run the sink; return what it sent: operation, if there is one, id and value."""
        self.scene.run()
        rows = self.scene.sent()[self._seen :]
        self._seen += len(rows)
        return [tuple(row.values()) for row in rows]

    @property
    def kinds(self) -> list[SnapshotKind]:
        source = SourceTable.load(self.shop.catalog, TABLE)
        assert source is not None
        return [increment.kind for increment in source.increments(None)]

    def side_files(self) -> list[Path]:
        return sorted(self.scene.folder.glob("w/raw/orders/metadata/rfr-*-file-*"))


@pytest.fixture
def merging(tmp_path: Path) -> Iterator[Merging]:
    RECORDS.clear()
    shop, store = Shop(tmp_path), open_store(f"sqlite:///{tmp_path}/control.db")
    yield Merging(shop, Scene(tmp_path, shop.catalog, store, declared(str(tmp_path / "out"))))  # type: ignore[arg-type]
    store.close()
    RECORDS.clear()


def test_new_versions_are_sent_and_rows_that_were_moved_or_deleted_are_not(merging: Merging) -> None:
    merging.begin(6)
    merging.sync((1, "changed"), (2, None), (9, "new"))
    assert merging.kinds[1:] == [SnapshotKind.CHANGES_ROWS]
    assert sorted(merging.news()) == [(1, "changed"), (9, "new")]
    merging.sync((3, None))
    assert merging.news() == []
    assert merging.scene.row().cursor == merging.shop.table.metadata.current_snapshot_id
    merging.sync((4, "changed"))
    assert merging.news() == [(4, "changed")]


def test_changes_are_sent_with_deletions_and_their_keys(merging: Merging) -> None:
    merging.begin(6, **DIFF)
    merging.sync((1, "changed"), (2, None), (9, "new"), (77, None))
    *upserts, delete = merging.news()
    assert sorted(upserts) == [("upsert", 1, "changed"), ("upsert", 9, "new")]
    assert delete == ("delete", 2)
    merging.sync((3, None))
    assert merging.news() == [("delete", 3)]


def test_the_changes_of_several_syncs_are_sent_in_their_order(merging: Merging) -> None:
    merging.begin(**DIFF)
    for value in ("a", None, "b", None, "c"):
        merging.sync((1, value))
    assert merging.news() == [
        *(("upsert", 1, "a"), ("delete", 1), ("upsert", 1, "b"), ("delete", 1), ("upsert", 1, "c"))
    ]


@pytest.mark.parametrize("stops", range(6))
def test_an_interrupted_run_goes_on_behind_what_it_sent(merging: Merging, stops: int) -> None:
    merging.begin(8, **DIFF, batch_size=2)
    merging.sync((1, "x1"), (2, None), (3, None), (4, None), (9, "new"))
    merging.sync((5, None), (1, "x2"))
    merging.scene.run(batches=stops)
    merging.sync((6, None))
    operations = Counter(merging.news())
    changed = [("upsert", 1, "x1"), ("upsert", 1, "x2"), ("upsert", 9, "new")]
    assert operations == Counter([*changed, *(("delete", number) for number in range(2, 7))])


def test_a_deleted_row_in_parquet_has_its_keys_alone(merging: Merging) -> None:
    merging.begin(**DIFF, format="parquet")
    merging.sync((1, None), (2, "changed"))
    merging.scene.run()
    rows = pq.read_table(merging.scene.files()[-1]).to_pylist()
    assert rows == [{"_op": "upsert", "id": 2, "value": "changed"}, {"_op": "delete", "id": 1, "value": None}]


def test_rows_of_small_files_that_are_written_together_are_not_sent(merging: Merging) -> None:
    merging.begin(**DIFF)
    for number in range(10, 50):
        merging.sync((number, "new"))
    assert SnapshotKind.CHANGES_ROWS in merging.kinds, "no small files were written together"
    assert sorted(merging.news()) == [("upsert", number, "new") for number in range(10, 50)]


def test_a_table_whose_last_row_is_deleted_is_not_replaced(merging: Merging) -> None:
    merging.begin(1, **DIFF)
    merging.sync((0, None))
    assert merging.shop.rows() == []
    assert merging.news() == [("delete", 0)]


def test_a_key_of_several_columns_is_sent_with_its_types(merging: Merging) -> None:
    merging.shop.config = {"key": ["id", "shop"]}
    merging.begin(3, emit="diff", keys=["id"])
    merging.scene.redeclare(columns=(), follow_schema=True, settings={"emit": "diff", "keys": ["shop", "id"]})
    merging.scene.deploy("metadata", columns=())
    merging.sync((1, None))
    assert merging.news() == [("delete", "a", 1)]


def test_a_key_that_the_table_had_twice_is_deleted_once(merging: Merging) -> None:
    merging.begin(**DIFF)
    table = merging.shop.table
    table.append(table.scan(row_filter="id = 1").to_arrow())
    merging.sync((1, None))
    assert merging.news() == [("upsert", 1, "x"), ("delete", 1)]


def test_a_merge_by_other_keys_than_the_sinks_is_compared(merging: Merging) -> None:
    merging.begin(1, emit="diff", keys=["value"])
    merging.sync((0, "another"), (5, "five"))
    assert sorted(merging.news()) == [("delete", "x"), ("upsert", 0, "another"), ("upsert", 5, "five")]


def test_appended_versions_are_sent_each_once(merging: Merging) -> None:
    merging.begin()
    merging.sync((1, "a"), (2, "b"), mode="append")
    merging.sync((1, "c"), mode="append")
    assert merging.kinds[1:] == [SnapshotKind.ADDS_ROWS] * 2
    assert sorted(merging.news()) == [(1, "a"), (1, "c"), (2, "b")]


@pytest.mark.parametrize("settings", [{}, DIFF])
def test_a_commit_of_the_state_alone_sends_nothing(merging: Merging, settings: dict[str, Any]) -> None:
    merging.begin(**settings)
    state = read_state(merging.shop.table)
    assert state is not None
    write_state(merging.shop.catalog, TABLE, state)
    assert merging.kinds[1:] == [SnapshotKind.COMPACTS]
    assert merging.news() == []
    assert merging.scene.row().cursor == merging.shop.table.metadata.current_snapshot_id


def test_an_overwrite_by_others_still_holds_the_sink_behind_what_the_syncs_changed(merging: Merging) -> None:
    merging.begin()
    merging.sync((1, "changed"))
    table = merging.shop.table
    replace_files(table, table.scan().to_arrow(), Overwriting)
    merging.sync((2, "later"))
    with raises(SinkHeldError):
        merging.scene.run()
    assert merging.scene.sent()[3:] == [{"id": 1, "value": "changed"}]


def test_a_key_that_is_renamed_meanwhile_is_sent_under_its_declared_name(merging: Merging) -> None:
    merging.begin(**DIFF)
    merging.sync((1, None), (2, "changed"))
    with merging.shop.table.update_schema() as update:
        update.rename_column("id", "number")
    assert merging.news() == [("upsert", 2, "changed"), ("delete", 1)]


def expire(merging: Merging) -> None:
    with merging.shop.table.transaction() as transaction:
        transaction.set_properties(
            {"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "1"}
        )
    expire_table(merging.shop.catalog, TABLE, now_ms=2**42)


def test_an_expiry_keeps_what_a_sink_has_not_sent_and_deletes_it_then(merging: Merging) -> None:
    merging.begin(**DIFF)
    merging.sync((1, None))
    merging.sync((2, None), (0, "changed"))
    expire(merging)
    assert len(merging.side_files()) == 2
    assert sorted(merging.news()) == [("delete", 1), ("delete", 2), ("upsert", 0, "changed")]
    merging.sync((7, "new"))
    merging.scene.run()
    expire(merging)
    assert merging.side_files() == []


def test_keys_that_are_gone_stop_the_sink_and_it_goes_on_as_decided(merging: Merging) -> None:
    merging.begin(**DIFF)
    merging.sync((1, None))
    merging.side_files()[0].unlink()
    with pytest.raises(CursorExpiredError, match="is missing"):
        merging.scene.run()
    with pytest.raises(SinkHeldError):
        merging.scene.run()


LARGE = {f"partition {number}": f"2026-01-01T00:00:00.{number:06d}Z" for number in range(1000)}


def _with_large_state(merging: Merging) -> None:
    state = read_state(merging.shop.table)
    assert state is not None
    write_state(merging.shop.catalog, TABLE, SyncState(state.rules, {**LARGE, **state.values}))


def test_tries_that_others_come_before_leave_no_files(merging: Merging, monkeypatch: pytest.MonkeyPatch) -> None:
    merging.begin(**DIFF)
    _with_large_state(merging)
    names = []
    intercept(FileStore, "write", after=lambda _, location, *__: names.append(location), put=monkeypatch.setattr)
    tries = []

    def come_first(target: TargetTable, *_: Any) -> None:
        tries.append(target)
        if len(tries) < 4:
            table = merging.shop.table
            row = {"id": 100 + len(tries), "value": "other", "shop": "b"}
            table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))

    intercept(TargetTable, "merge", before=come_first, put=monkeypatch.setattr)
    merging.sync((1, None))
    written = [name for name in names if "rfr-changes-file" in name or "rfr-state-file" in name]
    assert (len(tries), len(written)) == (4, 8)
    summary = merging.shop.table.current_snapshot().summary
    assert {summary["rfr.changes-file"], summary["rfr.state-file"]} == {
        f"file://{path}" for path in merging.side_files()[:1] + merging.side_files()[2:]
    }
    assert len(merging.side_files()) == 3, "with the state that was set before"


def test_what_a_dead_attempt_left_is_deleted_a_day_later(merging: Merging) -> None:
    merging.begin(**DIFF)
    merging.sync((1, None))
    [live] = merging.side_files()
    prefix, _, rest = live.name.removeprefix("rfr-changes-file-").partition("-")
    assert prefix.isdecimal()
    kept = live.with_name(f"rfr-changes-file-{int(prefix) - 3_600_000}-{rest}")
    dead = [live.with_name(f"rfr-{kind}-file-{int(prefix) - 90_000_000}-{rest}") for kind in ("changes", "state")]
    for path in (kept, *dead):
        path.write_bytes(live.read_bytes())
    expire(merging)
    assert merging.side_files() == sorted([live, kept])


@pytest.mark.parametrize("number", range(3))
def test_a_random_history_sends_what_its_model_says(merging: Merging, number: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    merging.begin(6, **DIFF, batch_size=3)
    table = dict.fromkeys(range(6), "x")
    expected: Counter[tuple[Any, ...]] = Counter()
    for step in range(12):
        changes = {}
        for _ in range(chance.randint(0, 4)):
            changes[chance.randint(0, 12)] = None if chance.random() < 0.4 else f"step {step}"
        merging.give(*changes.items())
        for key, value in changes.items():
            if value is not None:
                expected["upsert", key, value] += 1
                table[key] = value
            elif table.pop(key, None) is not None:
                expected["delete", key] += 1
        merging.shop.sync()
        if chance.random() < 0.3:
            merging.scene.run(batches=chance.randint(0, 3))
        if chance.random() < 0.2:
            replace_files(merging.shop.table, None)
    assert Counter(merging.news()) == expected
    assert dict(merging.shop.rows()) == table
    replayed: dict[int, str] = {}
    for row in merging.scene.sent():
        replayed.pop(row["id"], None)
        if row["_op"] == "upsert":
            replayed[row["id"]] = row["value"]
    assert replayed == table, json.dumps(merging.scene.sent())
