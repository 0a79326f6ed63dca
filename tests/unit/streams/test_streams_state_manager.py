"""States by stream and namespace (row 47)."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams import NextPage, StreamSlice
from airflow_provider_rfr.streams.checkpoint import SubstreamResumableFullRefreshCursor
from airflow_provider_rfr.streams.read import ConnectorStateManager, StateMessage
from tests.unit.messages import raises


def stream(name: str, state: Any, namespace: str | None = None) -> dict[str, Any]:
    return {"stream_descriptor": {"name": name, "namespace": namespace}, "stream_state": state}


def test_a_list_of_messages_is_looked_up_by_name_and_namespace() -> None:
    manager = ConnectorStateManager(
        [
            {"type": "STREAM", "stream": stream("orders", {"page": 1})},
            {"type": "STREAM", "stream": stream("orders", {"page": 2}, "eu")},
            {"type": "STREAM", "stream": stream("users", None)},
        ]
    )
    assert manager.get_stream_state("orders") == {"page": 1}
    assert manager.get_stream_state("orders", "eu") == {"page": 2}
    assert manager.get_stream_state("orders", "us") == {}
    assert manager.get_stream_state("users") == {}
    assert manager.get_stream_state("unknown") == {}


def test_a_global_message_without_shared_state_is_a_list_of_streams() -> None:
    states = [stream("orders", {"page": 1})]
    manager = ConnectorStateManager([{"type": "GLOBAL", "global": {"stream_states": states}}])
    assert manager.get_stream_state("orders") == {"page": 1}


def test_a_shared_state_is_rejected() -> None:
    message = {"type": "GLOBAL", "global": {"shared_state": {"lsn": 1}, "stream_states": []}}
    with raises(ConfigurationError):
        ConnectorStateManager([message])


@pytest.mark.parametrize("message", [{"type": "LEGACY"}, {}, {"type": "STREAM", "stream": {}}])
def test_a_message_of_another_form_is_rejected(message: Any) -> None:
    with pytest.raises(ConfigurationError):
        ConnectorStateManager([message])


def test_no_states_at_all_are_fine() -> None:
    assert ConnectorStateManager().get_stream_state("orders") == {}
    assert ConnectorStateManager([]).get_stream_state("orders") == {}


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


def test_the_state_of_a_cursor_is_kept_as_it_was() -> None:
    cursor = SubstreamResumableFullRefreshCursor()
    manager = ConnectorStateManager()
    cursor.observe(StreamSlice({"parent": 1}), NextPage(2))
    manager.update_state_for_stream("orders", None, cursor.get_stream_state())
    cursor.observe(StreamSlice({"parent": 1}), NextPage(3))
    assert manager.get_stream_state("orders")["states"][0]["cursor"]["token"] == 2
