"""The read loop over streams without pages: incremental ones, and ones that can't resume; states by stream (row 47).

Row numbers are those of the behaviours that the Python CDK is judged by.  Where it emits the final state
twice, we emit it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from streams_reading import collect, positions, shape, states

from airflow_provider_rfr.exceptions import ConfigurationError, RefreshFailedError
from airflow_provider_rfr.streams import Complete, StateMixin, Stream
from airflow_provider_rfr.streams.read import (
    ConnectorStateManager,
    StateMessage,
    _read_stream,
    _ReadOptions,
    read_streams,
)
from tests.unit.messages import raises


class Plain(Stream):
    """Neither state nor pages."""

    name = "plain"

    def __init__(self, *days: str) -> None:
        self.days = days

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return [{"day": day} for day in self.days] or [{}]

    def read_records(
        self,
        stream_slice: Mapping[str, Any] | None = None,
        stream_state: Mapping[str, Any] | None = None,
    ) -> Iterable[Any]:
        assert stream_state is None
        for number in range(3):
            yield {"id": number, **(stream_slice or {})}


@pytest.mark.parametrize("days", [(), ("1", "2")], ids=["no slices", "slices"])
def test_a_stream_that_cannot_resume_emits_one_state_after_its_last_slice(days: tuple[str, ...]) -> None:
    """Row 26."""
    messages = list(read_streams([Plain(*days)]))
    count = 3 * max(1, len(days))
    assert shape(messages) == "STARTED RUNNING " + "R " * count + "S COMPLETE"
    assert positions(messages) == [Complete()]
    assert states(messages)[0].record_count == count


def test_a_stream_that_cannot_resume_emits_no_state_when_it_fails() -> None:
    """Row 26; a failed run must not leave a state that looks final."""

    class Failing(Plain):
        def read_records(self, *arguments: Any) -> Iterable[Any]:
            yield {"id": 1}
            raise KeyError("total")

    messages, error = collect(read_streams([Failing("1", "2")]), RefreshFailedError)
    assert shape(messages) == "STARTED RUNNING R INCOMPLETE !"
    assert "KeyError" in str(error)


class Incremental(Plain, StateMixin):
    """Its state is the newest id so far, in one dictionary that it changes in place."""

    name = "incremental"
    cursor_field = "id"

    def __init__(self, *days: str) -> None:
        super().__init__(*days)
        self._state: dict[str, Any] = {}

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value

    def read_records(self, *arguments: Any) -> Iterable[Any]:
        for number in range(3):
            self._state["id"] = self._state.get("id", 0) + 1
            yield {"id": number}


def incremental(interval: int | None = None) -> _ReadOptions:
    return _ReadOptions(incremental=True, checkpoint_interval=interval)


def test_an_interval_counts_across_slices_and_equal_states_are_not_repeated() -> None:
    """Row 27: the CDK ends with two equal states."""
    messages = list(_read_stream(Incremental("1", "2"), incremental(2)))
    assert shape(messages) == "R R S R S R S R R S"
    assert [message.state for message in states(messages)] == [{"id": n} for n in (2, 3, 4, 6)]
    assert [message.record_count for message in states(messages)] == [2, 1, 1, 2]


def test_without_an_interval_each_slice_ends_with_a_state() -> None:
    """Row 1, in the loop."""
    messages = list(_read_stream(Incremental("1", "2"), incremental()))
    assert shape(messages) == "R R R S R R R S"


def test_an_incremental_stream_goes_on_from_its_state() -> None:
    messages = list(_read_stream(Incremental("1"), incremental(), stream_state={"id": 40}))
    assert states(messages)[-1].state == {"id": 43}


def test_an_incremental_stream_without_slices_gives_its_state_back() -> None:
    """Row 2, in the loop."""

    class Nothing(Incremental):
        def stream_slices(self) -> Iterable[Mapping[str, Any]]:
            return []

    messages = list(_read_stream(Nothing(), incremental(), stream_state={"id": 40}))
    assert messages == [StateMessage("incremental", {"id": 40}, 0)]


def test_an_incremental_stream_can_be_read_in_full() -> None:
    messages = list(_read_stream(Incremental("1", "2")))
    assert shape(messages) == "R R R R R R S"
    assert positions(messages) == [Complete()]


@pytest.mark.parametrize("stream", [Plain(), "paged"])
def test_a_stream_that_has_no_cursor_field_is_not_read_incrementally(stream: Any, paged: Any) -> None:
    with raises(ConfigurationError):
        list(_read_stream(paged("orders") if stream == "paged" else stream, incremental()))


def state_of(name: str, state: Any, namespace: str | None = None) -> dict[str, Any]:
    return {"stream_descriptor": {"name": name, "namespace": namespace}, "stream_state": state}


def test_a_list_of_messages_is_looked_up_by_name_and_namespace() -> None:
    manager = ConnectorStateManager(
        [
            {"type": "STREAM", "stream": state_of("orders", {"page": 1})},
            {"type": "STREAM", "stream": state_of("orders", {"page": 2}, "eu")},
            {"type": "STREAM", "stream": state_of("users", None)},
        ]
    )
    assert manager.get_stream_state("orders") == {"page": 1}
    assert manager.get_stream_state("orders", "eu") == {"page": 2}
    assert manager.get_stream_state("orders", "us") == manager.get_stream_state("users") == {}


def test_a_global_message_is_a_list_of_streams_and_a_shared_state_is_rejected() -> None:
    orders = [state_of("orders", {"page": 1})]
    manager = ConnectorStateManager([{"type": "GLOBAL", "global": {"stream_states": orders}}])
    assert manager.get_stream_state("orders") == {"page": 1}
    message = {"type": "GLOBAL", "global": {"shared_state": {"lsn": 1}, "stream_states": []}}
    with raises(ConfigurationError):
        ConnectorStateManager([message])


@pytest.mark.parametrize("message", [{"type": "LEGACY"}, {}, {"type": "STREAM", "stream": {}}])
def test_a_message_of_another_form_is_rejected(message: Any) -> None:
    with pytest.raises(ConfigurationError):
        ConnectorStateManager([message])


def test_states_are_copied_on_their_way_in_and_out() -> None:
    state = {"nested": {"page": 1}}
    manager = ConnectorStateManager([StateMessage("orders", state)])
    state["nested"]["page"] = 2
    taken = manager.get_stream_state("orders")
    assert taken == {"nested": {"page": 1}}
    taken["nested"]["page"] = 3
    assert manager.get_stream_state("orders") == {"nested": {"page": 1}}


def test_an_update_replaces_the_state_of_that_stream_alone() -> None:
    manager = ConnectorStateManager([StateMessage("a", {"page": 1, "old": True}), StateMessage("b", {"page": 1})])
    manager.update_state_for_stream("a", None, {"page": 2})
    assert manager.get_stream_state("a") == {"page": 2}
    assert manager.get_stream_state("b") == {"page": 1}
