"""Cases of :mod:`test_rest_public_apis`: what one is, and the helpers that make answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rest_api import QUICK, Asked

from airflow_provider_rfr.documents import read_yaml

Answerer = Callable[[Asked, str], Any]
ALL_25 = list(range(1, 26))


@dataclass(frozen=True)
class Case:
    """One API.

    :ivar answer: makes the answer to a request; it gets the server's address, too
    :ivar stream: fields of the stream ``items``; its error handler waits as `QUICK` does
    :ivar ids: of all records; 1 to 25 unless a case says otherwise
    :ivar error: pattern of the error that has to come instead
    :ivar warning: pattern of what a refresh has to log
    :ivar parents: fields of the stream ``parents``
    :ivar skipped: number of pages that are left out
    """

    answer: Answerer
    stream: Mapping[str, Any]
    ids: list[Any] = field(default_factory=lambda: ALL_25)
    error: str = ""
    warning: str = ""
    parents: Mapping[str, Any] | None = None
    skipped: int = 0

    def definition(self, url: str) -> dict[str, Any]:
        """Return the source, with the server's address."""
        handler = {**QUICK, **self.stream.get("error_handler", {})}
        streams = {"items": {"request": {"path": "/items"}, **self.stream, "error_handler": handler}}
        if self.parents is not None:
            streams["parents"] = {"request": {"path": "/parents"}, **self.parents}
        return {"base_url": url, "defaults": {"error_handler": QUICK}, "streams": streams}


CASES: dict[str, Case] = {}


def case(sentence: str, *stream: str, **expected: Any) -> Callable[[Answerer], None]:
    """Add a case whose answers the decorated function makes.

    :param stream: lines of YAML with the fields of the stream
    """

    def add(answer: Answerer) -> None:
        assert sentence not in CASES
        CASES[sentence] = Case(answer, read_yaml("\n".join(stream).encode()), **expected)

    return add


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Return records with the ids from ``first`` to ``last``."""
    return [{"id": number} for number in range(first, last + 1)]


def page_of(number: int, count: int, size: int = 10) -> list[dict[str, Any]]:
    """Return the records of a page, from page 1, of ``count`` in all."""
    return rows((number - 1) * size + 1, min(number * size, count))


def after(value: str | int | None, count: int, size: int = 10) -> list[dict[str, Any]]:
    """Return the records that follow the id ``value``."""
    start = int(value or 0)
    return rows(start + 1, min(start + size, count))


_asked: set[tuple[str, str]] = set()
_lock = threading.Lock()


def is_first(name: str, url: str) -> bool:
    """Tell whether a server is asked this for the first time."""
    with _lock:
        is_new = (name, url) not in _asked
        _asked.add((name, url))
    return is_new
