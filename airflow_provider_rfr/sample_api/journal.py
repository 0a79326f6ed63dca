"""Records of the served requests: a journal in memory, and a diary that survives a kill of the API."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import orjson

from airflow_provider_rfr.sample_api.pages import EncodedReply


@dataclass(slots=True)
class JournalEntry:
    """One data request.

    :ivar page: collection, position and size, the same for all spellings of a page; None if no page was sent
    :ivar status: None until the answer is ready, and if none is sent
    :ivar complete: whether the whole answer was passed to the operating system; the client may not have read it
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
    notify: Callable[[], None]


@dataclass(slots=True)
class RequestJournal:
    """Entries in the order of their requests, to count lost, repeated and refetched pages."""

    entries: list[JournalEntry] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    _next: int = 1
    _waiting: list[_Waiting] = field(default_factory=list)

    def begin(self, method: str, path: str, query: dict[str, str]) -> JournalEntry:
        entry = JournalEntry(self._next, time.time(), method, path, query)
        self._next += 1
        self.entries.append(entry)
        return entry

    def finish(self, entry: JournalEntry) -> None:
        """Record that the whole answer was written."""
        entry.complete = True
        entry.seconds = time.time() - entry.at
        if entry.page is None or entry.status != 200:
            return
        self.times[entry.page] += 1
        if self._waiting:
            self._notify()

    def reset(self) -> None:
        """Remove all entries. Sequence numbers continue, so that ``since`` stays valid."""
        self.entries.clear()
        self.times.clear()

    def when(self, pages: int, notify: Callable[[], None]) -> None:
        """Call ``notify`` once this number of different pages was served."""
        self._waiting.append(_Waiting(pages, notify))
        self._notify()

    def counts(self, path: str = "*", since: int = 0, detail: bool = False) -> dict[str, Any]:
        """Count the requests and the served pages.

        :param path: a glob on the path
        :param since: only requests after this sequence number
        """
        if path == "*" and since == 0:
            return self._summary(self.entries, self.times, detail)
        chosen = [
            entry for entry in self.entries if entry.sequence > since and (path == "*" or fnmatchcase(entry.path, path))
        ]
        return self._summary(chosen, Counter(entry.page for entry in chosen if entry.served and entry.page), detail)

    def _summary(self, entries: list[JournalEntry], times: Counter[str], detail: bool) -> dict[str, Any]:
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

    def _notify(self) -> None:
        ready = [waiting for waiting in self._waiting if len(self.times) >= waiting.pages]
        self._waiting = [waiting for waiting in self._waiting if len(self.times) < waiting.pages]
        for waiting in ready:
            waiting.notify()


class Diary:
    """An append-only file of the served pages; a restarted API continues the same file.

    Each page is one JSON line: time, path, query, page, and ``[id, revision]`` of each record. The line is written
    *before* the answer, unbuffered and in one call. So every page that a client received is in the file, whichever
    process was killed.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, path: str, query: Mapping[str, str], reply: EncodedReply) -> None:
        """Record one page; ignore other answers."""
        if reply.page is None or reply.status != 200:
            return
        body = orjson.loads(reply.body)
        records = body if isinstance(body, list) else body["data"]
        line = {
            "at": time.time(),
            "path": path,
            "query": dict(query),
            "page": reply.page,
            "records": [[record["id"], record.get("revision", 0)] for record in records],
        }
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
