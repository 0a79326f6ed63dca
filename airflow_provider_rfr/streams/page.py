"""One page of an API, as read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.streams.json_values import JsonValue
from airflow_provider_rfr.streams.state import Complete, NextPage, NotStarted, State


@dataclass(frozen=True, slots=True, init=False)
class Page:
    """Records and where to go on.

    :ivar records: all records of the page; a page that was read in part is not a Page
    :ivar next: NextPage or Complete, never NotStarted.  The constructor also takes a bare token, and
        None for Complete
    :ivar total_pages: pages of this partition, if the API told
    :ivar request: method and address, e.g. ``GET /orders?page=3``; never credentials
    :ivar status: HTTP status
    :ivar skipped: reason, when an ignored error left this page without records
    :ivar received: records that the API sent, before any filter; None if unknown
    :ivar unconfirmed: the page is empty, and nothing but that says that no records are missing: after a full page
        it is asked for once more before it counts
    """

    records: Sequence[Mapping[str, Any]]
    next: State
    total_pages: int | None
    request: str | None
    status: int | None
    skipped: str | None
    received: int | None
    unconfirmed: bool

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        next: State | JsonValue = None,
        total_pages: int | None = None,
        request: str | None = None,
        status: int | None = None,
        skipped: str | None = None,
        received: int | None = None,
        unconfirmed: bool = False,
    ) -> None:
        assign = object.__setattr__
        assign(self, "records", records if isinstance(records, (list, tuple)) else list(records))
        assign(self, "next", _next_state(next))
        assign(self, "total_pages", total_pages)
        assign(self, "request", request)
        assign(self, "status", status)
        assign(self, "skipped", skipped)
        assign(self, "received", received)
        assign(self, "unconfirmed", unconfirmed)


def _next_state(value: State | JsonValue) -> NextPage | Complete:
    if isinstance(value, (NextPage, Complete)):
        return value
    if isinstance(value, NotStarted):
        raise ValueError("a page is followed by NextPage(token) or Complete(), not by NotStarted()")
    return Complete() if value is None else NextPage(value)
