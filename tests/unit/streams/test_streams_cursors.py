"""Cursors of a resumable full refresh."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams import Complete, CursorBasedCheckpointReader, NextPage, NotStarted, StreamSlice
from airflow_provider_rfr.streams.checkpoint import ResumableFullRefreshCursor, SubstreamResumableFullRefreshCursor
from tests.unit.messages import raises

SENTINEL = {"__ab_full_refresh_sync_complete": True}
COMPLETE = {"version": 1, "state": "complete"}
NOT_STARTED = {"version": 1, "state": "not_started"}


def parent(number: int) -> StreamSlice:
    return StreamSlice({"parent": number})


def entry(number: int, cursor: Any) -> dict[str, Any]:
    return {"partition": {"parent": number}, "cursor": cursor}


def test_closed_partitions_are_complete_in_closing_order() -> None:
    """Row 14."""
    cursor = SubstreamResumableFullRefreshCursor()
    assert cursor.get_stream_state() == {"states": []}
    assert cursor.select_state(parent(1)) is None
    cursor.close_slice(parent(2))
    cursor.close_slice(parent(1))
    assert cursor.get_stream_state() == {"states": [entry(2, COMPLETE), entry(1, COMPLETE)]}
    assert cursor.select_state(parent(1)) == Complete()
    assert cursor.select_state(parent(3)) is None


def test_a_stored_state_comes_back_and_keeps_its_order() -> None:
    """Row 15."""
    stored = {"states": [entry(1, SENTINEL), entry(2, SENTINEL), entry(3, {})]}
    cursor = SubstreamResumableFullRefreshCursor(stored)
    at_start = cursor.get_stream_state()
    assert at_start == {"states": [entry(1, COMPLETE), entry(2, COMPLETE), entry(3, NOT_STARTED)]}
    assert SubstreamResumableFullRefreshCursor(at_start).get_stream_state() == at_start
    cursor.close_slice(parent(4))
    cursor.close_slice(parent(3))
    assert cursor.get_stream_state() == {"states": [entry(number, COMPLETE) for number in (1, 2, 3, 4)]}


def test_a_partition_keeps_its_page() -> None:
    cursor = SubstreamResumableFullRefreshCursor({"states": [entry(1, {"next_page_token": 900})]})
    assert cursor.select_state(parent(1)) == NextPage(900)
    cursor.observe(parent(1), NextPage(901))
    stored = json.loads(json.dumps(dict(cursor.get_stream_state())))
    assert SubstreamResumableFullRefreshCursor(stored).select_state(parent(1)) == NextPage(901)


def test_a_partition_is_recognised_by_its_declared_key() -> None:
    stored = {"states": [{"partition": {"id": 1, "updated_at": "old"}, "cursor": {"page": 3}}]}
    cursor = SubstreamResumableFullRefreshCursor(stored, partition_key=lambda partition: str(partition["id"]))
    assert cursor.select_state(StreamSlice({"id": 1, "updated_at": "new"})) == NextPage({"page": 3})


@pytest.mark.parametrize(
    "stored", [{"page": 3}, SENTINEL, {"states": {}}, {"states": [{"cursor": {}}]}, {"states": [7]}]
)
def test_a_state_of_another_shape_is_refused(stored: Any) -> None:
    with raises(ConfigurationError):
        SubstreamResumableFullRefreshCursor(stored)


@pytest.mark.parametrize("stored", [None, {}, NOT_STARTED, {"__ab_no_cursor_state_message": True}])
def test_a_state_that_says_nothing_is_no_state(stored: Any) -> None:
    assert SubstreamResumableFullRefreshCursor(stored).get_stream_state() == {"states": []}


def test_a_stream_with_partitions_has_no_state_without_a_slice() -> None:
    with raises(ValueError):
        SubstreamResumableFullRefreshCursor().select_state(None)


@pytest.mark.parametrize("stored", [{}, {"updated_at": "2024-05-01"}, {"updated_at": "2024-05-32"}])
def test_an_undivided_stream_has_one_slice_that_carries_the_state_as_it_came(stored: Any) -> None:
    """Row 17."""
    (only,) = ResumableFullRefreshCursor(stored).stream_slices()
    assert (only.partition, only.cursor_slice) == ({}, stored)


def test_the_position_inside_a_partition_is_as_opaque() -> None:
    """Row 17, the child partition's cursor."""
    stored = {"updated_at": "2024-05-32"}
    cursor = SubstreamResumableFullRefreshCursor({"states": [entry(1, stored)]})
    reader = CursorBasedCheckpointReader(cursor, [parent(1)], read_state_from_cursor=True)
    following = reader.next()
    assert isinstance(following, StreamSlice)
    assert following.cursor_slice == stored


def test_an_undivided_stream_moves_and_closes() -> None:
    cursor = ResumableFullRefreshCursor()
    assert cursor.select_state() == NotStarted()
    cursor.observe(StreamSlice(), {"page": 2})
    assert cursor.get_stream_state() == {"version": 1, "state": "next_page", "token": {"page": 2}}
    cursor.close_slice(StreamSlice())
    assert cursor.get_stream_state() == COMPLETE


def test_a_state_once_taken_does_not_change() -> None:
    cursor = SubstreamResumableFullRefreshCursor()
    cursor.observe(parent(1), NextPage(2))
    before = cursor.get_stream_state()
    cursor.observe(parent(1), NextPage(3))
    after = cursor.get_stream_state()
    cursor.observe(parent(1), NextPage(2))
    again = cursor.get_stream_state()
    assert before["states"][0]["cursor"]["token"] == 2
    assert before != after
    assert before == again
    assert before == dict(before) == copy.deepcopy(before)
    assert list(before) == ["states"]
    with pytest.raises(KeyError):
        before["state"]
