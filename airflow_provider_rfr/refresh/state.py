"""The state of a refresh: its header in the ledger, and its meaning as values for commands, pages and log lines.

The header is in the snapshot summary of every ledger commit, and the newest one is the state; the positions of
partitions are in page rows. Each commit writes the whole header, so trimming old snapshots loses nothing. This module
reads no table.

The state is as exact as the ledger. An attempt that works commits at least every ``silence`` seconds, and one that ends
records it; one that does neither was interrupted. Ages are this machine's clock minus the driver's, so they are wrong
by as much as the clocks differ. Failures before a refresh is opened (no connection, no Java, a parent that can't be
listed) are in the task's log only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Final

from airflow_provider_rfr.exceptions import LedgerError, RefreshStoppedError
from airflow_provider_rfr.refresh.past import (
    LARGEST,
    PastAttempt,
    PastGeneration,
    changes_in_words,
    changes_rows,
    check_counts,
    read_moment,
)
from airflow_provider_rfr.text import cut, quantity

PREFIX = "rfr."
_FORMAT = 1
GENERATION_KEY = PREFIX + "generation"
_KEPT_PAST = 20
_LONGEST_PAST_ERROR = 200
_TASK = ("dag_id", "dag_run_id", "task_id", "map_index")


class RefreshState(str, Enum):
    """The state of a generation."""

    OPEN = "open"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """The state of the newest generation of one target.

    :ivar epoch: number of the attempt that may commit
    :ivar read_fingerprint: digest of all that decides which requests are made
    :ivar publish_fingerprint: digest of all that decides how rows are typed
    :ivar progressed_at: when pages were last added; a take-over alone does not count
    :ivar refused_under: fingerprint of the rules under which the publish was refused; under the same rules it would be
        refused again. None if it was not refused
    :ivar began_at: when the attempt opened or took over the generation
    :ivar found_pages: pages that there were then, adopted ones included; ``found_records`` and ``found_partitions``
        (complete ones) likewise
    :ivar silence: the most seconds for which a live attempt commits nothing
    :ivar ended_at: when the attempt ended; None while it works, and if it was killed
    :ivar outcome: how it ended, as its error's class names it; None while ``ended_at`` is
    :ivar error: the error of the last attempt that recorded its end, without secrets; it stays while the next one
        of the same DAG works
    :ivar stream: its name in the source
    :ivar host: of the API, with its port; None where it is not known, as for code
    :ivar paging: how the stream's pages follow each other, in words
    :ivar primary_key: its fields, with commas; None without one
    :ivar run_key: the run that holds the generation
    :ivar restarted_by: the run that opened it by ``force_restart``; None if it was opened without
    :ivar base_state: digest of the table's state that an incremental sync continues, or that the table had when a part
        of it was opened; None for a full refresh of the whole table, and for a window
    :ivar mode: of the publish: ``append``, or ``merge`` by primary key; None for a replacement
    :ivar window_from: the least lower bound that an incremental sync asks for, frozen when it was opened, as a state
        writes values; None for a full refresh
    :ivar window_to: the greatest upper bound; None where none is sent
    :ivar changes: records of a published incremental sync by outcome, as of
        :class:`~airflow_provider_rfr.refresh.merge.MergeCounts`, and ``doubled_keys``, rows of the table beyond the
        first of their key that were replaced as well; None for a full refresh, and before the publish
    :ivar fixed_window: the fixed range of cursor values that is read, as ``start/end``; None without such a window
    :ivar replace_where: the part of the target, as its last attempt wrote it; None for the whole
    :ivar dag_id: DAG of the task that holds the generation; None outside of Airflow. ``dag_run_id``, ``task_id`` and
        ``map_index`` (-1 where the task is not mapped) likewise
    :ivar try_number: of that task
    :ivar retried: errors after which this attempt sent a request again, by kind; None without any
    :ivar records: records on live chains
    :ivar bytes: of the generation's files in the ledger
    :ivar pages: page rows committed, superseded chains included
    :ivar previous_rows: rows of the last published generation, None before the first
    :ivar published_rows: rows of this generation in the target, once published
    :ivar snapshot_id: the target's commit, once published
    :ivar past: the last 20 earlier generations, the newest first
    :ivar earlier: the last 20 earlier attempts on this generation, the newest first
    """

    generation: int
    epoch: int
    state: RefreshState
    read_fingerprint: str
    publish_fingerprint: str
    opened_at: datetime
    committed_at: datetime
    began_at: datetime
    progressed_at: datetime | None = None
    refused_under: str | None = None
    silence: float = 90.0
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str | None = None
    stream: str | None = None
    host: str | None = None
    paging: str | None = None
    primary_key: str | None = None
    run_key: str | None = None
    restarted_by: str | None = None
    base_state: str | None = None
    mode: str | None = None
    window_from: str | None = None
    window_to: str | None = None
    changes: dict[str, int] | None = None
    fixed_window: str | None = None
    replace_where: str | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None
    retried: dict[str, int] | None = None
    attempts: int = 1
    rounds: int = 0
    pages: int = 0
    records: int = 0
    bytes: int = 0
    partitions: int = 0
    partitions_done: int = 0
    found_pages: int = 0
    found_records: int = 0
    found_partitions: int = 0
    pages_refetched: int = 0
    overlap_checks: int = 0
    previous_rows: int | None = None
    published_rows: int | None = None
    snapshot_id: int | None = None
    past: tuple[PastGeneration, ...] = ()
    earlier: tuple[PastAttempt, ...] = ()

    def is_held_by(self, run_key: str | None) -> bool:
        """Tell whether an attempt of the same task, in the same run, holds the generation."""
        # Keys that differ only in their last part, the run's start and the task's clears, are of one task in one run.
        holder = self.run_key
        is_same_task = holder and run_key and "/" in run_key and holder.rpartition("/")[0] == run_key.rpartition("/")[0]
        return holder == run_key or bool(is_same_task)

    @property
    def is_incremental(self) -> bool:
        """Tell whether only changes are read, or those of a fixed window."""
        return self.fixed_window is not None or (self.base_state is not None and self.replace_where is None)

    @property
    def changed_nothing(self) -> bool:
        """Tell whether it is a published incremental sync that found no row to change."""
        return self.changes is not None and not changes_rows(self.changes)

    @property
    def sync(self) -> str:
        """Return in words whether all records or changes are read, and how they are published."""
        if self.is_incremental:
            return f"incremental, {self.mode}"
        return "full refresh" if self.mode is None else f"full refresh, {self.mode}"

    @property
    def window(self) -> str | None:
        """Return in words which changes an incremental sync asks for; None for a full refresh."""
        if self.window_from is None:
            return None
        return f"from {self.window_from} " + ("on" if self.window_to is None else f"to {self.window_to}")

    @property
    def is_read(self) -> bool:
        """Tell whether every partition is read; True where there are no partitions."""
        return self.partitions_done == self.partitions

    @property
    def compared_rows(self) -> str:
        """Return in words how the rows differ in number from those of the last published generation."""
        if not self.is_read or (self.is_incremental and self.published_rows is None):
            return f"not known before everything is {'published' if self.is_incremental else 'read'}"
        if not self.previous_rows:
            return "there is no previous one" if self.previous_rows is None else "the previous one published none"
        rows = self.records if self.published_rows is None else self.published_rows
        return f"{100.0 * (rows - self.previous_rows) / self.previous_rows:+.1f} %"

    @property
    def last_published_rows(self) -> int | None:
        """Return the rows of the last published generation, which may be this one; None before the first."""
        return self.published_rows if self.state is RefreshState.PUBLISHED else self.previous_rows

    @property
    def as_past(self) -> PastGeneration:
        """Return the summary of this generation that a newer one keeps."""
        if self.state is RefreshState.PUBLISHED:
            outcome, ended = "published", self.committed_at
        else:
            outcome = "abandoned" if self.refused_under is None else "refused"
            ended = self.ended_at or self.committed_at
        counts = ("attempts", "pages", "records", "sync", "changes")
        return PastGeneration(
            **{name: getattr(self, name) for name in ("generation", "opened_at", *counts, *_TASK)},
            outcome=outcome,
            ended_at=ended,
            rows=self.published_rows,
            error=None if outcome == "published" or self.error is None else cut(self.error, _LONGEST_PAST_ERROR),
        )

    @property
    def with_past(self) -> tuple[PastGeneration, ...]:
        """Return this generation and those before it, as the next one keeps them."""
        return (self.as_past, *self.past)[:_KEPT_PAST]

    @property
    def as_attempt(self) -> PastAttempt:
        """Return the summary of the newest attempt that the next one keeps."""
        outcome = self.outcome or "interrupted"
        return PastAttempt(
            **{name: getattr(self, name) for name in ("epoch", "began_at", "retried", *_TASK, "try_number")},
            ended_at=self.ended_at or self.committed_at,
            outcome=outcome if self.refused_under is None else "refused",
            pages=self.pages - self.found_pages,
            # If the attempt did not record its end, the header has the error of the one before.
            error=None if self.ended_at is None or self.error is None else cut(self.error, _LONGEST_PAST_ERROR),
        )

    def to_summary(self) -> dict[str, str]:
        summary = {PREFIX + "format": str(_FORMAT)}
        for name in _FIELDS:
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = json.dumps([past.to_json() for past in value]) if value else None
            elif isinstance(value, dict):
                value = json.dumps(value)
            elif isinstance(value, Enum):
                value = value.value
            if value is not None:
                summary[_key(name)] = value.isoformat() if isinstance(value, datetime) else str(value)
        return summary

    def advanced(self, **changes: Any) -> LedgerHeader:
        """Return the header of the next commit. The attempt works, unless ``changes`` say how it ended."""
        now = datetime.now(timezone.utc)
        progress = now if changes.get("pages", self.pages) > self.pages else self.progressed_at
        working = {"ended_at": None, "outcome": None}
        return replace(self, committed_at=now, progressed_at=progress, **{**working, **changes})

    def taken_over(self, **changes: Any) -> LedgerHeader:
        """Return the header of an attempt's first commit, which opens the generation or takes it over."""
        header = self.advanced(**changes)
        # Users who may see this attempt's DAG need not be allowed to see the DAG of the attempt before.
        error = self.error if header.dag_id == self.dag_id else None
        earlier = self.earlier
        if header.epoch > self.epoch:
            # Count the adopted pages, too, which the attempt before has written and not committed.
            before = replace(self.as_attempt, pages=header.pages - self.found_pages)
            earlier = (before, *earlier)[:_KEPT_PAST]
            header = replace(header, try_number=changes.get("try_number"))
        return replace(
            header,
            error=error,
            earlier=earlier,
            retried=None,
            began_at=header.committed_at,
            found_pages=header.pages,
            found_records=header.records,
            found_partitions=header.partitions_done,
        )


def read_header(summary: Mapping[str, str] | None) -> LedgerHeader | None:
    """Read the header in a summary; return None if it has none.

    :raises LedgerError: it has another format, or can't be parsed
    """
    if summary is None or GENERATION_KEY not in summary:
        return None
    if summary.get(PREFIX + "format") != str(_FORMAT):
        raise LedgerError(
            f"the ledger was written in format {summary.get(PREFIX + 'format')!r}, this version reads {_FORMAT}"
        )
    try:
        values = {name: parse(summary[key]) for name, (key, parse) in _FIELDS.items() if key in summary}
        return LedgerHeader(**values)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LedgerError(f"the ledger's header can't be read: {error}") from error


def _key(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def _whole(text: str) -> int:
    number = int(text)
    if abs(number) > LARGEST:
        raise ValueError(f"a number has {len(text)} digits")
    return number


# By the type of the field, as its annotation is written.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _whole,
    "float": float,
    "datetime": read_moment,
    "RefreshState": RefreshState,
    "dict[str, int]": lambda text: check_counts(json.loads(text)),
    "tuple[PastAttempt, ...]": lambda text: tuple(map(PastAttempt.from_json, json.loads(text))),
    "tuple[PastGeneration, ...]": lambda text: tuple(map(PastGeneration.from_json, json.loads(text))),
}
_FIELDS = {
    field.name: (_key(field.name), _PARSERS[str(field.type).removesuffix(" | None")]) for field in fields(LedgerHeader)
}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one table's refresh, with the rate of this attempt.

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
        estimates = []
        if open_ones and seconds > 0:
            if done > 0:
                estimates.append(seconds / done * open_ones)
            if records > 0 and (expected := _expected_rows(status)) is not None and expected > status.records:
                estimates.append(seconds / records * (expected - status.records))
        # If all partitions are read at once, the first is complete near the end, and their number says little.
        left = min(estimates, default=None)
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


def _expected_rows(header: LedgerHeader) -> int | None:
    """Return the number of rows to expect, which is that of the last refresh; None for an incremental sync."""
    return None if header.is_incremental else header.previous_rows


def rate_in_words(per_second: float) -> str:
    """Format a rate. Small ones keep a significant digit: a page in 40 s is 0.03, and not 0."""
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


STALE_SECONDS: Final = 900.0
"""Seconds without a new page after which a working attempt is stale; or its ``silence``, where that is longer."""
_FORGOTTEN_SECONDS: Final = 86400.0
"""Seconds after which an attempt that was stopped, and that no other one continued, is stale."""


class State(str, Enum):
    """The state of a table's newest refresh; those that need attention come first."""

    UNREADABLE = "unreadable"
    REFUSED = "refused"
    """Everything was read, and a check refused the publish."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """An attempt ended without recording it, and no retry is known."""
    STALE = "stale"
    """There has been no progress for long."""
    STOPPED = "stopped"
    """An attempt was stopped, and no retry is known."""
    WAITING = "waiting"
    """Airflow will retry the task; the next attempt has not begun."""
    OPENING = "opening"
    READING = "reading"
    PUBLISHING = "publishing"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The newest refresh of a table, or of a part of it.

    :ivar ledger: the ledger's own name
    :ivar sentence: an explanation of the state, without secrets; errors in it may quote a source
    :ivar header: None where there is none, or where it can't be read
    :ivar retry_at: when Airflow retries the task of a waiting refresh; None if this is not known
    """

    table: str
    ledger: str
    state: State
    sentence: str
    header: LedgerHeader | None = None
    retry_at: datetime | None = None

    @property
    def is_working(self) -> bool:
        """Tell whether an attempt is alive; a stale one that has not ended counts."""
        is_slow = self.state is State.STALE and self.header is not None and self.header.ended_at is None
        return is_slow or self.state in (State.OPENING, State.READING, State.PUBLISHING)

    @property
    def is_open(self) -> bool:
        """Tell whether the refresh is running, or the next try of its task may continue it."""
        return self.is_working or self.state in (State.FAILED, State.INTERRUPTED, State.STOPPED)

    @property
    def percent(self) -> int | None:
        """Return the share of the reading that is done, in percent; None where it is not known.

        It is the share of complete partitions, or of the rows of the last refresh, whichever is greater.
        """
        header = self.header
        if header is None:
            return None
        if self.state is State.PUBLISHED or header.is_read:
            return 100
        # If all partitions are read at once, the first is complete near the end. Until then, their share says nothing.
        says = header.partitions > 1 and (header.partitions_done or not header.pages)
        shares = [header.partitions_done / header.partitions] if says else []
        if expected := _expected_rows(header):
            shares.append(min(header.records / expected, 0.99))
        return min(int(100 * max(shares)), 100) if shares else None

    @property
    def history(self) -> tuple[PastGeneration, ...]:
        """Return this generation and earlier ones, the newest first."""
        if self.header is None:
            return ()
        newest, *past = self.header.with_past
        # The whole error: past generations keep the beginning of theirs.
        return (replace(newest, outcome=self.state.value, error=newest.error and self.header.error), *past)

    @property
    def attempts(self) -> tuple[PastAttempt, ...]:
        """Return the newest attempt on the generation and earlier ones, the newest first."""
        if self.header is None:
            return ()
        newest = self.header.as_attempt
        if self.header.ended_at is None:
            newest = replace(newest, outcome=self.state.value)
        return (replace(newest, error=newest.error and self.header.error), *self.header.earlier)

    @property
    def retried(self) -> dict[str, int]:
        """Return the errors that these attempts have retried, by kind."""
        return dict(sum((Counter(attempt.retried) for attempt in self.attempts), Counter()))

    @property
    def last_publish(self) -> PastGeneration | None:
        """Return the newest generation that was published; None before the first, and if it is too old to be known."""
        return next((past for past in self.history if past.outcome == State.PUBLISHED.value), None)

    @property
    def last_result(self) -> str:
        """Return the outcome of the newest publish in words; an empty text where none is known."""
        return "" if self.last_publish is None else self.last_publish.result

    def to_json(self) -> dict[str, Any]:
        """Return all known facts, with None where something is not known."""
        content = {"table": self.table, "state": self.state.value, "sentence": self.sentence, "ledger": self.ledger}
        if self.header is None:
            return content
        header, progress = self.header, Progress.of(self.header)
        is_reading = self.state is State.READING
        times = {name: getattr(header, name) for name in ("opened_at", "committed_at", "progressed_at", "ended_at")}
        times["retry_at"] = self.retry_at
        return {
            **content,
            "replace_where": header.replace_where,
            "source": {name: getattr(header, name) for name in ("stream", "host", "paging", "primary_key")},
            "sync": header.sync,
            "window": header.window and {"from": header.window_from, "to": header.window_to},
            "changes": header.changes,
            "last_result": self.last_result,
            "fixed_window": header.fixed_window,
            "generation": header.generation,
            "percent": self.percent,
            "seconds_left": None if progress.seconds_left is None or not is_reading else round(progress.seconds_left),
            **{name: getattr(header, name) for name in _COUNTS},
            "pages_per_second": _rounded(progress.pages_per_second),
            "retried": self.retried,
            "error": header.error,
            "run": {name: getattr(header, name) for name in (*_TASK, "try_number")},
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
    """Return the state of a refresh, by its newest header."""
    if header.state is RefreshState.PUBLISHED:
        return State.PUBLISHED
    if header.ended_at is not None:
        if header.outcome != RefreshStoppedError.outcome:
            return State.FAILED if header.refused_under is None else State.REFUSED
        return State.STOPPED if _age(header.ended_at, now) < _FORGOTTEN_SECONDS else State.STALE
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
        rows = quantity(header.published_rows or 0, "row")
        if header.is_incremental:
            result = "Published" if header.changes is None else changes_in_words(header.changes).capitalize()
            return f"{result}; the table has {rows}, {took} after the sync was opened"
        return f"Published {rows}, {took} after the refresh was opened"
    if state is State.REFUSED:
        return f"Everything was read, but the publish was refused: {header.error}"
    if state is State.FAILED:
        return f"{attempt} failed; {kept}: {header.error}"
    if state is State.INTERRUPTED:
        silent = duration_in_words(_age(header.committed_at, now))
        return f"{attempt} has given no sign of life for {silent} and did not report its end; {kept}"
    if state is State.STOPPED:
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
