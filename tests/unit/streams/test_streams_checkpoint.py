"""Which slice comes next, and which state is emitted, by each checkpoint reader; and the cursors that keep positions.

Row numbers are those of the behaviours that the Python CDK is judged by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams import (
    CheckpointReader,
    Complete,
    CursorBasedCheckpointReader,
    FullRefreshCheckpointReader,
    IncrementalCheckpointReader,
    LegacyCursorBasedCheckpointReader,
    NextPage,
    NotStarted,
    ResumableFullRefreshCheckpointReader,
    StreamSlice,
    load_state,
)
from airflow_provider_rfr.streams.checkpoint import ResumableFullRefreshCursor, SubstreamResumableFullRefreshCursor
from tests.unit.messages import raises

SENTINEL = {"__ab_full_refresh_sync_complete": True}
COMPLETE = {"version": 1, "state": "complete"}


def at(parent: str, **token: Any) -> StreamSlice:
    return StreamSlice({"parent": parent}, token)


def parents(*names: str) -> list[StreamSlice]:
    return [StreamSlice({"parent": name}) for name in names]


def entry(parent: str, cursor: Mapping[str, Any]) -> dict[str, Any]:
    return {"partition": {"parent": parent}, "cursor": cursor}


def read_to_the_end(
    reader: CheckpointReader, cursor: SubstreamResumableFullRefreshCursor, following: list[Any]
) -> list[Any]:
    """What the reader returns while pages end with the given states."""
    returned: list[Any] = []
    states = iter(following)
    while (stream_slice := reader.next()) is not None:
        returned.append(stream_slice)
        partition = StreamSlice(getattr(stream_slice, "partition", None) or stream_slice["partition"])
        cursor.observe(partition, next(states))
    return returned


def test_an_incremental_stream_emits_each_observed_state_once() -> None:
    """Row 1."""
    months = [{"month": "01"}, {"month": "02"}, {"month": "03"}]
    reader: CheckpointReader = IncrementalCheckpointReader({}, months)
    for month in months:
        assert reader.next() == month
        reader.observe({"updated_at": f"{month['month']}-15"})
        assert reader.get_checkpoint() == {"updated_at": f"{month['month']}-15"}
    assert reader.next() is None
    assert reader.get_checkpoint() is None


def test_an_incremental_stream_without_slices_emits_its_incoming_state() -> None:
    """Row 2."""
    reader: CheckpointReader = IncrementalCheckpointReader({"updated_at": "2024-04-01"}, [])
    assert reader.next() is None
    assert reader.get_checkpoint() == {"updated_at": "2024-04-01"}
    reader.observe({"updated_at": "2024-05-01"})
    assert reader.get_checkpoint() == {"updated_at": "2024-05-01"}


def test_a_resumable_full_refresh_goes_from_the_stored_page_to_complete() -> None:
    """Row 3."""
    reader: CheckpointReader = ResumableFullRefreshCheckpointReader({"page": 55})
    assert reader.next() == {"page": 55}
    for page in (56, 57):
        reader.observe({"page": page})
        assert load_state(reader.get_checkpoint()) == NextPage({"page": page})
        assert reader.next() == {"page": page}
    reader.observe(SENTINEL)
    assert reader.get_checkpoint() == COMPLETE
    assert reader.next() is None
    assert reader.get_checkpoint() is None, "the final state is emitted once"


def test_a_complete_resumable_full_refresh_returns_no_slice_and_says_so_once() -> None:
    reader: CheckpointReader = ResumableFullRefreshCheckpointReader(Complete())
    assert reader.next() is None
    assert reader.get_checkpoint() == COMPLETE
    assert reader.get_checkpoint() is None


@pytest.mark.parametrize(
    "slices", [[{}], [{"partition": "1"}, {"partition": "2"}]], ids=["row 5: one slice", "row 6: two"]
)
def test_a_full_refresh_emits_nothing_before_the_end_and_complete_there(slices: list[Any]) -> None:
    reader: CheckpointReader = FullRefreshCheckpointReader(slices)
    for expected in slices:
        assert reader.next() == expected
        reader.observe({"ignored": True})
        assert reader.get_checkpoint() is None
    assert reader.next() is None
    assert reader.get_checkpoint() == COMPLETE
    assert reader.next() is None
    assert reader.get_checkpoint() is None


class ConstantCursor:
    def get_stream_state(self) -> Mapping[str, Any]:
        return {"updated_at": "2024-04-15"}

    def select_state(self, stream_slice: StreamSlice | None = None) -> Mapping[str, Any]:
        return {}


def test_a_state_of_the_cursor_that_did_not_change_is_not_emitted_again() -> None:
    """Row 7."""
    slices = [StreamSlice(cursor_slice={"start": day}) for day in ("01", "02", "03")]
    reader: CheckpointReader = CursorBasedCheckpointReader(ConstantCursor(), slices)
    assert reader.next() == {"start": "01"}
    assert reader.get_checkpoint() == {"updated_at": "2024-04-15"}
    for day in ("02", "03"):
        assert reader.next() == {"start": day}
        assert reader.get_checkpoint() is None
    assert reader.next() is None
    assert reader.get_checkpoint() is None


def test_each_parent_is_read_page_by_page_and_then_the_next_parent() -> None:
    """Row 9."""
    cursor = SubstreamResumableFullRefreshCursor()
    reader = CursorBasedCheckpointReader(cursor, parents("A", "B"), read_state_from_cursor=True)
    returned = read_to_the_end(reader, cursor, [{"page": 2}, {"page": 3}, SENTINEL] * 2)
    assert returned == [
        at("A"),
        at("A", page=2),
        at("A", page=3),
        at("B"),
        at("B", page=2),
        at("B", page=3),
    ]
    assert reader.get_checkpoint() == {"states": [entry("A", COMPLETE), entry("B", COMPLETE)]}
    assert reader.get_checkpoint() is None


def test_complete_parents_are_skipped_and_the_others_resume_at_their_page() -> None:
    """Row 10."""
    stored = {
        "states": [
            entry("1", SENTINEL),
            entry("2", SENTINEL),
            entry("3", {"page": 2}),
            entry("4", SENTINEL),
            entry("5", SENTINEL),
            entry("6", {"page": 7}),
        ]
    }
    cursor = SubstreamResumableFullRefreshCursor(stored)
    reader = CursorBasedCheckpointReader(cursor, parents(*"123456"), read_state_from_cursor=True)
    returned = read_to_the_end(reader, cursor, [{"page": 3}, SENTINEL, {"page": 8}, SENTINEL])
    assert returned == [at("3", page=2), at("3", page=3), at("6", page=7), at("6", page=8)]


def test_a_page_whose_end_nobody_observed_is_returned_again() -> None:
    """Row 11: the first unfinished parent is not skipped."""
    cursor = SubstreamResumableFullRefreshCursor({"states": [entry("1", {"page": 3}), entry("2", SENTINEL)]})
    reader = CursorBasedCheckpointReader(cursor, parents(*"12"), read_state_from_cursor=True)
    assert reader.next() == reader.next() == at("1", page=3)
    cursor.close_slice(at("1"))
    assert reader.next() is None


def test_when_every_parent_is_complete_nothing_is_read_and_the_state_is_emitted_once() -> None:
    """Row 10."""
    stored = {"states": [entry("1", SENTINEL), entry("2", SENTINEL)]}
    cursor = SubstreamResumableFullRefreshCursor(stored)
    reader = CursorBasedCheckpointReader(cursor, parents(*"12"), read_state_from_cursor=True)
    assert reader.next() is None
    assert reader.get_checkpoint() == {"states": [entry("1", COMPLETE), entry("2", COMPLETE)]}
    assert reader.get_checkpoint() is None


@pytest.mark.parametrize("by_page", [True, False])
def test_a_plain_mapping_is_no_slice_of_a_cursor_based_stream(by_page: bool) -> None:
    cursor = SubstreamResumableFullRefreshCursor()
    reader = CursorBasedCheckpointReader(cursor, [{"parent": "A"}], read_state_from_cursor=by_page)
    with raises(ValueError):
        reader.next()


def test_an_abandoned_slice_keeps_its_state_and_the_next_one_follows() -> None:
    cursor = SubstreamResumableFullRefreshCursor()
    reader = CursorBasedCheckpointReader(cursor, parents("A", "B"), read_state_from_cursor=True)
    reader.next()
    cursor.observe(at("A"), NextPage(2))
    reader.abandon()
    assert reader.next() == at("B")
    reader.abandon()
    assert reader.next() is None
    assert cursor.select_state(at("A")) == NextPage(2)


def test_slices_of_old_streams_carry_flat_keys_and_both_parts() -> None:
    """Row 13."""
    cursor = SubstreamResumableFullRefreshCursor()
    reader = LegacyCursorBasedCheckpointReader(cursor, [{"parent_id": 400}], read_state_from_cursor=True)
    returned = read_to_the_end(reader, cursor, [*({"page": page} for page in (2, 3, 4)), SENTINEL])
    assert returned == [
        {"parent_id": 400, **token, "partition": {"parent_id": 400}, "cursor_slice": token}
        for token in ({}, {"page": 2}, {"page": 3}, {"page": 4})
    ]


def test_slices_of_old_streams_without_pages_carry_both_parts_too() -> None:
    """Row 13."""
    reader = LegacyCursorBasedCheckpointReader(ConstantCursor(), [{"parent_id": 400}])
    assert reader.next() == {"parent_id": 400, "partition": {"parent_id": 400}, "cursor_slice": {}}
    assert reader.next() is None


@pytest.mark.parametrize("key", ["partition", "cursor_slice"])
@pytest.mark.parametrize("by_page", [True, False])
def test_reserved_keys_in_a_slice_of_an_old_stream_are_an_error(key: str, by_page: bool) -> None:
    """Row 13."""
    cursor = SubstreamResumableFullRefreshCursor()
    reader = LegacyCursorBasedCheckpointReader(cursor, [{key: 1}], read_state_from_cursor=by_page)
    with raises(ValueError):
        reader.next()


NOT_STARTED = {"version": 1, "state": "not_started"}


def test_closed_partitions_are_complete_in_closing_order() -> None:
    """Row 14."""
    cursor = SubstreamResumableFullRefreshCursor()
    assert cursor.get_stream_state() == {"states": []}
    assert cursor.select_state(at("1")) is None
    cursor.close_slice(at("2"))
    cursor.close_slice(at("1"))
    assert cursor.get_stream_state() == {"states": [entry("2", COMPLETE), entry("1", COMPLETE)]}
    assert cursor.select_state(at("1")) == Complete()
    assert cursor.select_state(at("3")) is None


def test_a_stored_state_comes_back_and_keeps_its_order() -> None:
    """Row 15."""
    stored = {"states": [entry("1", SENTINEL), entry("2", SENTINEL), entry("3", {})]}
    cursor = SubstreamResumableFullRefreshCursor(stored)
    at_start = cursor.get_stream_state()
    assert at_start == {"states": [entry("1", COMPLETE), entry("2", COMPLETE), entry("3", NOT_STARTED)]}
    assert SubstreamResumableFullRefreshCursor(at_start).get_stream_state() == at_start
    cursor.close_slice(at("4"))
    cursor.close_slice(at("3"))
    assert cursor.get_stream_state() == {"states": [entry(number, COMPLETE) for number in "1234"]}


def test_a_partition_keeps_its_page() -> None:
    cursor = SubstreamResumableFullRefreshCursor({"states": [entry("1", {"next_page_token": 900})]})
    assert cursor.select_state(at("1")) == NextPage(900)
    cursor.observe(at("1"), NextPage(901))
    stored = json.loads(json.dumps(dict(cursor.get_stream_state())))
    assert SubstreamResumableFullRefreshCursor(stored).select_state(at("1")) == NextPage(901)


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
    cursor = SubstreamResumableFullRefreshCursor({"states": [entry("1", stored)]})
    reader = CursorBasedCheckpointReader(cursor, [at("1")], read_state_from_cursor=True)
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
    cursor.observe(at("1"), NextPage(2))
    before = cursor.get_stream_state()
    cursor.observe(at("1"), NextPage(3))
    assert before["states"][0]["cursor"]["token"] == 2
    assert before != cursor.get_stream_state()
