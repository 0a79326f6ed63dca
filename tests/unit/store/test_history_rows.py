"""Rows of history tables wait in the control store until one process appends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from sqlalchemy import func, select

from airflow_provider_rfr import history as upkeep
from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.catalog import LakeSettings, create_table, open_catalog
from airflow_provider_rfr.lake.schemas import partition_spec
from airflow_provider_rfr.store import deliveries as store_rows
from airflow_provider_rfr.store.engine import ControlStore, instant
from airflow_provider_rfr.store.tables import HISTORY
from tests.unit.messages import raises
from tests.webhook_receiver import FakeClock

ENDED, SENT = "rfr.ended", "rfr.sent"
HOUR, DAY = 3600.0, 86400.0
SCHEMA = Schema(
    NestedField(1, "target", StringType(), required=True),
    NestedField(2, "number", LongType(), required=True),
    NestedField(3, "at", TimestamptzType(), required=True),
    identifier_field_ids=[1, 2],
)


class Place:
    """A lake with two history tables, and the control store in which their rows wait."""

    def __init__(self, store: ControlStore, clock: FakeClock, folder: Path) -> None:
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.store, self.clock = store, clock
        self.catalog: Catalog = open_catalog(LakeSettings("lake", properties))
        self.history = History(store, self.catalog)
        for name in (ENDED, SENT):
            self.create(name)

    def create(self, name: str) -> None:
        create_table(self.catalog, name, SCHEMA, partition_spec(["day(at)"], SCHEMA))

    def report(self, *numbers: int, table: str = ENDED) -> None:
        at = instant(int(self.clock.now() * 1000))
        rows = [{"target": "raw.a", "number": number, "at": at} for number in numbers]
        self.history.report(table, rows, ("target", "number"))

    def append(self) -> int:
        """Append what waits, however little it is."""
        return self.history.maintain(always=True)

    def appended(self, table: str = ENDED) -> list[int]:
        return sorted(self.catalog.load_table(table).scan().to_arrow()["number"].to_pylist())

    def commits(self, table: str = ENDED) -> int:
        return len(self.catalog.load_table(table).metadata.snapshots)

    def left(self, waiting: bool = True) -> int:
        query = select(func.count()).where(HISTORY.c.appended_at.is_(None) if waiting else HISTORY.c.lake.is_not(None))
        with self.store.read() as connection:
            return int(connection.execute(query).scalar_one())


@pytest.fixture
def place(store: ControlStore, clock: FakeClock, tmp_path: Path) -> Place:
    return Place(store, clock, tmp_path)


def test_a_hundred_rows_wait_and_one_more_is_appended_with_them_in_one_commit(place: Place) -> None:
    place.report(*range(60))
    place.report(*range(40), table=SENT)
    assert place.history.maintain() == 0
    assert place.commits() == 0
    place.report(60)
    assert place.history.maintain() == 101
    assert (place.appended(), place.appended(SENT)) == (list(range(61)), list(range(40)))
    assert place.commits() == place.commits(SENT) == 1
    assert place.append() == 0


def test_a_row_waits_for_an_hour_at_most_once_anyone_comes(place: Place) -> None:
    place.report(1)
    place.clock.sleep(HOUR - 1)
    assert place.history.maintain() == 0
    place.clock.sleep(1)
    assert place.history.maintain() == 1
    assert place.appended() == [1]


def test_a_row_that_was_appended_lately_is_not_taken_again(place: Place) -> None:
    place.report(1, 2)
    assert place.append() == 2
    place.clock.sleep(2 * DAY)
    place.report(1, 2, 3)
    assert place.left() == 1
    assert place.append() == 1
    place.clock.sleep(2 * DAY)
    place.report(4)
    assert place.append() == 1
    assert place.left(waiting=False) == 2, "keys are forgotten after three days"
    assert place.appended() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("module", "function", "before", "after"),
    [(upkeep, "append_rows_once", [], 3), (store_rows, "mark_appended", [1, 2], 1)],
    ids=["before the append", "after the append"],
)
def test_rows_are_there_once_wherever_a_process_dies(
    module: Any, function: str, before: list[int], after: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    place.report(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(module, function, die)
        with pytest.raises(KeyboardInterrupt):
            place.append()
    assert place.appended() == before
    place.report(2, 3)
    assert place.append() == 0, "nobody else begins while the dead process has the lease"
    place.clock.sleep(301)
    assert place.append() == after
    assert place.appended() == [1, 2, 3]
    assert place.left() == 0


@pytest.mark.parametrize(("pause", "by_others", "by_itself"), [(0, 0, 1), (301, 1, 0)], ids=["leased", "lease ended"])
def test_of_two_that_append_the_same_rows_one_appends_them_with_the_lease_or_without(
    pause: int, by_others: int, by_itself: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = upkeep.append_rows_once

    def append_while_another_comes(*arguments: Any) -> int | None:
        monkeypatch.setattr(upkeep, "append_rows_once", append)
        place.clock.sleep(pause)
        assert History(place.store, place.catalog).maintain(always=True) == by_others
        return append(*arguments)

    place.report(1)
    monkeypatch.setattr(upkeep, "append_rows_once", append_while_another_comes)
    assert place.append() == by_itself
    assert place.appended() == [1]


def test_where_no_deploy_created_the_table_nothing_waits(place: Place) -> None:
    place.report(1, table="rfr.never")
    assert place.left(waiting=False) == 0


def test_rows_of_a_table_that_is_gone_are_dropped_and_may_be_reported_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.report(1)
    place.report(2, table=SENT)
    place.catalog.drop_table(ENDED)
    assert place.append() == 1
    assert "there is no table rfr.ended any more; 1 rows of it are dropped" in caplog.text
    place.create(ENDED)
    place.report(1)
    assert place.append() == 1
    assert place.appended() == [1]


def test_a_table_that_fails_holds_up_no_other_and_is_not_tried_by_each_process(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[str] = []
    append = upkeep.append_rows_once

    def fail(catalog: Catalog, name: str, rows: Any) -> int | None:
        tries.append(name)
        if name == ENDED:
            raise OSError("the lake is away")
        return append(catalog, name, rows)

    monkeypatch.setattr(upkeep, "append_rows_once", fail)
    place.report(1)
    place.report(2, table=SENT)
    with raises(OSError):
        place.append()
    assert place.appended(SENT) == [2]
    assert sorted(tries) == [ENDED, SENT]
    assert place.append() == 0
    assert len(tries) == 2
    for pause in (301, 8 * DAY):
        place.clock.sleep(pause)
        with raises(OSError):
            place.append()
    assert place.left() == 0
    assert "1 rows of the history tables could not be appended for a week; they are dropped" in caplog.text


def test_a_long_key_is_still_a_key() -> None:
    keys = {store_rows.key_text(["raw.a", "day = '" + "x" * 500 + "'", number, 1]) for number in (1, 1, 2)}
    assert len(keys) == 2
    assert max(map(len, keys)) <= 255
