"""The states of all streams of one source, as they came in and as they are now."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.messages import StateMessage
from airflow_provider_rfr.streams.partition_states import StatesSnapshot

StreamId: TypeAlias = tuple[str, str | None]


class ConnectorStateManager:
    """Looks states up by stream name and namespace.

    :param states: messages of type STREAM, or a single one of type GLOBAL, in the protocol's JSON form;
        StateMessages too
    :raises ConfigurationError: another form, or a GLOBAL message with a state that streams share, which
        no single stream can go on from
    """

    def __init__(self, states: Iterable[Mapping[str, Any] | StateMessage] | None = None) -> None:
        self._states: dict[StreamId, Mapping[str, Any]] = {}
        for message in states or ():
            if isinstance(message, StateMessage):
                self.update_state_for_stream(message.stream, message.namespace, message.state)
            else:
                for name, namespace, state in _stream_states(message):
                    self.update_state_for_stream(name, namespace, state)

    def get_stream_state(self, name: str, namespace: str | None = None) -> dict[str, Any]:
        """A deep copy, ``{}`` for a stream without state."""
        return copy.deepcopy(dict(self._states.get((name, namespace), {})))

    def update_state_for_stream(self, name: str, namespace: str | None, state: Mapping[str, Any]) -> None:
        """Replace the state; what the caller does to ``state`` later has no effect."""
        self._states[name, namespace] = frozen_state(state)

    def create_state_message(self, name: str, namespace: str | None = None, record_count: int = 0) -> StateMessage:
        """The stream's state as a message, ``{}`` if there is none."""
        state = self._states.get((name, namespace), {})
        return StateMessage(name, frozen_state(state), record_count, namespace)


def frozen_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state as it is now, whatever its stream does to it later."""
    return state if isinstance(state, StatesSnapshot) else copy.deepcopy(dict(state))


def _stream_states(message: Mapping[str, Any]) -> Iterator[tuple[str, str | None, Mapping[str, Any]]]:
    kind = message.get("type")
    if kind == "STREAM":
        yield _stream_state(message.get("stream"))
    elif kind == "GLOBAL":
        whole = message.get("global") or {}
        if whole.get("shared_state"):
            raise ConfigurationError(
                "state.global.shared_state",
                "is a state that several streams share, which no stream can go on from",
                "give each stream its own state",
            )
        for entry in whole.get("stream_states") or ():
            yield _stream_state(entry)
    else:
        raise ConfigurationError("state.type", f"{kind!r} is unknown", "allowed are STREAM and GLOBAL")


def _stream_state(entry: Any) -> tuple[str, str | None, Mapping[str, Any]]:
    descriptor = entry.get("stream_descriptor") if isinstance(entry, Mapping) else None
    if not isinstance(descriptor, Mapping) or "name" not in descriptor:
        raise ConfigurationError("state.stream", f"{entry!r} names no stream", "give stream_descriptor.name")
    return descriptor["name"], descriptor.get("namespace"), entry.get("stream_state") or {}
