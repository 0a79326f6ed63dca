"""One budget for all tasks, in the driver and over its connection, within the limits of the source."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ReadInterrupted, RefreshStoppedError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.refresh import budget as module
from airflow_provider_rfr.refresh.budget import BudgetLimiter, BudgetServer, DriverBudget, Heartbeat, StreamBudget
from airflow_provider_rfr.refresh.config import parse_config
from airflow_provider_rfr.refresh.engine import Refresh
from airflow_provider_rfr.streams import StateMixin, Stream
from airflow_provider_rfr.streams.paged import as_paged
from tests.soon import SOON
from tests.unit.messages import raises
from tests.unit.refresh import in_driver
from tests.unit.refresh.paged_sources import Numbers

RATE = 200.0


@pytest.fixture
def served() -> Iterator[tuple[DriverBudget, BudgetServer]]:
    budget = DriverBudget(RATE)
    server = BudgetServer(budget, "127.0.0.1", b"only the refresh knows")
    yield budget, server
    server.close()


def test_two_tasks_keep_one_rate_between_them(served: tuple[DriverBudget, BudgetServer]) -> None:
    _, server = served
    sent: list[float] = []

    def read() -> None:
        remote = server.address.connect("numbers")
        limiter = BudgetLimiter(remote, threading.Event())
        for _ in range(30):
            limiter.acquire()
            sent.append(time.monotonic())
        remote.close()

    began = time.monotonic()
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(sent) == 60
    assert time.monotonic() - began >= 59 / RATE


def test_a_penalty_in_one_task_stops_the_other_at_its_next_beat(served: tuple[DriverBudget, BudgetServer]) -> None:
    _, server = served
    first, second = server.address.connect("numbers"), server.address.connect("numbers")
    first.penalize(500.0)
    assert second.paused() == 0
    second.heartbeat(Heartbeat("numbers", 1, 0, 0))
    assert 500 - SOON < second.paused() <= 500


def test_a_penalty_holds_back_a_permit_that_was_granted_before(served: tuple[DriverBudget, BudgetServer]) -> None:
    budget, _ = served
    stop = threading.Event()
    limiter = BudgetLimiter(StreamBudget(budget), stop)
    for _ in range(20):
        budget.reserve()
    threading.Timer(0.02, budget.penalize, (0.3,)).start()
    began = time.monotonic()
    limiter.acquire()
    assert time.monotonic() - began >= 0.3


def test_permits_that_a_penalty_held_back_keep_the_rate_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_rfr.refresh.budget.time.monotonic", lambda: 0.0)
    budget = DriverBudget(RATE)
    budget.reserve()
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            budget.penalize(9.0)
            return len(waits) % 2 == 0

    for _ in range(3):
        with pytest.raises(ReadInterrupted):
            BudgetLimiter(StreamBudget(budget), Stop()).acquire()
    first, second, third = waits[1::2]
    assert first == 9.0
    assert min(second - first, third - second) >= 1 / RATE


def test_a_stranger_without_the_secret_is_not_served(served: tuple[DriverBudget, BudgetServer]) -> None:
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client

    _, server = served
    with pytest.raises(AuthenticationError):
        Client(server.address.address, authkey=b"a guess")
    remote = server.address.connect("numbers")
    assert remote.heartbeat(Heartbeat("numbers", 0, 0, 0)) is False


def test_the_secret_is_in_no_text(served: tuple[DriverBudget, BudgetServer]) -> None:
    assert "only the refresh knows" not in repr(served[1].address)


def test_a_driver_that_is_gone_ends_the_round(served: tuple[DriverBudget, BudgetServer]) -> None:
    remote = served[1].address.connect("numbers")
    remote.close()
    assert remote.heartbeat(Heartbeat("numbers", 0, 0, 0)) is True


def test_a_round_ends_when_one_task_idles_while_another_has_partitions_to_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.05)
    budget = DriverBudget(None)
    assert budget.heartbeat(Heartbeat("numbers", 0, queued=0, idle=3)) is False
    assert budget.heartbeat(Heartbeat("numbers", 1, queued=9, idle=0)) is False
    time.sleep(0.06)
    assert budget.heartbeat(Heartbeat("numbers", 1, queued=9, idle=0)) is True
    budget.open_round([])
    assert budget.heartbeat(Heartbeat("numbers", 1, queued=9, idle=0)) is False


def test_a_round_ends_when_a_stream_is_read_so_that_it_can_be_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.05)
    budget = DriverBudget(None)
    budget.open_round([("short", 0), ("short", 1), ("long", 0)])
    budget.done("short", 0)
    time.sleep(0.06)
    assert budget.heartbeat(Heartbeat("long", 0, queued=0, idle=0)) is False, "another task still reads it"
    budget.done("short", 1)
    time.sleep(0.06)
    assert budget.heartbeat(Heartbeat("long", 0, queued=0, idle=0)) is True


@pytest.mark.parametrize(("limits", "rate"), [((), None), ((9.0,), 9.0), ((9.0, 5.0, 7.0), 5.0)])
def test_the_lowest_rate_of_the_streams_counts_for_all(limits: tuple[float, ...], rate: float | None) -> None:
    budget = DriverBudget(None)
    for limit in limits:
        budget.limit(limit)
    assert budget.requests_per_second == rate


def test_an_idle_task_ends_no_round_when_there_is_nothing_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.0)
    budget = DriverBudget(None)
    budget.done("numbers", 0)
    time.sleep(0.01)
    assert budget.heartbeat(Heartbeat("numbers", 1, queued=0, idle=0)) is False


def test_waiting_for_a_permit_ends_when_the_reader_is_stopped() -> None:
    budget, stop = DriverBudget(None), threading.Event()
    budget.penalize(60)
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(ReadInterrupted):
        BudgetLimiter(StreamBudget(budget), stop).acquire()


def test_turns_of_an_interrupted_round_come_back_so_a_slow_rate_never_stands_still() -> None:
    """Sixteen readers at five a second wait for three seconds of turns; a round here has half a second."""
    budget = DriverBudget(5.0)
    sent: list[float] = []
    began = time.monotonic()
    for _ in range(4):
        budget.open_round([])
        stop = threading.Event()

        def read(stop: threading.Event = stop) -> None:
            limiter = BudgetLimiter(StreamBudget(budget), stop)
            try:
                while True:
                    limiter.acquire()
                    sent.append(time.monotonic())
            except ReadInterrupted:
                return

        readers = [threading.Thread(target=read) for _ in range(16)]
        for reader in readers:
            reader.start()
        time.sleep(0.5)
        stop.set()
        for reader in readers:
            reader.join()
    assert 5 <= len(sent) <= 2 + 5.0 * (time.monotonic() - began), "the rate was neither kept nor used"
    assert max(sent) - min(sent) > 1.2, "no request went out in the last rounds"


@pytest.mark.parametrize("rude", ["resets", "says nothing"])
def test_a_peer_that_resets_or_says_nothing_keeps_nobody_waiting(
    served: tuple[DriverBudget, BudgetServer], rude: str
) -> None:
    _, server = served
    strangers = [socket.create_connection(server.address.address) for _ in range(3)]
    if rude == "resets":
        for stranger in strangers:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
    served_one = threading.Thread(
        target=lambda: server.address.connect("numbers").heartbeat(Heartbeat("numbers", 0, 0, 0)), daemon=True
    )
    served_one.start()
    served_one.join(SOON)
    assert not served_one.is_alive()


class Sleep:
    """A process that was stopped for a while: its clocks are further on than it thinks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = 0.0
        for name in ("monotonic", "time"):
            clock = getattr(time, name)
            monkeypatch.setattr(f"airflow_provider_rfr.refresh.budget.time.{name}", lambda clock=clock: self._of(clock))

    def _of(self, clock: Callable[[], float]) -> float:
        return clock() + self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += seconds


def test_who_slept_asks_whether_the_refresh_is_still_its_own_before_it_sends_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    ours = True

    def is_ours() -> bool:
        asked.append(ours)
        return ours

    sleep = Sleep(monkeypatch)
    limiter = BudgetLimiter(StreamBudget(DriverBudget(None), is_ours), threading.Event())
    limiter.acquire()
    assert asked == [], "nobody slept"
    sleep.sleep(60)
    limiter.acquire()
    limiter.acquire()
    assert asked == [True]
    ours = False
    sleep.sleep(60)
    with pytest.raises(ReadInterrupted):
        limiter.acquire()
    assert asked == [True, False]


def test_a_worker_that_slept_asks_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = DriverBudget(None)
    budget.add_stream("numbers", lambda: False)
    server = BudgetServer(budget, "127.0.0.1", b"only the refresh knows")
    sleep = Sleep(monkeypatch)
    try:
        limiter = BudgetLimiter(server.address.connect("numbers"), threading.Event())
        limiter.acquire()
        sleep.sleep(60)
        with pytest.raises(ReadInterrupted):
            limiter.acquire()
    finally:
        server.close()


class Limited(Numbers):
    """Sends a request for each of its partitions, which are listed in the driver."""

    requests_per_second = 50.0
    max_concurrency = 2
    paces_itself = True

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        for item in super().stream_slices():
            self.context.limiter.acquire()
            yield item


class OneByOne(Stream, StateMixin):
    requests_per_second = 7.0
    max_concurrency = 1
    state: Any = None

    def read_records(self, *_: Any) -> Iterable[Mapping[str, Any]]:
        return ()


@pytest.fixture
def refresh_of(tmp_path: Path) -> Any:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog, stopping = open_catalog(LakeSettings("rfr", properties)), threading.Event()

    def make(partitions: int = 4, **options: Any) -> Refresh:
        document = {
            "source": {"class": f"{__name__}:Limited", "config": {"partitions": partitions}},
            "streams": ["numbers"],
            "target": "raw.numbers",
            "lake": {"properties": properties},
            "options": options,
        }
        return in_driver.refresh_of(parse_config(document), catalog, stopping)

    make.stopping = stopping  # type: ignore[attr-defined]
    return make


@pytest.mark.parametrize(
    ("options", "rate", "concurrency"),
    [
        ({}, 50.0, 2),
        ({"requests_per_second": 80}, 80.0, 2),
        ({"concurrency": 1}, 50.0, 1),
        ({"concurrency": 30}, 50.0, 2),
    ],
)
def test_the_rate_of_a_source_is_a_default_and_its_concurrency_a_bound(
    refresh_of: Any, options: dict[str, Any], rate: float, concurrency: int
) -> None:
    found = refresh_of(**options)._options
    assert (found.requests_per_second, found.concurrency) == (rate, concurrency)


def test_a_stream_that_is_read_through_an_adapter_has_its_limits_too() -> None:
    stream = as_paged(OneByOne())
    assert (stream.requests_per_second, stream.max_concurrency) == (7.0, 1)


def test_the_driver_keeps_the_rate_while_it_lists_partitions(refresh_of: Any) -> None:
    began = time.monotonic()
    assert len(refresh_of(partitions=26)._open()) == 26
    # A slow machine only adds to it.
    assert time.monotonic() - began >= 25 / 50


def test_a_driver_that_is_stopped_while_it_lists_partitions_says_so(refresh_of: Any) -> None:
    refresh = refresh_of(partitions=4)
    refresh_of.stopping.set()
    with raises(RefreshStoppedError):
        refresh.run()
