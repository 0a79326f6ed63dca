"""One refresh of one stream, from opening to publish."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import (
    FencedError,
    RefreshFailedError,
    RefreshStoppedError,
    RfrError,
    SourceChangedError,
    SourceError,
    SparkJobError,
)
from airflow_provider_rfr.lake.inference import arrow_schema
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.target import TargetTable, check_columns, part_of
from airflow_provider_rfr.refresh.cluster import Cluster
from airflow_provider_rfr.refresh.config import RefreshConfig
from airflow_provider_rfr.refresh.errors import redact, refuses_generation, secrets_of
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.maintenance import maintain
from airflow_provider_rfr.refresh.messages import Phase, RefreshFigures, TaskFigures
from airflow_provider_rfr.refresh.partitions import CURSOR_COLUMNS, PartitionBook
from airflow_provider_rfr.refresh.publish import PublishOutcome, outcome_of
from airflow_provider_rfr.refresh.resume_policy import (
    Fingerprints,
    Heartbeat,
    Opening,
    OtherRun,
    Relocations,
    decide,
    fingerprints_of,
)
from airflow_provider_rfr.refresh.rounds import RoundReport, Rounds
from airflow_provider_rfr.streams.loader import inline_source, load_stream
from airflow_provider_rfr.streams.paged import PagedStream, as_paged
from airflow_provider_rfr.streams.read import unique_slices

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


log = logging.getLogger(__name__)

_NAMED_FAILURES = 20
_BUSY_POLL_SECONDS = 2.0


class Refresh:
    """Refreshes one stream into one target.

    :param report: called after each commit of a round
    :param stopping: set when the driver has to end
    """

    def __init__(
        self,
        config: RefreshConfig,
        stream_name: str,
        catalog: Catalog,
        cluster: Cluster,
        *,
        report: Callable[[RoundReport], None],
        stopping: threading.Event,
    ) -> None:
        part = part_of(config.options.replace_where)
        self._config = config
        self._moves = Relocations.of(config.run.moved)
        self._cluster = cluster
        self._report = report
        self._stopping = stopping
        source = config.source.as_source()
        self._stream: PagedStream = as_paged(load_stream(source, stream_name))
        if (schema := self._stream.json_schema) is not None:
            # Before a page is read: columns that no table can have, and a filter over columns that the rows lack.
            columns = arrow_schema(schema, "json_schema")
            if part is not None:
                check_columns(str(config.options.replace_where), columns)
        # Executors elsewhere have no such file.
        self._source = inline_source(source)
        name = config.target_of(stream_name)
        self._catalog = catalog
        self._target = TargetTable(catalog, name)
        self._ledger = Ledger(LedgerTable.load_or_create(catalog, name, part))
        self._prints: Fingerprints
        self._refused_under: str | None = None
        self._secrets = secrets_of(config)
        self.figures = RefreshFigures(stream_name, name)

    @property
    def header(self) -> LedgerHeader | None:
        """Of the ledger as it was seen last; None before the first refresh."""
        return self._ledger.header

    def run(self) -> RefreshFigures:
        """Open or resume, read, publish; returns the figures, which are also kept when it raises.

        :raises FencedError: another attempt took over
        :raises RefreshFailedError: partitions could not be read
        """
        try:
            return self._run()
        except FencedError:
            raise
        except Exception as error:
            self._end(error)
            if isinstance(error, SparkJobError) and self._stopping.is_set():
                # What stops the driver stops its Spark, too, and the job that ran knows of nothing else.
                raise RefreshStoppedError(
                    f"{self.figures.stream}: stopped; what was read is kept, the next attempt goes on"
                ) from error
            raise

    def _end(self, error: Exception) -> None:
        """Say in the ledger that nobody is at it any more; where another attempt is, that is the cause to tell."""
        told = redact(f"{type(error).__name__}: {error}", self._secrets)
        try:
            self._ledger.end(told, self._refused_under)
        except FencedError as fenced:
            raise fenced from error
        except Exception as failure:  # noqa: BLE001 - each catalog fails in its own way
            log.warning("the ledger can't be told that this attempt is over (%s)", redact(str(failure), self._secrets))

    def _run(self) -> RefreshFigures:
        with self._phase("wait"):
            self._wait_for_others()
        with self._phase("open"):
            book = self._open()
        if book is None:
            return self.figures
        with Heartbeat(self._ledger, self._config.options):
            with self._phase("read"):
                self._read(book)
            with self._phase("spark_start"):
                self._cluster.context  # noqa: B018 - waits, and raises what the start raised
            with self._phase("publish"):
                outcome = self._publish(book)
        with self._phase("publish"):
            self._finish(outcome)
        return self.figures

    def _publish(self, book: PartitionBook) -> PublishOutcome:
        from airflow_provider_rfr.refresh.publish import Publisher

        try:
            return Publisher(self._ledger, book, self._cluster, self._target, self._stream, self._config).publish()
        except Exception as error:
            if refuses_generation(error):
                self._refused_under = self._prints.rules
            raise

    def _wait_for_others(self) -> None:
        """Let another run's refresh of this table end, as ``on_busy`` says."""
        other, told = OtherRun(self.figures.target, self._config.run.key, self._config.options), False
        while (why := other.must_wait(self._ledger.header, lambda: self._ledger.has_ended)) is not None:
            if not told:
                log.info("%s; waiting for it, since on_busy is wait", why)
                told = True
            if self._stopping.wait(_BUSY_POLL_SECONDS):
                raise RefreshStoppedError(f"{self.figures.stream}: stopped while it waited: {why}")
            self._ledger.look_again()
            self._target.reload()

    def _open(self) -> PartitionBook | None:
        prints = self._prints = fingerprints_of(self._stream, self._moves, self._config.options, self._target.columns)
        header = self._ledger.header
        found = self._target.published(self._ledger.id)
        on_target = header is not None and found is not None and found.generation == header.generation
        run_key = self._config.run.key
        decision = decide(header, prints, self._config.options, run_key, on_target=on_target)
        log.info("%s: %s", self.figures.target, decision.reason)
        if decision.opening is Opening.NEW:
            return self._ledger.open_generation(
                self._slices(),
                read_fingerprint=prints.read,
                publish_fingerprint=prints.publish,
                run_key=run_key,
                words=self._words(),
            )
        assert header is not None
        if decision.opening is Opening.PUBLISHED:
            self._already(header, outcome_of(found, header) if found and on_target else None)
            return None
        self.figures.resumed = True
        return self._resume(prints.publish)

    def _resume(self, publish_fingerprint: str) -> PartitionBook:
        book = self._ledger.take_over(publish_fingerprint, self._config.run.key, self._words())
        table = self._ledger.read_pages(CURSOR_COLUMNS)
        if table is not None:
            policy = self._config.options.on_source_change.value
            book.remember(table, addressable=self._stream.addressable and policy != "accept")
        self._moves.follow(book)
        return book

    def _words(self) -> dict[str, Any]:
        """What the header says of the part and of the task that runs."""
        run = self._config.run.airflow
        task = run.model_dump(include={"dag_id", "dag_run_id", "task_id", "map_index"}) if run is not None else {}
        return {"replace_where": self._config.options.replace_where, **task}

    def _slices(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for found in unique_slices(self._stream):
            yield self._stream.partition_key(found.partition), found.partition

    def _read(self, book: PartitionBook) -> None:
        rounds = Rounds(
            self._ledger,
            book,
            self._cluster,
            source=self._source,
            stream=self.figures.stream,
            options=self._config.options,
            report=self._report,
            stopping=self._stopping,
        )
        try:
            rounds.read_all()
        except FencedError:
            raise
        except Exception:
            with suppress(Exception):
                rounds.figures += TaskFigures(pages=self._ledger.flushed_pages())
            raise
        finally:
            self.figures.pages_fetched = rounds.figures.pages
            self.figures.pages_skipped = rounds.figures.skipped
            self._take_header()
        if book.failed:
            raise _failure(self.figures.stream, book)
        if book.open_ordinals():
            raise RefreshStoppedError(
                f"{self.figures.stream}: stopped with {book.done} of {len(book)} partitions done;"
                " the next attempt goes on"
            )

    def _finish(self, outcome: PublishOutcome) -> None:
        self._mark_published(outcome)
        self._take_outcome(outcome)
        self._ledger.collect()
        with self._phase("expire"):
            maintain(self._catalog, self._config.options, self.figures)

    def _mark_published(self, outcome: PublishOutcome) -> None:
        try:
            self._ledger.commit(
                [], state=RefreshState.PUBLISHED, snapshot_id=outcome.snapshot_id, published_rows=outcome.rows
            )
        except FencedError as fenced:
            log.warning("published, but not marked so: %s", fenced)

    def _already(self, header: LedgerHeader, outcome: PublishOutcome | None) -> None:
        self.figures.partitions = header.partitions
        if header.state is RefreshState.OPEN and outcome is not None:
            self._mark_published(outcome)
        self._take_header()
        self._take_outcome(outcome or PublishOutcome(header.snapshot_id or 0, header.published_rows or 0))

    def _take_header(self) -> None:
        header = self._ledger.header
        assert header is not None
        for name in (
            "generation",
            "epoch",
            "attempts",
            "rounds",
            "pages",
            "partitions",
            "pages_refetched",
            "overlap_checks",
        ):
            setattr(self.figures, name, getattr(header, name))

    def _take_outcome(self, outcome: PublishOutcome) -> None:
        self.figures.snapshot_id = outcome.snapshot_id
        self.figures.rows = outcome.rows
        self.figures.duplicates_removed = outcome.duplicates_removed
        self.figures.pages_skipped = outcome.pages_skipped

    def _phase(self, name: str) -> Phase:
        return Phase(self.figures.seconds, name)


def _failure(stream: str, book: PartitionBook) -> BaseException:
    """The attempt's error: the cause itself where there is one for all, else the list of partitions."""
    kinds = {type(error) for error in book.failed.values()}
    first = next(iter(book.failed.values()))
    if len(kinds) == 1 and not isinstance(first, (SourceError, SourceChangedError)):
        return first
    failures = {book.keys[ordinal]: _reason(error) for ordinal, error in book.failed.items()}
    named = "; ".join(f"{key}: {reason}" for key, reason in list(failures.items())[:_NAMED_FAILURES])
    more = f"; and {len(failures) - _NAMED_FAILURES} more, each in the log" if len(failures) > _NAMED_FAILURES else ""
    error = RefreshFailedError(
        f"{stream}: {len(failures)} of {len(book)} partitions could not be read, what was read is kept: {named}{more}",
        failures,
    )
    # What a retry can mend is told as the cause, so that a 403 of one partition does not end the retries of all.
    error.__cause__ = next((one for one in book.failed.values() if not _is_final(one)), first)
    return error


def _is_final(error: BaseException) -> bool:
    return isinstance(error, RfrError) and not error.retryable


def _reason(error: BaseException) -> str:
    """The error as it stands behind its partition's name."""
    if isinstance(error, SourceError) and error.page is not None:
        return f"page {error.page}: {error.description}"
    return str(error)
