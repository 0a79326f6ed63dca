"""The trigger of a deferred refresh, with a real ledger and a resource manager behind HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import structlog
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import TriggerEvent

from airflow_provider_rfr import triggers
from airflow_provider_rfr.compat import AIRFLOW_V_3_3_PLUS
from airflow_provider_rfr.hooks.spark import DriverAddress, DriverState
from airflow_provider_rfr.triggers import refresh as refresh_trigger
from airflow_provider_rfr.triggers.refresh import (
    _LOST_SECONDS,
    _TIDY_SECONDS,
    DeferredRefresh,
    End,
    Ending,
    RefreshTrigger,
    _RefreshWatch,
)
from tests.soon import SOON, wait_until
from tests.unit.triggers.refreshes import PASSWORD, RUN_KEY, TABLE, Refresh, Supervisor


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


def stop_of(refresh: Refresh) -> tuple[str, str]:
    """The request that ends the driver."""
    return "PUT", f"/ws/v1/cluster/apps/{refresh.app}/state"


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
    ledger, requests = refresh.begin(), refresh.manager.requests

    def go() -> None:
        # Each look reads the ledger before it asks the manager.
        wait_until(lambda: requests)
        ledger.commit([], rounds=1, pages=3, records=30)
        seen = len(requests)
        wait_until(lambda: len(requests) >= seen + 2)
        refresh.end(0)

    run(trigger(refresh), asyncio.to_thread(go))
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


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, SOON)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    made = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


@pytest.fixture(params=[True, False], ids=["on_kill", "no on_kill"])
def has_on_kill(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether Airflow calls on_kill: 3.3 does."""
    if request.param and not AIRFLOW_V_3_3_PLUS:
        pytest.skip("Airflow calls on_kill since 3.3")
    monkeypatch.setattr(refresh_trigger, "AIRFLOW_V_3_3_PLUS", request.param)
    return bool(request.param)


class Triggerer:
    """Airflow's own loop around one trigger."""

    def __init__(self, made: RefreshTrigger, *, has_on_kill: bool) -> None:
        self._has_on_kill = has_on_kill
        self._runner = TriggerRunner()
        # That of the class keeps the captured output of the test that used it first.
        self._runner.log = structlog.get_logger()
        made.task_instance = Supervisor.task_instance  # type: ignore[assignment]
        self.run = asyncio.ensure_future(self._runner.run_trigger(1, made))
        details = {"task": self.run, "is_watcher": False, "name": "refresh", "events": 0}
        self._runner.triggers[1] = details  # type: ignore[assignment]

    async def cancel(self) -> None:
        """As at a mark, a clear, and when another triggerer has taken over; Airflow repeats it until the end."""
        if self._has_on_kill:
            self._runner.to_cancel.append(1)
            await self._runner.cancel_triggers()
        else:
            self.run.cancel()
            await asyncio.sleep(0)


@pytest.mark.parametrize("state", ["failed", "success", None])
def test_a_task_that_is_marked_or_cleared_ends_the_driver_however_often_airflow_cancels_the_trigger(
    refresh: Refresh, supervisor: Supervisor, has_on_kill: bool, state: str | None
) -> None:
    async def marked() -> None:
        supervisor.answers.clear()
        triggerer = Triggerer(trigger(refresh), has_on_kill=has_on_kill)
        await until(lambda: refresh.manager.requests)
        await triggerer.cancel()
        await until(lambda: supervisor.asked)
        await triggerer.cancel()
        await triggerer.cancel()
        supervisor.answers.set()
        await until(lambda: refresh.driver.exit_code == 137)
        await asyncio.wait({triggerer.run}, timeout=SOON)
        assert triggerer.run.cancelled()

    supervisor.state = state
    asyncio.run(marked())


@pytest.mark.parametrize("silent", [False, True], ids=["deferred", "no answer"])
def test_a_triggerer_that_ends_or_lost_its_triggers_leaves_the_driver_alone_and_the_next_one_goes_on(
    refresh: Refresh,
    supervisor: Supervisor,
    has_on_kill: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    silent: bool,
) -> None:
    async def lost(made: RefreshTrigger) -> None:
        triggerer = Triggerer(made, has_on_kill=has_on_kill)
        await until(lambda: refresh.manager.requests)
        await triggerer.cancel()
        await asyncio.wait({triggerer.run}, timeout=SOON)
        assert triggerer.run.cancelled()

    if silent:
        monkeypatch.setattr(refresh_trigger, "_ANSWER_SECONDS", 0.1)
        supervisor.answers.clear()
    made = trigger(refresh)
    asyncio.run(lost(made))
    assert stop_of(refresh) not in refresh.manager.requests
    told = f"end the driver with: yarn application -kill {refresh.app}" if silent else "its task is still deferred"
    assert told in capfd.readouterr().out
    _, arguments = made.serialize()
    event = run(RefreshTrigger(**arguments), later(0.2, lambda: refresh.end(0)))
    assert event.payload["driver"]["state"] == "succeeded"


def test_a_stop_waits_neither_for_polls_that_hang_nor_behind_them(
    refresh: Refresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    polls = ThreadPoolExecutor(1)
    polls.submit(release.wait)
    monkeypatch.setattr(triggers, "_POLLS", polls)
    try:
        event = run(trigger(refresh, deadline=datetime.now(timezone.utc).isoformat()))
    finally:
        release.set()
    assert event.payload["end"] == "out of time"
    assert refresh.driver.exit_code == 137


def test_a_driver_that_cannot_be_ended_at_the_deadline_is_told_with_what_ends_it(
    refresh: Refresh, capfd: pytest.CaptureFixture[str]
) -> None:
    refresh.manager.trouble = 401
    event = run(trigger(refresh, deadline=datetime.now(timezone.utc).isoformat()))
    assert event.payload["end"] == "out of time, driver not ended"
    told = f"The driver {refresh.app} could not be ended (ClusterManagerError). It goes on, and may publish"
    out = capfd.readouterr().out
    assert told in out
    assert f"end it with: yarn application -kill {refresh.app}" in out


def test_the_command_that_ends_a_pod_names_its_namespace(refresh: Refresh) -> None:
    pod = replace(refresh.deferred, driver=DriverAddress("kubernetes", "cluster", "data:refresh-driver"))
    assert pod.stop_command == "kubectl delete pod refresh-driver --namespace data"


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
