"""Checkpoint readers: which slice comes next, and which state to emit.

All readers share one protocol. ``next()`` is the next slice, or None to stop. ``observe(state)`` says what the stream's
state is now. ``get_checkpoint()`` is the state to emit, or None; it is asked after each slice and once after the last.

States of many partitions are kept as a log of changes, and a snapshot is a length of it: a state after each of n pages
costs O(n) in all, where copying a growing list costs O(n²).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

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


class _Change(NamedTuple):
    key: str
    partition: Mapping[str, Any]
    before: State | None
    after: State


class _PartitionStates:
    """The log, and the newest state of each partition by its key."""

    def __init__(self) -> None:
        self._log: list[_Change] = []
        self._newest: dict[str, State] = {}

    def get(self, key: str) -> State | None:
        """The newest state; None for a partition never recorded."""
        return self._newest.get(key)

    def record(self, key: str, partition: Mapping[str, Any], state: State) -> None:
        """Append a change; one that changes nothing isn't one."""
        before = self._newest.get(key)
        if before != state:
            self._log.append(_Change(key, partition, before, state))
            self._newest[key] = state

    def snapshot(self) -> StatesSnapshot:
        """All states as they are now, in the order in which partitions were first recorded."""
        return StatesSnapshot(self._log, len(self._log))


class StatesSnapshot(Mapping[str, Any]):
    """``{"states": [{"partition": ..., "cursor": ...}, ...]}``, made when somebody looks.

    Immutable.  ``dict(snapshot)`` can be given to ``json.dumps``.
    """

    __slots__ = ("_length", "_log")

    def __init__(self, log: list[_Change], length: int) -> None:
        self._log = log
        self._length = length

    def __getitem__(self, key: str) -> Any:
        if key != "states":
            raise KeyError(key)
        newest: dict[str, tuple[Mapping[str, Any], State]] = {}
        for change in self._log[: self._length]:
            newest[change.key] = (change.partition, change.after)
        return [{"partition": dict(partition), "cursor": dump_state(state)} for partition, state in newest.values()]

    def __iter__(self) -> Iterator[str]:
        yield "states"

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StatesSnapshot) and other._log is self._log:
            return not self._changed_between(other)
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> StatesSnapshot:
        return self

    def __repr__(self) -> str:
        return repr(dict(self))

    def _changed_between(self, other: StatesSnapshot) -> bool:
        """Costs the number of changes between the two, not the number of partitions."""
        start, end = sorted((self._length, other._length))
        first: dict[str, State | None] = {}
        last: dict[str, State] = {}
        for index in range(start, end):
            change = self._log[index]
            first.setdefault(change.key, change.before)
            last[change.key] = change.after
        return any(first[key] != state for key, state in last.items())


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
        self._states = _PartitionStates()
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
