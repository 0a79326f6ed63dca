"""Cursors of ``airbyte-cdk``, with their private names: bounds frozen with a slice, and the state after a sync.

In the CDK, one cursor lists the slices from a state, observes each record, and holds the new state in the end, all in
one process. Here other processes read the slices. So the cursor that computes the new state is built again from the
same state, and observes only the largest value of each slice.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

_NAMES: Final = {
    "ConcurrentCursor": ("_lowest_cursor_value_to_sync", "_end_provider", "_connector_state_converter"),
    "ConcurrentPerPartitionCursor": (
        *("_connector_state_converter", "_partition_router", "_timer", "_lookback_window", "_number_of_partitions"),
        *("_create_cursor", "_global_cursor", "_use_global_cursor", "_cursor_per_partition", "_get_cursor"),
        *("_semaphore_per_partition", "_partition_key_to_index", "_processing_partitions_indexes"),
        *("_partitions_done_generating_stream_slices", "_to_partition_key"),
    ),
    "CustomFormatConcurrentStreamStateConverter": ("_input_datetime_formats", "_parser"),
    "Timer": ("_start",),
    "ClientSideIncrementalRecordFilterDecorator": ("_cursor",),
    "CursorStopCondition": ("_cursor",),
    "StopConditionPaginationStrategyDecorator": ("_stop_condition",),
}


def check_names() -> None:
    """Check that the CDK has the private names of this module.

    :raises AttributeError: it has not
    """
    from airbyte_cdk.sources.declarative.extractors.record_filter import ClientSideIncrementalRecordFilterDecorator
    from airbyte_cdk.sources.declarative.incremental.concurrent_partition_cursor import (
        ConcurrentPerPartitionCursor,
        Timer,
    )
    from airbyte_cdk.sources.declarative.requesters.paginators.strategies.stop_condition import (
        CursorStopCondition,
        StopConditionPaginationStrategyDecorator,
    )
    from airbyte_cdk.sources.streams.concurrent.cursor import ConcurrentCursor
    from airbyte_cdk.sources.streams.concurrent.state_converters.datetime_stream_state_converter import (
        CustomFormatConcurrentStreamStateConverter,
    )

    kinds = (
        *(ConcurrentCursor, ConcurrentPerPartitionCursor, CustomFormatConcurrentStreamStateConverter, Timer),
        *(ClientSideIncrementalRecordFilterDecorator, CursorStopCondition, StopConditionPaginationStrategyDecorator),
    )
    for kind in kinds:
        known = {*dir(kind), *kind.__init__.__code__.co_names}
        for name in _NAMES[kind.__name__]:
            if name not in known:
                raise AttributeError(f"{kind.__name__} has no {name}")


def is_per_partition(cursor: Any) -> bool:
    """Tell whether the cursor has a state for each partition."""
    from airbyte_cdk.sources.declarative.incremental.concurrent_partition_cursor import ConcurrentPerPartitionCursor

    return isinstance(cursor, ConcurrentPerPartitionCursor)


class FrozenFilter:
    """A proxy of a stream's cursor that selects records by the bounds that were frozen with a slice.

    It replaces the cursor where a manifest drops records that were read before (``is_client_side_incremental``), or
    stops its paging at them (``is_data_feed``). The cursor's own upper bound would move with the time.

    :ivar is_used: whether the manifest does one of the two
    """

    def __init__(self, cursor: Any, retriever: Any) -> None:
        from airbyte_cdk.sources.declarative.extractors.record_filter import ClientSideIncrementalRecordFilterDecorator
        from airbyte_cdk.sources.declarative.requesters.paginators.strategies.stop_condition import (
            StopConditionPaginationStrategyDecorator,
        )

        self._own = cursor
        self._thread = threading.local()
        selector, paginator = getattr(retriever, "record_selector", None), getattr(retriever, "_paginator", None)
        filters = (getattr(selector, "record_filter", None), getattr(retriever, "post_pagination_filter", None))
        places: list[Any] = [item for item in filters if isinstance(item, ClientSideIncrementalRecordFilterDecorator)]
        strategy = getattr(paginator, "pagination_strategy", None)
        if isinstance(strategy, StopConditionPaginationStrategyDecorator):
            places.append(strategy._stop_condition)
        for place in places:
            place._cursor = self
        self.is_used = bool(places)

    def bounds_of(self, stream_slice: Any) -> tuple[datetime, datetime]:
        """Return the lower and the upper bound of the records of a slice that was just listed."""
        from airbyte_cdk.sources.types import Record

        cursor = self._own
        if is_per_partition(cursor):
            cursor = cursor._get_cursor(Record({}, "", stream_slice))
        return cursor._lowest_cursor_value_to_sync(), cursor._end_provider()

    @contextmanager
    def within(self, bounds: tuple[datetime, datetime] | None) -> Iterator[None]:
        """Select records by these bounds on this thread in the block; by the stream's own cursor if there are none."""
        self._thread.bounds = bounds
        try:
            yield
        finally:
            self._thread.bounds = None

    def should_be_synced(self, record: Any) -> bool:
        bounds = getattr(self._thread, "bounds", None)
        if bounds is None:
            return bool(self._own.should_be_synced(record))
        try:
            value = self._own._connector_state_converter.parse_value(self._own.cursor_field.extract_value(record))
        except ValueError:
            # As in the CDK, a record without a value is synced.
            return True
        return bool(bounds[0] <= value <= bounds[1])


def state_after(
    stream: Any,
    slices: Sequence[Any],
    largest: Mapping[int, datetime],
    parent_state: Any,
    seconds: float,
    unread: Collection[int] = (),
) -> dict[str, Any]:
    """Return the state of a stream's cursor after the slices were read.

    :param stream: a stream that was just built from the state that the slices were listed from
    :param largest: the largest cursor value, by the slice's place
    :param parent_state: state of the parents after the listing; None if none of them is read incrementally
    :param seconds: time since the slices were listed
    :param unread: places of slices that were not read whole; they stay open, as failed ones do in the CDK
    """
    from airbyte_cdk.sources.streams.concurrent.cursor import FinalStateCursor
    from airbyte_cdk.sources.types import Record

    cursor, factory = stream.cursor, stream._stream_partition_generator._partition_factory
    if is_per_partition(cursor):
        _note_listed(cursor, slices, parent_state, seconds)
    for ordinal, stream_slice in enumerate(slices):
        if ordinal in unread:
            continue
        if ordinal in largest and not isinstance(cursor, FinalStateCursor):
            value = _text_of(largest[ordinal], cursor._connector_state_converter)
            cursor.observe(Record({cursor.cursor_field.cursor_field_key: value}, stream.name, stream_slice))
        cursor.close_partition(factory.create(stream_slice))
    cursor.ensure_at_least_one_state_emitted()
    state: dict[str, Any] = json.loads(json.dumps(cursor.state))
    return state


def _note_listed(cursor: Any, slices: Sequence[Any], parent_state: Any, seconds: float) -> None:
    """Register the partitions in the cursor as its ``stream_slices`` does, but without reading their parents."""
    if parent_state is not None:
        cursor._partition_router = SimpleNamespace(get_stream_state=lambda: parent_state)
    cursor._timer._start = time.perf_counter_ns() - int(seconds * 1e9)
    for stream_slice in slices:
        key = cursor._to_partition_key(stream_slice.partition)
        if key not in cursor._semaphore_per_partition:
            number = len(cursor._semaphore_per_partition)
            # Beyond the limit there is one state for all partitions, so no further cursors are made.
            cursor._use_global_cursor = cursor._use_global_cursor or cursor.limit_reached()
            if key not in cursor._cursor_per_partition:
                cursor._number_of_partitions += 1
                if not cursor._use_global_cursor:
                    lookback = cursor._lookback_window if cursor._global_cursor else 0
                    cursor._cursor_per_partition[key] = cursor._create_cursor(cursor._global_cursor, lookback)
            cursor._semaphore_per_partition[key] = threading.Semaphore(0)
            cursor._partition_key_to_index[key] = number
            cursor._processing_partitions_indexes.append(number)
            cursor._partitions_done_generating_stream_slices.add(key)
        cursor._semaphore_per_partition[key].release()


def _text_of(value: datetime, converter: Any) -> Any:
    """Return a text that the cursor parses to this value; in another one of its formats it may be another moment."""
    forms = converter._input_datetime_formats
    texts = [converter._parser.format(value, form) for form in forms]
    return next((text for text in texts if converter.parse_value(text) == value), texts[0])
