"""What the tests of the read loop look at, and how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from airflow_provider_rfr.streams import LogMessage, Stream, as_paged, load_state
from airflow_provider_rfr.streams.paged import iter_pages
from airflow_provider_rfr.streams.read import RecordMessage, StateMessage, _ErrorMessage, _StatusMessage

SENTINEL = {"__ab_full_refresh_sync_complete": True}
KINDS = pytest.mark.parametrize("kind", ["paged", "stateful"])


def read_only_records(stream: Stream) -> Iterator[Mapping[str, Any]]:
    """All records of all slices and pages: how a parent is read for its children."""
    paged = as_paged(stream)
    for stream_slice in paged.stream_slices():
        for page in iter_pages(paged, stream_slice):
            yield from page.records


def token(kind: str, page: int) -> Any:
    return page if kind == "paged" else {"page": page}


def shape(messages: Iterable[Any]) -> str:
    """R for a record, S for a state, the status's name for a status, ! for an error."""
    marks = {RecordMessage: "R", StateMessage: "S", _ErrorMessage: "!", LogMessage: "L"}
    words = (m.status.name if isinstance(m, _StatusMessage) else marks[type(m)] for m in messages)
    return " ".join(words)


def states(messages: Iterable[Any]) -> list[StateMessage]:
    return [message for message in messages if isinstance(message, StateMessage)]


def records(messages: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [message.record for message in messages if isinstance(message, RecordMessage)]


def positions(messages: Iterable[Any]) -> list[Any]:
    return [load_state(message.state) for message in states(messages)]


def cursors(message: StateMessage) -> dict[str, Any]:
    return {entry["partition"]["parent"]: load_state(entry["cursor"]) for entry in message.state["states"]}


def collect(messages: Iterator[Any], error: type[Exception]) -> tuple[list[Any], Any]:
    """All messages up to the error, and the error."""
    got: list[Any] = []
    with pytest.raises(error) as raised:
        got.extend(messages)
    return got, raised.value
