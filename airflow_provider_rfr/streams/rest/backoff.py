"""How long to wait before a request is repeated: small strategies, tried in order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Final, TypeAlias

from airflow_provider_rfr.streams.rest import definition_errors as model

Backoff: TypeAlias = Callable[[int, Mapping[str, str]], "float | None"]
"""Takes the number of failures so far (from 1) and the answer's headers; None if it can't tell."""


def constant(seconds: float) -> Backoff:
    """Always the same."""
    return lambda failures, headers: seconds


def exponential(initial: float = 1.0, multiplier: float = 2.0, maximum: float = 60.0, jitter: bool = True) -> Backoff:
    """Grows with each failure; jitter keeps many readers from coming back at the same moment."""
    wait = _growing(initial, multiplier, maximum, jitter=jitter)
    return lambda failures, headers: wait(failures)


def _growing(initial: float, multiplier: float, maximum: float, *, jitter: bool) -> Callable[[int], float]:
    def wait(failures: int) -> float:
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
        return _at_least_a_little(seconds, failures)

    return wait


def reset_time(header: str, milliseconds: bool = False) -> Backoff:
    """Until the moment that the header names."""

    def wait(failures: int, headers: Mapping[str, str]) -> float | None:
        try:
            moment = float(headers.get(header, ""))
        except ValueError:
            return None
        return _at_least_a_little((moment / 1000 if milliseconds else moment) - time.time(), failures)

    return wait


_a_little: Final = _growing(0.05, 1.5, 60.0, jitter=False)


def _at_least_a_little(seconds: float, failures: int) -> float | None:
    """A server that says "at once" again and again is believed less and less, so that it isn't hammered."""
    if not isfinite(seconds):
        return None
    return seconds if seconds > 0 else _a_little(failures)


_standard: Final = retry_after()
_otherwise: Final = _growing(1.0, 2.0, 60.0, jitter=True)


def seconds_to_wait(strategies: Sequence[Backoff], failures: int, headers: Mapping[str, str]) -> float:
    """By the first strategy that can tell, else exponential; never less than what Retry-After asks for."""
    asked = _standard(failures, headers)
    for strategy in strategies:
        seconds = strategy(failures, headers)
        if seconds is not None:
            return max(seconds, asked or 0.0)
    return asked if asked is not None else _otherwise(failures)


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
