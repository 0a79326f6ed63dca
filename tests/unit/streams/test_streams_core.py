"""Streams, slices, contexts."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, ReadInterrupted
from airflow_provider_rfr.streams import (
    IncrementalMixin,
    Page,
    PagedStream,
    ReadContext,
    StateMixin,
    Stream,
    StreamSlice,
)
from airflow_provider_rfr.streams.core import SliceError, as_stream_slice, has_settable_state, legacy_slice
from tests.soon import soon
from tests.unit.messages import raises


class OpenOrders(Stream):
    def read_records(
        self,
        stream_slice: Mapping[str, Any] | None = None,
        stream_state: Mapping[str, Any] | None = None,
    ) -> Iterable[Mapping[str, Any]]:
        return [{"id": 1}]


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


def test_an_undivided_stream_has_one_empty_slice() -> None:
    assert list(OpenOrders().stream_slices()) == [{}]


@pytest.mark.parametrize(
    ("stream", "supported"),
    [
        (OpenOrders(), False),
        (ReadOnlyState(), False),
        (Keeping(), True),
        (WithAttribute(), True),
        (Paged(), True),
    ],
)
def test_streams_with_a_settable_state_or_pages_can_resume(stream: Stream, supported: bool) -> None:
    assert stream.supports_checkpointing is supported
    assert has_settable_state(stream) is (supported and not isinstance(stream, PagedStream))


def test_an_incremental_stream_can_resume() -> None:
    class Incremental(OpenOrders):
        cursor_field = "updated_at"

    assert Incremental().supports_checkpointing


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


def test_a_slice_that_is_not_json_is_refused() -> None:
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


@pytest.mark.parametrize("key", ["partition", "cursor_slice"])
def test_the_reserved_keys_are_refused_in_slices_of_old_streams(key: str) -> None:
    """Row 13."""
    with pytest.raises(ValueError, match=key):
        legacy_slice(StreamSlice({key: 1}))


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
