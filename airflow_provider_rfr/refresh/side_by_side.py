"""Refreshes of the streams of one application, side by side: their admission, threads and results.

Each parent stream is read once for all its child streams.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_provider_rfr.exceptions import RefreshStoppedError, RfrError
from airflow_provider_rfr.lake.catalog import Catalog, LakeSettings, open_catalog
from airflow_provider_rfr.numbers import dumps, loads
from airflow_provider_rfr.refresh.after_publish import AttemptHistory
from airflow_provider_rfr.refresh.budget import DriverBudget
from airflow_provider_rfr.refresh.cluster import Cluster
from airflow_provider_rfr.refresh.config import RefreshConfig, secrets_of
from airflow_provider_rfr.refresh.engine import Refresh
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.rounds import Rounds
from airflow_provider_rfr.streams.core import Page
from airflow_provider_rfr.streams.loader import load_stream
from airflow_provider_rfr.streams.paged import PagedStream, as_paged, read_all_pages

if TYPE_CHECKING:
    from airflow_provider_rfr.history import History
    from airflow_provider_rfr.refresh.state import LedgerHeader

_log = logging.getLogger("airflow_provider_rfr")

_SlicedPage: TypeAlias = tuple[Mapping[str, Any], Page]


class StreamRuns:
    """The refreshes of all streams of a document, side by side in threads.

    A stream begins as soon as those before it leave requests of ``concurrency`` unused, or as ``streams_at_once`` says;
    parents begin before their children. Each stream publishes when it is read, and a failing one stops no other.

    :param report: called with the stream after each commit of a round
    :param report_failure: called with the stream and its error, when it fails
    :param open_history: opens the history tables of a catalog; None without a control store
    """

    def __init__(
        self,
        config: RefreshConfig,
        cluster: Cluster,
        *,
        stopping: threading.Event,
        report: Callable[[str, LedgerHeader], None],
        report_failure: Callable[[str, BaseException], None],
        open_history: Callable[[Catalog], History] | None,
    ) -> None:
        self._config = config
        self._stopping = stopping
        self._report = report
        self._report_failure = report_failure
        self._history = AttemptHistory(open_history)
        self._secrets = secrets_of(config)
        self._source = config.source.as_source()
        options = config.options
        budget = DriverBudget(options.requests_per_second)
        self._rounds = Rounds(cluster, budget, options.concurrency, stopping, streams_at_once=options.streams_at_once)
        self._parents = ParentPages(config.streams)
        self._threads: dict[str, threading.Thread | None] = {}
        self._figures: dict[str, dict[str, Any]] = {}
        self._errors: dict[str, BaseException] = {}

    def run(self) -> tuple[dict[str, dict[str, Any]], dict[str, BaseException]]:
        """Refresh every stream; return figures and errors, by stream."""
        lake = self._config.lake
        try:
            catalog = open_catalog(LakeSettings(lake.name, lake.plain_properties()))
        except RfrError as error:
            for stream in self._config.streams:
                self._fail(stream, error)
            return self._figures, self._errors
        for stream in self._config.streams:
            self._begin(stream, catalog)
        for thread in self._threads.values():
            if thread is not None:
                thread.join()
        self._rounds.close()
        if not self._stopping.is_set():
            self._history.maintain()
        return self._figures, self._errors

    def _begin(self, stream: str, catalog: Catalog) -> None:
        """Start the stream's thread once there is room for it, after those of its parents."""
        if stream in self._threads:
            return
        self._threads[stream] = None
        try:
            source = as_paged(load_stream(self._source, stream))
            for parent in source.parent_streams():
                if parent.name in self._config.streams:
                    self._begin(parent.name, catalog)
            if not self._rounds.admit(stream):
                raise RefreshStoppedError(f"{stream}: stopped before it began; the next attempt reads it")
        except Exception as error:  # noqa: BLE001 - reported in the last line, after the other streams
            self._fail(stream, error)
            return
        arguments = (stream, source, catalog)
        thread = threading.Thread(target=self._run, args=arguments, name=f"rfr-{stream}", daemon=True)
        self._threads[stream] = thread
        thread.start()

    def _run(self, stream: str, source: PagedStream, catalog: Catalog) -> None:
        try:
            refresh = Refresh(
                self._config,
                source,
                catalog,
                self._rounds,
                origin=self._source,
                report=lambda report: self._report(stream, report),
                read_parent=self._parents.read,
            )
            began, raised = datetime.now(timezone.utc), None
            try:
                refresh.run()
            except Exception as error:
                raised = error
                raise
            finally:
                self._figures[stream] = asdict(refresh.figures)
                self._history.record(
                    *(catalog, self._config, refresh.figures, refresh.header),
                    began=began,
                    error=raised,
                    secrets=self._secrets,
                )
        except BaseException as error:  # noqa: BLE001 - reported in the last line, after the other streams
            self._fail(stream, error)
        else:
            # An incremental sync has read only changed parent records, and children belong to all parent records.
            self._parents.end(stream, None if refresh.ledger.held.is_incremental else refresh.ledger)
        finally:
            self._rounds.dismiss(stream)

    def _fail(self, stream: str, error: BaseException) -> None:
        _log.debug("%s failed", stream, exc_info=error)
        self._errors[stream] = error
        self._report_failure(stream, error)
        self._parents.end(stream, None)


class ParentPages:
    """The pages of parent streams for the streams of one application; thread-safe.

    If the application also loads a parent, its pages come from its ledger once it is published. If that load fails, or
    the parent is not loaded, its first child reads it from the API, and the other children get the same pages from a
    temporary file.

    :param loaded: streams that the application loads
    """

    def __init__(self, loaded: Iterable[str]) -> None:
        self._ledgers: dict[str, Future[Ledger | None]] = {stream: Future() for stream in loaded}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._files: dict[str, _StoredPages] = {}

    def end(self, stream: str, ledger: Ledger | None) -> None:
        """Record the end of a stream that the application loads.

        :param ledger: of its published generation; None if the stream failed, or the generation lacks records
        """
        self._ledgers[stream].set_result(ledger)

    def read(self, parent: PagedStream) -> Iterator[_SlicedPage]:
        """Yield all pages of a parent, with their slices; first wait for its end, if the application loads it."""
        future = self._ledgers.get(parent.name)
        ledger = None if future is None else future.result()
        if ledger is not None:
            yield from ledger.read_records()
            return
        if len(self._ledgers) == 1:
            # There is no other child to keep the pages for.
            yield from read_all_pages(parent)
            return
        # Nothing is yielded under the lock: a child that fails may never take the rest, and the others would wait.
        with self._locks[parent.name]:
            if parent.name not in self._files:
                self._files[parent.name] = _StoredPages(read_all_pages(parent))
        yield from self._files[parent.name].read()


class _StoredPages:
    """Pages in a temporary file, which any number of threads may read at once."""

    def __init__(self, pages: Iterable[_SlicedPage]) -> None:
        # It has no name, so nothing is left of it after the process, however that ends.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - kept for the other children
        self._ends = [0]
        for stream_slice, page in pages:
            line = dumps([stream_slice, page.records, page.request, page.skipped])
            self._ends.append(self._ends[-1] + self._file.write(line))
        self._file.flush()

    def read(self) -> Iterator[_SlicedPage]:
        for start, end in pairwise(self._ends):
            stream_slice, records, request, skipped = loads(os.pread(self._file.fileno(), end - start, start))
            yield stream_slice, Page(records, request=request, skipped=skipped)
