"""The read loop: one for every kind of stream and both sync modes.

It reads one slice after another in one thread, and delivers at least once: to look at a source, to test
one, and for parents.  The refresh engine reads pages itself, many at a time, and delivers exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    ConfigurationError,
    ReadInterrupted,
    RefreshFailedError,
    TokenExpiredError,
)
from airflow_provider_rfr.streams.core import LogMessage, Stream
from airflow_provider_rfr.streams.emitter import StateEmitter
from airflow_provider_rfr.streams.messages import (
    ErrorMessage,
    Message,
    RecordMessage,
    StateMessage,
    StatusMessage,
    StreamStatus,
    SyncMode,
)
from airflow_provider_rfr.streams.plan import ReadPlan, read_plan
from airflow_provider_rfr.streams.state_manager import ConnectorStateManager


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How streams are read.

    :ivar checkpoint_interval: an incremental stream emits its state after each so many records too,
        counted over all its slices; None for only after each slice
    :ivar checkpoint_seconds: least time between two states of a stream
    :ivar guard: called after each record; what it raises ends the stream (memory that runs out, say)
    :ivar clock: in seconds
    """

    sync_mode: SyncMode = SyncMode.FULL_REFRESH
    checkpoint_interval: int | None = None
    checkpoint_seconds: float = 0.0
    guard: Callable[[], None] | None = None
    clock: Callable[[], float] = time.monotonic


DEFAULT_OPTIONS = ReadOptions()


def read_stream(
    stream: Stream,
    options: ReadOptions = DEFAULT_OPTIONS,
    *,
    stream_state: Mapping[str, Any] | None = None,
    state_manager: ConnectorStateManager | None = None,
) -> Iterator[RecordMessage | StateMessage | LogMessage]:
    """Records, and after each page or slice the state that covers them.

    A failing partition of a stream that is read by page keeps its state, and the others are read; any
    other failure ends the stream.  What was held back of its states is emitted before the error.

    :param stream_state: where to go on; by default what the manager has
    :param state_manager: gets each new state
    :raises RefreshFailedError: partitions failed
    :raises ReadInterrupted: the stream's context was stopped
    """
    manager = ConnectorStateManager() if state_manager is None else state_manager
    state = manager.get_stream_state(stream.name, stream.namespace) if stream_state is None else stream_state
    emitter = StateEmitter(stream.name, stream.namespace, manager, options.checkpoint_seconds, options.clock)
    try:
        plan = read_plan(stream, options.sync_mode, state)
        yield from _read_slices(stream, plan, emitter, options)
    except Exception:
        yield from emitter.flush()
        raise
    yield from emitter.flush()


def _read_slices(
    stream: Stream, plan: ReadPlan, emitter: StateEmitter, options: ReadOptions
) -> Iterator[RecordMessage | StateMessage | LogMessage]:
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
    stream: Stream, item: Mapping[str, Any] | LogMessage, emitter: StateEmitter, options: ReadOptions
) -> Iterator[RecordMessage | LogMessage]:
    if isinstance(item, LogMessage):
        yield item
        return
    emitter.count_record()
    yield RecordMessage(stream.name, item, stream.namespace)
    if options.guard is not None:
        options.guard()


def _checkpoint(plan: ReadPlan, emitter: StateEmitter) -> Iterator[StateMessage]:
    plan.reader.observe(plan.state())
    yield from emitter.offer(plan.reader.get_checkpoint())


class _MidSlice:
    """States inside a slice; only an incremental stream has any that could be resumed from."""

    def __init__(self, plan: ReadPlan, options: ReadOptions) -> None:
        self._plan = plan
        incremental = options.sync_mode is SyncMode.INCREMENTAL
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
    options: ReadOptions = DEFAULT_OPTIONS,
    *,
    state_manager: ConnectorStateManager | None = None,
) -> Iterator[Message]:
    """Stream after stream, each with its statuses; a failing one does not stop the others.

    :raises RefreshFailedError: at the end, naming every stream that failed
    :raises ReadInterrupted: at once; the stream that was being read ends INCOMPLETE
    """
    failures: dict[str, Exception] = {}
    for stream in streams:
        yield StatusMessage(stream.name, StreamStatus.STARTED, stream.namespace)
        try:
            yield from _read_with_status(stream, options, state_manager)
        except ReadInterrupted:
            yield StatusMessage(stream.name, StreamStatus.INCOMPLETE, stream.namespace)
            raise
        except Exception as error:  # noqa: BLE001 - told as a message, and raised at the end
            yield StatusMessage(stream.name, StreamStatus.INCOMPLETE, stream.namespace)
            yield ErrorMessage(stream.name, error, stream.namespace)
            failures[f"{stream.namespace}.{stream.name}" if stream.namespace else stream.name] = error
        else:
            yield StatusMessage(stream.name, StreamStatus.COMPLETE, stream.namespace)
    if failures:
        raise _failed("streams could not be read", failures)


def _read_with_status(
    stream: Stream, options: ReadOptions, state_manager: ConnectorStateManager | None
) -> Iterator[Message]:
    running = False
    for message in read_stream(stream, options, state_manager=state_manager):
        if not running and isinstance(message, RecordMessage):
            running = True
            yield StatusMessage(stream.name, StreamStatus.RUNNING, stream.namespace)
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
