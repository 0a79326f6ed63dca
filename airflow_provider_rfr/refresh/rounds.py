"""Rounds: tasks read, the driver commits their files and plans the next tasks, until all partitions have ended.

The streams of an application share each round: one Spark job, whose threads are divided among them, and one ledger
commit for each stream at its end. So a stream that waits for its API leaves the cores to the others.

A round ends when its time or size is up, when a task has been idle for a second while another has partitions to share,
when a stream has been read to its end, when another stream or a publish waits for its turn, when new executors have
none of the work, or when the driver is asked to stop. A page that is in flight then gets two more seconds; after that
its partition moves to the stream's slow-page lane in the driver, so that no executor core waits for one slow answer.
Before the first round, the driver prefetches pages until Spark is up. It starts Spark only for more than a small load.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_provider_rfr.exceptions import SparkJobError
from airflow_provider_rfr.refresh.budget import (
    HEARTBEAT_SECONDS,
    BudgetServer,
    DriverBudget,
    Heartbeat,
    SleepClock,
    StreamBudget,
)
from airflow_provider_rfr.refresh.cluster import DRIVER_BYTES, Cluster
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import FlushLabel, TaskFigures
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.refresh.round_task import RoundLimits, RoundTask, TaskResult, run_remote_tasks, run_round_task
from airflow_provider_rfr.refresh.state import LedgerHeader

# Numbers that no task of a Spark round has, because the number in a file's label identifies its task.
_SLOW_PAGE_LANE = 1_000_000
_PREFETCH = 1_000_001
_MAX_PARTITIONS_A_TASK = 5_000
_SLOW_PAGE_THREADS = 32
# The next round waits for streams that are committing, so that they take part, but no longer than this: a catalog may
# hang.
_REJOIN_SECONDS = 2.0
_WAIT_SECONDS = 1.0
_LEAST_AT_ONCE = 4
# A load that is read within this time and DRIVER_BYTES of records needs no Spark.
_DRIVER_SECONDS = 1.5


class _PrefetchBudget(StreamBudget):
    """A budget that starts Spark when there is work for it, and ends the prefetch when Spark is ready.

    It also ends the prefetch when the ledger's credentials are old: Spark may wait for long until a cluster has room.

    If every partition has a reader when Spark is ready, the prefetch goes on for as long again: there is no partition
    that Spark could begin, and its first job takes a second of processor time from readers that may soon be done.

    :param rest: whether there are partitions that the prefetch was not given
    """

    def __init__(self, budget: DriverBudget, ledger: Ledger, cluster: Cluster, *, rest: bool) -> None:
        super().__init__(budget, ledger.is_ours)
        self._ledger = ledger
        self._cluster = cluster
        self._rest = rest
        self._began = time.monotonic()
        self._until: float | None = None

    def heartbeat(self, heartbeat: Heartbeat) -> bool:
        now = time.monotonic()
        if now - self._began > _DRIVER_SECONDS or heartbeat.bytes > DRIVER_BYTES:
            self._cluster.start()
        if self._ledger.needs_renewal:
            return True
        if not self._cluster.ready.is_set():
            return False
        if self._until is None:
            self._until = now + (now - self._began)
        return self._rest or heartbeat.queued > 0 or now >= self._until


class ReadingThreads:
    """A counter of the free reading threads of an application, which limits its requests in flight; thread-safe."""

    def __init__(self, count: int) -> None:
        self.count = self._free = count
        self._changed = threading.Condition()

    def take(self, wanted: int, given_up: Callable[[], bool]) -> int:
        """Take up to ``wanted`` threads; wait until one is free. Return how many; 0 if ``given_up`` is true first."""
        with self._changed:
            while not self._free:
                if given_up():
                    return 0
                self._changed.wait(HEARTBEAT_SECONDS)
            taken = min(wanted, self._free)
            self._free -= taken
            return taken

    def give_back(self, count: int) -> None:
        """Give back threads that were taken."""
        with self._changed:
            self._free += count
            self._changed.notify_all()


@dataclass
class StreamReader:
    """A reader of one generation of a stream, from its present position to its end.

    :param options: with the stream's own limits
    :param addressable: whether threads beyond the number of partitions have something to read
    :param infers: whether columns are inferred from the records
    :param report: called after each commit
    :ivar figures: of this attempt so far
    """

    ledger: Ledger
    book: PartitionBook
    source: dict[str, Any]
    stream: str
    options: RefreshOptions
    addressable: bool
    infers: bool
    report: Callable[[LedgerHeader], None]
    figures: TaskFigures = field(default_factory=TaskFigures)

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._round = 0
        self._lane: Future[TaskResult] | None = None
        self._lane_ordinals: frozenset[int] = frozenset()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rfr-slow-pages")

    def read_all(self, rounds: Rounds) -> None:
        """Read until nothing is left that this attempt can read, or until it has to stop."""
        try:
            with rounds.shared_by(self):
                while self._prefetch(rounds):
                    self.ledger.renew_credentials()
                while not rounds.stopping.is_set() and (self._lane is not None or self.book.open_ordinals()):
                    self._read_round(rounds)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def threads_wanted(self) -> int:
        """Return how many threads have something to read in the next round."""
        count = len(self._ordinals())
        return self.options.concurrency if self.addressable and count else min(count, self.options.concurrency)

    def tasks(self, threads: int, count: int, threads_of_all: int) -> list[RoundTask]:
        """Divide the open partitions among at most ``count`` tasks.

        :param threads: of this stream in the round, at least one
        :param threads_of_all: of all streams in the round
        """
        ordinals = self._ordinals()
        count = min(count, threads, len(ordinals))
        return [
            self._task(
                index,
                ordinals[index::count][:_MAX_PARTITIONS_A_TASK],
                threads=len(range(index, threads, count)),
                share=threads / count / threads_of_all,
                tasks=count,
                seconds=self.options.round_seconds,
            )
            for index in range(count)
        ]

    def _ordinals(self) -> list[int]:
        return [ordinal for ordinal in self.book.open_ordinals() if ordinal not in self._lane_ordinals]

    def _prefetch(self, rounds: Rounds) -> bool:
        """Read in the driver while Spark starts; return True if old credentials ended it, so that it has to go on."""
        ordinals, ready = self.book.open_ordinals(), rounds.cluster.ready
        if self.ledger.held.bytes > DRIVER_BYTES:
            # An earlier attempt read so much that Spark has to publish it.
            rounds.cluster.start()
        if not (self.options.head_start and ordinals) or ready.is_set() or rounds.stopping.is_set():
            return False
        if not (threads := rounds.threads.take(self.threads_wanted(), ready.is_set)):
            return False
        try:
            task = self._task(_PREFETCH, ordinals[:_MAX_PARTITIONS_A_TASK], threads=threads)
            rest = len(ordinals) > _MAX_PARTITIONS_A_TASK
            budget = _PrefetchBudget(rounds.budget, self.ledger, rounds.cluster, rest=rest)
            result = run_round_task(task, budget, rounds.stopping)
        finally:
            rounds.threads.give_back(threads)
        self._commit([result])
        return self.ledger.needs_renewal

    def _read_round(self, rounds: Rounds) -> None:
        self._round += 1
        # Tasks get the store with its present credentials, and can't renew them while they write.
        self.ledger.renew_credentials()
        if self._lane is not None and self._lane.done():
            # Committed before tasks are planned, or they would begin where the lane began.
            self._commit([self._lane_result()])
        overran = sorted(n for n in self.book.overran if n not in self.book.failed)[:_SLOW_PAGE_THREADS]
        if self._lane is None and overran:
            # The lane requests pages only until the first heartbeat, and waits for them as long as they take. Later
            # pages are read in rounds again.
            task = self._task(
                _SLOW_PAGE_LANE, overran, threads=len(overran), seconds=HEARTBEAT_SECONDS, grace=float("inf")
            )
            self._lane_ordinals = frozenset(overran)
            budget = StreamBudget(rounds.budget, self.ledger.is_ours)
            self._lane = self._pool.submit(run_round_task, task, budget)
        if wanted := self.threads_wanted():
            self._commit(rounds.take_part(self, wanted))
        elif self._lane is not None:
            self._commit([self._lane_result()])

    def _lane_result(self) -> TaskResult:
        """Wait for the slow-page lane's end, and free the lane."""
        assert self._lane is not None
        result = self._lane.result()
        self._lane, self._lane_ordinals = None, frozenset()
        return result

    def _commit(self, results: Sequence[TaskResult]) -> None:
        for result in results:
            self.ledger.note_retried(result.retried)
        if (error := next((result.error for result in results if result.error is not None), None)) is not None:
            raise error
        figures = sum((result.figures for result in results), TaskFigures())
        # The book is ahead of the ledger until the commit below. If that fails, the attempt ends, and the next one
        # makes its book from the ledger.
        for result in results:
            for progress in result.progress:
                self.book.apply(progress)
        files = [file for result in results for file in result.files]
        self.figures += figures
        if not files and not figures.overlap_checks:
            # There is nothing that the next attempt could use: it meets failures and empty answers again.
            return
        header = self.ledger.held
        header = self.ledger.commit(
            files,
            rounds=header.rounds + 1,
            pages=header.pages + figures.pages,
            records=self.book.records,
            partitions_done=self.book.done,
            pages_refetched=header.pages_refetched + figures.refetched,
            overlap_checks=header.overlap_checks + figures.overlap_checks,
        )
        self.report(header)

    def _task(
        self,
        number: int,
        ordinals: Sequence[int],
        *,
        threads: int,
        share: float = 1.0,
        tasks: int = 1,
        seconds: float | None = None,
        grace: float = 2.0,
    ) -> RoundTask:
        header = self.ledger.held
        limits = RoundLimits(
            threads=threads,
            seconds=seconds,
            bytes=max(1, int(self.options.round_bytes * share)),
            read_seconds=time.monotonic() - self._began,
            read_pages=self.figures.pages / tasks,
            grace=grace,
        )
        return RoundTask(
            source=self.source,
            stream=self.stream,
            store=self.ledger.store,
            folder=self.ledger.folder,
            label=FlushLabel(header.generation, header.epoch, self._round, number, 0, 0),
            limits=limits,
            partitions=tuple(self.book.work(ordinal) for ordinal in ordinals),
            on_source_change=self.options.on_source_change,
            on_repeated_page=self.options.on_repeated_page,
            infers=self.infers,
        )


def divided(wanted: Sequence[int], total: int) -> list[int]:
    """Divide ``total`` threads by max-min fairness: one for each in turn, and none more than it wants."""
    shares = [0] * len(wanted)
    while total and (needy := [index for index, share in enumerate(shares) if share < wanted[index]][:total]):
        for index in needy:
            shares[index] += 1
        total -= len(needy)
    return shares


@dataclass(slots=True)
class _StreamPart:
    """A stream's request to take part in a round.

    :ivar wanted: number of threads that have something to read
    :ivar since: when the stream began to wait, on the monotonic clock
    :ivar results: of its tasks, set when the round has ended
    """

    reader: StreamReader
    wanted: int
    since: float = field(default_factory=time.monotonic)
    results: Future[list[TaskResult]] = field(default_factory=Future)


class Rounds:
    """The rounds that the streams of an application share; thread-safe.

    :param concurrency: requests in flight, over all streams
    :param stopping: set when the driver has to end: the current round is committed, and no other begins
    :param streams_at_once: streams that may run at the same time; None for as many as keep ``concurrency`` busy
    """

    def __init__(
        self,
        cluster: Cluster,
        budget: DriverBudget,
        concurrency: int,
        stopping: threading.Event,
        *,
        streams_at_once: int | None = None,
    ) -> None:
        self.cluster = cluster
        self.budget = budget
        self.stopping = stopping
        self.threads = ReadingThreads(concurrency)
        self._changed = threading.Condition()
        self._at_once = streams_at_once
        self._admitted: set[str] = set()
        self._wanted: dict[str, int] = {}
        self._waiting: list[_StreamPart] = []
        self._committing: set[str] = set()
        self._server: BudgetServer | None = None
        self._runner: threading.Thread | None = None
        self._closed = False

    def admit(self, stream: str) -> bool:
        """Wait until there is room for another stream; return False if the driver has to end before."""
        # Streams that publish want no threads, but need memory, so the number of streams is limited, too.
        most = max(self.threads.count, _LEAST_AT_ONCE) if self._at_once is None else self._at_once
        with self._changed:
            while not self.stopping.is_set():
                are_busy = self._at_once is None and sum(self._wanted.values()) >= self.threads.count
                if len(self._admitted) < most and not are_busy:
                    self._admitted.add(stream)
                    # An estimate until the stream knows its partitions.
                    self._wanted[stream] = 1
                    return True
                self._changed.wait(HEARTBEAT_SECONDS)
        return False

    def dismiss(self, stream: str) -> None:
        """Make room for the next stream: this one has ended."""
        with self._changed:
            self._admitted.discard(stream)
            self._wanted.pop(stream, None)
            self._changed.notify_all()

    @contextmanager
    def shared_by(self, reader: StreamReader) -> Iterator[None]:
        """Let a stream take part in rounds until the context ends."""
        self.budget.add_stream(reader.stream, reader.ledger.is_ours)
        with self._changed:
            self._wanted[reader.stream] = reader.threads_wanted()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._wanted.pop(reader.stream, None)
                self._committing.discard(reader.stream)
                self._changed.notify_all()

    def take_part(self, reader: StreamReader, wanted: int) -> list[TaskResult]:
        """Wait for a round in which the stream is read; return the results of its tasks, none if the driver ends.

        :param wanted: threads that have something to read, at least one
        """
        part = _StreamPart(reader, wanted)
        with self._changed:
            self._wanted[reader.stream] = wanted
            self._committing.discard(reader.stream)
            self._waiting.append(part)
            self._changed.notify_all()
            if self._runner is None:
                self._runner = threading.Thread(target=self._run, name="rfr-rounds", daemon=True)
                self._runner.start()
        return part.results.result()

    def close(self) -> None:
        """End the thread of the rounds and the budget server. Call it when no stream is reading any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._server is not None:
            self._server.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._changed.wait_for(lambda: not self._committing, _REJOIN_SECONDS)
                parts, self._waiting = self._waiting, []
            if not parts:
                return
            threads = self.threads.take(sum(part.wanted for part in parts), self.stopping.is_set)
            try:
                self._run_round(parts, threads)
            finally:
                self.threads.give_back(threads)

    def _run_round(self, parts: list[_StreamPart], threads: int) -> None:
        """Read the streams that get threads; those that get none are the first ones of the next round.

        :param threads: 0 where the driver ends: then nothing is read
        """
        shares = list(zip(parts, divided([part.wanted for part in parts], threads), strict=True))
        served = [(part, share) for part, share in shares if share]
        left = [part for part, share in shares if not share]
        if not threads:
            for part in left:
                part.results.set_result([])
            return
        with self._changed:
            self._waiting[:0] = left
        try:
            results = self._read([(part.reader, share) for part, share in served])
        except BaseException as error:  # noqa: BLE001 - raised in the threads of the streams
            for part, _ in served:
                part.results.set_exception(error)
            return
        with self._changed:
            self._committing = {part.reader.stream for part, _ in served}
        for part, _ in served:
            part.results.set_result(results.get(part.reader.stream, []))

    def _read(self, shares: Sequence[tuple[StreamReader, int]]) -> dict[str, list[TaskResult]]:
        """Run a round as one job; return the results by stream.

        :param shares: the streams, with their threads
        """
        if self._server is None:
            host, bind = self.cluster.driver_host, self.cluster.bind_address
            self._server = BudgetServer(self.budget, host, secrets.token_bytes(32), bind=bind)
        cores, threads = self.cluster.cores, sum(share for _, share in shares)
        tasks = [task for reader, share in shares for task in reader.tasks(share, cores, threads)]
        bundles = [bundle for number in range(cores) if (bundle := tuple(tasks[number::cores]))]
        self.budget.open_round((task.stream, task.label.task) for task in tasks)
        done = threading.Event()
        most = min(threads, sum(len(task.partitions) for task in tasks))
        watched = (done, [reader for reader, _ in shares], len(bundles), most)
        threading.Thread(target=self._close_when_due, args=watched, daemon=True).start()
        try:
            found = self.cluster.run(partial(run_remote_tasks, self._server.address), bundles)
        finally:
            done.set()
        results: dict[str, list[TaskResult]] = {}
        for bundle, ended in zip(bundles, found, strict=True):
            for task, result in zip(bundle, ended, strict=True):
                results.setdefault(task.stream, []).append(result)
        return results

    def _close_when_due(self, done: threading.Event, readers: Sequence[StreamReader], bundles: int, most: int) -> None:
        """End the round when something else waits for it, see the module's docstring.

        :param bundles: number of Spark tasks in the round
        :param most: the largest number of tasks that would have something to read
        """
        clock, submitted = SleepClock(), self.cluster.submitted
        while not done.wait(HEARTBEAT_SECONDS):
            # A driver learns at its next commit that it was replaced. One that slept may have been replaced long ago,
            # so it asks at once. To ask at each heartbeat would load the tables five times a second.
            lost = clock.slept() and not all(reader.ledger.is_ours() for reader in readers)
            with self._changed:
                since = min((part.since for part in self._waiting), default=float("inf"))
            # Another stream has waited for a round that has room for it.
            is_awaited = time.monotonic() - since >= _WAIT_SECONDS and len(readers) < self.threads.count
            if not (lost or self.stopping.is_set() or is_awaited):
                try:
                    cores = self.cluster.cores
                except SparkJobError:
                    # The cluster died, which the round's job reports.
                    continue
                # Another job, of a publish, waits for cores.
                is_crowded = self.cluster.submitted > submitted + 1 and self.cluster.running > cores
                # Fewer bundles than cores: new executors have none of the work.
                if bundles >= min(most, cores) and not is_crowded:
                    continue
            self.budget.close_round()
            return
