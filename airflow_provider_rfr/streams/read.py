"""The read loop of the command ``airflow rfr source read`` and of tests, for every kind of stream.

It reads one slice after another in one thread, by checkpoint readers, and delivers at least once. The refresh engine
reads pages itself, many at a time, and delivers exactly once.
"""

from __future__ import annotations

import copy
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
    has_settable_state,
    unique_slices,
)
from airflow_provider_rfr.streams.paged import ChainReader, PagedStream, as_paged, checked_records, is_read_by_page


class _StreamStatus(Enum):
    """The progress of the reading of a stream.  COMPLETE and INCOMPLETE are final."""

    STARTED = "STARTED"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    INCOMPLETE = "INCOMPLETE"


@dataclass(frozen=True, slots=True)
class RecordMessage:
    stream: str
    record: Mapping[str, Any]
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class StateMessage:
    """A state of a stream, which follows all records that it covers.

    :ivar state: its JSON form; not to be changed
    :ivar record_count: records of the stream that this state covers and the one before it did not
    """

    stream: str
    state: Mapping[str, Any]
    record_count: int = 0
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class _StatusMessage:
    stream: str
    status: _StreamStatus
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class _ErrorMessage:
    """The reason for which a stream ended INCOMPLETE."""

    stream: str
    error: Exception
    namespace: str | None = None


_Message: TypeAlias = RecordMessage | StateMessage | _StatusMessage | _ErrorMessage | LogMessage


class ConnectorStateManager:
    """The states of streams by name and namespace.

    :param states: messages of type STREAM or GLOBAL in the protocol's JSON form; StateMessages too
    :raises ConfigurationError: another form, or a GLOBAL message with a state that streams share, from which
        no single stream can continue
    """

    def __init__(self, states: Iterable[Mapping[str, Any] | StateMessage] | None = None) -> None:
        self._states: dict[tuple[str, str | None], Mapping[str, Any]] = {}
        for message in states or ():
            if isinstance(message, StateMessage):
                self.update_state_for_stream(message.stream, message.namespace, copy.deepcopy(dict(message.state)))
                continue
            kind = message.get("type")
            entries: list[Any] = [message.get("stream")]
            if kind == "GLOBAL":
                whole = message.get("global") or {}
                if whole.get("shared_state"):
                    problem = "is shared by several streams, and no single stream can continue from it"
                    raise ConfigurationError("state.global.shared_state", problem, "give each stream its own state")
                entries = whole.get("stream_states") or []
            elif kind != "STREAM":
                raise ConfigurationError("state.type", f"{kind!r} is unknown", "allowed are STREAM and GLOBAL")
            for entry in entries:
                descriptor = entry.get("stream_descriptor") if isinstance(entry, Mapping) else None
                if not isinstance(descriptor, Mapping) or "name" not in descriptor:
                    raise ConfigurationError(
                        "state.stream", f"{entry!r} names no stream", "give stream_descriptor.name"
                    )
                state = copy.deepcopy(dict(entry.get("stream_state") or {}))
                self.update_state_for_stream(descriptor["name"], descriptor.get("namespace"), state)

    def get_stream_state(self, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Return a deep copy of a stream's state, ``{}`` for a stream without state."""
        return copy.deepcopy(dict(self._states.get((name, namespace), {})))

    def messages(self) -> list[dict[str, Any]]:
        """Return all states as messages of type STREAM, from which another manager can be made."""
        messages = []
        for (name, namespace), state in self._states.items():
            descriptor = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
            messages.append({"type": "STREAM", "stream": {"stream_descriptor": descriptor, "stream_state": state}})
        return messages

    def update_state_for_stream(self, name: str, namespace: str | None, state: Mapping[str, Any]) -> None:
        """Replace the state of a stream.

        :param state: kept without a copy, so it must not be changed any more
        """
        self._states[name, namespace] = state


@dataclass(frozen=True, slots=True)
class _ReadOptions:
    """The options of reading streams.

    :ivar incremental: read from the stream's cursor field on, rather than in full
    :ivar checkpoint_interval: number of records, counted over all slices, after which an incremental stream emits its
        state, too; None to emit it only after each slice
    :ivar checkpoint_seconds: least time between two states of a stream
    :ivar guard: called after each record; an error that it raises ends the stream (memory that runs out, say)
    :ivar clock: returns a time in seconds
    """

    incremental: bool = False
    checkpoint_interval: int | None = None
    checkpoint_seconds: float = 0.0
    guard: Callable[[], None] | None = None
    clock: Callable[[], float] = time.monotonic


_DEFAULT_OPTIONS = _ReadOptions()


def read_streams(
    streams: Iterable[Stream],
    options: _ReadOptions = _DEFAULT_OPTIONS,
    *,
    state_manager: ConnectorStateManager | None = None,
) -> Iterator[_Message]:
    """Read streams one after another, and yield their messages and statuses; a failing one does not stop the others.

    :param state_manager: has the states to continue from, and gets each new one
    :raises RefreshFailedError: at the end, naming every stream that failed
    :raises ReadInterrupted: at once; the stream that was being read ends INCOMPLETE
    """
    failures: dict[str, Exception] = {}
    for stream in streams:
        name, namespace, status = stream.name, stream.namespace, _StreamStatus.STARTED
        yield _StatusMessage(name, status, namespace)
        try:
            for message in _read_stream(stream, options, state_manager=state_manager):
                if status is _StreamStatus.STARTED and isinstance(message, RecordMessage):
                    status = _StreamStatus.RUNNING
                    yield _StatusMessage(name, status, namespace)
                yield message
        except ReadInterrupted:
            yield _StatusMessage(name, _StreamStatus.INCOMPLETE, namespace)
            raise
        except Exception as error:  # noqa: BLE001 - yielded as a message, and raised at the end
            yield _StatusMessage(name, _StreamStatus.INCOMPLETE, namespace)
            yield _ErrorMessage(name, error, namespace)
            failures[f"{namespace}.{name}" if namespace else name] = error
        else:
            yield _StatusMessage(name, _StreamStatus.COMPLETE, namespace)
    if failures:
        raise _failed("streams could not be read", failures)


def _read_stream(
    stream: Stream,
    options: _ReadOptions = _DEFAULT_OPTIONS,
    *,
    stream_state: Mapping[str, Any] | None = None,
    state_manager: ConnectorStateManager | None = None,
) -> Iterator[RecordMessage | StateMessage | LogMessage]:
    """Yield records, and after each page or slice the state that covers them.

    A failing partition of a stream that is read by page keeps its state, and the others are read; any
    other failure ends the stream.

    :param stream_state: the state to continue from; by default the manager's
    """
    manager = ConnectorStateManager() if state_manager is None else state_manager
    state = manager.get_stream_state(stream.name, stream.namespace) if stream_state is None else stream_state
    emitter = _StateEmitter(stream, manager, options)
    try:
        if options.incremental:
            plan = _incremental_plan(stream, state)
        elif is_read_by_page(stream):
            plan = _page_plan(stream, state)
        else:
            reader = FullRefreshCheckpointReader(unique_slices(stream))
            plan = _ReadPlan(
                reader,
                lambda stream_slice: checked_records(stream, stream.read_records(stream_slice, None)),
                lambda: None,
            )
        yield from _read_slices(stream, plan, emitter, options)
    except Exception:
        # The next attempt continues from the state that was held back.
        yield from emitter.flush()
        raise
    yield from emitter.flush()


class _StateEmitter:
    """An emitter of the states of one stream, which limits how often they are emitted.

    A state equal to the one before, without a record between them, is not emitted.  One that comes sooner than
    ``checkpoint_seconds`` after the last message, or after the start, is held back; a later one replaces it and takes
    over its records.
    """

    def __init__(self, stream: Stream, manager: ConnectorStateManager, options: _ReadOptions) -> None:
        self.records = 0
        self._stream = stream
        self._manager = manager
        self._options = options
        self._emitted_at = options.clock()
        self._emitted_records = 0
        self._last: Mapping[str, Any] | None = None
        self._last_records = 0
        self._is_held = False

    def offer(self, state: Mapping[str, Any] | None) -> Iterator[StateMessage]:
        """Yield a state, if there is one, or hold it back, or drop it as already emitted."""
        if state is None or (self.records == self._last_records and state == self._last):
            return
        self._last, self._last_records, self._is_held = state, self.records, True
        self._manager.update_state_for_stream(self._stream.name, self._stream.namespace, state)
        if self._options.clock() - self._emitted_at >= self._options.checkpoint_seconds:
            yield from self.flush()

    def flush(self) -> Iterator[StateMessage]:
        """Yield the state that is held back, if any."""
        if not self._is_held or self._last is None:
            return
        self._is_held, self._emitted_at = False, self._options.clock()
        count = self._last_records - self._emitted_records
        self._emitted_records = self._last_records
        yield StateMessage(self._stream.name, self._last, count, self._stream.namespace)


_Items: TypeAlias = Iterable[Mapping[str, Any] | LogMessage]


@dataclass(frozen=True, slots=True)
class _ReadPlan:
    """A plan of how the read loop reads a stream.

    :ivar read: returns the records of a slice that the reader returned
    :ivar state: returns the stream's state after the records that were read so far
    :ivar abandon: leaves the current slice to a later attempt; None where slices depend on each other
    """

    reader: CheckpointReader
    read: Callable[[Mapping[str, Any]], _Items]
    state: Callable[[], Any]
    abandon: Callable[[], None] | None = None


def _incremental_plan(stream: Stream, stream_state: Mapping[str, Any]) -> _ReadPlan:
    if isinstance(stream, PagedStream) or not stream.cursor_field or not has_settable_state(stream):
        problem = "the stream can't be read incrementally"
        raise ConfigurationError(f"{stream.name}.sync_mode", problem, "read it in full")
    stateful: Any = stream
    if stream_state:
        stateful.state = dict(stream_state)
    return _ReadPlan(
        IncrementalCheckpointReader(stream_state, unique_slices(stream)),
        lambda stream_slice: checked_records(stream, stream.read_records(stream_slice, stream_state)),
        # The stream may change its state in place.
        lambda: copy.deepcopy(dict(stateful.state)),
    )


_PageCursor: TypeAlias = ResumableFullRefreshCursor | SubstreamResumableFullRefreshCursor


def page_cursor(stream: Stream, divided: bool, stream_state: Mapping[str, Any] | None = None) -> _PageCursor | None:
    """Return a cursor for the positions in a stream; None for a stream that can't resume at a page.

    :param divided: the stream has slices that differ
    """
    if not is_read_by_page(stream):
        return None
    if divided:
        return SubstreamResumableFullRefreshCursor(stream_state, stream.partition_key)
    return ResumableFullRefreshCursor(stream_state)


def _page_plan(stream: Stream, stream_state: Mapping[str, Any]) -> _ReadPlan:
    slices = unique_slices(stream)
    # Two are enough to see whether the stream is divided, and cost few requests.
    first = list(islice(slices, 2))
    divided = "states" in stream_state or [len(stream_slice.partition) for stream_slice in first] != [0]
    paged = as_paged(stream, stream_state=stream_state)
    cursor = page_cursor(stream, divided, stream_state)
    assert cursor is not None
    pages = _Pages(paged, cursor)
    if not divided and paged is not stream:
        return _ReadPlan(ResumableFullRefreshCheckpointReader(stream_state), pages.read, pages.state)
    reader_class = CursorBasedCheckpointReader if paged is stream else LegacyCursorBasedCheckpointReader
    reader = reader_class(cursor, chain(first, slices), read_state_from_cursor=True)
    return _ReadPlan(reader, pages.read, pages.state, reader.abandon if divided else None)


class _Pages:
    """A reader of a slice's pages, which moves the cursor once all records of a page were taken."""

    def __init__(self, stream: PagedStream, cursor: _PageCursor) -> None:
        self._stream = stream
        self._cursor = cursor
        self._at = StreamSlice()
        self._chain: ChainReader | None = None

    def read(self, stream_slice: Mapping[str, Any]) -> _Items:
        at = stream_slice
        if not isinstance(at, StreamSlice):
            at = StreamSlice(stream_slice["partition"], stream_slice["cursor_slice"])
        state = at.state
        if isinstance(state, Complete):
            return
        if self._chain is None or at.partition != self._at.partition:
            self._chain = ChainReader(self._stream, at.partition, resumed=isinstance(state, NextPage))
        self._at = at
        try:
            page = self._chain.read(state)
        except TokenExpiredError:
            # The next attempt must not send that token again.
            self._cursor.observe(at, NotStarted())
            raise
        yield from page.records
        self._cursor.observe(at, page.next)

    def state(self) -> State | None:
        return self._cursor.select_state(self._at)


def _read_slices(
    stream: Stream, plan: _ReadPlan, emitter: _StateEmitter, options: _ReadOptions
) -> Iterator[RecordMessage | StateMessage | LogMessage]:
    failures: dict[str, Exception] = {}
    while (stream_slice := plan.reader.next()) is not None:
        stream.context.check()
        try:
            yield from _read_slice(stream, stream_slice, plan, emitter, options)
        except (ReadInterrupted, AuthenticationError, ConfigurationError):
            raise
        except Exception as error:
            if plan.abandon is None:
                if isinstance(error, TokenExpiredError):
                    yield from _checkpoint(plan, emitter)
                raise
            partition = getattr(stream_slice, "partition", None)
            failures[stream.partition_key(stream_slice["partition"] if partition is None else partition)] = error
            plan.abandon()
        else:
            yield from _checkpoint(plan, emitter)
    yield from emitter.offer(plan.reader.get_checkpoint())
    if failures:
        raise _failed(f"{stream.name}: {len(failures)} partition(s) could not be read", failures)


def _read_slice(
    stream: Stream, stream_slice: Mapping[str, Any], plan: _ReadPlan, emitter: _StateEmitter, options: _ReadOptions
) -> Iterator[RecordMessage | StateMessage | LogMessage]:
    # Only an incremental stream has states inside a slice that it could resume from.
    interval = options.checkpoint_interval if options.incremental else None
    for item in plan.read(stream_slice):
        if isinstance(item, LogMessage):
            yield item
            continue
        emitter.records += 1
        yield RecordMessage(stream.name, item, stream.namespace)
        if options.guard is not None:
            options.guard()
        if interval and emitter.records % interval == 0:
            yield from _checkpoint(plan, emitter)


def _checkpoint(plan: _ReadPlan, emitter: _StateEmitter) -> Iterator[StateMessage]:
    plan.reader.observe(plan.state())
    yield from emitter.offer(plan.reader.get_checkpoint())


def _failed(what: str, failures: Mapping[str, Exception]) -> RefreshFailedError:
    reasons = {name: f"{type(error).__name__}: {error}" for name, error in failures.items()}
    message = f"{what}: " + "; ".join(f"{name} ({reason})" for name, reason in reasons.items())
    failed = RefreshFailedError(message, reasons)
    failed.__cause__ = next(iter(failures.values()))
    return failed
