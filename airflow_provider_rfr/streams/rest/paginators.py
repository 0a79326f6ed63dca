"""What all paginators are: pure functions from a page's token and answer to the next token.

``addressable`` ones know the token of every position beforehand.  None of them keeps anything between two
pages, so a token says everything, in any process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.rest.answer import Answer
from airflow_provider_rfr.streams.rest.injection import Put
from airflow_provider_rfr.streams.rest.paths import MISSING, Path, describe, lookup, where_missing
from airflow_provider_rfr.streams.rest.transport import Draft
from airflow_provider_rfr.streams.state import Complete, NextPage


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
