"""Two processes that read one stream as tasks do, with tokens of the driver that started them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from airflow_provider_rfr.streams import PagedStream, ReadContext
from tests.soon import PATIENCE


@contextmanager
def two_tasks(
    address: Any, build: Callable[..., PagedStream], arguments: tuple[Any, ...], tokens: Sequence[Any]
) -> Iterator[Callable[[], list[Any]]]:
    """Start the tasks; yield a function that has both read the pages of ``tokens`` and returns the ids of each."""
    fresh = multiprocessing.get_context("spawn")
    again, results = fresh.Barrier(3), fresh.Queue()
    settings = (address, build, arguments, tokens, again, results)
    tasks = [fresh.Process(target=_read, args=settings, daemon=True) for _ in range(2)]
    for task in tasks:
        task.start()

    def ids() -> list[Any]:
        again.wait(PATIENCE)
        return [results.get(timeout=PATIENCE) for _ in tasks]

    yield ids
    for task in tasks:
        task.join(PATIENCE)


def _read(
    address: Any, build: Callable[..., PagedStream], arguments: Any, tokens: Any, again: Any, results: Any
) -> None:
    """What an executor does: read a page in each thread; then again."""
    budget = address.connect("numbers")
    stream = build(*arguments)
    stream.bind(ReadContext(tokens=budget))
    for _ in range(2):
        again.wait()
        try:
            with ThreadPoolExecutor(len(tokens)) as pool:
                pages = list(pool.map(lambda token: stream.read_page({}, token), tokens))
            results.put([record["id"] for page in pages for record in page.records])
        except Exception as error:
            results.put(repr(error))
            raise
    budget.close()
