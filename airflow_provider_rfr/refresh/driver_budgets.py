"""The budget as the driver's own readers see it: the head start and the side lane end by other rules than a round."""

from __future__ import annotations

import threading
import time

from airflow_provider_rfr.refresh.budget import Beat, DriverBudget


class SideLaneBudget:
    """Without the round's end: the side lane outlives rounds."""

    def __init__(self, budget: DriverBudget) -> None:
        self.reserve = budget.reserve
        self.paused = budget.paused
        self.penalize = budget.penalize
        self.is_ours = budget.is_ours

    def beat(self, beat: Beat) -> bool:
        return False


class HeadStartBudget(SideLaneBudget):
    """Ends when Spark is ready; where every partition has its reader by then, it may take as long again.

    The first job of a Spark application takes a second. It would take it from readers who are about to end by
    themselves, and it could give them no partition that nobody has begun.

    :param ready: set when Spark is
    :param rest: whether there are partitions that the head start was not given
    """

    def __init__(self, budget: DriverBudget, ready: threading.Event, *, rest: bool) -> None:
        super().__init__(budget)
        self._ready = ready
        self._rest = rest
        self._began = time.monotonic()
        self._until: float | None = None

    def beat(self, beat: Beat) -> bool:
        if not self._ready.is_set():
            return False
        now = time.monotonic()
        if self._until is None:
            self._until = now + (now - self._began)
        return self._rest or beat.queued > 0 or now >= self._until
