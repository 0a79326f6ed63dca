"""Adapters that make a PagedStream of streams that aren't."""

from __future__ import annotations

import copy
import logging
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError, RepeatedPageError
from airflow_provider_rfr.streams.context import ReadContext
from airflow_provider_rfr.streams.core import LogMessage, Stream, has_settable_state
from airflow_provider_rfr.streams.page import Page
from airflow_provider_rfr.streams.paged_stream import PagedStream
from airflow_provider_rfr.streams.slices import StreamSlice, as_stream_slice, legacy_slice
from airflow_provider_rfr.streams.state import Complete, NextPage, NotStarted, State, flat_state, load_state

log = logging.getLogger(__name__)

_COPIED = (
    "name",
    "namespace",
    "primary_key",
    "json_schema",
    "cursor_field",
    "partition_fields",
    "page_size",
    "public_config",
    "paces_itself",
)


def keeps_page_state(stream: Stream) -> bool:
    """Whether the stream's ``state`` is the position of its next page."""
    return has_settable_state(stream) and not stream.cursor_field


def checked_records(stream: Stream, items: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | LogMessage]:
    """What ``read_records`` yielded, as records and log lines.

    :raises ConfigurationError: something is neither
    """
    for item in items:
        if isinstance(item, (Mapping, LogMessage)):
            yield item
        else:
            raise ConfigurationError(
                f"{stream.name}.read_records",
                f"yielded {type(item).__name__}, which is not a mapping",
                "yield each record as a mapping from field to value",
            )


class _Adapter(PagedStream):
    """Gives each thread its own copy of the stream, because a stream may keep anything in itself.

    A stream that can't be copied is read by one thread at a time.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._copies = threading.local()
        self._one_at_a_time = threading.Lock()
        self._copyable = True
        for attribute in _COPIED:
            setattr(self, attribute, getattr(stream, attribute))

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return self._stream.stream_slices()

    @property
    def supports_checkpointing(self) -> bool:
        return self._stream.supports_checkpointing

    def partition_key(self, stream_slice: Mapping[str, Any]) -> str:
        return self._stream.partition_key(stream_slice)

    def fingerprint(self) -> Mapping[str, Any]:
        return self._stream.fingerprint()

    def bind(self, context: ReadContext) -> None:
        self._stream.bind(context)
        self._context = context
        self._copies = threading.local()

    def private_copy(self) -> Stream:
        return type(self)(self._stream.private_copy())

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        stream = self._copy_of_this_thread()
        if stream is not self._stream:
            return self._read(stream, as_stream_slice(stream_slice), token)
        with self._one_at_a_time:
            return self._read(stream, as_stream_slice(stream_slice), token)

    @abstractmethod
    def _read(self, stream: Stream, stream_slice: StreamSlice, token: Any | None) -> Page:
        """Read one page with ``stream``, which no other thread uses meanwhile."""

    def _records(self, stream: Stream, *arguments: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
        records = []
        for item in checked_records(stream, stream.read_records(*arguments)):
            if isinstance(item, LogMessage):
                log.log(logging.getLevelName(item.level), "%s: %s", stream.name, item.message)
            else:
                records.append(item)
        return records

    def _copy_of_this_thread(self) -> Stream:
        mine: Stream | None = getattr(self._copies, "stream", None)
        if mine is None:
            mine = self._copies.stream = self._copy() if self._copyable else self._stream
        return mine

    def _copy(self) -> Stream:
        try:
            return self._stream.private_copy()
        except Exception as error:  # noqa: BLE001 - a user's class may refuse in any way
            log.warning(
                "%s can't be copied (%s), so its pages are read one at a time; "
                "override private_copy, or make it a PagedStream",
                self.name,
                error,
            )
            self._copyable = False
            return self._stream

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._stream,)


class OnePageASlice(_Adapter):
    """A stream that can only be read slice by slice: each slice is its one page."""

    def _read(self, stream: Stream, stream_slice: StreamSlice, token: Any | None) -> Page:
        if token is not None:
            raise ConfigurationError(
                f"{self.name}.state",
                f"page token {token!r} for a stream without pages",
                "start again with force_restart",
            )
        return Page(self._records(stream, stream_slice, None))


class StatePages(_Adapter):
    """A stream that keeps the position of its next page in ``state`` (see StateMixin).

    A stream that leaves its state empty after a read has no more pages: that is how the first protocol
    of the CDK ended, and how a stream looks that never sets it.
    """

    def __init__(self, stream: Stream, stream_state: Mapping[str, Any] | None = None) -> None:
        super().__init__(stream)
        self._stream_state = stream_state
        self._structured = isinstance(_get_state(stream), (NotStarted, NextPage, Complete))

    def _read(self, stream: Stream, stream_slice: StreamSlice, token: Any | None) -> Page:
        start: State = NotStarted() if token is None else NextPage(token)
        flat = flat_state(start)
        _set_state(stream, start if self._structured else flat)
        at_page = StreamSlice(stream_slice.partition, flat)
        stream_state = flat if self._stream_state is None else self._stream_state
        records = self._records(stream, legacy_slice(at_page), stream_state)
        after = load_state(copy.deepcopy(_get_state(stream)))
        if after == start and token is not None:
            raise RepeatedPageError(f"{self.name}: state {flat!r} did not move; the stream would never end")
        return Page(records, Complete() if isinstance(after, NotStarted) else after)

    def private_copy(self) -> Stream:
        return StatePages(self._stream.private_copy(), self._stream_state)

    def __reduce__(self) -> tuple[Any, ...]:
        return StatePages, (self._stream, self._stream_state)


def _get_state(stream: Any) -> Any:
    return stream.state


def _set_state(stream: Any, value: Any) -> None:
    stream.state = value
