"""When a partition is at its end: ``empty``, ``short``, ``total`` or ``flag``.

Rows are counted as the API sent them, before any filter.  A page that is merely short is the last one only
under the policy ``short``: servers cap page sizes, and drop rows after they cut the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, TypeAlias

from airflow_provider_rfr.streams.rest.paginators import Finder, Reply

_TEXTS: Final = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known when the question is asked.

    :ivar position: of the page, from 0
    :ivar before: records before this page, if every page before it was full
    """

    reply: Reply
    position: int
    before: int


@dataclass(frozen=True, slots=True)
class Ending:
    """Whether the page is the last, and how many pages there are, if that is known.

    :ivar doubtful: fewer records came than the API's own count promises: pages may be smaller than asked
        for, so the number of pages can't be computed
    :ivar unconfirmed: the page is empty, and the API itself doesn't say that nothing is missing
    """

    last: bool
    total_pages: int | None = None
    doubtful: bool = False
    unconfirmed: bool = False


StopPolicy: TypeAlias = Callable[[Seen], Ending]


def when_empty(seen: Seen) -> Ending:
    """The first page without records is the last."""
    empty = seen.reply.count == 0
    return Ending(empty, unconfirmed=empty)


def when_short(page_size: int) -> StopPolicy:
    """The first page with fewer records than asked for is the last."""
    return lambda seen: Ending(seen.reply.count < page_size, unconfirmed=seen.reply.count == 0)


def when_flagged(finder: Finder, stop_when: bool) -> StopPolicy:
    """The answer says whether there is more."""

    def decide(seen: Seen) -> Ending:
        value = finder.require("paginator.flag", seen.reply)
        if isinstance(value, str):
            value = _TEXTS.get(value.strip().lower(), value)
        if value not in (True, False):
            raise seen.reply.error(f"paginator.flag is {value!r}, neither true nor false")
        return Ending(bool(value) is stop_when)

    return decide


def when_pages_read(finder: Finder) -> StopPolicy:
    """The answer says how many pages there are."""

    def decide(seen: Seen) -> Ending:
        pages = max(1, _whole_number(finder, seen.reply))
        missing = not seen.reply.count and seen.position < pages
        return Ending(seen.position + 1 >= pages, pages, unconfirmed=missing)

    return decide


def when_records_read(finder: Finder, page_size: int) -> StopPolicy:
    """For numbered pages: the answer says how many records there are."""

    def decide(seen: Seen) -> Ending:
        total = _whole_number(finder, seen.reply)
        pages = max(1, ceil(total / page_size))
        expected = min(page_size, total - seen.position * page_size)
        if 0 < seen.reply.count < expected:
            return Ending(False, None, doubtful=True)
        missing = not seen.reply.count and expected > 0
        return Ending(seen.position + 1 >= pages, pages, unconfirmed=missing)

    return decide


def when_offset_reached(finder: Finder, page_size: int, *, by_records: bool) -> StopPolicy:
    """For offsets: the answer says how many records there are."""

    def decide(seen: Seen) -> Ending:
        total = _whole_number(finder, seen.reply)
        covered = seen.reply.count if by_records and seen.reply.count else page_size
        missing = not seen.reply.count and seen.before < total
        return Ending(seen.before + covered >= total, max(1, ceil(total / page_size)), unconfirmed=missing)

    return decide


def _whole_number(finder: Finder, reply: Reply) -> int:
    value: Any = finder.require("paginator.total", reply)
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise reply.error(f"paginator.total is {value!r}, not a count")
    return value
