"""Pages of parent streams: each parent is read once for all its child streams."""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import IO, Any, TypeAlias

from airflow_provider_rfr.numbers import dumps, loads
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.streams.core import Page
from airflow_provider_rfr.streams.paged import PagedStream, read_all_pages

_SlicedPage: TypeAlias = tuple[Mapping[str, Any], Page]


class ParentPages:
    """The pages of parent streams for the streams of one application; thread-safe.

    If the application also loads a parent, its pages come from its ledger once it is published. If that load fails, or
    the parent is not loaded, its first child reads it from the API, and the other children get the same pages from a
    temporary file.

    :param loaded: streams that the application loads
    """

    def __init__(self, loaded: Iterable[str]) -> None:
        self._ledgers: dict[str, Future[Ledger | None]] = {stream: Future() for stream in loaded}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._files: dict[str, IO[bytes]] = {}

    def end(self, stream: str, ledger: Ledger | None) -> None:
        """Record the end of a stream that the application loads.

        :param ledger: of its published generation; None if the stream failed, or the generation lacks records
        """
        self._ledgers[stream].set_result(ledger)

    def read(self, parent: PagedStream) -> Iterator[_SlicedPage]:
        """Yield all pages of a parent, with their slices; first wait for its end, if the application loads it."""
        future = self._ledgers.get(parent.name)
        ledger = None if future is None else future.result()
        if ledger is not None:
            yield from ledger.read_records()
            return
        if len(self._ledgers) == 1:
            # There is no other child to keep the pages for.
            yield from read_all_pages(parent)
            return
        with self._locks[parent.name]:
            if parent.name in self._files:
                yield from _pages_in(self._files[parent.name])
                return
            # It has no name, so nothing is left of it after the process, however that ends.
            file = tempfile.TemporaryFile()  # noqa: SIM115 - kept for the other children
            for stream_slice, page in read_all_pages(parent):
                file.write(dumps([stream_slice, page.records, page.request, page.skipped]) + b"\n")
                yield stream_slice, page
            self._files[parent.name] = file


def _pages_in(file: IO[bytes]) -> Iterator[_SlicedPage]:
    file.seek(0)
    for line in file:
        stream_slice, records, request, skipped = loads(line)
        yield stream_slice, Page(records, request=request, skipped=skipped)
