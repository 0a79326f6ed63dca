"""Reads that all viewers share: one at a time, none sooner than two seconds after the last, each in its own thread.

A catalog that is slow or dead costs a viewer a bounded wait, and then what was read last with a sentence about it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from airflow_provider_rfr.exceptions import RfrError

_log = logging.getLogger(__name__)

T = TypeVar("T")
_LONG_WAIT_SECONDS: Final = 3.0
"""For which a viewer waits where nothing is known yet, or only what is old; the page asks again by itself."""
_WAIT_SECONDS: Final = 1.0
"""The same where what is known can be shown."""
_OLD_SECONDS: Final = 10.0
"""Since the next read was due: nobody looked at the page for a while."""
_LOST_SECONDS: Final = 120.0
"""After which a read counts as lost, and another one may begin: a connection that is cut off may hang for ever.
Twice as long for each that is lost already, so that hanging reads stay few."""
_PAUSE_BY_READ: Final = 3.0
_LONGEST_PAUSE_SECONDS: Final = 30.0


class Problem(NamedTuple):
    """A failed read, in sentences for viewers.

    :ivar reason: a sentence, which may name hosts
    :ivar shown: a sentence about what is shown in its place
    """

    reason: str
    shown: str


@dataclass(frozen=True, slots=True)
class Latest(Generic[T]):
    """The latest value of a read.

    :ivar value: of the last read that worked; None before the first
    :ivar age: of the value, in seconds
    :ivar problem: why there is no newer value, without secrets; None where the last read worked
    """

    value: T | None
    age: float
    problem: str | None

    def problems_with(self, what: str) -> tuple[Problem, ...]:
        """Return a problem if there is no newer value, else nothing.

        :param what: the subject of the problem's sentence
        """
        if self.problem is None:
            return ()
        shown = f"What is shown is {self.age:.0f} s old." if self.value is not None else "Nothing of it is shown."
        return (Problem(f"{what} can't be read now: {self.problem}.", shown),)


class SharedRead(Generic[T]):
    """One value, read for all viewers together.

    :param read: runs in a thread of its own
    :param seconds: between the end of a read and the next one; more after a read that took long, so that a large lake
        does not keep the server busy
    """

    def __init__(
        self, read: Callable[[], T], seconds: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._value: T | None = None
        self._problem: str | None = None
        self._read_at = self._ended = self._began = self._pause = 0.0
        self._was_asked = False
        self._running: Future[None] | None = None
        self._lost = 0

    @property
    def is_idle(self) -> bool:
        return self._running is None and self._lost == 0

    async def latest(self, *, may_begin: bool = True) -> Latest[T]:
        """Return the value, from a read that begins now if one is due; the wait for it is bounded.

        :param may_begin: without it no read begins, and only one that is under way is waited for
        """
        running = self._begin_if_due() if may_begin else self._running
        if running is not None:
            now = self._clock()
            is_old = self._value is None or now - self._read_at > self._pause + _OLD_SECONDS
            left = (_LONG_WAIT_SECONDS if is_old else _WAIT_SECONDS) - (now - self._began)
            if left > 0:
                await asyncio.wait([asyncio.wrap_future(running)], timeout=left)
        with self._lock:
            now, problem = self._clock(), self._problem
            if self._running is not None and now - self._began >= _LONG_WAIT_SECONDS:
                problem = f"no answer for {now - self._began:.0f} s"
            elif self._running is not None and self._value is None and problem is None:
                problem = "it is being read for the first time"
            elif self._running is None and not may_begin:
                problem = "too many other reads have not ended yet"
            return Latest(self._value, max(0.0, now - self._read_at), problem)

    def _begin_if_due(self) -> Future[None] | None:
        """Begin a read if one is due, and return the running one; None if the known value is new enough."""
        with self._lock:
            now = self._clock()
            if self._running is not None and now - self._began > _LOST_SECONDS * 2**self._lost:
                self._running, self._lost = None, self._lost + 1
            if self._running is None and not (self._was_asked and now - self._ended < self._pause):
                running: Future[None] = Future()
                # Not of a pool, whose threads Python waits for at its end.
                threading.Thread(target=self._run, args=(running, now), name="rfr-page", daemon=True).start()
                self._running, self._began, self._was_asked = running, now, True
            return self._running

    def _run(self, running: Future[None], began: float) -> None:
        value: T | None = None
        problem = None
        try:
            value = self._read()
        except RfrError as error:
            problem = str(error)
        except BaseException as error:  # noqa: BLE001 - of any library, Rust panics too; texts may hold secrets
            problem = f"{type(error).__name__}; the log of the API server may say more"
            if problem != self._problem:
                where = "".join(traceback.format_tb(error.__traceback__))
                _log.warning("a page of the refreshes can't be read: %s at\n%s", type(error).__name__, where)
            _log.debug("reading failed", exc_info=error)
        with self._lock:
            if self._running is running:
                self._running, self._ended, self._problem = None, self._clock(), problem
                took = self._ended - self._began
                self._pause = max(self._seconds, min(_PAUSE_BY_READ * took, _LONGEST_PAUSE_SECONDS))
                if problem is None:
                    self._value, self._read_at = value, self._ended
            else:
                self._lost -= 1
                if problem is None and began > self._read_at:
                    # Later than it was waited for, and newer than what is known.
                    self._value, self._read_at = value, self._clock()
        running.set_result(None)
