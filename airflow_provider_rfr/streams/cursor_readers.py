"""Checkpoint readers of streams whose state a cursor object keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from airflow_provider_rfr.streams.slices import SliceError, StreamSlice, as_stream_slice, legacy_slice
from airflow_provider_rfr.streams.state import Complete, State, flat_state, load_state


class Cursor(Protocol):
    """Keeps the state of every partition of one stream."""

    def get_stream_state(self) -> Mapping[str, Any]:
        """The whole state as JSON; what was returned doesn't change when the cursor moves on."""

    def select_state(self, stream_slice: StreamSlice | None = None) -> Any:
        """The state of one partition, in any form that ``load_state`` reads; None if it's unseen."""


class CursorBasedCheckpointReader:
    """Slice by slice; or, with ``read_state_from_cursor``, page by page and slice by slice in one loop.

    In the second way a slice is returned again, with its new position, until the cursor says that it is
    complete; slices that were complete before are left out.  A state equal to the one emitted last is
    not emitted.  ``observe`` does nothing: the cursor knows.
    """

    def __init__(
        self,
        cursor: Cursor,
        stream_slices: Iterable[Mapping[str, Any] | None],
        read_state_from_cursor: bool = False,
    ) -> None:
        self._cursor = cursor
        self._slices = iter(stream_slices)
        self._by_page = read_state_from_cursor
        self._current: StreamSlice | None = None
        self._last_emitted: Mapping[str, Any] | None = None

    def next(self) -> Mapping[str, Any] | None:
        if not self._by_page:
            following = next(self._slices, _END)
            return None if following is _END else self._checked(following)
        return self._next_page()

    def abandon(self) -> None:
        """Leave the current slice as it is, for a later attempt, and go on with the next one."""
        self._current = None

    def observe(self, new_state: Any) -> None:
        """The cursor knows."""

    def get_checkpoint(self) -> Mapping[str, Any] | None:
        state = self._cursor.get_stream_state()
        if state == self._last_emitted:
            return None
        self._last_emitted = state
        return state

    def _next_page(self) -> StreamSlice | None:
        if self._current is not None:
            state = self._state_of(self._current)
            if not isinstance(state, Complete):
                return self._at(self._current, state)
        for following in self._slices:
            self._current = self._checked(following)
            state = self._state_of(self._current)
            if not isinstance(state, Complete):
                return self._at(self._current, state)
        self._current = None
        return None

    def _state_of(self, stream_slice: StreamSlice) -> State:
        return load_state(self._cursor.select_state(stream_slice))

    @staticmethod
    def _at(stream_slice: StreamSlice, state: State) -> StreamSlice:
        return StreamSlice(stream_slice.partition, flat_state(state))

    def _checked(self, value: Any) -> StreamSlice:
        if not isinstance(value, StreamSlice):
            raise SliceError(f"{value!r} is not a StreamSlice", "use LegacyCursorBasedCheckpointReader")
        return value


class LegacyCursorBasedCheckpointReader(CursorBasedCheckpointReader):
    """The same for streams written for the CDK, whose slices are plain mappings.

    Returns dictionaries with the flat keys and, under ``partition`` and ``cursor_slice``, both parts.

    :raises SliceError: a slice has one of those two keys itself
    """

    def next(self) -> dict[str, Any] | None:
        following = super().next()
        return None if following is None else legacy_slice(as_stream_slice(following))

    def _checked(self, value: Any) -> StreamSlice:
        stream_slice = as_stream_slice(value)
        legacy_slice(stream_slice)
        return stream_slice


_END: Any = object()
