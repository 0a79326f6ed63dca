"""Pages by pure calls, and other streams as paged streams."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, RepeatedPageError
from airflow_provider_rfr.numbers import LongNumber, dumps
from airflow_provider_rfr.streams import (
    Complete,
    LogMessage,
    NextPage,
    NotStarted,
    Page,
    PagedStream,
    ReadContext,
    StateMixin,
    Stream,
    StreamSlice,
    as_paged,
)
from airflow_provider_rfr.streams.paged import iter_pages
from tests.unit.messages import raises

SENTINEL = {"__ab_full_refresh_sync_complete": True}


def ids(records: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [record["id"] for record in records]


def test_a_full_page_is_followed_by_the_next_and_a_short_one_by_the_end(api: Any, paged: Any) -> None:
    """Row 37."""
    api.add("orders", [5, 3])
    stream = paged("orders")
    first = stream.read_page({}, None)
    assert (len(first.records), first.next) == (5, NextPage(2))
    second = stream.read_page({}, 2)
    assert (len(second.records), second.next) == (3, Complete())
    assert len(list(stream.read_records({}, {"next_page_token": 2}))) == 3


class NextUrl(PagedStream):
    """The token is the whole address of the next page."""

    name = "orders"

    def __init__(self, get: Any) -> None:
        self.get = get

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        answer = self.get(token or "/orders")
        return Page(answer["rows"], answer["next"])


def test_a_token_that_is_an_address_is_requested_on_resume(api: Any) -> None:
    """Row 38."""
    second = f"{api.url}/orders?cursor=b"
    api.pages = {
        "/orders?cursor=b": {"rows": [{"id": 2}], "next": f"{api.url}/orders?cursor=c"},
        "/orders?cursor=c": {"rows": [{"id": 3}], "next": None},
    }
    stream = NextUrl(lambda url: json.load(urlopen(url, timeout=5)))
    pages = list(iter_pages(stream, {}, {"next_page_token": second}))
    assert [page.next for page in pages] == [NextPage(f"{api.url}/orders?cursor=c"), Complete()]
    assert api.paths == ["/orders?cursor=b", "/orders?cursor=c"]


@pytest.mark.parametrize("state", [SENTINEL, Complete(), {"version": 1, "state": "complete"}])
def test_a_complete_stream_sends_no_request(api: Any, paged: Any, state: Any) -> None:
    """Row 39."""
    api.add("orders", [2, 2])
    assert list(paged("orders").read_records({}, state)) == []
    assert api.paths == []


def test_reading_a_slice_twice_gives_the_same_records(api: Any, paged: Any, stateful: Any) -> None:
    """Row 41."""
    api.add("orders", [2, 2, 1], parent="A")
    for stream in (paged("orders", ["A"]), as_paged(stateful("orders", ["A"]))):
        first = list(stream.read_records({"parent": "A"}))
        assert ids(first) == [0, 1, 2, 3, 4]
        assert first == list(stream.read_records({"parent": "A"}))


class Circle(PagedStream):
    name = "circle"

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        return Page([{"id": 1}], {None: 0, 0: "b", "b": 0}[token])


def test_a_token_that_comes_twice_is_an_error_and_one_of_zero_is_not_the_end() -> None:
    """X5, and the token 0 that the CDK lost."""
    pages = iter_pages(Circle())
    assert [next(pages).next, next(pages).next] == [NextPage(0), NextPage("b")]
    with raises(RepeatedPageError):
        list(pages)


def test_only_addressable_streams_know_the_token_of_a_position(paged: Any) -> None:
    assert not paged("orders").addressable
    with raises(NotImplementedError):
        paged("orders").token_at(3)


class Talking(Stream):
    """Yields log lines among its records."""

    name = "talking"

    def read_records(self, *arguments: Any) -> Iterable[Any]:
        return [LogMessage("start"), {"id": 1}, LogMessage("half", "WARNING"), {"id": 2}]


def test_a_record_that_is_no_mapping_is_an_error_and_not_lost() -> None:
    """Row 34."""

    class Tuples(Talking):
        def read_records(self, *arguments: Any) -> Iterable[Any]:
            return [("id", 1)]

    with raises(ConfigurationError):
        as_paged(Tuples()).read_page({}, None)


def test_a_paged_stream_is_its_own_adapter(paged: Any) -> None:
    stream = paged("orders")
    assert as_paged(stream) is stream
    with raises(ConfigurationError):
        as_paged(object())  # type: ignore[arg-type]


def test_a_stream_that_keeps_a_state_gives_its_own_pages(api: Any, stateful: Any) -> None:
    api.add("orders", [2, 2, 1])
    stream = as_paged(stateful("orders"))
    pages = list(iter_pages(stream))
    assert [len(page.records) for page in pages] == [2, 2, 1]
    assert [page.next for page in pages] == [NextPage({"page": 2}), NextPage({"page": 3}), Complete()]
    assert (stream.name, stream.supports_checkpointing) == ("orders", True)


class Structured(Stream, StateMixin):
    """Speaks in structured states, with a bare number as its token."""

    name = "structured"

    def __init__(self) -> None:
        self._state: Any = NotStarted()

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        assert isinstance(value, (NotStarted, NextPage))
        self._state = value

    def read_records(self, *arguments: Any) -> Iterable[Mapping[str, Any]]:
        page: Any = self._state.token if isinstance(self._state, NextPage) else 0
        yield {"id": page}
        time.sleep(0.002)
        self._state = NextPage(page + 1) if page < 9 else Complete()


def test_a_stream_may_speak_in_structured_states() -> None:
    pages = list(iter_pages(as_paged(Structured())))
    assert [page.records[0]["id"] for page in pages] == list(range(10))
    assert pages[0].next == NextPage(1)


class WithLock(Structured):
    """Can't be copied."""

    name = "with_lock"

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("stream", [Structured(), WithLock()], ids=["copied", "one at a time"])
def test_threads_do_not_mix_up_the_states_of_their_pages(stream: Stream, caplog: Any) -> None:
    paged = as_paged(stream)
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda number: paged.read_page({}, number % 9), range(90)))
    for number, page in enumerate(pages):
        assert page.records == [{"id": number % 9}]
        assert page.next == NextPage(number % 9 + 1)
    assert ("can't be copied" in caplog.text) is (stream.name == "with_lock")


class Stuck(Structured):
    def read_records(self, *arguments: Any) -> Iterable[Mapping[str, Any]]:
        return [{"id": 1}]


def test_a_state_that_does_not_move_is_an_error_unless_it_stays_empty_after_the_only_page() -> None:
    """X5."""
    assert as_paged(Stuck()).read_page({}, None) == Page([{"id": 1}])
    with raises(RepeatedPageError):
        as_paged(Stuck()).read_page({}, 3)


def test_a_stream_without_state_has_one_page_a_slice_and_its_log_lines_are_no_records(caplog: Any) -> None:
    """Row 34."""
    stream = as_paged(Talking())
    with caplog.at_level(logging.INFO):
        page = stream.read_page({"day": "2026-01-01"}, None)
    assert (page.records, page.next) == ([{"id": 1}, {"id": 2}], Complete())
    lines = [(line.levelname, line.getMessage()) for line in caplog.records]
    assert lines == [("INFO", "talking: start"), ("WARNING", "talking: half")]
    assert not stream.supports_checkpointing
    with raises(ConfigurationError):
        stream.read_page({}, 7)


def test_the_state_of_an_incremental_stream_is_in_the_token_of_a_last_empty_page() -> None:
    class Incremental(Structured):
        cursor_field = "updated_at"

        def read_records(self, *arguments: Any) -> Iterable[Mapping[str, Any]]:
            self._state = {"updated_at": "2026-01-01"}
            return [{"id": 1}]

    stream = as_paged(Incremental())
    first = stream.read_page({}, None)
    assert (first.records, first.next) == ([{"id": 1}], NextPage({"state": {"updated_at": "2026-01-01"}}))
    assert stream.read_page({}, first.next.token).next == Complete()


def test_a_long_number_in_a_state_keeps_its_digits() -> None:
    class Incremental(Structured):
        cursor_field = "amount"

        def read_records(self, *arguments: Any) -> Iterable[Mapping[str, Any]]:
            self._state = {"amount": LongNumber("0.12345678901234567891")}
            return [{"id": 1}]

    token = as_paged(Incremental()).read_page({}, None).next.token
    assert dumps(token) == b'{"state":{"amount":0.12345678901234567891}}'


def test_an_adapter_says_what_its_stream_says() -> None:
    stream = Structured()
    stream.primary_key, stream.partition_fields, stream.namespace = "id", ("parent",), "eu"
    adapter = as_paged(stream)
    assert (adapter.name, adapter.namespace, adapter.primary_key) == ("structured", "eu", "id")
    assert adapter.partition_key({"parent": 1, "other": 2}) == '{"parent":1}'
    assert adapter.fingerprint() == stream.fingerprint()
    twin = pickle.loads(pickle.dumps(adapter))
    assert twin.read_page({}, 3) == adapter.read_page({}, 3) == as_paged(adapter.private_copy()).read_page({}, 3)


def test_a_bound_adapter_binds_the_copies_of_all_threads() -> None:
    class Asking(Talking):
        def read_records(self, *arguments: Any) -> Iterable[Mapping[str, Any]]:
            return [{"stop": self.context.stop.is_set()}]

    adapter = as_paged(Asking())
    assert adapter.read_page({}, None).records == [{"stop": False}]
    context = ReadContext()
    context.stop.set()
    adapter.bind(context)
    assert adapter.read_page(StreamSlice(), None).records == [{"stop": True}]
