"""Declared sources as DAGs have them, on a real control store and a real catalog."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_rfr.exceptions import ConfigurationError, DeclarationError
from airflow_provider_rfr.operators import BuiltinMigrationOperator
from airflow_provider_rfr.operators.declared_sources import DeclaredSource, declared_sources
from tests.unit.operators.test_builtin_migration import TaskInstance
from tests.unit.triggers.lake import Lake

ROOT = Path(__file__).resolve().parents[3]
ORDERS = """kind: source
name: raw.Orders
columns: [{name: id, type: bigint}]
source:
  source: {file: shop.yaml, config: {page_size: %d}}
  streams: [orders]
  api_conn_id: shop
"""


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "shop.source").write_text((ROOT / "demo" / "shop.yaml").read_text())
    (folder / "orders.yaml").write_text(ORDERS.replace("shop.yaml", "shop.source") % 50)
    return folder


def declare(objects: Path, *lines: str, part: str = "refresh", page_size: int = 50) -> None:
    """More lines of what is read (part ``source``), or of how and when."""
    text = ORDERS.replace("shop.yaml", "shop.source") % page_size
    head = f"{part}:\n" if part == "refresh" and lines else ""
    (objects / "orders.yaml").write_text(text + head + "".join(f"  {line}\n" for line in lines))


def only(objects: Path, **arguments: Any) -> DeclaredSource:
    (found,) = declared_sources([str(objects)], project="acme", declared_version="1.0", **arguments)
    return found


def migrate(objects: Path, **arguments: Any) -> BuiltinMigrationOperator:
    return BuiltinMigrationOperator(
        task_id="migrate",
        objects=[str(objects)],
        project="acme",
        declared_version="1.0",
        lake_conn_id="lake",
        **arguments,
    )


def run(task: BuiltinMigrationOperator) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the task returns, and the events that it tells."""
    events = OutletEventAccessors()
    result = task.execute({"ti": TaskInstance(), "outlet_events": events})  # type: ignore[typeddict-item]
    aliases = [outlet for outlet in task.outlets if isinstance(outlet, AssetAlias)]
    told = [each for alias in aliases for each in events[alias].asset_alias_events]
    return result, {each.dest_asset_key.name: each.extra for each in told}


def deploy(objects: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return run(migrate(objects))


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
        ("refresh", "task_id: x", "refresh.task_id: is the DAG's affair; leave it out"),
        ("refresh", "streams: [items]", "refresh.streams: stands in source too; say it once"),
        (
            "source",
            "options: {concurency: 3}",
            "source: options: options.concurency: unknown, did you mean concurrency?",
        ),
        ("refresh", "options: {concurency: 3}", "refresh: options: options.concurency: unknown, did you mean "),
        ("refresh", "retires: 3", "source: Invalid arguments were passed to ResumableFullRefreshOperator"),
        ("refresh", "checkpoint_store: disk", "refresh: checkpoint_store: "),
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
    with pytest.raises(ConfigurationError, match=r"raw\.Orders: refresh\.schedule: .* is no cron expression; write"):
        _ = only(objects).schedule


def test_a_file_that_is_not_beside_the_declaration_is_named_before_anything_runs(objects: Path) -> None:
    (objects / "shop.source").unlink()
    with pytest.raises(ConfigurationError) as told:
        only(objects).refresh()
    assert told.value.field.endswith("raw.Orders: source.source.file")
    assert told.value.problem == f"{objects}/shop.source is not there"


def test_how_and_when_a_source_is_refreshed_is_nothing_to_deploy(lake: Lake, objects: Path) -> None:
    deploy(objects)
    declare(objects, "schedule: '0 4 * * *'", "options: {concurrency: 9}")
    assert deploy(objects)[0]["state"] == "nothing"


def test_mistakes_of_declarations_are_told_as_they_are_anywhere(objects: Path) -> None:
    (objects / "more.yaml").write_text("kind: source\nname: raw.x\n")
    with pytest.raises(DeclarationError, match="a source has source; none is given"):
        only(objects)


def test_the_example_of_the_documentation_makes_the_dag_of_the_declaration_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "builtins.md").read_text()
    declaration, code = (
        re.search(f"```{language}\n({begin}.*?)```", text, re.S)
        for language, begin in (("yaml", "kind: source"), ("python", "[^`]*declared_sources"))
    )
    assert declaration is not None
    assert code is not None
    for folder, file, content in (
        ("objects", "raw.yaml", declaration[1]),
        ("sources", "shop.yaml", (ROOT / "demo" / "shop.yaml").read_text()),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(compile(code[1], "docs/builtins.md", "exec"), found)
    (made,) = found["declared_sources"](["objects"], project="acme")
    assert made.arguments["source"]["file"] == str(tmp_path / "sources" / "shop.yaml")
    assert made.schedule.timetable.expression == "0 4 * * *"


def test_sources_that_are_gone_and_those_of_each_instance_have_no_dag(objects: Path) -> None:
    (objects / "more.yaml").write_text(
        "kind: source\nname: raw.gone\nsource: {streams: [a]}\n"
        "removed: {deprecated_since: '0.1', removed_in: '0.2'}\n"
        "---\nkind: source\nname: raw.each\nper_instance: region\nsource: {streams: [a]}\n"
    )
    assert only(objects).name == "raw.Orders"


def test_a_refresh_waits_until_its_table_is_deployed(lake: Lake, objects: Path) -> None:
    found = only(objects)
    assert not found.is_deployed()
    deploy(objects)
    assert found.is_deployed()


def test_a_deploy_tells_the_sources_that_have_to_come_anew_and_tells_it_to_who_asks_again(
    lake: Lake,
    objects: Path,
) -> None:
    asset = only(objects, lake_conn_id="lake").asset
    assert deploy(objects)[1] == {}, "the first refresh is the source's own affair"
    declare(objects, page_size=20)
    result, events = deploy(objects)
    assert (result["sources"], events) == (["raw.Orders"], {asset.name: {"deploy_id": result["deploy_id"]}})
    assert deploy(objects)[1] == {}


def test_a_task_whose_predecessor_died_after_the_deploy_tells_the_same(lake: Lake, objects: Path) -> None:
    deploy(objects)
    declare(objects, page_size=20)
    plan = run(migrate(objects, action="plan"))[0]["plan"]
    first, again = (run(migrate(objects, plan=plan)) for _ in range(2))
    assert first == again
    assert first[0]["sources"] == ["raw.Orders"]
    assert len(first[1]) == 1


READY = """
import sys
from dags.builtin_sources import deployed, source
heavy = {"pyspark", "pyiceberg", "pandas", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
dag = deployed.dag
assert (dag.dag_id, dag.task_ids) == ("refresh_raw.Orders", ["deployed", "refresh"])
from airflow.serialization.serialized_objects import DagSerialization
known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
print(known.timetable.summary)
"""


@pytest.mark.parametrize(("lines", "said"), [([], "Asset or @once"), (["schedule: '0 4 * * *'"], "Asset or 0 4 * * *")])
def test_the_ready_dag_parses_and_serialises_without_a_connection(objects: Path, lines: list[str], said: str) -> None:
    declare(objects, *lines)
    environment = {"RFR_BUILTIN_OBJECTS": str(objects), "PATH": "/usr/bin:/bin", "AIRFLOW_HOME": str(objects / "home")}
    done = subprocess.run(
        [sys.executable, "-c", READY], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == said
