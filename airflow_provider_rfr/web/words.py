"""Values as people read them, for the templates."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timezone
from typing import Any, Final

from airflow_provider_rfr.refresh.progress import duration_in_words, rate_in_words, size_in_words

_LONGEST_KEY: Final = 60
_QUERY: Final = re.compile(r"(https?://[^\s?#\"']+)[?#][^\s\"']*")
# As errors of this package write it, and then the token as JSON or as Python shows it, perhaps cut.
_TOKEN: Final = re.compile(
    r"""
    (\btoken(?:\ is)?\ )
    (?: "(?:[^"\\]|\\.)*(?:"|$) | '(?:[^'\\]|\\.)*(?:'|$) | [\[{].*?[\]}](?![\]}\w,:]) | [\[{].* | -?\d\S* )
    """,
    re.VERBOSE,
)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Of pages, a second."""
    return "" if value is None else f"{rate_in_words(value)}/s"


def size(value: float | None) -> str:
    return "" if value is None else size_in_words(value)


def duration(seconds: float | None) -> str:
    return "" if seconds is None else duration_in_words(seconds)


def ago(moment: datetime | None) -> str:
    if moment is None:
        return ""
    return f"{duration(max(0.0, (datetime.now(timezone.utc) - moment).total_seconds()))} ago"


def clock(moment: datetime | None) -> str:
    return "" if moment is None else moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def at(milliseconds: int | None) -> datetime | None:
    """A time of the control store."""
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def short(text: Any) -> str:
    """A partition's key, cut where it is long."""
    flat = str(text)
    return flat if len(flat) <= _LONGEST_KEY else f"{flat[:_LONGEST_KEY]}…"


def quoted(text: str) -> str:
    """A name as a shell takes it, for commands that are copied."""
    return shlex.quote(text)


def without_cursors(text: str) -> str:
    """An error without page tokens: neither as such, nor in the queries of addresses. They may be valid for days."""
    return _TOKEN.sub(r"\1***", _QUERY.sub(r"\1?***", text))


FILTERS: Final = {each.__name__: each for each in (number, rate, size, duration, ago, clock, at, short, quoted)}
