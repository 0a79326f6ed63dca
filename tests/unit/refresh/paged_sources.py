"""Streams and pages for tests of the engine: every kind of page that can go wrong, without a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SourceError, TokenExpiredError
from airflow_provider_rfr.refresh.page_rows import PageRow, page_row
from airflow_provider_rfr.streams import NextPage, Page, PagedStream

REQUESTS: list[tuple[int, Any]] = []
"""Partition and token of every page that was asked for in this process."""
EXPIRED: set[int] = set()
"""Partitions whose token expired already: tasks side by side have streams of their own."""


def row_of(page: Page, number: int, token: Any = None, *, ordinal: int = 0, chain: int = 0) -> PageRow:
    """Return the row of a page that was read in generation 1, epoch 1."""
    return page_row(page, generation=1, epoch=1, ordinal=ordinal, key="{}", chain=chain, number=number, token=token)


class Numbers(PagedStream):
    """Partitions of pages of numbers.

    Config: ``partitions``, ``pages``, ``seconds`` a page; ``slow`` maps "partition/page" to seconds; ``broken`` is a
    list of partitions whose second page fails; ``expires`` a list of partitions whose third page's token expires once.
    """

    name = "numbers"
    primary_key = "id"
    addressable = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.public_config = dict(config)
        self._config = config
        self._lock = threading.Lock()

    def private_copy(self) -> Numbers:
        return self

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        return [{"p": number} for number in range(self._config.get("partitions", 4))]

    def token_at(self, position: int) -> Any:
        return None if position == 0 else position + 1

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        partition, number = stream_slice["p"], token or 1
        with self._lock:
            REQUESTS.append((partition, token))
        self.context.sleep(self._config.get("slow", {}).get(f"{partition}/{number}", self._config.get("seconds", 0)))
        if partition in self._config.get("broken", ()) and number == 2:
            raise SourceError("the API is broken here", status=500)
        if partition in self._config.get("expires", ()) and number == 3 and partition not in EXPIRED:
            EXPIRED.add(partition)
            raise TokenExpiredError("410", status=410)
        last = self._config.get("pages", 5)
        records = [{"id": f"{partition}-{number}-{row}"} for row in range(3)]
        return Page(records, NextPage(number + 1) if number < last else None)


class Hanging(Numbers):
    """One page hangs in the network: it hears of no stop."""

    name = "hanging"

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        if (stream_slice["p"], token) == (0, 2):
            time.sleep(self._config["hang"])
        return super().read_page(stream_slice, token)


class Emptied(Numbers):
    """Ends with a page that is empty, as if its records had been lost."""

    name = "emptied"

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        page = super().read_page(stream_slice, token)
        number = token or 1
        if number <= self._config["pages"]:
            return Page(page.records, NextPage(number + 1), received=len(page.records))
        return Page((), received=0, unconfirmed=True)
