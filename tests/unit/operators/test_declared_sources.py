"""Declared sources as DAGs have them, on a real control store and a real catalog."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY
from airflow_provider_rfr.operators import BuiltinMigrationOperator
from airflow_provider_rfr.operators.builtins import _DeclaredSource, declared_sources
from airflow_provider_rfr.sample_api import SHOP
from tests.airflow_versions import cron_of
from tests.unit.messages import check_messages, raises
from tests.unit.triggers.lake import Lake

ROOT = Path(__file__).resolve().parents[3]
ORDERS = """kind: source
name: raw.Orders
columns: [{name: id, type: bigint}]
source:
  source: {file: shop.source, config: {page_size: %d}}
  streams: [orders]
  api_conn_id: shop
"""


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "shop.source").write_text(SHOP.read_text())
    (folder / "orders.yaml").write_text(ORDERS % 50)
    return folder


def declare(objects: Path, *lines: str, part: str = "refresh", page_size: int = 50) -> None:
    """More lines of what is read (part ``source``), or of how and when."""
    text = ORDERS % page_size
    head = f"{part}:\n" if part == "refresh" and lines else ""
    (objects / "orders.yaml").write_text(text + head + "".join(f"  {line}\n" for line in lines))


def only(objects: Path, **arguments: Any) -> _DeclaredSource:
    (found,) = declared_sources([str(objects)], project="acme", declared_version="1.0", **arguments)
    return found


def migrate(objects: Path, **arguments: Any) -> BuiltinMigrationOperator:
    place = {"objects": [str(objects)], "project": "acme", "declared_version": "1.0", "lake_conn_id": "lake"}
    return BuiltinMigrationOperator(task_id="migrate", **place, **arguments)


def run(task: BuiltinMigrationOperator, run_id: str = "r") -> tuple[dict[str, Any], dict[str, Any]]:
    """What the task returns, and the events that it tells."""
    events = OutletEventAccessors()
    ti = SimpleNamespace(dag_id="migrate", run_id=run_id, task_id="migrate", map_index=-1)
    result = task.execute({"ti": ti, "outlet_events": events})  # type: ignore[typeddict-item]
    aliases = [outlet for outlet in task.outlets if isinstance(outlet, AssetAlias)]
    told = [event for alias in aliases for event in events[alias].asset_alias_events]
    return result, {event.dest_asset_key.name: event.extra for event in told}


def deploy(objects: Path, run_id: str = "r") -> tuple[dict[str, Any], dict[str, Any]]:
    return run(migrate(objects), run_id)


def test_a_source_is_the_refresh_that_its_declaration_says(objects: Path) -> None:
    found = only(objects, lake_conn_id="lake")
    with DAG("d", schedule=found.schedule, start_date=datetime(2026, 1, 1)):
        task = found.refresh(retries=5)
    assert (task.target, task.lake_conn_id, task.api_conn_id, task.retries) == ("raw.Orders", "lake", "shop", 5)
    assert task.source == {"file": str(objects / "shop.source"), "config": {"page_size": 50}}
    assert json.loads(json.dumps(task.source)) == task.source
    assert task.outlets == [Asset(uri="rfr://lake/raw/Orders")]


def test_what_is_declared_wins_over_what_the_dag_gives_all_of_them(objects: Path) -> None:
    declare(objects, "retries: 2", "options: {concurrency: 3}")
    with DAG("d", schedule=None):
        task = only(objects).refresh(retries=5, options={"concurrency": 9})
    assert (task.retries, task.options) == (2, {"concurrency": 3})


@pytest.mark.parametrize(
    ("part", "line", "said"),
    [
        ("source", "target: raw.other", "source.target: is the object's name; leave it out"),
        ("refresh", "lake_conn_id: other", "refresh.lake_conn_id: is the lake that is deployed to; leave it out"),
        ("refresh", "task_id: x", "refresh.task_id: is an argument of the DAG; leave it out"),
        ("refresh", "streams: [items]", "refresh.streams: is in source as well; write it once"),
        ("source", "options: {concurency: 3}", "source: options.concurency: unknown field; did you mean concurrency?"),
        ("refresh", "options: {concurency: 3}", "refresh: options.concurency: unknown field; did you mean "),
        ("refresh", "retires: 3", "source: Invalid arguments were passed to ResumableFullRefreshOperator"),
        ("refresh", "checkpoint_store: disk", "refresh: checkpoint_store: "),
        ("refresh", "deliver_after: no.yaml", "refresh: triggers: no.yaml: there is no such file"),
    ],
)
def test_what_a_declaration_may_not_say_is_told_with_its_place(objects: Path, part: str, line: str, said: str) -> None:
    declare(objects, line, part=part)
    found = only(objects)
    with DAG("d", schedule=None), pytest.raises(ConfigurationError) as told:
        found.refresh()
    assert str(told.value).startswith(f"{objects}/orders.yaml:1: raw.Orders: {said}")


@pytest.mark.parametrize("schedule", ["5", "nonsense", "'61 * * * *'", "[daily]"])
def test_a_schedule_that_is_no_cron_expression_is_told_with_its_place(objects: Path, schedule: str) -> None:
    declare(objects, f"schedule: {schedule}")
    with raises(ConfigurationError):
        _ = only(objects).schedule


def test_a_file_that_is_not_beside_the_declaration_is_named_before_anything_runs(objects: Path) -> None:
    (objects / "shop.source").unlink()
    with pytest.raises(ConfigurationError) as told:
        only(objects).refresh()
    assert told.value.place.endswith("raw.Orders")
    assert told.value.field == "source.source.file"
    check_messages(told.value.problem, objects / "shop.source")


def test_how_and_when_a_source_is_refreshed_is_nothing_to_deploy(lake: Lake, objects: Path) -> None:
    deploy(objects)
    declare(objects, "schedule: '0 4 * * *'", "options: {concurrency: 9}")
    assert deploy(objects)[0]["state"] == "nothing"


def test_the_example_of_the_documentation_is_the_source_that_it_says(tmp_path: Path) -> None:
    declaration = re.search("```yaml\n(kind: source.*?)```", (ROOT / "docs" / "builtins.md").read_text(), re.S)
    assert declaration is not None
    for file, content in (("objects/raw.yaml", declaration[1]), ("sources/shop.yaml", SHOP.read_text())):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(content)
    source = only(tmp_path / "objects")
    assert source.refresh().target == source.name
    assert source.arguments["source"]["file"] == str(tmp_path / "sources" / "shop.yaml")
    assert cron_of(source.schedule.timetable) == "0 4 * * *"


def test_sources_that_are_gone_and_those_of_each_instance_have_no_dag(objects: Path) -> None:
    (objects / "more.yaml").write_text(
        "kind: removed\nname: raw.gone\n"
        "---\nkind: source\nname: raw.each\nper_instance: region\nsource: {streams: [a]}\n"
    )
    assert only(objects).name == "raw.Orders"


def test_a_refresh_waits_until_what_is_declared_is_deployed(lake: Lake, objects: Path) -> None:
    name, uuid = "name: raw.Orders\n", "id: 0c9f2a44-64ce-4a8e-9b3e-5a0c6e1d7a11\n"
    first = (objects / "orders.yaml").read_text().replace(name, name + uuid)
    table = f"kind: table\n{name}{uuid}keep: false\ncolumns: [{{name: id, type: bigint}}]\n"
    for declared in (
        *(first, first.replace("page_size: 50", "page_size: 20"), first.replace("raw.Orders", "raw.sales")),
        *(first.replace("raw.Orders", "raw.sales") + "refresh: {retries: 3}\n", table, first),
    ):
        (objects / "orders.yaml").write_text(declared)
        found = declared_sources([str(objects)], project="acme", declared_version="1.0")
        assert [source.is_deployed() for source in found] == ["retries" in declared] * len(found)
        deploy(objects)
        assert all(source.is_deployed() for source in found)


def run_of(kind: str, *whys: str) -> dict[str, Any]:
    """The context of a run that the clock, somebody or these events have started."""
    events = [SimpleNamespace(extra={"why": why}) for why in whys]
    return {"dag_run": SimpleNamespace(run_type=kind), "triggering_asset_events": {"asset": events} if events else {}}


def test_a_run_for_the_first_rows_is_needed_until_they_are_there(lake: Lake, objects: Path) -> None:
    firsts = [run_of("scheduled"), *(run_of("asset_triggered", *["created"] * count) for count in (1, 2))]
    others = [run_of("manual"), run_of("backfill"), run_of("asset_triggered", "redefined")]
    others.append(run_of("asset_triggered", "created", "emptied"))
    found = only(objects, lake_conn_id="lake")
    deploy(objects)
    assert all(found.is_needed(**run) for run in (*firsts, *others))
    with lake.catalog.load_table("raw.Orders").transaction() as transaction:
        transaction.set_properties({PUBLISHED_PROPERTY: "ledger:1:1"})
    assert not any(found.is_needed(**run) for run in firsts)
    assert all(found.is_needed(**run) for run in others)
    declare(objects, "schedule: '@daily'")
    assert only(objects, lake_conn_id="lake").is_needed(**run_of("scheduled")), "its time has come"


def test_a_deploy_tells_which_sources_have_to_be_refreshed_and_why(lake: Lake, objects: Path) -> None:
    asset = only(objects, lake_conn_id="lake").asset
    for page_size, why in ((50, "created"), (20, "redefined")):
        declare(objects, page_size=page_size)
        result, events = deploy(objects, run_id=why)
        assert result["sources"] == ["raw.Orders"]
        assert events == {asset.name: {"deploy_id": result["deploy_id"], "why": why}}
    result, events = deploy(objects, run_id="later")
    assert (result["state"], result["sources"], events) == ("nothing", [], {})


@pytest.mark.parametrize("given", [False, True])
def test_a_try_whose_predecessor_died_after_the_deploy_sends_the_same_events(
    lake: Lake, objects: Path, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(objects, run_id="before")
    declare(objects, page_size=20)
    arguments = {"plan": run(migrate(objects, action="plan"))[0]["plan"]} if given else {}
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_rfr.operators.builtins.add_source_events", died)
        with pytest.raises(MemoryError):
            run(migrate(objects, **arguments))
    result, events = run(migrate(objects, **arguments))
    assert result["sources"] == ["raw.Orders"]
    assert [event["why"] for event in events.values()] == ["redefined"]
    assert deploy(objects, run_id="later")[1] == {}


def test_a_table_that_a_dead_deploy_made_once_more_is_told_by_the_next_run(
    lake: Lake, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(objects, run_id="before")
    lake.catalog.drop_table("raw.Orders")
    repair = {"policies": {"drift": "repair"}}
    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_rfr.builtins.deploy._close", died)
        with pytest.raises(MemoryError):
            run(migrate(objects, **repair), "dies")
    planned, _ = run(migrate(objects, action="plan", **repair))
    assert planned["changes"]
    result, events = run(migrate(objects, **repair), "next")
    assert result["sources"] == ["raw.Orders"]
    assert len(events) == 1
    assert run(migrate(objects, action="check"))[0]["changes"] is False


def died(*_: Any, **__: Any) -> None:
    raise MemoryError


def parse_ready_dag(objects: Path, code: str) -> list[str]:
    """What this code prints in a process of its own, without any connection."""
    environment = {
        "RFR_BUILTIN_OBJECTS": str(objects),
        "PATH": "/usr/bin:/bin",
        "AIRFLOW_HOME": str(objects / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


READY = """
import sys
from dags.builtin_sources import dag
heavy = {"pyspark", "pyiceberg", "pandas", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
assert (dag.dag_id, dag.task_ids) == ("refresh_raw.Orders", ["deployed", "needed", "refresh"])
from tests.airflow_versions import DagSerialization
known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
print(known.timetable.summary)
"""


@pytest.mark.parametrize(("lines", "said"), [([], "Asset or @once"), (["schedule: '0 4 * * *'"], "Asset or 0 4 * * *")])
def test_the_ready_dag_parses_and_serialises_without_a_connection(objects: Path, lines: list[str], said: str) -> None:
    declare(objects, *lines)
    assert parse_ready_dag(objects, READY)[-1] == said


WRONG = """
from tests.airflow_versions import DagBag
bag = DagBag("dags/builtin_sources.py")
assert not bag.import_errors, bag.import_errors
for name, dag in sorted(bag.dags.items()):
    print(name, dag.task_ids, type(dag.timetable).__name__)
task = bag.dags["refresh_raw.broken"].get_task("refresh")
try:
    task.python_callable(*task.op_args)
except Exception as error:
    print(type(error).__name__, str(error).partition("broken.yaml")[2])
"""


def test_a_source_that_is_declared_wrong_fails_alone(objects: Path) -> None:
    (objects / "broken.yaml").write_text(
        "kind: source\nname: raw.broken\nsource: {source: {file: ../gone.yaml}, streams: [orders]}\n"
    )
    told = parse_ready_dag(objects, WRONG)
    assert told[-3:] == [
        "refresh_raw.Orders ['deployed', 'needed', 'refresh'] AssetOrTimeSchedule",
        "refresh_raw.broken ['refresh'] AssetTriggeredTimetable",
        f"AirflowFailException :1: raw.broken: source.source.file: {objects.parent}/gone.yaml does not exist;"
        " write it relative to the declaration's file",
    ]
