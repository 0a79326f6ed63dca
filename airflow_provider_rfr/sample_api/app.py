"""The application of the sample API: checks the key, injects faults, makes the page, and keeps a journal.

A fault is one JSON object. These fields select its requests:

* ``path``: a glob on the path (``/orders``, ``/customers/*/orders``; default: every path but ``/_admin``)
* ``query``: values that the query must have (``{"page": "3"}``)
* ``after``: matching requests that pass before the first fault (default 0)
* ``times``: requests that get the fault after that (default: all)

``kind`` selects the fault, see `FaultKind`; the other fields are its parameters.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from email.utils import formatdate
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson

from airflow_provider_rfr.sample_api.dataset import (
    PLAIN,
    Dataset,
    EncodedReply,
    Refusal,
    Sizes,
    Tweak,
    error_reply,
    page_of,
    reply_of,
)


class FaultKind(str, Enum):
    """The kinds of fault, with the fields that they read."""

    RATE_LIMIT = "rate_limit"  # 429 with Retry-After: retry_after (s), as_date
    ERROR = "error"  # status (500), with the JSON body {"error": message}
    LATENCY = "latency"  # seconds, or from seconds to seconds_max at random
    DRIP = "drip"  # the body in pieces of `chunk` bytes, `seconds` apart
    HOLD = "hold"  # the answer comes when the faults are set again; `after` counts different requests
    HANG = "hang"  # no answer; the connection closes after seconds, if given
    TRUNCATE = "truncate"  # the full Content-Length, then only the share `keep` of the body
    DISCONNECT = "disconnect"  # the connection ends without an answer
    MALFORMED = "malformed"  # 200 with half of the JSON, and a Content-Length that fits it
    REDIRECT = "redirect"  # 302 to `location`
    REPEAT_CURSOR = "repeat_cursor"  # the next cursor (or link) is the one just used: an endless loop
    REPEAT_PAGE = "repeat_page"  # the records of the page before, under this page's number
    EXPIRE_TOKEN = "expire_token"  # 410, for requests that carry a cursor
    SHORT_PAGE = "short_page"  # the last `records` records of the page are left out, more pages follow
    SHRINK = "shrink"  # delete the first `records` of the collection, then answer
    EDIT = "edit"  # change every record of the collection, then answer
    CHANGE_PARENTS = "change_parents"  # customers: `add` so many, `remove` these ids, `reverse` the order
    CHANGE_SHIPMENTS = "change_shipments"  # `add` so many, `edit` and `remove` these ids, all of it `at` a time (now)


CHANGES = frozenset({FaultKind.SHRINK, FaultKind.EDIT, FaultKind.CHANGE_PARENTS, FaultKind.CHANGE_SHIPMENTS})
"""Kinds that change the data rather than one answer; without ``times`` they happen once."""


@dataclass(slots=True)
class Fault:
    """One fault with its counters: ``seen`` matching requests, of which it changed ``used``."""

    kind: FaultKind
    path: str = "*"
    query: Mapping[str, str] = field(default_factory=dict)
    after: int = 0
    times: int | None = None
    seconds: float = 0.0
    seconds_max: float | None = None
    retry_after: float = 1.0
    as_date: bool = False
    status: int = 500
    message: str = "injected"
    chunk: int = 1024
    keep: float = 0.5
    location: str = ""
    records: int = 1
    collection: str | None = None
    add: int = 0
    remove: Sequence[int] = ()
    edit: Sequence[int] = ()
    at: str | None = None
    reverse: bool = False
    seen: int = field(default=0, init=False)
    used: int = field(default=0, init=False)
    _answered: set[tuple[str, frozenset[tuple[str, str]]]] = field(default_factory=set, init=False)

    @classmethod
    def from_json(cls, value: Any) -> Fault:
        """Return the fault of a JSON object.

        :raises ValueError: the value is not an object, or has an unknown kind or field
        """
        if not isinstance(value, Mapping) or "kind" not in value:
            raise ValueError(f"a fault is an object with a 'kind', got {value!r}")
        allowed = {field.name for field in fields(cls) if field.init}
        if unknown := sorted(set(value) - allowed):
            raise ValueError(f"unknown field {unknown[0]!r} of a fault, allowed: {', '.join(sorted(allowed))}")
        fault = cls(**{**value, "kind": FaultKind(value["kind"])})
        fault.query = {name: str(wanted) for name, wanted in fault.query.items()}
        if fault.kind in CHANGES and fault.times is None:
            fault.times = 1
        return fault

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self) if not field.name.startswith("_")}

    def delay(self, chance: random.Random) -> float:
        """Return the seconds to wait, for the kinds that wait."""
        return self.seconds if self.seconds_max is None else chance.uniform(self.seconds, self.seconds_max)

    def hits(self, path: str, query: Mapping[str, str]) -> bool:
        """Count the request; return True if it gets the fault."""
        if not fnmatchcase(path, self.path) or any(query.get(name) != value for name, value in self.query.items()):
            return False
        if self.kind is FaultKind.EXPIRE_TOKEN and "cursor" not in query:
            return False
        if self.kind is FaultKind.HOLD and self.seen < self.after:
            # A slow machine needs more rounds and requests a page more often, so count different requests.
            self._answered.add((path, frozenset(query.items())))
            self.seen = len(self._answered)
            return False
        if self.kind is FaultKind.HOLD and (path, frozenset(query.items())) in self._answered:
            return False
        self.seen += 1
        if self.seen <= self.after or (self.times is not None and self.used >= self.times):
            return False
        self.used += 1
        return True


class FaultPlan:
    """The active faults."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._held: list[Callable[[], None]] = []

    def replace(self, value: Any) -> None:
        """Replace the faults with a JSON list of faults, and send the answers that were on hold.

        :raises ValueError: a fault is invalid; the faults stay as they are
        """
        if not isinstance(value, list):
            raise ValueError("faults are a JSON list")
        self.faults = [Fault.from_json(item) for item in value]
        held, self._held = self._held, []
        for answer in held:
            answer()

    def hold(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` when the faults are replaced."""
        self._held.append(answer)

    def hit(self, path: str, query: Mapping[str, str]) -> list[Fault]:
        """Return the faults for one request. Every matching fault counts the request, so ``after`` is independent."""
        return [fault for fault in self.faults if fault.hits(path, query)]


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
class RequestJournal:
    """Entries in the order of their requests, to count lost, repeated and refetched pages."""

    entries: list[JournalEntry] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    _next: int = 1
    _waiting: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

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
        self._notify()

    def reset(self) -> None:
        """Remove all entries. Sequence numbers continue, so that ``since`` stays valid."""
        self.entries.clear()
        self.times.clear()

    def when(self, pages: int, notify: Callable[[], None]) -> None:
        """Call ``notify`` once this number of different pages was served."""
        self._waiting.append((pages, notify))
        self._notify()

    def since(self, sequence: int, path: str) -> list[JournalEntry]:
        return [entry for entry in self.entries if entry.sequence > sequence and fnmatchcase(entry.path, path)]

    def counts(self, path: str = "*", since: int = 0, detail: bool = False) -> dict[str, Any]:
        """Count the requests and the served pages.

        :param path: a glob on the path
        :param since: only requests after this sequence number
        """
        entries, times = self.entries, self.times
        if path != "*" or since:
            entries = self.since(since, path)
            times = Counter(entry.page for entry in entries if entry.served and entry.page)
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
        ready = [notify for pages, notify in self._waiting if len(self.times) >= pages]
        self._waiting = [(pages, notify) for pages, notify in self._waiting if len(self.times) < pages]
        for notify in ready:
            notify()


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as the server received it.

    :ivar headers: headers by lower-case name
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """The reply to one request, and how the connection sends it.

    :ivar delay: seconds before the first byte
    :ivar entry: the journal's entry, None for the admin's paths
    :ivar fault: drips, truncates or withholds the reply; None to send it whole
    :ivar subscribe: takes the function that sends the reply; None to send it at once
    """

    reply: EncodedReply
    entry: JournalEntry | None = None
    delay: float = 0.0
    fault: Fault | None = None
    subscribe: Callable[[Callable[[], None]], None] | None = None


_CACHE_BYTES = 1 << 30
_OF_ITS_OWN = (FaultKind.CHANGE_PARENTS, FaultKind.CHANGE_SHIPMENTS)
_OF_SENDING = (FaultKind.DRIP, FaultKind.TRUNCATE, FaultKind.HANG, FaultKind.DISCONNECT)


class SampleApp:
    """The API's state. One instance serves one event loop; nothing here waits.

    :param latency: shortest time of an answer, in seconds
    :param api_key: required in ``X-Api-Key`` or as a bearer token; None for an open API
    :param diary: append-only file of the served pages, which survives a kill; a restarted API continues the same file
    """

    def __init__(self, sizes: Sizes, latency: float, api_key: str | None, diary: str | None) -> None:
        self.dataset = Dataset(sizes)
        self.faults = FaultPlan()
        self.journal = RequestJournal()
        self._cache: dict[tuple[str, str, frozenset[tuple[str, str]]], EncodedReply] = {}
        self._cached_bytes = 0
        self._changed = False
        self._chance = random.Random(1)
        self._latency = latency
        self._api_key = api_key
        self._diary = None if diary is None else os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def reset(self) -> None:
        """Forget requests, faults and changes of the data."""
        self.journal.reset()
        self.faults.replace([])
        if self._changed:
            self.dataset.reset()
            self._forget_pages()
            self._changed = False

    def _forget_pages(self) -> None:
        self._cache.clear()
        self._cached_bytes = 0

    def serve(self, request: ReceivedRequest) -> ReplyPlan:
        """Plan the reply to one data request."""
        path, query = split_target(request.target)
        entry = self.journal.begin(request.method, path, query)
        key, headers = self._api_key, request.headers
        if request.method != "GET":
            return self._delivery(error_reply(405, f"{request.method} is not allowed", {"Allow": "GET"}), entry)
        if key is not None and headers.get("x-api-key") != key and headers.get("authorization") != f"Bearer {key}":
            return self._delivery(error_reply(401, "an API key is needed", {"WWW-Authenticate": "Bearer"}), entry)
        host, hits = headers.get("host", ""), self.faults.hit(path, query)
        if hits:
            delivery = self._faulty(host, path, query, entry, hits)
        else:
            delivery = self._delivery(self._page(host, path, query, PLAIN), entry)
        reply, is_whole = delivery.reply, delivery.fault is None or delivery.fault.kind is FaultKind.DRIP
        if is_whole and self._diary is not None and reply.page is not None and reply.status == 200:
            body = orjson.loads(reply.body)
            records = body if isinstance(body, list) else body["data"]
            line = {
                "at": time.time(),
                "path": path,
                "query": dict(query),
                "page": reply.page,
                "records": [[record["id"], record.get("revision", 0)] for record in records],
            }
            # Before the answer, unbuffered and in one call. So every page that a client received is in the file,
            # whichever process was killed.
            os.write(self._diary, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        return delivery

    def change(self, fault: Fault) -> None:
        """Change the data now instead of with the next request.

        :raises ValueError: the fault changes no data, or names no collection
        :raises KeyError: the collection, or a record of it, does not exist
        """
        has_collection = fault.collection is not None and fault.kind in (FaultKind.SHRINK, FaultKind.EDIT)
        if not has_collection and fault.kind is not FaultKind.CHANGE_SHIPMENTS:
            raise ValueError("a change must be change_shipments, or a shrink or an edit with a collection")
        self._change(fault, fault.collection or "")

    def _change(self, fault: Fault, collection: str) -> None:
        if fault.kind is FaultKind.CHANGE_PARENTS:
            self.dataset.change_parents(add=fault.add, remove=fault.remove, reverse=fault.reverse)
        elif fault.kind is FaultKind.CHANGE_SHIPMENTS:
            self.dataset.change_shipments(edit=fault.edit, add=fault.add, remove=fault.remove, at=fault.at)
        elif fault.kind is FaultKind.SHRINK:
            self.dataset.shrink(collection, fault.records)
        else:
            self.dataset.edit(collection)
        self._changed = True
        self._forget_pages()

    def warm(self, host: str, page_size: int) -> None:
        """Make every page of the partitions in advance, so that readers do not wait."""
        sizes = self.dataset.sizes
        for partition in range(sizes.partitions):
            for page in range(1, -(-sizes.items_per_partition // page_size) + 1):
                query = {"page": str(page), "page_size": str(page_size)}
                self._page(host, f"/partitions/{partition}/items", query, PLAIN)

    def _delivery(self, reply: EncodedReply, entry: JournalEntry, delay: float = 0.0) -> ReplyPlan:
        entry.page, entry.status, entry.records = reply.page, reply.status, reply.records
        return ReplyPlan(reply, entry, self._latency + delay)

    def _page(self, host: str, path: str, query: Mapping[str, str], tweak: Tweak) -> EncodedReply:
        # Clients send parameters in different orders, and all of them use the pages made in advance.
        place = (host, path, frozenset(query.items()))
        if tweak is PLAIN and (cached := self._cache.get(place)) is not None:
            return cached
        try:
            reply = page_of(self.dataset, path, query, f"http://{host}", tweak)
        except Refusal as error:
            return error_reply(error.status, str(error))
        if tweak is PLAIN and self._cached_bytes < _CACHE_BYTES:
            self._cache[place] = reply
            self._cached_bytes += len(reply.body)
        return reply

    def _faulty(
        self, host: str, path: str, query: Mapping[str, str], entry: JournalEntry, hits: list[Fault]
    ) -> ReplyPlan:
        for fault in hits:
            if fault.kind not in CHANGES:
                continue
            collection = fault.collection or path
            if fault.kind in _OF_ITS_OWN or self.dataset.collection(collection) is not None:
                self._change(fault, collection)
        reply = next((substitute for fault in hits if (substitute := _instead(fault)) is not None), None)
        if reply is None:
            kinds = {fault.kind for fault in hits}
            leave_out = sum(fault.records for fault in hits if fault.kind is FaultKind.SHORT_PAGE)
            tweak = Tweak(leave_out, FaultKind.REPEAT_CURSOR in kinds, FaultKind.REPEAT_PAGE in kinds)
            reply = self._page(host, path, query, PLAIN if tweak == PLAIN else tweak)
        for fault in hits:
            if fault.kind is FaultKind.MALFORMED:
                reply = reply_of(reply.body[: len(reply.body) // 2])
        delay = sum(fault.delay(self._chance) for fault in hits if fault.kind is FaultKind.LATENCY)
        delivery = self._delivery(reply, entry, delay)
        if any(fault.kind is FaultKind.HOLD for fault in hits):
            delivery = replace(delivery, subscribe=self.faults.hold)
        odd = next((fault for fault in hits if fault.kind in _OF_SENDING), None)
        if odd is None:
            return delivery
        if odd.kind in (FaultKind.HANG, FaultKind.DISCONNECT):
            entry.status = None
        return replace(delivery, fault=odd)


@lru_cache(maxsize=200_000)
def split_target(target: str) -> tuple[str, dict[str, str]]:
    """Return path and query; the last value of a repeated name counts. The result is shared: don't change it."""
    path, _, query = target.partition("?")
    return unquote(path), dict(parse_qsl(query, keep_blank_values=True))


def _instead(fault: Fault) -> EncodedReply | None:
    """Return the reply that a fault sends instead of the page; None for other kinds of fault."""
    if fault.kind is FaultKind.RATE_LIMIT:
        seconds = fault.retry_after
        wait = formatdate(time.time() + seconds, usegmt=True) if fault.as_date else f"{seconds:g}"
        return error_reply(429, "too many requests", {"Retry-After": wait})
    if fault.kind is FaultKind.ERROR:
        return error_reply(fault.status, fault.message)
    if fault.kind is FaultKind.EXPIRE_TOKEN:
        return error_reply(410, "the cursor is no longer valid")
    if fault.kind is FaultKind.REDIRECT:
        return error_reply(302, "elsewhere", {"Location": fault.location})
    return None
