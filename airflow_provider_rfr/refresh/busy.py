"""Whether another run is at the same refresh right now, and what to do then.

A run takes over its own refresh at once: a retry, a clear and a laptop's second start must not wait for the attempt
that they replace. A refresh of another run counts as alive while its ledger is committed to. Being wrong about that
costs time and no rows: the epoch keeps the table right.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow_provider_rfr.exceptions import RefreshBusyError
from airflow_provider_rfr.refresh.config import OnBusy, RefreshOptions
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState

ROUNDS_OF_SILENCE = 3
LEAST_SILENCE_SECONDS = 30.0
PUBLISH_SILENCE_SECONDS = 900.0


def busy_seconds(
    header: LedgerHeader | None, run_key: str | None, options: RefreshOptions, now: datetime | None = None
) -> float | None:
    """Seconds that another run's refresh has been silent, None where nobody is at it.

    A publish commits nothing to the ledger until it ends, so it may be silent for longer.
    """
    if header is None or header.state is not RefreshState.OPEN or same_task(header.run_key, run_key):
        return None
    complete = header.partitions > 0 and header.partitions_done == header.partitions
    reading = max(LEAST_SILENCE_SECONDS, ROUNDS_OF_SILENCE * options.round_seconds)
    silence = ((now or datetime.now(timezone.utc)) - header.committed_at).total_seconds()
    return silence if silence <= (PUBLISH_SILENCE_SECONDS if complete else reading) else None


def must_wait(
    target: str, header: LedgerHeader | None, run_key: str | None, options: RefreshOptions, now: datetime | None = None
) -> str | None:
    """A sentence that says what to wait for; None to go on.

    :raises RefreshBusyError: another run is at it, and ``on_busy`` is ``fail``
    """
    silence = None if options.on_busy is OnBusy.TAKE_OVER else busy_seconds(header, run_key, options, now)
    if header is None or silence is None:
        return None
    holder = header.run_key or "a run outside of Airflow"
    told = (
        f"{target} is being refreshed by {holder} (generation {header.generation}, {header.partitions_done} of"
        f" {header.partitions} partitions done, last commit {silence:.0f} s ago)"
    )
    if options.on_busy is OnBusy.FAIL:
        raise RefreshBusyError(f"{told}; let it end, or set on_busy to wait or take_over")
    return told


def same_task(holder: str | None, run_key: str | None) -> bool:
    """Whether both are the same task of the same run; the last part of a key counts its clears."""
    if holder is None or run_key is None:
        return holder is run_key
    return holder == run_key or ("/" in run_key and holder.rpartition("/")[0] == run_key.rpartition("/")[0])
