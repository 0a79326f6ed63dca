"""Rows of history tables wait in the control store until one process appends them."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = open_catalog(LakeSettings("lake", properties))
    for name in (ENDED, SENT):
        create_table(catalog, name, SCHEMA, partition_spec(["day(at)"], SCHEMA))
    return catalog


@pytest.fixture
def history(store: ControlStore, catalog: Catalog) -> History:
    return History(store, catalog)


@pytest.fixture
def report(history: History, clock: FakeClock) -> Callable[..., None]:
    def rows(*numbers: int, table: str = ENDED) -> None:
        at = instant(int(clock.now() * 1000))
        history.report(table, [{"target": "raw.a", "number": n, "at": at} for n in numbers], ("target", "number"))

    return rows


def appended(catalog: Catalog, table: str = ENDED) -> list[int]:
    return sorted(catalog.load_table(table).scan().to_arrow()["number"].to_pylist())


def commits(catalog: Catalog, table: str = ENDED) -> int:
    return len(catalog.load_table(table).metadata.snapshots)


def left(store: ControlStore, waiting: bool = True) -> int:
    query = select(func.count()).where(HISTORY.c.appended_at.is_(None) if waiting else HISTORY.c.lake.is_not(None))
    with store.read() as connection:
        return int(connection.execute(query).scalar_one())


Report = Callable[..., None]


def test_a_hundred_rows_wait_and_one_more_is_appended_with_them_in_one_commit(
    history: History, report: Report, catalog: Catalog
) -> None:
    report(*range(60))
    report(*range(40), table=SENT)
    assert history.maintain() == 0
    assert commits(catalog) == 0
    report(60)
    assert history.maintain() == 101
    assert (appended(catalog), appended(catalog, SENT)) == (list(range(61)), list(range(40)))
    assert commits(catalog) == commits(catalog, SENT) == 1
    assert history.maintain(always=True) == 0


def test_a_row_waits_for_an_hour_at_most_once_anyone_comes(
    history: History, report: Report, catalog: Catalog, clock: FakeClock
) -> None:
    report(1)
    clock.sleep(HOUR - 1)
    assert history.maintain() == 0
    clock.sleep(1)
    assert history.maintain() == 1
    assert appended(catalog) == [1]


def test_a_row_that_was_appended_lately_is_not_taken_again(
    history: History, report: Report, catalog: Catalog, store: ControlStore, clock: FakeClock
) -> None:
    report(1, 2)
    assert history.maintain(always=True) == 2
    clock.sleep(2 * DAY)
    report(1, 2, 3)
    assert left(store) == 1
    assert history.maintain(always=True) == 1
    clock.sleep(2 * DAY)
    report(4)
    assert history.maintain(always=True) == 1
    assert left(store, waiting=False) == 2, "keys are forgotten after three days"
    assert appended(catalog) == [1, 2, 3, 4]


@pytest.mark.parametrize("moment", ["before the append", "after the append"])
def test_rows_are_there_once_wherever_a_process_dies(
    moment: str,
    history: History,
    report: Report,
    catalog: Catalog,
    store: ControlStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(BaseException):
        pass

    def dies(*arguments: Any, **more: Any) -> None:
        raise Killed

    report(1, 2)
    with monkeypatch.context() as patch:
        if moment == "before the append":
            patch.setattr(upkeep, "append_rows_once", dies)
        else:
            patch.setattr(store_rows, "mark_appended", dies)
        with pytest.raises(Killed):
            history.maintain(always=True)
    assert appended(catalog) == ([] if moment == "before the append" else [1, 2])
    report(2, 3)
    assert history.maintain(always=True) == 0, "nobody else begins while the dead process has the lease"
    clock.sleep(301)
    assert history.maintain(always=True) == (3 if moment == "before the append" else 1)
    assert appended(catalog) == [1, 2, 3]
    assert left(store) == 0


def test_a_second_process_goes_on_at_once_while_one_appends(
    history: History, report: Report, catalog: Catalog, store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[int] = []
    append = upkeep.append_rows_once

    def append_while_another_comes(*arguments: Any) -> int | None:
        others.append(History(store, catalog).maintain(always=True))
        return append(*arguments)

    report(1)
    monkeypatch.setattr(upkeep, "append_rows_once", append_while_another_comes)
    assert history.maintain(always=True) == 1
    assert others == [0]
    assert appended(catalog) == [1]


def test_two_that_append_the_same_rows_in_spite_of_the_lease_append_them_once(
    history: History, report: Report, catalog: Catalog, store: ControlStore, clock: FakeClock, monkeypatch: Any
) -> None:
    append = upkeep.append_rows_once

    def append_after_a_pause(*arguments: Any) -> int | None:
        monkeypatch.setattr(upkeep, "append_rows_once", append)
        clock.sleep(301)
        assert History(store, catalog).maintain(always=True) == 2
        return append(*arguments)

    report(1, 2)
    monkeypatch.setattr(upkeep, "append_rows_once", append_after_a_pause)
    assert history.maintain(always=True) == 0
    assert appended(catalog) == [1, 2]


def test_where_no_deploy_created_the_table_nothing_waits(history: History, report: Report, store: ControlStore) -> None:
    report(1, table="rfr.never")
    assert left(store, waiting=False) == 0


def test_rows_of_a_table_that_is_gone_are_dropped_and_may_be_reported_again(
    history: History, report: Report, catalog: Catalog, store: ControlStore, caplog: pytest.LogCaptureFixture
) -> None:
    report(1)
    report(2, table=SENT)
    catalog.drop_table(ENDED)
    assert history.maintain(always=True) == 1
    assert "there is no table rfr.ended any more; 1 rows of it are dropped" in caplog.text
    create_table(catalog, ENDED, SCHEMA, partition_spec(["day(at)"], SCHEMA))
    report(1)
    assert history.maintain(always=True) == 1
    assert appended(catalog) == [1]


def test_a_table_that_fails_holds_up_no_other_and_is_not_tried_by_each_process(
    history: History,
    report: Report,
    catalog: Catalog,
    store: ControlStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries: list[str] = []
    append = upkeep.append_rows_once

    def fails(catalog: Catalog, name: str, rows: Any) -> int | None:
        tries.append(name)
        if name == ENDED:
            raise OSError("the lake is away")
        return append(catalog, name, rows)

    monkeypatch.setattr(upkeep, "append_rows_once", fails)
    report(1)
    report(2, table=SENT)
    with raises(OSError):
        history.maintain(always=True)
    assert appended(catalog, SENT) == [2]
    assert sorted(tries) == [ENDED, SENT]
    assert history.maintain(always=True) == 0
    assert len(tries) == 2
    clock.sleep(301)
    with raises(OSError):
        history.maintain(always=True)
    clock.sleep(8 * DAY)
    with raises(OSError):
        history.maintain(always=True)
    assert left(store) == 0
    assert "1 rows of the history tables could not be appended for a week; they are dropped" in caplog.text


def test_a_long_key_is_still_a_key(store: ControlStore) -> None:
    keys = {store_rows.key_text(["raw.a", "day = '" + "x" * 500 + "'", number, 1]) for number in (1, 1, 2)}
    assert len(keys) == 2
    assert max(map(len, keys)) <= 255
