"""What all paginators share: pure functions from a page's token and answer to the next token; and when to stop.

Addressable paginators know the token of every position beforehand. None keeps anything between two pages, so a token
is all that is needed to continue, in any process. Stop policies are ``empty``, ``short``, ``total`` and ``flag``.
Records are counted as the API sent them, before any filter. A short page ends a partition only under ``short``, because
servers cap page sizes and drop rows after they cut the page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, TypeAlias

from requests.utils import parse_header_links

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._client import Draft
from airflow_provider_rfr.streams.rest._definition_parts import Origin, Place
from airflow_provider_rfr.streams.rest._responses import Answer
from airflow_provider_rfr.streams.rest.expressions import MISSING, assign, describe, lookup, parse_path, where_missing

_Put: TypeAlias = Callable[[Draft, Any], None]


def put_at(place: Place | None) -> _Put:
    """A function that sets a value at a place of a request; without a place it does nothing."""
    if place is None:
        return lambda draft, value: None
    if place.query is not None:
        query = place.query
        return lambda draft, value: draft.query.update({query: value})
    if place.header is not None:
        header = place.header
        return lambda draft, value: draft.headers.update({header: str(value)})
    if place.form is not None:
        name = place.form

        def into_form(draft: Draft, value: Any) -> None:
            draft.form = {**(draft.form or {}), name: value}

        return into_form
    path = parse_path(place.json_ or "")

    def into_json(draft: Draft, value: Any) -> None:
        if not isinstance(draft.json, dict):
            draft.json = {}
        assign(draft.json, path, value)

    return into_json


@dataclass(frozen=True, slots=True)
class Reply:
    """A page as the API sent it.

    :ivar records: before any filter: a record that is dropped later was on the page all the same
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
            "response": self.answer.content(),
            "headers": self.answer.headers,
            "status": self.answer.status,
            "last_record": self.records[-1] if self.records else None,
            "record_count": self.count,
        }

    def find(self, origin: Origin) -> Any:
        """The value at a path of the body or in a header, or MISSING."""
        if origin.header is not None:
            return self.answer.headers.get(origin.header, MISSING)
        return lookup(self.answer.content(), parse_path(origin.path or ()))

    def require(self, origin: Origin, what: str) -> Any:
        """The same, but never null.

        :param what: names the value in the error
        :raises SourceError: it is missing; the error says what is there instead
        """
        value = self.find(origin)
        if value is not MISSING and value is not None:
            return value
        if origin.header is not None:
            raise self.error(f"{what}: the answer has no header {origin.header}")
        path = parse_path(origin.path or ())
        found = describe(value) if value is None else f"nothing: {where_missing(self.answer.content(), path)}"
        raise self.error(f"{what}: {'.'.join(path)} leads to {found}")

    def link(self, header: str, relation: str) -> Any:
        """The address with a relation in a Link header (RFC 8288), or MISSING."""
        for link in parse_header_links(self.answer.headers.get(header, "")):
            if relation in link.get("rel", "").split():
                return link["url"]
        return MISSING

    def error(self, message: str) -> SourceError:
        return SourceError(message, status=self.answer.status, request=self.answer.request)


@dataclass(frozen=True, slots=True)
class Step:
    """What follows a page.

    :ivar total_pages: of the partition, if the API says so
    :ivar unconfirmed: see ``Page``
    """

    next: NextPage | Complete
    total_pages: int | None = None
    unconfirmed: bool = False


COMPLETE: Final = Step(Complete())


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


class SinglePage(Paginator):
    """There is one page."""

    def inject(self, token: Any | None, draft: Draft) -> None:
        if token is not None:
            raise SourceError(f"the stream has one page, but the stored token is {token!r}")

    def step(self, token: Any | None, reply: Reply) -> Step:
        return COMPLETE


class SizedPaginator(Paginator):
    """Sends the page size, if it was declared."""

    def __init__(self, definition: model.Sized, page_size: int | None) -> None:
        self.page_size = page_size
        self._put_size = put_at(definition.size_as)

    def inject(self, token: Any | None, draft: Draft) -> None:
        if self.page_size is not None:
            self._put_size(draft, self.page_size)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known when a stop policy is asked.

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


def stop_policy(
    definition: model.Stopping, page_size: int | None, offsets_by_records: bool | None = None
) -> StopPolicy:
    """The declared policy; else what the other fields make possible.

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
    """The first page without records is the last."""
    empty = seen.reply.count == 0
    return Ending(empty, unconfirmed=empty)


_TEXTS: Final = {"true": True, "false": False, "1": True, "0": False}


def _when_flagged(flag: model.Flag) -> StopPolicy:
    def decide(seen: Seen) -> Ending:
        value = seen.reply.require(flag, "paginator.flag")
        if isinstance(value, str):
            value = _TEXTS.get(value.strip().lower(), value)
        if value not in (True, False):
            raise seen.reply.error(f"paginator.flag is {value!r}, neither true nor false")
        return Ending(bool(value) is flag.stop_when)

    return decide


def _when_total_reached(total: model.Total, page_size: int | None, offsets_by_records: bool | None) -> StopPolicy:
    """The answer says how many pages or records there are."""

    def decide(seen: Seen) -> Ending:
        number, count = _whole_number(total, seen.reply), seen.reply.count
        if total.of == "pages" or page_size is None:
            pages = max(1, number)
            is_last, is_missing = seen.position + 1 >= pages, seen.position < pages
        elif offsets_by_records is not None:
            pages = max(1, ceil(number / page_size))
            covered = count if offsets_by_records and count else page_size
            is_last, is_missing = seen.before + covered >= number, seen.before < number
        else:
            pages = max(1, ceil(number / page_size))
            expected = min(page_size, number - seen.position * page_size)
            if 0 < count < expected:
                return Ending(False, doubtful=True)
            is_last, is_missing = seen.position + 1 >= pages, expected > 0
        return Ending(is_last, pages, unconfirmed=is_missing and not count)

    return decide


def _whole_number(total: model.Total, reply: Reply) -> int:
    value: Any = reply.require(total, "paginator.total")
    if (isinstance(value, str) and value.strip().isdigit()) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise reply.error(f"paginator.total is {value!r}, not a count")
    return value
