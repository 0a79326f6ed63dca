from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk import DAG

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake import catalog
from airflow_provider_rfr.sensors import CommitSensor
from airflow_provider_rfr.triggers import CommitReachedTrigger
from tests.unit.messages import raises
from tests.unit.triggers.lake import Lake

NOW = datetime.now(timezone.utc)


def sensor(**arguments: Any) -> CommitSensor:
    return CommitSensor(task_id="wait", lake_conn_id="lake", **{"target": "raw.orders", **arguments})


def context(run_after: datetime = NOW - timedelta(hours=1), run_type: str = "scheduled", *events: Any) -> Any:
    by_asset: dict[Any, list[Any]] = {}
    for event in events:
        by_asset.setdefault(event.asset.uri, []).append(event)
    return {"dag_run": SimpleNamespace(run_after=run_after, run_type=run_type), "triggering_asset_events": by_asset}


def asset_event(extra: dict[str, Any], uri: str = "rfr://lake/raw/orders") -> Any:
    return SimpleNamespace(asset=SimpleNamespace(uri=uri), extra=extra, timestamp=datetime.now(timezone.utc))


def log_of(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> str:
    return capsys.readouterr().out + caplog.text


def test_a_commit_later_than_the_runs_due_time_is_returned(lake: Lake) -> None:
    snapshot = lake.commit("raw.orders")
    assert sensor().execute(context())["raw.orders"]["snapshot_id"] == snapshot


def test_the_catalog_is_opened_once_before_the_sensor_waits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, open_catalog = list[Any](), catalog.open_catalog

    def opening(settings: Any) -> Any:
        opened.append(settings)
        return open_catalog(settings)

    monkeypatch.setattr(catalog, "open_catalog", opening)
    with pytest.raises(TaskDeferred):
        sensor(target=["raw.orders", "raw.items"]).execute(context())
    assert len(opened) == 1


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
        "snapshots": {},
        "lake_conn_id": "lake",
        "poll_interval": 7,
    }
    assert deferred.value.timeout == timedelta(seconds=60)
    commits = {"raw.orders": {"sequence": 3}}
    assert sensor().execute_complete({}, {"commits": commits}) == commits


@pytest.mark.parametrize("after", ["2999-01-01", "2999-01-01T00:00:00Z", datetime(2999, 1, 1)])
def test_another_time_may_be_given(lake: Lake, after: Any) -> None:
    lake.commit("raw.orders")
    with pytest.raises(TaskDeferred):
        sensor(after=after).execute(context())


def test_a_run_that_the_commit_itself_started_does_not_wait_for_another(lake: Lake) -> None:
    snapshot = lake.commit("raw.orders")
    later = datetime.now(timezone.utc) + timedelta(seconds=1)
    by_refresh = context(later, "asset_triggered", asset_event({"snapshot_id": snapshot, "rows": 3}))
    payload = {"table": "raw.orders", "snapshot_id": snapshot, "sequence": 1}
    watched = asset_event({"from_trigger": True, "payload": payload}, uri="orders_commits")
    for run in (by_refresh, context(later, "asset_triggered", watched)):
        for deferrable in (True, False):
            assert sensor(deferrable=deferrable, timeout=0).execute(run)["raw.orders"]["snapshot_id"] == snapshot
    newer = lake.commit("raw.orders")
    assert sensor().execute(by_refresh)["raw.orders"]["snapshot_id"] == newer


def test_the_newest_of_several_events_of_a_table_counts(
    lake: Lake, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = lake.commit("raw.orders")
    later = datetime.now(timezone.utc) + timedelta(seconds=1)
    rolled_back = [asset_event({"snapshot_id": snapshot_id}) for snapshot_id in (snapshot, "17")]
    with caplog.at_level("INFO"), pytest.raises(TaskDeferred) as deferred:
        sensor().execute(context(later, "asset_triggered", *rolled_back))
    assert "Waiting for commits of raw.orders from snapshot 17 on (newest: raw.orders at " in log_of(capsys, caplog)
    assert deferred.value.trigger.serialize()[1]["snapshots"] == {"raw.orders": "17"}


@pytest.mark.parametrize("run_type", ["manual", "operator_triggered", "asset_triggered"])
def test_a_run_of_which_nothing_says_what_it_waits_for_is_refused(lake: Lake, run_type: str) -> None:
    lake.commit("raw.orders")
    other = asset_event({"snapshot_id": "1"}, uri="rfr://lake/raw/items")
    bare = asset_event({})
    with pytest.raises(ConfigurationError) as refused:
        sensor().execute(context(NOW, run_type, other, bare))
    assert str(refused.value) == (
        "after: this run was not scheduled, and none of its asset events has a commit of raw.orders;"
        ' write e.g. after="{{ dag_run.run_after }}", for commits later than the run'
    )
    assert sensor(after="2020-01-01").execute(context(NOW, run_type))["raw.orders"]["sequence"] == 1


def test_a_sensor_in_a_dag_without_a_schedule_has_to_say_what_it_waits_for() -> None:
    with DAG("d", schedule=None), raises(ConfigurationError):
        sensor()
    with DAG("d", schedule=None):
        sensor(after="{{ dag_run.run_after }}")
        CommitSensor(task_id="debts", target="raw.orders", triggers=TRIGGERS)
    with DAG("daily", schedule="@daily"):
        sensor()


def test_the_log_and_the_timeout_say_what_was_waited_for(
    lake: Lake, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = lake.commit("raw.orders")
    due = datetime(2999, 1, 2, 3, tzinfo=timezone.utc)
    waiting = sensor(target="raw.orders, raw.items", timeout=60)
    with caplog.at_level("INFO"), pytest.raises(TaskDeferred):
        waiting.execute(context(due))
    sentence = r"commits of raw\.orders, raw\.items after 2999-01-02T03:00:00Z \(newest: raw\.orders at \S+Z, snapshot "
    sentence += rf"{snapshot}; raw\.items: none\)"
    assert re.search(f"Waiting for {sentence}", log_of(capsys, caplog))
    expired = {"error": "Trigger timeout"}
    with raises(AirflowSensorTimeout, snapshot):
        waiting.resume_execution("__fail__", expired, context(due))
    with raises(AirflowSensorTimeout, snapshot):
        sensor(target="raw.orders, raw.items", deferrable=False, timeout=0).execute(context(due))
    with pytest.raises(AirflowSkipException):
        sensor(soft_fail=True).resume_execution("__fail__", expired, context(due))


def test_a_timeout_while_the_catalog_is_away_is_still_a_timeout(lake: Lake) -> None:
    file = Path(lake.catalog.properties["uri"].removeprefix("sqlite:///"))
    file.unlink()
    file.mkdir()
    with raises(AirflowSensorTimeout):
        sensor(timeout=60).resume_execution("__fail__", {"error": "Trigger timeout"}, context())


def test_a_time_that_is_none_is_named(lake: Lake) -> None:
    with raises(ConfigurationError):
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
    with raises(ConfigurationError):
        sensor(target=target)


TRIGGERS = {"config": {"hook": {"url": "https://hooks.example.com/canary-2b7d", "payload": {"id": "{{delivery_id}}"}}}}


def test_a_table_that_owes_a_webhook_is_waited_for_without_giving_the_block_away(lake: Lake) -> None:
    lake.commit("raw.orders")
    waiting = sensor(triggers=TRIGGERS, timeout=60)
    with pytest.raises(TaskDeferred) as deferred:
        waiting.execute(context())
    assert "canary" not in repr(deferred.value.trigger.serialize()) + repr(deferred.value.kwargs)
    assert deferred.value.kwargs is not None
    lake.publish("raw.orders")
    assert waiting.check_again({}, None, **deferred.value.kwargs) == 1
    assert sensor(triggers=TRIGGERS, deferrable=False).execute(context()) == 1


def test_a_wait_for_debts_ends_with_its_time(lake: Lake) -> None:
    with pytest.raises(AirflowSensorTimeout):
        sensor(triggers=TRIGGERS).check_again({}, None, deadline=NOW.isoformat())
