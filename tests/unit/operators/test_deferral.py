"""What a task that goes on makes of the end that the triggerer saw."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as spark_submit_hook
from airflow.providers.apache.spark.operators import spark_submit as spark_submit_operator
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.hooks.spark import DriverReport, DriverState
from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators._attempt import EndedDriver, RefreshAttempt, deadline_of
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.triggers.refresh import End, Ending
from tests.unit.operators.test_execute import FakeStateStore
from tests.unit.triggers.refreshes import Refresh, refresh

__all__ = ["refresh"]

SEEN = DriverReport(DriverState.FAILED, "FAILED", 1)


def ended(refresh: Refresh, end: End = End.DRIVER_OVER, report: DriverReport = SEEN) -> EndedDriver:
    return EndedDriver(refresh.deferred, Ending(end, report), ["canary-1d00"])


def operator_on(**cluster: str) -> ResumableFullRefreshOperator:
    what: dict[str, Any] = {"source": {"file": str(SHOP)}, "streams": ["orders"], "target": "raw.orders"}
    return ResumableFullRefreshOperator(task_id="refresh", **what, **cluster)


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
        (End.NOT_ENDED, DriverState.UNKNOWN, "could not be ended, and may still publish"),
    ],
)
def test_only_a_driver_that_may_still_run_may_be_found_again_by_the_next_attempt(
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
    assert store.get("spark_job_id_0") == (None if end is End.DRIVER_OVER else refresh.app)
    driver.forget(None, "spark_job_id_0")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (End.OUT_OF_TIME, "its driver was ended"),
        (End.NOT_ENDED, "end the driver with: yarn application -kill application_"),
    ],
)
def test_a_refresh_out_of_time_fails_as_any_task_that_is_and_tells_what_became_of_its_driver(
    refresh: Refresh, end: End, words: str
) -> None:
    failure = ended(refresh, end).failure(refused=False)
    assert isinstance(failure, AirflowTaskTimeout)
    assert words in str(failure)


def test_a_driver_that_yarn_has_forgotten_is_over_but_another_404_says_nothing(refresh: Refresh) -> None:
    operator = operator_on(conn_id="cluster", deploy_mode="cluster")
    refresh.manager.forget(refresh.app)
    status = operator.get_job_status(refresh.app, {})  # type: ignore[arg-type]
    assert not operator.is_job_active(status)
    assert not operator.is_job_succeeded(status)
    refresh.manager.trouble = 404
    with pytest.raises(RuntimeError, match="HTTP 404"):
        operator.get_job_status(refresh.app, {})  # type: ignore[arg-type]


def test_the_success_of_an_earlier_pod_is_not_taken_for_that_of_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent keeps it in the task state, also when the task is cleared."""
    spark = {"conn_type": "spark", "host": "k8s://https://127.0.0.1:1", "extra": {"namespace": "data"}}
    monkeypatch.setenv("AIRFLOW_CONN_PODS", json.dumps(spark))
    pod = SimpleNamespace(status=SimpleNamespace(phase="Running"))
    client = SimpleNamespace(read_namespaced_pod=lambda name, namespace: pod)
    for module in (spark_submit_operator, spark_submit_hook):
        fake = SimpleNamespace(get_kube_client=lambda: client, ApiException=OSError)
        monkeypatch.setattr(module, "kube_client", fake, raising=False)
    operator = operator_on(conn_id="pods")
    store = FakeStateStore()
    store.set(operator._K8S_DRIVER_STATUS_KEY, "Succeeded")
    assert operator.get_job_status("data:later", {"task_state_store": store}) == "Running"  # type: ignore[typeddict-item]


def test_a_deadline_counts_from_the_start_of_the_task() -> None:
    began = datetime(2026, 1, 1, 6, tzinfo=timezone.utc)
    assert deadline_of(None, began) is None
    assert deadline_of(timedelta(minutes=5), began) == "2026-01-01T06:05:00+00:00"
