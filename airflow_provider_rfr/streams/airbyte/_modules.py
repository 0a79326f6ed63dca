"""Stand-ins for modules that the CDK imports, for threads that read a stream of this package."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_rfr.streams.airbyte._guard import current_work


class Time:
    """A stand-in for the module ``time``, for waits between requests."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        work = current_work()
        if work is None:
            time.sleep(seconds)
        else:
            work.context.sleep(seconds)


@dataclass(frozen=True, slots=True)
class PlainPaths:
    """The module ``dpath`` for the extractor of records, with a direct ``get`` in a thread that works for us: its own
    compares the path with each place of the answer, which is half of the CPU of a page.

    The same results, but an answer with an empty name somewhere is read, which ``dpath`` refuses.
    """

    original: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def get(self, body: Any, path: list[Any], default: Any) -> Any:
        if current_work() is None or not path or not all(map(_is_plain, path)):
            return self.original.get(body, path, default=default)
        for name in path:
            if not isinstance(body, Mapping) or name not in body:
                return default
            body = body[name]
        return body


def _is_plain(name: Any) -> bool:
    """Return True for a plain field name, without a wildcard or a list index."""
    return isinstance(name, str) and not set(name) & set("*?[") and not any(map(str.isdigit, name))
