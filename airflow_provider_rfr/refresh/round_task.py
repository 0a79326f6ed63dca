"""One task of a round: reads pages of its partitions on threads, flushes them, and reports where each stands.

The same function runs in an executor's Python worker and, while Spark starts or for a partition that overran a round,
in the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from airflow_provider_rfr.exceptions import BackoffInterrupted, ReadInterrupted
from airflow_provider_rfr.lake.ledger_columns import ledger_arrow_schema
from airflow_provider_rfr.refresh.adoption import adopt_predecessor
from airflow_provider_rfr.refresh.budget import BEAT_SECONDS, Beat, Budget, BudgetLimiter
from airflow_provider_rfr.refresh.chains import Chain, FetchedPage, PageRequest, Scheduler
from airflow_provider_rfr.refresh.errors import secret_values
from airflow_provider_rfr.refresh.flush import Flusher, FlushWriter
from airflow_provider_rfr.refresh.messages import RoundTask, TaskResult
from airflow_provider_rfr.refresh.pages import page_row
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import PagedStream, as_paged

_UNWIND_SECONDS = 0.5


def _read_pages(
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
    _join(threads, time.monotonic() + _UNWIND_SECONDS)


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


_MAX_SOURCES_KEPT = 8
_idle_streams: dict[bytes, list[PagedStream]] = {}


def run_round_task(task: RoundTask, budget: Budget, closing: threading.Event | None = None) -> TaskResult:
    """Read until the partitions are complete, the limits are reached, or somebody says it's time.

    :param closing: set by whoever wants the task to end
    """
    with _borrowed_stream(task) as stream:
        return _read_and_flush(task, stream, budget, closing or threading.Event())


def _read_and_flush(task: RoundTask, stream: PagedStream, budget: Budget, closing: threading.Event) -> TaskResult:
    left = adopt_predecessor(task)
    writer = FlushWriter(task.store, task.folder, ledger_arrow_schema(), left.label, list(left.files))
    token_at = stream.token_at if stream.addressable else None
    scheduler = Scheduler(
        [
            Chain(work, token_at, accept_repeats=task.accept_repeats, page_size=stream.page_size)
            for work in left.partitions
        ],
        window=task.limits.threads,
        max_bytes=task.limits.bytes,
        on_source_change=task.on_source_change,
        secrets=secret_values(task.source.get("secrets")),
    )
    flusher = Flusher(writer, scheduler, read_seconds=task.limits.read_seconds, read_pages=task.limits.read_pages)
    flusher.start()
    _read_pages(task, stream, scheduler, budget, closing, flusher.flush_if_due)
    progress = scheduler.progress()
    flusher.finish()
    return TaskResult(tuple(writer.files), left.merged(progress), scheduler.figures + left.figures)


@contextmanager
def _borrowed_stream(task: RoundTask) -> Iterator[PagedStream]:
    """The task's stream, kept by the process for the next round; tasks side by side must not share one.

    A stream is bound to the task that reads it: a second one would take its stop signal away.
    """
    key = orjson.dumps((task.source, task.stream), option=orjson.OPT_SORT_KEYS)
    try:
        stream = _idle_streams[key].pop()
    except (KeyError, IndexError):
        stream = as_paged(load_stream(task.source, task.stream))
    try:
        yield stream
    finally:
        if len(_idle_streams) > _MAX_SOURCES_KEPT:
            _idle_streams.clear()
        _idle_streams.setdefault(key, []).append(stream)
