"""The application of the sample API: checks the key, applies the faults and makes the page."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from enum import Enum, auto
from functools import lru_cache
from urllib.parse import parse_qsl, unquote

from airflow_provider_rfr.sample_api.dataset import Dataset, Sizes
from airflow_provider_rfr.sample_api.faults import CHANGES, Fault, FaultKind, FaultPlan
from airflow_provider_rfr.sample_api.journal import Diary, JournalEntry, RequestJournal
from airflow_provider_rfr.sample_api.pages import (
    PLAIN,
    BadRequest,
    EncodedReply,
    NotFound,
    Tweak,
    error_reply,
    page_of,
    raw_reply,
)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as the server received it.

    :ivar headers: by lower-case name
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Manner(Enum):
    """The ways to send a reply."""

    WHOLE = auto()
    DRIP = auto()
    TRUNCATE = auto()
    HANG = auto()
    DISCONNECT = auto()


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """The reply to one request, and how the connection sends it.

    :ivar delay: seconds before the first byte
    :ivar entry: the journal's entry, None for the admin's paths
    :ivar fault: the parameters of any manner but WHOLE
    :ivar subscribe: takes the function that sends the reply; None to send it at once
    """

    reply: EncodedReply
    entry: JournalEntry | None = None
    delay: float = 0.0
    manner: Manner = Manner.WHOLE
    fault: Fault | None = None
    subscribe: Callable[[Callable[[], None]], None] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a sample API.

    :ivar latency: shortest time of an answer, in seconds
    :ivar api_key: required in ``X-Api-Key`` or as a bearer token; None for an open API
    :ivar cache_bytes: limit of the cache of pages
    :ivar diary: file that survives a kill of the API; see `airflow_provider_rfr.sample_api.journal`
    """

    sizes: Sizes = field(default_factory=Sizes)
    latency: float = 0.0
    api_key: str | None = None
    cache_bytes: int = 1 << 30
    diary: str | None = None


_MANNERS = {
    FaultKind.DRIP: Manner.DRIP,
    FaultKind.TRUNCATE: Manner.TRUNCATE,
    FaultKind.HANG: Manner.HANG,
    FaultKind.DISCONNECT: Manner.DISCONNECT,
}


class SampleApp:
    """The API's state. One instance serves one event loop; nothing here waits."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.dataset = Dataset(options.sizes)
        self.faults = FaultPlan()
        self.journal = RequestJournal()
        self._cache: dict[tuple[str, str, frozenset[tuple[str, str]]], EncodedReply] = {}
        self._cached_bytes = 0
        self._changed = False
        self._chance = random.Random(1)
        self._diary = Diary(options.diary) if options.diary is not None else None

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
        if (refusal := self._refusal(request)) is not None:
            return self._delivery(refusal, entry)
        hits = self.faults.hit(path, query)
        if not hits:
            delivery = self._delivery(self._page(request, path, query, PLAIN), entry)
        else:
            delivery = self._faulty(request, path, query, entry, hits)
        if self._diary is not None and delivery.manner in (Manner.WHOLE, Manner.DRIP):
            self._diary.note(path, query, delivery.reply)
        return delivery

    def change(self, fault: Fault) -> None:
        """Change the data now instead of with the next request.

        :raises ValueError: the fault changes no data, or names no collection
        :raises KeyError: the collection does not exist
        """
        if fault.collection is None or fault.kind not in (FaultKind.SHRINK, FaultKind.EDIT):
            raise ValueError("a change must be a shrink or an edit with a collection")
        if fault.kind is FaultKind.SHRINK:
            self.dataset.shrink(fault.collection, fault.records)
        else:
            self.dataset.edit(fault.collection)
        self._changed = True
        self._forget_pages()

    def warm(self, origin: str, page_size: int) -> None:
        """Make every page of the partitions in advance, so that readers do not wait."""
        sizes = self.options.sizes
        for partition in range(sizes.partitions):
            for page in range(1, -(-sizes.items_per_partition // page_size) + 1):
                target = f"/partitions/{partition}/items?page={page}&page_size={page_size}"
                path, query = split_target(target)
                self._page(ReceivedRequest("GET", target, {"host": origin}, b""), path, query, PLAIN)

    def _refusal(self, request: ReceivedRequest) -> EncodedReply | None:
        if request.method != "GET":
            return error_reply(405, f"{request.method} is not allowed", {"Allow": "GET"})
        key = self.options.api_key
        api_key, authorization = request.headers.get("x-api-key"), request.headers.get("authorization")
        if key is not None and api_key != key and authorization != f"Bearer {key}":
            return error_reply(401, "an API key is needed", {"WWW-Authenticate": "Bearer"})
        return None

    def _delivery(self, reply: EncodedReply, entry: JournalEntry, delay: float = 0.0) -> ReplyPlan:
        entry.page, entry.status, entry.records = reply.page, reply.status, reply.records
        return ReplyPlan(reply, entry, self.options.latency + delay)

    def _page(self, request: ReceivedRequest, path: str, query: Mapping[str, str], tweak: Tweak) -> EncodedReply:
        host = request.headers.get("host", "")
        # Clients send parameters in different orders, and all of them use the pages made in advance.
        place = (host, path, frozenset(query.items()))
        if tweak is PLAIN and (cached := self._cache.get(place)) is not None:
            return cached
        try:
            reply = page_of(self.dataset, path, query, f"http://{host}", tweak)
        except NotFound as error:
            return error_reply(404, str(error))
        except BadRequest as error:
            return error_reply(400, str(error))
        if tweak is PLAIN and self._cached_bytes < self.options.cache_bytes:
            self._cache[place] = reply
            self._cached_bytes += len(reply.body)
        return reply

    def _faulty(
        self, request: ReceivedRequest, path: str, query: Mapping[str, str], entry: JournalEntry, hits: list[Fault]
    ) -> ReplyPlan:
        for fault in hits:
            if fault.kind in CHANGES:
                self._change(fault, path)
        reply = next((substitute for fault in hits if (substitute := _instead(fault)) is not None), None)
        if reply is None:
            reply = self._page(request, path, query, _tweak(hits))
        for fault in hits:
            if fault.kind is FaultKind.MALFORMED:
                reply = raw_reply(reply.body[: len(reply.body) // 2])
        delay = sum(fault.delay(self._chance) for fault in hits if fault.kind is FaultKind.LATENCY)
        delivery = self._delivery(reply, entry, delay)
        if any(fault.kind is FaultKind.HOLD for fault in hits):
            delivery = replace(delivery, subscribe=self.faults.hold)
        odd = next((fault for fault in hits if fault.kind in _MANNERS), None)
        if odd is None:
            return delivery
        if odd.kind in (FaultKind.HANG, FaultKind.DISCONNECT):
            entry.status = None
        return replace(delivery, manner=_MANNERS[odd.kind], fault=odd)

    def _change(self, fault: Fault, path: str) -> None:
        where = fault.collection or path
        if fault.kind is FaultKind.CHANGE_PARENTS:
            self.dataset.change_parents(add=fault.add, remove=fault.remove, reverse=fault.reverse)
        elif self.dataset.collection(where) is None:
            return
        elif fault.kind is FaultKind.SHRINK:
            self.dataset.shrink(where, fault.records)
        else:
            self.dataset.edit(where)
        self._changed = True
        self._forget_pages()


@lru_cache(maxsize=200_000)
def split_target(target: str) -> tuple[str, dict[str, str]]:
    """Return path and query; the last value of a repeated name counts. The result is shared: don't change it."""
    path, _, query = target.partition("?")
    return unquote(path), dict(parse_qsl(query, keep_blank_values=True))


def _tweak(hits: list[Fault]) -> Tweak:
    leave_out = sum(fault.records for fault in hits if fault.kind is FaultKind.SHORT_PAGE)
    repeat = any(fault.kind is FaultKind.REPEAT_CURSOR for fault in hits)
    stale = any(fault.kind is FaultKind.REPEAT_PAGE for fault in hits)
    return Tweak(leave_out, repeat, stale) if leave_out or repeat or stale else PLAIN


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
