"""The plan of an incremental sync: the state that it continues, and the one that its commit leaves in the table."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_rfr.exceptions import PublishRefusedError, SyncStateError
from airflow_provider_rfr.lake.sync_state import SyncState
from airflow_provider_rfr.numbers import loads
from airflow_provider_rfr.refresh.cursor_values import (
    check_past,
    comparable_text,
    greatest,
    least,
    moment_in,
    text_of,
    value_of,
)
from airflow_provider_rfr.streams.core import key_paths
from airflow_provider_rfr.streams.incremental import (
    ChangesRead,
    CursorColumn,
    CursorWindow,
    IncrementalRead,
    StatefulRead,
)
from airflow_provider_rfr.streams.moments import write_moment
from airflow_provider_rfr.streams.paged import PagedStream
from airflow_provider_rfr.text import quantity

if TYPE_CHECKING:
    from airflow_provider_rfr.refresh.publish_task import PublishResult

_log = logging.getLogger(__name__)

_FORGOTTEN_AFTER: Final = 10
"""Number of consecutive syncs without a partition, after which its value is dropped from the state."""


def rules_of(stream: PagedStream, read: ChangesRead, upstream: str | None = None) -> dict[str, Any]:
    """Return the rules under which a state can be continued.

    :param upstream: name of the API, if the connection led to another one before
    """
    column = read.column
    cursor = {"field": column.name, "type": column.kind, "format": column.format, "timezone": column.timezone}
    rules = {"cursor": cursor, "primary_key": [list(path) for path in key_paths(stream.primary_key)]}
    return rules if upstream is None else {**rules, "upstream": upstream}


def check_values(state: SyncState, now: datetime) -> None:
    """Check the values of a state that was written by hand.

    :raises SyncStateError: one is not of its cursor's type, or is a time in the future
    """
    cursor = state.rules.get("cursor")
    kind = cursor.get("type") if isinstance(cursor, Mapping) else None
    if kind not in ("datetime", "integer", "text"):
        raise SyncStateError("rules.cursor.type of the state must be datetime, integer or text; write what it showed")
    for text in state.values.values():
        check_past(value_of(text, CursorColumn("", kind)), CursorColumn("", kind), now)


def _warn_of_held(held: Collection[Any]) -> None:
    """Warn of partitions that keep their state, because pages or records of them were left out."""
    if held:
        _log.warning(
            "the state of %s stays, because pages or records were left out, so the next sync asks for the same changes"
            " again; if that comes each time, each sync reads more than the one before: correct the source or its error"
            " rules",
            quantity(len(held), "partition"),
        )


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The plan of one generation of a stream that is read incrementally.

    :ivar rules: as of :func:`rules_of`
    :ivar state: of the table when the generation was opened; None for a full refresh, which replaces it
    :ivar window: the range of cursor values that is read, without a change of the state; None for no window
    """

    read: ChangesRead
    rules: Mapping[str, Any]
    state: SyncState | None
    window: CursorWindow | None = None

    @property
    def is_full(self) -> bool:
        """Tell whether all rows are read, and replace the table's."""
        return self.state is None and self.window is None

    def check(self, table: str) -> None:
        """Check that the table's state can be continued.

        :raises SyncStateError: the cursor or the key has changed since, or the state has a time in the future
        """
        if self.state is None:
            return
        if self.state.rules != self.rules:
            names = [name for name, value in self.rules.items() if self.state.rules.get(name) != value]
            raise SyncStateError(
                f"{table} was synced with another {' and '.join(names) or 'rule'}: {json.dumps(self.state.rules)}, now"
                f" {json.dumps(self.rules)}; run once with full_refresh: true"
            )
        if self.window is not None:
            return
        column, now = self.read.column, datetime.now(timezone.utc)
        for text in self.state.values.values():
            check_past(value_of(text, column), column, now)
        for text in self.read.texts_in(self.state.of_source or {}):
            if (value := comparable_text(text, column)) is not None:
                check_past(value, column, now)

    def slices(self, state: SyncState, opened_at: datetime) -> Iterable[Mapping[str, Any]]:
        """Return the slices that ask for the changes since the state."""
        if isinstance(self.read, StatefulRead):
            return self.read.slices_after(state.of_source or {})
        return self.read.slices(state.values, opened_at)

    def next_state(
        self,
        slices: Sequence[str],
        seen: Mapping[int, Any],
        opened_at: datetime,
        tokens: Mapping[int, Any],
        unread: Collection[int] = (),
    ) -> SyncState:
        """Return the state after the generation is published.

        A partition's value is a watermark: the greatest cursor value that was ever seen in it, which never goes back. A
        time is at most the opening; after a full refresh, the opening minus the delay with which records may appear.

        :param slices: JSON of each partition's slice
        :param seen: the greatest comparable value, by the partition's ordinal; missing where there was none
        :param opened_at: when the generation was opened
        :param tokens: the token of each partition's last page, by the partition's ordinal
        :param unread: ordinals of slices of which pages or records were left out: the values of their partitions stay
        """
        parts = [loads(text.encode()) for text in slices]
        if isinstance(self.read, StatefulRead):
            read = self.read.with_last_tokens(tokens)
            largest = {}
            if read.column.kind == "datetime":
                # As in _values_after(), a time in the future must not hide later changes.
                largest = {ordinal: min(moment_in(value), opened_at) for ordinal, value in seen.items()}
            _warn_of_held(unread)
            of_source = None if self.state is None else self.state.of_source
            after = read.state_after(of_source, parts, largest, opened_at, unread)
            return SyncState(self.rules, {}, of_source=after)
        keys = [self.read.partition_of(part) for part in parts]
        before = {} if self.state is None else self.state.values
        values = self._values_after(self.read, parts, keys, seen, opened_at)
        held = {key for key in (keys[ordinal] for ordinal in unread) if values.get(key) != before.get(key)}
        _warn_of_held(held)
        values = {key: value for key, value in values.items() if key not in held}
        values |= {key: before[key] for key in held if key in before}
        unlisted = {} if self.state is None else dict(self.state.unlisted)
        counts = {key: unlisted.get(key, 0) + 1 for key in values.keys() - set(keys)}
        forgotten = {key for key, count in counts.items() if count >= _FORGOTTEN_AFTER}
        kept = {key: value for key, value in values.items() if key not in forgotten}
        return SyncState(self.rules, kept, {key: count for key, count in counts.items() if key not in forgotten})

    def _values_after(
        self,
        read: IncrementalRead,
        slices: Sequence[Mapping[str, Any]],
        keys: Sequence[str],
        seen: Mapping[int, Any],
        opened_at: datetime,
    ) -> dict[str, str]:
        """Return the new watermarks after all slices were read, by partition key.

        :param keys: the partition key of each slice
        """
        column, values = read.column, dict(self.state.values) if self.state is not None else {}
        latest = write_moment(opened_at - read.settle if self.is_full else opened_at)
        for ordinal, (stream_slice, key) in enumerate(zip(slices, keys, strict=True)):
            found = text_of(seen[ordinal], column) if ordinal in seen else None
            if found is not None and column.kind == "datetime":
                # A time in the future, by a clock that is ahead or a mistake, must not hide later changes.
                found = min(found, latest)
            candidates = values.get(key), found, read.reached(stream_slice, opened_at)
            if (value := greatest(*candidates, column=column)) is not None:
                values[key] = value
        return values

    def span_of(self, slices: Sequence[str]) -> dict[str, str | None]:
        """Return the fields of the ledger's header that say which changes the slices ask for; none if they ask for all.

        :param slices: JSON of each partition's slice
        """
        if self.is_full:
            return {}
        bounds = [self.read.bounds_of(loads(text.encode())) for text in slices]
        column = self.read.column
        return {
            "window_from": least(*(lower for lower, _ in bounds), column=column),
            "window_to": greatest(*(upper for _, upper in bounds), column=column),
        }

    def moves_state(self, after: SyncState) -> bool:
        """Tell whether the new state is worth a commit although no row changes.

        A state of cursor values is, only if the stream reads in steps: then a step without records moves it, too.
        """
        if isinstance(self.read, StatefulRead):
            before = None if self.state is None else self.state.of_source
            return self.read.moves(before or {}, after.of_source or {})
        return self.read.moves_by_steps and (self.state is None or after.values != self.state.values)


@dataclass(frozen=True, slots=True)
class SyncChanges:
    """The findings in the records of a generation that an incremental sync needs.

    :ivar seen: the greatest comparable cursor value, by the partition's ordinal
    :ivar without_cursor: number of records without a usable cursor value, except deletion records
    :ivar without_key: a record with a null in its key, as errors name it, and the field that is null; None if there is
        none
    :ivar outside: number of records outside of the window
    """

    seen: Mapping[int, Any]
    without_cursor: int
    without_key: tuple[str, str] | None
    outside: int

    @classmethod
    def of(cls, results: Iterable[PublishResult]) -> SyncChanges:
        """Combine the findings of all tasks."""
        seen: dict[int, Any] = {}
        without_cursor, without_key, outside = 0, None, 0
        for result in results:
            changes = result.changes
            for ordinal, value in changes.seen.items():
                seen[ordinal] = max(seen.get(ordinal, value), value)
            without_cursor += changes.without_cursor
            without_key = without_key or changes.without_key
            outside += changes.outside
        return cls(seen, without_cursor, without_key, outside)

    def check(self, table: str, staged: int) -> None:
        """Check that the records can be merged.

        :raises PublishRefusedError: a record has no key, or none has a cursor value
        """
        self._check_keys(table)
        self._check_cursors(table, staged)

    def seen_in_full(self, table: str, staged: int, sync: Literal["full", "incremental"]) -> Mapping[int, Any]:
        """Check the cursor values of a read of all records; return the greatest ones, by the partition's ordinal.

        :param sync: the kind of sync that was asked for
        :raises PublishRefusedError: an incremental sync was asked for, and a record has no key, or none a cursor value
        """
        if sync == "incremental":
            # The rows are merged into by the next sync.
            self._check_keys(table)
        self._check_cursors(table, staged, refuses=sync == "incremental")
        return self.seen

    def _check_keys(self, table: str) -> None:
        if self.without_key is not None:
            place, name = self.without_key
            raise PublishRefusedError(
                f"{table}: {place}: {name} is null, and the key says which row a record replaces; leave such records"
                f" out, in YAML by records: {{filter: record.{name} is not none}}, in a manifest by its record_filter,"
                " in Python before they are returned; nothing was published"
            )

    def _check_cursors(self, table: str, staged: int, *, refuses: bool = True) -> None:
        if refuses and self.without_cursor and not self.seen:
            raise PublishRefusedError(
                f"{table}: none of {staged} records has a usable cursor value, so the next sync would read the same"
                " again; correct incremental.cursor_field, its type or its format; nothing was published"
            )
        if self.without_cursor:
            _log.warning("%s: %s of %s records have no usable cursor value", table, self.without_cursor, staged)
