"""One partition's chain of pages inside a task: what may be asked for next, and what counts.

A chain is serial: the token of a page comes with the page before it. Where the stream can tell the token of any
position (page number, offset), further pages are asked for ahead of their turn, but they count in order, and only
if the page before names the very token that they were asked for with.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import RepeatedPageError, SourceChangedError
from airflow_provider_rfr.refresh.marks import row_marks
from airflow_provider_rfr.refresh.rows import PageRow, checksum_of, decode_token, encode_records, encode_token
from airflow_provider_rfr.refresh.work import OverlapCheck, PartitionProgress, PartitionWork
from airflow_provider_rfr.streams.page import Page
from airflow_provider_rfr.streams.paged_stream import EmptyPageGuard

MAX_RESTARTS = 3


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
        marks = row_marks(
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
