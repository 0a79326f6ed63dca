"""Results of a task from its driver's last line: the return value, or the one sentence that it fails with."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr import exceptions
from airflow_provider_rfr.exceptions import RateLimitedError, RefreshFailedError, RfrError
from airflow_provider_rfr.text import one_line

_FIGURES = ("generation", "snapshot_id", "pages", "rows", "pages_refetched", "attempts")
_MORE = (
    *("pages_fetched", "pages_skipped", "records_missing", "partitions", "duplicates_removed", "schema_changes"),
    *("already_published", "seconds"),
)
LONGEST_SENTENCE = 2_000
_ERROR_LINE = re.compile(r"(Exception in thread|Error:|ERROR\b|[\w.]+(Error|Exception): )")


def result_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the return value of the task, from the driver's figures.

    One stream: its figures. Several: totals, and each stream's figures below ``streams``. A snapshot id is text:
    Airflow's pages, as all of JavaScript, round a number of its size.
    """
    result = {name: figures[name] for name in ("stream", "target", *_FIGURES, *_MORE) if name in figures}
    if result.get("snapshot_id") is not None:
        result["snapshot_id"] = str(result["snapshot_id"])
    several = figures.get("streams")
    if not several:
        return result
    for name in ("stream", "target", "generation", "snapshot_id", "attempts", "schema_changes", "already_published"):
        result.pop(name, None)
    result["streams"] = {one["stream"]: result_of(one) for one in several}
    return result


def result_of_ledger(tables: Mapping[str, str], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the return value of the task where the driver ran elsewhere and its last line did not come here.

    :param tables: table by stream
    :param found: figures by table
    """
    every = [{"stream": stream, **found[table]} for stream, table in tables.items()]
    if len(every) == 1:
        return every[0]
    names = ("pages", "rows", "pages_refetched", "partitions")
    totals = {name: sum(one.get(name, 0) for one in every) for name in names}
    return {**totals, "streams": {one["stream"]: one for one in every}}


def sentence_of(result: Mapping[str, Any]) -> str:
    """Return the last line of the task's log: rows and tables that were published, now or by an earlier try.

    :param result: the return value of the task
    """
    tables = list(result["streams"].values()) if "streams" in result else [result]
    before = [table for table in tables if table.get("already_published")]
    now = [table for table in tables if table not in before]
    sentences = []
    if now:
        rows, pages = (sum(table[name] for table in now) for name in ("rows", "pages"))
        seconds = (result.get("seconds") or {}).get("total")
        took = "" if seconds is None else f" in {seconds:.1f} s"
        sentences.append(f"Published {rows} rows of {pages} pages to {_names(now)}{took}")
    if before:
        verb = "was" if len(before) == 1 else "were"
        sentences.append(f"{_names(before)} {verb} published already by this run; nothing was read")
    return "; ".join(sentences)


def _names(tables: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(table["target"] for table in tables)


def figures_by_table(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the figures in each table's asset event, from the return value of the task."""
    every: Sequence[Mapping[str, Any]] = list(result["streams"].values()) if "streams" in result else [result]
    return {one["target"]: {name: one[name] for name in ("stream", *_FIGURES) if name in one} for one in every}


def failure_of_driver(
    result_line: Mapping[str, Any] | None, exit_code: int | None = None, lines: Sequence[str] = ()
) -> Exception | None:
    """Return the error of a driver that failed.

    Return None where nothing is known of one, because the submit itself failed.

    :param result_line: its line of figures, None if it printed none
    :param exit_code: of spark-submit; negative for the signal that ended it
    :param lines: the end of what spark-submit printed
    """
    if result_line is not None and "error" in result_line:
        errors = result_line.get("errors") or [result_line["error"]]
        # One error that a retry may fix is enough for a retry: what other streams lack is then read again as well.
        hopeful = (error for error in errors if not isinstance(_failure_of(error), AirflowFailException))
        return _failure_of(next(hopeful, errors[0]), len(errors) - 1)
    if not exit_code:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    if 0 < number < 65:
        name = next((Signal.name for Signal in signal.Signals if Signal == number), f"signal {number}")
        why = f"was ended by {name}" + (" (often for its memory)" if number == signal.SIGKILL else "")
    else:
        why = f"ended with exit code {exit_code}"
    cause = cause_in(lines)
    problem = f"the Spark driver {why}" + (f": {cause}" if cause else "")
    return RefreshFailedError(_sentence(problem, "what was read is kept for the next attempt"))


def _failure_of(error: Mapping[str, Any], more: int = 0) -> Exception:
    """Return the exception for an error in a driver's last line; :class:`AirflowFailException` if no retry helps."""
    kind, cause, stream = _class_named(error.get("type")), _class_named(error.get("cause")), error.get("stream")
    problem = one_line(str(error.get("message") or error.get("type")), LONGEST_SENTENCE)
    if stream and not problem.startswith(f"{stream}:"):
        problem = f"{stream}: {problem}"
    if more:
        problem += f" (and {more} more)"
    final = next((error for error in (kind, cause) if not error.retryable), None)
    if final is not None:
        return AirflowFailException(_sentence(problem, final.advice))
    if RateLimitedError in (kind, cause):
        return RateLimitedError(problem, retry_after=float(error.get("retry_after") or 0.0))
    # Its own class where that takes a bare message, so that retry policies can tell errors apart.
    try:
        return RefreshFailedError(problem) if kind is RfrError else kind(problem)
    except TypeError:
        return RefreshFailedError(problem)


def _class_named(name: Any) -> type[RfrError]:
    """Return the class of an error that a driver names; the base class for one that is not of this package."""
    found = getattr(exceptions, str(name), None)
    return found if isinstance(found, type) and issubclass(found, RfrError) else RfrError


@contextmanager
def final_errors(log_error: Callable[[str], Any]) -> Iterator[None]:
    """Raise an error that no retry helps as Airflow's own final one, in one line.

    The line is logged as well: Airflow shows an exception as the title of a traceback, cut off at the window's edge.
    """
    try:
        yield
    except Exception as error:
        sentence = one_line(str(error), LONGEST_SENTENCE)
        log_error(sentence)
        if isinstance(error, RfrError) and not error.retryable:
            raise AirflowFailException(sentence) from None
        raise


def cause_in(lines: Sequence[str]) -> str | None:
    """Find the line with the reason why spark-submit gave up: the innermost cause, else the first error."""
    causes = [line for line in lines if line.startswith("Caused by: ")]
    found = causes[-1:] or [line for line in lines if _ERROR_LINE.match(line)][:1]
    return one_line(found[0], LONGEST_SENTENCE) if found else None


def _sentence(problem: str, remedy: str) -> str:
    return f"{problem.rstrip('. ')}; {remedy}" if remedy else problem
