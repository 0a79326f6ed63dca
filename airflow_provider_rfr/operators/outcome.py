"""From the driver's last word to what the task returns, or to the one sentence that it fails with."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr import exceptions
from airflow_provider_rfr.exceptions import RateLimitedError, RefreshFailedError, RfrError
from airflow_provider_rfr.refresh.header import PREFIX

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.status import RefreshStatus

_FIGURES = ("generation", "snapshot_id", "pages", "rows", "pages_refetched", "attempts")
_MORE = ("pages_fetched", "pages_skipped", "partitions", "duplicates_removed", "seconds")
_TOLD_BY_COMMIT = ("generation", "pages", "rows", "attempts", "partitions")
RUN_KEY = f"{PREFIX}run-key"
"""What the target's commits name their run by."""
_MAX_SENTENCE = 2_000


def result_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The return value of the task, from the driver's figures.

    One stream: its figures. Several: totals, and each stream's figures below ``streams``. A snapshot id is text:
    Airflow's pages, as all of JavaScript, round a number of its size.
    """
    result = {name: figures[name] for name in ("stream", "target", *_FIGURES, *_MORE) if name in figures}
    if result.get("snapshot_id") is not None:
        result["snapshot_id"] = str(result["snapshot_id"])
    several = figures.get("streams")
    if not several:
        return result
    for name in ("stream", "target", "generation", "snapshot_id", "attempts"):
        result.pop(name, None)
    result["streams"] = {one["stream"]: result_of(one) for one in several}
    return result


def result_of_ledger(tables: Mapping[str, str], found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The same where the driver ran elsewhere and its last line did not come here.

    :param tables: table by stream
    :param found: figures by table
    """
    every = [{"stream": stream, **found[table]} for stream, table in tables.items()]
    if len(every) == 1:
        return every[0]
    names = ("pages", "rows", "pages_refetched", "partitions")
    totals = {name: sum(one.get(name, 0) for one in every) for name in names}
    return {**totals, "streams": {one["stream"]: one for one in every}}


def figures_by_table(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the asset of each table is told."""
    every: Sequence[Mapping[str, Any]] = list(result["streams"].values()) if "streams" in result else [result]
    return {one["target"]: {name: one[name] for name in ("stream", *_FIGURES) if name in one} for one in every}


def figures_of_ledger(table: str, status: RefreshStatus) -> dict[str, Any]:
    """What a task returns of one table, by the header of its ledger."""
    return {
        "target": table,
        "generation": status.generation,
        "snapshot_id": None if status.snapshot_id is None else str(status.snapshot_id),
        "pages": status.pages,
        "rows": status.published_rows or 0,
        "pages_refetched": status.pages_refetched,
        "attempts": status.attempts,
        "partitions": status.partitions,
    }


def figures_of_commit(table: str, summary: Mapping[str, str]) -> dict[str, Any]:
    """The same by the summary of the target's commit, which does not know what was read twice."""
    counts = {name: int(summary[PREFIX + name]) for name in _TOLD_BY_COMMIT if PREFIX + name in summary}
    return {"target": table, **({"snapshot_id": summary["snapshot-id"]} if "snapshot-id" in summary else {}), **counts}


def _decisive(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The error that decides whether the task is tried again: the first that a retry may mend, else the first."""
    hopeful = (error for error in errors if not isinstance(_failure_of(error), AirflowFailException))
    return next(hopeful, errors[0])


def _failure_of(error: Mapping[str, Any], more: int = 0) -> Exception:
    """The exception for an error that the driver told; one that no retry helps is Airflow's failing one.

    :param more: how many further errors there were
    """
    kind, cause = str(error.get("type")), str(error.get("cause"))
    stream = error.get("stream")
    message = one_line(str(error.get("message") or kind))
    told = message if not stream or message.startswith(f"{stream}:") else f"{stream}: {message}"
    told += f" (and {more} more)" if more else ""
    final = next((known for known in map(_class_named, (kind, cause)) if not known.retryable), None)
    if final is not None:
        return AirflowFailException(_sentence(told, str(error.get("remedy") or final.advice)))
    sentence = _sentence(told, str(error.get("remedy") or ""))
    if "RateLimitedError" in (kind, cause):
        return RateLimitedError(sentence, retry_after=float(error.get("retry_after") or 0.0))
    return _retryable(kind, sentence)


def failure_of_driver(
    word: Mapping[str, Any] | None, exit_code: int | None = None, lines: Sequence[str] = ()
) -> Exception | None:
    """What a driver's end says; None where it says nothing: then the submit itself failed.

    :param word: its last one
    """
    if word is not None and "error" in word:
        errors = word.get("errors") or [word["error"]]
        return _failure_of(_decisive(errors), len(errors) - 1)
    return _silent_failure(exit_code, lines) if exit_code else None


def final(refresh: Callable[[], dict[str, Any]], tell: Callable[[str], Any]) -> dict[str, Any]:
    """Run the refresh; what a retry would only meet again is raised as Airflow's own final error.

    The reason is told too: Airflow shows an exception as the title of a traceback, cut off at the window's edge.
    """
    try:
        return refresh()
    except Exception as error:
        sentence = one_line(str(error))
        tell(sentence)
        if isinstance(error, RfrError) and not error.retryable:
            raise AirflowFailException(sentence) from None
        raise


def _silent_failure(exit_code: int, lines: Sequence[str]) -> RefreshFailedError:
    """The error of a driver that ended without a last word: killed, or never started."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if 0 < number < 65:
        why = f"was ended by {_signal_name(number)}"
        why += " (often for its memory)" if number == signal.SIGKILL else ""
    else:
        why = f"ended with exit code {exit_code}"
    cause = cause_in(lines)
    return RefreshFailedError(
        _sentence(
            f"the Spark driver {why}" + (f": {cause}" if cause else ""), "what was read is kept for the next attempt"
        )
    )


def one_line(text: str) -> str:
    """The text without line breaks, not longer than a log line may be."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _MAX_SENTENCE else f"{flat[:_MAX_SENTENCE]} ..."


def _retryable(kind: str, sentence: str) -> RfrError:
    """Our own class where it takes a bare message, so that retry policies can tell errors apart."""
    found = _class_named(kind)
    try:
        return RefreshFailedError(sentence) if found is RfrError else found(sentence)
    except TypeError:
        return RefreshFailedError(sentence)


def _class_named(kind: str) -> type[RfrError]:
    """The class of an error that a driver told by its name; the base for one that is not of this package."""
    found = getattr(exceptions, kind, None)
    return found if isinstance(found, type) and issubclass(found, RfrError) else RfrError


def _sentence(told: str, remedy: str) -> str:
    return f"{told.rstrip('. ')}; {remedy}" if remedy else told


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def cause_in(lines: Sequence[str]) -> str | None:
    """The line that says why spark-submit gave up: the innermost cause, else the first error."""
    causes = [line for line in lines if line.startswith("Caused by: ")]
    errors = [
        line for line in lines if re.match(r"(Exception in thread|Error:|ERROR\b|[\w.]+(Error|Exception): )", line)
    ]
    found = causes[-1:] or errors[:1]
    return one_line(found[0]) if found else None
