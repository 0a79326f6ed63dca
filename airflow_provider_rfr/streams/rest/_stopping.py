"""Stop policies: how a page shows that it is the last of its partition.

The policies are ``empty``, ``short``, ``total`` and ``flag``. Records are counted as the API sent them, before any
filter. A short page ends a partition only under ``short``, because servers cap page sizes and drop rows after they cut
the page. A total ends a partition only if the page does not contradict it: the totals of some APIs are estimates, count
what is left, or count the records of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, TypeAlias

from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._paginator import Reply
from airflow_provider_rfr.streams.rest.templates import MISSING


@dataclass(frozen=True, slots=True)
class Seen:
    """The input of a stop policy.

    :ivar position: of the page, from 0
    :ivar before: records before this page, if every page before it was full
    :ivar is_first: whether it is the first page of its partition
    """

    reply: Reply
    position: int
    before: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """The decision of a stop policy: whether the page is the last, and the number of pages, if known.

    :ivar doubtful: the number of pages can't be computed, so the partition is read to its first empty page
    :ivar contradicted: the API's count says that this page is the last, and the page is full or beyond that count
    :ivar unconfirmed: the page is empty, and the API itself doesn't say that nothing is missing
    :ivar promised: records of the partition, by the API's count
    :ivar absent: the field that decides is absent; says which, see :meth:`Paginator.end_without`
    """

    last: bool
    total_pages: int | None = None
    doubtful: bool = False
    contradicted: bool = False
    unconfirmed: bool = False
    promised: int | None = None
    absent: str | None = None


StopPolicy: TypeAlias = Callable[[Seen], Ending]


def stop_policy(
    definition: model.Stopping, page_size: int | None, offsets_by_records: bool | None = None
) -> StopPolicy:
    """Return the declared policy; else the one that the other fields make possible.

    :param offsets_by_records: how offsets advance; None if pages are not offsets
    """
    policy = definition.stop_policy
    if policy == "short" and page_size is not None:
        # The first page with fewer records than asked for is the last.
        return lambda seen: Ending(seen.reply.count < page_size, unconfirmed=seen.reply.count == 0)
    if policy == "flag" and definition.flag is not None:
        return _when_flagged(definition.flag)
    if policy == "total" and definition.total is not None:
        return _when_total_reached(definition.total, page_size, offsets_by_records)
    return when_empty


def when_empty(seen: Seen) -> Ending:
    """End at the first page without records."""
    empty = seen.reply.count == 0
    return Ending(empty, unconfirmed=empty)


_TEXTS: Final = {"true": True, "false": False, "1": True, "0": False}


def _when_flagged(flag: model.Flag) -> StopPolicy:
    def decide(seen: Seen) -> Ending:
        value = flag.find(seen.reply.answer)
        if value is MISSING:
            problem = f"paginator.flag: {flag.absence(seen.reply.answer)}"
            # That a field such as is_last is absent does not make the page the last one.
            if flag.stop_when and seen.reply.count:
                raise seen.reply.error(problem)
            return Ending(True, unconfirmed=not seen.reply.count, absent=problem)
        if isinstance(value, str):
            value = _TEXTS.get(value.strip().lower(), value)
        if value not in (True, False, None):
            raise seen.reply.error(f"paginator.flag is {value!r}, neither true nor false")
        return Ending(bool(value) is flag.stop_when)

    return decide


def _when_total_reached(total: model.Total, page_size: int | None, offsets_by_records: bool | None) -> StopPolicy:
    """Return a policy that ends at the answer's number of pages or records."""

    def decide(seen: Seen) -> Ending:
        number, count = _number(total, seen), seen.reply.count
        if number is None:
            return Ending(not count, doubtful=True, unconfirmed=not count)
        if total.of == "pages" or page_size is None:
            pages = max(1, number)
            is_last, is_missing = seen.position + 1 >= pages, seen.position < pages
            is_beyond = seen.position >= number
        elif offsets_by_records is not None:
            pages = max(1, ceil(number / page_size))
            covered = count if offsets_by_records and count else page_size
            is_last, is_missing = seen.before + covered >= number, seen.before < number
            is_beyond = seen.before + count > number
        else:
            pages = max(1, ceil(number / page_size))
            expected = min(page_size, number - seen.position * page_size)
            if 0 < count < expected:
                return Ending(False, doubtful=True, promised=number)
            is_last, is_missing = seen.position + 1 >= pages, expected > 0
            is_beyond = seen.before + count > number
        # A number of pages says nothing about the size of the last one.
        is_full = total.of == "records" and page_size is not None and count >= page_size
        return Ending(
            is_last,
            pages,
            contradicted=is_last and count > 0 and (is_full or is_beyond),
            unconfirmed=is_missing and not count,
            promised=number if total.of == "records" else None,
        )

    return decide


def _number(total: model.Total, seen: Seen) -> int | None:
    """Return the API's count; None where the answer has none, and the partition can be read to its first empty page.

    :raises SourceError: the first page has records and no count, so the declared place is probably wrong
    """
    value = total.find(seen.reply.answer)
    if value is MISSING and seen.is_first and seen.reply.count:
        raise seen.reply.error(f"paginator.total: {total.absence(seen.reply.answer)}")
    if value is MISSING or value is None:
        return None
    number = _count_of(value)
    if number is None:
        raise seen.reply.error(f"paginator.total is {value!r}, not a count")
    return number


def _count_of(value: Any) -> int | None:
    """Return a count that an answer has as a number or a text; None if it is not a count."""
    if (isinstance(value, str) and value.strip().isdigit()) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    return None if isinstance(value, bool) or not isinstance(value, int) or value < 0 else value


def promised_records(total: model.Total | None, reply: Reply) -> int | None:
    """Return how many records the partition has by the API's count; None if the answer does not say."""
    return None if total is None or total.of != "records" else _count_of(total.find(reply.answer))
