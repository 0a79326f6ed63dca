"""States of refreshes from their ledgers, as values for commands and pages. Reads the newest headers, and no page rows.

A state is told only as far as the ledger knows it. An attempt that works commits at least every ``silence`` seconds,
and one that ends says so; one that does neither was interrupted. Ages are measured by this machine's clock against the
driver's, so clocks that are many seconds apart make them wrong by as much. What fails before a refresh is opened (no
connection, no Java, a parent that can't be listed) is in the task's log and not here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.exceptions import RefreshStoppedError, RfrError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable, ledger_name, ledgers_in
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.header import GENERATION_KEY, LedgerHeader, PastGeneration, RefreshState, read_header
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.progress import Progress, duration_in_words
from airflow_provider_rfr.threads import in_threads

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.lake.target import Publication

_log = logging.getLogger(__name__)

RefreshStatus = LedgerHeader

_STALE_SECONDS: Final = 900.0
"""Without a new page, after which an attempt that works is stale; or for its ``silence``, where that is longer."""
_FORGOTTEN_SECONDS: Final = 86400.0
"""After which an attempt that was stopped, and that no other one continued, is stale."""
_LONGEST_SENTENCE: Final = 500


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


def statuses(catalog: Catalog, tables: Iterable[str] = (), now: datetime | None = None) -> list[TableStatus]:
    """List the newest refresh of each table and part, those that need a person first; each ledger is loaded.

    :param tables: only these; all of the lake without any
    """
    named = [(table, part) for table in tables for part in (None, *LedgerTable.parts(catalog, table))]
    moment = now or datetime.now(timezone.utc)
    wanted = list(named or (() if tables else ledgers_in(catalog)))
    every = in_threads(lambda each: _status(catalog, each[0], each[1], moment), wanted)
    return sorted((status for status in every if status is not None), key=by_urgency)


def by_urgency(status: TableStatus) -> tuple[int, str, str]:
    """Return a sort key that puts refreshes that need attention first."""
    return list(State).index(status.state), status.table, (status.header and status.header.replace_where) or ""


def status_of(
    catalog: Catalog, table: str, replace_where: str | None = None, now: datetime | None = None
) -> TableStatus | None:
    """Return the newest refresh of the table, or of the part that the filter names; None where it has no ledger."""
    return _status(catalog, table, part_of(replace_where), now or datetime.now(timezone.utc))


def read_again(catalog: Catalog, status: TableStatus) -> TableStatus | None:
    """Return the same ledger's newest refresh as it is now; None where the ledger is gone."""
    return status_of(catalog, status.table, None if status.header is None else status.header.replace_where)


def read_status(settings: LakeSettings, target: str, replace_where: str | None = None) -> RefreshStatus | None:
    """Return the newest generation's header; None before the first refresh.

    :param replace_where: the part of the target, as in the refresh's options
    :raises LedgerError: the ledger was written by a newer version of this package
    """
    return status_in(open_catalog(settings), target, replace_where)


def status_in(catalog: Catalog, target: str, replace_where: str | None = None) -> RefreshStatus | None:
    """Return the same header as :func:`read_status`, from a catalog that is open already."""
    table = LedgerTable.load(catalog, target, part_of(replace_where))
    return None if table is None else read_header(table.summary(GENERATION_KEY))


def _status(catalog: Catalog, table: str, part: str | None, now: datetime) -> TableStatus | None:
    name = ledger_name(table, part)
    try:
        loaded = LedgerTable.load(catalog, table, part)
        if loaded is None or not loaded.is_ledger:
            return None
        header = _header_now(catalog, table, Ledger(loaded))
        if header is not None:
            state = state_of(header, now)
            return TableStatus(table, name, state, _sentence(_said(state, header, now)), header)
    except Exception as error:  # noqa: BLE001 - one that can't be read hides no other; texts of others may be secret
        reason = str(error) if isinstance(error, RfrError) else type(error).__name__
        return TableStatus(table, name, State.UNREADABLE, _sentence(f"The ledger can't be read: {reason}"))
    age = now.timestamp() - loaded.changed_ms / 1000
    said = f"Begun {duration_in_words(age)} ago: its partitions are being listed, or that failed; see the task's log"
    return TableStatus(table, name, State.OPENING if age <= _STALE_SECONDS else State.STALE, said)


def _header_now(catalog: Catalog, table: str, ledger: Ledger) -> LedgerHeader | None:
    """Return the header, with facts that a driver that died or lost the catalog could write only elsewhere."""
    header = ledger.header
    if header is None or header.state is RefreshState.PUBLISHED:
        return header
    if header.is_read:
        found = _published(catalog, table, ledger)
        if found is not None and found.generation == header.generation:
            rows = int(found.summary.get("rfr.rows") or header.records)
            published = {"state": RefreshState.PUBLISHED, "snapshot_id": found.snapshot_id, "published_rows": rows}
            return replace(header, **published)  # type: ignore[arg-type]
    if header.ended_at is None and (end := ledger.end_in_file()) is not None:
        return replace(header, ended_at=header.committed_at, outcome=end["outcome"], error=end["error"])
    return header


def _published(catalog: Catalog, table: str, ledger: Ledger) -> Publication | None:
    try:
        return TargetTable(catalog, table).published(ledger.id)
    except Exception as error:  # noqa: BLE001 - what is wrong with the target is not wrong with its ledger
        _log.debug("the target %s can't be read", table, exc_info=error)
        return None


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
    return State.READING if _age(moved, now) <= max(_STALE_SECONDS, header.silence) else State.STALE


def _said(state: State, header: LedgerHeader, now: datetime) -> str:
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


def _sentence(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_SENTENCE else f"{flat[:_LONGEST_SENTENCE]} ..."
