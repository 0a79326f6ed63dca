"""Windows of time: steps, the formats that APIs take, and the bounds from a start to an end.

Years, months, weeks and days are steps of the calendar in a time zone: a day at a change of clocks has 23 or 25 hours.
Hours, minutes and seconds are steps of time. The bounds are counted from the start, so that months from the 31st end on
the last day of a shorter month, and on the 31st again in the next one that has it.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import count
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import TypeAdapter, ValidationError

MOST_WINDOWS: Final = 100_000
_YEARS: Final = range(1900, 3000)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TICK: Final = timedelta(microseconds=1)

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].+)?")
# Python before 3.11 reads fewer forms of ISO 8601 itself.
_MOMENT: Final = TypeAdapter(datetime)


def zone_of(name: str) -> tzinfo:
    """Return the time zone of an IANA name.

    :raises ValueError: there is none
    """
    if name == "UTC":
        return timezone.utc  # also where a machine has no time zone data
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise ValueError(f"timezone: {name!r} is unknown; write an IANA name such as UTC or Europe/Zurich")


def moment_of(text: str, zone: tzinfo) -> datetime:
    """Parse a date, or a date and time, of ISO 8601; return it in UTC.

    :param zone: of a text without an offset
    :raises ValueError: it is something else
    """
    try:
        moment = _MOMENT.validate_python(text.strip()) if _DATE.fullmatch(text.strip()) else None
    except ValidationError:
        moment = None
    if moment is None:
        raise ValueError(f"{text!r} is not a date; write e.g. 2026-01-31 or 2026-01-31T06:00:00Z")
    if moment.year not in _YEARS:
        raise ValueError(f"{text!r} is not in the years {_YEARS[0]} to {_YEARS[-1]}")
    return _in_utc(moment if moment.tzinfo else moment.replace(tzinfo=zone))


def _in_utc(moment: datetime) -> datetime:
    """Convert a moment to UTC; of an hour that the clocks skip, the moment after it."""
    return moment.astimezone(timezone.utc)


_STEP: Final = re.compile(
    r"P(?:(\d{1,6})Y)?(?:(\d{1,6})M)?(?:(\d{1,6})W)?(?:(\d{1,6})D)?"
    r"(?:T(?=\d)(?:(\d{1,8})H)?(?:(\d{1,8})M)?(?:(\d{1,8})S)?)?"
)


@dataclass(frozen=True, slots=True)
class Step:
    """The length of a window.

    :ivar seconds: of its hours, minutes and seconds
    """

    months: int = 0
    days: int = 0
    seconds: int = 0

    @classmethod
    def parse(cls, text: str) -> Step:
        """Parse a duration of ISO 8601.

        :raises ValueError: it is something else, or no time at all
        """
        found = _STEP.fullmatch(text)
        parts = [int(group or 0) for group in found.groups()] if found else [0] * 7
        years, months, weeks, days, hours, minutes, seconds = parts
        step = cls(12 * years + months, 7 * weeks + days, 3600 * hours + 60 * minutes + seconds)
        if step == cls():
            raise ValueError(f"step: {text!r} is not a duration; write e.g. P1D, P1W, P1M or PT6H")
        return step

    def after(self, start: datetime, number: int, zone: tzinfo) -> datetime:
        """Return the moment this many steps after a start, in UTC.

        :raises OverflowError, ValueError: it is beyond the year 9999
        """
        if not (self.months or self.days):
            return start + timedelta(seconds=number * self.seconds)
        local = start.astimezone(zone).replace(tzinfo=None, fold=0)
        months = local.year * 12 + local.month - 1 + number * self.months
        year, month = divmod(months, 12)
        day = min(local.day, calendar.monthrange(year, month + 1)[1])
        local = local.replace(year=year, month=month + 1, day=day) + timedelta(days=number * self.days)
        return _in_utc(local.replace(tzinfo=zone)) + timedelta(seconds=number * self.seconds)


# What the parts of a format tell, from the coarsest; a format can be no finer than its last one.
_UNITS: Final = ("year", "month", "day", "hour", "minute", "second", "millisecond", "microsecond")
_UNIT_OF: Final = {
    **dict.fromkeys("Yy", "year"),
    **dict.fromkeys("mbB", "month"),
    **dict.fromkeys("dj", "day"),
    **dict.fromkeys("HI", "hour"),
    "M": "minute",
    "S": "second",
    "f": "microsecond",
}
_SILENT: Final = frozenset("aApz%")
_NAMED: Final = {"iso": "second", "epoch": "second", "epoch_ms": "millisecond"}
_LENGTHS: Final = {
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
    "millisecond": timedelta(milliseconds=1),
    "microsecond": _TICK,
}


class TimeFormat:
    """The format of a moment for an API: ``iso``, ``epoch``, ``epoch_ms``, or a format of strftime.

    :ivar unit: the smallest that it tells
    :raises ValueError: it is no format
    """

    def __init__(self, text: str, zone: tzinfo) -> None:
        self._text = text
        self._zone = zone
        directives = [] if text in _NAMED else re.findall(r"%(.?)", text, re.DOTALL)
        unknown = [directive for directive in directives if directive not in _UNIT_OF and directive not in _SILENT]
        if unknown:
            allowed = " ".join(f"%{directive}" for directive in (*_UNIT_OF, *sorted(_SILENT)))
            remedy = "write epoch" if unknown[0] == "s" else f"allowed are {allowed}"
            raise ValueError(f"format: %{unknown[0]} is not a part of a date here; {remedy}")
        units = (
            [_NAMED[text]]
            if text in _NAMED
            else [_UNIT_OF[directive] for directive in directives if directive in _UNIT_OF]
        )
        if not units:
            raise ValueError(f"format: {text!r} shows no date; write iso, epoch, epoch_ms or e.g. '%Y-%m-%d'")
        self.unit = max(units, key=_UNITS.index)
        self.has_offset = text in _NAMED or "z" in directives or zone is timezone.utc

    def check_step(self, step: Step) -> None:
        """Check that the format can show the step.

        :raises ValueError: a step has parts that the format can't show
        """
        units, written = _UNITS.index(self.unit), f"format {self._text!r} has no unit below the {self.unit}"
        length = _LENGTHS.get(self.unit, timedelta(days=1))
        fits = (
            (not step.seconds or (units > _UNITS.index("day") and not timedelta(seconds=step.seconds) % length))
            and (not step.days or units >= _UNITS.index("day"))
            and (not step.months or units >= _UNITS.index("month") or not step.months % 12)
        )
        if not fits:
            remedy = f"write the step in whole {self.unit}s (a day is P1D, not PT24H), or a finer format"
            raise ValueError(f"step: {written}; {remedy}")

    def write(self, moment: datetime) -> str | int:
        """Return the text or number that is sent; rounded down to the unit."""
        if self._text == "epoch":
            return (moment - _EPOCH) // timedelta(seconds=1)
        if self._text == "epoch_ms":
            return (moment - _EPOCH) // timedelta(milliseconds=1)
        local = moment.astimezone(self._zone)
        if self._text != "iso":
            return local.strftime(self._text)
        text = local.isoformat(timespec="seconds")
        return f"{text[:-6]}Z" if self._zone is timezone.utc else text

    def floor(self, moment: datetime) -> datetime:
        """Return the last moment not after this one that the format can show exactly, in UTC."""
        if self.unit in ("microsecond", "millisecond"):
            return moment - (moment - _EPOCH) % _LENGTHS[self.unit]
        lowest = {"month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0}
        finer = _UNITS[_UNITS.index(self.unit) + 1 :]
        dropped: dict[str, Any] = {unit: value for unit, value in lowest.items() if unit in finer}
        return _in_utc(moment.astimezone(self._zone).replace(**dropped))

    def ceil(self, moment: datetime) -> datetime:
        """Return the first moment not before this one that the format can show exactly, in UTC."""
        found = start = self.floor(moment)
        length = _LENGTHS.get(self.unit)
        step = Step(months={"year": 12, "month": 1}.get(self.unit, 0), days=int(self.unit == "day"))
        for number in count(1):
            if found >= moment:
                break
            found = step.after(start, number, self._zone) if length is None else start + number * length
        return found


@dataclass(frozen=True, slots=True)
class Window:
    """A window, as it is sent.

    :ivar start: its first value of the format
    :ivar end: the next window's start; the last value inside of this one where ends are inclusive
    """

    start: str | int
    end: str | int


def windows(
    start: datetime, end: datetime, step: Step, time_format: TimeFormat, zone: tzinfo, *, end_inclusive: bool
) -> Iterator[Window]:
    """Yield all windows from a start to an end, the last one as long as is left.

    If the format can't show the start or the end exactly, the start is rounded down to the format's unit, the end up.

    :raises ValueError: there are none, or too many, or two that the format can't distinguish
    """
    if start >= end:
        shown = f"start {start.isoformat()} is not before end {end.isoformat()}"
        raise ValueError(f"{shown}; of a run, both may be the same moment: see Partitions in docs/sources.md")
    if _bound(step, time_format.floor(start), MOST_WINDOWS, zone, end) < end:
        raise ValueError(f"step: from start to end are more than {MOST_WINDOWS:,} windows; write a longer step")
    for opened, closed in bounds(time_format.floor(start), time_format.ceil(end), step, zone):
        if not time_format.has_offset:
            before, after = opened.astimezone(zone), closed.astimezone(zone)
            if after.replace(tzinfo=None) <= before.replace(tzinfo=None):
                shown = f"from {before.isoformat()} to {after.isoformat()} the clocks of {zone} are set back"
                raise ValueError(f"format: {shown}, which it can't show; add %z, or write timezone: UTC")
        yield Window(time_format.write(opened), time_format.write(closed - _TICK if end_inclusive else closed))


def bounds(start: datetime, end: datetime, step: Step, zone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
    """Yield the start and end of each window, in UTC, without gaps or overlaps."""
    opened = start
    for number in count(1):
        closed = _bound(step, start, number, zone, end)
        if closed > opened:  # Samoa has no 30 December 2011
            yield opened, closed
        if closed >= end:
            return
        opened = closed


def _bound(step: Step, start: datetime, number: int, zone: tzinfo, end: datetime) -> datetime:
    try:
        return min(step.after(start, number, zone), end)
    except (OverflowError, ValueError):
        return end  # beyond the last year that there is
