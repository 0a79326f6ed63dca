"""Streams, slices, contexts; states, their JSON form, and pages."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, ReadInterrupted
from airflow_provider_rfr.streams import (
    Complete,
    IncrementalMixin,
    NextPage,
    NotStarted,
    Page,
    PagedStream,
    ReadContext,
    StateMixin,
    Stream,
    StreamSlice,
    dump_state,
    load_state,
)
from airflow_provider_rfr.streams.core import SliceError, as_stream_slice, flat_state, has_settable_state
from tests.soon import soon
from tests.unit.messages import raises


class OpenOrders(Stream):
    def read_records(self, *arguments: Any) -> Iterable[Mapping[str, Any]]:
        return [{"id": 1}]


class Incremental(OpenOrders):
    cursor_field = "updated_at"


class Keeping(OpenOrders, StateMixin):
    _state: Any = None

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value


class ReadOnlyState(OpenOrders):
    @property
    def state(self) -> Any:
        return {}


class WithAttribute(OpenOrders):
    def __init__(self) -> None:
        self.state: dict[str, Any] = {}


class Paged(PagedStream):
    name = "orders_by_page"

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        return Page([])


def test_a_stream_is_called_like_its_class_unless_it_has_a_name() -> None:
    class Named(OpenOrders):
        def __init__(self) -> None:
            self.name = "own"

    assert OpenOrders().name == "open_orders"
    assert Paged().name == "orders_by_page"
    assert Named().name == "own"
    assert list(OpenOrders().stream_slices()) == [{}]


@pytest.mark.parametrize(
    ("stream", "supported"),
    [
        (OpenOrders(), False),
        (ReadOnlyState(), False),
        (Keeping(), True),
        (WithAttribute(), True),
        (Paged(), True),
        (Incremental(), True),
    ],
)
def test_streams_with_a_settable_state_or_pages_can_resume(stream: Stream, supported: bool) -> None:
    assert stream.supports_checkpointing is supported
    assert has_settable_state(stream) is (supported and not isinstance(stream, (PagedStream, Incremental)))


def test_a_state_needs_getter_and_setter() -> None:
    class GetterOnly(OpenOrders, StateMixin):
        @property  # type: ignore[misc]
        def state(self) -> Any:
            return {}

    assert not GetterOnly().supports_checkpointing
    with pytest.raises(TypeError):
        StateMixin()  # type: ignore[abstract]


def test_incremental_mixin_still_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="use StateMixin"):

        class Old(OpenOrders, IncrementalMixin):
            state: Any = None

    assert isinstance(Old(), StateMixin)


def test_the_partition_key_does_not_depend_on_the_order_of_fields() -> None:
    stream = OpenOrders()
    assert stream.partition_key({"b": 1, "a": "é"}) == '{"a":"é","b":1}'
    assert stream.partition_key(StreamSlice({"b": 1, "a": "é"})) == '{"a":"é","b":1}'


def test_the_partition_key_is_made_of_the_declared_fields() -> None:
    class Children(OpenOrders):
        partition_fields = ("parent_id",)

    before = Children().partition_key({"parent_id": 7, "updated_at": "2026-01-01"})
    assert before == Children().partition_key({"parent_id": 7, "updated_at": "2026-01-02"}) == '{"parent_id":7}'
    with raises(SliceError):
        Children().partition_key({"id": 7})
    with raises(ConfigurationError):
        OpenOrders().partition_key({"day": object()})


def test_the_fingerprint_says_what_is_requested_and_nothing_of_the_schema() -> None:
    stream = OpenOrders()
    stream.page_size, stream.public_config = 100, {"region": "eu"}
    first = stream.fingerprint()
    stream.json_schema, stream.primary_key = {"type": "object"}, "id"
    assert first == stream.fingerprint()
    assert first["class"].endswith("test_streams_core:OpenOrders")
    assert (first["page_size"], first["config"]) == (100, {"region": "eu"})


def test_slices_read_flat_and_keep_their_parts() -> None:
    stream_slice = StreamSlice({"id": 7}, {"id": 100, "page": 2})
    assert stream_slice == {"id": 7, "page": 2}
    assert len(stream_slice) == 2
    assert stream_slice.cursor_slice == {"id": 100, "page": 2}
    assert pickle.loads(pickle.dumps(stream_slice)) == copy.deepcopy(stream_slice) == stream_slice


def test_a_slice_that_is_no_mapping_is_refused() -> None:
    assert as_stream_slice(None) == {}
    with raises(SliceError):
        as_stream_slice([1])


def test_a_sleep_ends_when_the_reader_is_stopped() -> None:
    context = ReadContext()
    context.check()
    context.sleep(0)
    threading.Timer(0.05, context.stop.set).start()
    with soon(), pytest.raises(ReadInterrupted):
        context.sleep(600)
    with pytest.raises(ReadInterrupted):
        context.check()


def test_a_context_stays_in_its_process_and_is_shared_by_copies() -> None:
    stream = Keeping()
    stream.bind(ReadContext())
    stream.context.stop.set()
    stream.state = {"page": 1}
    twin = stream.private_copy()
    assert isinstance(twin, Keeping)
    assert twin.context is stream.context
    twin.state["page"] = 2
    assert stream.state == {"page": 1}
    assert not pickle.loads(pickle.dumps(stream.context)).stop.is_set()
    assert not OpenOrders().context.stop.is_set()


SENTINEL = {"__ab_full_refresh_sync_complete": True}
NO_CURSOR = {"__ab_no_cursor_state_message": True}

TOKENS: list[Any] = [
    0,
    "",
    False,
    3,
    "eyJ=",
    1.5,
    [1, "a"],
    {},
    {"page": 3},
    {"next_page_token": 3},
    {"next_page_token": {"next_page_token": None}},
    {"version": 7, "state": "complete"},
    SENTINEL,
    NO_CURSOR,
]


@pytest.mark.parametrize("form", [dump_state, flat_state], ids=["JSON", "flat, as old streams know it"])
@pytest.mark.parametrize("state", [NotStarted(), Complete(), *map(NextPage, TOKENS)])
def test_a_state_survives_its_forms(form: Any, state: Any) -> None:
    assert load_state(json.loads(json.dumps(form(state)))) == state


@pytest.mark.parametrize(
    ("stored", "state"),
    [
        (None, NotStarted()),
        ({}, NotStarted()),
        (NO_CURSOR, NotStarted()),
        ({"next_page_token": None}, NotStarted()),
        (SENTINEL, Complete()),
        ({"next_page_token": 0}, NextPage(0)),
        ({"page": 3}, NextPage({"page": 3})),
        ({"updated_at": "2024-05-32"}, NextPage({"updated_at": "2024-05-32"})),
        (0, NextPage(0)),
        ("", NextPage("")),
        (False, NextPage(False)),
        ("abc", NextPage("abc")),
    ],
)
def test_older_forms_are_read(stored: Any, state: Any) -> None:
    assert load_state(stored) == state


def test_a_state_is_versioned() -> None:
    assert dump_state(NextPage(0)) == {"version": 1, "state": "next_page", "token": 0}
    assert dump_state(NotStarted()) == {"version": 1, "state": "not_started"}
    assert dump_state(Complete()) == {"version": 1, "state": "complete"}


@pytest.mark.parametrize(
    "stored",
    [
        {"version": 2, "state": "complete"},
        {"version": True, "state": "complete"},
        {"version": 1, "state": "done"},
        {"version": 1, "state": "next_page"},
        {"version": 1, "state": "complete", "token": 3},
    ],
)
def test_an_unknown_version_or_a_broken_state_is_refused(stored: Any) -> None:
    with raises(ConfigurationError):
        load_state(stored)


@pytest.mark.parametrize("value", [None, {"since": object()}, float("nan")], ids=["None", "an object", "NaN"])
def test_a_token_that_is_not_json_is_refused_where_it_arises(value: Any) -> None:
    with raises(ValueError if value is None else ConfigurationError):
        NextPage(value)


@pytest.mark.parametrize("token", TOKENS)
def test_a_page_takes_a_bare_token_even_one_that_is_false(token: Any) -> None:
    assert Page([], token).next == NextPage(token)


def test_a_page_without_a_next_token_is_the_last_and_none_is_followed_by_not_started() -> None:
    assert Page([{"id": 1}]).next == Page([{"id": 1}], None).next == Page([{"id": 1}], Complete()).next == Complete()
    with raises(ValueError):
        Page([], NotStarted())


def test_a_page_is_a_value() -> None:
    page = Page(({"id": i} for i in range(2)), 7, total_pages=9, request="GET /a", status=200)
    assert page.records == [{"id": 0}, {"id": 1}]
    assert pickle.loads(pickle.dumps(page)) == page
    assert dataclasses.replace(page, next=Complete()).next == Complete()
    with pytest.raises(dataclasses.FrozenInstanceError):
        page.status = 500  # type: ignore[misc]
