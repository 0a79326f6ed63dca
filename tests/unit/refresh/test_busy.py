"""Who waits for whom."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_rfr.exceptions import RefreshBusyError
from airflow_provider_rfr.refresh.busy import must_wait
from airflow_provider_rfr.refresh.config import RefreshOptions
from airflow_provider_rfr.refresh.header import LedgerHeader, RefreshState
from tests.unit.refresh.test_opening import NOW, header

FIRST, SECOND = "shop/scheduled-1/refresh/-1/0", "shop/scheduled-2/refresh/-1/0"


def busy(seconds_ago: float, *, run_key: str | None = SECOND, on_busy: str = "wait", **changes: object) -> str | None:
    changes = {"run_key": FIRST, "committed_at": NOW - timedelta(seconds=seconds_ago), **changes}
    return must_wait("raw.orders", header(**changes), run_key, RefreshOptions(on_busy=on_busy), NOW)


def test_another_run_that_commits_is_waited_for_and_named() -> None:
    told = busy(5)
    assert told is not None
    assert FIRST in told
    assert "6 of 10 partitions done, last commit 5 s ago" in told


def test_a_run_that_fell_silent_is_not_waited_for() -> None:
    assert busy(89) is not None
    assert busy(91) is None


def test_a_publish_may_be_silent_for_longer() -> None:
    assert busy(899, partitions_done=10) is not None
    assert busy(901, partitions_done=10) is None


@pytest.mark.parametrize("key", [FIRST, "shop/scheduled-1/refresh/-1/1"])
def test_a_retry_and_a_clear_of_the_same_task_go_on_at_once(key: str) -> None:
    assert busy(1, run_key=key) is None


def test_mapped_tasks_of_one_run_are_strangers_to_each_other() -> None:
    assert busy(1, run_key="shop/scheduled-1/refresh/3/0") is not None


def test_keys_of_a_user_s_own_are_compared_whole() -> None:
    assert busy(1, run_key="tuesday") is not None
    assert must_wait("t", header(run_key="monday", committed_at=NOW), "tuesday", RefreshOptions(), NOW) is not None
    assert must_wait("t", header(run_key="monday", committed_at=NOW), "monday", RefreshOptions(), NOW) is None


def test_a_laptop_goes_on_with_what_it_began_and_not_with_airflow_s() -> None:
    assert busy(1, run_key=None) is not None
    nobody: LedgerHeader = header(run_key=None, committed_at=NOW)
    assert must_wait("t", nobody, None, RefreshOptions(), NOW) is None
    assert must_wait("t", nobody, FIRST, RefreshOptions(), NOW) is not None


def test_nobody_is_at_a_published_refresh_or_at_none() -> None:
    assert busy(1, state=RefreshState.PUBLISHED) is None
    assert must_wait("t", None, FIRST, RefreshOptions(), NOW) is None


def test_on_busy_says_fail_or_take_over() -> None:
    with pytest.raises(RefreshBusyError, match="raw.orders is being refreshed by shop/scheduled-1/refresh"):
        busy(1, on_busy="fail")
    assert busy(1, on_busy="take_over") is None
