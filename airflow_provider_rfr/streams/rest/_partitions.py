"""The partitions of a stream: values of a list, records of a parent stream, windows of time, or combinations.

A partition is identified by its key fields alone: what else it carries (extra fields of a parent record)
may change between two attempts without making it another partition.

Years, months, weeks and days are steps of the calendar in a time zone: a day at a change of clocks has 23 or 25 hours.
Hours, minutes and seconds are steps of time. The bounds are counted from the start, so that months from the 31st end on
the last day of a shorter month, and on the 31st again in the next one that has it.
"""

from __future__ import annotations

import calendar
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import count, product
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, PrivateAttr, model_validator

from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.incremental import DELETED_FIELD
from airflow_provider_rfr.streams.moments import in_utc, moment_of, zone_of
from airflow_provider_rfr.streams.paged import AbsentFieldGuard, PagedStream, read_parent
from airflow_provider_rfr.streams.rest._request import RequestPlace, StreamRequest
from airflow_provider_rfr.streams.rest.templates import (
    MISSING,
    OF_CONFIG,
    Part,
    Scope,
    describe,
    has_expressions,
    lookup,
    parse_path,
)

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

MOST_WINDOWS: Final = 100_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
TICK: Final = timedelta(microseconds=1)

_STEP: Final = re.compile(
    r"P(?:(\d{1,6})Y)?(?:(\d{1,6})M)?(?:(\d{1,6})W)?(?:(\d{1,6})D)?"
    r"(?:T(?=\d)(?:(\d{1,8})H)?(?:(\d{1,8})M)?(?:(\d{1,8})S)?)?"
)


@dataclass(frozen=True, slots=True)
class WindowLength:
    """The length of a window.

    :ivar seconds: sum of its hours, minutes and seconds
    """

    months: int = 0
    days: int = 0
    seconds: int = 0

    @classmethod
    def parse(cls, text: str, field: str = "step", *, may_be_zero: bool = False) -> WindowLength:
        """Parse a duration of ISO 8601.

        :param field: the field that the error names
        :raises ValueError: the text is not a duration, or it is zero though that is not allowed
        """
        duration = _STEP.fullmatch(text)
        parts = [int(group or 0) for group in duration.groups()] if duration else [0] * 7
        years, months, weeks, days, hours, minutes, seconds = parts
        step = cls(12 * years + months, 7 * weeks + days, 3600 * hours + 60 * minutes + seconds)
        example = "write e.g. P1D, P1W, P1M or PT6H"
        if duration is None or not any(duration.groups()):
            raise ValueError(f"{field}: {text!r} is not a duration; {example}")
        if step == cls() and not may_be_zero:
            raise ValueError(f"{field}: {text!r} must be longer than zero; {example}")
        return step

    def after(self, start: datetime, number: int, zone: tzinfo) -> datetime:
        """Return the moment this many steps after a start, in UTC; before it, if the number is negative.

        :raises OverflowError, ValueError: it is beyond the years 1 to 9999
        """
        if not (self.months or self.days):
            return start + timedelta(seconds=number * self.seconds)
        # Without its zone: arithmetic on the calendar must not pass through the hours that the clocks skip.
        local = start.astimezone(zone).replace(tzinfo=None, fold=0)
        months = local.year * 12 + local.month - 1 + number * self.months
        year, month = divmod(months, 12)
        day = min(local.day, calendar.monthrange(year, month + 1)[1])
        local = local.replace(year=year, month=month + 1, day=day) + timedelta(days=number * self.days)
        return in_utc(local.replace(tzinfo=zone)) + timedelta(seconds=number * self.seconds)


# Units that a format can show, from the coarsest to the finest.
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
    "microsecond": TICK,
}


class TimeFormat:
    """The format of a moment for an API: ``iso``, ``epoch``, ``epoch_ms``, or a format of strftime.

    :ivar unit: the smallest unit that it shows
    :ivar has_offset: whether a written value names one moment, even in an hour that the clocks repeat
    :raises ValueError: the text is no such format
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
        self._directives = frozenset(directives)
        self.has_offset = text in _NAMED or "z" in directives or zone is timezone.utc

    def check_step(self, step: WindowLength) -> None:
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

    def check_readable(self) -> None:
        """Check that a moment can be read back from its text.

        :raises ValueError: the format leaves out a unit above its smallest one, or the half of the day
        """
        if self._text in _NAMED:
            return
        units = {_UNIT_OF.get(directive) for directive in self._directives} | {"millisecond"}
        if "j" in self._directives:
            units.add("month")
        for unit in _UNITS[: _UNITS.index(self.unit)]:
            if unit not in units:
                raise ValueError(f"format: {self._text!r} shows the {self.unit}, but not the {unit}; add the {unit}")
        if "I" in self._directives and "p" not in self._directives:
            raise ValueError(f"format: {self._text!r} has %I without %p; write %H, or add %p")

    def read(self, value: str | int) -> datetime:
        """Return the moment of a text or number that was written, in UTC; of a repeated hour, the first one."""
        if self._text == "epoch":
            return _EPOCH + timedelta(seconds=int(value))
        if self._text == "epoch_ms":
            return _EPOCH + timedelta(milliseconds=int(value))
        if self._text == "iso":
            return moment_of(str(value), self._zone)
        moment = datetime.strptime(str(value), self._text)
        return in_utc(moment if moment.tzinfo else moment.replace(tzinfo=self._zone))

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
        return in_utc(moment.astimezone(self._zone).replace(**dropped))

    def ceil(self, moment: datetime) -> datetime:
        """Return the first moment not before this one that the format can show exactly, in UTC."""
        ceiling = start = self.floor(moment)
        length = _LENGTHS.get(self.unit)
        step = WindowLength(months={"year": 12, "month": 1}.get(self.unit, 0), days=int(self.unit == "day"))
        for number in count(1):
            if ceiling >= moment:
                break
            ceiling = step.after(start, number, self._zone) if length is None else start + number * length
        return ceiling


def windows(
    start: datetime, end: datetime, step: WindowLength, time_format: TimeFormat, zone: tzinfo, *, end_inclusive: bool
) -> Iterator[tuple[str | int, str | int]]:
    """Yield the first and the last value of each window from a start to an end; the last window may be shorter.

    A window's last value is the start of the next one, or where ends are inclusive the last one inside of the window.
    If the format can't show the start or the end exactly, the start is rounded down to the format's unit, the end up.

    :raises ValueError: there are none, or too many, or two that the format can't distinguish
    """
    if start >= end:
        shown = f"start {start.isoformat()} is not before end {end.isoformat()}"
        raise ValueError(f"{shown}; of a run, both may be the same moment: see docs/windows.md")
    # One computation instead of a count: a step of a second over a century would take minutes.
    if _bound(step, time_format.floor(start), MOST_WINDOWS, zone, end) < end:
        raise ValueError(f"step: from start to end are more than {MOST_WINDOWS:,} windows; write a longer step")
    for opened, closed in bounds(time_format.floor(start), time_format.ceil(end), step, zone):
        if not time_format.has_offset:
            before, after = opened.astimezone(zone), closed.astimezone(zone)
            if after.replace(tzinfo=None) <= before.replace(tzinfo=None):
                shown = f"from {before.isoformat()} to {after.isoformat()} the clocks of {zone} are set back"
                raise ValueError(f"format: {shown}, which it can't show; add %z, or write timezone: UTC")
        yield time_format.write(opened), time_format.write(closed - TICK if end_inclusive else closed)


def bounds(start: datetime, end: datetime, step: WindowLength, zone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
    """Yield the start and end of each window, in UTC, without gaps or overlaps."""
    opened = start
    for number in count(1):
        closed = _bound(step, start, number, zone, end)
        if closed > opened:  # Samoa has no 30 December 2011
            yield opened, closed
        if closed >= end:
            return
        opened = closed


def _bound(step: WindowLength, start: datetime, number: int, zone: tzinfo, end: datetime) -> datetime:
    try:
        return min(step.after(start, number, zone), end)
    except (OverflowError, ValueError):
        return end  # beyond the year 9999


class ParentStream(PagedStream):
    """A stream whose records may divide other streams.

    :ivar slice_fields: all fields that its partitions have
    """

    slice_fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParentStreams:
    """The streams of a source, from which routers take their parents.

    :ivar names: names of all streams
    :ivar build: returns a stream by its name
    """

    names: Collection[str]
    build: Callable[[str], ParentStream]


class PartitionRouter(Part):
    """The base of routers, which list the partitions of a stream; this one has a single partition, the whole stream."""

    def bind(self, scope: Scope, streams: ParentStreams) -> Self:
        """Return the router for one stream.

        :param scope: a scope without secrets in its configuration, because partitions are stored
        :raises SourceDefinitionError: the router does not fit the source
        """
        return self

    @property
    def key_fields(self) -> tuple[str, ...]:
        """Return the fields of a partition that identify it."""
        return ()

    @property
    def slice_fields(self) -> tuple[str, ...]:
        """Return all fields that its partitions have."""
        return self.key_fields

    def partitions(self) -> Iterator[dict[str, Any]]:
        """Yield the partitions, in a stable order; the same one may come twice."""
        yield {}

    def parent_streams(self) -> Sequence[PagedStream]:
        """Return the streams that are read for the partitions."""
        return ()

    def with_windows(self, request: StreamRequest, scope: Scope) -> StreamRequest:
        """Return the request with templates for the windows at ``send_as``, as if the user had written them there.

        :param scope: scope of the stream
        :raises SourceDefinitionError: the request has something else there
        """
        return request


class ListRouter(PartitionRouter):
    """One partition for each value.

    :ivar field: name of the value in ``stream_slice``
    :ivar values: the values: a list, or a template that gives one
    """

    type: Literal["list"]
    field: str
    values: Annotated[list[Any] | str, OF_CONFIG]

    def bind(self, scope: Scope, streams: ParentStreams) -> Self:
        values = scope.resolve(self.values, "values")
        if not isinstance(values, list):
            problem, remedy = f"must be a list, is {type(values).__name__}", 'e.g. [a, b] or "{{ config.regions }}"'
            raise scope.error("values", problem, remedy)
        return self.model_copy(update={"values": values})

    @property
    def key_fields(self) -> tuple[str, ...]:
        return (self.field,)

    def partitions(self) -> Iterator[dict[str, Any]]:
        for value in self.values:
            yield {self.field: value}


class SubstreamRouter(PartitionRouter):
    """One partition for each record of another stream, the parent: all its partitions and pages are read.

    The key fields are the parent's key and the declared fields of the parent's own partition. A parent that its stream
    marks as deleted has no children.

    :ivar parent: name of another stream of the document
    :ivar parent_key: path in the parent's record of a text or a number that identifies it
    :ivar field: name of that key in ``stream_slice``
    :ivar extra_fields: further fields of ``stream_slice`` for templates, with their paths in the parent's record; no
        part of the partition's key
    :ivar parent_slice_fields: fields of the parent's own partition that are kept; part of the partition's key
    """

    type: Literal["substream"]
    parent: str
    parent_key: str
    field: str
    extra_fields: dict[str, str] = Field(default_factory=dict)
    parent_slice_fields: list[str] = Field(default_factory=list)

    _parent: PagedStream = PrivateAttr()

    @model_validator(mode="after")
    def _distinct_names(self) -> SubstreamRouter:
        names = [self.field, *self.extra_fields, *self.parent_slice_fields]
        if len(set(names)) != len(names):
            raise ValueError("two fields of the partition have the same name")
        return self

    def bind(self, scope: Scope, streams: ParentStreams) -> Self:
        if self.parent not in streams.names:
            raise scope.error("parent", f"there is no stream {self.parent!r}", suggestion(self.parent, streams.names))
        parent = streams.build(self.parent)
        for name in self.parent_slice_fields:
            if name not in parent.slice_fields:
                problem = f"the partitions of {parent.name} have no {name!r}"
                raise scope.error("parent_slice_fields", problem, suggestion(name, parent.slice_fields))
        bound = self.model_copy()
        bound._parent = parent
        return bound

    @property
    def key_fields(self) -> tuple[str, ...]:
        return (self.field, *self.parent_slice_fields)

    @property
    def slice_fields(self) -> tuple[str, ...]:
        return (*self.key_fields, *self.extra_fields)

    def parent_streams(self) -> Sequence[PagedStream]:
        return (self._parent,)

    def partitions(self) -> Iterator[dict[str, Any]]:
        parent, key = self._parent, parse_path(self.parent_key)
        extra_paths = {name: parse_path(path) for name, path in self.extra_fields.items()}
        # Checked only at the end: any partition of the parent may show that the field exists.
        absent_fields = AbsentFieldGuard(parent.page_size)
        for parent_slice, page in read_parent(parent):
            absent_fields.note(page)
            if page.skipped:
                _log.warning("%s: an ignored page has no children: %s", parent.name, page.skipped)
            for number, record in enumerate(page.records, start=1):
                if record.get(DELETED_FIELD) is True:
                    continue
                value = lookup(record, key)
                if value is MISSING or value is None or isinstance(value, (dict, list)):
                    at = f"record {number} of the page of {parent.name}"
                    raise SourceError(f"{at} {self._key_problem(record, value)}", request=page.request)
                inherited = {name: parent_slice[name] for name in self.parent_slice_fields}
                extra = {name: lookup(record, path) for name, path in extra_paths.items()}
                extra = {name: None if item is MISSING else item for name, item in extra.items()}
                yield {self.field: value, **inherited, **extra}
        absent_fields.check(f"streams.{parent.name}")

    def _key_problem(self, record: Mapping[str, Any], value: Any) -> str:
        """Return the problem of a parent's key, with the record's primary key, else its fields, and a remedy."""
        declared = self._parent.primary_key or ()
        paths = [parse_path(key) for key in ([declared] if isinstance(declared, str) else declared)]
        keys = {".".join(path): lookup(record, path) for path in paths}
        plain = [f"{path}: {key}" for path, key in keys.items() if isinstance(key, (str, int, float))]
        shown = ", ".join(plain) or describe(record)
        name, problem = self.parent_key, f"is {describe(value)}, but a key must be a text or a number"
        if not isinstance(value, (dict, list)):
            condition = f"record.{name} is defined and record.{name} is not none"
            problem += f"; records: {{filter: {condition}}} in the parent leaves such records out"
        return f"({shown}): partitions.parent_key {name!r} {problem}"


WINDOW_FIELDS: Final = ("window_start", "window_end")
"""Names of a window's start and end in ``stream_slice``."""


class WindowPlaces(Part):
    """The places of a window's start and end in a request.

    :ivar start: the place of the window's start
    :ivar end: the place of the window's end
    """

    start: RequestPlace | None = None
    end: RequestPlace | None = None

    @model_validator(mode="after")
    def _at_least_one(self) -> WindowPlaces:
        if self.start is None and self.end is None:
            raise ValueError("name a place for start, end or both, e.g. {start: {query: since}, end: {query: until}}")
        return self


class DateWindowRouter(PartitionRouter):
    """One partition for each window of time from ``start`` to ``end``, as they are sent; an end belongs to the next
    window.

    :ivar start: start of the first window: a date or moment of ISO 8601
    :ivar end: end of the last window, which is not part of it; by default the moment when the refresh opens. So divide
        by a time that does not change: a record whose time moves beyond the end before its page is read is missing
    :ivar step: length of a window, as an ISO 8601 duration, e.g. ``P1D``, ``P1M``, ``PT6H``
    :ivar format: format of what is sent: ``iso``, ``epoch`` (seconds), ``epoch_ms``, or a format of strftime with ``%Y
        %m %d %H %M %S %f %z %j %y %b %B %a %A %I %p``
    :ivar timezone: IANA name of the time zone of moments without an offset, of days and months, and of what is sent
    :ivar end_inclusive: send the last value that is inside the window as its end, for an API that returns the records
        of the end, too
    :ivar send_as: the places of start and end in the request. What it leaves out is there for templates, as
        ``stream_slice.window_start`` and ``window_end``
    """

    type: Literal["date_window"]
    start: Annotated[str, OF_CONFIG]
    end: Annotated[str | None, OF_CONFIG] = None
    step: str
    format: str = "iso"
    timezone: str = "UTC"
    end_inclusive: bool = False
    send_as: WindowPlaces | None = None

    _scope: Scope = PrivateAttr()
    _first: datetime = PrivateAttr()
    # None: the time at which the partitions are listed.
    _last: datetime | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _fits_together(self) -> DateWindowRouter:
        zone = zone_of(self.timezone)
        TimeFormat(self.format, zone).check_step(WindowLength.parse(self.step))
        for name in ("start", "end"):
            text = getattr(self, name)
            if text is not None and not has_expressions(text):
                try:
                    moment_of(text, zone)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return self

    def bind(self, scope: Scope, streams: ParentStreams) -> Self:
        bound = self.model_copy()
        bound._scope = scope
        bound._first = self._moment(self.start, scope, "start")
        bound._last = None if self.end is None else self._moment(self.end, scope, "end")
        return bound

    @property
    def key_fields(self) -> tuple[str, ...]:
        return WINDOW_FIELDS

    def partitions(self) -> Iterator[dict[str, Any]]:
        end, zone = self._last or datetime.now(timezone.utc), zone_of(self.timezone)
        step, time_format, problem = WindowLength.parse(self.step), TimeFormat(self.format, zone), ""
        try:
            for window in windows(self._first, end, step, time_format, zone, end_inclusive=self.end_inclusive):
                yield dict(zip(WINDOW_FIELDS, window, strict=True))
        except ValueError as error:
            problem = str(error)
        if problem:
            raise SourceDefinitionError(self._scope.place, problem)

    def _moment(self, text: str, scope: Scope, name: str) -> datetime:
        value = scope.resolve(text, name)
        try:
            return moment_of(str(value), zone_of(self.timezone))
        except ValueError as error:
            problem, _, remedy = str(error).partition("; ")
        raise scope.error(name, problem, remedy)

    def with_windows(self, request: StreamRequest, scope: Scope) -> StreamRequest:
        places = (None, None) if self.send_as is None else (self.send_as.start, self.send_as.end)
        for name, place in zip(WINDOW_FIELDS, places, strict=True):
            if place is not None:
                request = request.with_value(place, f"{{{{ stream_slice.{name} }}}}", scope)
        return request


class ProductRouter(PartitionRouter):
    """Every combination of the partitions of several routers; the later ones run through for each partition of the
    earlier ones.

    :ivar of: the partitions to combine
    """

    type: Literal["product"]
    of: list[AnyRouter] = Field(min_length=1)

    def bind(self, scope: Scope, streams: ParentStreams) -> Self:
        routers = [router.bind(scope.at(f"of.{number}"), streams) for number, router in enumerate(self.of)]
        bound = self.model_copy(update={"of": routers})
        if len(set(bound.slice_fields)) != len(bound.slice_fields):
            raise SourceDefinitionError(scope.place, "two routers use the same field name", "rename one of them")
        return bound

    @property
    def key_fields(self) -> tuple[str, ...]:
        return tuple(name for router in self.of for name in router.key_fields)

    @property
    def slice_fields(self) -> tuple[str, ...]:
        return tuple(name for router in self.of for name in router.slice_fields)

    def parent_streams(self) -> Sequence[PagedStream]:
        return [parent for router in self.of for parent in router.parent_streams()]

    def partitions(self) -> Iterator[dict[str, Any]]:
        # The partitions of the later ones are listed once and kept: a parent isn't read again for each combination.
        rest = [list(router.partitions()) for router in self.of[1:]]
        for first in self.of[0].partitions():
            for others in product(*rest):
                yield {name: value for part in (first, *others) for name, value in part.items()}

    def with_windows(self, request: StreamRequest, scope: Scope) -> StreamRequest:
        for router in self.of:
            request = router.with_windows(request, scope)
        return request


AnyRouter = Annotated[ListRouter | SubstreamRouter | DateWindowRouter | ProductRouter, Field(discriminator="type")]
