"""Streams whose pages are read by pure calls."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import RepeatedPageError
from airflow_provider_rfr.streams.core import Stream
from airflow_provider_rfr.streams.json_values import canonical_json
from airflow_provider_rfr.streams.page import Page
from airflow_provider_rfr.streams.slices import as_stream_slice
from airflow_provider_rfr.streams.state import Complete, NextPage, NotStarted, State, load_state

log = logging.getLogger(__name__)


class PagedStream(Stream):
    """A stream that can read any page of any slice, in any order, on any thread.

    :ivar addressable: the token of every position is known beforehand (page numbers, offsets), so that
        pages of one slice can be read at the same time
    """

    addressable: bool = False

    @abstractmethod
    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        """Read one page.  Thread-safe, and without effect on any other page.

        :param token: None for the first page
        :raises TokenExpiredError: the API no longer knows the token; the slice is read from the start
        :raises SourceError: the page couldn't be read
        """

    def token_at(self, position: int) -> Any:
        """The token of a position, from 0; only if ``addressable``.  None stands for the first page."""
        raise NotImplementedError(f"pages of {self.name} are not addressable")

    @property
    def supports_checkpointing(self) -> bool:
        return True

    def read_records(
        self,
        stream_slice: Mapping[str, Any] | None = None,
        stream_state: Mapping[str, Any] | None = None,
    ) -> Iterable[Mapping[str, Any]]:
        """All records of the slice, from the page that ``stream_state`` names to the end."""
        for page in iter_pages(self, stream_slice, stream_state):
            yield from page.records


class RepeatedTokenGuard:
    """Ends a chain whose tokens go round in a circle.  One guard for each chain."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def check(self, token: Any | None) -> None:
        """Call it with each token that is about to be read.

        :raises RepeatedPageError: it was read before
        """
        text = canonical_json(token, field="page token")
        if text in self._seen:
            raise RepeatedPageError(f"page token {text} came twice; the stream would never end")
        self._seen.add(text)


class EmptyPageGuard:
    """Has an empty page after a full one asked for once more, before it counts.  One guard for each chain.

    A page is full that has as many records as were asked for, or (a server may cap that) as the page before it;
    any page with records, where it is not known how many were asked for.

    :param resumed: the page before was read by somebody else, so it may have been full
    :ivar asked: the page in question is being asked for the second time
    """

    def __init__(self, page_size: int | None, *, resumed: bool, asked: bool = False) -> None:
        self.asked = asked
        self._page_size = page_size
        self._after_full = resumed
        self._before: int | None = None

    def doubts(self, page: Page) -> bool:
        """Whether the page has to be asked for again; call it with the pages in their order."""
        if page.unconfirmed and self._after_full and not self.asked:
            self.asked = True
            return True
        if self.asked and page.received:
            log.warning("%s: the page was empty, and has %d records when asked again", page.request, page.received)
        self.asked = False
        self._after_full = self._is_full(page.received)
        self._before = page.received
        return False

    def _is_full(self, received: int | None) -> bool:
        if not received or self._page_size is None:
            return received != 0
        return received >= self._page_size or received == self._before


def token_of(state: NotStarted | NextPage) -> Any | None:
    """The token to read a state's page with; None for the first page."""
    return state.token if isinstance(state, NextPage) else None


def iter_pages(
    stream: PagedStream,
    stream_slice: Mapping[str, Any] | None = None,
    stream_state: State | Mapping[str, Any] | None = None,
) -> Iterator[Page]:
    """The pages of one slice, from a state on; none if it is complete.

    :raises RepeatedPageError: a token came twice
    """
    partition = as_stream_slice(stream_slice).partition
    state = load_state(stream_state)
    guard = RepeatedTokenGuard()
    ends = EmptyPageGuard(stream.page_size, resumed=isinstance(state, NextPage))
    while not isinstance(state, Complete):
        token = token_of(state)
        guard.check(token)
        page = stream.read_page(partition, token)
        if ends.doubts(page):
            page = stream.read_page(partition, token)
            ends.doubts(page)
        yield page
        state = page.next
