"""One request budget and one word of command for all tasks of a refresh, wherever they run.

The driver holds the budget. Executors ask it over an authenticated connection: a permit for each request if there is
a rate to keep, and a beat a few times a second, which tells them of penalties (a 429 slows everybody down) and of the
round's end, and the driver of idle threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any, Protocol

from airflow_provider_rfr.exceptions import ReadInterrupted

BEAT_SECONDS = 0.2
_IDLE_SECONDS = 1.0
SLEPT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Beat:
    """What a task says of itself.

    :ivar queued: partitions that no thread of it has begun
    :ivar idle: threads without work
    """

    task: int
    queued: int
    idle: int


class Budget(Protocol):
    """What a task needs of the driver."""

    def reserve(self) -> float:
        """Take a permit; returns the seconds after which it is valid."""

    def paused(self) -> float:
        """Seconds for which nobody may send."""

    def penalize(self, seconds: float) -> None:
        """Nobody may send for so long."""

    def beat(self, beat: Beat) -> bool:
        """Tell how it stands; returns whether the round is over."""

    def is_ours(self) -> bool:
        """Whether this attempt still holds the refresh; asked by a process that slept."""


class DriverBudget:
    """The budget itself; thread-safe.

    :param requests_per_second: None for no limit
    :param is_ours: looks into the ledger whether this attempt still holds the refresh
    """

    def __init__(self, requests_per_second: float | None, is_ours: Callable[[], bool] = lambda: True) -> None:
        self.requests_per_second = requests_per_second
        self.is_ours = is_ours
        self._lock = threading.Lock()
        self._next = 0.0
        self._blocked_until = 0.0
        self._idle_since: dict[int, float] = {}
        self._queued: dict[int, int] = {}
        self._closed = threading.Event()

    def reserve(self) -> float:
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next, self._blocked_until)
            if self.requests_per_second:
                self._next = start + 1.0 / self.requests_per_second
            return start - now

    def paused(self) -> float:
        return max(0.0, self._blocked_until - time.monotonic())

    def penalize(self, seconds: float) -> None:
        with self._lock:
            self._blocked_until = max(self._blocked_until, time.monotonic() + seconds)

    def beat(self, beat: Beat) -> bool:
        with self._lock:
            now = time.monotonic()
            self._queued[beat.task] = beat.queued
            if beat.idle and not beat.queued:
                self._idle_since.setdefault(beat.task, now)
            else:
                self._idle_since.pop(beat.task, None)
            if self._uneven(now):
                self._closed.set()
        return self._closed.is_set()

    def done(self, task: int) -> None:
        """The task has ended: its core is idle."""
        with self._lock:
            self._queued[task] = 0
            self._idle_since.setdefault(task, time.monotonic())

    def open_round(self) -> None:
        """Forget the round before."""
        with self._lock:
            self._idle_since.clear()
            self._queued.clear()
            self._closed.clear()
            if self.requests_per_second:
                # The turns of readers that the last round's end interrupted come back: nobody sent anything in them.
                self._next = min(self._next, time.monotonic() + 1.0 / self.requests_per_second)

    def close_round(self) -> None:
        """Tell all tasks at their next beat that the round is over."""
        self._closed.set()

    def _uneven(self, now: float) -> bool:
        """Whether a task has stood idle for a while although others have partitions to share."""
        idle = any(now - since > _IDLE_SECONDS for since in self._idle_since.values())
        return idle and any(self._queued.values())


class BudgetServer:
    """Serves a :class:`DriverBudget` to executors until closed.

    :param host: address that executors reach the driver at
    :param bind: address that the driver listens on, where that is another one
    """

    def __init__(self, budget: DriverBudget, host: str, secret: bytes, *, bind: str | None = None) -> None:
        self._budget = budget
        self._secret = secret
        self._closed = threading.Event()
        # Who connects is asked for the secret in a thread of its own: one that says nothing keeps nobody waiting.
        self._listener = Listener((bind or host, 0), backlog=128)
        port = self._listener.address[1]
        self.address = BudgetAddress((host, port), secret, budget.requests_per_second is not None)
        threading.Thread(target=self._accept, name="rfr-budget", daemon=True).start()

    def close(self) -> None:
        """Serve nobody any more."""
        self._closed.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                # A peer that was gone before it was accepted is no reason to leave the others alone.
                if self._closed.wait(0.05):
                    return
                continue
            threading.Thread(target=self._serve, args=(connection,), name="rfr-budget-peer", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        calls: dict[str, Callable[..., Any]] = {
            name: getattr(self._budget, name) for name in ("reserve", "penalize", "paused", "beat", "done", "is_ours")
        }
        task: int | None = None
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            while True:
                name, *arguments = connection.recv()
                if name == "beat":
                    task = arguments[0].task
                    connection.send((self._budget.beat(arguments[0]), self._budget.paused()))
                else:
                    connection.send(calls[name](*arguments))
        except (EOFError, OSError, ValueError, AuthenticationError, AssertionError):
            if task is not None:
                self._budget.done(task)
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class BudgetAddress:
    """How an executor reaches the driver's budget.

    :ivar limited: whether there is a rate to keep, so that every request needs a permit
    """

    address: Any
    secret: bytes = field(repr=False)
    limited: bool

    def connect(self) -> _RemoteBudget:
        """Open a connection; raises OSError when the driver is gone."""
        return _RemoteBudget(Client(self.address, authkey=self.secret), self.limited)


class _RemoteBudget:
    """The driver's budget as a task sees it; thread-safe. A driver that is gone ends the round."""

    def __init__(self, connection: Connection, limited: bool) -> None:
        self._connection = connection
        self._limited = limited
        self._lock = threading.Lock()
        self._blocked_until = 0.0

    def reserve(self) -> float:
        return float(self._call("reserve")) if self._limited else self.paused()

    def paused(self) -> float:
        return max(0.0, self._blocked_until - time.monotonic())

    def penalize(self, seconds: float) -> None:
        self._blocked_until = max(self._blocked_until, time.monotonic() + seconds)
        self._call("penalize", seconds)

    def beat(self, beat: Beat) -> bool:
        try:
            over, paused = self._call("beat", beat)
        except (EOFError, OSError):
            return True
        self._blocked_until = time.monotonic() + paused
        return bool(over)

    def is_ours(self) -> bool:
        try:
            return bool(self._call("is_ours"))
        except (EOFError, OSError):
            return False

    def close(self) -> None:
        """Hang up, which tells the driver that the task is done."""
        self._connection.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._lock:
            self._connection.send((name, *arguments))
            return self._connection.recv()


class SleepClock:
    """Tells whether this process slept: was stopped, or its machine suspended; thread-safe.

    A stopped process misses seconds of the monotonic clock, one on a suspended machine those of the wall clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.monotonic(), time.time()

    def slept(self) -> float:
        """Seconds since it was asked last, by whichever clock they are more."""
        with self._lock:
            before, self._last = self._last, (time.monotonic(), time.time())
            return max(now - then for now, then in zip(self._last, before, strict=True))


class BudgetLimiter:
    """The limiter that streams ask before each request.

    A process that slept looks whether the refresh is still its own before it sends anything: another attempt may have
    taken over meanwhile, and each further request would be in vain.
    """

    def __init__(self, budget: Budget, stop: threading.Event) -> None:
        self._budget = budget
        self._stop = stop
        self._clock = SleepClock()
        self._looking = threading.Lock()

    def acquire(self) -> None:
        wait = self._budget.reserve()
        while wait > 0:
            if self._stop.wait(wait):
                raise ReadInterrupted("the round ended while a request waited for its turn")
            wait = self._budget.paused()
        self.look()
        if self._stop.is_set():
            raise ReadInterrupted("the round ended")

    def look(self) -> None:
        """Stop the readers if this process slept and lost the refresh; called several times a second."""
        with self._looking:
            if self._clock.slept() > SLEPT_SECONDS and not self._budget.is_ours():
                self._stop.set()

    def penalize(self, seconds: float) -> None:
        self._budget.penalize(seconds)
