from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_rfr import compat, exceptions, retry_policies
from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    ConfigurationError,
    FencedError,
    RateLimitedError,
    RefreshBusyError,
    RefreshFailedError,
    RefreshStoppedError,
    SchemaEvolutionError,
    SourceDefinitionError,
    SourceError,
    TypeMismatchError,
)
from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators._outcome import _failure_of
from airflow_provider_rfr.retry_policies import RefreshRetryPolicy
from tests.unit.messages import check_messages, raises

if not compat.AIRFLOW_V_3_3_PLUS:
    pytest.skip("Airflow has retry policies since 3.3", allow_module_level=True)

from airflow.sdk import RetryAction, RetryDecision


def decide(
    error: BaseException,
    *,
    stalled: int | None = 0,
    try_number: int = 2,
    max_tries: int = 5,
    retries: int = 5,
    **settings: Any,
) -> RetryDecision:
    task = SimpleNamespace(stalled_tries=stalled, retries=retries)
    context: Any = {"ti": SimpleNamespace(task=task)}
    return RefreshRetryPolicy(**settings).evaluate(error, try_number, max_tries, context)


def test_a_rate_limited_refresh_waits_as_long_as_the_api_said() -> None:
    decision = decide(RateLimitedError("429", retry_after=90.2), stalled=3)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, timedelta(seconds=91))
    check_messages(decision.reason)


def test_the_wait_comes_from_the_drivers_last_word() -> None:
    outcome = {"type": "RefreshFailedError", "cause": "RateLimitedError", "message": "429", "retry_after": 700.0}
    assert decide(_failure_of(outcome)).retry_delay == timedelta(seconds=700)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wait_that_the_api_did_not_say_is_the_tasks_own(seconds: float) -> None:
    decision = decide(RateLimitedError("429", retry_after=seconds), stalled=3)
    assert (decision.action, decision.retry_delay) == (RetryAction.RETRY, None)


def test_a_wait_that_is_too_long_fails() -> None:
    decision = decide(RateLimitedError("429", retry_after=7200), longest_wait=timedelta(hours=1))
    assert decision.action is RetryAction.FAIL
    check_messages(decision.reason)


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("streams", "is empty"),
        SourceDefinitionError("streams", "is empty"),
        AuthenticationError("401"),
        TypeMismatchError("not a number"),
        SchemaEvolutionError("the column is gone"),
        FencedError("taken over", epoch=1, newer_epoch=2),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_retry_would_only_meet_again_fails_at_once(error: Exception) -> None:
    decision = decide(error, try_number=1)
    assert decision.action is RetryAction.FAIL
    assert type(error).__name__ in str(decision.reason)


def test_no_progress_since_the_last_try_fails() -> None:
    decision = decide(SourceError("500"), stalled=1)
    assert decision.action is RetryAction.FAIL
    check_messages(decision.reason)
    assert decide(SourceError("500"), stalled=3, try_number=4, max_tries=7).action is RetryAction.FAIL
    assert decide(SourceError("500"), stalled=3, stalled_tries=3).action is RetryAction.FAIL


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (RefreshFailedError("1 of 8 partitions"), {}),
        (OSError("no route"), {}),
        # The first try has no last try. Nor has the first one after a clear, for Airflow goes on counting: two tries
        # were made, the task was cleared, and may be tried five times more.
        (SourceError("500"), {"stalled": 1, "try_number": 1}),
        (SourceError("500"), {"stalled": 2, "try_number": 3, "max_tries": 7}),
        (SourceError("500"), {"stalled": 2, "stalled_tries": 3}),
        # Attempts that were not allowed to read.
        (RefreshBusyError("another run"), {"stalled": 4}),
        (RefreshStoppedError("stopped"), {"stalled": 4}),
    ],
)
def test_another_error_is_left_to_the_tasks_retries(error: Exception, settings: dict[str, Any]) -> None:
    assert decide(error, **settings) == RetryDecision.default()


def test_nothing_is_decided_by_a_progress_that_nobody_knows() -> None:
    assert decide(SourceError("500"), stalled=None).action is RetryAction.DEFAULT
    assert RefreshRetryPolicy().evaluate(SourceError("500"), 3, 5, None).action is RetryAction.DEFAULT
    other: Any = {"ti": SimpleNamespace(task=SimpleNamespace())}
    assert RefreshRetryPolicy().evaluate(SourceError("500"), 3, 5, other).action is RetryAction.DEFAULT


def test_every_error_of_the_package_gets_a_decision() -> None:
    kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in kinds:
        error = kind.__new__(kind)
        error.retry_after = 1.0
        assert isinstance(decide(error), RetryDecision), kind


def test_it_is_serialised_and_made_again() -> None:
    policy = RefreshRetryPolicy(stalled_tries=3, longest_wait=timedelta(hours=6))
    data = json.loads(json.dumps(policy.serialize()))
    assert RefreshRetryPolicy.deserialize(data) == policy != RefreshRetryPolicy()
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_a_dag_with_it_is_serialised() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        ResumableFullRefreshOperator(
            task_id="r", source={"class": "a:B"}, streams="a", target="raw.a", retry_policy=RefreshRetryPolicy()
        )
    assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("r").has_retry_policy


@pytest.mark.parametrize("settings", [{"stalled_tries": 0}, {"longest_wait": timedelta(0)}])
def test_settings_without_sense_are_refused_while_the_dag_is_parsed(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RefreshRetryPolicy(**settings)


def test_airflow_without_retry_policies_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_policies, "AIRFLOW_V_3_3_PLUS", False)
    monkeypatch.setattr(retry_policies, "airflow_version", lambda: "3.2.2")
    with raises(ConfigurationError) as caught:
        RefreshRetryPolicy()
    assert caught.value.field == "retry_policy"
