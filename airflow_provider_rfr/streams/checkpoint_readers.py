"""Checkpoint readers of streams that have no cursor object: which slice comes next, which state to emit.

All readers share one protocol.  ``next()`` is the next slice, or None to stop.  ``observe(state)`` tells
what the stream's state is now.  ``get_checkpoint()`` is the state to emit, or None to emit nothing; it is
asked after each slice, and once more after the last.  The final state is emitted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from airflow_provider_rfr.streams.slices import StreamSlice, as_stream_slice
from airflow_provider_rfr.streams.state import Complete, State, dump_state, flat_state, load_state


class CheckpointReader(Protocol):
    """Decides what a read loop reads next, and when it emits a state."""

    def next(self) -> Mapping[str, Any] | None:
        """The next slice; None when there is nothing left to read."""

    def observe(self, new_state: Any) -> None:
        """The stream's state after what was read so far."""

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        """The JSON form of the state to emit now; None for nothing."""


class IncrementalCheckpointReader:
    """Slice by slice; the state is what the stream says it is.

    Without any slice the incoming state is emitted again, so that it isn't lost.
    """

    def __init__(self, stream_state: Mapping[str, Any], stream_slices: Iterable[Mapping[str, Any] | None]) -> None:
        self._state: Mapping[str, Any] | None = stream_state
        self._slices = iter(stream_slices)
        self._has_slices = False

    def next(self) -> StreamSlice | None:
        try:
            following = as_stream_slice(next(self._slices))
        except StopIteration:
            if self._has_slices:
                self._state = None
            return None
        self._has_slices = True
        return following

    def observe(self, new_state: Mapping[str, Any]) -> None:
        self._state = new_state

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        return self._state


class ResumableFullRefreshCheckpointReader:
    """Page by page, for an undivided stream that keeps its position itself.

    The slices that it returns carry the position as their cursor slice.  States may be observed in any
    form that ``load_state`` reads.
    """

    def __init__(self, stream_state: Any) -> None:
        self._state: State = load_state(stream_state)
        self._emitted_complete = False

    def next(self) -> StreamSlice | None:
        if isinstance(self._state, Complete):
            return None
        return StreamSlice(cursor_slice=flat_state(self._state))

    def observe(self, new_state: Any) -> None:
        self._state = load_state(new_state)

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        if self._emitted_complete:
            return None
        self._emitted_complete = isinstance(self._state, Complete)
        return dump_state(self._state)


class FullRefreshCheckpointReader:
    """Slice by slice, for a stream that can't resume: one Complete when all were read, nothing before."""

    def __init__(self, stream_slices: Iterable[Mapping[str, Any] | None]) -> None:
        self._slices = iter(stream_slices)
        self._final: Mapping[str, Any] | None = None
        self._exhausted = False

    def next(self) -> StreamSlice | None:
        try:
            return as_stream_slice(next(self._slices))
        except StopIteration:
            if not self._exhausted:
                self._final = dump_state(Complete())
            self._exhausted = True
            return None

    def observe(self, new_state: Any) -> None:
        """Such a stream has no state to speak of."""

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        final, self._final = self._final, None
        return final
