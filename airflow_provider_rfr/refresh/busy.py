"""Whether another run is at the same refresh right now, and what to do then.

A run takes over its own refresh at once: a retry, a clear and a laptop's second start must not wait for the attempt
that they replace. An attempt that ends says so in the ledger, and nobody waits for it. One that works commits to its
ledger every few seconds, so a refresh of another run is alive while new commits come. How long ago the last one was
is measured from when this process first saw it: the clocks of two machines are not compared, but for a commit so old
that no clocks are so far apart. Being wrong costs time and no rows: the epoch keeps the table right.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from types import TracebackType

from airflow_provider_rfr.exceptions import FencedError, RefreshBusyError
from airflow_provider_rfr.refresh.config import OnBusy, RefreshOptions
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState
from airflow_provider_rfr.refresh.ledger import Ledger

log = logging.getLogger(__name__)

ROUNDS_OF_SILENCE = 3
LEAST_SILENCE_SECONDS = 30.0
CLOCKS_APART_SECONDS = 300.0


def silence_seconds(options: RefreshOptions) -> float:
    """For so long an attempt that lives may commit nothing to its ledger."""
    return max(LEAST_SILENCE_SECONDS, ROUNDS_OF_SILENCE * options.round_seconds)


class OtherRun:
    """What a run has seen of another one at the same refresh.

    :param clock: seconds that go on evenly
    """

    def __init__(
        self,
        target: str,
        run_key: str | None,
        options: RefreshOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._run_key = run_key
        self._options = options
        self._clock = clock
        self._seen: datetime | None = None
        self._since = 0.0

    def must_wait(
        self, header: LedgerHeader | None, has_ended: Callable[[], bool], now: datetime | None = None
    ) -> str | None:
        """A sentence that says what to wait for; None to go on.

        :param has_ended: whether the other run said that it is over; asked last
        :raises RefreshBusyError: another run is at it, and ``on_busy`` is ``fail``
        """
        if header is None or self._options.on_busy is OnBusy.TAKE_OVER:
            return None
        if not self._is_alive(header, now) or has_ended():
            return None
        holder = header.run_key or "a run outside of Airflow"
        told = (
            f"{self._target} is being refreshed by {holder} (generation {header.generation},"
            f" {header.partitions_done} of {header.partitions} partitions done)"
        )
        if self._options.on_busy is OnBusy.FAIL:
            raise RefreshBusyError(f"{told}; let it end, or set on_busy to wait or take_over")
        return f"{told}, unless it commits nothing for {silence_seconds(self._options):.0f} s"

    def _is_alive(self, header: LedgerHeader, now: datetime | None) -> bool:
        """Whether another run is at it; to be asked again and again."""
        if header.state is not RefreshState.OPEN or same_task(header.run_key, self._run_key):
            return False
        if header.committed_at != self._seen:
            self._seen, self._since = header.committed_at, self._clock()
        longest = silence_seconds(self._options)
        age = ((now or datetime.now(timezone.utc)) - header.committed_at).total_seconds()
        return self._clock() - self._since <= longest and age <= longest + CLOCKS_APART_SECONDS


class SignsOfLife:
    """A context manager around an attempt: its ledger gets a commit where the work itself makes none for a while."""

    def __init__(self, ledger: Ledger, options: RefreshOptions) -> None:
        self._ledger = ledger
        self._seconds = silence_seconds(options) / 2
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rfr-signs-of-life", daemon=True)

    def __enter__(self) -> SignsOfLife:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(min(1.0, self._seconds / 10)):
            if self._ledger.silent_seconds < self._seconds:
                continue
            try:
                self._ledger.commit([])
            except FencedError:
                # The work itself finds out before it commits, and tells it.
                return
            except Exception:
                log.debug("no sign of life can be given now", exc_info=True)


def same_task(holder: str | None, run_key: str | None) -> bool:
    """Whether both are the same task of the same run; the last part of a key counts its clears."""
    if holder is None or run_key is None:
        return holder is run_key
    return holder == run_key or ("/" in run_key and holder.rpartition("/")[0] == run_key.rpartition("/")[0])
