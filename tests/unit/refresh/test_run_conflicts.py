"""Who waits for whom."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import RefreshBusyError
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.resume import OtherRun
from airflow_provider_rfr.refresh.state import LedgerHeader, RefreshState
from tests.unit.messages import raises
from tests.unit.refresh.test_resume_policy import NOW, header

START, LATER = "2026-11-20T06:00:00Z", "2026-11-20T09:30:00.5Z"
FIRST, SECOND = f"shop/scheduled-1/refresh/-1/{START}-0", f"shop/scheduled-2/refresh/-1/{START}-0"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1e6

    def __call__(self) -> float:
        return self.now


def other_run(run_key: str | None = SECOND, clock: Clock | None = None, **options: Any) -> OtherRun:
    return OtherRun("raw.orders", run_key, RefreshOptions(**options), clock or Clock())


def works() -> bool:
    return False


def busy(*, run_key: str | None = SECOND, on_busy: str = "wait", **changes: Any) -> str | None:
    found = header(**{"run_key": FIRST, "committed_at": NOW, **changes})
    return other_run(run_key, on_busy=on_busy).must_wait(found, lambda: found.ended_at is not None, NOW)


def test_another_run_that_commits_is_waited_for_and_named() -> None:
    told = busy()
    assert told is not None
    assert FIRST in told
    assert "6 of 10 partitions done" in told


@pytest.mark.parametrize("hours_apart", [-2, 0, 0.08])
def test_silence_counts_from_when_it_was_first_seen_whatever_the_holders_clock_says(hours_apart: float) -> None:
    clock = Clock()
    waiting = other_run(clock=clock)
    found = header(run_key=FIRST, committed_at=NOW - timedelta(hours=hours_apart))
    assert waiting.must_wait(found, works, NOW) is not None
    clock.now += 89
    assert waiting.must_wait(found, works, NOW) is not None
    clock.now += 2
    assert waiting.must_wait(found, works, NOW) is None


def test_each_new_commit_of_the_holder_begins_the_silence_anew() -> None:
    clock = Clock()
    waiting = other_run(clock=clock)
    for number in range(5):
        found = header(run_key=FIRST, committed_at=NOW + timedelta(hours=2, seconds=number))
        assert waiting.must_wait(found, works, NOW) is not None
        clock.now += 80


def test_a_commit_of_yesterday_is_nobodys_sign_of_life() -> None:
    assert busy(committed_at=NOW - timedelta(hours=20)) is None


@pytest.mark.parametrize("done", [6, 10])
def test_an_attempt_that_said_that_it_ended_is_not_waited_for(done: int) -> None:
    assert busy(ended_at=NOW, partitions_done=done) is None
    assert busy(ended_at=NOW, partitions_done=done, on_busy="fail") is None


@pytest.mark.parametrize(
    "key", [FIRST, f"shop/scheduled-1/refresh/-1/{START}-1", f"shop/scheduled-1/refresh/-1/{LATER}-0"]
)
def test_a_retry_and_a_clear_of_the_same_task_go_on_at_once(key: str) -> None:
    assert busy(run_key=key) is None


def test_mapped_tasks_of_one_run_are_strangers_to_each_other() -> None:
    assert busy(run_key=f"shop/scheduled-1/refresh/3/{START}-0") is not None


def test_keys_of_a_user_s_own_are_compared_whole() -> None:
    assert busy(run_key="tuesday") is not None
    assert other_run("tuesday").must_wait(header(run_key="monday", committed_at=NOW), works, NOW) is not None
    assert other_run("monday").must_wait(header(run_key="monday", committed_at=NOW), works, NOW) is None


def test_a_laptop_goes_on_with_what_it_began_and_not_with_airflow_s() -> None:
    assert busy(run_key=None) is not None
    nobody: LedgerHeader = header(run_key=None, committed_at=NOW)
    assert other_run(None).must_wait(nobody, works, NOW) is None
    assert other_run(FIRST).must_wait(nobody, works, NOW) is not None


def test_nobody_is_at_a_published_refresh_or_at_none() -> None:
    assert busy(state=RefreshState.PUBLISHED) is None
    assert other_run(FIRST).must_wait(None, works, NOW) is None


def test_on_busy_says_fail_or_take_over() -> None:
    with raises(RefreshBusyError):
        busy(on_busy="fail")
    assert busy(on_busy="take_over") is None
