"""Incremental reads: the column that tells which records changed, and the slices that ask for changes.

The engine keeps, for each partition, the largest value of the cursor column that it has seen, as text. A stream turns
these values into slices: each asks for the records of one partition from a lower bound on. The slices are frozen when a
sync opens, so every attempt reads the same ones. A stream may also keep a state of its own form, which the engine only
stores (:class:`StatefulRead`).

A value is written in one form: a moment as ``2026-01-31T06:00:00.000000Z`` in UTC, an integer in decimal digits, a text
as it is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.moments import moment_of, write_moment, zone_of

if TYPE_CHECKING:
    from typing_extensions import Self

DELETED_FIELD: Final = "_rfr_deleted"
"""The field that a stream adds, with the value true, to a record that removes its row from the table."""
Write: TypeAlias = Literal["merge", "append"]
"""A way to write an incremental sync."""


@dataclass(frozen=True, slots=True)
class CursorColumn:
    """The column of the table by which it is synced incrementally.

    :ivar name: name of a top-level column, after the transformations
    :ivar kind: ``datetime``, ``integer`` or ``text``; texts are compared by their UTF-8 bytes
    :ivar format: format of moments that the column holds as text or number: ``iso``, ``epoch``, ``epoch_ms``,
        ``epoch_us``, or a format of strftime
    :ivar timezone: IANA name of the zone of moments without an offset
    :ivar tried_before: formats that a value may have instead, which are tried first
    """

    name: str
    kind: Literal["datetime", "integer", "text"] = "datetime"
    format: str = "iso"
    timezone: str = "UTC"
    tried_before: tuple[str, ...] = ()


def writes_of(has_key: bool, why: str) -> tuple[tuple[Write, ...], str]:
    """Return the ways to write an incremental sync of a stream with a cursor, and the reason for them.

    :param why: the reason as far as it is known, e.g. ``by updated_at``
    """
    return (("merge", "append"), why) if has_key else (("append",), f"{why}; merge needs a primary key")


def another_cursor(names: Collection[str], column: CursorColumn) -> ConfigurationError:
    """Return the error for a state in a file that has values of other cursors than the stream's.

    Values of two fields differ, so a sync of one from a value of the other could leave out records.
    """
    cursors = f"the cursor {', '.join(sorted(names))}" if names else "no cursor"
    problem = f"the state has {cursors}, and the stream's is {column.name}"
    remedy = f"if it is there by another name, write {column.name} into the file; else run once with full_refresh"
    return ConfigurationError("file", problem, remedy)


_INTEGER: Final = re.compile(r"-?[0-9]+")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str) -> Any:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number; write e.g. 0/1000")
    if not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text!r} is beyond 64 bits; write a smaller number")
    return int(text)


@dataclass(frozen=True, slots=True)
class CursorWindow:
    """A fixed range of cursor values, as ``start/end``: moments of ISO 8601, or whole numbers.

    :ivar start: the least value, in the form of a state
    :ivar end: the exclusive end, in the same form
    """

    start: str
    end: str

    @classmethod
    def parse(cls, text: str, column: CursorColumn | None = None) -> CursorWindow:
        """Parse ``start/end``.

        :param column: gives the type of the values, and the time zone of moments without an offset; None where it is
            not known yet: then both values may be whole numbers, or both moments, by default in UTC
        :raises ValueError: the text is no window, or the start is not before the end; the message has a remedy
        """
        parts = [part.strip() for part in text.split("/")]
        if len(parts) != 2 or not all(parts):
            raise ValueError(f"{text!r} is not start/end; write e.g. 2026-01-01/2026-01-11")
        kind = column.kind if column is not None else "integer" if _is_number(parts[0]) else "datetime"
        if kind == "text":
            raise ValueError("the cursor is a text; a window needs a cursor of type datetime or integer")
        zone = zone_of("UTC" if column is None else column.timezone)
        first, last = (_number(part) if kind == "integer" else moment_of(part, zone) for part in parts)
        if first == last:
            schedule = "a data interval is empty under a trigger timetable: see docs/backfill.md"
            raise ValueError(f"{text!r} is empty; write an end after the start ({schedule})")
        if first > last:
            raise ValueError(f"{text!r} ends before its start; write the earlier value first")
        return cls(*(write_moment(value) if isinstance(value, datetime) else str(value) for value in (first, last)))

    def __str__(self) -> str:
        return f"{self.start}/{self.end}"


class _ChangesRead(ABC):
    """The way in which a stream is read incrementally.

    :ivar column: the cursor column
    :ivar marks_deleted: whether records may have :data:`DELETED_FIELD`
    :ivar settle: how late a record may appear in the API after the moment of its cursor value
    """

    column: CursorColumn
    marks_deleted: bool = False
    settle: timedelta = timedelta(minutes=10)

    def window_slices(self, window: CursorWindow) -> Iterable[Mapping[str, Any]]:
        """Return the slices that read a fixed window of the cursor; they may ask for more than the window.

        :raises ConfigurationError: the stream can't read a fixed window
        """
        remedy = "use full_refresh, or set a state from where the next sync starts (airflow rfr refresh state set)"
        raise ConfigurationError("window", "the stream itself decides from where it reads", remedy)

    def bounds_of(self, stream_slice: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """Return the lower and the upper bound that the slice asks for, as a state writes values.

        None where the slice has no such bound.
        """
        return None, None

    def texts_in(self, state: Mapping[str, Any]) -> Iterable[str]:
        """Return the values of the cursor in a state of the source's own form.

        By default there are none, because the stream alone knows what its state means.
        """
        return ()


class IncrementalRead(_ChangesRead):
    """An incremental read whose state is the largest value of each partition.

    :ivar moves_by_steps: whether :meth:`reached` tells how far a window was read
    """

    moves_by_steps: bool = False

    @abstractmethod
    def slices(self, values: Mapping[str, str], opened_at: datetime) -> Iterable[Mapping[str, Any]]:
        """Return the slices of a sync, or of a full refresh where there are no values.

        :param values: the largest value seen, by :meth:`partition_of`; a partition without one is read from the start
        :param opened_at: with a time zone; the upper bound of the sync, where the stream has one
        """

    @abstractmethod
    def partition_of(self, stream_slice: Mapping[str, Any]) -> str:
        """Return the key of the slice's partition: canonical JSON of its key fields without the bounds."""

    def reached(self, stream_slice: Mapping[str, Any], opened_at: datetime) -> str | None:
        """Return the cursor value up to which a partition is complete once the slice was read, even if it is empty.

        None where only the values of the records tell that.
        """
        return None


class StatefulRead(_ChangesRead):
    """An incremental read whose state has a form of its own: JSON, which the engine stores with the rows."""

    settle = timedelta()

    @abstractmethod
    def slices_after(self, state: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        """Return the slices of a sync that continues a state."""

    def with_last_tokens(self, tokens: Mapping[int, Any]) -> Self:
        """Return this read with the token of each slice's last page, by the slice's place."""
        return self

    @abstractmethod
    def state_after(
        self,
        state: Mapping[str, Any] | None,
        slices: Sequence[Mapping[str, Any]],
        largest: Mapping[int, datetime],
        opened_at: datetime,
        unread: Collection[int] = (),
    ) -> Mapping[str, Any]:
        """Return the state once all slices were read; nothing is requested.

        :param state: the state that the slices were made from; None for those of a full refresh
        :param slices: the slices as they were frozen, in their order
        :param largest: the largest value of the cursor column, by the slice's place; missing where there was none
        :param opened_at: when the sync was opened
        :param unread: places of slices of which pages or records were left out: their state must not move on
        """

    def of_connection(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the state of a stream of an Airbyte connection to the form of this read.

        :raises ConfigurationError: it does not fit the stream
        """
        return state

    def moves(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Tell whether the state after a sync that changed no row is worth a commit."""
        return dict(before) != dict(after)


ChangesRead: TypeAlias = IncrementalRead | StatefulRead
