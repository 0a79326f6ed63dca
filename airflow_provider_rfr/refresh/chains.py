"""Chains of pages inside a task, and the scheduler that decides which thread requests which page next.

A chain is serial: the token of a page comes with the page before it. If the stream is addressable, so that the token of
any position can be computed, further pages are requested ahead. They count in order, and only if the page before
returns the token that they were requested with. A token or page that comes twice means that the chain would never end.

A thread stays with its chain until the chain ends, so that few are open at once: each open addressable chain costs one
overlap check after a crash. Idle threads read addressable chains ahead.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_rfr.exceptions import RepeatedPageError, SourceChangedError, SourceError, TokenExpiredError
from airflow_provider_rfr.refresh.cluster import portable_error
from airflow_provider_rfr.refresh.page_rows import (
    REMEDY_FOR_IGNORED_TOKEN,
    REPEATS_FIRST_PAGE,
    PageRow,
    TaskFigures,
    checksum_of,
    decode_token,
    digest_of,
    encode_records,
    encode_token,
    marks_of,
)
from airflow_provider_rfr.streams.core import Page
from airflow_provider_rfr.streams.paged import PageGuard
from airflow_provider_rfr.text import page_place

_log = logging.getLogger(__name__)

_MAX_RESTARTS = 3
#: HTTP statuses by which APIs refuse a cursor that has expired.
_REFUSED_CURSOR = frozenset({400, 404, 410, 422})
# Bytes of waiting records from which a flush is due at once.
_FULL_BYTES = 32 * 1024 * 1024
# Limit of the records that a task holds or has requested, in bytes of JSON. Parsed pages take several times as much.
_MOST_BYTES = 64 * 1024 * 1024
# Limit of the pages in flight until the first one shows how large pages are.
_FIRST_PAGES = 4


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position in a partition: its live chain, and the last page read of it.

    :ivar pages: number of the last page, 0 before the first
    :ivar token: JSON of the next page's token, None for the first page
    :ivar records: records on the chain
    :ivar fetched_at: when the last page was fetched, in microseconds since 1970
    """

    chain: int = 0
    pages: int = 0
    token: str | None = None
    complete: bool = False
    records: int = 0
    fetched_at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OverlapCheck:
    """The last committed page of a chain, to be read once more before the chain continues."""

    token_in: str | None
    checksum: str


@dataclass(frozen=True, slots=True)
class ChainState:
    """The state of a chain besides its cursor. It travels to a task and back; the ledger does not hold it.

    :ivar seen: digests (eight bytes each) of the tokens and page contents that the chain had
    :ivar overlap: the overlap check that is due; set once per attempt, for addressable chains that have pages
    :ivar restarts: chains that this attempt opened for the partition
    :ivar asked: whether the next page was empty when it was first requested; the second answer counts
    :ivar streak: how many of the last pages in a row were empty, and how many repeated the page before them
    """

    seen: bytes = b""
    overlap: OverlapCheck | None = None
    restarts: int = 0
    asked: bool = False
    streak: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """An open partition, as it is sent to a task.

    :ivar resumed: whether an earlier attempt read all pages so far, so that the cursor may have expired since
    """

    ordinal: int
    key: str
    slice: Mapping[str, Any]
    cursor: Cursor = Cursor()
    state: ChainState = ChainState()
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The position at which a task left a partition.

    :ivar error: why the partition can't continue in this attempt, None if it can
    :ivar overran: whether the round ended while one of its pages was in flight, or waited for a retry
    """

    ordinal: int
    cursor: Cursor
    state: ChainState
    error: BaseException | None = None
    overran: bool = False


@dataclass(frozen=True, slots=True)
class _PageRequest:
    """A request for one page; ``number`` counts from 1, and 0 is the overlap check."""

    chain: Chain
    chain_number: int
    number: int
    token: Any


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A page with its ledger row, which is built outside of the scheduler's lock."""

    row: PageRow
    page: Page


class Chain:
    """The live chain of one partition. Not thread-safe: the scheduler holds its lock around every call.

    :param token_at: returns the token of a position, from 0; None for streams that are not addressable
    :param on_repeated_page: the option of that name: ``fail``, ``accept`` or ``end``
    :param page_size: number of records of a full page, if known
    :param max_empty_pages: how many pages without records may follow each other
    """

    def __init__(
        self,
        work: PartitionWork,
        token_at: Callable[[int], Any] | None,
        *,
        on_repeated_page: str,
        page_size: int | None = None,
        max_empty_pages: int = 100,
    ) -> None:
        state = work.state
        self.work = work
        self.number = work.cursor.chain
        self.pages = work.cursor.pages
        self.records = work.cursor.records
        self.fetched_at = work.cursor.fetched_at
        self.token = decode_token(work.cursor.token)
        self.overlap: OverlapCheck | None = state.overlap
        self.restarts = state.restarts
        self.complete = False
        self.error: BaseException | None = None
        self.overran = False
        self.backed_off = False
        self._token_at = token_at
        self._page_size = page_size
        self._max_empty_pages = max_empty_pages
        self._total: int | None = None
        self._delivered = False
        resumed = work.cursor.pages > 0
        self._guard = PageGuard(
            page_size, resumed=resumed, most=max_empty_pages, asked=state.asked, streak=state.streak
        )
        self._on_repeated_page = on_repeated_page
        self._seen = array("Q", state.seen)
        self._seen_set = set(self._seen)
        self._in_flight: set[int] = set()
        self._ready: dict[int, FetchedPage | tuple[_PageRequest, BaseException]] = {}

    @property
    def open(self) -> bool:
        """Tell whether there is more to read in this attempt."""
        return not self.complete and self.error is None

    @property
    def busy(self) -> bool:
        return bool(self._in_flight)

    @property
    def reads_ahead(self) -> bool:
        """Tell whether other threads may request pages ahead of the one that is due."""
        return self._token_at is not None

    @property
    def early_bytes(self) -> int:
        """Return the bytes of records in pages that arrived before an earlier page."""
        return sum(page.row.size for page in self._ready.values() if isinstance(page, FetchedPage))

    @property
    def changed(self) -> bool:
        """Tell whether the task has to report the partition to the driver."""
        restarted = self.number != self.work.cursor.chain
        checked = self.work.state.overlap is not None and self.overlap is None
        return bool(restarted or self._delivered or self.error or self.overran or self._guard.asked or checked)

    def claim(self, window: int) -> _PageRequest | None:
        """Claim the next page that may be requested, at most ``window`` pages ahead; return None if none may."""
        if not self.open:
            return None
        if self.overlap is not None:
            return None if self.busy else self._request(0, decode_token(self.overlap.token_in))
        head = self.pages + 1
        if head in self._ready:
            # The due page came empty, and waits for the page after it, which was requested ahead: if that is empty,
            # too, the chain ends here. Otherwise the due page is requested again.
            if head + 1 in self._in_flight:
                return None
            del self._ready[head]
        if head not in self._in_flight:
            return self._request(head, self.token)
        for number in range(head + 1, head + self._window(window)):
            if number not in self._in_flight and number not in self._ready:
                assert self._token_at is not None
                return self._request(number, self._token_at(number - 1))
        return None

    def release(self, request: _PageRequest) -> None:
        """Release a page that did not arrive; it may be claimed again."""
        if request.chain_number == self.number:
            self._in_flight.discard(request.number)

    def deliver(self, request: _PageRequest, outcome: FetchedPage | BaseException) -> list[PageRow]:
        """Take a page, or the error of its request; return the rows that count from now on, in order."""
        # The page was requested before the chain restarted, so its row belongs to a chain that does not count.
        if request.chain_number != self.number:
            return []
        self._in_flight.discard(request.number)
        self._ready[request.number] = outcome if isinstance(outcome, FetchedPage) else (request, outcome)
        rows: list[PageRow] = []
        while self.open and (following := self._ready.get(self.pages + 1)) is not None:
            # The due page, requested with the right token, is empty and has to be confirmed.
            if (
                isinstance(following, FetchedPage)
                and self._guard.is_doubtful(following.page)
                and following.row.token_in == encode_token(self.token)
            ):
                if self.pages + 2 in self._in_flight:
                    break
                # If the page after it, which was requested ahead, came empty as well, that is the second answer.
                ahead = self._ready.get(self.pages + 2)
                self._guard.asked = isinstance(ahead, FetchedPage) and not (
                    ahead.row.record_count or ahead.page.received
                )
            self._ready.pop(self.pages + 1)
            if isinstance(following, FetchedPage):
                if (row := self._accept(following)) is not None:
                    rows.append(row)
            elif self.is_due(following[0]):
                self.error = following[1]
        return rows

    def is_due(self, request: _PageRequest) -> bool:
        """Tell whether a request is for the due page, with its token: one that was sent ahead may have another."""
        return request.number == self.pages + 1 and encode_token(request.token) == encode_token(self.token)

    def check_overlap(self, request: _PageRequest, page: Page, policy: str) -> bool:
        """Compare a page that was read again with its committed version; return True if the chain restarts.

        :param policy: ``on_source_change`` of the options
        """
        if request.chain_number != self.number or self.overlap is None:
            return False
        self._in_flight.discard(0)
        same = checksum_of(encode_records(page.records)) == self.overlap.checksum
        self.overlap = None
        if same or policy == "accept":
            return False
        if policy == "fail":
            self.error = SourceChangedError(
                f"{page_place(self.work.key, self.pages)} reads differently than when it was committed;"
                " set on_source_change to restart (reads this partition again) or accept"
            )
            return False
        self.restart()
        return True

    def has_expired(self, request: _PageRequest, error: BaseException) -> bool:
        """Tell whether the API probably refused a cursor because it has expired.

        That is assumed of the first request on a chain that an earlier attempt read. Tokens of addressable streams are
        computed, and do not expire.
        """
        return (
            isinstance(error, SourceError)
            and error.status in _REFUSED_CURSOR
            and self.work.resumed
            and not self._delivered
            and self.number == self.work.cursor.chain
            and self._token_at is None
            and request.number == self.pages + 1 > 1
        )

    def restart(self) -> None:
        """Open a new chain from the first page; rows of the older one no longer count."""
        self.number += 1
        self.restarts += 1
        self.pages = self.records = 0
        self.token = None
        self.overlap = None
        self._in_flight.clear()
        self._ready.clear()
        self._guard = PageGuard(self._page_size, resumed=False, most=self._max_empty_pages)
        self._seen = array("Q")
        self._seen_set = set()

    def progress(self) -> PartitionProgress:
        """Return the chain's position, as far as its rows were delivered."""
        token = encode_token(self.token)
        cursor = Cursor(self.number, self.pages, token, self.complete, self.records, self.fetched_at)
        state = ChainState(
            self._seen.tobytes(), self.overlap, self.restarts, asked=self._guard.asked, streak=self._guard.streak
        )
        return PartitionProgress(self.work.ordinal, cursor, state, self.error, self.overran)

    def _request(self, number: int, token: Any) -> _PageRequest:
        self._in_flight.add(number)
        return _PageRequest(self, self.number, number, token)

    def _window(self, window: int) -> int:
        """Return how many pages may be in flight at once: up to the API's total, else as many as were read already."""
        if self._token_at is None or not self.pages or self._guard.asked or self._token_at(self.pages) != self.token:
            return 1
        if self._total is not None:
            return min(window, self._total - self.pages)
        return min(window, self.pages)

    def _accept(self, fetched: FetchedPage) -> PageRow | None:
        """Move the cursor past the due page and return its row; None if the page does not count."""
        row, page = fetched.row, fetched.page
        if row.token_in != encode_token(self.token):
            # The page was requested ahead, and the page before it returned another token.
            return None
        if self._guard.needs_second_request(page):
            return None
        is_end = self._on_repeated_page == "end"
        # After the last page by the API's count, a repeat of any page means the end of the chain. With
        # ``on_repeated_page: end``, so does a repeat of the page before it, or a page that names itself as the next.
        # The digest is computed only if it matters: this runs for each page, under the scheduler's lock.
        is_known = page.is_beyond and row.record_count > 0 and digest_of(f"c{row.checksum}") in self._seen_set
        if is_known or (is_end and self._repeats_last(row)):
            nothing = encode_records(())
            is_first_again = row.page == 2 and not page.is_beyond
            row = replace(
                row,
                token_out=None,
                complete=True,
                record_count=0,
                received=0,
                records=nothing,
                checksum=checksum_of(nothing),
                absent=REPEATS_FIRST_PAGE if is_first_again else None,
            )
        elif is_end and row.token_out is not None and row.token_out == row.token_in:
            row = replace(row, token_out=None, complete=True)
        is_repeat = self._repeats_last(row)
        if self._is_repeated(row):
            return None
        if row.fetched_at <= self.fetched_at:
            # Times increase along a chain, whatever clocks and order pages were read by: of two versions of a record
            # with equal cursor values, the one that was fetched later wins at the publish.
            row = replace(row, fetched_at=self.fetched_at + 1)
        self.pages = row.page
        self.records += row.record_count
        self.fetched_at = row.fetched_at
        self._delivered = True
        self.complete = row.complete
        self.token = decode_token(row.token_out)
        self._total = page.total_pages if page.total_pages is not None else self._total
        if not self.complete:
            self.error = self._guard.endless(page, is_repeat=is_repeat)
        return row

    def _repeats_last(self, row: PageRow) -> bool:
        """Tell whether a page has the same records as the page before it, whose last digest is that of its records."""
        return bool(row.record_count and self._seen and self._seen[-1] == digest_of(f"c{row.checksum}"))

    def _is_repeated(self, row: PageRow) -> bool:
        """Remember a page's token and records. If they came before, restart or fail the chain, and return True."""
        marks = marks_of(row.page, row.token_in, row.token_out, row.checksum if row.record_count else None)
        accepted = digest_of(f"c{row.checksum}") if self._on_repeated_page == "accept" else None
        repeated = next((name for mark, name in marks.items() if mark in self._seen_set and mark != accepted), None)
        if repeated is not None and not self.restarts:
            # One wrong answer may have caused the loop, and may be committed already: so restart, once per attempt.
            self.restart()
            return True
        if repeated is not None:
            if row.page == 2 and self._repeats_last(row):
                advice = (
                    f"{REPEATS_FIRST_PAGE}: the API seems to ignore which page is asked for; {REMEDY_FOR_IGNORED_TOKEN}"
                )
            else:
                advice = "if the API ends this way, set on_repeated_page to end"
            self.error = RepeatedPageError(
                f"{repeated} came twice in one chain, so it would never end; {advice}",
                request=row.request,
                partition=self.work.key,
                page=row.page,
            )
            return True
        self._seen.extend(marks)
        self._seen_set.update(marks)
        return False


class Scheduler:
    """The scheduler that hands out page requests to threads and collects the pages that count; thread-safe.

    :param window: pages of one chain that may be requested at once
    :param max_bytes: bytes of records after which no new page is handed out
    :param on_source_change: the option of that name: ``restart``, ``fail`` or ``accept``
    :ivar closing: whether the round is ending
    :ivar full: set while so many bytes wait that a flush is due at once
    """

    def __init__(
        self,
        chains: Iterable[Chain],
        *,
        window: int,
        max_bytes: int,
        on_source_change: str,
        secrets: Sequence[str] = (),
    ) -> None:
        self._fresh = deque(chains)
        self._all = tuple(self._fresh)
        self._running: list[Chain] = []
        self._window = window
        self._max_bytes = max_bytes
        self._policy = on_source_change
        self._secrets = secrets
        self._changed = threading.Condition()
        self.closing = self._frozen = False
        self._ready: list[PageRow] = []
        self._ready_bytes = 0
        self._idle_threads = self._busy_threads = 0
        self._largest_page: int | None = None
        self.full = threading.Event()
        self.figures = TaskFigures()

    def next_request(self, last: Chain | None) -> _PageRequest | None:
        """Return the next request for a thread that last read a page of ``last``; None when there is nothing left.

        Block while pages of other threads may lead to further requests, and while the task holds too many bytes.
        """
        has_waited = False
        with self._changed:
            self._busy_threads -= last is not None
            while not self.closing:
                if self._has_memory() and (request := self._claim(last)) is not None:
                    self._busy_threads += 1
                    if has_waited and self._idle_threads:
                        # There may be a page for another idle thread.
                        self._changed.notify()
                    return request
                if not self._fresh and not any(chain.open for chain in self._running):
                    return None
                if not self._has_memory() and self._ready_bytes:
                    self.full.set()
                self._idle_threads += 1
                self._changed.wait()
                self._idle_threads -= 1
                has_waited = True
            return None

    def deliver(self, request: _PageRequest, fetched: FetchedPage) -> None:
        chain = request.chain
        with self._changed:
            is_first = self._largest_page is None
            self._largest_page = max(self._largest_page or 0, fetched.row.size)
            number, pages = chain.number, chain.pages
            rows = [] if self._frozen else chain.deliver(request, fetched)
            if chain.number != number:
                # A page was repeated, and the chain restarts: all its pages are fetched again.
                self.figures += TaskFigures(refetched=pages + len(rows))
            if rows:
                size = sum(row.size for row in rows)
                records = sum(row.record_count for row in rows)
                skipped = sum(row.skipped is not None for row in rows)
                self.figures += TaskFigures(len(rows), records, size, skipped=skipped)
                self._ready.extend(rows)
                self._ready_bytes += size
                self.closing |= self.figures.bytes >= self._max_bytes
                if self._ready_bytes >= _FULL_BYTES:
                    self.full.set()
            # Each thread that is woken takes the lock and the interpreter, so wake only as many as may find work.
            if self.closing or not chain.open or chain.number != number or is_first:
                self._changed.notify_all()
            elif chain.reads_ahead:
                self._changed.notify()

    def overlap(self, request: _PageRequest, page: Page) -> None:
        with self._changed:
            if self._frozen:
                return
            pages = request.chain.pages
            restarted = request.chain.check_overlap(request, page, self._policy)
            self.figures += TaskFigures(overlap_checks=1, refetched=pages if restarted else 0)
            self._changed.notify_all()

    def fail(self, request: _PageRequest, error: BaseException) -> None:
        """Handle a page that can't be read. An expired token restarts its chain; any other error ends the partition."""
        chain = request.chain
        with self._changed:
            if self._frozen or request.chain_number != chain.number:
                return
            self._largest_page = self._largest_page or 0
            expired = isinstance(error, TokenExpiredError) and (request.number != 1 or request.token is not None)
            is_early = request.number != 0 and not chain.is_due(request)
            if expired and chain.restarts < _MAX_RESTARTS and not is_early:
                self.figures += TaskFigures(refetched=chain.pages)
                chain.restart()
            elif expired and is_early:
                # The page was requested ahead. It is requested again when it is due, and may restart the chain then.
                chain.release(request)
            elif chain.has_expired(request, error):
                _log.warning(
                    "partition %s: the API refused a cursor of an earlier attempt, which has probably expired; %d pages"
                    " are read again from the first (%s); declare such a status in error_handler.expired_token_status",
                    *(chain.work.key, chain.pages, self._located(error, chain, request.number)),
                )
                self.figures += TaskFigures(refetched=chain.pages)
                chain.restart()
            elif request.number == 0:
                chain.error = self._located(error, chain, chain.pages)
            else:
                chain.deliver(request, self._located(error, chain, request.number))
            self._changed.notify_all()

    def release(self, request: _PageRequest, *, backed_off: bool = False) -> None:
        """Release the page of a reader that was interrupted; the page counts as never requested.

        :param backed_off: whether the reader waited for a retry. The partition then goes to the slow-page lane, because
            a round can't wait that long, and a later round would begin the wait anew
        """
        with self._changed:
            request.chain.release(request)
            request.chain.backed_off |= backed_off
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closing = True
            self._changed.notify_all()

    def take_ready(self) -> list[PageRow]:
        """Take the rows that count and were not taken yet."""
        with self._changed:
            rows, self._ready, self._ready_bytes = self._ready, [], 0
            self.full.clear()
            if not self._has_room_for_all():
                self._changed.notify_all()
        return rows

    @property
    def waiting(self) -> int:
        """Count the rows that :meth:`take_ready` would return."""
        return len(self._ready)

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the records of the rows that :meth:`take_ready` would return."""
        return self._ready_bytes

    def load(self) -> tuple[int, int, int]:
        """Count the partitions that no thread has begun, the threads without work, and the bytes of records so far."""
        with self._changed:
            return len(self._fresh), self._idle_threads, self.figures.bytes

    def progress(self) -> list[PartitionProgress]:
        """Return the progress of all partitions that changed. It stays true, because later pages are ignored."""
        with self._changed:
            # A reader that hangs may deliver later. Its page would be flushed, but is not in this progress.
            self.closing = self._frozen = True
            for chain in self._all:
                chain.overran = chain.open and (chain.busy or chain.backed_off)
            return [chain.progress() for chain in self._all if chain.changed]

    def _has_room_for_all(self) -> bool:
        """Tell whether pages are so small that their bytes need not be counted."""
        return self._largest_page is not None and 4 * self._window * self._largest_page <= _MOST_BYTES

    def _has_memory(self) -> bool:
        """Tell whether there is memory for one more page, if it is as large as the largest so far."""
        if self._has_room_for_all() or not (self._busy_threads or self._ready_bytes):
            return True
        if self._largest_page is None:
            return self._busy_threads < _FIRST_PAGES
        early = sum(chain.early_bytes for chain in self._running)
        return self._ready_bytes + early + (self._busy_threads + 1) * self._largest_page <= _MOST_BYTES

    def _claim(self, last: Chain | None) -> _PageRequest | None:
        """Claim a page of the thread's own chain, else of one that no thread has begun, else ahead in any chain."""
        if last is not None and (request := last.claim(1)) is not None:
            return request
        while self._fresh:
            chain = self._fresh.popleft()
            if (request := chain.claim(1)) is not None:
                self._running.append(chain)
                return request
        self._running = [chain for chain in self._running if chain.open]
        for chain in self._running:
            if (request := chain.claim(self._window)) is not None:
                return request
        return None

    def _located(self, error: BaseException, chain: Chain, number: int) -> BaseException:
        """Return the error with its partition and page, picklable and without secrets."""
        portable = portable_error(error, self._secrets)
        if isinstance(portable, SourceError) and portable.partition is None:
            portable.partition, portable.page = chain.work.key, number
        return portable
