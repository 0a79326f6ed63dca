"""Progress of a refresh: the log line of a round, and the checkpoint that Airflow's UI shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.status import RefreshStatus

CHECKPOINT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of one table, with its pace in this attempt.

    :ivar pages_per_second: None before the attempt has read pages
    :ivar seconds_left: estimate; None where the amount of work left is unknown
    """

    status: RefreshStatus
    pages_per_second: float | None
    seconds_left: float | None

    @classmethod
    def of(cls, status: RefreshStatus) -> Progress:
        """Measure progress from the attempt's beginning to its newest pages, by the ledger's clock."""
        seconds = ((status.progressed_at or status.began_at) - status.began_at).total_seconds()
        pages, records = status.pages - status.found_pages, status.records - status.found_records
        done, open_ones = status.partitions_done - status.found_partitions, status.partitions - status.partitions_done
        left = None
        if open_ones and seconds > 0:
            # By partitions where some are done; else by the records of the last refresh, if there was one.
            if done > 0:
                left = seconds / done * open_ones
            elif records > 0 and status.previous_rows is not None and status.previous_rows > status.records:
                left = seconds / records * (status.previous_rows - status.records)
        return cls(status, pages / seconds if seconds > 0 and pages > 0 else None, left)

    def line(self, table: str) -> str:
        now = self.status
        parts = [
            f"{now.pages:,} pages",
            f"{now.records:,} records",
            f"{now.partitions_done:,} of {now.partitions:,} partitions",
        ]
        if self.pages_per_second is not None:
            parts.append(f"{rate_in_words(self.pages_per_second)} pages/s")
        if (left := self.seconds_left) is not None:
            parts.append(f"about {duration_in_words(left)} left")
        return f"{table}: generation {now.generation}, round {now.rounds}: {', '.join(parts)}"

    def checkpoint(self) -> dict[str, Any]:
        """Return the progress for Airflow's task state: numbers and times alone, so that it can't hold a secret."""
        now = self.status
        return {
            "generation": now.generation,
            "epoch": now.epoch,
            "state": now.state.value,
            "attempts": now.attempts,
            "rounds": now.rounds,
            "pages": now.pages,
            "records": now.records,
            "partitions": now.partitions,
            "partitions_done": now.partitions_done,
            "pages_refetched": now.pages_refetched,
            "pages_per_second": _rounded(self.pages_per_second),
            "seconds_left": _rounded(self.seconds_left),
            # As text: JavaScript in Airflow's UI rounds a number of its size.
            "snapshot_id": None if now.snapshot_id is None else str(now.snapshot_id),
            "committed_at": now.committed_at.isoformat(),
        }


def rate_in_words(per_second: float) -> str:
    """Format a rate, also that of a slow source: a page in 40 s is 0.03, and not 0."""
    return f"{per_second:.1g}" if per_second < 0.1 else f"{per_second:,.{0 if per_second >= 10 else 1}f}"


def size_in_words(size: float) -> str:
    """Format a size in bytes with its unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} bytes" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def duration_in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.0f} days"


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """Progress of one table's refresh at some moment, small enough to travel with a deferred task."""

    generation: int
    epoch: int
    pages: int
    partitions_done: int
    snapshot_id: int | None = None

    @classmethod
    def of(cls, status: RefreshStatus) -> ProgressPoint:
        return cls(status.generation, status.epoch, status.pages, status.partitions_done, status.snapshot_id)


class ProgressBook:
    """Progress of one attempt in each table.

    :param log: takes one line for each round that ended
    :ivar before: the state that the attempt found, by table
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self.before: dict[str, RefreshStatus | None] = {}
        self._shown: dict[str, Progress] = {}

    @property
    def latest(self) -> Mapping[str, RefreshStatus]:
        """Return the last known state of each table that this attempt changed."""
        return {table: progress.status for table, progress in self._shown.items()}

    def begin(self, table: str, status: RefreshStatus | None) -> None:
        self.before[table] = status

    def take(self, table: str, status: RefreshStatus | None) -> bool:
        """Take a table's state; return whether this attempt changed it. Log a round that ended."""
        last = self._shown[table].status if table in self._shown else self.before.get(table)
        if status is None or (last is not None and status.committed_at == last.committed_at):
            return False
        progress = self._shown[table] = Progress.of(status)
        same = last is not None and last.generation == status.generation
        if status.rounds > (last.rounds if same and last is not None else 0):
            self._log(progress.line(table))
        return True

    def checkpoint(self) -> dict[str, Any]:
        return {
            "version": CHECKPOINT_VERSION,
            "tables": {table: progress.checkpoint() for table, progress in self._shown.items()},
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
