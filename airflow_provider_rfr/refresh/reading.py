"""The threads of a task: each asks for a page, hands it in, and asks for the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_rfr.exceptions import BackoffInterrupted, ReadInterrupted
from airflow_provider_rfr.refresh.budget import BEAT_SECONDS, Beat, Budget, BudgetLimiter
from airflow_provider_rfr.refresh.chains import Chain, FetchedPage, PageRequest
from airflow_provider_rfr.refresh.rows import page_row
from airflow_provider_rfr.refresh.scheduler import Scheduler
from airflow_provider_rfr.refresh.work import RoundTask
from airflow_provider_rfr.streams.context import ReadContext
from airflow_provider_rfr.streams.paged import PagedStream

UNWIND_SECONDS = 0.5


def read_pages(
    task: RoundTask,
    stream: PagedStream,
    scheduler: Scheduler,
    budget: Budget,
    closing: threading.Event,
    flush: Callable[[], None],
) -> None:
    """Read until nothing is left, the time is up, or somebody closes the round.

    A page on its way at the end gets ``linger`` seconds; then its reader is told to stop, and a reader that hangs in
    the network is left behind: what it may still bring no longer counts.

    :param flush: called after each page; writes what waits, if it is time
    """
    stop = threading.Event()
    limiter = BudgetLimiter(budget, stop)
    context = ReadContext(limiter=limiter, stop=stop)
    stream.bind(context)
    reader = _Reader(task, stream, scheduler, context, flush)
    threads = [
        threading.Thread(target=reader.run, name=f"rfr-read-{number}", daemon=True)
        for number in range(task.limits.threads)
    ]
    for thread in threads:
        thread.start()
    _watch(task, scheduler, _Command(budget, limiter, closing, stop), threads)
    stop.set()
    _join(threads, time.monotonic() + UNWIND_SECONDS)


@dataclass(frozen=True, slots=True)
class _Command:
    """Who may end a task's reading: the driver, its own process, and a sleep in which the refresh was lost."""

    budget: Budget
    limiter: BudgetLimiter
    closing: threading.Event
    stop: threading.Event

    def says_over(self, beat: Beat) -> bool:
        self.limiter.look()
        return self.stop.is_set() or self.budget.beat(beat) or self.closing.is_set()


def _watch(task: RoundTask, scheduler: Scheduler, command: _Command, threads: list[threading.Thread]) -> None:
    began = time.monotonic()
    seconds = task.limits.seconds if task.limits.seconds is not None else float("inf")
    while not scheduler.closing:
        if _join(threads, time.monotonic() + BEAT_SECONDS, command.closing):
            return
        queued, idle = scheduler.load()
        if command.says_over(Beat(task.label.task, queued, idle)) or time.monotonic() - began >= seconds:
            scheduler.close()
    end = time.monotonic() + task.limits.linger
    while not _join(threads, min(end, time.monotonic() + BEAT_SECONDS)) and time.monotonic() < end:
        command.says_over(Beat(task.label.task, 0, 0))


def _join(threads: list[threading.Thread], until: float, closing: threading.Event | None = None) -> bool:
    """Whether all threads have ended by then; returns early when the round is closed."""
    for thread in threads:
        while thread.is_alive() and (rest := until - time.monotonic()) > 0:
            if closing is not None and closing.is_set():
                return False
            thread.join(min(rest, 0.05))
    return not any(thread.is_alive() for thread in threads)


@dataclass(frozen=True, slots=True)
class _Reader:
    task: RoundTask
    stream: PagedStream
    scheduler: Scheduler
    context: ReadContext
    flush: Callable[[], None]

    def run(self) -> None:
        last: Chain | None = None
        while (request := self.scheduler.next_request(last)) is not None:
            last = request.chain
            try:
                self._read(request)
            except BackoffInterrupted:
                self.scheduler.release(request, overran=True)
            except ReadInterrupted:
                self.scheduler.release(request)
                if self.context.stop.is_set():
                    self.scheduler.close()
            except Exception as error:  # noqa: BLE001 - told by name when the attempt ends
                self.scheduler.fail(request, error)

    def _read(self, request: PageRequest) -> None:
        if not self.stream.paces_itself:
            self.context.limiter.acquire()
        work = request.chain.work
        page = self.stream.read_page(work.slice, request.token)
        if request.number == 0:
            self.scheduler.overlap(request, page)
            return
        label = self.task.label
        row = page_row(
            page,
            generation=label.generation,
            epoch=label.epoch,
            ordinal=work.ordinal,
            key=work.key,
            chain=request.chain_number,
            number=request.number,
            token=request.token,
        )
        self.scheduler.deliver(request, FetchedPage(row, page))
        self.flush()
