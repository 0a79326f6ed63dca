from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, TaskDeferred

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.sensors import CommitSensor
from airflow_provider_rfr.triggers.commit import CommitReachedTrigger
from tests.unit.triggers.lake import Lake

NOW = datetime.now(timezone.utc)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return Lake(tmp_path, monkeypatch)


def sensor(**arguments: Any) -> CommitSensor:
    return CommitSensor(task_id="wait", lake_conn_id="lake", **{"target": "raw.orders", **arguments})


def context(run_after: datetime = NOW - timedelta(hours=1)) -> Any:
    return {"dag_run": SimpleNamespace(run_after=run_after)}


def test_a_commit_later_than_the_runs_due_time_is_returned(lake: Lake) -> None:
    snapshot = lake.commit("raw.orders")
    assert sensor().execute(context())["raw.orders"]["snapshot_id"] == snapshot


def test_without_one_the_sensor_waits_in_the_triggerer(lake: Lake) -> None:
    lake.commit("raw.orders")
    due = NOW + timedelta(days=1)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(timeout=60, poke_interval=7).execute(context(due))
    trigger = deferred.value.trigger
    assert isinstance(trigger, CommitReachedTrigger)
    assert trigger.serialize()[1] == {
        "tables": ["raw.orders"],
        "after": due.isoformat(),
        "lake_conn_id": "lake",
        "poll_interval": 7,
    }
    assert deferred.value.timeout == timedelta(seconds=60)


def test_what_the_trigger_found_is_returned() -> None:
    assert sensor().execute_complete({}, {"commits": {"raw.orders": {"sequence": 3}}}) == {
        "raw.orders": {"sequence": 3}
    }


@pytest.mark.parametrize("after", ["2999-01-01", "2999-01-01T00:00:00Z", datetime(2999, 1, 1)])
def test_another_time_may_be_given(lake: Lake, after: Any) -> None:
    lake.commit("raw.orders")
    with pytest.raises(TaskDeferred):
        sensor(after=after).execute(context())


def test_a_time_that_is_none_is_named(lake: Lake) -> None:
    with pytest.raises(ConfigurationError, match="after: 'yesterday' is not a time"):
        sensor(after="yesterday").execute(context())


def test_a_sensor_that_must_not_defer_looks_by_itself(lake: Lake) -> None:
    with pytest.raises(AirflowSensorTimeout):
        sensor(deferrable=False, timeout=0.1, poke_interval=0.05).execute(context())
    lake.commit("raw.orders")
    assert sensor(deferrable=False).execute(context())["raw.orders"]["sequence"] == 1


@pytest.mark.parametrize(
    ("target", "tables"),
    [
        ("raw.orders, raw.items", ["raw.orders", "raw.items"]),
        (["raw.orders", "raw.orders"], ["raw.orders"]),
        ({"stream": "orders", "target": "raw.orders", "rows": 3}, ["raw.orders"]),
        ({"rows": 3, "streams": {"a": {"target": "raw.a"}, "b": {"target": "raw.b"}}}, ["raw.a", "raw.b"]),
    ],
)
def test_targets_are_names_or_what_a_refresh_returned(lake: Lake, target: Any, tables: list[str]) -> None:
    for table in tables:
        lake.commit(table)
    assert list(sensor(target=target).execute(context())) == tables


@pytest.mark.parametrize("target", ["", "orders", "raw.", [], {"rows": 3}, None, 7])
def test_a_target_that_names_no_table_is_refused_while_the_dag_is_parsed(target: Any) -> None:
    with pytest.raises(ConfigurationError, match="target"):
        sensor(target=target)


TRIGGERS = {"config": {"hook": {"url": "https://hooks.example.com/canary-2b7d", "payload": {"id": "{{delivery_id}}"}}}}


def test_a_table_that_owes_a_webhook_is_waited_for_without_giving_the_block_away(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps({"conn_type": "sqlite", "host": f"{tmp_path}/c.db"})
    )
    lake.commit("raw.orders")
    waiting = sensor(triggers=TRIGGERS, timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(context())
    assert "canary" not in repr(deferred.value.trigger.serialize()) + repr(deferred.value.kwargs)
    assert deferred.value.kwargs is not None
    lake.publish("raw.orders")
    assert waiting.check_again({}, None, **deferred.value.kwargs) == 1
    assert sensor(triggers=TRIGGERS, deferrable=False).execute(context()) == 1


def test_a_wait_for_debts_ends_with_its_time(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps({"conn_type": "sqlite", "host": f"{tmp_path}/c.db"})
    )
    with pytest.raises(AirflowSensorTimeout):
        sensor(triggers=TRIGGERS).check_again({}, None, deadline=NOW.isoformat())
