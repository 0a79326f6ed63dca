"""Which page a task's threads ask for next.

A thread stays with its chain until the chain ends, so that few chains are open at once (each open addressable chain
costs one overlap check after a crash). Threads that would stand idle read addressable chains ahead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence

from airflow_provider_rfr.exceptions import SourceError, TokenExpiredError
from airflow_provider_rfr.refresh.chains import MAX_RESTARTS, Chain, FetchedPage, PageRequest
from airflow_provider_rfr.refresh.errors import portable_error
from airflow_provider_rfr.refresh.rows import PageRow
from airflow_provider_rfr.refresh.work import PartitionProgress, TaskFigures
from airflow_provider_rfr.streams.page import Page

FULL_BYTES = 32 * 1024 * 1024


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
            if expired and chain.restarts < MAX_RESTARTS and request.number <= chain.pages + 1:
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
            if self._ready_bytes >= FULL_BYTES:
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
