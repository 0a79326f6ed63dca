"""Streams in Python that keep the state of their incremental reads themselves; their API is a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_rfr.streams import Page, PagedStream, StateMixin, Stream
from airflow_provider_rfr.streams.core import PrimaryKey

ROWS: list[dict[str, Any]] = []
"""All records of the API, in the order of their versions."""
ASKED: list[tuple[Any, ...]] = []
"""Shop, lower bound and token of every request."""


def since(shop: str, version: int, token: int = 0, size: int | None = None) -> list[dict[str, Any]]:
    """Ask the API for the records of a shop from a version on."""
    ASKED.append((shop, version, token))
    rows = [dict(row) for row in ROWS if row["shop"] == shop and row["version"] >= version]
    return rows[token:] if size is None else rows[token : token + size]


class _Versions(StateMixin, Stream):
    """The state: the largest version that was read."""

    primary_key: PrimaryKey = "id"
    cursor_field: str | Sequence[str] = "version"
    cursor_type = "integer"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._state: dict[str, Any] = {}
        self._shops = config.get("shops", ["a"])

    @property
    def state(self) -> dict[str, Any]:
        return self._state

    @state.setter
    def state(self, value: Mapping[str, Any]) -> None:
        self._state = dict(value)

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return ({"shop": shop} for shop in self._shops)

    def note(self, row: Mapping[str, Any]) -> None:
        self._state = {"version": max(row["version"], self._state.get("version", 0))}


class Sliced(_Versions):
    """Read slice by slice."""

    def read_records(
        self, stream_slice: Mapping[str, Any] | None = None, stream_state: Mapping[str, Any] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        assert stream_slice is not None
        assert (stream_state or {}) == self.state
        for row in since(stream_slice["shop"], self.state.get("version", 0)):
            self.note(row)
            yield row


class Paged(_Versions, PagedStream):
    """Read page by page."""

    page_size = 2

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        start = token or 0
        rows = since(stream_slice["shop"], stream_slice["stream_state"].get("version", 0), start, self.page_size)
        for row in rows:
            self.note(row)
        return Page(rows, start + self.page_size if len(rows) == self.page_size else None)


class Feed(_Versions):
    """Whose state is a text of the API, which changes although no record does."""

    def read_records(
        self, stream_slice: Mapping[str, Any] | None = None, stream_state: Mapping[str, Any] | None = None
    ) -> Iterator[Mapping[str, Any]]:
        number = int(self.state.get("delta", "0"))
        self.state = {"delta": str(number + 1)}
        yield from since("a", 0) if not number else []


class Keyless(Sliced):
    primary_key = None


class Nested(Sliced):
    cursor_field = ("meta", "version")


class NoMapping(_Versions):
    @property
    def state(self) -> Any:
        return 7

    @state.setter
    def state(self, value: Any) -> None: ...

    def read_records(self, *_: Any) -> Iterable[Mapping[str, Any]]:
        return since("a", 0)
