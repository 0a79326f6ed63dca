"""The Spark application of a refresh: it refreshes the streams of a document, and prints their figures as JSON."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_rfr.exceptions import (
    EXIT_CONFIGURATION,
    EXIT_FAILED,
    EXIT_FENCED,
    RefreshFailedError,
    RfrError,
)
from airflow_provider_rfr.http.redaction import redact
from airflow_provider_rfr.lake.spark import result_line
from airflow_provider_rfr.refresh.cluster import Cluster, is_submitted, without_pandas
from airflow_provider_rfr.refresh.config import RefreshConfig, read_config, secrets_of
from airflow_provider_rfr.refresh.follow import Bar, can_draw, drawn_bar
from airflow_provider_rfr.refresh.process import (
    is_guest,
    save_memory,
    stop_on_signals,
    watch_supervisor,
    write_in_background,
)
from airflow_provider_rfr.refresh.state import LedgerHeader, Progress, TableStatus, state_of
from airflow_provider_rfr.streams.tokens import RefreshTokenStore, finish_redemptions, keep_refresh_tokens
from airflow_provider_rfr.text import page_place, printable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_rfr.history import History

_log = logging.getLogger("airflow_provider_rfr")

_GRACE_SECONDS = 30.0
_TOTALS = (
    *("pages", "pages_fetched", "pages_refetched", "overlap_checks", "pages_skipped", "records_missing", "rows"),
    *("duplicates_removed", "partitions", "rounds", "snapshots_expired", "files_deleted", "files_undeleted"),
)


class Application:
    """An application that refreshes the document's streams side by side; :meth:`stop` is thread-safe.

    As many streams are read at once as it takes to keep ``concurrency`` requests in flight. Each stream is published
    as soon as it is read.

    :param began: start of the process, on the monotonic clock
    :param open_history: opens the history tables of a catalog; None without a control store
    """

    def __init__(
        self, config: RefreshConfig, *, began: float, open_history: Callable[[Catalog], History] | None = None
    ) -> None:
        self._config = config
        self._open_history = open_history
        self._began = began
        self._session_seconds: float | None = None
        self._stopping = threading.Event()
        self._secrets = secrets_of(config)
        self._figures: dict[str, dict[str, Any]] = {}
        self._errors: dict[str, BaseException] = {}
        self._bar: Bar | None = None
        self._starts_at_once = config.options.spark == "always" or is_submitted()
        self._cluster = Cluster(
            "rfr full refresh " + ", ".join(config.streams),
            preload=config.source.class_path is None,
            executor_wait=config.options.executor_wait,
            always=self._starts_at_once,
        )

    def run(self) -> int:
        """Refresh every stream; a failing one does not stop the others. Return the exit code."""
        with drawn_bar() if can_draw() else nullcontext() as self._bar:
            if self._starts_at_once:
                self._cluster.start()
            if self._bar is not None:
                self._bar.say("Spark is starting" if self._cluster.is_started else "the first pages are read")
            for stream, table in self._config.mapped_tables().items():
                _say(f"{stream}: goes to the table {table}, because no table can have its name")
            threading.Thread(target=self._note_session, daemon=True).start()
            # Imported here: this takes a second, during which Spark is already starting.
            from airflow_provider_rfr.refresh.side_by_side import StreamRuns

            runs = StreamRuns(
                self._config,
                self._cluster,
                stopping=self._stopping,
                report=self._report,
                report_failure=self._report_failure,
                open_history=self._open_history,
            )
            self._figures, self._errors = runs.run()
        summary = self._summary()
        for error in summary.get("errors", ()):
            _tell(f"{error['stream']} failed: {error['message'].removeprefix(error['stream'] + ': ')}")
        # Printed before Spark is stopped: its shutdown prints stack traces, and the operator hides all output that
        # follows this line.
        _say(result_line(summary))
        if not self._errors and self._cluster.is_local:
            write_in_background()
        self._cluster.stop()
        codes = [error.exit_code if isinstance(error, RfrError) else EXIT_FAILED for error in self._errors.values()]
        # A configuration error outweighs the others: no retry helps.
        return max(codes, key=(EXIT_FAILED, EXIT_FENCED, EXIT_CONFIGURATION).index, default=0)

    def stop(self, reason: str) -> None:
        """Stop after the current round.

        The process is killed if it has not ended after ``round_seconds`` and 30 seconds more.

        :param reason: reason to print
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        _say(f"stopping: {reason}; what was read is committed, the next attempt continues")
        # A reader that hangs in the network, or a catalog that does not answer, must not keep the process for ever.
        timer = threading.Timer(self._config.options.round_seconds + _GRACE_SECONDS, os._exit, (EXIT_FAILED,))
        timer.daemon = True
        timer.start()

    def _report(self, stream: str, header: LedgerHeader) -> None:
        if self._bar is None:
            _say(Progress.of(header).line(stream))
        else:
            state = state_of(header, datetime.now(timezone.utc))
            self._bar.update(TableStatus(stream, "", state, "", header))

    def _report_failure(self, stream: str, error: BaseException) -> None:
        if isinstance(error, RefreshFailedError):
            # Each partition has a line of its own, because the error's text names only the first of them.
            for key, reason in error.failures.items():
                _say(redact(f"{stream}: failed: {page_place(key, end=': ')}{reason}", self._secrets))

    def _note_session(self) -> None:
        self._cluster.ready.wait()
        if self._bar is not None:
            self._bar.say("Spark runs, the first round is read")
        self._session_seconds = round(time.monotonic() - self._began, 3)
        # Spark logs it, too, but at a level that is turned off.
        if (address := self._cluster.ui_address) is not None:
            _say(f"Spark UI: {address}")

    def _summary(self) -> dict[str, Any]:
        """Return the content of the last line: the totals of all streams, the figures of each, and the errors."""
        figures = [self._figures[stream] for stream in self._config.streams if stream in self._figures]
        phases = {name for item in figures for name in item["seconds"]}
        totals = {name: sum(item[name] for item in figures) for name in _TOTALS}
        summary = {**(figures[0] if figures else {}), **totals}
        summary["seconds"] = {
            **{name: round(sum(item["seconds"].get(name, 0) for item in figures), 3) for name in sorted(phases)},
            "session_ready": self._session_seconds,
            "total": round(time.monotonic() - self._began, 3),
        }
        if len(self._config.streams) > 1:
            summary["streams"] = figures
        described = []
        for stream in self._config.streams:
            if (error := self._errors.get(stream)) is None:
                continue
            cause = error.__cause__
            described.append(
                {
                    "type": type(error).__name__,
                    "cause": type(cause).__name__ if cause is not None else None,
                    "message": redact(str(error) or type(error).__name__, self._secrets),
                    "stream": stream,
                    "retry_after": getattr(cause, "retry_after", getattr(error, "retry_after", None)),
                }
            )
        return {**summary, "error": described[0], "errors": described} if described else summary


def _say(line: str) -> None:
    try:
        # The line and its end are one write, because threads of other streams may print at the same moment.
        print(f"{line}\n", end="", flush=True)
    except BrokenPipeError:
        # A stop of the whole process group ends Java, which passes the lines on, before the last round is committed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(sentence: str) -> None:
    """Print a failure to standard error if a person reads along: the JSON of the last line is hard to read."""
    if sys.stdout.isatty():
        print("\n".join(map(printable, sentence.splitlines())), file=sys.stderr, flush=True)


def failed(error: RfrError) -> int:
    """Report an error that was found before anything ran; print it as the JSON object of the last line.

    :return: the exit code
    """
    _tell(str(error))
    _say(result_line({"error": {"type": type(error).__name__, "message": str(error)}}))
    return EXIT_CONFIGURATION


def main(
    path: str,
    *,
    began: float,
    open_token_store: Callable[[str], RefreshTokenStore] | None = None,
    open_history: Callable[[str, Catalog], History] | None = None,
) -> int:
    """Run the document at ``path``; the last line on stdout is a JSON object. Return the exit code.

    :param began: start of the process, on the monotonic clock
    :param open_token_store: opens the control store at the URL in the document, to keep refresh tokens
    :param open_history: opens the history tables of a catalog, with the control store at that URL
    """
    save_memory()
    # logging.lastResort looks sys.stderr up at each write, so the progress bar, which replaces it, gets its lines.
    assert logging.lastResort is not None
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", handlers=[logging.lastResort]
    )
    logging.lastResort.setLevel(logging.NOTSET)
    _log.setLevel(logging.INFO)
    try:
        config = read_config(path)
    except RfrError as error:
        return failed(error)
    url = config.store.get_secret_value() if config.store is not None else None
    if url is not None and open_token_store is not None:
        keep_refresh_tokens(partial(open_token_store, url))
    history = partial(open_history, url) if url is not None and open_history is not None else None
    application = Application(config, began=began, open_history=history)
    if not is_guest():
        stop_on_signals(application.stop)
    if (supervisor := config.run.supervisor) is not None:
        watch_supervisor(supervisor.pid, supervisor.started, supervisor.host, application.stop)
    if config.source.class_path is None:
        with without_pandas():
            import pyarrow.dataset  # noqa: F401
    try:
        return application.run()
    finally:
        finish_redemptions()
