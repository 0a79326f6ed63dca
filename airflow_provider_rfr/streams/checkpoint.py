"""Checkpoint readers, which choose the next slice and the state to emit, and cursors, which keep positions.

All readers share one protocol. ``next()`` returns the next slice, or None at the end. ``observe(state)`` takes the
stream's current state. ``get_checkpoint()`` returns the state to emit, or None; a read loop calls it after each slice,
and once more after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.core import (
    Complete,
    NotStarted,
    SliceError,
    State,
    StreamSlice,
    as_stream_slice,
    canonical_json,
    dump_state,
    flat_state,
    legacy_slice,
    load_state,
)


class CheckpointReader(Protocol):
    """A reader that decides which slice a read loop reads next, and when the loop emits a state."""

    def next(self) -> Mapping[str, Any] | None:
        """Return the next slice; None when there is nothing left to read."""

    def observe(self, new_state: Any) -> None:
        """Take the stream's state after the records that were read so far."""

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        """Return the JSON form of the state to emit now; None for nothing."""


class IncrementalCheckpointReader:
    """A reader that goes slice by slice, and emits the states that the stream reports.

    If there are no slices, it emits the incoming state again, so that this isn't lost.
    """

    def __init__(self, stream_state: Mapping[str, Any], stream_slices: Iterable[Mapping[str, Any] | None]) -> None:
        self._state: Mapping[str, Any] | None = stream_state
        self._slices = iter(stream_slices)
        self._has_slices = False

    def next(self) -> StreamSlice | None:
        for following in self._slices:
            self._has_slices = True
            return as_stream_slice(following)
        if self._has_slices:
            # It was emitted after the last slice.
            self._state = None
        return None

    def observe(self, new_state: Mapping[str, Any]) -> None:
        self._state = new_state

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        return self._state


class ResumableFullRefreshCheckpointReader:
    """A reader that goes page by page through an undivided stream that keeps its position itself.

    The slices that it returns carry the position as their cursor slice.  It observes states in any form that
    ``load_state`` reads.
    """

    def __init__(self, stream_state: Any) -> None:
        self._state: State = load_state(stream_state)
        self._emitted_complete = False

    def next(self) -> StreamSlice | None:
        return None if isinstance(self._state, Complete) else StreamSlice(cursor_slice=flat_state(self._state))

    def observe(self, new_state: Any) -> None:
        self._state = load_state(new_state)

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        if self._emitted_complete:
            return None
        self._emitted_complete = isinstance(self._state, Complete)
        return dump_state(self._state)


class FullRefreshCheckpointReader:
    """A reader that goes slice by slice through a stream that can't resume, and emits one Complete at the end."""

    def __init__(self, stream_slices: Iterable[Mapping[str, Any] | None]) -> None:
        self._slices = iter(stream_slices)
        self._has_ended = False
        self._final: Mapping[str, Any] | None = None

    def next(self) -> StreamSlice | None:
        for following in self._slices:
            return as_stream_slice(following)
        if not self._has_ended:
            self._has_ended, self._final = True, dump_state(Complete())
        return None

    def observe(self, new_state: Any) -> None:
        """Ignore the state: such a stream has none."""

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        final, self._final = self._final, None
        return final


class SliceCursor(Protocol):
    """A cursor that keeps the state of every partition of one stream."""

    def get_stream_state(self) -> Mapping[str, Any]:
        """Return the whole state as JSON; a returned state doesn't change when the cursor moves on."""

    def select_state(self, stream_slice: StreamSlice | None = None) -> Any:
        """Return the state of one partition, in any form that ``load_state`` reads; None if it was never seen."""


class CursorBasedCheckpointReader:
    """A cursor-based reader that goes slice by slice, and emits the cursor's state.

    With ``read_state_from_cursor`` it returns a slice again for each page, with its new position, until the cursor says
    that the slice is complete; it leaves out slices that were complete before.  It does not emit a state that equals
    the one before.
    """

    def __init__(
        self,
        cursor: SliceCursor,
        stream_slices: Iterable[Mapping[str, Any] | None],
        read_state_from_cursor: bool = False,
    ) -> None:
        self._cursor = cursor
        self._slices = iter(stream_slices)
        self._by_page = read_state_from_cursor
        self._current: StreamSlice | None = None
        self._last_emitted: Mapping[str, Any] | None = None

    def next(self) -> Mapping[str, Any] | None:
        if self._by_page and self._current is not None:
            at = self._next_page(self._current)
            if at is not None:
                return at
        for following in self._slices:
            if not isinstance(following, StreamSlice):
                problem = f"{following!r} is not a StreamSlice"
                raise SliceError(problem, "use LegacyCursorBasedCheckpointReader")
            self._current = following
            at = self._next_page(self._current) if self._by_page else self._current
            if at is not None:
                return at
        self._current = None
        return None

    def abandon(self) -> None:
        """Leave the current slice unfinished, for a later attempt, and continue with the next one."""
        self._current = None

    def observe(self, new_state: Any) -> None:
        """Ignore the state, which is read from the cursor."""

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        state = self._cursor.get_stream_state()
        if state == self._last_emitted:
            return None
        self._last_emitted = state
        return state

    def _next_page(self, stream_slice: StreamSlice) -> StreamSlice | None:
        """Return the slice at its next page; None if it is complete."""
        state = load_state(self._cursor.select_state(stream_slice))
        return None if isinstance(state, Complete) else StreamSlice(stream_slice.partition, flat_state(state))


class LegacyCursorBasedCheckpointReader(CursorBasedCheckpointReader):
    """A cursor-based reader for streams that were written for the CDK, whose slices are plain mappings.

    It returns dictionaries with the flat keys and, under ``partition`` and ``cursor_slice``, both parts.

    :raises SliceError: a slice has one of those two keys itself
    """

    def __init__(
        self,
        cursor: SliceCursor,
        stream_slices: Iterable[Mapping[str, Any] | None],
        read_state_from_cursor: bool = False,
    ) -> None:
        super().__init__(cursor, map(as_stream_slice, stream_slices), read_state_from_cursor)

    def next(self) -> dict[str, Any] | None:
        following = super().next()
        return None if following is None else legacy_slice(as_stream_slice(following))


class ResumableFullRefreshCursor:
    """A cursor with the position in a stream that isn't divided.

    :param state: in any form that ``load_state`` reads
    """

    def __init__(self, state: Any = None) -> None:
        self._state: State = load_state(state)

    def stream_slices(self) -> Iterator[StreamSlice]:
        yield StreamSlice(cursor_slice=flat_state(self._state))

    def select_state(self, stream_slice: Mapping[str, Any] | None = None) -> State:
        return self._state

    def observe(self, stream_slice: Mapping[str, Any], state: Any) -> None:
        self._state = load_state(state)

    def close_slice(self, stream_slice: Mapping[str, Any]) -> None:
        self._state = Complete()

    def get_stream_state(self) -> Mapping[str, Any]:
        return dump_state(self._state)


class SubstreamResumableFullRefreshCursor:
    """A cursor with the position in each partition of a stream, so that a partition resumes at its page.

    :param state: ``{"states": [{"partition": ..., "cursor": ...}, ...]}``, each cursor in any form that
        ``load_state`` reads; empty at the start
    :param partition_key: returns the text that identifies a partition
    :raises ConfigurationError: the state has another shape
    """

    def __init__(
        self, state: Mapping[str, Any] | None = None, partition_key: Callable[[Mapping[str, Any]], str] = canonical_json
    ) -> None:
        self._key = partition_key
        # In the order in which partitions were first seen. An entry is replaced and never changed in place, because
        # states that were returned hold it.
        self._entries: dict[str, dict[str, Any]] = {}
        if state is None or ("states" not in state and isinstance(load_state(state), NotStarted)):
            return
        states = state.get("states")
        if not isinstance(states, list):
            raise _malformed("stream_state.states", state)
        for number, entry in enumerate(states):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("partition"), Mapping):
                raise _malformed(f"stream_state.states[{number}]", entry)
            self.observe(entry["partition"], entry.get("cursor"))

    def select_state(self, stream_slice: Mapping[str, Any] | None = None) -> State | None:
        """Return the position of one partition; None if it was never seen.

        :raises SliceError: no slice was named
        """
        if stream_slice is None:
            raise SliceError("a stream with partitions has no state as a whole", "name a slice")
        entry = self._entries.get(self._key(as_stream_slice(stream_slice).partition))
        return None if entry is None else load_state(entry["cursor"])

    def observe(self, stream_slice: Mapping[str, Any], state: Any) -> None:
        partition = as_stream_slice(stream_slice).partition
        self._entries[self._key(partition)] = {"partition": dict(partition), "cursor": dump_state(load_state(state))}

    def close_slice(self, stream_slice: Mapping[str, Any]) -> None:
        self.observe(stream_slice, Complete())

    def get_stream_state(self) -> Mapping[str, Any]:
        return {"states": list(self._entries.values())}


def _malformed(field: str, value: Any) -> ConfigurationError:
    return ConfigurationError(
        field,
        f"{value!r} is not the state of a stream with partitions",
        'the form is {"states": [{"partition": {...}, "cursor": {...}}]}',
    )
