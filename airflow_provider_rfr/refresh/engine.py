"""The refresh of one stream, from opening to publish."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    FencedError,
    ReadInterrupted,
    RefreshFailedError,
    RefreshStoppedError,
    RfrError,
    SourceChangedError,
    SourceError,
    SparkJobError,
    SyncStateError,
)
from airflow_provider_rfr.http.redaction import bare_host, redact
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.lake.row_filter import check_filter, part_of
from airflow_provider_rfr.lake.sync_state import SyncState
from airflow_provider_rfr.lake.target import Publication, TargetTable
from airflow_provider_rfr.refresh.after_publish import RefreshFigures, maintain
from airflow_provider_rfr.refresh.budget import BudgetLimiter, StreamBudget
from airflow_provider_rfr.refresh.column_rules import ColumnRules
from airflow_provider_rfr.refresh.config import RefreshConfig, secrets_of
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import SeenColumns, TaskFigures, key_columns
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.refresh.publish import Publisher, PublishOutcome, outcome_of, published_fields
from airflow_provider_rfr.refresh.publish_changes import ChangesPublisher
from airflow_provider_rfr.refresh.resume import (
    Fingerprints,
    Opening,
    OtherRun,
    Relocations,
    decide,
    fingerprints_of,
    idle_seconds,
    ledger_heartbeat,
    silence_seconds,
)
from airflow_provider_rfr.refresh.rounds import Rounds, StreamReader
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from airflow_provider_rfr.refresh.sync import SyncPlan, rules_of
from airflow_provider_rfr.streams.core import ParentReader, ReadContext, key_paths, unique_slices
from airflow_provider_rfr.streams.incremental import CursorWindow
from airflow_provider_rfr.streams.paged import PagedStream
from airflow_provider_rfr.text import cut, page_place

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


_log = logging.getLogger(__name__)

_NAMED_FAILURES = 20
_LOST_STATE = (
    "{table} was synced before, and an expiry by another engine dropped the snapshot with its state; run once with"
    " full_refresh: true, or set a state with airflow rfr refresh state set"
)
_ANOTHER_API = (
    "{table} may have rows of the API that the connection led to before, so no window of the present one joins them;"
    " run once without a window"
)
_BUSY_POLL_SECONDS = 2.0
_LONGEST_FACT = 200


class Refresh:
    """The refresh of one stream into one target.

    :param rounds: the rounds that the streams of the application share
    :param origin: the source as :func:`~airflow_provider_rfr.streams.loader.load_stream` reads it
    :param report: called after each commit of a round
    :param read_parent: see :class:`ReadContext`
    :ivar figures: filled by :meth:`run`, also where it raises
    """

    def __init__(
        self,
        config: RefreshConfig,
        stream: PagedStream,
        catalog: Catalog,
        rounds: Rounds,
        *,
        origin: Mapping[str, Any],
        report: Callable[[LedgerHeader], None],
        read_parent: ParentReader | None = None,
    ) -> None:
        part = part_of(config.options.replace_where)
        self._config = config
        self._relocations = Relocations.of(config.run.moved)
        self._rounds = rounds
        self._report = report
        self._stopping = rounds.stopping
        self._stream = stream
        # The stream's own rate is a default, its concurrency an upper bound.
        limits: dict[str, Any] = {}
        if config.options.requests_per_second is None and (rate := stream.requests_per_second) is not None:
            limits["requests_per_second"] = rate
            _log.info("%s: at most %.4g requests per second, as set by the source", stream.name, rate)
        if stream.max_concurrency is not None and stream.max_concurrency < config.options.concurrency:
            limits["concurrency"] = stream.max_concurrency
            _log.info("%s: concurrency is %s, the limit of the source", stream.name, stream.max_concurrency)
        self._options = config.options.model_copy(update=limits)
        # The driver, too, sends requests: for the schema of some streams, and for partitions that are parents' records.
        if self._options.requests_per_second is not None:
            rounds.budget.limit(self._options.requests_per_second)
        limiter = BudgetLimiter(StreamBudget(rounds.budget), self._stopping)
        self._stream.bind(ReadContext(limiter, self._stopping, read_parent=read_parent))
        # Checked before a page is read: columns that no table can have, a key or a filter with columns that rows lack.
        self._rules = ColumnRules.of(self._stream, self._options.constants)
        if self._rules.declared is not None and not self._rules.infers:
            key_columns(self._stream.primary_key, self._rules.declared)
            if part is not None:
                check_filter(str(self._options.replace_where), self._rules.columns(SeenColumns()))
        # The content of the source's files travels along, because executors on other machines lack the files.
        self._source = dict(stream.source_for_executors(origin))
        name = config.target_of(stream.name)
        self._catalog = catalog
        self._target = TargetTable(catalog, name)
        self._window: CursorWindow | None = None
        self._check_sync()
        self.ledger = Ledger(LedgerTable.load_or_create(catalog, name, part))
        self._prints: Fingerprints
        self._sync: SyncPlan | None = None
        self._refused_under: str | None = None
        self.figures = RefreshFigures(stream.name, name)

    @property
    def header(self) -> LedgerHeader | None:
        """Return the ledger's header as it was loaded last; None before the first refresh."""
        return self.ledger.header

    def run(self) -> RefreshFigures:
        """Open or resume, read, publish; return the figures.

        :raises FencedError: another attempt took over
        :raises RefreshFailedError: partitions could not be read
        :raises RefreshStoppedError: the driver was asked to stop
        """
        with self._failure_recorded():
            book = self._open_when_free()
            if book is None:
                return self.figures
            with ledger_heartbeat(self.ledger, self._options):
                with self._phase("read"):
                    self._read(book)
                # Inside the heartbeat: a cluster may take so long to give its first executors that another run would
                # take this one for dead.
                with self._phase("spark_start"):
                    jobs = self._rounds.cluster.jobs_for(self.ledger.held.bytes)
                reads_changes = self._sync is not None and not self._sync.is_full
                publisher = (ChangesPublisher if reads_changes else Publisher)(
                    *(self.ledger, book, jobs, self._target, self._stream, self._rules, self._config), sync=self._sync
                )
                with self._phase("publish"):
                    try:
                        outcome = publisher.publish()
                    except Exception as error:
                        if refuses_generation(error):
                            self._refused_under = self._prints.rules
                        raise
            with self._phase("publish"):
                # The ledger is marked before older generations are dropped, which may take long, so that other runs see
                # the publish. If this process dies before that, the next attempt finds the publish in the target, and
                # marks the ledger.
                self._mark_published(outcome)
                self._take_outcome(outcome)
                self.ledger.collect()
                with self._phase("expire"):
                    maintain(self._catalog, self._options, self.figures)
        return self.figures

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to a phase of the figures."""
        began, seconds = time.monotonic(), self.figures.seconds
        try:
            yield
        finally:
            seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - began, 3)

    @contextmanager
    def _failure_recorded(self) -> Iterator[None]:
        """Record the attempt's failure in the ledger, so that no other run waits for it."""
        try:
            yield
        except FencedError:
            raise
        except Exception as error:
            secrets, ended = secrets_of(self._config), error
            if isinstance(error, (SparkJobError, ReadInterrupted)) and self._stopping.is_set():
                # The signal that stops the driver also stops its Spark, so the job fails with an error of its own.
                ended = RefreshStoppedError(
                    f"{self.figures.stream}: stopped; what was read is kept, the next attempt continues"
                )
            outcome = ended.outcome if isinstance(ended, RfrError) else RfrError.outcome
            try:
                self.ledger.end(redact(f"{type(ended).__name__}: {ended}", secrets), outcome, self._refused_under)
            except FencedError as fenced:
                # Another attempt took over: that is the reason for the first error, too.
                raise fenced from error
            except Exception as failure:  # noqa: BLE001 - each catalog fails in its own way
                _log.warning("the end of this attempt can't be recorded (%s)", redact(str(failure), secrets))
            if ended is not error:
                raise ended from error
            raise

    def _wait_for_others(self) -> None:
        """Wait until no other run refreshes this table, as ``on_busy`` says.

        :raises RefreshBusyError: another run does, and ``on_busy`` is ``fail``
        :raises RefreshStoppedError: the driver was asked to stop meanwhile
        """
        other, logged = OtherRun(self.figures.target, self._config.run.key, self._options), False
        while (why := other.must_wait(self.ledger.header, lambda: self.ledger.has_ended)) is not None:
            if not logged:
                _log.info("%s; waiting for it, since on_busy is wait", why)
                logged = True
            if self._stopping.wait(_BUSY_POLL_SECONDS):
                raise RefreshStoppedError(f"{self.figures.stream}: stopped while it waited: {why}")
            self.ledger.look_again()
            self._target.reload()

    def _open_when_free(self) -> PartitionBook | None:
        """Wait for other runs, and open a generation; wait again if another run was faster.

        :raises FencedError: another attempt of the same task was faster
        """
        while True:
            with self._phase("wait"):
                self._wait_for_others()
            try:
                with self._phase("open"):
                    return self._open()
            except FencedError:
                self.ledger.look_again()
                if self.ledger.held.is_held_by(self._config.run.key):
                    raise
                self._target.reload()

    def _open(self) -> PartitionBook | None:
        """Open a generation or take one over; return None if this run has published it already."""
        run, header = self._config.run, self.ledger.header
        outcome: PublishOutcome | None = None
        if header is not None and (publication := self._publication_of(header)) is not None:
            outcome = outcome_of(publication, header)
        # A generation that another run has published is not open, even if its header does not say so yet.
        has_ended = outcome is not None and header is not None and run.key not in (None, header.run_key)
        prints, base = self._plan_sync(None if has_ended else header)
        window = None if self._sync is None else self._sync.window
        decision = decide(
            *(header, prints, self._options, run.key), on_target=outcome is not None, base_state=base, window=window
        )
        _log.info("%s: %s", self.figures.target, decision.reason)
        if outcome is not None and header is not None and header.state is RefreshState.OPEN:
            # The attempt that published it ended before it could mark the ledger.
            self._mark_published(outcome)
        if decision.opening is Opening.NEW:
            slices = (stream_slice.partition for stream_slice in unique_slices(self._stream, self._changed_slices()))
            kind = {"base_state": base, "fixed_window": window and str(window)}
            restarted_by = run.key if self._options.force_restart else None
            return self.ledger.open_generation(
                ((self._stream.partition_key(stream_slice), stream_slice) for stream_slice in slices),
                read_fingerprint=prints.read,
                publish_fingerprint=prints.publish,
                run_key=run.key,
                labels={**self._labels(), **kind, "restarted_by": restarted_by},
                describe=None if self._sync is None else self._sync.span_of,
            )
        assert header is not None
        if decision.opening is Opening.PUBLISHED:
            self.figures.already_published = True
            self._take_header()
            self._take_outcome(outcome or PublishOutcome(header.snapshot_id or 0, header.published_rows or 0))
            return None
        # Take over the open generation, and restore the state of its open chains.
        book = self.ledger.take_over(prints.publish, run.key, self._labels())
        self.figures.resumed = True
        if (table := self.ledger.read_pages()) is not None:
            checked = self._stream.addressable and self._options.on_source_change != "accept"
            book.remember(table, addressable=checked)
        self._relocations.follow(book)
        return book

    def _publication_of(self, header: LedgerHeader) -> Publication | None:
        """Return the publish of the header's generation that the target shows, whatever the header says."""
        publication = self._target.published(self.ledger.id)
        return None if publication is None or publication.generation != header.generation else publication

    def _check_sync(self) -> None:
        """Check that the stream can be read incrementally, if the document asks for that; parse the window.

        :raises ConfigurationError: it can't be, or the window is wrong
        """
        if self._config.sync != "incremental":
            return
        place = f"streams.{self._stream.name}"
        if self._stream.incremental is None:
            raise ConfigurationError(f"{place}.incremental", *self._stream.why_not_incremental)
        if self._config.window is not None:
            try:
                self._window = CursorWindow.parse(self._config.window, self._stream.incremental.column)
            except ValueError as error:
                problem, _, remedy = str(error).partition("; ")
                raise ConfigurationError("window", problem, remedy) from None
        if self._options.mode == "merge" and not self._stream.primary_key:
            raise ConfigurationError(f"{place}.primary_key", "is not declared, and merge needs it", "or write: append")
        if self._options.replace_where is not None:
            raise ConfigurationError(
                "options.replace_where", "goes with a full refresh", "leave it out of an incremental sync"
            )

    def _plan_sync(self, header: LedgerHeader | None) -> tuple[Fingerprints, str | None]:
        """Choose whether to read changes, a window or all records; return the fingerprints and the base state's digest.

        The base state is the state that a sync continues. For the refresh of a part it is the table's present state,
        which must not change before the publish. There is none for a window, and for a full refresh of all rows.

        A full refresh that was begun is finished first, even by an incremental sync.
        """
        definition = self._stream, self._relocations, self._options, self._target.columns
        full = fingerprints_of(*definition)
        read, state, window = self._stream.incremental, None, self._window
        upstream = self._relocations.upstream
        if self._config.sync == "incremental":
            state = self._state_of(upstream)
            # Without a state, the sync reads everything anyway. With one, it leaves a generation to full refreshes if a
            # guard refused it, whatever the guards of this sync are, or if its mode is append: here it would replace
            # the table's rows. One that is too old to be resumed would be read again as a whole.
            if (
                header is not None
                and (header.state, header.base_state) == (RefreshState.OPEN, None)
                and header.read_fingerprint == full.read
                and (state is None or (header.refused_under is None and header.mode is None))
                and (state is None or idle_seconds(header) <= self._options.resume_within)
            ):
                _log.info("%s: a full refresh was begun, and is finished first", self.figures.target)
                state, window = None, None
            elif state is None and window is None and self._target.has_lost_state:
                raise SyncStateError(_LOST_STATE.format(table=self.figures.target))
        if read is not None:
            # While the control store is unavailable, the API's name is known from the state alone.
            upstream = upstream or (None if state is None else state.rules.get("upstream"))
            self._sync = SyncPlan(read, rules_of(self._stream, read, upstream), state, window)
            self._sync.check(self.figures.target)
            if not self._sync.is_full:
                # A merge finds rows by these columns: without one, it would take each record for a new row.
                names = {".".join(path): "primary_key" for path in key_paths(self._stream.primary_key)}
                for name in self._target.lacks({**names, read.column.name: ""}):
                    raise ConfigurationError(
                        f"streams.{self._stream.name}.{names.get(name, 'incremental.cursor_field')}",
                        f"{self.figures.target} has rows and no column {name!r}; it was renamed or dropped since the"
                        " last sync",
                        "rename it back, or run once with full_refresh: true",
                    )
        is_full = self._sync is None or self._sync.is_full
        self._prints = full if is_full else fingerprints_of(*definition, incremental=True, window=window)
        if self._options.replace_where is not None:
            return self._prints, self._target.state_digest
        return self._prints, None if state is None or window is not None else state.digest

    def _state_of(self, upstream: str | None) -> SyncState | None:
        """Return the table's state; None if there is none, or if its rows are from another API.

        :param upstream: name of the API, if the connection led to another one before
        :raises SyncStateError: the rows may be from another API, and only a window is to be read
        """
        state = self._target.sync_state()
        if upstream is None or (state is not None and state.rules.get("upstream") == upstream):
            return state
        if self._window is not None and (state is not None or self._target.may_be_of_another(upstream, self.ledger.id)):
            raise SyncStateError(_ANOTHER_API.format(table=self.figures.target))
        if state is not None:
            _log.info("%s has rows of another API, so everything is read", self.figures.target)
        return None

    def _changed_slices(self) -> Iterable[Mapping[str, Any]] | None:
        """Return the slices that ask for changes, or for the window; None to read the whole stream."""
        if self._sync is not None and self._sync.window is not None:
            return self._sync.read.window_slices(self._sync.window)
        if self._sync is None or self._sync.state is None:
            return None
        return self._sync.slices(self._sync.state, datetime.now(timezone.utc))

    def _labels(self) -> dict[str, Any]:
        """Return the header fields that name the source, the mode of publish and the task of the attempt."""
        run, task = self._config.run.airflow, {"dag_id", "dag_run_id", "task_id", "map_index", "try_number"}
        is_first_sync = self._config.sync == "incremental" and self._sync is not None and self._sync.is_full
        stream, secrets = self._stream, secrets_of(self._config)
        # Without secrets, and without the path of an address.
        facts = {
            "stream": stream.name,
            "host": stream.api_host and bare_host(stream.api_host),
            "paging": stream.pages_by,
            "primary_key": ", ".join(".".join(path) for path in key_paths(stream.primary_key)),
        }
        return {
            "mode": None if is_first_sync or self._options.mode == "replace" else self._options.mode,
            "replace_where": self._options.replace_where,
            "silence": silence_seconds(self._options),
            **{name: cut(redact(fact, secrets), _LONGEST_FACT) if fact else None for name, fact in facts.items()},
            **(run.model_dump(include=task) if run is not None else {}),
        }

    def _read(self, book: PartitionBook) -> None:
        # The errors that were retried when the driver listed the partitions.
        self.ledger.note_retried(self._stream.context.retried.counts())
        reader = StreamReader(
            self.ledger,
            book,
            source=self._source,
            stream=self.figures.stream,
            options=self._options,
            addressable=self._stream.addressable,
            infers=self._rules.infers,
            report=self._report,
        )
        try:
            reader.read_all(self._rounds)
        except FencedError:
            raise
        except Exception:
            with suppress(Exception):
                reader.figures += TaskFigures(pages=self.ledger.flushed_pages())
            raise
        finally:
            self.figures.pages_fetched = reader.figures.pages
            self.figures.pages_skipped = reader.figures.skipped
            self._take_header()
        if book.failed:
            raise _failure(self.figures.stream, book)
        if book.open_ordinals():
            raise RefreshStoppedError(
                f"{self.figures.stream}: stopped with {book.done} of {len(book)} partitions done;"
                " the next attempt continues"
            )

    def _mark_published(self, outcome: PublishOutcome) -> None:
        try:
            publication = self._publication_of(self.ledger.held)
            self.ledger.commit([], **published_fields(outcome, publication))
        except FencedError as fenced:
            _log.warning("published, but not marked so: %s", fenced)

    def _take_header(self) -> None:
        header, figures = self.ledger.held, self.figures
        figures.generation, figures.epoch, figures.attempts = header.generation, header.epoch, header.attempts
        figures.rounds, figures.pages, figures.partitions = header.rounds, header.pages, header.partitions
        figures.pages_refetched, figures.overlap_checks = header.pages_refetched, header.overlap_checks

    def _take_outcome(self, outcome: PublishOutcome) -> None:
        self.figures = replace(self.figures, **asdict(outcome))


def refuses_generation(error: BaseException) -> bool:
    """Tell whether a publish of the same rows would fail with this error again.

    Errors of the machine and the network are transient; any other error that is not of this package is taken to be
    about the rows.
    """
    if isinstance(error, RfrError):
        return error.refuses_generation
    return not isinstance(error, (OSError, EOFError, MemoryError))


def _failure(stream: str, book: PartitionBook) -> BaseException:
    """Return the error of an attempt in which partitions failed.

    If all failed with the same class of error, and it is not one of the source, return the first of them; else return
    an error that lists all.
    """
    first = next(iter(book.failed.values()))
    if len({type(error) for error in book.failed.values()}) == 1 and not isinstance(
        first, (SourceError, SourceChangedError)
    ):
        return first
    failures = {}
    for ordinal, error in book.failed.items():
        # The list names the partition already, and a SourceError's text would repeat it.
        if isinstance(error, SourceError) and error.page is not None:
            failures[book.keys[ordinal]] = f"page {error.page}: {error.description}"
        else:
            failures[book.keys[ordinal]] = str(error)
    shown = list(failures.items())[:_NAMED_FAILURES]
    named = "; ".join(f"{page_place(key, end=': ')}{reason}" for key, reason in shown)
    more = f"; and {len(failures) - _NAMED_FAILURES} more, each in the log" if len(failures) > _NAMED_FAILURES else ""
    count = f"{len(failures)} of {len(book)} partitions could not be read" if len(book) > 1 else "reading failed"
    failed = RefreshFailedError(f"{stream}: {count}, what was read is kept: {named}{more}", failures)
    # An error that a retry may solve becomes the cause, so that a 403 of one partition does not end all retries.
    retryable = (error for error in book.failed.values() if not isinstance(error, RfrError) or error.retryable)
    failed.__cause__ = next(retryable, first)
    return failed
