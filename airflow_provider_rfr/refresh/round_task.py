"""One task of a round: reads pages of its partitions on threads, flushes them, and reports where each partition ends.

The same function runs in an executor's Python worker, and in the driver for the prefetch and the slow-page lane.

A task flushes when the waiting pages are a share of the attempt's pages, or when a share of its reading time has
passed. So a SIGKILL costs a share of the work and never a number of minutes, and the number of files grows with the
logarithm of the time. If the store is slower than the API, readers wait a little. On an object store each file costs
money and some round trips, so there a file has at least the pages of a second, or a megabyte of records.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_rfr.exceptions import BackoffInterrupted, ReadInterrupted
from airflow_provider_rfr.lake.data_files import StoredFile
from airflow_provider_rfr.lake.files import FileStore, is_local
from airflow_provider_rfr.numbers import json_text
from airflow_provider_rfr.refresh.budget import HEARTBEAT_SECONDS, Budget, BudgetAddress, BudgetLimiter, Heartbeat
from airflow_provider_rfr.refresh.chains import (
    Chain,
    ChainState,
    FetchedPage,
    PartitionProgress,
    PartitionWork,
    Scheduler,
)
from airflow_provider_rfr.refresh.cluster import is_transient, task_attempt, task_error
from airflow_provider_rfr.refresh.config import secret_values
from airflow_provider_rfr.refresh.page_rows import (
    FlushLabel,
    FlushWriter,
    PageFile,
    SeenColumns,
    TaskFigures,
    check_key_of_page,
    page_row,
    seen_marks,
)
from airflow_provider_rfr.refresh.partitions import choose_adopted, retried_by_writers, uncommitted_files
from airflow_provider_rfr.streams.core import NextPage, ReadContext
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import PagedStream, as_paged
from airflow_provider_rfr.streams.repeats import RetriedErrors
from airflow_provider_rfr.streams.tokens import OwnTokens, TokenOwner

_UNWIND_SECONDS = 0.5
_WAIT_SECONDS = 0.05
_SHARE_OF_SECONDS = 0.02
_SHARE_OF_PAGES = 0.02
_YOUNG_SHARE_OF_PAGES = 0.005
_YOUNG_PAGES = 5_000
_SHORTEST_SECONDS = 0.01
_OBJECT_SECONDS = 1.0
_OBJECT_BYTES = 1024 * 1024
_MAX_SOURCES_KEPT = 64
_idle_streams: dict[str, list[PagedStream]] = {}


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """The limits at which a task stops requesting pages.

    :ivar seconds: seconds of reading; None for no limit
    :ivar bytes: bytes of records
    :ivar read_seconds: seconds that this attempt had read before
    :ivar read_pages: this task's share of the pages that this attempt had read before
    :ivar grace: seconds that a page in flight gets after the round's end
    """

    threads: int
    seconds: float | None
    bytes: int
    read_seconds: float = 0.0
    read_pages: float = 0.0
    grace: float = 2.0


@dataclass(frozen=True, slots=True)
class RoundTask:
    """The input of a task; picklable. ``source`` holds secrets, so it is left out of ``repr``.

    :ivar infers: whether columns are inferred from the records
    """

    source: Mapping[str, Any] = field(repr=False)
    stream: str
    store: FileStore
    folder: str
    label: FlushLabel
    limits: RoundLimits
    partitions: tuple[PartitionWork, ...]
    on_source_change: str
    on_repeated_page: str
    infers: bool


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task; the driver commits its ``files``.

    :ivar error: a permanent error that ended the task; None if it succeeded
    :ivar retried: errors that were retried, by kind
    """

    files: tuple[PageFile, ...] = ()
    progress: tuple[PartitionProgress, ...] = ()
    figures: TaskFigures = field(default_factory=TaskFigures)
    error: BaseException | None = None
    retried: Mapping[str, int] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the pages of all files as one table: that takes a hundredth of the time of a table for each file."""
        pages = pa.concat_tables(file.pages for file in self.files).combine_chunks() if self.files else None
        files = [(file.stored, file.pages.num_rows, file.seen) for file in self.files]
        return _unpickled, (files, pages, self.progress, self.figures, self.error, self.retried)


def _unpickled(files: Iterable[tuple[StoredFile, int, SeenColumns | None]], pages: pa.Table, *rest: Any) -> TaskResult:
    """Return a task's result whose files have slices of one table of pages."""
    page_files, start = [], 0
    for stored, rows, seen in files:
        page_files.append(PageFile(stored, pages.slice(start, rows), seen))
        start += rows
    return TaskResult(tuple(page_files), *rest)


def run_remote_tasks(address: BudgetAddress, tasks: Sequence[RoundTask]) -> list[TaskResult]:
    """Run tasks of several streams side by side in an executor, with the driver's budget.

    A permanent error is part of the result, so that it ends no other stream. A transient one is raised, so that Spark
    repeats all of the tasks.
    """
    attempt = task_attempt()
    with ThreadPoolExecutor(len(tasks), thread_name_prefix="rfr-task") as pool:
        return list(pool.map(partial(_run_remote_task, address, attempt), tasks))


def _run_remote_task(address: BudgetAddress, attempt: int, task: RoundTask) -> TaskResult:
    try:
        budget = address.connect(task.stream)
        try:
            return run_round_task(replace(task, label=replace(task.label, attempt=attempt)), budget, tokens=budget)
        finally:
            budget.close()
    except Exception as error:
        if is_transient(error):
            raise
        return TaskResult(error=task_error(error))


def run_round_task(
    task: RoundTask, budget: Budget, closing: threading.Event | None = None, *, tokens: TokenOwner | None = None
) -> TaskResult:
    """Read until the partitions are complete, the limits are reached, or the round is closed.

    :param closing: set by this process to end the task
    :param tokens: source of access tokens; by default this process obtains them, which is then the driver
    """
    task, adopted = adopt_predecessor(task)
    with _borrowed_stream(task) as stream:
        retried = RetriedErrors()
        writer = FlushWriter(task.store, task.folder, task.label, list(adopted.files), task.infers, retried)
        token_at = stream.token_at if stream.addressable else None
        chains = [
            Chain(
                work,
                token_at,
                on_repeated_page=task.on_repeated_page,
                page_size=stream.page_size,
                max_empty_pages=stream.max_empty_pages,
            )
            for work in task.partitions
        ]
        scheduler = Scheduler(
            chains,
            window=task.limits.threads,
            max_bytes=task.limits.bytes,
            on_source_change=task.on_source_change,
            secrets=secret_values(task.source.get("secrets")),
        )
        flusher = Flusher(writer, scheduler, read_seconds=task.limits.read_seconds, read_pages=task.limits.read_pages)
        flusher.start()
        reading = _Reading(task, stream, scheduler, flusher, budget, closing or threading.Event())
        reading.run(tokens or OwnTokens(), retried)
        # Frozen before the last flush, so that no file gets a page that a reader which was left behind delivers late.
        progress = scheduler.progress()
        flusher.finish()
    # This attempt's progress comes last and wins: it starts where the adopted files end.
    by_ordinal = {partition.ordinal: partition for partition in (*adopted.progress, *progress)}
    return TaskResult(
        tuple(writer.files),
        tuple(by_ordinal.values()),
        scheduler.figures + adopted.figures,
        retried=Counter(retried.counts()) + Counter(adopted.retried),
    )


def adopt_predecessor(task: RoundTask) -> tuple[RoundTask, TaskResult]:
    """Adopt the files of earlier attempts at the same task.

    Return the rest of the task, and the result of the adopted files, which is empty for a first attempt.
    """
    own = task.label
    if own.attempt == 0:
        return task, TaskResult()
    # Nothing of a round is committed while its tasks run. Only files of earlier attempts count: with speculative
    # execution a copy of this task may be writing at the same moment.
    files = [
        file
        for file in uncommitted_files(task.store, task.folder, ())
        if file.task == (own.epoch, own.round, own.task) and file.label.attempt < own.attempt
    ]
    works = {work.ordinal: work for work in task.partitions}
    adopted, moved = choose_adopted(task.store, files, {ordinal: work.cursor for ordinal, work in works.items()})
    if not adopted:
        return task, TaskResult()
    rows = [row for file in adopted for row in file.pages.to_pylist()]
    progress = []
    for ordinal, cursor in moved.items():
        work = works[ordinal]
        restarts = cursor.chain - work.cursor.chain
        on_chain = [row for row in rows if row["partition_ordinal"] == ordinal and row["chain"] == cursor.chain]
        seen = (b"" if restarts else work.state.seen) + seen_marks(on_chain)
        # Without an overlap check: no page of a chain is requested before its check is done, so the predecessor has
        # done it.
        state = ChainState(seen, restarts=work.state.restarts + restarts)
        works[ordinal] = replace(work, cursor=cursor, state=state)
        progress.append(PartitionProgress(ordinal, cursor, state))
    last = next(file for file in files if file.location == adopted[-1].location)
    # This attempt's first file names the last adopted one, so that after a kill of the driver the sequence has no gap.
    label = replace(own, sequence=last.label.sequence + 1, previous=last.name)
    left = tuple(work for work in works.values() if not work.cursor.complete)
    figures = TaskFigures(pages=len(rows), records=sum(row["record_count"] for row in rows))
    retried = retried_by_writers(files, adopted)
    return replace(task, label=label, partitions=left), TaskResult(
        tuple(adopted), tuple(progress), figures, retried=retried
    )


class Flusher(threading.Thread):
    """A thread that flushes pages whenever a flush is due, until :meth:`finish`.

    :param read_seconds: seconds that the attempt had read before this task began
    :param read_pages: this task's share of the pages that the attempt had read before
    """

    # Most flushes are done by the reading threads, between two pages: this thread would first have to get the GIL from
    # all of them, which takes longer than the flush. It is for times when no page arrives.

    def __init__(self, writer: FlushWriter, pages: Scheduler, *, read_seconds: float, read_pages: float) -> None:
        super().__init__(name="rfr-flush", daemon=True)
        self._writer = writer
        self._pages = pages
        self._seconds_before = read_seconds
        self._pages_before = read_pages
        self._began = time.monotonic()
        self._last = self._began
        self._is_local = is_local(writer.folder)
        self._in_write = 0
        self._over = False
        self._busy = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        while not self._over:
            rest = self._last + self._interval() - time.monotonic()
            if rest > 0 and not self._pages.full.wait(min(rest, 0.1)):
                continue
            self.flush_if_due()
            # A reader may be flushing: look again soon, but leave it the GIL.
            time.sleep(0.002)

    def flush_if_due(self) -> None:
        """Flush if it is due and no other thread is flushing; if too many pages wait, wait a little for that thread.

        An error ends the reading, since pages read from then on would be lost; :meth:`finish` raises it.
        """
        if not self._due() or self._over or self.error is not None:
            return
        at_risk = self._pages.waiting + self._in_write > 2 * self._most_waiting()
        if not self._busy.acquire(timeout=_WAIT_SECONDS if at_risk else 0):
            return
        try:
            if self._due():
                self._flush()
        except BaseException as error:  # noqa: BLE001 - raised by finish()
            self.error = error
            self._pages.close()
        finally:
            self._busy.release()

    def finish(self) -> None:
        """Stop, write the rest, and raise the error of an earlier flush, if there was one."""
        self._over = True
        self.join()
        with self._busy:
            if self.error is not None:
                raise self.error
            self._flush()

    def _interval(self) -> float:
        """Return the seconds after which a flush is due, however few pages wait."""
        share = _SHARE_OF_SECONDS * (self._seconds_before + time.monotonic() - self._began)
        return max(share, _SHORTEST_SECONDS if self._is_local else _OBJECT_SECONDS)

    def _most_waiting(self) -> float:
        """Return how many pages may wait for a flush: near 2 % of those read, half a percent of the first thousands.

        A young attempt gets the smaller share because its pages in flight and its overlap checks already take the
        larger part of what a kill may cost.
        """
        read = self._pages_before + self._pages.figures.pages
        return max(_YOUNG_SHARE_OF_PAGES * read, _SHARE_OF_PAGES * (read - _YOUNG_PAGES))

    def _due(self) -> bool:
        waiting = self._pages.waiting
        if not waiting:
            return False
        seconds = time.monotonic() - self._last
        if self._pages.full.is_set() or seconds > self._interval():
            return True
        if self._is_local:
            # A file costs some milliseconds, and a kill within this time loses few pages.
            is_worth_it = seconds > _SHORTEST_SECONDS
        else:
            is_worth_it = seconds > _OBJECT_SECONDS or self._pages.waiting_bytes >= _OBJECT_BYTES
        return is_worth_it and waiting >= self._most_waiting()

    def _flush(self) -> None:
        rows = self._pages.take_ready()
        self._in_write = len(rows)
        self._writer.write(rows)
        self._in_write = 0
        self._last = time.monotonic()


class _Reading:
    """The threads of one task that read pages, and the conditions that end them."""

    def __init__(
        self,
        task: RoundTask,
        stream: PagedStream,
        scheduler: Scheduler,
        flusher: Flusher,
        budget: Budget,
        closing: threading.Event,
    ) -> None:
        self._task = task
        self._stream = stream
        self._scheduler = scheduler
        self._flusher = flusher
        self._budget = budget
        self._closing = closing
        self._stop = threading.Event()
        self._limiter = BudgetLimiter(budget, self._stop)
        # Daemons, because a reader that hangs in the network must not keep the process from ending.
        self._threads = [
            threading.Thread(target=self._read_pages, name=f"rfr-read-{number}", daemon=True)
            for number in range(task.limits.threads)
        ]

    def run(self, tokens: TokenOwner, retried: RetriedErrors) -> None:
        """Read until nothing is left, the time is up, or the round is closed.

        A page in flight at the end gets ``grace`` seconds; then its reader is stopped, and a reader that hangs in the
        network is left behind: what it may still deliver does not count.
        """
        limits, task = self._task.limits, (self._task.stream, self._task.label.task)
        self._stream.bind(ReadContext(self._limiter, self._stop, tokens, retried=retried))
        for thread in self._threads:
            thread.start()
        until = float("inf") if limits.seconds is None else time.monotonic() + limits.seconds
        # The first heartbeat comes at once: without one, the driver would not notice the end of a short task.
        while not self._scheduler.closing:
            if self._is_over(Heartbeat(*task, *self._scheduler.load())) or time.monotonic() >= until:
                self._scheduler.close()
            elif self._join(time.monotonic() + HEARTBEAT_SECONDS, or_closed=True):
                break
        until = time.monotonic() + limits.grace
        while not self._join(min(until, time.monotonic() + HEARTBEAT_SECONDS)) and time.monotonic() < until:
            # Heartbeats go on, because their answers bring the penalties that requests in flight have to keep.
            self._is_over(Heartbeat(*task, 0, 0))
        self._stop.set()
        self._join(time.monotonic() + _UNWIND_SECONDS)

    def _read_pages(self) -> None:
        last: Chain | None = None
        label = self._task.label
        while (request := self._scheduler.next_request(last)) is not None:
            last = request.chain
            try:
                if not self._stream.paces_itself:
                    self._limiter.acquire()
                page = self._stream.read_page(last.work.slice, request.token)
                if request.number == 0:
                    self._scheduler.overlap(request, page)
                    continue
                # The primary key is checked on a first page that another page follows. On a single page the check would
                # save no request; the publish checks the columns of all partitions.
                if request.number == 1 and isinstance(page.next, NextPage):
                    check_key_of_page(self._stream.primary_key, page.records)
                row = page_row(
                    page,
                    generation=label.generation,
                    epoch=label.epoch,
                    ordinal=last.work.ordinal,
                    key=last.work.key,
                    chain=request.chain_number,
                    number=request.number,
                    token=request.token,
                )
                self._scheduler.deliver(request, FetchedPage(row, page))
                self._flusher.flush_if_due()
            except BackoffInterrupted:
                self._scheduler.release(request, backed_off=True)
            except ReadInterrupted:
                self._scheduler.release(request)
                # Otherwise the released page would be claimed again at once, and interrupted again, without an end.
                if self._stop.is_set():
                    self._scheduler.close()
            except Exception as error:  # noqa: BLE001 - the attempt reports it with its partition at its end
                self._scheduler.fail(request, error)

    def _is_over(self, heartbeat: Heartbeat) -> bool:
        """Send a heartbeat; tell whether the reading has to end.

        The driver or this process ends it, or another attempt took over while this process slept.
        """
        self._limiter.look()
        return self._stop.is_set() or self._budget.heartbeat(heartbeat) or self._closing.is_set()

    def _join(self, until: float, *, or_closed: bool = False) -> bool:
        """Wait for all threads until then (monotonic); return whether they have ended.

        With ``or_closed``, return early when this process ends the task.
        """
        for thread in self._threads:
            while thread.is_alive() and (rest := until - time.monotonic()) > 0:
                if or_closed and self._closing.is_set():
                    return False
                thread.join(min(rest, 0.05))
        return not any(thread.is_alive() for thread in self._threads)


@contextmanager
def _borrowed_stream(task: RoundTask) -> Iterator[PagedStream]:
    """Borrow the task's stream, which the process keeps for the next round.

    A stream is bound to the task that reads it, so tasks side by side get streams of their own: a second one would
    replace the first one's stop signal.
    """
    key = json_text((task.source, task.stream))
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
