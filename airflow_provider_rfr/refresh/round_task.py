"""One task of a round: reads pages of its partitions on threads, flushes them, and reports where each stands.

The same function runs in an executor's Python worker and, while Spark starts or for a partition that overran a
round, in the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from airflow_provider_rfr.lake.ledger_columns import ledger_arrow_schema
from airflow_provider_rfr.refresh.budget import Budget
from airflow_provider_rfr.refresh.chains import Chain
from airflow_provider_rfr.refresh.errors import secret_values
from airflow_provider_rfr.refresh.flush import FlushWriter
from airflow_provider_rfr.refresh.flusher import Flusher
from airflow_provider_rfr.refresh.predecessor import adopt_predecessor
from airflow_provider_rfr.refresh.reading import read_pages
from airflow_provider_rfr.refresh.scheduler import Scheduler
from airflow_provider_rfr.refresh.work import RoundTask, TaskResult
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import PagedStream, as_paged

MAX_SOURCES_KEPT = 8
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
    read_pages(task, stream, scheduler, budget, closing, flusher.flush_if_due)
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
        if len(_idle_streams) > MAX_SOURCES_KEPT:
            _idle_streams.clear()
        _idle_streams.setdefault(key, []).append(stream)
