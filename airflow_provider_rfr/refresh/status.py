"""States and progress of refreshes, as values for commands, pages and log lines. Nothing here reads a lake.

A state is told only as far as the ledger knows it. An attempt that works commits at least every ``silence`` seconds,
and one that ends says so; one that does neither was interrupted. Ages are measured by this machine's clock against the
driver's, so clocks that are many seconds apart make them wrong by as much. What fails before a refresh is opened (no
connection, no Java, a parent that can't be listed) is in the task's log and not here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import RefreshStoppedError
from airflow_provider_rfr.refresh.state import LedgerHeader, PastGeneration, RefreshState
from airflow_provider_rfr.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of one table, with its pace in this attempt.

    :ivar pages_per_second: None before the attempt has read pages
    :ivar seconds_left: estimate; None where the amount of work left is unknown
    """

    status: LedgerHeader
    pages_per_second: float | None
    seconds_left: float | None

    @classmethod
    def of(cls, status: LedgerHeader) -> Progress:
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
    def of(cls, status: LedgerHeader) -> ProgressPoint:
        return cls(status.generation, status.epoch, status.pages, status.partitions_done, status.snapshot_id)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


STALE_SECONDS: Final = 900.0
"""Without a new page, after which an attempt that works is stale; or for its ``silence``, where that is longer."""
_FORGOTTEN_SECONDS: Final = 86400.0
"""After which an attempt that was stopped, and that no other one continued, is stale."""


class State(str, Enum):
    """The state of a table's newest refresh, in the order in which a person has to look."""

    UNREADABLE = "unreadable"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """An attempt ended without saying so, and nothing is known to try again."""
    STALE = "stale"
    """Nothing has moved for long."""
    WAITING = "waiting"
    """An attempt was stopped, or Airflow tries its task again; the next one has not begun."""
    OPENING = "opening"
    READING = "reading"
    PUBLISHING = "publishing"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The newest refresh of a table, or of a part of it.

    :ivar ledger: the ledger's own name
    :ivar sentence: what the state means here, without secrets; errors in it may quote a source
    :ivar header: None where there is none, or where it can't be read
    """

    table: str
    ledger: str
    state: State
    sentence: str
    header: LedgerHeader | None = None

    @property
    def is_working(self) -> bool:
        """Tell whether an attempt gives signs of life."""
        is_slow = self.state is State.STALE and self.header is not None and self.header.ended_at is None
        return is_slow or self.state in (State.OPENING, State.READING, State.PUBLISHING)

    @property
    def is_open(self) -> bool:
        """Tell whether the refresh is running, or the next try of its task may continue it."""
        if self.header is not None and self.header.refused_under is not None:
            return False
        return self.is_working or self.state in (State.FAILED, State.INTERRUPTED)

    @property
    def percent(self) -> int | None:
        """Return the share of the reading that is done, in percent; None where it is not known.

        The rows of the last refresh count where partitions say less.
        """
        header = self.header
        if header is None:
            return None
        if self.state is State.PUBLISHED or header.is_read:
            return 100
        # Where all partitions are read at once, the first is complete near the end: till then they say nothing.
        says = header.partitions > 1 and (header.partitions_done or not header.pages)
        shares = [header.partitions_done / header.partitions] if says else []
        if header.previous_rows:
            shares.append(min(header.records / header.previous_rows, 0.99))
        return min(int(100 * max(shares)), 100) if shares else None

    @property
    def history(self) -> tuple[PastGeneration, ...]:
        """Return this generation and earlier ones, the newest first."""
        if self.header is None:
            return ()
        newest, *past = self.header.with_past
        outcome = newest.outcome if newest.outcome == "refused" else self.state.value
        return (replace(newest, outcome=outcome), *past)

    def to_json(self) -> dict[str, Any]:
        """Return all known facts, with None where something is not known."""
        found = {"table": self.table, "state": self.state.value, "sentence": self.sentence, "ledger": self.ledger}
        if self.header is None:
            return found
        header, progress = self.header, Progress.of(self.header)
        is_reading = self.state is State.READING
        times = {name: getattr(header, name) for name in ("opened_at", "committed_at", "progressed_at", "ended_at")}
        return {
            **found,
            "replace_where": header.replace_where,
            "generation": header.generation,
            "percent": self.percent,
            "seconds_left": None if progress.seconds_left is None or not is_reading else round(progress.seconds_left),
            **{name: getattr(header, name) for name in _COUNTS},
            "pages_per_second": None if progress.pages_per_second is None else round(progress.pages_per_second, 3),
            "error": header.error,
            "run": {name: getattr(header, name) for name in ("dag_id", "dag_run_id", "task_id", "map_index")},
            "run_key": header.run_key,
            **{name: value and value.astimezone(timezone.utc).isoformat() for name, value in times.items()},
            # As text: JavaScript rounds a number of its size.
            "snapshot_id": None if header.snapshot_id is None else str(header.snapshot_id),
        }


_COUNTS: Final = (
    *("partitions", "partitions_done", "pages", "records", "bytes", "attempts", "rounds", "pages_refetched"),
    *("previous_rows", "published_rows"),
)


def by_urgency(status: TableStatus) -> tuple[int, str, str]:
    """Return a sort key that puts refreshes that need attention first."""
    return list(State).index(status.state), status.table, (status.header and status.header.replace_where) or ""


def state_of(header: LedgerHeader, now: datetime) -> State:
    """Return the state of a refresh whose newest header this is."""
    if header.state is RefreshState.PUBLISHED:
        return State.PUBLISHED
    if header.ended_at is not None:
        if header.outcome != RefreshStoppedError.outcome:
            return State.FAILED
        return State.WAITING if _age(header.ended_at, now) < _FORGOTTEN_SECONDS else State.STALE
    if _age(header.committed_at, now) > header.silence:
        return State.INTERRUPTED
    if header.is_read:
        return State.PUBLISHING
    moved = max(header.progressed_at or header.began_at, header.began_at)
    return State.READING if _age(moved, now) <= max(STALE_SECONDS, header.silence) else State.STALE


def sentence_of(state: State, header: LedgerHeader, now: datetime) -> str:
    attempt, kept = f"Attempt {header.attempts}", "the pages read so far are kept, and the next attempt continues"
    if state is State.PUBLISHED:
        took = duration_in_words((header.committed_at - header.opened_at).total_seconds())
        return f"Published {header.published_rows or 0:,} rows, {took} after the refresh was opened"
    if state is State.FAILED:
        if header.refused_under is not None:
            return f"Everything was read, but the publish was refused: {header.error}"
        return f"{attempt} failed; {kept}: {header.error}"
    if state is State.INTERRUPTED:
        silent = duration_in_words(_age(header.committed_at, now))
        return f"{attempt} has given no sign of life for {silent} and did not report its end; {kept}"
    if state is State.WAITING:
        return f"{attempt} was stopped; {kept}"
    if state is State.STALE:
        moved = duration_in_words(_age(header.ended_at or header.progressed_at or header.began_at, now))
        if header.ended_at is not None:
            return f"{attempt} was stopped {moved} ago, and no attempt has continued since"
        return f"{attempt} is running but has read no page for {moved}: the API may make it wait; see the task's log"
    does = "is reading" if state is State.READING else "has read everything and is publishing"
    before = f"; the previous attempt ended with {header.error}" if header.error else ""
    return f"{attempt} {does}{before}"


def _age(moment: datetime, now: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())


class Bar:
    """A line of a terminal that is drawn again and again; text that is printed meanwhile stands above it."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=None, said="")

    @property
    def said(self) -> str:
        return str(self._bars.tasks[0].fields["said"])

    def say(self, text: str) -> None:
        """Show this, without a share that is done."""
        self._bars.update(self._task, description="", said=text, total=None, refresh=True)

    def update(self, found: TableStatus) -> None:
        """Show how far the refresh is."""
        parts, percent = [found.state.value], found.percent
        if (header := found.header) is not None:
            progress = Progress.of(header)
            parts += [] if percent is None else [f"{percent} %"]
            parts += [f"{header.partitions_done:,} of {header.partitions:,}", f"{header.pages:,} pages"]
            if (rate := progress.pages_per_second) is not None:
                parts.append(f"{rate_in_words(rate)}/s")
            if progress.seconds_left is not None and found.state.value == "reading":
                parts.append(f"{duration_in_words(progress.seconds_left)} left")
        total = None if percent is None else 100
        said, table = ", ".join(parts), printable(found.table)
        self._bars.update(self._task, description=table, total=total, completed=percent or 0, said=said)


def can_draw() -> bool:
    """Tell whether standard output is a terminal on which a line can be drawn again."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


@contextmanager
def drawn_bar() -> Iterator[Bar]:
    """Draw a bar on standard output, and remove it afterwards."""
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    # Names come from a catalog, and brackets in them are no markup.
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Bars(*columns, TextColumn("{task.fields[said]}", markup=False), transient=True) as bars:
        yield Bar(bars)
