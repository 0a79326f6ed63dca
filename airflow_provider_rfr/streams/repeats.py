"""Counts of the errors after which a request was sent again, by their kind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final

KINDS: Final[Mapping[str, str]] = {
    "http_429": "HTTP 429",
    "http_5xx": "HTTP 500-599",
    "timeout": "timeout",
    "connection": "connection",
    "other": "other",
}
"""Kinds of errors, with their names for people."""


def kind_of_status(status: int) -> str:
    """Return the kind of error of an answer with this status."""
    if status == 429:
        return "http_429"
    return "http_5xx" if 500 <= status <= 599 else "other"


def kind_of_failure(reason: str) -> str:
    """Return the kind of error of a request without an answer, by the reason that the HTTP client gives."""
    return reason if reason in ("timeout", "connection") else "other"


def in_words(counts: Mapping[str, int] | None) -> str:
    """Return the counts for people; an empty text where nothing was counted.

    >>> in_words({"timeout": 1, "http_429": 1200})
    'HTTP 429: 1,200, timeout: 1'
    """
    return ", ".join(f"{name}: {(counts or {})[kind]:,}" for kind, name in KINDS.items() if (counts or {}).get(kind))


class RetriedErrors:
    """The errors that one reader has retried, by kind; thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, kind: str) -> None:
        """Count an error whose request is about to be sent again."""
        with self._lock:
            self._counts[kind] += 1

    def counts(self) -> dict[str, int]:
        """Return the counts until now, without zeros."""
        with self._lock:
            return dict(self._counts)
