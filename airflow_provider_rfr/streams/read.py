"""The read loop: one for every kind of stream and both sync modes.

It reads one slice after another in one thread and delivers at least once: to look at a source, to test one, and for
parents. The refresh engine reads pages itself, many at a time, and delivers exactly once.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import Any, TypeAlias

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    ConfigurationError,
    ReadInterrupted,
    RefreshFailedError,
    TokenExpiredError,
)
from airflow_provider_rfr.streams.checkpoint import (
    CheckpointReader,
    CursorBasedCheckpointReader,
    FullRefreshCheckpointReader,
    IncrementalCheckpointReader,
    LegacyCursorBasedCheckpointReader,
    ResumableFullRefreshCheckpointReader,
    ResumableFullRefreshCursor,
    StatesSnapshot,
    SubstreamResumableFullRefreshCursor,
)
from airflow_provider_rfr.streams.core import (
    Complete,
    LogMessage,
    NextPage,
    NotStarted,
    State,
    Stream,
    StreamSlice,
    as_stream_slice,
    has_settable_state,
    load_state,
)
from airflow_provider_rfr.streams.paged import (
    EmptyPageGuard,
    PagedStream,
    RepeatedTokenGuard,
    as_paged,
    checked_records,
    keeps_page_state,
    token_of,
)


class _StreamStatus(Enum):
    """How far the reading of a stream is.  COMPLETE and INCOMPLETE are final."""

    STARTED = "STARTED"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    INCOMPLETE = "INCOMPLETE"


class _SyncMode(Enum):
    """What the reader of a stream asks for."""

    FULL_REFRESH = "full_refresh"
    INCREMENTAL = "incremental"


@dataclass(frozen=True, slots=True)
class _RecordMessage:
    """One record."""

    stream: str
    record: Mapping[str, Any]
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class _StateMessage:
    """Everything that the state covers was yielded before it.

    :ivar state: immutable; ``dict(state)`` is its JSON form
    :ivar record_count: records of the stream that this state covers and the one before it did not
    """

    stream: str
    state: Mapping[str, Any]
    record_count: int = 0
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class _StatusMessage:
    """A stream went over to another status."""

    stream: str
    status: _StreamStatus
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class _ErrorMessage:
    """Why a stream ended INCOMPLETE."""

    stream: str
    error: Exception
    namespace: str | None = None


_Message: TypeAlias = _RecordMessage | _StateMessage | _StatusMessage | _ErrorMessage | LogMessage

log = logging.getLogger(__name__)

_PageCursor = ResumableFullRefreshCursor | SubstreamResumableFullRefreshCursor
_Items = Iterable[Mapping[str, Any] | LogMessage]


@dataclass(frozen=True, slots=True)
class _ReadPlan:
    """What the read loop needs to know of a stream.

    :ivar read: the records of a slice that the reader returned
    :ivar state: the stream's state after what was read so far
    :ivar abandon: leaves the current slice to a later attempt; None where slices depend on each other
    """

    reader: CheckpointReader
    read: Callable[[Mapping[str, Any]], _Items]
    state: Callable[[], Any]
    abandon: Callable[[], None] | None = None


def _read_plan(stream: Stream, sync_mode: _SyncMode, stream_state: Mapping[str, Any]) -> _ReadPlan:
    """:raises ConfigurationError: the stream can't be read in this mode, or not from this state"""
    if sync_mode is _SyncMode.INCREMENTAL:
        return _incremental(stream, stream_state)
    if _is_read_by_page(stream):
        return _by_page(stream, stream_state)

    def read(stream_slice: Mapping[str, Any]) -> _Items:
        return checked_records(stream, stream.read_records(stream_slice, None))

    return _ReadPlan(FullRefreshCheckpointReader(unique_slices(stream)), read, lambda: None)


def page_cursor(stream: Stream, divided: bool, stream_state: Mapping[str, Any] | None = None) -> _PageCursor | None:
    """The cursor that keeps a stream's pages; None for a stream whose pages nobody could resume at.

    :param divided: the stream has slices that differ
    """
    return _cursor(stream, divided, stream_state) if _is_read_by_page(stream) else None


def _is_read_by_page(stream: Stream) -> bool:
    return isinstance(stream, PagedStream) or keeps_page_state(stream)


def _cursor(stream: Stream, divided: bool, stream_state: Mapping[str, Any] | None) -> _PageCursor:
    if divided:
        return SubstreamResumableFullRefreshCursor(stream_state, stream.partition_key)
    return ResumableFullRefreshCursor(stream_state)


def unique_slices(stream: Stream) -> Iterator[StreamSlice]:
    """The stream's slices, without those whose partition key came before; warns once of such."""
    seen: set[str] = set()
    warned = False
    for item in stream.stream_slices():
        stream_slice = as_stream_slice(item)
        key = stream.partition_key(stream_slice.partition)
        if key not in seen:
            seen.add(key)
            yield stream_slice
        elif not warned:
            warned = True
            log.warning("%s: partition %s is listed twice and read once", stream.name, key)


def _incremental(stream: Stream, stream_state: Mapping[str, Any]) -> _ReadPlan:
    if isinstance(stream, PagedStream) or not stream.cursor_field or not has_settable_state(stream):
        raise ConfigurationError(
            f"{stream.name}.sync_mode", "the stream can't be read incrementally", "read it in full"
        )
    stateful: Any = stream
    if stream_state:
        stateful.state = dict(stream_state)

    def read(stream_slice: Mapping[str, Any]) -> _Items:
        return checked_records(stream, stream.read_records(stream_slice, stream_state))

    reader = IncrementalCheckpointReader(stream_state, unique_slices(stream))
    return _ReadPlan(reader, read, lambda: stateful.state)


def _by_page(stream: Stream, stream_state: Mapping[str, Any]) -> _ReadPlan:
    slices = unique_slices(stream)
    first = list(islice(slices, 2))  # two tell whether the stream is divided, and cost few requests
    slices = chain(first, slices)
    divided = "states" in stream_state or [len(each.partition) for each in first] != [0]
    paged = as_paged(stream, stream_state=stream_state)
    cursor = _cursor(stream, divided, stream_state)
    pages = _Pages(paged, cursor)
    if not divided and paged is not stream:
        return _ReadPlan(ResumableFullRefreshCheckpointReader(stream_state), pages.read, pages.state)
    reader_class = CursorBasedCheckpointReader if paged is stream else LegacyCursorBasedCheckpointReader
    reader = reader_class(cursor, slices, read_state_from_cursor=True)
    return _ReadPlan(reader, pages.read, pages.state, reader.abandon if divided else None)


class _Pages:
    """Reads a slice's page, and moves the cursor once all of the page's records were taken."""

    def __init__(self, stream: PagedStream, cursor: _PageCursor) -> None:
        self._stream = stream
        self._cursor = cursor
        self._at: StreamSlice = StreamSlice()
        self._guard: RepeatedTokenGuard | None = None
        self._ends = EmptyPageGuard(stream.page_size, resumed=False)

    def read(self, stream_slice: Mapping[str, Any]) -> _Items:
        at, state = _position(stream_slice)
        if isinstance(state, Complete):
            return
        if self._guard is None or at.partition != self._at.partition:
            self._guard = RepeatedTokenGuard()
            self._ends = EmptyPageGuard(self._stream.page_size, resumed=isinstance(state, NextPage))
        self._at = at
        token = token_of(state)
        self._guard.check(token)
        try:
            page = self._stream.read_page(at.partition, token)
            if self._ends.doubts(page):
                page = self._stream.read_page(at.partition, token)
                self._ends.doubts(page)
        except TokenExpiredError:
            self._cursor.observe(at, NotStarted())
            raise
        yield from page.records
        self._cursor.observe(at, page.next)

    def state(self) -> State | None:
        return self._cursor.select_state(self._at)


def _position(stream_slice: Mapping[str, Any]) -> tuple[StreamSlice, State]:
    if isinstance(stream_slice, StreamSlice):
        return stream_slice, stream_slice.state
    return StreamSlice(stream_slice["partition"]), load_state(stream_slice["cursor_slice"])


_StreamId: TypeAlias = tuple[str, str | None]


class _ConnectorStateManager:
    """Looks states up by stream name and namespace.

    :param states: messages of type STREAM, or a single one of type GLOBAL, in the protocol's JSON form;
        StateMessages too
    :raises ConfigurationError: another form, or a GLOBAL message with a state that streams share, which
        no single stream can go on from
    """

    def __init__(self, states: Iterable[Mapping[str, Any] | _StateMessage] | None = None) -> None:
        self._states: dict[_StreamId, Mapping[str, Any]] = {}
        for message in states or ():
            if isinstance(message, _StateMessage):
                self.update_state_for_stream(message.stream, message.namespace, message.state)
            else:
                for name, namespace, state in _stream_states(message):
                    self.update_state_for_stream(name, namespace, state)

    def get_stream_state(self, name: str, namespace: str | None = None) -> dict[str, Any]:
        """A deep copy, ``{}`` for a stream without state."""
        return copy.deepcopy(dict(self._states.get((name, namespace), {})))

    def update_state_for_stream(self, name: str, namespace: str | None, state: Mapping[str, Any]) -> None:
        """Replace the state; what the caller does to ``state`` later has no effect."""
        self._states[name, namespace] = _frozen_state(state)

    def create_state_message(self, name: str, namespace: str | None = None, record_count: int = 0) -> _StateMessage:
        """The stream's state as a message, ``{}`` if there is none."""
        state = self._states.get((name, namespace), {})
        return _StateMessage(name, _frozen_state(state), record_count, namespace)


def _frozen_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
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


class _StateEmitter:
    """The states of one stream.

    A state equal to the one before, without a record between them, is not emitted.

    :param seconds: a state that comes sooner than that after the last message, or after the start, is
        held back; a later one replaces it and takes over its records
    """

    def __init__(
        self,
        stream: str,
        namespace: str | None,
        manager: _ConnectorStateManager,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._namespace = namespace
        self._manager = manager
        self._seconds = seconds
        self._clock = clock
        self._emitted_at = clock()
        self._records = 0
        self._last: Mapping[str, Any] | None = None
        self._held: _StateMessage | None = None

    def count_record(self) -> None:
        """One record was yielded."""
        self._records += 1

    def offer(self, state: Mapping[str, Any] | None) -> Iterator[_StateMessage]:
        """Take a state, None being none; yields it, holds it back, or drops it as already emitted."""
        if state is None or (not self._records and state == self._last):
            return
        self._last = _frozen_state(state)
        held = self._held.record_count if self._held else 0
        self._held = _StateMessage(self._stream, self._last, held + self._records, self._namespace)
        self._records = 0
        self._manager.update_state_for_stream(self._stream, self._namespace, self._last)
        if self._clock() - self._emitted_at >= self._seconds:
            yield from self.flush()

    def flush(self) -> Iterator[_StateMessage]:
        """The state that is held back, if any."""
        held, self._held = self._held, None
        if held is not None:
            self._emitted_at = self._clock()
            yield held


@dataclass(frozen=True, slots=True)
class _ReadOptions:
    """How streams are read.

    :ivar checkpoint_interval: an incremental stream emits its state after each so many records too,
        counted over all its slices; None for only after each slice
    :ivar checkpoint_seconds: least time between two states of a stream
    :ivar guard: called after each record; what it raises ends the stream (memory that runs out, say)
    :ivar clock: in seconds
    """

    sync_mode: _SyncMode = _SyncMode.FULL_REFRESH
    checkpoint_interval: int | None = None
    checkpoint_seconds: float = 0.0
    guard: Callable[[], None] | None = None
    clock: Callable[[], float] = time.monotonic


_DEFAULT_OPTIONS = _ReadOptions()


def _read_stream(
    stream: Stream,
    options: _ReadOptions = _DEFAULT_OPTIONS,
    *,
    stream_state: Mapping[str, Any] | None = None,
    state_manager: _ConnectorStateManager | None = None,
) -> Iterator[_RecordMessage | _StateMessage | LogMessage]:
    """Records, and after each page or slice the state that covers them.

    A failing partition of a stream that is read by page keeps its state, and the others are read; any
    other failure ends the stream.  What was held back of its states is emitted before the error.

    :param stream_state: where to go on; by default what the manager has
    :param state_manager: gets each new state
    :raises RefreshFailedError: partitions failed
    :raises ReadInterrupted: the stream's context was stopped
    """
    manager = _ConnectorStateManager() if state_manager is None else state_manager
    state = manager.get_stream_state(stream.name, stream.namespace) if stream_state is None else stream_state
    emitter = _StateEmitter(stream.name, stream.namespace, manager, options.checkpoint_seconds, options.clock)
    try:
        plan = _read_plan(stream, options.sync_mode, state)
        yield from _read_slices(stream, plan, emitter, options)
    except Exception:
        yield from emitter.flush()
        raise
    yield from emitter.flush()


def _read_slices(
    stream: Stream, plan: _ReadPlan, emitter: _StateEmitter, options: _ReadOptions
) -> Iterator[_RecordMessage | _StateMessage | LogMessage]:
    failures: dict[str, Exception] = {}
    interval = _MidSlice(plan, options)
    while (stream_slice := plan.reader.next()) is not None:
        stream.context.check()
        try:
            for item in plan.read(stream_slice):
                yield from _item(stream, item, emitter, options)
                if not isinstance(item, LogMessage):
                    yield from emitter.offer(interval.checkpoint())
        except (ReadInterrupted, AuthenticationError, ConfigurationError):
            raise
        except Exception as error:
            if plan.abandon is None:
                if isinstance(error, TokenExpiredError):  # the next attempt must not send that token again
                    yield from _checkpoint(plan, emitter)
                raise
            failures[_partition_key(stream, stream_slice)] = error
            plan.abandon()
        else:
            yield from _checkpoint(plan, emitter)
    yield from emitter.offer(plan.reader.get_checkpoint())
    if failures:
        raise _failed(f"{stream.name}: {len(failures)} partition(s) could not be read", failures)


def _item(
    stream: Stream, item: Mapping[str, Any] | LogMessage, emitter: _StateEmitter, options: _ReadOptions
) -> Iterator[_RecordMessage | LogMessage]:
    if isinstance(item, LogMessage):
        yield item
        return
    emitter.count_record()
    yield _RecordMessage(stream.name, item, stream.namespace)
    if options.guard is not None:
        options.guard()


def _checkpoint(plan: _ReadPlan, emitter: _StateEmitter) -> Iterator[_StateMessage]:
    plan.reader.observe(plan.state())
    yield from emitter.offer(plan.reader.get_checkpoint())


class _MidSlice:
    """States inside a slice; only an incremental stream has any that could be resumed from."""

    def __init__(self, plan: _ReadPlan, options: _ReadOptions) -> None:
        self._plan = plan
        incremental = options.sync_mode is _SyncMode.INCREMENTAL
        self._interval = options.checkpoint_interval if incremental else None
        self._records = 0

    def checkpoint(self) -> Mapping[str, Any] | None:
        """Count a record; the state to emit after it, or None."""
        self._records += 1
        if not self._interval or self._records % self._interval:
            return None
        self._plan.reader.observe(self._plan.state())
        return self._plan.reader.get_checkpoint()


def read_streams(
    streams: Iterable[Stream],
    options: _ReadOptions = _DEFAULT_OPTIONS,
    *,
    state_manager: _ConnectorStateManager | None = None,
) -> Iterator[_Message]:
    """Stream after stream, each with its statuses; a failing one does not stop the others.

    :raises RefreshFailedError: at the end, naming every stream that failed
    :raises ReadInterrupted: at once; the stream that was being read ends INCOMPLETE
    """
    failures: dict[str, Exception] = {}
    for stream in streams:
        yield _StatusMessage(stream.name, _StreamStatus.STARTED, stream.namespace)
        try:
            yield from _read_with_status(stream, options, state_manager)
        except ReadInterrupted:
            yield _StatusMessage(stream.name, _StreamStatus.INCOMPLETE, stream.namespace)
            raise
        except Exception as error:  # noqa: BLE001 - told as a message, and raised at the end
            yield _StatusMessage(stream.name, _StreamStatus.INCOMPLETE, stream.namespace)
            yield _ErrorMessage(stream.name, error, stream.namespace)
            failures[f"{stream.namespace}.{stream.name}" if stream.namespace else stream.name] = error
        else:
            yield _StatusMessage(stream.name, _StreamStatus.COMPLETE, stream.namespace)
    if failures:
        raise _failed("streams could not be read", failures)


def _read_with_status(
    stream: Stream, options: _ReadOptions, state_manager: _ConnectorStateManager | None
) -> Iterator[_Message]:
    running = False
    for message in _read_stream(stream, options, state_manager=state_manager):
        if not running and isinstance(message, _RecordMessage):
            running = True
            yield _StatusMessage(stream.name, _StreamStatus.RUNNING, stream.namespace)
        yield message


def _partition_key(stream: Stream, stream_slice: Mapping[str, Any]) -> str:
    partition = getattr(stream_slice, "partition", None)
    return stream.partition_key(stream_slice["partition"] if partition is None else partition)


def _failed(what: str, failures: Mapping[str, Exception]) -> RefreshFailedError:
    reasons = {name: f"{type(error).__name__}: {error}" for name, error in failures.items()}
    message = f"{what}: " + "; ".join(f"{name} ({reason})" for name, reason in reasons.items())
    failed = RefreshFailedError(message, reasons)
    failed.__cause__ = next(iter(failures.values()))
    return failed
