"""The trigger of a deferred refresh, with a real ledger and a resource manager behind HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_rfr.hooks.spark import DriverState
from airflow_provider_rfr.triggers.refresh import (
    _LOST_SECONDS,
    _TIDY_SECONDS,
    DeferredRefresh,
    End,
    Ending,
    RefreshTrigger,
    _RefreshWatch,
)
from tests.soon import SOON
from tests.unit.triggers.refreshes import PASSWORD, RUN_KEY, TABLE, Refresh


def trigger(refresh: Refresh, **arguments: Any) -> RefreshTrigger:
    return RefreshTrigger(refresh.deferred.to_json(), **{"poll_interval": 0.05, **arguments})


async def events(made: RefreshTrigger) -> list[TriggerEvent]:
    return [event async for event in made.run()]


def run(made: RefreshTrigger, *beside: Awaitable[Any]) -> TriggerEvent:
    """The trigger's only event."""

    async def both() -> list[TriggerEvent]:
        found, *_ = await asyncio.gather(events(made), *beside)
        return list(found)

    [event] = asyncio.run(asyncio.wait_for(both(), 60))
    return event


async def later(seconds: float, action: Callable[[], Any]) -> None:
    await asyncio.sleep(seconds)
    await asyncio.to_thread(action)


def test_it_is_made_again_from_its_arguments_and_they_hold_no_secret(refresh: Refresh) -> None:
    path, arguments = trigger(refresh, deadline="2026-01-01T00:00:00+00:00").serialize()
    assert path == "airflow_provider_rfr.triggers.refresh.RefreshTrigger"
    text = json.dumps(arguments)
    again = RefreshTrigger(**json.loads(text))
    assert again.serialize() == (path, arguments)
    assert DeferredRefresh.from_json(again.refresh) == refresh.deferred
    for secret in (PASSWORD, refresh.manager.url, refresh.properties["uri"]):
        assert secret not in text


def test_its_one_event_tells_how_the_driver_ended_and_what_the_task_needs_to_go_on(refresh: Refresh) -> None:
    event = run(trigger(refresh), later(0.5, lambda: refresh.end(1)))
    assert event.payload["end"] == "driver over"
    assert event.payload["driver"] == {"state": "failed", "status": "FAILED", "exit_code": 1}
    assert DeferredRefresh.from_json(event.payload["refresh"]) == refresh.deferred
    assert Ending.from_json(event.payload).to_json() == {key: event.payload[key] for key in ("end", "driver")}
    assert PASSWORD not in json.dumps(event.payload)


def test_a_round_is_one_line_of_the_tasks_log(refresh: Refresh, capfd: pytest.CaptureFixture[str]) -> None:
    ledger = refresh.begin()

    def go() -> None:
        ledger.commit([], rounds=1, pages=3, records=30)
        time.sleep(0.5)
        refresh.end(0)

    run(trigger(refresh), later(0.5, go))
    assert capfd.readouterr().out.count(f"{TABLE}: generation 1, round 1: 3 pages") == 1


def test_a_slow_manager_does_not_hold_up_other_triggers(refresh: Refresh) -> None:
    turns, meanwhile = [0], list[int]()

    def slow() -> None:
        before, end = turns[0], time.monotonic() + 4
        while turns[0] < before + 5 and time.monotonic() < end:
            time.sleep(0.01)
        meanwhile.append(turns[0] - before)

    async def others() -> None:
        while len(meanwhile) < 3:
            await asyncio.sleep(0.01)
            turns[0] += 1
        await asyncio.to_thread(refresh.end, 0)

    refresh.manager.before_answer = slow
    run(trigger(refresh), others())
    assert min(meanwhile[:3]) >= 5, "the event loop stood still while the manager was at it"


def test_a_triggerer_that_ends_leaves_the_driver_alone_and_the_next_one_goes_on(refresh: Refresh) -> None:
    made = trigger(refresh)

    async def restart() -> None:
        first = asyncio.create_task(events(made))
        await asyncio.sleep(0.5)
        first.cancel("shutting down")
        await asyncio.gather(first, return_exceptions=True)
        await made.cleanup()

    asyncio.run(restart())
    assert refresh.driver.exit_code is None
    _, arguments = made.serialize()
    event = run(RefreshTrigger(**arguments), later(0.2, lambda: refresh.end(0)))
    assert event.payload["driver"]["state"] == "succeeded"


def test_a_task_that_is_marked_or_cleared_ends_the_driver(refresh: Refresh) -> None:
    asyncio.run(trigger(refresh).on_kill())
    assert refresh.manager.report(refresh.app)["state"] == "KILLED"
    assert refresh.driver.exit_code == 137


def test_a_driver_that_cannot_be_ended_is_told_and_left_to_the_fence(
    refresh: Refresh, capfd: pytest.CaptureFixture[str]
) -> None:
    refresh.manager.trouble = 401
    asyncio.run(trigger(refresh).on_kill())
    assert "could not be ended (ClusterManagerError); the next attempt fences it" in capfd.readouterr().out


def test_its_time_is_its_own_affair_for_airflow_does_not_time_deferred_tasks(refresh: Refresh) -> None:
    deadline = (datetime.now(timezone.utc) + timedelta(seconds=1)).isoformat()
    began = time.monotonic()
    event = run(trigger(refresh, poll_interval=600.0, deadline=deadline))
    assert event.payload["end"] == "out of time"
    assert 0.9 < time.monotonic() - began < SOON
    assert refresh.driver.exit_code == 137


class Clock:
    """Stands still until a test moves it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Watch(_RefreshWatch):
    """A watch with its clock, and the lines that it shows."""

    def __init__(self, refresh: Refresh) -> None:
        self.clock = Clock()
        self.lines: list[str] = []
        super().__init__(refresh.deferred, self.lines.append, self.clock)

    def ending(self) -> Ending:
        ending = self.look()
        assert ending is not None
        return ending


@pytest.fixture
def watch(refresh: Refresh) -> Watch:
    return Watch(refresh)


def test_a_refresh_goes_on_while_its_driver_runs(refresh: Refresh, watch: Watch) -> None:
    assert watch.look() is None
    ledger = refresh.begin()
    assert watch.look() is None
    ledger.commit([], rounds=1, pages=12, records=120, partitions_done=0)
    watch.clock.now += 10 * _LOST_SECONDS
    assert watch.look() is None
    assert any(line.startswith(f"{TABLE}: generation 1, round 1: 12 pages, 120 records") for line in watch.lines)


def test_each_state_of_the_driver_is_shown_once(refresh: Refresh, watch: Watch) -> None:
    for _ in range(3):
        watch.look()
    told = [line for line in watch.lines if "driver" in line]
    # The manager starts the driver when it likes: it may be between two looks, or before the first.
    states = [f"the driver {refresh.app} is {state}" for state in ("ACCEPTED", "RUNNING")]
    assert told in (states, states[:1], states[1:])


def test_a_driver_that_is_over_ends_it_whatever_the_ledger_says(refresh: Refresh, watch: Watch) -> None:
    refresh.begin()
    assert watch.look() is None
    refresh.end(3)
    ending = watch.ending()
    assert (ending.end, ending.driver.state, ending.driver.exit_code) == (End.DRIVER_OVER, DriverState.FAILED, 3)


def test_a_published_refresh_waits_for_its_driver_but_not_for_ever(refresh: Refresh, watch: Watch) -> None:
    refresh.publish(refresh.begin())
    assert watch.look() is None
    watch.clock.now += _TIDY_SECONDS
    ending = watch.ending()
    assert (ending.end, ending.driver.state) == (End.PUBLISHED, DriverState.ACTIVE)


def test_what_another_run_published_is_not_ours(refresh: Refresh, watch: Watch) -> None:
    refresh.publish(refresh.begin(run_key=RUN_KEY + "0"))
    for _ in range(2):
        assert watch.look() is None
        watch.clock.now += _TIDY_SECONDS


def test_a_manager_that_knows_no_such_driver_is_asked_twice(refresh: Refresh, watch: Watch) -> None:
    refresh.manager.forget(refresh.app)
    assert watch.look() is None
    assert watch.ending().driver.state is DriverState.GONE


def test_a_manager_that_is_out_of_order_ends_nothing_while_the_ledger_moves(refresh: Refresh, watch: Watch) -> None:
    ledger = refresh.begin()
    refresh.manager.trouble = 503
    for rounds in range(1, 4):
        ledger.commit([], rounds=rounds, pages=rounds)
        watch.clock.now += 0.9 * _LOST_SECONDS
        assert watch.look() is None
    line = "the driver can't be read (the resource manager answers GET with HTTP 503); the refresh continues"
    assert watch.lines.count(line) == 1
    refresh.manager.trouble = None
    assert watch.look() is None
    assert "the driver can be read again" in watch.lines


def test_without_driver_and_ledger_it_is_lost(refresh: Refresh, watch: Watch) -> None:
    refresh.manager.trouble = 401
    assert watch.look() is None
    watch.clock.now += _LOST_SECONDS
    assert watch.ending().end is End.LOST


def test_a_catalog_that_fails_ends_nothing_and_its_text_is_not_shown(
    refresh: Refresh, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = {"conn_type": "rfr_lake", "host": "sqlite:////nowhere/secret/c.db", "extra": {"warehouse": "/nowhere"}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    watch.clock.now += 2 * _LOST_SECONDS
    assert watch.look() is None
    assert [line for line in watch.lines if "ledger" in line] == [
        f"the ledger of {TABLE} can't be read (ConfigurationError); the refresh continues"
    ]


def test_stopping_kills_the_application(refresh: Refresh, watch: Watch) -> None:
    watch.stop()
    assert refresh.manager.requests == [("PUT", f"/ws/v1/cluster/apps/{refresh.app}/state")]
    assert refresh.driver.exit_code == 137
    ending = watch.ending()
    assert (ending.driver.state, ending.driver.status) == (DriverState.FAILED, "KILLED")
