"""Cursors of a resumable full refresh: they keep the position, page by page, of a stream's partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.json_values import canonical_json
from airflow_provider_rfr.streams.partition_states import PartitionStates
from airflow_provider_rfr.streams.slices import SliceError, StreamSlice
from airflow_provider_rfr.streams.state import Complete, NotStarted, State, dump_state, flat_state, load_state


class ResumableFullRefreshCursor:
    """The position of a stream that isn't divided.

    :param state: in any form that ``load_state`` reads
    """

    def __init__(self, state: Any = None) -> None:
        self._state: State = load_state(state)

    def stream_slices(self) -> Iterator[StreamSlice]:
        """The one slice, at its position."""
        yield StreamSlice(cursor_slice=flat_state(self._state))

    def select_state(self, stream_slice: Mapping[str, Any] | None = None) -> State:
        return self._state

    def observe(self, stream_slice: Mapping[str, Any], state: Any) -> None:
        """The position after a page."""
        self._state = load_state(state)

    def close_slice(self, stream_slice: Mapping[str, Any]) -> None:
        """All pages were read."""
        self._state = Complete()

    def get_stream_state(self) -> Mapping[str, Any]:
        return dump_state(self._state)


class SubstreamResumableFullRefreshCursor:
    """The position inside each partition; a partition resumes at its page.

    A step costs the same however many partitions there are.

    :param state: ``{"states": [{"partition": ..., "cursor": ...}, ...]}``, each cursor in any form that
        ``load_state`` reads; empty at the start
    :param partition_key: text that identifies a partition
    :raises ConfigurationError: the state has another shape
    """

    def __init__(
        self,
        state: Mapping[str, Any] | None = None,
        partition_key: Callable[[Mapping[str, Any]], str] = canonical_json,
    ) -> None:
        self._key = partition_key
        self._states = PartitionStates()
        for partition, cursor in _entries(state):
            self._states.record(partition_key(partition), partition, cursor)

    def select_state(self, stream_slice: Mapping[str, Any] | None = None) -> State | None:
        """The position of one partition; None if it was never seen.

        :raises SliceError: no slice was named
        """
        return self._states.get(self._key(_partition(stream_slice)))

    def observe(self, stream_slice: Mapping[str, Any], state: Any) -> None:
        """The position inside the slice's partition after a page."""
        partition = _partition(stream_slice)
        self._states.record(self._key(partition), partition, load_state(state))

    def close_slice(self, stream_slice: Mapping[str, Any]) -> None:
        """All pages of the partition were read."""
        self.observe(stream_slice, Complete())

    def get_stream_state(self) -> Mapping[str, Any]:
        return self._states.snapshot()


def _partition(stream_slice: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if stream_slice is None:
        raise SliceError("a stream with partitions has no state as a whole", "name a slice")
    return stream_slice.partition if isinstance(stream_slice, StreamSlice) else stream_slice


def _entries(state: Mapping[str, Any] | None) -> Iterator[tuple[Mapping[str, Any], State]]:
    if state is None or ("states" not in state and isinstance(load_state(state), NotStarted)):
        return
    states = state.get("states")
    if not isinstance(states, list):
        raise _malformed("stream_state.states", state)
    for number, entry in enumerate(states):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("partition"), Mapping):
            raise _malformed(f"stream_state.states[{number}]", entry)
        yield dict(entry["partition"]), load_state(entry.get("cursor"))


def _malformed(field: str, value: Any) -> ConfigurationError:
    return ConfigurationError(
        field,
        f"{value!r} is not the state of a stream with partitions",
        'the form is {"states": [{"partition": {...}, "cursor": {...}}]}',
    )
