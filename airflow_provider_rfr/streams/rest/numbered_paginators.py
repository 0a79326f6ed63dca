"""Paginators whose pages are addressable: page numbers and offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.rest.injection import Put
from airflow_provider_rfr.streams.rest.paginators import Reply, SizedPaginator, Step, to
from airflow_provider_rfr.streams.rest.stop_policies import Seen, StopPolicy, when_empty
from airflow_provider_rfr.streams.rest.transport import Draft
from airflow_provider_rfr.streams.state import Complete


class _Numbered(SizedPaginator):
    """A token is a whole number from ``start``; the first page's is None, or ``start`` itself."""

    def __init__(
        self, *, start: int, put: Put, send_first: bool, stop: StopPolicy, page_size: int | None, put_size: Put
    ) -> None:
        super().__init__(page_size, put_size)
        self._start = start
        self._put = put
        self._send_first = send_first
        self._stop = stop

    def inject(self, token: Any | None, draft: Draft) -> None:
        super().inject(token, draft)
        number = self._number(token)
        if self._send_first or number != self._start:
            self._put(draft, number)

    def _number(self, token: Any | None) -> int:
        if token is None:
            return self._start
        if isinstance(token, bool) or not isinstance(token, int) or token < self._start:
            raise SourceError(f"page token {token!r} is no whole number from {self._start}")
        return token


class PageNumber(_Numbered):
    """Page 1, page 2, ...

    Where the API counts its records but sends fewer of them, the number of pages is in doubt.  From there on
    the token is ``{"page": n, "until": "empty"}``: it carries the doubt along, and the stream ends with
    the first empty page, so that nothing is lost to a server that caps the page size.
    """

    addressable = True

    def step(self, token: Any | None, reply: Reply) -> Step:
        number, position = self._number(token), self.position_of(token)
        doubtful = isinstance(token, Mapping)
        if doubtful:
            ending = when_empty(Seen(reply, position, 0))
        else:
            ending = self._stop(Seen(reply, position, position * (self.page_size or 0)))
        if ending.last:
            return Step(Complete(), ending.total_pages, ending.unconfirmed)
        if doubtful or ending.doubtful:
            return to({"page": number + 1, "until": "empty"})
        return to(number + 1, ending.total_pages, unconfirmed=ending.unconfirmed)

    def _number(self, token: Any | None) -> int:
        if isinstance(token, Mapping) and token.keys() <= {"page", "until"}:
            token = token.get("page")
        return super()._number(token)

    def after_skipped(self, token: Any | None) -> Any:
        following = self._number(token) + 1
        return {"page": following, "until": "empty"} if isinstance(token, Mapping) else following

    def token_at(self, position: int) -> int | None:
        return self._start + position if position else None

    def position_of(self, token: Any | None) -> int:
        return self._number(token) - self._start


class Offset(_Numbered):
    """The number of records before the page.

    After a short page the next offset is that of the record after it (``advance: records``): if the server
    caps the page size nothing is lost, and if it drops rows from a page, some rows come twice.
    ``advance: page_size`` is for servers of the second kind.
    """

    def __init__(self, *, advance_by_records: bool, **parts: Any) -> None:
        super().__init__(**parts)
        self.addressable = self.page_size is not None
        self._by_records = advance_by_records

    def step(self, token: Any | None, reply: Reply) -> Step:
        offset = self._number(token)
        ending = self._stop(Seen(reply, self.position_of(token), offset - self._start))
        if ending.last:
            return Step(Complete(), ending.total_pages, ending.unconfirmed)
        distance = reply.count if self._by_records and reply.count else self.page_size
        if not distance:
            raise reply.error("an empty page isn't the last one here, and without page_size no offset follows it")
        return to(offset + distance, ending.total_pages, unconfirmed=ending.unconfirmed)

    def after_skipped(self, token: Any | None) -> int | None:
        return None if self.page_size is None else self._number(token) + self.page_size

    def token_at(self, position: int) -> int | None:
        if self.page_size is None:
            return super().token_at(position)
        return self._start + position * self.page_size if position else None

    def position_of(self, token: Any | None) -> int:
        return (self._number(token) - self._start) // self.page_size if self.page_size else 0
