"""What a reader is allowed to do right now: its rate, and whether it has to stop."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_rfr.exceptions import BackoffInterrupted, ReadInterrupted


class Limiter(Protocol):
    """A rate budget that many readers share."""

    def acquire(self) -> None:
        """Block until one request may be sent.

        :raises ReadInterrupted: the reader was stopped while it waited
        """

    def penalize(self, seconds: float) -> None:
        """Let everybody who shares the budget wait: the API said "too many requests"."""


class Unlimited:
    """A budget that never runs out, and forgets penalties: who got the 429 waits alone."""

    def acquire(self) -> None:
        return None

    def penalize(self, seconds: float) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Belongs to one process: a copy that arrives in another one is unlimited until it's bound again.

    :ivar limiter: asked before each request
    :ivar stop: once set, reads end at the next request or sleep
    """

    limiter: Limiter = field(default_factory=Unlimited)
    stop: threading.Event = field(default_factory=threading.Event)

    def sleep(self, seconds: float) -> None:
        """Wait, unless the reader is stopped.

        :raises BackoffInterrupted: it was
        """
        if self.stop.wait(seconds):
            raise BackoffInterrupted("the reader was asked to stop")

    def check(self) -> None:
        """:raises ReadInterrupted: the reader was asked to stop"""
        if self.stop.is_set():
            raise ReadInterrupted("the reader was asked to stop")

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadContext, ()
