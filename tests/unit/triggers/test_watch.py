"""Looks at a real ledger and at a resource manager's HTTP."""

from __future__ import annotations

import json

import pytest

from airflow_provider_rfr.hooks.spark import DriverState
from airflow_provider_rfr.triggers.refresh import _LOST_SECONDS, _TIDY_SECONDS, End, _RefreshWatch
from tests.unit.triggers.refreshes import RUN_KEY, TABLE, Refresh


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def watch(refresh: Refresh, clock: Clock, lines: list[str]) -> _RefreshWatch:
    return _RefreshWatch(refresh.deferred, lines.append, clock)


def test_a_refresh_goes_on_while_its_driver_runs(
    refresh: Refresh, watch: _RefreshWatch, clock: Clock, lines: list[str]
) -> None:
    assert watch.look() is None
    ledger = refresh.begin()
    assert watch.look() is None
    ledger.commit([], rounds=1, pages=12, records=120, partitions_done=0)
    clock.now += 10 * _LOST_SECONDS
    assert watch.look() is None
    assert any(line.startswith(f"{TABLE}: generation 1, round 1: 12 pages, 120 records") for line in lines)


def test_each_state_of_the_driver_is_shown_once(refresh: Refresh, watch: _RefreshWatch, lines: list[str]) -> None:
    for _ in range(3):
        watch.look()
    told = [line for line in lines if "driver" in line]
    # The manager starts the driver when it likes: it may be between two looks, or before the first.
    states = [f"the driver {refresh.app} is {state}" for state in ("ACCEPTED", "RUNNING")]
    assert told in (states, states[:1], states[1:])


def test_a_driver_that_is_over_ends_it_whatever_the_ledger_says(refresh: Refresh, watch: _RefreshWatch) -> None:
    refresh.begin()
    assert watch.look() is None
    refresh.end(3)
    ending = watch.look()
    assert ending is not None
    assert (ending.end, ending.driver.state, ending.driver.exit_code) == (End.DRIVER_OVER, DriverState.FAILED, 3)


def test_a_published_refresh_waits_for_its_driver_but_not_for_ever(
    refresh: Refresh, watch: _RefreshWatch, clock: Clock
) -> None:
    refresh.publish(refresh.begin())
    assert watch.look() is None
    clock.now += _TIDY_SECONDS
    ending = watch.look()
    assert ending is not None
    assert (ending.end, ending.driver.state) == (End.PUBLISHED, DriverState.ACTIVE)


def test_what_another_run_published_is_not_ours(refresh: Refresh, watch: _RefreshWatch, clock: Clock) -> None:
    refresh.publish(refresh.begin(run_key=RUN_KEY + "0"))
    for _ in range(2):
        assert watch.look() is None
        clock.now += _TIDY_SECONDS


def test_a_manager_that_knows_no_such_driver_is_asked_twice(refresh: Refresh, watch: _RefreshWatch) -> None:
    refresh.manager.forget(refresh.app)
    assert watch.look() is None
    ending = watch.look()
    assert ending is not None
    assert ending.driver.state is DriverState.GONE


def test_a_manager_that_is_out_of_order_ends_nothing_while_the_ledger_moves(
    refresh: Refresh, watch: _RefreshWatch, clock: Clock, lines: list[str]
) -> None:
    ledger = refresh.begin()
    refresh.manager.trouble = 503
    for rounds in range(1, 4):
        ledger.commit([], rounds=rounds, pages=rounds)
        clock.now += 0.9 * _LOST_SECONDS
        assert watch.look() is None
    line = "the driver can't be read (the resource manager answers GET with HTTP 503); the refresh continues"
    assert lines.count(line) == 1
    refresh.manager.trouble = None
    assert watch.look() is None
    assert "the driver can be read again" in lines


def test_without_driver_and_ledger_it_is_lost(refresh: Refresh, watch: _RefreshWatch, clock: Clock) -> None:
    refresh.manager.trouble = 401
    assert watch.look() is None
    clock.now += _LOST_SECONDS
    ending = watch.look()
    assert ending is not None
    assert ending.end is End.LOST


def test_a_catalog_that_fails_ends_nothing_and_its_text_is_not_shown(
    refresh: Refresh, watch: _RefreshWatch, clock: Clock, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = {"conn_type": "rfr_lake", "host": "sqlite:////nowhere/secret/c.db", "extra": {"warehouse": "/nowhere"}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    clock.now += 2 * _LOST_SECONDS
    assert watch.look() is None
    assert [line for line in lines if "ledger" in line] == [
        f"the ledger of {TABLE} can't be read (ConfigurationError); the refresh continues"
    ]


def test_stopping_kills_the_application(refresh: Refresh, watch: _RefreshWatch) -> None:
    watch.stop()
    assert refresh.manager.requests == [("PUT", f"/ws/v1/cluster/apps/{refresh.app}/state")]
    assert refresh.driver.exit_code == 137
    ending = watch.look()
    assert ending is not None
    assert (ending.driver.state, ending.driver.status) == (DriverState.FAILED, "KILLED")
