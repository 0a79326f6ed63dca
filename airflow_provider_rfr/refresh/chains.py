"""Chains of pages inside a task: what may be requested next, what counts, and which thread requests it.

A chain is serial: the token of a page comes with the page before it. Where the stream knows the token of any position,
further pages are requested ahead; they count in order, and only if the page before names the token that they were
requested with. A token or page that comes twice means that the chain would never end.

A thread stays with its chain until the chain ends, so that few are open at once: each open addressable chain costs one
overlap check after a crash. Idle threads read addressable chains ahead.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import RepeatedPageError, SourceChangedError, SourceError, TokenExpiredError
from airflow_provider_rfr.refresh.errors import portable_error
from airflow_provider_rfr.refresh.messages import OverlapCheck, PartitionProgress, PartitionWork, TaskFigures
from airflow_provider_rfr.refresh.pages import PageRow, checksum_of, decode_token, encode_records, encode_token
from airflow_provider_rfr.streams.core import Page
from airflow_provider_rfr.streams.paged import EmptyPageGuard


def _token_mark(token: str) -> int:
    """Mark of a token's JSON text."""
    return _mark("t" + token)


def _content_mark(checksum: str) -> int:
    """Mark of a page's records."""
    return _mark("c" + checksum)


def _row_marks(
    *, page: int, token_in: str | None, token_out: str | None, record_count: int, checksum: str | None
) -> list[tuple[int, str]]:
    """The marks that one page leaves, each with the name that an error gives it."""
    marks = []
    if page == 1 and token_in is not None:
        marks.append((_token_mark(token_in), f"the page token {token_in:.80}"))
    if token_out is not None:
        marks.append((_token_mark(token_out), f"the page token {token_out:.80}"))
    if record_count and checksum is not None:
        marks.append((_content_mark(checksum), "a page with the same records"))
    return marks


def marks_of_rows(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The marks of committed rows of one chain, as a task gets them."""
    names = ("page", "token_in", "token_out", "record_count", "checksum")
    marks = array("Q")
    for row in rows:
        marks.extend(mark for mark, _ in _row_marks(**{name: row[name] for name in names}))
    return marks.tobytes()


def _mark(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


_MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page to be asked for; ``number`` counts from 1, 0 is the overlap check."""

    chain: Chain
    chain_number: int
    number: int
    token: Any


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A page with its row, built outside of any lock."""

    row: PageRow
    page: Page


class Chain:
    """State of one partition; not thread-safe, the scheduler holds its lock around every call.

    :param token_at: the token of a position, for addressable streams; None for the others
    :param page_size: records of a full page, if known
    """

    def __init__(
        self,
        work: PartitionWork,
        token_at: Callable[[int], Any] | None,
        *,
        accept_repeats: bool,
        page_size: int | None = None,
    ) -> None:
        self.work = work
        self.number = work.chain
        self.pages = work.pages
        self.records = work.records
        self.token = decode_token(work.token)
        self.overlap: OverlapCheck | None = work.overlap
        self.restarts = work.restarts
        self.complete = False
        self.error: BaseException | None = None
        self.overran = False
        self.total: int | None = None
        self.delivered = 0
        self.waiting = False
        self._token_at = token_at
        self._page_size = page_size
        self._ends = EmptyPageGuard(page_size, resumed=work.pages > 0, asked=work.asked)
        self._accept_repeats = accept_repeats
        self._seen = array("Q", work.seen)
        self._seen_set = set(self._seen)
        self._in_flight: set[int] = set()
        self._ready: dict[int, FetchedPage | BaseException] = {}

    @property
    def open(self) -> bool:
        """Whether there is more to read in this attempt."""
        return not self.complete and self.error is None

    @property
    def busy(self) -> bool:
        """Whether a page is on its way."""
        return bool(self._in_flight)

    @property
    def asked(self) -> bool:
        """Whether the next page was empty, and is asked for once more."""
        return self._ends.asked

    def claim(self, window: int) -> PageRequest | None:
        """The next page that may be asked for, at most ``window`` pages ahead; None if none may."""
        if not self.open:
            return None
        if self.overlap is not None:
            return self._claim_number(0, decode_token(self.overlap.token_in))
        head = self.pages + 1
        if head not in self._in_flight and head not in self._ready:
            return self._claim_number(head, self.token)
        for number in range(head + 1, head + self._window(window)):
            if number not in self._in_flight and number not in self._ready:
                assert self._token_at is not None
                return self._claim_number(number, self._token_at(number - 1))
        return None

    def release(self, request: PageRequest) -> None:
        """The page did not arrive; it may be claimed again."""
        if request.chain_number == self.number:
            self._in_flight.discard(request.number)

    def deliver(self, request: PageRequest, outcome: FetchedPage | BaseException) -> list[PageRow]:
        """Take a page or its error; returns the rows that now count, in order."""
        if request.chain_number != self.number:
            return []
        self._in_flight.discard(request.number)
        self._ready[request.number] = outcome
        rows: list[PageRow] = []
        while self.open and (following := self._ready.pop(self.pages + 1, None)) is not None:
            if isinstance(following, BaseException):
                self.error = following
            elif (row := self._accept(following)) is not None:
                rows.append(row)
        return rows

    def check_overlap(self, request: PageRequest, page: Page, policy: str) -> bool:
        """Compare the re-read page with the committed one; True if the chain starts again."""
        if request.chain_number != self.number or self.overlap is None:
            return False
        self._in_flight.discard(0)
        same = checksum_of(encode_records(page.records)) == self.overlap.checksum
        self.overlap = None
        if same or policy == "accept":
            return False
        if policy == "fail":
            self.error = SourceChangedError(
                f"partition {self.work.key}: page {self.pages} reads differently than when it was committed;"
                " set on_source_change to restart (reads this partition again) or accept"
            )
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Open a new chain from the first page; rows of the older one no longer count."""
        self.number += 1
        self.restarts += 1
        self.pages = self.records = 0
        self.token = None
        self.overlap = None
        self._in_flight.clear()
        self._ready.clear()
        self._ends = EmptyPageGuard(self._page_size, resumed=False)
        self._seen = array("Q")
        self._seen_set = set()

    def progress(self) -> PartitionProgress:
        """Where the chain stands, as far as its rows were delivered."""
        return PartitionProgress(
            ordinal=self.work.ordinal,
            chain=self.number,
            pages=self.pages,
            token=encode_token(self.token),
            complete=self.complete,
            records=self.records,
            seen=self._seen.tobytes(),
            restarts=self.restarts,
            checked=self.overlap is None,
            error=self.error,
            overran=self.overran,
            asked=self.asked,
        )

    def _claim_number(self, number: int, token: Any) -> PageRequest | None:
        if number in self._in_flight:
            return None
        self._in_flight.add(number)
        return PageRequest(self, self.number, number, token)

    def _window(self, window: int) -> int:
        """How far ahead one may ask: what the API told is exact, else no further than was read already."""
        if self._token_at is None or not self.pages or self.asked or self._token_at(self.pages) != self.token:
            return 1
        if self.total is not None:
            return min(window, self.total - self.pages)
        return min(window, self.pages)

    def _accept(self, fetched: FetchedPage) -> PageRow | None:
        row = fetched.row
        if row.token_in != encode_token(self.token):
            # It was asked for ahead of its turn, and the page before names another token.
            return None
        if self._ends.doubts(fetched.page):
            return None
        if (repeated := self._repeated(row)) is not None:
            self._repeats(repeated, row)
            return None
        self.pages = row.page
        self.records += row.record_count
        self.delivered += 1
        self.complete = row.complete
        self.token = decode_token(row.token_out)
        self.total = fetched.page.total_pages if fetched.page.total_pages is not None else self.total
        return row

    def _repeats(self, what: str, row: PageRow) -> None:
        """One wrong answer may have led in a circle, and may have been kept: so once an attempt, start again."""
        if not self.restarts:
            self.restart()
            return
        self.error = RepeatedPageError(
            f"{what} came twice in one chain, so it would never end",
            request=row.request,
            partition=self.work.key,
            page=row.page,
        )

    def _repeated(self, row: PageRow) -> str | None:
        marks = _row_marks(
            page=row.page,
            token_in=row.token_in,
            token_out=row.token_out,
            record_count=0 if self._accept_repeats else row.record_count,
            checksum=row.checksum,
        )
        for mark, name in marks:
            if mark in self._seen_set:
                return name
        for mark, _ in marks:
            self._seen_set.add(mark)
            self._seen.append(mark)
        return None


_FULL_BYTES = 32 * 1024 * 1024


class Scheduler:
    """Hands out page requests to threads and collects what counts; thread-safe.

    :param window: pages of one chain that may be asked for at once
    :param max_bytes: bytes of records after which no new page is handed out
    :ivar full: set while so many bytes wait that they should be flushed before their time
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
        self._closing = self._frozen = False
        self._ready: list[PageRow] = []
        self._ready_bytes = 0
        self._waiting = 0
        self.full = threading.Event()
        self.figures = TaskFigures()

    def next_request(self, last: Chain | None) -> PageRequest | None:
        """The next page for a thread that read ``last``; blocks while others may yet open work; None at the end."""
        with self._changed:
            while not self._closing:
                if (request := self._claim(last)) is not None:
                    return request
                if not self._fresh and not any(chain.open for chain in self._running):
                    return None
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1
            return None

    def deliver(self, request: PageRequest, fetched: FetchedPage) -> None:
        """A page arrived."""
        with self._changed:
            self._take(request, fetched)

    def overlap(self, request: PageRequest, page: Page) -> None:
        """The page of an overlap check arrived."""
        with self._changed:
            if self._frozen:
                return
            pages = request.chain.pages
            restarted = request.chain.check_overlap(request, page, self._policy)
            self.figures += TaskFigures(overlap_checks=1, refetched=pages if restarted else 0)
            self._changed.notify_all()

    def fail(self, request: PageRequest, error: BaseException) -> None:
        """A page can't be had; an expired token starts its chain again, all else ends the partition."""
        chain = request.chain
        with self._changed:
            if self._frozen or request.chain_number != chain.number:
                return
            expired = isinstance(error, TokenExpiredError) and (request.number != 1 or request.token is not None)
            if expired and chain.restarts < _MAX_RESTARTS and request.number <= chain.pages + 1:
                self.figures += TaskFigures(refetched=chain.pages)
                chain.restart()
            elif expired and request.number > chain.pages + 1:
                # Ahead of its turn: it is asked for again in its turn, and only then starts the chain again.
                chain.release(request)
            elif request.number == 0:
                chain.error = self._told(error, chain, chain.pages)
            else:
                chain.deliver(request, self._told(error, chain, request.number))
            self._changed.notify_all()

    def release(self, request: PageRequest, *, overran: bool = False) -> None:
        """The reader was interrupted; the page counts as never asked for.

        :param overran: it waited to repeat a request: the round can't wait for that, and must not begin it anew
        """
        with self._changed:
            request.chain.release(request)
            request.chain.waiting |= overran
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out nothing more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    @property
    def closing(self) -> bool:
        """Whether the round is ending."""
        return self._closing

    def take_ready(self) -> list[PageRow]:
        """Rows that count and were not taken yet."""
        with self._changed:
            rows, self._ready, self._ready_bytes = self._ready, [], 0
            self.full.clear()
        return rows

    @property
    def waiting(self) -> int:
        """Rows that count and were not taken yet."""
        return len(self._ready)

    @property
    def taken(self) -> int:
        """Rows that count, so far."""
        return self.figures.pages

    def load(self) -> tuple[int, int]:
        """Partitions that no thread has begun, and threads without work."""
        with self._changed:
            return len(self._fresh), self._waiting

    def progress(self) -> Sequence[PartitionProgress]:
        """Where every partition stands; from now on nothing that arrives counts, so it stays true."""
        with self._changed:
            self._closing = self._frozen = True
            for chain in self._all:
                chain.overran = chain.open and (chain.busy or chain.waiting)
            return [chain.progress() for chain in self._all if chain.number != chain.work.chain or _moved(chain)]

    def _claim(self, last: Chain | None) -> PageRequest | None:
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

    def _told(self, error: BaseException, chain: Chain, number: int) -> BaseException:
        """The error with its place, fit to travel to the driver and into a log."""
        told = portable_error(error, self._secrets)
        if isinstance(told, SourceError) and told.partition is None:
            told.partition, told.page = chain.work.key, number
        return told

    def _take(self, request: PageRequest, fetched: FetchedPage) -> None:
        chain = request.chain
        before, pages = chain.number, chain.pages
        rows = [] if self._frozen else chain.deliver(request, fetched)
        if chain.number != before:
            # Its pages came in a circle, and it starts again: all that it had is read twice.
            self.figures += TaskFigures(refetched=pages + len(rows))
        if rows:
            figures = _figures(rows)
            self._ready.extend(rows)
            self._ready_bytes += figures.bytes
            self.figures += figures
            self._closing |= self.figures.bytes >= self._max_bytes
            if self._ready_bytes >= _FULL_BYTES:
                self.full.set()
        if self._waiting or self._closing:
            self._changed.notify_all()


def _figures(rows: Sequence[PageRow]) -> TaskFigures:
    return TaskFigures(
        pages=len(rows),
        records=sum(row.record_count for row in rows),
        bytes=sum(len(row.records or b"") for row in rows),
        skipped=sum(row.skipped is not None for row in rows),
    )


def _moved(chain: Chain) -> bool:
    """Whether the driver has to hear of this partition."""
    checked = chain.work.overlap is not None and chain.overlap is None
    return bool(chain.delivered or chain.error or chain.overran or chain.asked or checked)
