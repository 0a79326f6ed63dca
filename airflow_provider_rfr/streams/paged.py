"""Every stream as a PagedStream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.adapters import OnePageASlice, StatePages, keeps_page_state
from airflow_provider_rfr.streams.core import Stream
from airflow_provider_rfr.streams.paged_stream import (
    EmptyPageGuard,
    PagedStream,
    RepeatedTokenGuard,
    iter_pages,
    token_of,
)

__all__ = [
    "EmptyPageGuard",
    "PagedStream",
    "RepeatedTokenGuard",
    "as_paged",
    "iter_pages",
    "read_only_records",
    "token_of",
]


def as_paged(stream: Stream, *, stream_state: Mapping[str, Any] | None = None) -> PagedStream:
    """The stream itself, or an adapter by which the engine can read it page by page.

    A stream with a ``state`` (and no cursor field: its state is then no page) gives its own pages; every
    other one gives each slice as one page.  Each thread reads with a private copy of the stream.

    :param stream_state: what ``read_records`` gets under that name; by default the page's own state
    """
    if isinstance(stream, PagedStream):
        return stream
    if not isinstance(stream, Stream):
        raise ConfigurationError(
            "source", f"{stream!r} is not a Stream", "subclass airflow_provider_rfr.streams.Stream"
        )
    if keeps_page_state(stream):
        return StatePages(stream, stream_state=stream_state)
    return OnePageASlice(stream)


def read_only_records(stream: Stream) -> Iterator[Mapping[str, Any]]:
    """All records of all slices and pages, and nothing else: how a parent is read for its children."""
    paged = as_paged(stream)
    for stream_slice in paged.stream_slices():
        for page in iter_pages(paged, stream_slice):
            yield from page.records
