"""How long to wait before a request is repeated: small strategies, tried in order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final, TypeAlias

from airflow_provider_rfr.streams.rest import definition_errors as model

Backoff: TypeAlias = Callable[[int, Mapping[str, str]], "float | None"]
"""Takes the number of failures so far (from 1) and the answer's headers; None if it can't tell."""


def constant(seconds: float) -> Backoff:
    """Always the same."""
    return lambda failures, headers: seconds


def exponential(initial: float = 1.0, multiplier: float = 2.0, maximum: float = 60.0, jitter: bool = True) -> Backoff:
    """Grows with each failure; jitter keeps many readers from coming back at the same moment."""

    def wait(failures: int, headers: Mapping[str, str]) -> float:
        try:
            seconds = min(maximum, initial * multiplier ** (failures - 1))
        except OverflowError:
            seconds = maximum
        return seconds * random.uniform(0.5, 1.0) if jitter else seconds

    return wait


def retry_after(header: str = "Retry-After") -> Backoff:
    """What the header says: seconds, or an HTTP date by this machine's clock."""

    def wait(failures: int, headers: Mapping[str, str]) -> float | None:
        text = headers.get(header, "").strip()
        if not text:
            return None
        try:
            seconds = float(text)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
            except (TypeError, ValueError, OverflowError):
                return None
        return _usable(seconds)

    return wait


def reset_time(header: str, milliseconds: bool = False) -> Backoff:
    """Until the moment that the header names."""

    def wait(failures: int, headers: Mapping[str, str]) -> float | None:
        try:
            moment = float(headers.get(header, ""))
        except ValueError:
            return None
        return _usable((moment / 1000 if milliseconds else moment) - time.time())

    return wait


def _usable(seconds: float) -> float | None:
    """A wait that is over leaves the word to the next strategy: a server that says 0 must not be hammered."""
    return seconds if 0 < seconds < float("inf") else None


DEFAULT_BACKOFF: Final[tuple[Backoff, ...]] = (retry_after(), exponential())


def first_wait(strategies: Sequence[Backoff], failures: int, headers: Mapping[str, str]) -> float:
    """Seconds by the first strategy that can tell; the exponential one always can."""
    for strategy in (*strategies, *DEFAULT_BACKOFF):
        seconds = strategy(failures, headers)
        if seconds is not None:
            return seconds
    raise AssertionError("the exponential strategy always tells")


def build_backoff(definitions: Sequence[model.Backoff]) -> tuple[Backoff, ...]:
    """The strategies of a definition, in its order."""
    return tuple(_build(item) for item in definitions)


def _build(item: model.Backoff) -> Backoff:
    if isinstance(item, model.Constant):
        return constant(item.seconds)
    if isinstance(item, model.Exponential):
        return exponential(item.initial, item.multiplier, item.max, item.jitter)
    if isinstance(item, model.RetryAfter):
        return retry_after(item.header)
    return reset_time(item.header, item.unit == "milliseconds")
