"""Reads that viewers share: how often, for how long, and what is told when there is no answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from airflow import settings
from fastapi import FastAPI
from pyiceberg.catalog import Catalog
from sqlalchemy import event

from airflow_provider_rfr.exceptions import CatalogError
from airflow_provider_rfr.web import access, lakes
from airflow_provider_rfr.web.lakes import Latest, SharedRead
from tests.airflow_versions import needs_teams
from tests.soon import PATIENCE, soon, wait_until
from tests.unit.messages import check_messages
from tests.unit.web.conftest import Login, second_lake
from tests.unit.web.ledgers import REFRESH, TASK, begun

LAKES = ("rfr_lake_default", "second_lake")
TOO_MANY = "too many other reads have not ended yet"


class Source:
    """Counts what it is asked, and answers when it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        assert self.may_answer.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return number


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.may_answer.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def viewers(read: SharedRead[int], count: int) -> list[Latest[int]]:
    return await asyncio.gather(*(read.latest() for _ in range(count)))


def test_all_viewers_together_ask_once_in_two_seconds(source: Source, clock: Clock) -> None:
    read = SharedRead(source, clock=clock)
    assert {latest.value for latest in asyncio.run(viewers(read, 50))} == {1}
    clock.now += 1.9
    assert asyncio.run(read.latest()) == Latest(1, pytest.approx(1.9), None)
    clock.now += 0.2
    assert asyncio.run(read.latest()).value == 2
    assert source.asked == 2


def test_a_read_that_is_always_late_is_shown_all_the_same(
    source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "_LONG_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(lakes, "_WAIT_SECONDS", 0.0)
    read = SharedRead(source, clock=clock)
    source.may_answer.clear()
    asyncio.run(read.latest())
    clock.now += 125
    asyncio.run(read.latest())
    source.may_answer.set()
    wait_until(lambda: read.is_idle)
    assert asyncio.run(read.latest(may_begin=False)).value is not None


def test_a_read_that_ends_with_a_panic_has_ended(source: Source, clock: Clock) -> None:
    class Panic(BaseException):
        """As libraries in Rust raise it."""

    def panics() -> int:
        raise Panic("secret")

    read = SharedRead(panics, clock=clock)
    assert "Panic" in str(asyncio.run(read.latest()).problem)
    assert read.is_idle


def test_a_read_that_may_not_begin_shows_what_is_known(source: Source, clock: Clock) -> None:
    read = SharedRead(source, clock=clock)
    assert asyncio.run(read.latest(may_begin=False)) == Latest(None, pytest.approx(1000.0), TOO_MANY)
    asyncio.run(read.latest())
    clock.now += 5
    assert asyncio.run(read.latest(may_begin=False)) == Latest(1, pytest.approx(5.0), TOO_MANY)
    assert source.asked == 1


def test_a_source_that_hangs_costs_a_bounded_wait_and_is_not_asked_again(
    source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "_LONG_WAIT_SECONDS", 0.05)
    source.may_answer.clear()
    read = SharedRead(source, clock=clock)
    with soon():
        first = asyncio.run(read.latest())
        clock.now += 60
        second = asyncio.run(read.latest())
    assert (first.value, second.value, source.asked) == (None, None, 1)
    check_messages(second.problem)
    source.may_answer.set()
    wait_until(lambda: asyncio.run(read.latest()).value == 1)


def test_what_was_read_last_stays_with_its_age_while_the_source_fails(source: Source, clock: Clock) -> None:
    read = SharedRead(source, clock=clock)
    asyncio.run(read.latest())
    source.error = CatalogError("the catalog 'rfr' failed: no route")
    clock.now += 10
    assert asyncio.run(read.latest()) == Latest(1, pytest.approx(10.0), "the catalog 'rfr' failed: no route")
    source.error = None
    clock.now += 10
    assert asyncio.run(read.latest()) == Latest(3, pytest.approx(0.0), None)


@pytest.mark.parametrize(("age", "shown"), [(3.0, 1), (3600.0, 2)])
def test_what_is_old_is_waited_for_as_if_nothing_were_known(
    source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch, age: float, shown: int
) -> None:
    monkeypatch.setattr(lakes, "_LONG_WAIT_SECONDS", PATIENCE)
    read = SharedRead(source, clock=clock)
    asyncio.run(read.latest())
    monkeypatch.setattr(lakes, "_WAIT_SECONDS", 0.0)
    source.may_answer.clear()
    clock.now += age

    async def look() -> Latest[int]:
        looking = asyncio.create_task(read.latest())
        await asyncio.sleep(0.05)
        source.may_answer.set()
        return await looking

    assert asyncio.run(look()) == Latest(shown, pytest.approx(age if shown == 1 else 0.0), None)


def test_the_text_of_an_error_that_is_not_ours_is_not_told_and_its_place_is_logged_once(
    source: Source, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    source.error = ValueError("password=hunter2")
    read = SharedRead(source, clock=clock)
    for _ in range(3):
        told = asyncio.run(read.latest())
        clock.now += 100
    assert told.problem is not None
    assert "ValueError" in told.problem
    assert "hunter2" not in told.problem + caplog.text
    assert "raise self.error" in caplog.text
    assert len(caplog.records) == 1


def test_a_read_that_never_ends_is_given_up_and_replaced_a_few_times(
    source: Source, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "_LONG_WAIT_SECONDS", 0.05)
    source.may_answer.clear()
    read = SharedRead(source, clock=clock)
    for _ in range(8):
        asyncio.run(read.latest())
        clock.now += 121
    assert source.asked == 4
    clock.now += 24 * 3600
    asyncio.run(read.latest())
    assert source.asked == 5
    source.may_answer.set()
    wait_until(lambda: asyncio.run(read.latest()).value is not None)


def test_a_ledger_that_is_not_there_is_missing_though_another_lake_is_away(login: Login, catalog: Catalog) -> None:
    begun(catalog, "raw.orders", **TASK)
    with second_lake(host="http://127.0.0.1:9", extra=json.dumps({"catalog_type": "rest"})):
        owner = login("owner")
        shown = owner.get(REFRESH)
        missing, away = (owner.get("/rfr/refresh", params={"lake": lake, "ledger": "raw.none"}) for lake in LAKES)
    assert "raw.orders" in shown.text
    assert [answer.status_code for answer in (shown, missing, away)] == [200, 404, 503]
    assert ["The lake second_lake" in answer.text for answer in (shown, missing, away)] == [False, False, True]


@needs_teams
def test_with_teams_any_number_of_dags_is_asked_for_by_a_few_queries(
    application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = 0

    def count(*_args: Any) -> None:
        nonlocal statements
        statements += 1

    monkeypatch.setattr(access, "_has_teams", lambda: True)
    event.listen(settings.engine, "before_cursor_execute", count)
    try:
        viewer = access.Viewer(None)
        viewer.learn(f"dag_{number}" for number in range(100))
        assert not viewer.sees("dag_1")
    finally:
        event.remove(settings.engine, "before_cursor_execute", count)
    assert 0 < statements < 10
