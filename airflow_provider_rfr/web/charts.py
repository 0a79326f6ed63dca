"""Geometry of the two charts, which the templates draw as inline SVG: no script, no library, no request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.inspection import RefreshDetails
    from airflow_provider_rfr.refresh.state import PastGeneration

WIDTH: Final = 640
HEIGHT: Final = 160
_LEAST: Final = 2.0
"""Height of a bar that stands for something very small."""
_WIDEST: Final = 48.0


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
    step = min(_WIDEST, WIDTH / len(shown))
    bars = []
    for place, (generation, amount) in enumerate(zip(shown, amounts, strict=True)):
        height = max(_LEAST, (HEIGHT - 30) * amount / most)
        x = place * step
        bars.append(
            GenerationBar(
                x=round(x + step * 0.15, 1),
                y=round(HEIGHT - 15 - height, 1),
                width=round(step * 0.7, 1),
                height=round(height, 1),
                dot_x=round(x + step / 2, 1),
                dot_y=round(HEIGHT - 15 - (HEIGHT - 30) * generation.seconds / longest, 1),
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
        return round(WIDTH * min(max(moment, 0.0), seconds) / seconds, 1)

    def y(count: int) -> float:
        return round(HEIGHT - (HEIGHT - 10) * count / pages, 1)

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
