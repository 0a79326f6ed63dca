"""How long to wait before an attempt is repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import timezone
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Final

MINUTE, HOUR = 60.0, 3600.0
QUICK_LIMIT: Final = 30.0
STANDARD: Final = (5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR)
LONGEST_WAIT: Final = 24 * HOUR
LONGEST_ASKED: Final = {"quick": HOUR, "standard": LONGEST_WAIT}
"""Seconds: a server that asks for more is asked again after so long."""

_JITTER = 0.2
_RESTS_AFTER = 3
_LARGEST_EXPONENT = 10


def quick(failures: int) -> float:
    """1, 2, 4, 8, 16, 30, 30 ... seconds after so many failures (from 1)."""
    return min(QUICK_LIMIT, 2.0 ** min(max(0, failures - 1), _LARGEST_EXPONENT))


def standard(failures: int) -> float:
    """The waits of Standard Webhooks: 5 s, 5 min, 30 min, 2 h, 5 h ... a day."""
    return STANDARD[min(max(1, failures), len(STANDARD)) - 1]


SCHEDULES: Final[Mapping[str, Callable[[int], float]]] = {"quick": quick, "standard": standard}


def wait_before(
    schedule: str, failures: int, asked: float | None = None, *, chance: Callable[[], float] = random.random
) -> float:
    """Seconds until the next attempt: by the schedule, spread by a fifth, and never less than was asked for.

    :param failures: attempts that failed, from 1
    :param asked: by the server, from :func:`retry_after`
    """
    wait = SCHEDULES[schedule](failures) * (1 + _JITTER * (chance() - 0.5))
    if asked is not None:
        # A little later than asked, or all who were asked the same come at once.
        wait = max(wait, min(asked, LONGEST_ASKED[schedule]) * (1 + 0.05 * chance()))
    return min(wait, LONGEST_WAIT)


def rest_after(failing: int) -> float:
    """Seconds for which an endpoint is left alone after so many failures in a row, whichever deliveries they were of.

    A single delivery's own waits are longer; but where many are due, not each has to find out that nobody is there.
    """
    return quick(failing - _RESTS_AFTER + 1) if failing >= _RESTS_AFTER else 0.0


def is_probed(failing: int) -> bool:
    """Whether one delivery at a time is enough to find out that the endpoint is back."""
    return failing >= _RESTS_AFTER


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a ``Retry-After`` asks for: a number, or a date by the clock ``now``.

    None for none, and for what can't be meant: not a number, infinite, before now.
    """
    text = (header or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
            # The old form has no zone, and means this one.
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() - now
        except (TypeError, ValueError, OverflowError, IndexError):
            return None
    return seconds if isfinite(seconds) and seconds > 0 else None
