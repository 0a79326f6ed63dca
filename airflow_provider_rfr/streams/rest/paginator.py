"""What all paginators share: pure functions from a page's token and answer to the next token; and when to stop.

Addressable paginators know the token of every position beforehand. None keeps anything between two pages, so a token
says everything, in any process. Stop policies are ``empty``, ``short``, ``total`` and ``flag``. Records are counted as
the API sent them, before any filter. A short page ends a partition only under ``short``, because servers cap page
sizes and drop rows after they cut the page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, TypeAlias

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest.client import Draft
from airflow_provider_rfr.streams.rest.definition import Place
from airflow_provider_rfr.streams.rest.expressions import (
    MISSING,
    Path,
    assign,
    describe,
    lookup,
    parse_path,
    where_missing,
)
from airflow_provider_rfr.streams.rest.responses import Answer

Put: TypeAlias = Callable[[Draft, Any], None]


def put_at(place: Place | None) -> Put:
    """A function that sets a value at the place; one that does nothing for no place."""
    if place is None:
        return _nowhere
    if place.query is not None:
        name = place.query
        return lambda draft, value: draft.query.__setitem__(name, value)
    if place.header is not None:
        header = place.header
        return lambda draft, value: draft.headers.__setitem__(header, str(value))
    if place.json_ is not None:
        path = parse_path(place.json_)

        def into_json(draft: Draft, value: Any) -> None:
            if not isinstance(draft.json, dict):
                draft.json = {}
            assign(draft.json, path, value)

        return into_json
    field = str(place.form)

    def into_form(draft: Draft, value: Any) -> None:
        draft.form = {**(draft.form or {}), field: value}

    return into_form


def _nowhere(draft: Draft, value: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Reply:
    """A page as the API sent it.

    :ivar records: before any filter: what is dropped here was a record of the page all the same
    :ivar variables: what expressions may use, apart from the answer itself
    """

    answer: Answer
    records: list[dict[str, Any]]
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        return len(self.records)

    def all_variables(self) -> dict[str, Any]:
        """The names that an expression over an answer knows."""
        return {
            **self.variables,
            "response": self.answer.json(),
            "headers": self.answer.headers,
            "status": self.answer.status,
            "last_record": self.records[-1] if self.records else None,
            "record_count": self.count,
        }

    def error(self, message: str) -> SourceError:
        """An error about this page."""
        return SourceError(message, status=self.answer.status, request=self.answer.request)


@dataclass(frozen=True, slots=True)
class Step:
    """What follows a page.

    :ivar unconfirmed: see ``Page``
    """

    next: NextPage | Complete
    total_pages: int | None = None
    unconfirmed: bool = False


COMPLETE = Step(Complete())


def to(token: Any, total_pages: int | None = None, *, unconfirmed: bool = False) -> Step:
    """A step to the page of ``token``."""
    return Step(NextPage(token), total_pages, unconfirmed)


class Paginator(ABC):
    """:ivar page_size: records of a page that isn't the last, if known"""

    addressable: bool = False
    page_size: int | None = None

    @abstractmethod
    def inject(self, token: Any | None, draft: Draft) -> None:
        """Make the request ask for the page of ``token``; None is the first page.

        :raises SourceError: the token can't belong to this paginator
        """

    @abstractmethod
    def step(self, token: Any | None, reply: Reply) -> Step:
        """What follows the page of ``token``.

        :raises SourceError: the answer lacks what the paginator needs
        """

    def after_skipped(self, token: Any | None) -> Any | None:
        """The token after a page that has no answer; None if it can't be known."""
        return None

    def token_at(self, position: int) -> Any | None:
        """The token of a position, from 0."""
        raise NotImplementedError("the pages are not addressable")

    def position_of(self, token: Any | None) -> int:
        """The position of a token; the inverse of ``token_at`` as far as there is one."""
        raise NotImplementedError("the pages are not addressable")


class SizedPaginator(Paginator):
    """Sends the page size, if that was declared."""

    def __init__(self, page_size: int | None, put_size: Put) -> None:
        self.page_size = page_size
        self._put_size = put_size

    def inject(self, token: Any | None, draft: Draft) -> None:
        if self.page_size is not None:
            self._put_size(draft, self.page_size)


class SinglePage(Paginator):
    """There is one page."""

    def inject(self, token: Any | None, draft: Draft) -> None:
        if token is not None:
            raise SourceError(f"the stream has one page, but is to go on at {token!r}")

    def step(self, token: Any | None, reply: Reply) -> Step:
        return COMPLETE


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds a value in an answer: at a path of its body, or in a header."""

    path: Path | None = None
    header: str | None = None

    def find(self, answer: Answer) -> Any:
        """The value, or MISSING."""
        if self.header is not None:
            return answer.headers.get(self.header, MISSING)
        return lookup(answer.json(), self.path or ())

    def require(self, what: str, reply: Reply) -> Any:
        """:raises SourceError: there is none; the error says what there is"""
        value = self.find(reply.answer)
        if value is not MISSING and value is not None:
            return value
        raise reply.error(f"{what}: {self.explain(reply.answer, value)}")

    def explain(self, answer: Answer, value: Any = MISSING) -> str:
        """Why the value isn't one, for messages."""
        if self.header is not None:
            return f"the answer has no header {self.header}"
        path = self.path or ()
        if value is not MISSING:
            return f"{'.'.join(path)} leads to {describe(value)}"
        return f"{'.'.join(path)} leads to nothing: {where_missing(answer.json(), path)}"


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
class _Ending:
    """Whether the page is the last, and how many pages there are, if that is known.

    :ivar doubtful: fewer records came than the API's own count promises: pages may be smaller than asked
        for, so the number of pages can't be computed
    :ivar unconfirmed: the page is empty, and the API itself doesn't say that nothing is missing
    """

    last: bool
    total_pages: int | None = None
    doubtful: bool = False
    unconfirmed: bool = False


StopPolicy: TypeAlias = Callable[[Seen], _Ending]


def when_empty(seen: Seen) -> _Ending:
    """The first page without records is the last."""
    empty = seen.reply.count == 0
    return _Ending(empty, unconfirmed=empty)


def when_short(page_size: int) -> StopPolicy:
    """The first page with fewer records than asked for is the last."""
    return lambda seen: _Ending(seen.reply.count < page_size, unconfirmed=seen.reply.count == 0)


def when_flagged(finder: Finder, stop_when: bool) -> StopPolicy:
    """The answer says whether there is more."""

    def decide(seen: Seen) -> _Ending:
        value = finder.require("paginator.flag", seen.reply)
        if isinstance(value, str):
            value = _TEXTS.get(value.strip().lower(), value)
        if value not in (True, False):
            raise seen.reply.error(f"paginator.flag is {value!r}, neither true nor false")
        return _Ending(bool(value) is stop_when)

    return decide


def when_pages_read(finder: Finder) -> StopPolicy:
    """The answer says how many pages there are."""

    def decide(seen: Seen) -> _Ending:
        pages = max(1, _whole_number(finder, seen.reply))
        missing = not seen.reply.count and seen.position < pages
        return _Ending(seen.position + 1 >= pages, pages, unconfirmed=missing)

    return decide


def when_records_read(finder: Finder, page_size: int) -> StopPolicy:
    """For numbered pages: the answer says how many records there are."""

    def decide(seen: Seen) -> _Ending:
        total = _whole_number(finder, seen.reply)
        pages = max(1, ceil(total / page_size))
        expected = min(page_size, total - seen.position * page_size)
        if 0 < seen.reply.count < expected:
            return _Ending(False, None, doubtful=True)
        missing = not seen.reply.count and expected > 0
        return _Ending(seen.position + 1 >= pages, pages, unconfirmed=missing)

    return decide


def when_offset_reached(finder: Finder, page_size: int, *, by_records: bool) -> StopPolicy:
    """For offsets: the answer says how many records there are."""

    def decide(seen: Seen) -> _Ending:
        total = _whole_number(finder, seen.reply)
        covered = seen.reply.count if by_records and seen.reply.count else page_size
        missing = not seen.reply.count and seen.before < total
        return _Ending(seen.before + covered >= total, max(1, ceil(total / page_size)), unconfirmed=missing)

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
