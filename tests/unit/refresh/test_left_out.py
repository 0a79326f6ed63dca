"""Pages and records that a sync left out: the state stays for their partitions, so that the next one asks again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_rfr.lake.sync_state import SyncState
from airflow_provider_rfr.refresh.sync import SyncPlan
from airflow_provider_rfr.streams import Page
from airflow_provider_rfr.streams.incremental import CursorColumn, IncrementalRead
from tests.unit.refresh import changing_source, python_sources
from tests.unit.refresh.changing_source import ASKED
from tests.unit.refresh.test_incremental import Shop
from tests.unit.refresh.test_incremental import shop as shop
from tests.unit.refresh.test_python_incremental import Lake
from tests.unit.refresh.test_python_incremental import lake as lake

A, B = '{"shop":"a"}', '{"shop":"b"}'


def skipped(page: Page) -> Page:
    """The page as an error that is ignored leaves it."""
    return Page((), page.next, skipped="HTTP 403", status=403)


def short(page: Page) -> Page:
    """The page without its last record, of an API that counts more records than it gives."""
    return Page(page.records[:-1], page.next, received=len(page.records) - 1, promised=1000)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[Page], Page]]:
    """Leave something out of the first pages of these shops."""
    shops: dict[str, Callable[[Page], Page]] = {}
    for stream in (changing_source.Orders, python_sources.Paged):
        read = stream.read_page

        def read_page(self: Any, stream_slice: Mapping[str, Any], token: Any, read: Callable[..., Page] = read) -> Page:
            page = read(self, stream_slice, token)
            leave_out = shops.get(stream_slice["shop"]) if token is None else None
            return page if leave_out is None else leave_out(page)

        monkeypatch.setattr(stream, "read_page", read_page)
    return shops


def give(shop: Shop, at: int) -> None:
    """Add four records to each of two shops: two pages."""
    shop.config = {"shops": ["a", "b"]}
    for number in range(4):
        shop.change(at + number, at + number)
        shop.change(100 + at + number, at + number, shop="b")


@pytest.mark.parametrize("leave_out", [skipped, short])
def test_after_a_first_sync_that_left_something_out_of_a_partition_the_next_one_reads_it_from_the_start(
    shop: Shop, broken: dict[str, Any], leave_out: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broken["b"] = leave_out
    give(shop, 0)
    assert shop.sync().rows < 8
    assert shop.state == {A: "2024-01-01T00:00:03.000000Z"}
    assert "the state of 1 partition stays" in caplog.text
    broken.clear()
    caplog.clear()
    shop.sync()
    assert {bound for bound, token in ASKED if token is None} == {"2024-01-01T00:00:03.000000Z", ""}
    assert [number for number, _ in shop.rows()] == [0, 1, 2, 3, 100, 101, 102, 103]
    assert set(shop.state.values()) == {"2024-01-01T00:00:03.000000Z"}
    assert "stays" not in caplog.text


@pytest.mark.parametrize("mode", ["merge", "append"])
@pytest.mark.parametrize("leave_out", [skipped, short])
def test_a_sync_that_left_something_out_keeps_the_value_that_it_asked_from(
    shop: Shop, broken: dict[str, Any], leave_out: Any, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    give(shop, 0)
    shop.sync(mode)
    give(shop, 10)
    broken["b"] = leave_out
    for _ in range(2):
        caplog.clear()
        figures = shop.sync(mode)
        assert figures.pages_skipped or figures.records_missing
        assert shop.state == {A: "2024-01-01T00:00:13.000000Z", B: "2024-01-01T00:00:03.000000Z"}
        assert "the state of 1 partition stays" in caplog.text, "also where nothing changed since the last sync"
    broken.clear()
    shop.sync(mode)
    assert [number for number, _ in shop.rows()] == [0, 1, 2, 3, 10, 11, 12, 13, 100, 101, 102, 103, 110, 111, 112, 113]
    assert set(shop.state.values()) == {"2024-01-01T00:00:13.000000Z"}


def test_a_page_that_is_left_out_where_no_value_was_to_move_makes_no_word(
    shop: Shop, broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    shop.config = {"shops": ["a", "b"]}
    shop.change(1, 1)
    broken["b"] = skipped
    shop.sync()
    assert shop.state == {A: "2024-01-01T00:00:01.000000Z"}
    assert "stays" not in caplog.text


def test_a_stream_that_keeps_its_own_state_continues_the_slice_from_where_it_was(
    lake: Lake, broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    lake.config = {"shops": ["a", "b"]}
    for number in range(3):
        lake.give(number, number)
        lake.give(100 + number, number, shop="b")
    lake.sync("paged")
    lake.give(9, 9)
    lake.give(109, 9, shop="b")
    broken["b"] = skipped
    lake.sync("paged")
    assert lake.state == {A: {"version": 9}, B: {"version": 2}}
    assert "the state of 1 partition stays" in caplog.text
    broken.clear()
    lake.sync("paged")
    assert [number for number, _ in lake.rows()] == [0, 1, 2, 9, 100, 101, 102, 109]
    assert lake.state == {A: {"version": 9}, B: {"version": 9}}


class Steps(IncrementalRead):
    """Reads each shop day by day."""

    column = CursorColumn("updated_at")
    settle = timedelta()
    moves_by_steps = True

    def slices(self, values: Mapping[str, str], opened_at: datetime) -> Iterable[Mapping[str, Any]]:
        raise NotImplementedError

    def partition_of(self, stream_slice: Mapping[str, Any]) -> str:
        return str(stream_slice["shop"])

    def reached(self, stream_slice: Mapping[str, Any], opened_at: datetime) -> str | None:
        return f"2024-01-0{stream_slice['day'] + 1}T00:00:00.000000Z"


@pytest.mark.parametrize("unread", [0, 1, 2])
def test_a_partition_of_which_any_window_was_not_read_whole_does_not_advance(unread: int) -> None:
    old, last = "2024-01-01T00:00:00.000000Z", "2024-01-04T00:00:00.000000Z"
    plan = SyncPlan(Steps(), {}, SyncState({}, {"a": old, "gone": old}))
    slices = [f'{{"shop": "{name}", "day": {day}}}' for name in "ab" for day in (1, 2, 3)]
    opened_at = datetime(2024, 1, 9, tzinfo=timezone.utc)
    assert plan.next_state(slices, {}, opened_at, {}).values == {"a": last, "b": last, "gone": old}
    assert plan.next_state(slices, {}, opened_at, {}, {unread}).values == {"a": old, "b": last, "gone": old}
    after = plan.next_state(slices, {}, opened_at, {}, {unread + 3})
    assert (after.values, after.unlisted) == ({"a": last, "gone": old}, {"gone": 1})
