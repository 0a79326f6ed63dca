"""The geometry of the charts, which the templates draw as inline SVG: no script, no library, no request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.text import quantity
from airflow_provider_rfr.web.display import clock, duration, number

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_rfr.refresh.inspection import RefreshDetails
    from airflow_provider_rfr.refresh.past import PastGeneration

WIDTH: Final = 460.0
HEIGHT: Final = 200.0
LEFT: Final = 58.0
"""Left edge of the plot; the next three are its other edges. The labels of the axes are outside."""
RIGHT: Final = 450.0
TOP: Final = 14.0
BOTTOM: Final = 160.0
_WIDEST_BAR: Final = 48.0
_LEAST_HEIGHT: Final = 2.0
"""Least height of a bar, so that very small values are visible."""
_TICKS: Final = 4
_TIMES: Final = (0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place of an axis."""

    place: float
    label: str


@dataclass(frozen=True, slots=True)
class Point:
    """A value that can be hovered over and focused.

    :ivar x: left edge of the strip that reacts to the pointer; ``width``: of the strip
    :ivar y: vertical place of the value
    :ivar outcome: outcome of a generation, also the CSS class; epoch of an attempt for a mark; empty on a line
    """

    x: float
    y: float
    width: float
    title: str
    outcome: str = ""

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 1)

    @property
    def height(self) -> float:
        return round(BOTTOM - self.y, 1)


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over an axis.

    :ivar unit: unit of the vertical axis
    :ivar x_unit: unit of the horizontal axis
    :ivar summary: the accessible name
    :ivar line: points of a line, as SVG writes them; empty for bars
    :ivar marks: places where an attempt took over
    """

    title: str
    unit: str
    x_unit: str
    summary: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    points: tuple[Point, ...]
    line: str = ""
    marks: tuple[Point, ...] = ()


def _step_of_numbers(most: float) -> float:
    """Return a round distance between ticks, so that few of them reach the greatest value."""
    rough = max(most / _TICKS, 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _step_of_times(most: float) -> float:
    rough = max(most / _TICKS, _TIMES[0])
    return next((float(step) for step in _TIMES if step >= rough), 86_400.0 * math.ceil(rough / 86_400))


def _time_label(step: float) -> Callable[[float], str]:
    """Return the function that labels ticks in one unit, by the distance between them."""
    size, unit = next((size, unit) for size, unit in _UNITS if step >= size or size == 1)
    return lambda value: f"{value / size:g} {unit}"


def _top(most: float, step: float) -> float:
    return step * max(1, math.ceil(most / step))


def _y(value: float, top: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * value / top, 1)


def _y_ticks(most: float, step: float, text: Callable[[float], str]) -> tuple[Tick, ...]:
    top = _top(most, step)
    return tuple(Tick(_y(place * step, top), text(place * step)) for place in range(round(top / step) + 1))


def generations(history: Sequence[PastGeneration]) -> tuple[Chart, ...]:
    """Return the charts of rows and of durations, the oldest generation first; none without a generation.

    A generation without published rows has the height of its read records.
    """
    if not history:
        return ()
    shown = list(reversed(history))
    amounts = [float(generation.records if generation.rows is None else generation.rows) for generation in shown]
    seconds = [generation.seconds for generation in shown]
    words = [
        f"{quantity(generation.records, 'record')} read"
        if generation.rows is None
        else quantity(generation.rows, "row")
        for generation in shown
    ]
    times = [duration(value) for value in seconds]
    return (
        _bars("Rows", "in the table, or records that were read", _step_of_numbers, number, amounts, shown, words),
        _bars("Duration", "from the opening to the end", _step_of_times, duration, seconds, shown, times),
    )


def _bars(
    title: str,
    unit: str,
    step_of: Callable[[float], float],
    text: Callable[[float], str],
    values: Sequence[float],
    shown: Sequence[PastGeneration],
    words: Sequence[str],
) -> Chart:
    most = max(values)
    step = step_of(most)
    top, width = _top(most, step), min(_WIDEST_BAR, (RIGHT - LEFT) / len(shown))
    points = tuple(
        Point(
            round(LEFT + place * width, 1),
            min(_y(value, top), BOTTOM - _LEAST_HEIGHT),
            round(width, 1),
            f"generation {generation.generation}, {generation.outcome}: {word}, opened {clock(generation.opened_at)}",
            generation.outcome,
        )
        for place, (generation, value, word) in enumerate(zip(shown, values, words, strict=True))
    )
    label = text if step_of is _step_of_numbers else _time_label(step)
    ticks = tuple(
        Tick(point.middle, str(generation.generation)) for point, generation in zip(points, shown, strict=True)
    )
    summary = f"{title} of {quantity(len(shown), 'generation')}, at most {text(most)}"
    return Chart(title, unit, "generation", summary, ticks, _y_ticks(most, step, label), points)


def pages_over_time(details: RefreshDetails, opened_at: datetime) -> Chart | None:
    """Return the curve of committed pages, from the opening of the refresh; None if no page was committed yet."""
    if not details.points:
        return None
    seconds, pages = max(details.points[-1][0], 0.001), details.points[-1][1]
    step, y_step = _step_of_times(seconds), _step_of_numbers(pages)
    top = _top(pages, y_step)

    def x(moment: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * min(max(moment, 0.0), seconds) / seconds, 1)

    width = round((RIGHT - LEFT) / len(details.points), 1)
    points = tuple(
        Point(
            round(x(moment) - width / 2, 1),
            _y(count, top),
            width,
            f"{quantity(count, 'page')} after {duration(moment)}",
        )
        for moment, count in details.points
    )
    marks = tuple(
        Point(
            x(after.began),
            TOP,
            0.0,
            f"attempt {after.epoch} began to read after {duration(after.began)}; the pages of attempt {before.epoch}"
            f" end at {duration(before.ended)}",
            str(after.epoch),
        )
        for before, after in zip(details.attempts, details.attempts[1:], strict=False)
    )
    line = " ".join(f"{x(moment)},{_y(count, top)}" for moment, count in ((0.0, 0), *details.points))
    summary = f"{quantity(pages, 'page')} in {duration(seconds)}"
    x_ticks = tuple(Tick(x(place * step), _time_label(step)(place * step)) for place in range(int(seconds / step) + 1))
    unit = f"time since the refresh was opened, {clock(opened_at)}"
    y_ticks = _y_ticks(pages, y_step, number)
    return Chart("Pages", "in the ledger", unit, summary, x_ticks, y_ticks, points, line, marks)
