"""What was served, as the API saw it: the measure of lost, doubled and re-fetched pages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(slots=True)
class Entry:
    """One data request.

    :ivar page: what was read, as collection, place and size: two spellings of one page have the same; None
        where no page was given
    :ivar status: None while the answer is due, and where none was given
    :ivar complete: the whole answer went to the operating system; what the client did with it is not known
    """

    sequence: int
    at: float
    method: str
    path: str
    query: dict[str, str]
    page: str | None = None
    status: int | None = None
    records: int = 0
    seconds: float = 0.0
    complete: bool = False

    @property
    def served(self) -> bool:
        return self.complete and self.status == 200 and self.page is not None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Waiting:
    pages: int
    tell: Callable[[], None]


@dataclass(slots=True)
class Journal:
    """Entries in the order of their requests, and the number of times that each page was served."""

    entries: list[Entry] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    _next: int = 1
    _waiting: list[_Waiting] = field(default_factory=list)

    def begin(self, method: str, path: str, query: dict[str, str]) -> Entry:
        entry = Entry(self._next, time.time(), method, path, query)
        self._next += 1
        self.entries.append(entry)
        return entry

    def finish(self, entry: Entry) -> None:
        """The answer was written as a whole."""
        entry.complete = True
        entry.seconds = time.time() - entry.at
        if entry.page is None or entry.status != 200:
            return
        self.times[entry.page] += 1
        if self._waiting:
            self._tell()

    def reset(self) -> None:
        """Forget the past. Numbers continue, so that ``since`` stays meaningful."""
        self.entries.clear()
        self.times.clear()

    def when(self, pages: int, tell: Callable[[], None]) -> None:
        """Call ``tell`` once so many different pages were served."""
        self._waiting.append(_Waiting(pages, tell))
        self._tell()

    def counts(self, path: str = "*", since: int = 0, detail: bool = False) -> dict[str, Any]:
        """Pages served, by what the API wrote.

        :param path: a glob on the path
        :param since: only requests after this sequence number
        """
        if path == "*" and since == 0:
            return self._summary(self.entries, self.times, detail)
        chosen = [e for e in self.entries if e.sequence > since and (path == "*" or fnmatchcase(e.path, path))]
        return self._summary(chosen, Counter(e.page for e in chosen if e.served and e.page), detail)

    def _summary(self, entries: list[Entry], times: Counter[str], detail: bool) -> dict[str, Any]:
        served = sum(times.values())
        repeated = {page: count for page, count in times.items() if count > 1}
        summary = {
            "requests": len(entries),
            "served": served,
            "pages": len(times),
            "once": len(times) - len(repeated),
            "repeated": len(repeated),
            "refetched": served - len(times),
            "incomplete": sum(not entry.complete for entry in entries),
            "statuses": dict(Counter(str(entry.status) for entry in entries)),
            "last_sequence": self._next - 1,
        }
        if detail:
            summary["repeated_pages"] = repeated
        return summary

    def _tell(self) -> None:
        ready = [waiting for waiting in self._waiting if len(self.times) >= waiting.pages]
        self._waiting = [waiting for waiting in self._waiting if len(self.times) < waiting.pages]
        for waiting in ready:
            waiting.tell()
