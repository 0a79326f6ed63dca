"""Queries of a lake's ledgers for commands and pages: the status of each refresh, and the details of one.

A status comes from the newest header. Details (pages over time, attempts, partitions) come from page rows, without
records and tokens. Of a refresh with very many files only a sample is read, and the details say so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.ledger_table import LedgerTable, ledger_name, ledgers_in
from airflow_provider_rfr.lake.row_filter import part_of
from airflow_provider_rfr.lake.sync_state import read_state, state_changed_at
from airflow_provider_rfr.lake.tables import TableFacts, facts_of
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.refresh.cursor_values import greatest, least
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.partitions import shortfalls
from airflow_provider_rfr.refresh.state import (
    STALE_SECONDS,
    LedgerHeader,
    RefreshState,
    State,
    TableStatus,
    by_urgency,
    duration_in_words,
    sentence_of,
    state_of,
)
from airflow_provider_rfr.streams.incremental import CursorColumn
from airflow_provider_rfr.text import one_line
from airflow_provider_rfr.timeouts import in_threads

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_log = logging.getLogger(__name__)


def statuses(catalog: Catalog, tables: Iterable[str] = ()) -> list[TableStatus]:
    """List the status of the newest refresh of each table and part, the most urgent first; each ledger is loaded.

    :param tables: tables to list; without any, all tables of the lake
    """
    named = [(table, part) for table in tables for part in (None, *LedgerTable.parts(catalog, table))]
    now = datetime.now(timezone.utc)
    ledgers = list(named or (() if tables else ledgers_in(catalog)))
    every = in_threads(lambda ledger: _status(catalog, *ledger, now), ledgers)
    return sorted((status for status in every if status is not None), key=by_urgency)


def status_of(
    catalog: Catalog, table: str, replace_where: str | None = None, now: datetime | None = None
) -> TableStatus | None:
    """Return the status of the table, or of the part that the filter names; None if it has no ledger."""
    return _status(catalog, table, part_of(replace_where), now or datetime.now(timezone.utc))


def read_again(catalog: Catalog, status: TableStatus) -> TableStatus | None:
    """Read the status of the same table or part again; return None if its ledger is gone."""
    return status_of(catalog, status.table, None if status.header is None else status.header.replace_where)


def _status(catalog: Catalog, table: str, part: str | None, now: datetime) -> TableStatus | None:
    name = ledger_name(table, part)
    try:
        loaded = LedgerTable.load(catalog, table, part)
        if loaded is None or not loaded.is_ledger:
            return None
        header = _header_now(catalog, table, Ledger(loaded))
        if header is not None:
            state = state_of(header, now)
            return TableStatus(table, name, state, one_line(sentence_of(state, header, now), _LONGEST_SENTENCE), header)
    except Exception as error:  # noqa: BLE001 - one that can't be read hides no other; texts of others may be secret
        reason = str(error) if isinstance(error, RfrError) else type(error).__name__
        return TableStatus(
            table, name, State.UNREADABLE, one_line(f"The ledger can't be read: {reason}", _LONGEST_SENTENCE)
        )
    age = now.timestamp() - loaded.changed_ms / 1000
    begun = f"Begun {duration_in_words(age)} ago"
    sentence = f"{begun}: its partitions are being listed, or that failed; see the task's log"
    return TableStatus(table, name, State.OPENING if age <= STALE_SECONDS else State.STALE, sentence)


def _header_now(catalog: Catalog, table: str, ledger: Ledger) -> LedgerHeader | None:
    """Return the header, completed with facts that its driver could not write into it.

    These are a publish that is only in the target, because the driver died after it; and an attempt's end that is
    only in a file, because the catalog did not answer.
    """
    header = ledger.header
    if header is None or header.state is RefreshState.PUBLISHED:
        return header
    if header.is_read:
        publication = None
        try:
            publication = TargetTable(catalog, table).published(ledger.id)
        except Exception as error:  # noqa: BLE001 - what is wrong with the target is not wrong with its ledger
            _log.debug("the target %s can't be read", table, exc_info=error)
        if publication is not None and publication.generation == header.generation:
            # Imported here, because it takes long to import and is hardly ever needed.
            from airflow_provider_rfr.refresh.publish import outcome_of, published_fields

            return replace(header, **published_fields(outcome_of(publication, header), publication))
    if header.ended_at is None and (end := ledger.end_in_file()) is not None:
        return replace(header, ended_at=header.committed_at, outcome=end["outcome"], error=end["error"])
    return header


_COLUMNS: Final = (
    *("epoch", "partition_ordinal", "partition_key", "chain", "page", "complete", "record_count"),
    *("skipped", "fetched_at", "received", "promised"),
)
_MOST_FILES: Final = 1000
_SHOWN_PARTITIONS: Final = 10
_LONGEST_SENTENCE: Final = 500
_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """The pages of one attempt that are in the ledger.

    :ivar began: time of its first page, in seconds after the refresh was opened
    :ivar ended: time of its last page, likewise
    """

    epoch: int
    began: float
    ended: float
    pages: int


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """The part of a partition that was read so far.

    :ivar key: canonical JSON of the partition's key
    :ivar pages: pages on its live chain; ``records`` likewise
    :ivar seconds: seconds from its first page to its last, superseded chains included
    :ivar restarts: how often it began again
    """

    key: str
    pages: int
    records: int
    seconds: float
    restarts: int
    is_complete: bool
    last_page_at: datetime


@dataclass(frozen=True, slots=True)
class RefreshDetails:
    """The newest refresh of a table, page by page.

    :ivar points: the curve of progress: seconds after the refresh was opened, and pages until then
    :ivar slowest: partitions that took longest, the slowest first
    :ivar unfinished: partitions that were begun and are not complete, the longest idle first
    :ivar skipped: pages without records, because an error of the API is ignored
    :ivar missing: records that the API counted but did not send; None before everything is read
    :ivar files: number of ledger files with pages
    :ivar files_read: number of these that were read. If it is smaller, the curve is scaled to all pages, partitions
        and attempts have the figures of the sample, as has ``skipped``, and ``unfinished`` is empty
    :ivar target: facts of the table that is refreshed; None before its first publish, and if it can't be read
    :ivar sync: state of that table's incremental sync; None if it was never synced incrementally
    """

    points: tuple[tuple[float, int], ...]
    attempts: tuple[AttemptSpan, ...]
    slowest: tuple[PartitionSpan, ...]
    unfinished: tuple[PartitionSpan, ...]
    skipped: int
    missing: int | None
    files: int
    files_read: int
    target: TableFacts | None = None
    sync: SyncFacts | None = None
    is_target_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class SyncFacts:
    """The state of a table's incremental sync.

    :ivar cursor: name of the cursor column; None where the state can't be read
    :ivar partitions: number of partitions with a value; None if the state has a form of its source's own
    :ivar least: the least value of all partitions, as text; ``greatest`` likewise
    :ivar changed_at: time of the commit that last changed the state
    :ivar problem: why the state can't be read, without secrets
    """

    cursor: str | None
    partitions: int | None
    least: str | None
    greatest: str | None
    changed_at: datetime | None
    problem: str | None = None

    @property
    def sentence(self) -> str:
        """Return the state in words."""
        if self.problem is not None:
            return f"can't be read: {self.problem}"
        if self.partitions is None:
            return f"{self.cursor}: the source keeps the state in a form of its own"
        if self.partitions == 0:
            return f"{self.cursor}: no record with a value was seen yet"
        if self.partitions == 1:
            return f"{self.cursor} is known up to {self.least}"
        span = f"{self.least}" if self.least == self.greatest else f"between {self.least} and {self.greatest}"
        return f"{self.cursor} is known up to {span}, in {self.partitions:,} partitions"

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with times as text."""
        return {**asdict(self), "changed_at": self.changed_at and self.changed_at.isoformat()}


def read_target(catalog: Catalog, status: TableStatus) -> tuple[TableFacts | None, SyncFacts | None, bool]:
    """Return the facts of the refreshed table and of its incremental sync, and whether the table can't be read.

    The facts are None where there is no table or no sync, and where the table can't be read.
    """
    try:
        table = load_table(catalog, status.table)
        return (None, None, False) if table is None else (facts_of(status.table, table), _sync_of(table), False)
    except Exception as error:  # noqa: BLE001 - what is wrong with the target hides nothing of the refresh
        _log.debug("the target %s can't be read", status.table, exc_info=error)
    return None, None, True


def _sync_of(table: Table) -> SyncFacts | None:
    try:
        state = read_state(table)
        if state is None:
            return None
        cursor = state.rules.get("cursor", {})
        column = CursorColumn(str(cursor["field"]), cursor["type"])
        values = state.values.values()
        bounds = least(*values, column=column), greatest(*values, column=column)
    except (RfrError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, RfrError) else "its rules name no cursor"
        return SyncFacts(None, 0, None, None, None, problem=one_line(reason, _LONGEST_SENTENCE))
    partitions = len(state.values) if state.of_source is None else None
    return SyncFacts(column.name, partitions, *bounds, state_changed_at(table.metadata))


def read_details(catalog: Catalog, status: TableStatus) -> RefreshDetails | None:
    """Read the details of the refresh; return None if its ledger is gone, or holds another refresh by now."""
    part = status.ledger.removeprefix(f"{status.table}__rfr_ledger").removeprefix("_") or None
    table = LedgerTable.load(catalog, status.table, part)
    if table is None:
        return None
    ledger = Ledger(table)
    header = ledger.header
    if header is None or status.header is None or _identity(header) != _identity(status.header):
        return None
    files = ledger.page_files()
    read = sorted(files)[:: max(1, -(-len(files) // _MOST_FILES))]
    tables = table.read(read, _COLUMNS)
    rows = pa.concat_tables(tables) if tables else None
    facts, sync, is_unreadable = read_target(catalog, status)
    details = _details_of(header, rows, len(files), len(read))
    return replace(details, target=facts, sync=sync, is_target_unreadable=is_unreadable)


def _identity(header: LedgerHeader) -> tuple[int, str | None]:
    """Return the values that are the same as long as the ledger holds the same refresh."""
    return header.generation, header.dag_id


def _details_of(header: LedgerHeader, rows: pa.Table | None, files: int, files_read: int) -> RefreshDetails:
    """Return the details without those of the target."""
    if rows is None or rows.num_rows == 0:
        return RefreshDetails((), (), (), (), 0, None, files, files_read)
    rows = rows.sort_by("fetched_at")
    seconds = rows["fetched_at"].cast("int64").to_numpy() / 1e6 - header.opened_at.timestamp()
    partitions = _partitions(rows, seconds, header)
    # In a sample, the last page of a partition may be missing.
    open_ones = (
        ()
        if header.is_read or files_read < files
        else (partition for partition in partitions if not partition.is_complete)
    )
    idle = sorted(open_ones, key=lambda partition: partition.last_page_at)
    # The curve is drawn with few points; the last page is always one of them.
    chosen = np.unique(np.linspace(0, len(seconds) - 1, min(len(seconds), _POINTS)).astype(int))
    pages = header.pages if files_read < files else len(seconds)
    epochs, attempts = rows["epoch"].to_numpy(), []
    for epoch in np.unique(epochs):
        of_it = seconds[epochs == epoch]
        attempts.append(AttemptSpan(int(epoch), float(of_it[0]), float(of_it[-1]), len(of_it)))
    return RefreshDetails(
        points=tuple((float(seconds[place]), round((int(place) + 1) * pages / len(seconds))) for place in chosen),
        attempts=tuple(attempts),
        slowest=tuple(sorted(partitions, key=lambda partition: -partition.seconds)[:_SHOWN_PARTITIONS]),
        unfinished=tuple(idle[:_SHOWN_PARTITIONS]),
        skipped=rows.num_rows - rows["skipped"].null_count,
        missing=sum(item.missing for item in shortfalls(rows)) if header.is_read and files_read == files else None,
        files=files,
        files_read=files_read,
    )


def _partitions(rows: pa.Table, seconds: np.ndarray, header: LedgerHeader) -> list[PartitionSpan]:
    """Return every partition that has pages.

    :param rows: page rows in the order of their times
    :param seconds: time of each row, in seconds after the refresh was opened
    """
    ordinals, chains, page = (rows[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    complete, records = (rows[name].to_numpy() for name in ("complete", "record_count"))
    order = np.argsort(ordinals, kind="stable")
    starts = np.flatnonzero(np.diff(ordinals[order], prepend=-1))
    spans = []
    for group in np.split(order, starts[1:]):
        chain = int(chains[group].max())
        live = group[chains[group] == chain]
        last = live[page[live].argmax()]
        ended = float(seconds[group[-1]])
        spans.append(
            PartitionSpan(
                key=rows["partition_key"][int(last)].as_py(),
                pages=len(live),
                records=int(records[live].sum()),
                seconds=ended - float(seconds[group[0]]),
                restarts=chain,
                is_complete=bool(complete[last]),
                last_page_at=datetime.fromtimestamp(header.opened_at.timestamp() + ended, timezone.utc),
            )
        )
    return spans
