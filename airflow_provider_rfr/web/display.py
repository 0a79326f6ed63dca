"""Values for the templates: numbers, times and errors as people read them, and the geometry of two charts.

The templates draw the charts as inline SVG: no script, no library, no request.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_rfr.refresh.state import duration_in_words, rate_in_words, size_in_words
from airflow_provider_rfr.text import cut

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.inspection import RefreshDetails
    from airflow_provider_rfr.refresh.state import PastGeneration

_WIDTH: Final = 640
_HEIGHT: Final = 160
_LEAST_HEIGHT: Final = 2.0
"""Height of a bar that stands for something very small."""
_WIDEST_BAR: Final = 48.0
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


@dataclass(frozen=True, slots=True)
class GenerationBar:
    """One generation: rows as a bar, its duration as a dot above it.

    :ivar outcome: also the CSS class
    """

    x: float
    y: float
    width: float
    height: float
    dot_x: float
    dot_y: float
    outcome: str
    label: str
    title: str


def generations(history: Sequence[PastGeneration]) -> tuple[GenerationBar, ...]:
    """Return the bars, the oldest first; a generation without published rows has the height of its read records."""
    if not history:
        return ()
    shown = list(reversed(history))
    amounts = [generation.records if generation.rows is None else generation.rows for generation in shown]
    most, longest = max(*amounts, 1), max(*(generation.seconds for generation in shown), 1.0)
    step = min(_WIDEST_BAR, _WIDTH / len(shown))
    bars = []
    for place, (generation, amount) in enumerate(zip(shown, amounts, strict=True)):
        height = max(_LEAST_HEIGHT, (_HEIGHT - 30) * amount / most)
        x = place * step
        bars.append(
            GenerationBar(
                x=round(x + step * 0.15, 1),
                y=round(_HEIGHT - 15 - height, 1),
                width=round(step * 0.7, 1),
                height=round(height, 1),
                dot_x=round(x + step / 2, 1),
                dot_y=round(_HEIGHT - 15 - (_HEIGHT - 30) * generation.seconds / longest, 1),
                outcome=generation.outcome,
                label=str(generation.generation),
                title=f"generation {generation.generation}: {generation.outcome}, {amount:,} rows,"
                f" {generation.seconds:,.0f} s,"
                f" {generation.attempts} {'attempt' if generation.attempts == 1 else 'attempts'}",
            )
        )
    return tuple(bars)


@dataclass(frozen=True, slots=True)
class AttemptMark:
    """The beginning of an attempt after the first."""

    x: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Pages over time, from the opening of the refresh to its newest page."""

    points: str
    marks: tuple[AttemptMark, ...]
    pages: int
    seconds: float


def pages_over_time(details: RefreshDetails) -> Curve | None:
    """Return the curve of committed pages; None if no page was committed yet."""
    if not details.points:
        return None
    seconds, pages = max(details.points[-1][0], 0.001), details.points[-1][1]

    def x(moment: float) -> float:
        return round(_WIDTH * min(max(moment, 0.0), seconds) / seconds, 1)

    def y(count: int) -> float:
        return round(_HEIGHT - (_HEIGHT - 10) * count / pages, 1)

    marks = tuple(
        AttemptMark(
            x(after.began),
            str(after.epoch),
            f"attempt {after.epoch} began to read after {after.began:,.0f} s; the pages of attempt {before.epoch} end"
            f" at {before.ended:,.0f} s",
        )
        for before, after in zip(details.attempts, details.attempts[1:], strict=False)
    )
    line = " ".join(f"{x(moment)},{y(count)}" for moment, count in ((0.0, 0), *details.points))
    return Curve(line, marks, pages, seconds)
