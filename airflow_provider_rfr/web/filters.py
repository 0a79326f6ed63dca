"""Values as people read them, for the templates."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timezone
from typing import Any, Final

from airflow_provider_rfr.refresh.state import duration_in_words, rate_in_words, size_in_words
from airflow_provider_rfr.text import cut

_LONGEST_KEY: Final = 60
_LOGIN: Final = re.compile(r"(://)[^\s/?#]*@")
# Of an address, of a path, and of a bare name where it is a query for sure; to the next space, but without a bracket,
# a colon and the like in front of it.
_QUERY: Final = re.compile(
    r"""
    ( https?://[^\s?#]{0,2000}[?#](?=\S) | /[^\s/?#]*\?(?=\S) | \?(?=[\w%.\[\]-]+=) )
    \S*? (?= ["'\])>.,:;]{0,4}(?:\s|\Z) )
    """,
    re.VERBOSE | re.IGNORECASE,
)
# As errors of this package write it, and then the token as JSON or as Python shows it, perhaps cut.
_TOKEN: Final = re.compile(r"(\btoken(?: is)? )(?=[\"'\[{]|-?\d)")
_PIECE: Final = re.compile(
    r"""
    "(?:[^"\\]|\\.)*(?:"|\\?\Z) | '(?:[^'\\]|\\.)*(?:'|\\?\Z) | (?P<opens>[\[{]) | (?P<closes>[\]}]) | -?\d[^\s\]},]*
    """,
    re.VERBOSE | re.DOTALL,
)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate in pages per second."""
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
    """Return a time of the control store; None if there is none, or if no calendar has it."""
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def short(text: Any) -> str:
    """Return a partition's key, cut if it is long."""
    return cut(str(text), _LONGEST_KEY)


def without_cursors(text: str) -> str:
    """Return an error without page tokens, neither as such nor in the queries of addresses, and without logins.

    Page tokens may be valid for days. Logins are those in addresses.
    """
    kept, place = [], 0
    while (found := _TOKEN.search(text, place)) is not None:
        kept += [text[place : found.end()], "***"]
        place = _end_of_value(text, found.end())
    return _QUERY.sub(r"\1***", _LOGIN.sub(r"\1***@", "".join([*kept, text[place:]])))


def _end_of_value(text: str, start: int) -> int:
    """Return the position at which a value ends, with everything in it; the end of the text if it is cut off."""
    depth = 0
    for piece in _PIECE.finditer(text, start):
        depth += (piece["opens"] is not None) - (piece["closes"] is not None)
        if depth == 0:
            return piece.end()
    return len(text)


FILTERS: Final = {function.__name__: function for function in (number, rate, size, duration, ago, clock, at, short)} | {
    # For commands that are copied.
    "quoted": shlex.quote
}
