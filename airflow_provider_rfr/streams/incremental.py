"""Incremental reads: the column that tells which records changed, and the slices that ask for changes.

The engine keeps, for each partition, the largest value of the cursor column that it has seen, as text. A stream turns
these values into slices: each asks for the records of one partition from a lower bound on. The slices are frozen when a
sync opens, so every attempt reads the same ones. A stream may also keep a state of its own form, which the engine only
stores (:class:`StatefulRead`).

A value is written in one form: a moment as ``2026-01-31T06:00:00.000000Z`` in UTC, an integer in decimal digits, a text
as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

DELETED_FIELD: Final = "_rfr_deleted"
"""The field that a stream adds, with the value true, to a record that removes its row from the table."""


@dataclass(frozen=True, slots=True)
class CursorColumn:
    """The column of the table by which it is synced incrementally.

    :ivar name: of a top-level column, after the transformations
    :ivar kind: ``datetime``, ``integer`` or ``text``; texts are compared by their UTF-8 bytes
    :ivar format: of moments that the column holds as text or number: ``iso``, ``epoch``, ``epoch_ms``, ``epoch_us``, or
        a format of strftime
    :ivar timezone: IANA name of the zone of moments without an offset
    :ivar tried_before: formats that a value may have instead, which are tried first
    """

    name: str
    kind: Literal["datetime", "integer", "text"] = "datetime"
    format: str = "iso"
    timezone: str = "UTC"
    tried_before: tuple[str, ...] = ()


class _ChangesRead(ABC):
    """The way in which a stream is read incrementally.

    :ivar column: the cursor column
    :ivar marks_deleted: whether records may have :data:`DELETED_FIELD`
    :ivar settle: how late a record may appear in the API after the moment of its cursor value
    """

    column: CursorColumn
    marks_deleted: bool = False
    settle: timedelta = timedelta(minutes=10)


class IncrementalRead(_ChangesRead):
    """An incremental read whose state is the largest value of each partition.

    :ivar moves_by_steps: whether :meth:`reached` tells how far a window was read
    """

    moves_by_steps: bool = False

    @abstractmethod
    def slices(self, values: Mapping[str, str], opened_at: datetime) -> Iterable[Mapping[str, Any]]:
        """Return the slices of a sync; of a full refresh, where there are no values.

        :param values: the largest value seen, by :meth:`partition_of`; a partition without one is read from the start
        :param opened_at: with a time zone; the upper bound of the sync, where the stream has one
        """

    @abstractmethod
    def partition_of(self, stream_slice: Mapping[str, Any]) -> str:
        """Return the key of the slice's partition: canonical JSON of its key fields without the bounds."""

    def reached(self, stream_slice: Mapping[str, Any], opened_at: datetime) -> str | None:
        """Return the value up to which everything is known once the slice was read, whatever records came.

        None where only the records' own values tell that.
        """
        return None


class StatefulRead(_ChangesRead):
    """An incremental read whose state has a form of its own: JSON, which the engine stores with the rows."""

    settle = timedelta()

    @abstractmethod
    def slices_after(self, state: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        """Return the slices of a sync that continues a state."""

    @abstractmethod
    def state_after(
        self,
        state: Mapping[str, Any] | None,
        slices: Sequence[Mapping[str, Any]],
        largest: Mapping[int, datetime],
        opened_at: datetime,
    ) -> Mapping[str, Any]:
        """Return the state once all slices were read; nothing is requested.

        :param state: that the slices were made from; None for those of a full refresh
        :param slices: as they were frozen, in their order
        :param largest: the largest value of the cursor column, by the slice's place; missing where there was none
        :param opened_at: when the sync was opened
        """

    def moves(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        """Tell whether the state after a sync that changed no row is worth a commit."""
        return dict(before) != dict(after)


ChangesRead: TypeAlias = IncrementalRead | StatefulRead
