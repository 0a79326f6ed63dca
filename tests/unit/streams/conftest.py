"""A real HTTP API with paged collections, and streams of each kind that read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from rest_api import Api, Reply

from airflow_provider_rfr.exceptions import SourceError, TokenExpiredError
from airflow_provider_rfr.refresh.budget import BudgetServer, DriverBudget
from airflow_provider_rfr.streams import Page, PagedStream, StateMixin, Stream


class PagedApi(Api):  # type: ignore[misc]  # pytest puts its module on the path
    """Answers ``/name?parent=P&page=N`` from what the test put in."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[str, Any] = {}
        self.statuses: dict[str, int] = {}
        self.answer = lambda asked: Reply(
            self.pages.get(asked.path), self.statuses.get(asked.path, 200 if asked.path in self.pages else 404)
        )

    def add(self, name: str, sizes: Sequence[int], first: int = 1, parent: str | None = None) -> None:
        """Pages of so many rows; the last one says that none follows."""
        row = 0
        for number, size in enumerate(sizes, start=first):
            following = number + 1 if number + 1 < first + len(sizes) else None
            rows = [{"id": row + i, "parent": parent} for i in range(size)]
            row += size
            self.pages[address(name, number, parent)] = {"rows": rows, "next": following}


def address(name: str, page: int, parent: str | None = None) -> str:
    return f"/{name}?parent={parent}&page={page}" if parent else f"/{name}?page={page}"


def fetch(url: str, path: str) -> Any:
    try:
        with urlopen(url + path, timeout=5) as answer:
            return json.load(answer)
    except HTTPError as error:
        kind = TokenExpiredError if error.code == 410 else SourceError
        raise kind(f"HTTP {error.code}", status=error.code, request=f"GET {path}") from error


class PagesByNumber(PagedStream):
    """Pure: the token is the page number."""

    def __init__(self, url: str, name: str, parents: Sequence[str] = (), first: int = 1) -> None:
        self.url, self.name, self.parents, self.first = url, name, parents, first

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return [{"parent": parent} for parent in self.parents] or [{}]

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        number = self.first if token is None else token
        path = address(self.name, number, stream_slice.get("parent"))
        answer = fetch(self.url, path)
        return Page(answer["rows"], answer["next"], request=f"GET {path}", status=200)


class StatefulPages(Stream, StateMixin):
    """Keeps ``{"page": N}`` itself, as streams written for the CDK do."""

    def __init__(self, url: str, name: str, parents: Sequence[str] = ()) -> None:
        self.url, self.name, self.parents = url, name, parents
        self._state: Any = {}

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return [{"parent": parent} for parent in self.parents] or [{}]

    def read_records(
        self,
        stream_slice: Mapping[str, Any] | None = None,
        stream_state: Mapping[str, Any] | None = None,
    ) -> Iterable[Mapping[str, Any]]:
        stream_slice = stream_slice or {}
        number = self._state.get("page", 1)
        assert stream_slice["cursor_slice"].get("page", 1) == number
        assert stream_slice.get("page", 1) == number
        answer = fetch(self.url, address(self.name, number, stream_slice["partition"].get("parent")))
        for row in answer["rows"]:
            yield {**row, "stream_state": dict(stream_state or {})}
        done = {"__ab_full_refresh_sync_complete": True}
        self._state = {"page": answer["next"]} if answer["next"] is not None else done


@pytest.fixture
def api() -> Iterator[PagedApi]:
    server = PagedApi()
    yield server
    server.close()


@pytest.fixture
def paged(api: PagedApi) -> Any:
    def make(name: str, parents: Sequence[str] = (), first: int = 1) -> PagesByNumber:
        return PagesByNumber(api.url, name, parents, first)

    return make


@pytest.fixture
def stateful(api: PagedApi) -> Any:
    def make(name: str, parents: Sequence[str] = ()) -> StatefulPages:
        return StatefulPages(api.url, name, parents)

    return make


@pytest.fixture
def server() -> Iterator[BudgetServer]:
    """A driver, which obtains the tokens of tasks."""
    server = BudgetServer(DriverBudget(None), "127.0.0.1", b"only the refresh knows")
    yield server
    server.close()
