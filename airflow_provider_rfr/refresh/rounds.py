"""Rounds: read in tasks, commit what they flushed, plan the next, until every partition is complete or failed.

A round ends when its time or size is up, when a task has been idle for a second while another has partitions to share,
when new executors have none of the work, or when the driver is asked to stop. A page that is in flight then gets two
more seconds; after that its partition moves to a side lane in the driver, so that one slow answer keeps no executor
core waiting. Head start and side lane have request budgets of their own kind.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_rfr.exceptions import SparkJobError
from airflow_provider_rfr.refresh.budget import (
    BEAT_SECONDS,
    SLEPT_SECONDS,
    Beat,
    BudgetAddress,
    BudgetServer,
    DriverBudget,
    SleepClock,
)
from airflow_provider_rfr.refresh.cluster import Cluster, TaskPlace
from airflow_provider_rfr.refresh.config import OnRepeatedPage, RefreshOptions
from airflow_provider_rfr.refresh.flush import FlushLabel
from airflow_provider_rfr.refresh.header import LedgerHeader
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.messages import RoundLimits, RoundTask, TaskFigures, TaskResult
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.refresh.round_task import run_round_task


class _SideLaneBudget:
    """Without the round's end: the side lane outlives rounds."""

    def __init__(self, budget: DriverBudget) -> None:
        self.reserve = budget.reserve
        self.paused = budget.paused
        self.penalize = budget.penalize
        self.is_ours = budget.is_ours

    def beat(self, beat: Beat) -> bool:
        return False


class _HeadStartBudget(_SideLaneBudget):
    """Ends when Spark is ready; where every partition has its reader by then, it may take as long again.

    The first job of a Spark application takes a second. It would take it from readers who are about to end by
    themselves, and it could give them no partition that nobody has begun.

    :param ready: set when Spark is
    :param rest: whether there are partitions that the head start was not given
    """

    def __init__(self, budget: DriverBudget, ready: threading.Event, *, rest: bool) -> None:
        super().__init__(budget)
        self._ready = ready
        self._rest = rest
        self._began = time.monotonic()
        self._until: float | None = None

    def beat(self, beat: Beat) -> bool:
        if not self._ready.is_set():
            return False
        now = time.monotonic()
        if self._until is None:
            self._until = now + (now - self._began)
        return self._rest or beat.queued > 0 or now >= self._until


log = logging.getLogger(__name__)

_SIDE_LANE = 1_000_000
_HEAD_START = 1_000_001
_MAX_PARTITIONS_A_TASK = 5_000
_SIDE_LANE_THREADS = 32


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a commit added, for whoever shows progress.

    :ivar figures: of this attempt so far
    :ivar partitions: completed in this attempt so far
    :ivar seconds: that it has read so far
    """

    header: LedgerHeader
    figures: TaskFigures
    partitions: int
    seconds: float


class Rounds:
    """Reads one generation to its end.

    :param report: called after each commit
    :param stopping: set when the driver has to end: the round at hand is committed, and no other begins
    """

    def __init__(
        self,
        ledger: Ledger,
        book: PartitionBook,
        cluster: Cluster,
        *,
        source: dict[str, Any],
        stream: str,
        options: RefreshOptions,
        report: Callable[[RoundReport], None],
        stopping: threading.Event,
    ) -> None:
        self._ledger = ledger
        self._book = book
        self._cluster = cluster
        self._source = source
        self._stream = stream
        self._options = options
        self._report = report
        self._stopping = stopping
        self._budget = DriverBudget(options.requests_per_second, ledger.is_ours)
        self._began = time.monotonic()
        self._round = 0
        self._done_before = book.done
        self._lane: Future[TaskResult] | None = None
        self._lane_ordinals: frozenset[int] = frozenset()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rfr-side-lane")
        self.figures = TaskFigures()

    def read_all(self) -> None:
        """Read until nothing is left that this attempt can read, or until told to stop."""
        if self._options.head_start:
            self._head_start()
        server: BudgetServer | None = None
        try:
            while not self._stopping.is_set() and self._pending():
                server = server or self._serve_budget()
                self._spark_round(server.address)
        finally:
            if server is not None:
                server.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _serve_budget(self) -> BudgetServer:
        host, bind = self._cluster.driver_host, self._cluster.bind_address
        return BudgetServer(self._budget, host, secrets.token_bytes(32), bind=bind)

    def _head_start(self) -> None:
        """The first round, in the driver, while Spark starts."""
        ordinals = self._book.open_ordinals()
        if not ordinals or self._cluster.ready.is_set():
            return
        limits = self._limits(self._options.concurrency, 1, seconds=None)
        task = self._task(_HEAD_START, ordinals[:_MAX_PARTITIONS_A_TASK], limits)
        budget = _HeadStartBudget(self._budget, self._cluster.ready, rest=len(ordinals) > _MAX_PARTITIONS_A_TASK)
        self._commit([run_round_task(task, budget, self._stopping)])

    def _spark_round(self, address: BudgetAddress) -> None:
        self._round += 1
        self._budget.open_round()
        self._commit_lane()
        self._send_to_lane()
        results: list[TaskResult] = []
        tasks = self._plan()
        if tasks:
            done = threading.Event()
            threading.Thread(target=self._close_when_due, args=(done, tasks), daemon=True).start()
            try:
                results += self._cluster.run(_run_remote(address), tasks)
            finally:
                done.set()
        elif self._lane is not None:
            results = [self._lane.result()]
            self._lane, self._lane_ordinals = None, frozenset()
        self._commit(results)

    def _plan(self) -> list[RoundTask]:
        ordinals = [n for n in self._book.open_ordinals() if n not in self._lane_ordinals]
        count = min(self._cluster.cores, self._options.concurrency, len(ordinals))
        if not count:
            return []
        threads = [len(range(index, self._options.concurrency, count)) for index in range(count)]
        shares = [ordinals[index::count][:_MAX_PARTITIONS_A_TASK] for index in range(count)]
        return [
            self._task(index, share, self._limits(threads[index], count, seconds=self._options.round_seconds))
            for index, share in enumerate(shares)
        ]

    def _send_to_lane(self) -> None:
        """Partitions whose page overran the last round: the driver waits for it, and no executor does."""
        ordinals = sorted(n for n in self._book.overran if n not in self._book.failed)[:_SIDE_LANE_THREADS]
        if self._lane is not None or not ordinals:
            return
        limits = replace(self._limits(len(ordinals), 1, seconds=BEAT_SECONDS), linger=float("inf"))
        task = self._task(_SIDE_LANE, ordinals, limits)
        self._lane_ordinals = frozenset(ordinals)
        self._lane = self._pool.submit(run_round_task, task, _SideLaneBudget(self._budget), None)

    def _commit_lane(self) -> None:
        """Commit what the side lane has read, before anything is planned from where it began."""
        if self._lane is not None and self._lane.done():
            result = self._lane.result()
            self._lane, self._lane_ordinals = None, frozenset()
            self._commit([result])

    def _commit(self, results: Sequence[TaskResult]) -> None:
        figures = sum((result.figures for result in results), TaskFigures())
        for result in results:
            for progress in result.progress:
                self._book.apply(progress)
        files = [name for result in results for name in result.files]
        self.figures += figures
        if not files and not figures.overlap_checks:
            return
        header = self._ledger.header
        assert header is not None
        header = self._ledger.commit(
            files,
            rounds=header.rounds + 1,
            pages=header.pages + figures.pages,
            records=self._book.records,
            partitions_done=self._book.done,
            pages_refetched=header.pages_refetched + figures.refetched,
            overlap_checks=header.overlap_checks + figures.overlap_checks,
        )
        done = self._book.done - self._done_before
        self._report(RoundReport(header, self.figures, done, time.monotonic() - self._began))

    def _pending(self) -> bool:
        return self._lane is not None or bool(self._book.open_ordinals())

    def _limits(self, threads: int, tasks: int, *, seconds: float | None) -> RoundLimits:
        return RoundLimits(
            threads=threads,
            seconds=seconds,
            bytes=max(1, self._options.round_bytes // tasks),
            read_seconds=time.monotonic() - self._began,
            read_pages=self.figures.pages / tasks,
        )

    def _task(self, index: int, ordinals: Sequence[int], limits: RoundLimits) -> RoundTask:
        header = self._ledger.header
        assert header is not None
        return RoundTask(
            source=self._source,
            stream=self._stream,
            store=self._ledger.store,
            folder=self._ledger.folder,
            label=FlushLabel(header.generation, header.epoch, self._round, index, 0, 0),
            limits=limits,
            partitions=tuple(self._book.work(ordinal) for ordinal in ordinals),
            on_source_change=self._options.on_source_change.value,
            accept_repeats=self._options.on_repeated_page is OnRepeatedPage.ACCEPT,
        )

    def _close_when_due(self, done: threading.Event, tasks: Sequence[RoundTask]) -> None:
        """End the round when the driver has to end, and when executors that came meanwhile could share its work."""
        most = min(self._options.concurrency, sum(len(task.partitions) for task in tasks))
        clock = SleepClock()
        while not done.wait(BEAT_SECONDS):
            lost = clock.slept() > SLEPT_SECONDS and not self._ledger.is_ours()
            if lost or self._stopping.is_set() or len(tasks) < min(most, self._cores()):
                self._budget.close_round()
                return

    def _cores(self) -> int:
        """As the cluster has now; of one that died, which the round itself finds out, none."""
        try:
            return self._cluster.cores
        except SparkJobError:
            return 0


def _run_remote(address: BudgetAddress) -> Callable[[TaskPlace, RoundTask], TaskResult]:
    def run(place: TaskPlace, task: RoundTask) -> TaskResult:
        budget = address.connect()
        try:
            return run_round_task(replace(task, label=replace(task.label, attempt=place.attempt)), budget)
        finally:
            budget.close()

    return run
