"""Refreshes of materialized views as DAGs and the command have them; the query itself is the engine's business."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.builtins import BuiltinsHook
from airflow_provider_rfr.hooks.spark import parse_result_line
from airflow_provider_rfr.lake.spark import result_line
from airflow_provider_rfr.operators import RefreshMaterializedViewOperator
from airflow_provider_rfr.operators.builtins import _DeclaredView, declared_materialized_views
from airflow_provider_rfr.triggers import CommitTrigger
from tests.airflow_versions import cron_of
from tests.unit.builtins.execution.places import DuckEngine
from tests.unit.cli import calls
from tests.unit.messages import raises
from tests.unit.operators.test_declared_sources import parse_ready_dag
from tests.unit.triggers.lake import Lake

RUNS = """
kind: table
name: ops.Runs
columns: [{name: id, type: bigint}]
---
kind: view
name: ops.seen
query: SELECT r.id FROM ops.Runs r JOIN raw.orders o ON r.id = o.id
---
kind: materialized_view
name: ops.daily
columns: [{name: id, type: bigint}]
query: SELECT id FROM %s
"""


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    folder.mkdir()
    declare(folder)
    return folder


def declare(objects: Path, more: str = "", reads: str = "ops.seen") -> None:
    (objects / "ops.yaml").write_text(RUNS % reads + more)


def only(objects: Path) -> _DeclaredView:
    (found,) = declared_materialized_views([str(objects)], project="acme", declared_version="1.0", lake_conn_id="lake")
    return found


def watched(view: Any) -> list[str]:
    """Tables with a watcher that starts the view's DAG."""
    triggers = [watcher.trigger for asset in view.schedule.asset_condition.objects for watcher in asset.watchers]
    assert all(isinstance(trigger, CommitTrigger) and trigger.lake_conn_id == "lake" for trigger in triggers)
    assert len({trigger.asset for trigger in triggers}) == len(triggers)
    return [trigger.table for trigger in triggers]


def test_a_view_without_a_schedule_is_refreshed_with_each_commit_of_the_tables_below_it(objects: Path) -> None:
    view = only(objects)
    assert sorted(watched(view)) == ["ops.Runs", "raw.orders"]
    with DAG("d", schedule=view.schedule, start_date=datetime(2026, 1, 1)):
        task = view.refresh(retries=5)
    assert (task.views, task.project, task.lake_conn_id, task.retries) == (["ops.daily"], "acme", "lake", 5)


def test_what_is_declared_wins_over_what_the_dag_gives(objects: Path) -> None:
    declare(objects, "refresh: {schedule: '0 4 * * *', force: true, retries: 2, conf: {spark.a: b}}\n")
    view = only(objects)
    assert cron_of(view.schedule) == "0 4 * * *"
    with DAG("d", schedule=view.schedule, start_date=datetime(2026, 1, 1)):
        task = view.refresh(retries=5)
    assert (task.force, task.retries) == (True, 2)
    assert json.loads(json.dumps(task.conf)) == {"spark.a": "b"}


@pytest.mark.parametrize(
    ("refresh", "said"),
    [
        ("{schedule: daily}", "refresh.schedule: 'daily' is not a cron expression; write one like '0 4 * * *'"),
        ("{views: [ops.other]}", "refresh.views: is the object's name; leave it out"),
        ("{lake_conn_id: other}", "refresh.lake_conn_id: is the lake that is deployed to; leave it out"),
        ("{retires: 3}", "refresh: Invalid arguments were passed to RefreshMaterializedViewOperator"),
    ],
)
def test_what_a_declaration_may_not_say_is_told_with_its_place(objects: Path, refresh: str, said: str) -> None:
    declare(objects, f"refresh: {refresh}\n")
    view = only(objects)
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as told:
        _ = view.schedule
        view.refresh()
    assert str(told.value).startswith(f"{objects}/ops.yaml:10: ops.daily: {said}")


def hook(objects: Path) -> BuiltinsHook:
    return BuiltinsHook([str(objects)], project="acme", version="1.0", lake_conn_id="lake")


def deploy(objects: Path, tmp_path: Path) -> DuckEngine:
    """Deployed without the view between, and without a row; the engine that did it."""
    declare(objects, reads="ops.Runs")
    runs, _, daily = (objects / "ops.yaml").read_text().split("---")
    (objects / "ops.yaml").write_text(f"{runs}---{daily}")
    found = hook(objects)
    engine = DuckEngine(found.catalog, tmp_path / "views")
    found.apply(found.plan(), sql=engine)
    found.refresh_views(sql=engine)
    return engine


def write(lake: Lake, *numbers: int) -> None:
    table = lake.catalog.load_table("ops.Runs")
    table.append(pa.Table.from_pylist([{"id": number} for number in numbers], schema=table.schema().as_arrow()))


def operator(**arguments: Any) -> RefreshMaterializedViewOperator:
    return RefreshMaterializedViewOperator(task_id="refresh", project="acme", lake_conn_id="lake", **arguments)


def submitted(task: RefreshMaterializedViewOperator, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Takes the place of spark-submit; the documents that were given to it."""
    documents: list[dict[str, Any]] = []

    class Hook:
        brings_jars = True

        def default_conf(self, *_: str) -> None: ...

    def load(hook: Any, folder: Path, document: dict[str, Any], more: tuple[str, ...]) -> None:
        assert folder.stat().st_mode & 0o777 == 0o700
        documents.append(document)

    def run(context: Any, load: Any) -> dict[str, Any] | None:
        load(Hook())
        view = {"name": "ops.daily", "state": "refreshed", "rows": 1, "snapshot_id": "7"}
        return parse_result_line(result_line({"views": {"ops.daily": view}}))

    monkeypatch.setattr("airflow_provider_rfr.operators.builtins.check_machine", lambda: None)
    monkeypatch.setattr("airflow_provider_rfr.operators.submit.load_application", load)
    monkeypatch.setattr(task, "_run_application", run)
    return documents


def test_spark_is_submitted_only_if_something_came_or_somebody_insists(
    lake: Lake, objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(objects, tmp_path)
    task = operator(views="ops.daily")
    documents = submitted(task, monkeypatch)
    assert task.execute({}) == {"ops.daily": {"name": "ops.daily", "state": "unchanged"}}
    assert not documents
    blank = operator(views="")
    assert blank.execute({}) == operator(views=["ops.daily", " "]).execute({}) == task.execute({})
    forced = operator(force=True)
    documents_of_forced = submitted(forced, monkeypatch)
    forced.execute({})
    assert documents_of_forced[0]["refresh"] == {"names": [], "force": True}
    documents = submitted(task, monkeypatch)
    write(lake, 1)
    assert task.execute({})["ops.daily"]["state"] == "refreshed"
    (document,) = documents
    assert (document["project"], document["refresh"]) == ("acme", {"names": ["ops.daily"], "force": False})
    assert {"lake", "store"} <= document.keys()
    assert not {"spec", "plan"} & document.keys()


def test_a_view_is_refreshed_once_it_is_deployed_under_its_name_and_its_schedule_is_nothing_to_deploy(
    lake: Lake, objects: Path, tmp_path: Path
) -> None:
    assert not only(objects).is_deployed()
    deploy(objects, tmp_path)
    assert only(objects).is_deployed()
    with raises(AirflowFailException):
        operator(views=["ops.runs"]).execute({})
    with (objects / "ops.yaml").open("a") as file:
        file.write("refresh: {schedule: '@daily'}\n")
    assert hook(objects).plan().steps == ()


def rfr(objects: Path, *arguments: str) -> int:
    """``airflow rfr objects refresh`` in this process; returns the exit code."""
    place = ("--objects", objects, "--project", "acme", "--declared-version", "1.0", "--lake-conn-id", "lake")
    return calls.rfr("objects", "refresh", *place, *arguments)


def test_the_command_says_what_became_of_each_view(
    lake: Lake, objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = deploy(objects, tmp_path)
    engine.close = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(BuiltinsHook, "spark_engine", lambda *_: engine)
    assert rfr(objects, "ops.daily") == 0
    assert "name=ops.daily  state=unchanged  rows=0" in capsys.readouterr().out
    write(lake, 1, 2)
    assert rfr(objects, "--all", "-o", "json") == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["name"], said["state"], said["rows"]) == ("ops.daily", "refreshed", 2)
    assert rfr(objects, "ops.daily", "--force", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "refreshed"
    for wrong in ((), ("ops.daily", "--all"), ("ops.runs",)):
        assert rfr(objects, *wrong) == 1
    assert "say which materialized views to refresh; give names, or --all" in capsys.readouterr().err


READY = """
import sys
from tests.airflow_versions import DagBag
from tests.airflow_versions import DagSerialization
bag = DagBag("dags/builtin_materialized_views.py")
heavy = {"pyspark", "pyiceberg", "pandas", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
assert not bag.import_errors, bag.import_errors
for name, dag in sorted(bag.dags.items()):
    known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assets = [asset for _, asset in known.timetable.asset_condition.iter_assets()]
    watchers = sorted(watcher.trigger["kwargs"]["table"] for asset in assets for watcher in asset.watchers)
    print(name, dag.task_ids, known.timetable.summary, watchers)
task = bag.dags["refresh_ops.wrong"].get_task("refresh")
try:
    task.python_callable(*task.op_args)
except Exception as error:
    print(type(error).__name__, str(error).partition("ops.yaml")[2].splitlines()[0])
"""
MORE = """---
kind: materialized_view
name: ops.nightly
columns: [{name: id, type: bigint}]
query: SELECT id FROM ops.daily
refresh: {schedule: "0 4 * * *"}
---
kind: materialized_view
name: ops.wrong
columns: [{name: one, type: int}]
query: SELECT 1 AS one
refresh: {shedule: "0 4 * * *"}
"""


def test_the_ready_dags_parse_without_a_connection_and_are_started_by_what_the_views_read(objects: Path) -> None:
    declare(objects, MORE)
    *dags, failure = parse_ready_dag(objects, READY)[-4:]
    assert dags == [
        "refresh_ops.daily ['deployed', 'refresh'] Asset or @once ['ops.Runs', 'raw.orders']",
        "refresh_ops.nightly ['deployed', 'refresh'] 0 4 * * * []",
        "refresh_ops.wrong ['refresh'] @once []",
    ]
    assert failure.startswith("AirflowFailException :21: ops.wrong: refresh: Invalid arguments were passed to")
