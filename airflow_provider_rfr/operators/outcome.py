"""The driver's last line: figures of a refresh that was published, or the one sentence of why it was not."""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow_provider_rfr import exceptions
from airflow_provider_rfr.exceptions import RateLimitedError, RfrError

FINAL = frozenset(
    {
        "ConfigurationError",
        "SourceDefinitionError",
        "AuthenticationError",
        "SchemaError",
        "TypeMismatchError",
        "SchemaEvolutionError",
        "PublishRefusedError",
        "PreflightError",
    }
)
"""Errors that a retry can't mend: the task fails at once."""

RETURNED = (
    "stream",
    "target",
    "generation",
    "snapshot_id",
    "pages",
    "pages_fetched",
    "pages_refetched",
    "overlap_checks",
    "rows",
    "partitions",
    "duplicates_removed",
    "attempts",
    "resumed",
    "seconds",
    "streams",
)


class DriverOutput:
    """Listens to the driver and keeps its last line of JSON."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}

    def listen(self, line: str) -> None:
        """Take a line that the driver printed."""
        start = line.find("{")
        if start < 0 or not line.endswith("}"):
            return
        try:
            value = json.loads(line[start:])
        except ValueError:
            return
        if isinstance(value, dict) and ("generation" in value or "error" in value):
            self.figures = value

    def result(self) -> dict[str, Any]:
        """What the task returns."""
        return {name: self.figures[name] for name in RETURNED if name in self.figures}

    def error(self, fallback: str) -> Exception:
        """The error to end the task with; one that a retry can't mend ends all retries."""
        told = self.figures.get("error")
        if not isinstance(told, dict):
            return RfrError(fallback)
        message = str(told.get("message") or fallback)
        names = {told.get("type"), told.get("cause")}
        if names & FINAL:
            return AirflowFailException(message)
        if "RateLimitedError" in names:
            return RateLimitedError(message, retry_after=float(told.get("retry_after") or 0.0))
        return _named(str(told.get("type")), message)


def _named(name: str, message: str) -> Exception:
    kind = getattr(exceptions, name, None)
    if isinstance(kind, type) and issubclass(kind, RfrError):
        try:
            error: Exception = kind(message)
            return error
        except TypeError:
            # Its constructor wants more than the message, e.g. the epochs of a fence.
            return RfrError(message)
    return RfrError(message)
