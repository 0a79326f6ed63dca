"""Ends a partition whose pages are all ignored.

``IGNORE`` goes on to the next page.  An API that answers 404 beyond its last page would so be asked for
ever.  The guard only counts; what a page is does not depend on it.
"""

from __future__ import annotations

import threading

from airflow_provider_rfr.exceptions import SourceError


class SkipGuard:
    """Remembers which positions of which partition were ignored.  Thread-safe."""

    def __init__(self, most_in_a_row: int) -> None:
        self._most = most_in_a_row
        self._lock = threading.Lock()
        self._skipped: dict[str, set[int]] = {}

    def note(self, partition: str, position: int, reason: str, request: str | None) -> None:
        """:raises SourceError: so many pages before this one were ignored, too"""
        with self._lock:
            positions = self._skipped.setdefault(partition, set())
            positions.add(position)
            first = position
            while first - 1 in positions and position - first < self._most:
                first -= 1
            too_many = position - first >= self._most
        if too_many:
            raise SourceError(
                f"{self._most} pages in a row were ignored ({reason}); "
                "if this answer means that there are no more pages, let the rule say END",
                request=request,
            )
