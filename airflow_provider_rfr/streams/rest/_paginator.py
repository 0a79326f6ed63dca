"""The base of all paginators: pure functions from a page's token and answer to the next token.

Addressable paginators know the token of every position beforehand. None keeps anything between two pages, so a token
is all that is needed to continue, in any process.

A field that is absent from an answer is not the same as one that is null or empty. Null says that there is no next
page; an absent field may as well be a wrong path. See :meth:`Paginator.end_without`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._client import Draft
from airflow_provider_rfr.streams.rest._definition_parts import Place
from airflow_provider_rfr.streams.rest._responses import Response
from airflow_provider_rfr.streams.rest.templates import assign, parse_path

_Put: TypeAlias = Callable[[Draft, Any], None]


def put_at(place: Place | None) -> _Put:
    """Return a function that sets a value at a place of a request; without a place it does nothing."""
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


#: A link of RFC 8288: an address, which may hold any sign but ``>``, and parameters, whose values may be quoted.
_LINK: Final = re.compile(r'<([^>]*)>((?:[^,"<]|"[^"]*")*)')
_RELATION: Final = re.compile(r';\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reply:
    """A page as the API sent it.

    :ivar records: before any filter: a record that is dropped later was on the page all the same
    :ivar variables: the names that expressions may use, apart from the answer itself
    """

    answer: Response
    records: list[dict[str, Any]]
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        return len(self.records)

    def all_variables(self) -> dict[str, Any]:
        """Return the names that an expression over an answer knows."""
        return {
            **self.variables,
            "response": self.answer.content(),
            "headers": self.answer.headers,
            "status": self.answer.status,
            "last_record": self.records[-1] if self.records else None,
            "record_count": self.count,
        }

    def links(self, header: str) -> dict[str, str]:
        """Return the addresses of a Link header (RFC 8288) by relation in lower case; empty without such a header."""
        addresses: dict[str, str] = {}
        for address, parameters in _LINK.findall(self.answer.headers.get(header, "")):
            relations = _RELATION.search(parameters)
            for relation in (relations[1] or relations[2]).lower().split() if relations else ():
                addresses.setdefault(relation, address.strip())
        return addresses

    def error(self, message: str) -> SourceError:
        return SourceError(message, status=self.answer.status, request=self.answer.request)


@dataclass(frozen=True, slots=True)
class Step:
    """The position after a page. ``total_pages``, ``unconfirmed``, ``promised`` and ``absent`` are those of ``Page``.

    :ivar is_repeat: the API sent the page before once more, so its records do not count
    """

    next: NextPage | Complete
    total_pages: int | None = None
    unconfirmed: bool = False
    promised: int | None = None
    absent: str | None = None
    is_repeat: bool = False


COMPLETE: Final = Step(Complete())


class Paginator(ABC):
    """A paginator: it makes the requests for pages, and finds the next page in an answer.

    :ivar page_size: records of a page that isn't the last, if known
    :ivar max_empty_pages: pages without records that may follow each other
    :ivar on_missing: what it means that the field which leads to the next page is absent: ``end``, ``fail``, or None
    """

    addressable: bool = False
    page_size: int | None = None
    max_empty_pages: int = 100
    on_missing: str | None = None

    @abstractmethod
    def inject(self, token: Any | None, draft: Draft) -> None:
        """Make the request ask for the page of ``token``; None is the first page.

        :raises SourceError: the token can't belong to this paginator
        """

    @abstractmethod
    def step(self, token: Any | None, reply: Reply) -> Step:
        """Return the position after the page of ``token``.

        :raises SourceError: the answer lacks a field that the paginator needs
        """

    def end_without(self, token: Any | None, reply: Reply, problem: str) -> Step:
        """Return the end of a partition at a page that lacks the field which leads to the next page.

        The page before proves that the field exists, unless this is the first page. Then the end is marked as
        ``absent``: it holds if the page is short or empty, or if another page of the load has the field.

        :param problem: names the absent field
        :raises SourceError: ``on_missing`` is ``fail``
        """
        if self.on_missing == "fail":
            raise reply.error(problem)
        return COMPLETE if self.on_missing == "end" or token is not None else Step(Complete(), absent=problem)

    def after_no_content(self, token: Any | None) -> Step:
        """Return the position after an answer without content, e.g. 204."""
        return Step(Complete(), unconfirmed=True)

    def is_beyond_the_end(self, token: Any | None) -> bool:
        """Tell whether there is no such page by the API's own count; a refusal confirms that."""
        return False

    def after_skipped(self, token: Any | None) -> Any | None:
        """Return the token after a page that has no answer; None if it can't be known."""
        return None

    def token_at(self, position: int) -> Any | None:
        """Return the token of a position, from 0."""
        raise NotImplementedError("the pages are not addressable")

    def position_of(self, token: Any | None) -> int:
        """Return the position of a token; the inverse of ``token_at`` as far as there is one."""
        raise NotImplementedError("the pages are not addressable")


class SinglePage(Paginator):
    """There is one page."""

    def inject(self, token: Any | None, draft: Draft) -> None:
        if token is not None:
            raise SourceError(f"the stream has one page, but the stored token is {token!r}")

    def step(self, token: Any | None, reply: Reply) -> Step:
        return COMPLETE


class SizedPaginator(Paginator):
    """A paginator that sends the page size, if it was declared."""

    def __init__(self, definition: model.Sized, page_size: int | None) -> None:
        self.page_size = page_size
        self.max_empty_pages = definition.max_empty_pages
        self._put_size = put_at(definition.size_as)

    def inject(self, token: Any | None, draft: Draft) -> None:
        if self.page_size is not None:
            self._put_size(draft, self.page_size)
