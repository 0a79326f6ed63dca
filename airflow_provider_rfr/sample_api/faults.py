"""Faults that the sample API injects on demand.

A fault is one JSON object. These fields select its requests:

* ``path``: a glob on the path (``/orders``, ``/customers/*/orders``; default: every path but ``/_admin``)
* ``query``: values that the query must have (``{"page": "3"}``)
* ``after``: matching requests that pass before the first fault (default 0)
* ``times``: requests that get the fault after that (default: all)

``kind`` selects the fault, see `FaultKind`; the other fields are its parameters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any


class FaultKind(str, Enum):
    """The kinds of fault, with the fields that they read."""

    RATE_LIMIT = "rate_limit"  # 429 with Retry-After: retry_after (s), as_date
    ERROR = "error"  # status (500), with the JSON body {"error": message}
    LATENCY = "latency"  # seconds, or from seconds to seconds_max at random
    DRIP = "drip"  # the body in pieces of `chunk` bytes, `seconds` apart
    HOLD = "hold"  # the answer comes when the faults are set again; `after` counts different requests
    HANG = "hang"  # no answer; the connection closes after seconds, if given
    TRUNCATE = "truncate"  # the full Content-Length, then only the share `keep` of the body
    DISCONNECT = "disconnect"  # the connection ends without an answer
    MALFORMED = "malformed"  # 200 with half of the JSON, and a Content-Length that fits it
    REDIRECT = "redirect"  # 302 to `location`
    REPEAT_CURSOR = "repeat_cursor"  # the next cursor (or link) is the one just used: an endless loop
    REPEAT_PAGE = "repeat_page"  # the records of the page before, under this page's number
    EXPIRE_TOKEN = "expire_token"  # 410, for requests that carry a cursor
    SHORT_PAGE = "short_page"  # the last `records` records of the page are left out, more pages follow
    SHRINK = "shrink"  # delete the first `records` of the collection, then answer
    EDIT = "edit"  # change every record of the collection, then answer
    CHANGE_PARENTS = "change_parents"  # customers: `add` so many, `remove` these ids, `reverse` the order


CHANGES = frozenset({FaultKind.SHRINK, FaultKind.EDIT, FaultKind.CHANGE_PARENTS})
"""Kinds that change the data rather than one answer; without ``times`` they happen once."""


@dataclass(slots=True)
class Fault:
    """One fault with its counters: ``seen`` matching requests, of which it changed ``used``."""

    kind: FaultKind
    path: str = "*"
    query: Mapping[str, str] = field(default_factory=dict)
    after: int = 0
    times: int | None = None
    seconds: float = 0.0
    seconds_max: float | None = None
    retry_after: float = 1.0
    as_date: bool = False
    status: int = 500
    message: str = "injected"
    chunk: int = 1024
    keep: float = 0.5
    location: str = ""
    records: int = 1
    collection: str | None = None
    add: int = 0
    remove: Sequence[int] = ()
    reverse: bool = False
    seen: int = field(default=0, init=False)
    used: int = field(default=0, init=False)
    _answered: set[tuple[str, frozenset[tuple[str, str]]]] = field(default_factory=set, init=False)

    @classmethod
    def from_json(cls, value: Any) -> Fault:
        """Return the fault of a JSON object.

        :raises ValueError: the value is not an object, or has an unknown kind or field
        """
        if not isinstance(value, Mapping) or "kind" not in value:
            raise ValueError(f"a fault is an object with a 'kind', got {value!r}")
        allowed = {field.name for field in fields(cls) if field.init}
        if unknown := sorted(set(value) - allowed):
            raise ValueError(f"unknown field {unknown[0]!r} of a fault, allowed: {', '.join(sorted(allowed))}")
        fault = cls(**{**value, "kind": FaultKind(value["kind"])})
        fault.query = {name: str(wanted) for name, wanted in fault.query.items()}
        if fault.kind in CHANGES and fault.times is None:
            fault.times = 1
        return fault

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self) if not field.name.startswith("_")}

    def delay(self, chance: random.Random) -> float:
        """Return the seconds to wait, for the kinds that wait."""
        return self.seconds if self.seconds_max is None else chance.uniform(self.seconds, self.seconds_max)

    def hits(self, path: str, query: Mapping[str, str]) -> bool:
        """Count the request; return True if it gets the fault."""
        if not self._concerns(path, query):
            return False
        if self.kind is FaultKind.HOLD and self.seen < self.after:
            # A slow machine needs more rounds and requests a page more often, so count different requests.
            self._answered.add((path, frozenset(query.items())))
            self.seen = len(self._answered)
            return False
        if self.kind is FaultKind.HOLD and (path, frozenset(query.items())) in self._answered:
            return False
        self.seen += 1
        if self.seen <= self.after or (self.times is not None and self.used >= self.times):
            return False
        self.used += 1
        return True

    def _concerns(self, path: str, query: Mapping[str, str]) -> bool:
        if self.path != "*" and not fnmatchcase(path, self.path):
            return False
        if self.kind is FaultKind.EXPIRE_TOKEN and "cursor" not in query:
            return False
        return all(query.get(name) == wanted for name, wanted in self.query.items())


class FaultPlan:
    """The active faults."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = list(faults)
        self._held: list[Callable[[], None]] = []

    def replace(self, value: Any) -> None:
        """Replace the faults with a JSON list of faults, and send the answers that were on hold.

        :raises ValueError: a fault is invalid; the faults stay as they are
        """
        if not isinstance(value, list):
            raise ValueError("faults are a JSON list")
        self.faults = [Fault.from_json(item) for item in value]
        held, self._held = self._held, []
        for answer in held:
            answer()

    def hold(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` when the faults are replaced."""
        self._held.append(answer)

    def hit(self, path: str, query: Mapping[str, str]) -> list[Fault]:
        """Return the faults for one request. Every matching fault counts the request, so ``after`` is independent."""
        if not self.faults:
            return []
        return [fault for fault in self.faults if fault.hits(path, query)]
