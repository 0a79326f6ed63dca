"""Rounds: read in tasks, commit the flushed files, plan the next round, until every partition is complete or failed.

A round ends when its time or size is up, when a task has been idle for a second while another has partitions to share,
when new executors have none of the work, or when the driver is asked to stop. A page that is in flight then gets two
more seconds; after that its partition moves to the slow-page lane in the driver, so that no executor core waits for one
slow answer. Before the first round, the driver prefetches pages while Spark starts.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_provider_rfr.exceptions import SparkJobError
from airflow_provider_rfr.refresh.budget import (
    HEARTBEAT_SECONDS,
    BudgetAddress,
    BudgetServer,
    DriverBudget,
    Heartbeat,
    SleepClock,
)
from airflow_provider_rfr.refresh.cluster import Cluster
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.pages import FlushLabel, TaskFigures
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.refresh.round_task import RoundLimits, RoundTask, TaskResult, run_remote_task, run_round_task
from airflow_provider_rfr.refresh.state import LedgerHeader


class _SlowPageBudget:
    """The driver's budget without the round's end: the slow-page lane outlives rounds."""

    def __init__(self, budget: DriverBudget) -> None:
        self.reserve = budget.reserve
        self.paused = budget.paused
        self.penalize = budget.penalize
        self.is_ours = budget.is_ours

    def heartbeat(self, heartbeat: Heartbeat) -> bool:
        return False


class _PrefetchBudget(_SlowPageBudget):
    """A budget that ends the prefetch when Spark is ready.

    Where every partition has its reader by then, it ends the prefetch after twice that time.

    Spark's first job takes a second of processor time. Readers that are about to end need it more, and there is no
    partition left that the job could begin.

    :param ready: set when Spark is ready
    :param rest: whether there are partitions that the prefetch was not given
    """

    def __init__(self, budget: DriverBudget, ready: threading.Event, *, rest: bool) -> None:
        super().__init__(budget)
        self._ready = ready
        self._rest = rest
        self._began = time.monotonic()
        self._until: float | None = None

    def heartbeat(self, heartbeat: Heartbeat) -> bool:
        if not self._ready.is_set():
            return False
        now = time.monotonic()
        if self._until is None:
            self._until = now + (now - self._began)
        return self._rest or heartbeat.queued > 0 or now >= self._until


# Task numbers far from those of a Spark round: by its number a flushed file belongs to one task.
_SLOW_PAGES = 1_000_000
_PREFETCH = 1_000_001
_MAX_PARTITIONS_A_TASK = 5_000
_SLOW_PAGE_THREADS = 32


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Progress after a commit; all but the header is of this attempt so far.

    :ivar partitions: partitions completed
    :ivar seconds: seconds of reading
    """

    header: LedgerHeader
    figures: TaskFigures
    partitions: int
    seconds: float

    def line(self, stream: str) -> str:
        """Return the log line of a round; the operator recognises it by ``: round N: ``."""
        header, seconds = self.header, max(self.seconds, 1e-6)
        line = (
            f"{stream}: round {header.rounds}: {header.pages:,} pages, {header.records:,} records,"
            f" {header.partitions_done:,} of {header.partitions:,} partitions,"
            f" {self.figures.pages / seconds:,.0f} pages/s"
        )
        open_ones = header.partitions - header.partitions_done
        if self.partitions and open_ones:
            line += f", about {seconds / self.partitions * open_ones:,.0f} s left"
        return line


@dataclass
class Rounds:
    """The rounds that read one generation to its end.

    :param infers: whether columns are inferred from the records
    :param report: called after each commit
    :param stopping: set when the driver has to end: the current round is committed, and no other begins
    :ivar figures: of this attempt so far
    """

    ledger: Ledger
    book: PartitionBook
    cluster: Cluster
    source: dict[str, Any]
    stream: str
    options: RefreshOptions
    infers: bool
    report: Callable[[RoundReport], None]
    stopping: threading.Event
    figures: TaskFigures = field(default_factory=TaskFigures)

    def __post_init__(self) -> None:
        self._budget = DriverBudget(self.options.requests_per_second, self.ledger.is_ours)
        self._began = time.monotonic()
        self._round = 0
        self._done_before = self.book.done
        self._lane: Future[TaskResult] | None = None
        self._lane_ordinals: frozenset[int] = frozenset()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rfr-slow-pages")

    def read_all(self) -> None:
        """Read until nothing is left that this attempt can read, or until it has to stop."""
        ordinals = self.book.open_ordinals()
        # The driver prefetch: a first round in the driver, while Spark starts.
        if self.options.head_start and ordinals and not self.cluster.ready.is_set():
            task = self._task(_PREFETCH, ordinals[:_MAX_PARTITIONS_A_TASK], threads=self.options.concurrency)
            budget = _PrefetchBudget(self._budget, self.cluster.ready, rest=len(ordinals) > _MAX_PARTITIONS_A_TASK)
            self._commit([run_round_task(task, budget, self.stopping)])
        server: BudgetServer | None = None
        try:
            while not self.stopping.is_set() and (self._lane is not None or self.book.open_ordinals()):
                if server is None:
                    # Not before: the address is known when Spark is ready, and the prefetch may have read all.
                    host, bind = self.cluster.driver_host, self.cluster.bind_address
                    server = BudgetServer(self._budget, host, secrets.token_bytes(32), bind=bind)
                self._spark_round(server.address)
        finally:
            if server is not None:
                server.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _spark_round(self, address: BudgetAddress) -> None:
        self._round += 1
        self._budget.open_round()
        # Tasks get the store with the credentials of now, and can't renew them while they write.
        self.ledger.renew_credentials()
        if self._lane is not None and self._lane.done():
            # Before anything is planned, or tasks would begin where the lane began.
            self._commit([self._lane_result()])
        overran = sorted(n for n in self.book.overran if n not in self.book.failed)[:_SLOW_PAGE_THREADS]
        if self._lane is None and overran:
            # Only for the page that is due, which the driver waits for: those behind it are read in rounds again.
            seconds, grace = HEARTBEAT_SECONDS, float("inf")
            task = self._task(_SLOW_PAGES, overran, threads=len(overran), seconds=seconds, grace=grace)
            self._lane_ordinals = frozenset(overran)
            self._lane = self._pool.submit(run_round_task, task, _SlowPageBudget(self._budget))
        results: list[TaskResult] = []
        tasks = self._plan()
        if tasks:
            done = threading.Event()
            threading.Thread(target=self._close_when_due, args=(done, tasks), daemon=True).start()
            try:
                results = self.cluster.run(partial(run_remote_task, address), tasks)
            finally:
                done.set()
        elif self._lane is not None:
            results = [self._lane_result()]
        self._commit(results)

    def _plan(self) -> list[RoundTask]:
        ordinals = [n for n in self.book.open_ordinals() if n not in self._lane_ordinals]
        threads = self.options.concurrency
        count = min(self.cluster.cores, threads, len(ordinals))
        return [
            self._task(
                index,
                ordinals[index::count][:_MAX_PARTITIONS_A_TASK],
                threads=len(range(index, threads, count)),
                tasks=count,
                seconds=self.options.round_seconds,
            )
            for index in range(count)
        ]

    def _lane_result(self) -> TaskResult:
        """Wait for the slow-page lane's end, and free the lane."""
        assert self._lane is not None
        result = self._lane.result()
        self._lane, self._lane_ordinals = None, frozenset()
        return result

    def _commit(self, results: Sequence[TaskResult]) -> None:
        figures = sum((result.figures for result in results), TaskFigures())
        # The book is ahead of the ledger until the commit below. If that fails, the attempt ends, and the next one
        # makes its book from the ledger.
        for result in results:
            for progress in result.progress:
                self.book.apply(progress)
        files = [file for result in results for file in result.files]
        self.figures += figures
        if not files and not figures.overlap_checks:
            # Nothing that the next attempt could use: failures and empty answers are found again.
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
        done = self.book.done - self._done_before
        self.report(RoundReport(header, self.figures, done, time.monotonic() - self._began))

    def _task(
        self,
        number: int,
        ordinals: Sequence[int],
        *,
        threads: int,
        tasks: int = 1,
        seconds: float | None = None,
        grace: float = 2.0,
    ) -> RoundTask:
        header = self.ledger.held
        limits = RoundLimits(
            threads=threads,
            seconds=seconds,
            bytes=max(1, self.options.round_bytes // tasks),
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

    def _close_when_due(self, done: threading.Event, tasks: Sequence[RoundTask]) -> None:
        """End the round when the driver has to end, and when executors that came meanwhile could share its work."""
        most = min(self.options.concurrency, sum(len(task.partitions) for task in tasks))
        clock = SleepClock()
        while not done.wait(HEARTBEAT_SECONDS):
            # A driver learns at its next commit that it was replaced. One that slept may have been replaced long ago,
            # so it asks at once. To ask at each heartbeat would load the table five times a second.
            lost = clock.slept() and not self.ledger.is_ours()
            if not lost and not self.stopping.is_set():
                try:
                    if len(tasks) >= min(most, self.cluster.cores):
                        continue
                except SparkJobError:
                    # The cluster died, which the round's job reports.
                    continue
            self._budget.close_round()
            return
