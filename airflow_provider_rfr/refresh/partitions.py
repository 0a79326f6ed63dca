"""Partitions of a generation: the frozen list, the position in each, and checks that nothing is missing in them.

Only the last cursor of a partition is kept, so that memory grows with the list and not with the pages.

A file that a killed writer left behind is adopted if every file before it in its sequence is there, is intact, and
continues the committed pages. If several attempts at one task left files, the longest such sequence is adopted. A task
that Spark runs again adopts its predecessor's files in the same way.
"""

from __future__ import annotations

import logging
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from posixpath import basename
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_rfr.exceptions import LedgerError, PublishRefusedError, ReconciliationError
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.files import PAGE_COLUMNS, FileStore, select_columns
from airflow_provider_rfr.numbers import loads
from airflow_provider_rfr.refresh.chains import (
    ChainState,
    Cursor,
    OverlapCheck,
    PartitionProgress,
    PartitionWork,
)
from airflow_provider_rfr.refresh.page_rows import (
    REMEDY_FOR_IGNORED_TOKEN,
    REPEATS_FIRST_PAGE,
    FlushLabel,
    PageFile,
    SeenColumns,
    seen_marks,
)
from airflow_provider_rfr.streams.paged import REMEDY_FOR_ABSENT_FIELD
from airflow_provider_rfr.text import page_place

_log = logging.getLogger(__name__)

_NAMED_PARTITIONS = 10


@dataclass(slots=True)
class PartitionBook:
    """The partitions of one generation, with their positions; lists and mappings are by ordinal.

    :ivar keys: canonical JSON of the partition keys
    :ivar slices: JSON of the slices
    :ivar cursors: of partitions that have pages
    :ivar states: of open chains that this attempt resumed or read
    :ivar failed: errors of partitions that can't continue in this attempt
    :ivar overran: partitions that had a page in flight when the last round ended
    :ivar resumed: partitions that an earlier attempt began, and of which this one has read no page yet
    :ivar done: number of complete partitions
    """

    keys: Sequence[str]
    slices: Sequence[str]
    cursors: dict[int, Cursor] = field(default_factory=dict)
    states: dict[int, ChainState] = field(default_factory=dict)
    failed: dict[int, BaseException] = field(default_factory=dict)
    overran: set[int] = field(default_factory=set)
    resumed: set[int] = field(default_factory=set)
    done: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def records(self) -> int:
        """Count the records on live chains."""
        return sum(cursor.records for cursor in self.cursors.values())

    @property
    def live_chains(self) -> dict[int, int]:
        """Return the number of the live chain by ordinal; partitions that never restarted are left out."""
        return {ordinal: cursor.chain for ordinal, cursor in self.cursors.items() if cursor.chain}

    def open_ordinals(self) -> list[int]:
        """Return the partitions that this attempt still has to read, begun ones first."""
        begun = [n for n, cursor in self.cursors.items() if not cursor.complete and n not in self.failed]
        fresh = [n for n in range(len(self.keys)) if n not in self.cursors and n not in self.failed]
        return begun + fresh

    def work(self, ordinal: int) -> PartitionWork:
        return PartitionWork(
            ordinal=ordinal,
            key=self.keys[ordinal],
            slice=loads(self.slices[ordinal].encode()),
            cursor=self.cursors.get(ordinal, Cursor()),
            state=self.states.get(ordinal, ChainState()),
            resumed=ordinal in self.resumed,
        )

    def apply(self, progress: PartitionProgress) -> None:
        """Record the position at which a task left a partition."""
        ordinal, cursor = progress.ordinal, progress.cursor
        if cursor != self.cursors.get(ordinal):
            self.resumed.discard(ordinal)
        # A partition without a page gets no cursor, so that it still counts as not begun.
        if cursor.pages or cursor.chain:
            self.move({ordinal: cursor})
        if cursor.complete:
            self.states.pop(ordinal, None)
        else:
            self.states[ordinal] = progress.state
        if progress.error is not None:
            self.failed[ordinal] = progress.error
        (self.overran.add if progress.overran else self.overran.discard)(ordinal)

    def move(self, cursors: Mapping[int, Cursor]) -> None:
        for ordinal, cursor in cursors.items():
            before = self.cursors.get(ordinal)
            self.done += int(cursor.complete) - int(before is not None and before.complete)
            self.cursors[ordinal] = cursor

    def remember(self, table: pa.Table, *, addressable: bool) -> None:
        """Restore the states of open chains after a take-over.

        :param table: all committed page rows, without records
        :param addressable: whether the last page of each open chain gets an overlap check
        """
        open_ones = [n for n, cursor in self.cursors.items() if not cursor.complete]
        if not open_ones:
            return
        self.resumed.update(open_ones)
        rows = table.filter(pc.is_in(table["partition_ordinal"], pa.array(np.array(open_ones))))
        by_ordinal: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows.to_pylist():
            if row["page"] and row["chain"] == self.cursors[row["partition_ordinal"]].chain:
                by_ordinal[row["partition_ordinal"]].append(row)
        for ordinal, own in by_ordinal.items():
            own.sort(key=lambda row: int(row["page"]))
            overlap = OverlapCheck(own[-1]["token_in"], own[-1]["checksum"]) if addressable else None
            self.states[ordinal] = ChainState(seen_marks(own), overlap)


def open_book(store: FileStore, openings: Iterable[str]) -> PartitionBook:
    """Read the frozen list of partitions.

    :param openings: locations of the files with opening rows
    :raises LedgerError: the list has gaps
    """
    rows: dict[int, tuple[str, str]] = {}
    for location in openings:
        for row in store.read_table(location, ("partition_ordinal", "page", "partition_key", "slice")).to_pylist():
            if row["page"] == 0:
                rows[row["partition_ordinal"]] = (row["partition_key"], row["slice"])
    if sorted(rows) != list(range(len(rows))):
        raise LedgerError("the ledger's list of partitions has gaps; open a new generation with force_restart")
    return PartitionBook([rows[n][0] for n in range(len(rows))], [rows[n][1] for n in range(len(rows))])


def cursors_of(table: pa.Table) -> dict[int, Cursor]:
    """Return each partition's cursor after its last row: the highest page of its highest chain.

    Partitions that only have an opening row are left out.
    """
    ordinal, chain, page = (table[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    order = np.lexsort((page, chain, ordinal))
    last = order[np.append(np.diff(ordinal[order]) != 0, True)[: len(order)]]
    _, place = np.unique(ordinal, return_inverse=True)
    live = chain == chain[last][place]
    records = np.bincount(place, weights=table["record_count"].to_numpy() * live, minlength=len(last))
    ends = table.select(["token_out", "complete"]).take(pa.array(last))
    times = table["fetched_at"].cast("int64").to_numpy()[last].tolist()
    positions = (values[last].tolist() for values in (ordinal, chain, page))
    columns = (*positions, ends["token_out"].to_pylist(), ends["complete"].to_pylist(), records.tolist(), times)
    return {
        number: Cursor(chain_number, pages, token, complete, int(count), time)
        for number, chain_number, pages, token, complete, count, time in zip(*columns, strict=True)
        if pages
    }


def live_pages(table: pa.Table, cursors: Mapping[int, Cursor]) -> pa.Table:
    """Return the page rows that count: no opening rows, and none of superseded chains."""
    ordinal, chain, page = (table[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    live_chain = np.zeros(ordinal.max(initial=-1) + 1, dtype=np.int64)
    for number, cursor in cursors.items():
        live_chain[number] = cursor.chain
    return table.filter(pa.array((page > 0) & (chain == live_chain[ordinal])))


def tokens_of_last_pages(pages: pa.Table, cursors: Mapping[int, Cursor]) -> dict[int, Any]:
    """Return the token that each partition's last page was requested with, by ordinal; None for a first page.

    :param pages: as of :func:`live_pages`
    """
    last = np.zeros(max(cursors, default=-1) + 1, dtype=np.int64)
    for number, cursor in cursors.items():
        last[number] = cursor.pages
    ends = pages.filter(pa.array(pages["page"].to_numpy() == last[pages["partition_ordinal"].to_numpy()]))
    texts = zip(ends["partition_ordinal"].to_pylist(), ends["token_in"].to_pylist(), strict=True)
    return {number: None if text is None else loads(text.encode()) for number, text in texts}


def check_gapless(pages: pa.Table, cursors: Mapping[int, Cursor]) -> None:
    """Check that every live chain has as many rows as pages.

    :param pages: as of :func:`live_pages`
    :raises ReconciliationError: a chain has more or fewer rows
    """
    counts = Counter(pages["partition_ordinal"].to_pylist())
    for ordinal, cursor in cursors.items():
        if counts[ordinal] != cursor.pages:
            raise ReconciliationError(
                f"partition {ordinal}, chain {cursor.chain}: {counts[ordinal]} page rows up to page {cursor.pages}"
            )


def check_complete(book: PartitionBook, cursors: Mapping[int, Cursor]) -> None:
    """Check that every partition is complete, and that as many of its records are staged as were fetched.

    :param cursors: of the staged pages
    :raises ReconciliationError: a partition is incomplete, or its counts differ
    """
    unfinished = [n for n in range(len(book)) if n not in cursors or not cursors[n].complete]
    if unfinished:
        raise ReconciliationError(
            f"{len(unfinished)} of {len(book)} partitions are not complete"
            f"{page_place(book.keys[unfinished[0]], start=', the first is ')}"
        )
    for ordinal, cursor in cursors.items():
        if book.cursors[ordinal].records != cursor.records:
            raise ReconciliationError(
                f"{page_place(book.keys[ordinal], end=': ')}{book.cursors[ordinal].records} records were fetched,"
                f" {cursor.records} are staged; nothing is published"
            )


@dataclass(frozen=True, slots=True)
class LeftFile:
    """An intact ledger file that no commit names.

    :ivar size: in bytes
    """

    location: str
    size: int
    metadata: pq.FileMetaData
    label: FlushLabel

    @property
    def name(self) -> str:
        """Return the file's name without the folder."""
        return basename(self.location)

    @property
    def task(self) -> tuple[int, int, int]:
        """Return epoch, round and number of the task that wrote it."""
        return self.label.epoch, self.label.round, self.label.task

    def read(self, store: FileStore) -> PageFile:
        """Read the rows of the file, without the records."""
        stored = StoredFile(self.location, self.size, self.metadata, {"generation": self.label.generation})
        pages = select_columns(store.read_table(self.location, PAGE_COLUMNS), PAGE_COLUMNS)
        return PageFile(stored, pages.replace_schema_metadata(), SeenColumns.from_footer(pages.schema.metadata))


def uncommitted_files(store: FileStore, folder: str, committed: Iterable[str]) -> list[LeftFile]:
    """Return the files below ``folder`` that no commit names; leave out torn ones, and those without a label."""
    known = {basename(location) for location in committed}
    listed = [(location, size) for location, size in store.list(folder) if basename(location) not in known]
    with ThreadPoolExecutor(16) as pool:
        footers = list(pool.map(store.read_footer, (location for location, _ in listed)))
    files = []
    for (location, size), footer in zip(listed, footers, strict=True):
        if footer is not None and (label := FlushLabel.from_footer(footer[0])) is not None:
            files.append(LeftFile(location, size, footer[1], label))
    return files


def choose_adopted(
    store: FileStore, files: Sequence[LeftFile], cursors: dict[int, Cursor], committed: Iterable[str] = ()
) -> tuple[list[PageFile], dict[int, Cursor]]:
    """Return the files to adopt, in order, and the new cursors of the partitions that they continue.

    :param files: candidates, which no commit names
    :param cursors: position in each partition, before the files
    :param committed: locations of files that commits name, which a sequence may continue
    """
    following: dict[str | None, list[LeftFile]] = defaultdict(list)
    for file in files:
        following[file.label.previous].append(file)
    # A task attempt that adopted its predecessor's files continues after one of them, which may be committed by now.
    roots = (None, *{basename(location) for location in committed})
    stack = [[file] for root in roots for file in following.get(root, ())][::-1]
    # Every gapless sequence of files.
    sequences = []
    while stack:
        path = stack.pop()
        last = path[-1]
        nexts = [file for file in following.get(last.name, ()) if file.label.sequence == last.label.sequence + 1]
        if not nexts:
            sequences.append(path)
        stack.extend([*path, file] for file in nexts)
    adopted: list[PageFile] = []
    moved: dict[int, Cursor] = {}
    done: set[tuple[int, int, int]] = set()
    # The longest sequence of a task comes first.
    for path in sorted(sequences, key=lambda path: (*path[0].task, -len(path))):
        if path[0].task in done:
            continue
        before = len(adopted)
        for file in path:
            rows = file.read(store)
            joined = _join_rows(rows.pages, ChainMap(moved, cursors))
            if joined is None:
                # The rest of the sequence builds on this file, so it does not count either.
                break
            adopted.append(rows)
            moved.update(joined)
        if len(adopted) > before:
            done.add(path[0].task)
    return adopted, moved


def retried_by_writers(files: Iterable[LeftFile], adopted: Iterable[PageFile]) -> Counter[str]:
    """Return the errors that the writers of the adopted files had retried, by kind.

    :param files: the candidates for adoption. The label of each has its writer's counts until then
    """
    locations = {file.location for file in adopted}
    newest: dict[tuple[int, ...], FlushLabel] = {}
    for file in files:
        writer = *file.task, file.label.attempt
        if file.location in locations and (writer not in newest or newest[writer].sequence < file.label.sequence):
            newest[writer] = file.label
    return sum((Counter(label.retried) for label in newest.values()), Counter())


def _join_rows(table: pa.Table, cursors: Mapping[int, Cursor]) -> dict[int, Cursor] | None:
    """Return the cursors after the rows of one file; None if a row does not continue its partition."""
    moved: dict[int, Cursor] = {}
    times = table["fetched_at"].cast("int64").to_pylist()
    for row, time in zip(table.to_pylist(), times, strict=True):
        ordinal, chain, page, token = row["partition_ordinal"], row["chain"], row["page"], row["token_in"]
        cursor = moved.get(ordinal) or cursors.get(ordinal)
        if cursor is None:
            return None
        is_restart = chain > cursor.chain and page == 1 and token is None
        is_next = chain == cursor.chain and page == cursor.pages + 1 and token == cursor.token
        if not is_restart and (cursor.complete or not is_next):
            return None
        records = row["record_count"] + (0 if is_restart else cursor.records)
        moved[ordinal] = Cursor(chain, page, row["token_out"], bool(row["complete"]), records, time)
    return moved


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A partition for which the API sent fewer records than it counted."""

    ordinal: int
    received: int
    promised: int

    @property
    def missing(self) -> int:
        return self.promised - self.received


def shortfalls(pages: pa.Table) -> list[Shortfall]:
    """Return the partitions that lack records.

    The API's count on a partition's last page with records is the one to compare with: deletions during the read lower
    the count, and the empty page at the end often says 0. Without records, it is the count on the first page.

    :param pages: page rows with ``partition_ordinal``, ``chain``, ``page``, ``received`` and ``promised``; those of
        older chains do not count
    """
    if not pc.any(pc.is_valid(pages["promised"])).as_py():
        return []
    ordinal, chain, page = (pages[name].to_numpy() for name in ("partition_ordinal", "chain", "page"))
    received = pages["received"].to_numpy().astype(np.float64)
    promised = pc.fill_null(pages["promised"], -1).to_numpy()
    numbers, place = np.unique(ordinal, return_inverse=True)
    newest = np.zeros(len(numbers), dtype=chain.dtype)
    np.maximum.at(newest, place, chain)
    is_live = chain == newest[place]
    totals = np.bincount(place, weights=np.nan_to_num(received) * is_live, minlength=len(numbers)).astype(np.int64)
    # Sort the page whose count decides last in its partition: the highest one with records, else the lowest one.
    rank = np.where(received > 0, page, -page)
    order = np.lexsort((rank, received > 0, is_live & (promised >= 0), place))
    last = order[np.append(np.diff(place[order]) != 0, True)]
    # A page that an older release wrote does not say how many records it received: its partition can't be compared.
    is_known = np.bincount(place, weights=np.isnan(received) & is_live, minlength=len(numbers)) == 0
    promises = np.where(is_live[last] & is_known, promised[last], -1)
    return [
        Shortfall(int(number), int(total), int(promise))
        for number, total, promise in zip(numbers, totals, promises, strict=True)
        if total < promise
    ]


def check_promises(pages: pa.Table, keys: Sequence[str], *, fail: bool) -> list[Shortfall]:
    """Warn of missing records, and return the partitions that lack them.

    :param keys: of the partitions, by ordinal
    :param fail: raise an error instead
    :raises PublishRefusedError: records are missing, and ``fail`` is set
    """
    short = shortfalls(pages)
    if not short:
        return []
    named = "; ".join(
        f"{page_place(keys[item.ordinal], end=': ')}{item.received:,} of {item.promised:,} records"
        for item in short[:_NAMED_PARTITIONS]
    )
    more = f"; and {len(short) - _NAMED_PARTITIONS} more partitions" if len(short) > _NAMED_PARTITIONS else ""
    problem = f"fewer records came than the API's own count promises: {named}{more}"
    if fail:
        raise PublishRefusedError(
            f"{problem}; nothing was published and readers keep the old table; if the API counts wrongly, set"
            " on_missing_records to warn"
        )
    _log.warning("%s; they are published anyway, because on_missing_records is warn", problem)
    return short


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The pages and records that a generation lacks, although the API may have them.

    :ivar skipped: number of pages without records, because their errors were ignored
    :ivar missing: number of records that the API counted but did not send
    :ivar ordinals: the partitions with such pages or records
    """

    skipped: int = 0
    missing: int = 0
    ordinals: frozenset[int] = frozenset()

    @classmethod
    def of(cls, skipped: pa.Table, short: Sequence[Shortfall]) -> LeftOut:
        """Gather the pages and records that were left out.

        :param skipped: page rows, as of :func:`skipped_pages`
        """
        ordinals = {*skipped["partition_ordinal"].to_pylist(), *(item.ordinal for item in short)}
        return cls(skipped.num_rows, sum(item.missing for item in short), frozenset(ordinals))

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts by their names in a snapshot's summary, without the prefix."""
        return {"pages-skipped": self.skipped, "records-missing": self.missing}


def skipped_pages(pages: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Warn of pages without records, whose errors were ignored, and return their rows.

    :param pages: live page rows
    :param keys: of the partitions
    """
    skipped = pages.filter(pages["skipped"].is_valid())
    if skipped.num_rows:
        order = [("partition_ordinal", "ascending"), ("page", "ascending")]
        first = skipped.sort_by(order).slice(0, 1).to_pylist()[0]
        _log.warning(
            "%s pages have no records, because their errors were ignored; the first is %s: %s",
            *(skipped.num_rows, page_place(keys[first["partition_ordinal"]], first["page"]), first["skipped"]),
        )
    return skipped


def check_absent_fields(pages: pa.Table, keys: Sequence[str], page_size: int | None) -> None:
    """Refuse a publish whose partitions ended because the field for the next page is absent, if no page has it.

    Its declared path is probably wrong then.

    :param pages: live page rows
    :param keys: of the partitions
    :raises PublishRefusedError: such a partition may have more pages
    """
    is_marked = pc.is_valid(pages["absent"])
    may_have_more = pc.greater_equal(pages["received"], page_size or 1)
    unexplained = pages.filter(pc.and_(is_marked, may_have_more))
    if not unexplained.num_rows:
        return
    has_records = pc.and_(pc.greater(pages["received"], 0), pc.is_null(pages["skipped"]))
    has_field = pc.and_(pc.invert(is_marked), pc.or_(pc.is_valid(pages["token_out"]), has_records))
    if pc.any(has_field).as_py():
        return
    first = unexplained.sort_by("partition_ordinal").slice(0, 1).to_pylist()[0]
    raise PublishRefusedError(
        f"no partition has a second page, and of {unexplained.num_rows} the first page may not be the last:"
        f" {page_place(keys[first['partition_ordinal']], end=': ')}{first['absent']}; nothing was published and readers"
        f" keep the old table; {REMEDY_FOR_ABSENT_FIELD}"
    )


def check_ignored_tokens(pages: pa.Table, keys: Sequence[str], page_size: int | None) -> None:
    """Refuse a publish whose partitions ended at a repeat of page 1, if no partition has a second page of its own.

    The API probably ignores the token then.

    :param pages: live page rows
    :param keys: of the partitions
    :raises PublishRefusedError: such a partition may have more pages
    """
    has_records = pc.greater(pages["record_count"], 0)
    if pc.any(pc.and_(has_records, pc.greater(pages["page"], 1))).as_py():
        return
    repeats = pages.filter(pc.equal(pages["absent"], REPEATS_FIRST_PAGE))
    is_full = pc.and_(pc.equal(pages["page"], 1), pc.greater_equal(pages["received"], page_size or 1))
    is_suspect = pc.and_(is_full, pc.is_in(pages["partition_ordinal"], repeats["partition_ordinal"].combine_chunks()))
    suspects = pages.filter(is_suspect)
    if not suspects.num_rows:
        return
    first = page_place(keys[suspects["partition_ordinal"][0].as_py()], start=", first in ")
    raise PublishRefusedError(
        f"no partition has a second page of its own, and in {suspects.num_rows} of them {REPEATS_FIRST_PAGE}{first}:"
        " the API seems to ignore which page is asked for; nothing was published and readers keep the old table;"
        f" {REMEDY_FOR_IGNORED_TOKEN}; if one page is all there is, set paginator.page_size to more than"
        " its records, or declare a total"
    )
