"""What a task that goes on makes of the end that the triggerer saw."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.hooks.spark import DriverReport, DriverState
from airflow_provider_rfr.operators._attempt import EndedDriver, RefreshAttempt, deadline_of
from airflow_provider_rfr.triggers.refresh import End, Ending
from tests.unit.operators.test_execute import FakeStateStore
from tests.unit.triggers.refreshes import Refresh, refresh

__all__ = ["refresh"]

SEEN = DriverReport(DriverState.FAILED, "FAILED", 1)


def ended(refresh: Refresh, end: End = End.DRIVER_OVER, report: DriverReport = SEEN) -> EndedDriver:
    return EndedDriver(refresh.deferred, Ending(end, report), ["canary-1d00"])


def test_the_cluster_is_asked_once_more_for_its_reason(refresh: Refresh) -> None:
    refresh.end(5)
    failure = ended(refresh).failure(refused=False)
    assert isinstance(failure, RefreshFailedError)
    assert str(failure) == (
        f"the Spark driver {refresh.app} is FAILED with exit code 5: User application exited with status 5"
        f" (its log: {refresh.manager.url}/proxy/{refresh.app}/); what was read is kept for the next attempt"
    )


def test_what_the_trigger_saw_is_enough_where_the_cluster_cannot_be_asked(refresh: Refresh) -> None:
    words = f"the Spark driver {refresh.app} is FAILED with exit code 1; what was read"
    refresh.manager.trouble = 503
    assert str(ended(refresh).failure(refused=False)).startswith(words)
    refresh.manager.trouble = None
    refresh.manager.forget(refresh.app)
    assert str(ended(refresh).failure(refused=False)).startswith(words)


def test_a_secret_in_the_clusters_words_is_taken_out(refresh: Refresh, monkeypatch: pytest.MonkeyPatch) -> None:
    report = refresh.manager.report
    told = "canary-1d00 was refused"
    monkeypatch.setattr(refresh.manager, "report", lambda app: {**report(app), "diagnostics": told})
    refresh.end(1)
    assert "*** was refused" in str(ended(refresh).failure(refused=False))


@pytest.mark.parametrize(
    ("exit_code", "refused", "remedy"),
    [
        (2, False, "correct it and clear the task"),
        (3, False, "another run refreshes this table"),
        (1, True, "relax the option that the message names and clear the task"),
    ],
)
def test_an_end_that_no_retry_helps_is_final(refresh: Refresh, exit_code: int, refused: bool, remedy: str) -> None:
    refresh.end(exit_code)
    failure = ended(refresh).failure(refused=refused)
    assert isinstance(failure, AirflowFailException)
    assert remedy in str(failure)


@pytest.mark.parametrize(("run", "is_refused"), [("today", True), ("yesterday", False)])
def test_the_refused_publish_of_another_run_is_not_this_ones(run: str, is_refused: bool) -> None:
    header = SimpleNamespace(refused_under="rules", run_key=run)
    attempt = SimpleNamespace(run_key="today", _ledgers=SimpleNamespace(headers={"raw.a": None, "raw.b": header}))
    assert RefreshAttempt.is_refused(attempt) is is_refused  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "state", "why"),
    [
        (End.DRIVER_OVER, DriverState.SUCCEEDED, "ended well, but the ledger does not say"),
        (End.LOST, DriverState.UNKNOWN, "could be read for a quarter of an hour"),
    ],
)
def test_only_a_driver_that_was_lost_may_be_found_again_by_the_next_attempt(
    refresh: Refresh, end: End, state: DriverState, why: str
) -> None:
    """The parent would find a job that succeeded, try after try."""
    if end is End.DRIVER_OVER:
        refresh.end(0)
    driver = ended(refresh, end, DriverReport(state, state.name))
    assert why in str(driver.failure(refused=False))
    store = FakeStateStore()
    store.set("spark_job_id_0", refresh.app)
    driver.forget(store, "spark_job_id_0")
    assert store.get("spark_job_id_0") == (refresh.app if end is End.LOST else None)
    driver.forget(None, "spark_job_id_0")


def test_a_refresh_out_of_time_fails_as_any_task_that_is(refresh: Refresh) -> None:
    assert isinstance(ended(refresh, End.OUT_OF_TIME).failure(refused=False), AirflowTaskTimeout)


def test_a_deadline_counts_from_the_start_of_the_task() -> None:
    began = datetime(2026, 1, 1, 6, tzinfo=timezone.utc)
    assert deadline_of(None, began) is None
    assert deadline_of(timedelta(minutes=5), began) == "2026-01-01T06:05:00+00:00"
