"""How a stream is read: which checkpoint reader, and what one of its slices stands for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError, TokenExpiredError
from airflow_provider_rfr.streams.adapters import checked_records, keeps_page_state
from airflow_provider_rfr.streams.checkpoint_readers import (
    CheckpointReader,
    FullRefreshCheckpointReader,
    IncrementalCheckpointReader,
    ResumableFullRefreshCheckpointReader,
)
from airflow_provider_rfr.streams.core import LogMessage, Stream, has_settable_state
from airflow_provider_rfr.streams.cursor_readers import (
    CursorBasedCheckpointReader,
    LegacyCursorBasedCheckpointReader,
)
from airflow_provider_rfr.streams.cursors import (
    ResumableFullRefreshCursor,
    SubstreamResumableFullRefreshCursor,
)
from airflow_provider_rfr.streams.messages import SyncMode
from airflow_provider_rfr.streams.paged import EmptyPageGuard, PagedStream, RepeatedTokenGuard, as_paged, token_of
from airflow_provider_rfr.streams.slices import StreamSlice, as_stream_slice
from airflow_provider_rfr.streams.state import Complete, NextPage, NotStarted, State, load_state

log = logging.getLogger(__name__)

PageCursor = ResumableFullRefreshCursor | SubstreamResumableFullRefreshCursor
Items = Iterable[Mapping[str, Any] | LogMessage]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What the read loop needs to know of a stream.

    :ivar read: the records of a slice that the reader returned
    :ivar state: the stream's state after what was read so far
    :ivar abandon: leaves the current slice to a later attempt; None where slices depend on each other
    """

    reader: CheckpointReader
    read: Callable[[Mapping[str, Any]], Items]
    state: Callable[[], Any]
    abandon: Callable[[], None] | None = None


def read_plan(stream: Stream, sync_mode: SyncMode, stream_state: Mapping[str, Any]) -> ReadPlan:
    """:raises ConfigurationError: the stream can't be read in this mode, or not from this state"""
    if sync_mode is SyncMode.INCREMENTAL:
        return _incremental(stream, stream_state)
    if _is_read_by_page(stream):
        return _by_page(stream, stream_state)

    def read(stream_slice: Mapping[str, Any]) -> Items:
        return checked_records(stream, stream.read_records(stream_slice, None))

    return ReadPlan(FullRefreshCheckpointReader(unique_slices(stream)), read, lambda: None)


def page_cursor(stream: Stream, divided: bool, stream_state: Mapping[str, Any] | None = None) -> PageCursor | None:
    """The cursor that keeps a stream's pages; None for a stream whose pages nobody could resume at.

    :param divided: the stream has slices that differ
    """
    return _cursor(stream, divided, stream_state) if _is_read_by_page(stream) else None


def _is_read_by_page(stream: Stream) -> bool:
    return isinstance(stream, PagedStream) or keeps_page_state(stream)


def _cursor(stream: Stream, divided: bool, stream_state: Mapping[str, Any] | None) -> PageCursor:
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


def _incremental(stream: Stream, stream_state: Mapping[str, Any]) -> ReadPlan:
    if isinstance(stream, PagedStream) or not stream.cursor_field or not has_settable_state(stream):
        raise ConfigurationError(
            f"{stream.name}.sync_mode", "the stream can't be read incrementally", "read it in full"
        )
    stateful: Any = stream
    if stream_state:
        stateful.state = dict(stream_state)

    def read(stream_slice: Mapping[str, Any]) -> Items:
        return checked_records(stream, stream.read_records(stream_slice, stream_state))

    reader = IncrementalCheckpointReader(stream_state, unique_slices(stream))
    return ReadPlan(reader, read, lambda: stateful.state)


def _by_page(stream: Stream, stream_state: Mapping[str, Any]) -> ReadPlan:
    slices = unique_slices(stream)
    first = list(islice(slices, 2))  # two tell whether the stream is divided, and cost few requests
    slices = chain(first, slices)
    divided = "states" in stream_state or [len(each.partition) for each in first] != [0]
    paged = as_paged(stream, stream_state=stream_state)
    cursor = _cursor(stream, divided, stream_state)
    pages = _Pages(paged, cursor)
    if not divided and paged is not stream:
        return ReadPlan(ResumableFullRefreshCheckpointReader(stream_state), pages.read, pages.state)
    reader_class = CursorBasedCheckpointReader if paged is stream else LegacyCursorBasedCheckpointReader
    reader = reader_class(cursor, slices, read_state_from_cursor=True)
    return ReadPlan(reader, pages.read, pages.state, reader.abandon if divided else None)


class _Pages:
    """Reads a slice's page, and moves the cursor once all of the page's records were taken."""

    def __init__(self, stream: PagedStream, cursor: PageCursor) -> None:
        self._stream = stream
        self._cursor = cursor
        self._at: StreamSlice = StreamSlice()
        self._guard: RepeatedTokenGuard | None = None
        self._ends = EmptyPageGuard(stream.page_size, resumed=False)

    def read(self, stream_slice: Mapping[str, Any]) -> Items:
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
