"""The operator on tables, which take no Spark; tests/system/test_airflow_builtins.py has views and Airflow as well."""

from __future__ import annotations

import copy
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from pyiceberg.types import StringType

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.operators import BuiltinMigrationOperator, SinkOperator
from airflow_provider_rfr.store.connections import TaskRef, load_use, set_wanted_hash
from demo.webhook_receiver import Received, Receiver
from tests.unit.messages import raises
from tests.unit.triggers.lake import Lake

RUNS = "kind: table\nname: ops.runs\nexportable: true\ncolumns: [{name: id, type: %s}]\n"
SINK = """---
kind: sink
name: ops.runs_out
sink: {source: ops.runs, to: %s, settings: %s}
"""


class TaskInstance:
    dag_id, run_id, task_id, map_index = "migrate", "manual", "apply", -1


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "ops.yaml").write_text(RUNS % "int")
    return folder


def place(objects: Path) -> dict[str, Any]:
    return {"objects": [str(objects)], "project": "acme", "declared_version": "1.0", "lake_conn_id": "lake"}


def operate(objects: Path, action: str, **arguments: Any) -> dict[str, Any]:
    task = BuiltinMigrationOperator(task_id="migrate", action=action, **place(objects), **arguments)
    return task.execute({"ti": TaskInstance()})  # type: ignore[typeddict-item]


def export(objects: Path, *sinks: str) -> dict[str, Any]:
    return SinkOperator(task_id="export", sinks=sinks, **place(objects)).execute({})


def write(lake: Lake, *numbers: int) -> None:
    table = lake.catalog.load_table("ops.runs")
    table.append(pa.Table.from_pylist([{"id": number} for number in numbers], schema=table.schema().as_arrow()))


def test_a_plan_is_made_applied_as_it_was_made_and_checked(lake: Lake, objects: Path) -> None:
    planned = operate(objects, "plan")
    assert (planned["changes"], planned["summary"]["add"]) == (True, 1)
    plan = json.loads(json.dumps(planned["plan"]))
    done = operate(objects, "apply", plan=plan)
    assert (done["state"], done["steps"], done["revision"]) == ("done", 1, 1)
    assert operate(objects, "apply", plan=plan)["deploy_id"] == done["deploy_id"], "who asks again is told the same"
    assert operate(objects, "check")["changes"] is False
    assert operate(objects, "apply")["state"] == "nothing"
    assert operate(objects, "gc") == {"deleted": [], "kept": {}, "failed": {}}


def test_what_was_changed_by_hand_fails_the_check_until_somebody_adopts_it(lake: Lake, objects: Path) -> None:
    operate(objects, "apply")
    with lake.catalog.load_table("ops.runs").update_schema() as update:
        update.add_column("theirs", StringType())
    with raises(AirflowFailException):
        operate(objects, "check")
    (objects / "ops.yaml").write_text(RUNS % "bigint")
    adopt = {"drift": "adopt"}
    assert operate(objects, "apply", policies=adopt)["steps"] == 1
    assert operate(objects, "check", policies=adopt)["changes"] is False


def test_what_stops_a_plan_fails_the_task_without_a_retry(lake: Lake, objects: Path, tmp_path: Path) -> None:
    stale = operate(objects, "plan")["plan"]
    (objects / "ops.yaml").write_text(RUNS % "bigint")
    with raises(AirflowFailException):
        operate(objects, "apply", plan=stale)
    (objects / "ops.yaml").write_text(RUNS % "int")
    operate(objects, "apply")
    (objects / "ops.yaml").write_text(RUNS % "string")
    for action in ("plan", "apply", "check"):
        with raises(AirflowFailException):
            operate(objects, action)
    with raises(AirflowFailException):
        operate(tmp_path / "nowhere", "plan")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"action": "aply"}, "action"),
        ({"policies": {"drfit": "fail"}}, "policies.drfit"),
        ({"policies": {"drift": "perhaps"}}, "drift"),
        ({"policies": {"accept_data_loss": ["all"]}}, "accept_data_loss"),
        ({"action": "check", "plan": {}}, "plan"),
    ],
)
def test_wrong_arguments_are_told_while_the_dag_is_parsed(wrong: dict[str, Any], field: str) -> None:
    with DAG("wrong", schedule=None), pytest.raises(ConfigurationError) as told:
        BuiltinMigrationOperator(task_id="migrate", **wrong)
    assert told.value.field == field


def test_what_no_retry_helps_is_final_also_before_the_first_sink(lake: Lake, objects: Path) -> None:
    with raises(AirflowFailException):
        export(objects, "ops.other")
    with raises(AirflowFailException):
        export(objects / "missing")


def test_a_sink_whose_source_has_lost_a_file_does_not_stop_the_others(
    lake: Lake, objects: Path, tmp_path: Path
) -> None:
    files = SINK % ("files", f"{{path: {tmp_path / 'out'}}}")
    more = (RUNS % "int" + files).replace("ops.runs", "ops.more")
    (objects / "ops.yaml").write_text(f"{RUNS % 'int'}{files}---\n{more}")
    operate(objects, "apply")
    write(lake, 1)
    [lost] = lake.catalog.load_table("ops.runs").scan().plan_files()
    Path(lost.file.file_path.removeprefix("file://")).unlink()
    lake.catalog.load_table("ops.more").append(pa.table({"id": pa.array([7], pa.int32())}))
    with raises(RfrError):
        export(objects, "ops.runs_out", "ops.more_out")
    [sent] = (tmp_path / "out").glob("*.jsonl")
    assert json.loads(sent.read_text()) == {"id": 7}


def test_a_sink_that_is_asked_to_stop_ends_after_its_batch_and_goes_on_behind_it(
    lake: Lake, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = SinkOperator(task_id="export", **place(objects))
    copy.deepcopy(task).on_kill()

    def answer(request: Received) -> tuple[int, bytes]:
        if len(receiver.requests) == 2:
            task.on_kill()
        return (200, b"")

    with Receiver(answer) as receiver:
        monkeypatch.setenv("AIRFLOW_CONN_OUT", json.dumps({"conn_type": "http", "host": receiver.url}))
        monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "127.0.0.1")
        (objects / "ops.yaml").write_text(RUNS % "int" + SINK % ("http", "{connection: out, batch_size: 1}"))
        operate(objects, "apply")
        write(lake, *range(5))
        with raises(RfrError):
            task.execute({})
        assert len(receiver.requests) == 2
        assert task.execute({})["ops.runs_out"]["rows"] == 3
    assert sorted(row["id"] for request in receiver.requests for row in request.json["rows"]) == [0, 1, 2, 3, 4]


def test_a_sink_whose_connection_is_altered_goes_on_in_the_same_try_as_it_is_declared_then(
    lake: Lake, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, ref = SinkOperator(task_id="export", **place(objects)), TaskRef("migrate", "manual", "apply")

    def declare(connection: str, path: str) -> None:
        settings = f"{{connection: {connection}, path: {path}, batch_size: 1}}"
        (objects / "ops.yaml").write_text(RUNS % "int" + SINK % ("http", settings))

    def answer(request: Received) -> tuple[int, bytes]:
        if len(receiver.requests) == 2:
            declare("other", "new")
            store.run(lambda connection: set_wanted_hash(connection, [ref], "out", "altered"))
            task.on_kill()
        return (200, b"")

    with Receiver(answer) as receiver, closing(ControlStoreHook().get_store()) as store:
        for name in ("OUT", "OTHER"):
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "http", "host": receiver.url}))
        monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "127.0.0.1")
        declare("out", "old")
        operate(objects, "apply")
        write(lake, *range(5))
        assert task.execute({"ti": TaskInstance()})["ops.runs_out"]["rows"] == 3  # type: ignore[typeddict-item]
        with store.read() as connection:
            use = load_use(connection, ref)
    assert [request.path for request in receiver.requests] == [*["/old"] * 2, *["/new"] * 3]
    assert sorted(row["id"] for request in receiver.requests for row in request.json["rows"]) == [0, 1, 2, 3, 4]
    assert use is not None
    assert (use.kind, use.token, {used.conn_id for used in use.connections}) == ("sink", 2, {"lake", "other"})


@pytest.mark.parametrize(
    ("settings", "credential"),
    [
        ({"password": "canary-11d0"}, "Bearer canary-11d0"),
        ({"login": "key-as-login"}, "Basic a2V5LWFzLWxvZ2luOg=="),
        ({"login": "robot", "password": "hunter22"}, "Basic cm9ib3Q6aHVudGVyMjI="),
        ({"login": "robot", "extra": '{"authorization": "Key 7"}'}, "Key 7"),
    ],
)
def test_sinks_send_what_came_since_the_last_run(
    lake: Lake, objects: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], credential: str
) -> None:
    def answer(request: Received) -> tuple[int, bytes]:
        return (200, b"") if request.headers.get("authorization") == credential else (401, b"")

    with Receiver(answer) as receiver:
        connection = {"conn_type": "http", "host": receiver.url, **settings}
        monkeypatch.setenv("AIRFLOW_CONN_OUT", json.dumps(connection))
        monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "127.0.0.1")
        sinks = SINK % ("http", "{connection: out, path: rows}")
        (objects / "ops.yaml").write_text(RUNS % "int" + sinks)
        operate(objects, "apply")
        write(lake, 1, 2)
        assert export(objects)["ops.runs_out"]["rows"] == 2
        write(lake, 3)
        monkeypatch.delenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS")
        with raises(AirflowFailException):
            export(objects)
        monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "127.0.0.1")
        (objects / "ops.yaml").write_text(RUNS % "bigint" + sinks)
        operate(objects, "apply")
        assert export(objects, "OPS.runs_out")["ops.runs_out"]["rows"] == 1
        assert export(objects)["ops.runs_out"]["rows"] == 0
    sent = [row["id"] for request in receiver.requests for row in request.json["rows"]]
    assert sorted(sent) == [1, 2, 3]
    with raises(AirflowFailException):
        export(objects, "ops.nothing")


def test_the_examples_of_the_documentation_are_read(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "sinks.md").read_text()
    (declared,), (program,) = (
        re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) for language in ("yaml", "python")
    )
    (tmp_path / "out.yaml").write_text(declared)
    table = "kind: table\nname: ops.ingest_runs\ncolumns: [{name: id, type: int}]\n"
    (tmp_path / "runs.yaml").write_text(table)
    found = load_objects(tmp_path, project="acme", version="1.0").by_key()["ops.runs_out"].sink
    assert found is not None and found.settings["format"] == "jsonl"
    names: dict[str, Any] = {}
    exec(compile(program, "docs/sinks.md", "exec"), names)
    assert names["SinkOperator"] is SinkOperator


def test_a_sink_writes_the_name_of_its_source_in_any_case(lake: Lake, objects: Path, tmp_path: Path) -> None:
    """As every query does."""
    out = SINK % ("files", f"{{path: {tmp_path}/out, format: jsonl}}")
    (objects / "ops.yaml").write_text(RUNS % "int" + out.replace("source: ops.runs", "source: OPS.Runs"))
    operate(objects, "apply")
    write(lake, 1, 2)
    assert export(objects)["ops.runs_out"]["rows"] == 2


def test_what_may_be_lost_and_what_may_break_are_lists_of_names(lake: Lake, objects: Path) -> None:
    """As the ready DAG's form gives them."""
    operate(objects, "apply")
    (objects / "ops.yaml").write_text("kind: table\nname: ops.runs\ncolumns: [{name: number, type: int}]\n")
    with raises(AirflowFailException):
        operate(objects, "apply")
    done = operate(objects, "apply", policies={"accept_data_loss": ["ops.runs.id"], "break_views": []})
    assert done["steps"] == 1
