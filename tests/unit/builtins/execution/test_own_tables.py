"""The package's own tables about built-in objects are filled by the deploys that they tell of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from airflow_provider_rfr.builtins import Kind, load_objects, maintenance, steps
from airflow_provider_rfr.builtins.deploy import apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.exceptions import StepError
from airflow_provider_rfr.history import History
from tests.unit.builtins.catalogs import table
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises

COMMITS = "rfr_system.commit_history"
LOGS = [obj for obj in load_objects().objects if obj.kind is Kind.LOG]


def dies(*arguments: object, **more: object) -> int:
    raise OSError("the lake is away")


def deploy(place: Place, *more: BuiltinObject, logs: Sequence[BuiltinObject] = LOGS) -> str:
    spec: CatalogSpec = load_objects([*logs, *more], entry_points=False)
    recorded, live = observe(place.catalog, place.store, project=spec.project)
    return apply(plan(spec, recorded, live), catalog=place.catalog, store=place.store, spec=spec).state


def test_they_list_every_object_and_every_step_and_a_deploy_without_changes_adds_nothing(place: Place) -> None:
    assert deploy(place) == "done"
    objects = place.rows("rfr_system.builtin_objects")
    assert {row["name"] for row in objects} == {item.name for item in LOGS}
    assert {row["kind"] for row in objects} == {"log"}
    more = table("ops.more", "a int", keep="billing, seven years")
    assert deploy(place, more) == "done"
    objects = place.rows("rfr_system.builtin_objects")
    kept = dict.fromkeys((item.name for item in LOGS), "true")
    kept |= {"rfr_system.builtin_objects": "false", "ops.more": "billing, seven years"}
    assert {row["name"]: row["keep"] for row in objects} == kept
    steps = place.rows("rfr_system.migration_history")
    assert {row["state"] for row in steps} == {"done"}
    assert {(row["object_name"], row["how"]) for row in steps if row["seq"]} == {
        *((item.name, "create") for item in LOGS),
        ("ops.more", "create"),
        ("rfr_system.builtin_objects", "recompute"),
    }
    assert deploy(place, more) == "nothing"
    assert place.rows("rfr_system.migration_history") == steps


def test_tables_of_an_older_version_get_their_partitioning_and_the_rows_that_wait(place: Place) -> None:
    ours = [replace(log, partitioning=()) for log in LOGS]
    deploy(place, logs=ours)
    history = History(place.store, place.catalog)
    now = datetime.now(timezone.utc)
    rows = [{"commit_id": f"c{n}", "target": "raw.a", "snapshot_id": n, "committed_at": now} for n in range(2)]
    history.report(COMMITS, rows[:1], ("commit_id",))
    assert history.maintain(always=True) == 1
    history.report(COMMITS, rows, ("commit_id",))
    assert deploy(place) == "done"
    assert sorted(row["commit_id"] for row in place.rows(COMMITS)) == ["c0", "c1"]
    live = place.catalog.load_table(COMMITS)
    assert [str(field.transform) for field in live.spec().fields] == ["day"]
    assert {task.file.spec_id for task in live.scan().plan_files()} == {live.spec().spec_id}


def test_steps_are_filed_by_the_day_on_which_they_ended_or_their_deploy_did(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = table("ops.t0", "a int"), table("ops.t1", "a int")
    deploy(place)
    with monkeypatch.context() as patch, raises(StepError):
        patch.setattr(steps.CreateTable, "do", dies)
        deploy(place, *more)
    deploy(place, *more)
    rows = place.rows("rfr_system.migration_history")
    assert {row["state"] for row in rows} == {"done", "failed", "skipped"}
    assert all(row["ended_at"] is not None for row in rows)
    live = place.catalog.load_table("rfr_system.migration_history")
    assert [str(field.transform) for field in live.spec().fields] == ["day"]


def test_what_a_deploy_could_not_tell_is_told_by_the_next_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(maintenance.History, "report", dies)
        assert deploy(place) == "done", "a history that can't be written is no reason to fail"
    assert place.rows("rfr_system.migration_history") == []
    deploy(place, table("ops.more", "a int"))
    assert len({row["deploy_id"] for row in place.rows("rfr_system.migration_history")}) == 2
