"""Incremental reads of a stream: its declaration, and the slices with their bounds.

A slice holds its bounds in the form in which they are sent, so the slice is enough to request a page again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from airflow_provider_rfr.exceptions import SourceDefinitionError, SyncStateError
from airflow_provider_rfr.streams.core import PrimaryKey, canonical_json, key_paths
from airflow_provider_rfr.streams.incremental import (
    DELETED_FIELD,
    CursorColumn,
    CursorWindow,
    IncrementalRead,
)
from airflow_provider_rfr.streams.moments import in_utc, moment_of, read_moment, write_moment, zone_of
from airflow_provider_rfr.streams.rest._paginators import KeysetPaginator
from airflow_provider_rfr.streams.rest._paging import Paginator
from airflow_provider_rfr.streams.rest._partitions import (
    MOST_WINDOWS,
    TICK,
    WINDOW_FIELDS,
    PartitionRouter,
    TimeFormat,
    WindowLength,
    windows,
)
from airflow_provider_rfr.streams.rest._records import RecordCondition
from airflow_provider_rfr.streams.rest._request import RequestDraft, RequestPlace, StreamRequest
from airflow_provider_rfr.streams.rest.templates import (
    OF_CONFIG,
    RECORD_NAMES,
    Part,
    Scope,
    Templated,
    compile_condition,
    has_expressions,
    lookup,
    parse_path,
)

_EARLIEST: Final = datetime(1, 1, 2, tzinfo=timezone.utc)
_INTEGER: Final = re.compile(r"-?[0-9]+")
_NAMES_END: Final = re.compile(r"\bstream_slice\W+(get\W+)?window_end\b")
_START, _END = WINDOW_FIELDS
_Value: TypeAlias = datetime | int | str


class Incremental(Part):
    """The column by which a stream is synced incrementally, and the bounds that its requests ask for.

    :ivar cursor_field: the column that tells when a record changed, or its number; as it is named after
        ``transformations``
    :ivar type: type of its values; texts are compared by their bytes in UTF-8
    :ivar timezone: IANA name of the time zone of moments without an offset
    :ivar format: format of the bounds that are sent: ``iso``, ``epoch``, ``epoch_ms``, or a format of strftime
    :ivar start: the first lower bound: a date or moment of ISO 8601, a whole number, or a text
    :ivar send_as: the place of the lower bound in the request; the bound is inclusive
    :ivar end_as: the place of the upper bound, which is exclusive: the moment when the load was opened. The last window
        of a full refresh has none, unless a template of the stream names ``stream_slice.window_end``
    :ivar step: length of the windows that are read in parallel, as an ISO 8601 duration; needs ``end_as``
    :ivar lookback: how much is read again in each sync, as an ISO 8601 duration, for an API whose records appear late
    :ivar settle: how late a record may still appear, as an ISO 8601 duration of days or less. The state stays that far
        behind the opening where it would move without records
    :ivar deleted: condition for records whose row is removed, evaluated after ``transformations``; needs
        ``primary_key``
    """

    cursor_field: str = Field(min_length=1)
    type: Literal["datetime", "integer", "text"] = "datetime"
    timezone: str = "UTC"
    format: str = "iso"
    start: Annotated[str | int, OF_CONFIG]
    send_as: RequestPlace
    end_as: RequestPlace | None = None
    step: str | None = None
    lookback: str | None = None
    settle: str = "PT10M"
    deleted: Annotated[str | None, Templated(RECORD_NAMES, compile_condition)] = None

    # One validator for each field, so that the error names the field. A validator sees the fields above its own.

    @field_validator("cursor_field")
    @classmethod
    def _is_column(cls, name: str) -> str:
        if "." in name:
            field = name.replace(".", "_")
            remedy = (
                f"add it as {field} by a transformation: {{type: add, fields: {{{field}: '{{{{ record.{name} }}}}'}}}}"
            )
            raise ValueError(f"{name!r} must be a column, not a field inside of an object; {remedy}")
        return name

    @field_validator("timezone", "format", "end_as", "step", "lookback", "settle")
    @classmethod
    def _is_of_moments(cls, value: Any, info: ValidationInfo) -> Any:
        kind = info.data.get("type", "datetime")
        if kind != "datetime" and value is not None:
            raise ValueError(f"is for type: datetime, and the type is {kind}; remove {info.field_name}")
        return value

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, value: str) -> str:
        with _without_prefix("timezone"):
            zone_of(value)
        return value

    @field_validator("format")
    @classmethod
    def _is_format(cls, value: str) -> str:
        with _without_prefix("format"):
            TimeFormat(value, timezone.utc).check_readable()
        return value

    @field_validator("start")
    @classmethod
    def _is_start(cls, value: str | int, info: ValidationInfo) -> str | int:
        if "type" in info.data and "timezone" in info.data and not (isinstance(value, str) and has_expressions(value)):
            _start_of(value, info.data["type"], info.data["timezone"])
        return value

    @field_validator("end_as")
    @classmethod
    def _is_other_place(cls, value: RequestPlace | None, info: ValidationInfo) -> RequestPlace | None:
        place = info.data.get("send_as")
        if value is not None and place is not None and value.overlaps(place):
            raise ValueError("is the place of send_as, too; write another place for the upper bound")
        return value

    @field_validator("step")
    @classmethod
    def _is_step(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return value
        if info.data.get("end_as", value) is None:
            raise ValueError("needs end_as, the place of a window's end, e.g. end_as: {query: updated_before}")
        with _without_prefix("step"):
            TimeFormat(info.data.get("format", "iso"), timezone.utc).check_step(WindowLength.parse(value))
        return value

    @field_validator("lookback", "settle")
    @classmethod
    def _is_duration(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.field_name is not None:
            with _without_prefix(info.field_name):
                length = WindowLength.parse(value, info.field_name, may_be_zero=info.field_name == "settle")
            if length.months and info.field_name == "settle":
                raise ValueError(f"{value!r} has months; write days or less, e.g. P1D or PT10M")
        return value

    @property
    def column(self) -> CursorColumn:
        """Return the cursor column."""
        return CursorColumn(self.cursor_field, self.type, self.format, self.timezone)

    @property
    def bound_fields(self) -> tuple[str, ...]:
        """Return the names of the fields of a slice that hold the bounds."""
        return WINDOW_FIELDS[: 1 if self.end_as is None else 2]

    def check_stream(self, key: PrimaryKey, router: PartitionRouter | None, columns: Collection[str] | None) -> None:
        """Check that the stream can be read incrementally.

        :param columns: names of the only columns that the table will have; None if others may come
        :raises ValueError: it can't
        """
        clash = [name for name in self.bound_fields if router is not None and name in router.slice_fields]
        if clash:
            remedy = "rename it; instead of a date_window, write end_as and step here"
            raise ValueError(f"partitions have a field {clash[0]!r}, which is the name of a bound here; {remedy}")
        if self.deleted is not None and not key_paths(key):
            raise ValueError("deleted: without a primary_key no row can be removed; declare primary_key")
        if columns is not None and self.cursor_field not in columns:
            problem = f"cursor_field: json_schema has no {self.cursor_field!r}, so the table would not have it"
            raise ValueError(f"{problem}; add it to json_schema")

    def with_bounds(self, request: StreamRequest, paginator: Paginator | None, scope: Scope) -> StreamRequest:
        """Return the request with templates for the bounds at their places, as if the user had written them there.

        :param scope: scope of the stream
        :raises SourceDefinitionError: the request or the paginator has something else there
        """
        for name, field, place in zip(WINDOW_FIELDS, ("send_as", "end_as"), (self.send_as, self.end_as), strict=True):
            if place is None:
                continue
            for other_field, other in ({} if paginator is None else paginator.places).items():
                # A keyset requests its next page by raising the lower bound, so both may have one place.
                may_share = isinstance(paginator, KeysetPaginator) and other_field == field
                if place.overlaps(other) and not may_share:
                    problem = f"is the place of paginator.{other_field}, too"
                    raise scope.at("incremental").error(field, problem, "write another place for one of the two")
            request = request.with_value(place, f"{{{{ stream_slice.{name} }}}}", scope, f"incremental.{field}")
        return request

    def bind(self, scope: Scope, router: PartitionRouter, templates: str) -> BoundedRead:
        """Return the reads of one stream.

        :param scope: a scope without secrets in its configuration, because bounds are stored
        :param router: the bound router of the partitions
        :param templates: a text with all templates of the stream
        :raises SourceDefinitionError: the start is wrong
        """
        return BoundedRead(self, scope, router, _NAMES_END.search(templates) is not None)


class BoundedRead(IncrementalRead):
    """The incremental reads of a stream: of each partition from a lower bound on, up to an upper one if that is sent.

    :ivar key_fields: the fields of its slices that identify them
    :ivar slice_fields: all fields that its slices have
    :param is_end_named: whether templates name the upper bound, so that each slice must have one
    """

    def __init__(self, declared: Incremental, scope: Scope, router: PartitionRouter, is_end_named: bool) -> None:
        self.column = declared.column
        self.marks_deleted = declared.deleted is not None
        self.slice_fields = (*router.slice_fields, *declared.bound_fields)
        self.key_fields = (*router.key_fields, *declared.bound_fields)
        self._scope = scope
        self._router = router
        self._zone = zone_of(declared.timezone)
        self._format = TimeFormat(declared.format, self._zone)
        self._step = None if declared.step is None else WindowLength.parse(declared.step)
        self._lookback = None if declared.lookback is None else WindowLength.parse(declared.lookback)
        settle = WindowLength.parse(declared.settle, may_be_zero=True)
        self.settle = timedelta(days=settle.days, seconds=settle.seconds)
        self.moves_by_steps = self._step is not None
        self._has_end = declared.end_as is not None
        self._is_end_named = is_end_named
        json_place = None if declared.end_as is None else declared.end_as.json_
        self._end_in_body = None if json_place is None else parse_path(json_place)
        self._start = self._resolved(declared.start)
        self._deleted: RecordCondition | None = None
        if declared.deleted is not None:
            place = scope.at("deleted")
            self._deleted = RecordCondition(declared.deleted, "incremental.deleted", place, self.slice_fields)

    def all_slices(self, opened_at: datetime) -> Iterator[dict[str, Any]]:
        """Yield the slices of a full refresh, or of a list of parents; the last one of a partition has no upper bound.

        With one, a record that changes after the opening and before its page is read would be missing.

        :raises SourceDefinitionError: as for :meth:`slices`
        """
        last = self._format.write(self._end_at(opened_at)) if self._has_end and not self._is_end_named else None
        for stream_slice in self.slices({}, opened_at):
            is_open = last is not None and stream_slice[_END] == last
            yield {**stream_slice, _END: None} if is_open else stream_slice

    def leave_out_end(self, stream_slice: Mapping[str, Any], draft: RequestDraft) -> None:
        """Remove the null of a missing upper bound from a request's JSON; elsewhere, nulls are not sent.

        Objects that have nothing else are removed, too: an API may refuse a range without bounds.
        """
        if self._end_in_body is None or stream_slice[_END] is not None:
            return
        *path, name = self._end_in_body
        while not (place := lookup(draft.json, tuple(path)))[name]:
            del place[name]
            if not path:
                return
            *path, name = path

    def slices(self, values: Mapping[str, str], opened_at: datetime) -> Iterator[dict[str, Any]]:
        """Yield the slices of a sync, each partition without a value from the start on.

        :raises SourceDefinitionError: the start is not before the opening, or there are too many windows
        :raises SyncStateError: a value is not one of the cursor column
        """
        return self._slices(lambda partition: self._bounds(values.get(self.partition_of(partition)), opened_at))

    def window_slices(self, window: CursorWindow) -> Iterator[dict[str, Any]]:
        """Yield the slices of a fixed window, with ``lookback`` as in a sync.

        :raises SourceDefinitionError: there are too many windows
        """
        start, end = self._value(window.start), self._value(window.end)
        if isinstance(start, datetime) and isinstance(end, datetime):
            lower, upper = self._earlier(start, end), end
            return self._slices(lambda _: self._windows(lower, upper))
        return self._slices(lambda _: [(int(window.start),)])

    def _slices(
        self, bounds_of: Callable[[Mapping[str, Any]], Iterable[tuple[str | int, ...]]]
    ) -> Iterator[dict[str, Any]]:
        further = 0
        for partition in self._router.partitions():
            for number, bounds in enumerate(bounds_of(partition)):
                further += number > 0
                if further >= MOST_WINDOWS:
                    problem = f"the partitions have more than {MOST_WINDOWS:,} windows together"
                    raise self._scope.error("step", problem, "write a longer step")
                yield {**partition, **dict(zip(WINDOW_FIELDS, bounds, strict=False))}

    def partition_of(self, stream_slice: Mapping[str, Any]) -> str:
        return canonical_json({name: stream_slice[name] for name in self._router.key_fields}, field="stream_slices")

    def bounds_of(self, stream_slice: Mapping[str, Any]) -> tuple[str | None, str | None]:
        lower, upper = (self._written(stream_slice.get(name)) for name in WINDOW_FIELDS)
        return lower, upper

    def _written(self, bound: Any) -> str | None:
        """Return a slice's bound as a state writes values; None where it has none."""
        if bound is None or self.column.kind != "datetime":
            return None if bound is None else str(bound)
        return write_moment(self._format.read(bound))

    def reached(self, stream_slice: Mapping[str, Any], opened_at: datetime) -> str | None:
        if self._step is None:
            return None
        start, reached = self._format.read(stream_slice[_START]), opened_at - self.settle
        if stream_slice[_END] is not None:
            reached = min(reached, self._format.read(stream_slice[_END]))
        return write_moment(reached) if reached > start else None

    def mark_deleted(self, records: list[dict[str, Any]], variables: Mapping[str, Any], request: str | None) -> None:
        """Add :data:`DELETED_FIELD` to records that remove their rows; a field of that name from the API is dropped.

        :raises SourceError: the condition can't be evaluated for a record
        """
        if self._deleted is None:
            return
        deleted = self._deleted.select(records, variables, request)
        for record in records:
            record.pop(DELETED_FIELD, None)
        for record in deleted:
            record[DELETED_FIELD] = True

    def _resolved(self, start: str | int) -> _Value:
        try:
            return _start_of(self._scope.resolve(start, "start"), self.column.kind, self.column.timezone)
        except ValueError as error:
            problem, _, remedy = str(error).partition("; ")
        raise self._scope.error("start", problem, remedy)

    def _bounds(self, text: str | None, opened_at: datetime) -> Iterator[tuple[str | int, ...]]:
        """Yield the bounds of each slice of a partition as they are sent: the lower one, and the upper one if any.

        :param text: the largest value seen; None to begin at the start
        """
        start, value = self._start, None if text is None else self._value(text)
        if isinstance(start, datetime):
            lower = self._lower(start, value, opened_at) if isinstance(value, datetime) else start
            yield from self._windows(lower, opened_at)
        elif isinstance(start, int):
            bound = max(start, value) if isinstance(value, int) else start
            # The ledger's JSON has no integer of more than 64 bits.
            yield (bound if abs(bound) < 2**63 else str(bound),)
        else:
            yield (max(start, value, key=str.encode) if isinstance(value, str) else start,)

    def _value(self, text: str) -> _Value:
        column = self.column
        try:
            if column.kind == "datetime":
                return read_moment(text)
            return int(text) if column.kind == "integer" else text
        except (ValueError, OverflowError):
            pass
        raise SyncStateError(f"{text!r} in the state is no value of {column.name}, whose type is {column.kind}")

    def _lower(self, start: datetime, value: datetime, opened_at: datetime) -> datetime:
        """Return the lower bound of a partition with a value; it is before the opening if the start is."""
        # The API's clock may be ahead of this one.
        return max(start, self._earlier(min(max(start, value), opened_at - TICK), opened_at))

    def _earlier(self, lower: datetime, upper: datetime) -> datetime:
        """Return a lower bound moved back by clock changes and ``lookback``, so that no record after it is missed."""
        if not self._format.has_offset:
            # Clocks that were set back since then show the same times once more.
            before, now = (moment.astimezone(self._zone).utcoffset() for moment in (lower, upper))
            if before is not None and now is not None:
                lower -= max(before - now, timedelta())
        try:
            return lower if self._lookback is None else self._lookback.after(lower, -1, self._zone)
        except (OverflowError, ValueError):
            return _EARLIEST

    def _end_at(self, upper: datetime) -> datetime:
        """Return an upper bound that the format can show, moved forward so that it is after every earlier local time.

        In an hour that comes twice, records of the first one show local times after those of the second one's start.
        """
        end = self._format.ceil(upper)
        local = end.astimezone(self._zone)
        if self._format.has_offset or not local.fold:
            return end
        return self._format.ceil(end + (end - in_utc(local.replace(fold=0))))

    def _windows(self, lower: datetime, opened_at: datetime) -> Iterator[tuple[str | int, ...]]:
        if lower >= opened_at:
            problem = f"{lower.isoformat()} is not before {opened_at.isoformat()}, when the load was opened"
            raise self._scope.error("start", problem, "write an earlier moment")
        if not self._has_end:
            yield (self._format.write(lower),)
        elif self._step is None:
            yield self._format.write(lower), self._format.write(self._end_at(opened_at))
        else:
            problem = ""
            try:
                end = self._end_at(opened_at)
                yield from windows(lower, end, self._step, self._format, self._zone, end_inclusive=False)
            except ValueError as error:
                problem = str(error)
            if problem:
                raise SourceDefinitionError(self._scope.place, problem)


def _start_of(value: Any, kind: str, zone: str) -> _Value:
    """Return the first lower bound.

    :param zone: time zone of a moment without an offset
    :raises ValueError: it is not of the cursor column's type
    """
    if kind == "datetime":
        return moment_of(str(value), zone_of(zone))
    if kind == "text" and isinstance(value, (str, int)):
        return str(value)
    if kind == "text":
        raise ValueError(f"{value!r} is not a text; put it in quotes")
    if isinstance(value, bool) or not _INTEGER.fullmatch(str(value)):
        raise ValueError(f"{value!r} is not a whole number; write e.g. 0")
    return int(value)


@contextmanager
def _without_prefix(name: str) -> Iterator[None]:
    """Remove the name of a field from errors whose place names it already."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{name}: ")) from None
