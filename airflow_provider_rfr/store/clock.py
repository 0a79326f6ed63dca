"""Time, as what waits and what is leased need it."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that other machines agree with, and one that never goes backwards."""

    def now(self) -> float:
        """Seconds since 1970, UTC. It may jump, also backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds from some moment; only differences mean anything."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        time.sleep(max(0.0, seconds))


def instant(milliseconds: int) -> datetime:
    """A time as the control store keeps it, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
