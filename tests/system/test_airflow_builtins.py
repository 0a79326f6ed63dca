"""Built-in migration on a running Airflow: a new version of what is declared is deployed, and nobody asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, expect

from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.store.engine import open_store
from tests.integration.conftest import ROOT, needs_sql_on_spark
from tests.integration.postgres import PostgresServer
from tests.soon import PATIENCE
from tests.system.conftest import ENDED, SIZES, Story, new_airflow, wait_for
from tests.system.test_airflow_pages import act, run_started_by

pytestmark = needs_sql_on_spark

DAG = "builtin_migration"
FIRST = """
kind: table
name: ops.runs
columns:
  - {name: id, type: string, required: true}
  - {name: rows, type: int}
---
kind: view
name: ops.large_runs
query: SELECT id, rows FROM ops.runs WHERE rows > 10
"""
SECOND = """
kind: table
name: ops.runs
columns:
  - {name: id, type: string, required: true}
  - {name: rows, type: bigint}
  - {name: attempts, type: int}
---
kind: view
name: ops.large_runs
query: SELECT id, rows, attempts FROM ops.runs WHERE rows > 20
"""
SOURCE = f"""
kind: source
name: raw.declared
columns:
  - {{name: id, type: bigint}}
source:
  source: {{file: {ROOT}/airflow_provider_rfr/sample_api/shop.yaml, config: {{partitions: PARTITIONS, page_size: 25}}}}
  streams: [items]
  api_conn_id: shop
refresh:
  options: {{round_seconds: 1, concurrency: 4}}
"""
REFRESHES = "refresh_raw.declared"
NOTED = "  - {name: attempts, type: int}\n  - {name: note, type: string}"
THIRD = SECOND.replace("  - {name: attempts, type: int}", NOTED)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("declared")
    (folder / "ops.yaml").write_text(FIRST)
    return folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, objects: Path, postgres: PostgresServer) -> Iterator[Story]:
    """An Airflow of its own: what the ready DAG does unasked would be in the way of other tests."""
    dags = [ROOT / "dags" / f"{name}.py" for name in (DAG, "builtin_sources")]
    dags.append(Path(__file__).parent / "dags" / "semantics.py")
    settings = {"RFR_BUILTIN_OBJECTS": str(objects)}
    with new_airflow(tmp_path_factory.mktemp("migration"), postgres, dags, settings) as story:
        story.airflow.wait_for_dag(DAG)
        # Whatever Airflow's own default is, no lake is changed because a file was put into a folder.
        assert story.airflow.call("GET", f"/dags/{DAG}")["is_paused"]
        story.airflow.call("PATCH", f"/dags/{DAG}", {"is_paused": False})
        yield story


def ended_runs(story: Story) -> list[dict[str, Any]]:
    runs = story.airflow.call("GET", f"/dags/{DAG}/dagRuns?order_by=run_after")["dag_runs"]
    return [run for run in runs if run["state"] in ENDED]


def manual_runs(story: Story) -> set[str]:
    runs = story.airflow.call("GET", f"/dags/{DAG}/dagRuns?run_type=manual")["dag_runs"]
    return {run["dag_run_id"] for run in runs}


def wait_for_deploy(story: Story, number: int) -> None:
    """So many runs have ended, all of them well."""

    def log() -> str:
        return "\n".join(story.log(DAG, run["dag_run_id"])[-4000:] for run in ended_runs(story))

    runs = wait_for(
        lambda: (found := ended_runs(story)) and len(found) >= number and found, seconds=2 * PATIENCE, describe=log
    )
    assert {run["state"] for run in runs} == {"success"}, log()
    assert all(run["run_type"] == "asset_triggered" for run in runs)


@pytest.mark.gate
def test_a_new_version_is_deployed_unasked_while_a_refresh_runs_and_neither_is_harmed(
    story: Story, objects: Path
) -> None:
    wait_for_deploy(story, 1)
    catalog = open_catalog(story.lake.settings)
    table = catalog.load_table("ops.runs")
    rows = [{"id": f"r{number}", "rows": number} for number in range(30)]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    written = table.current_snapshot()
    story.start("on_demand", "beside", table="beside")
    wait_for(
        lambda: story.api.counts(path="/partitions/*")["requests"] > 0, describe=lambda: "the refresh did not begin"
    )
    (objects / "ops.yaml").write_text(SECOND)
    wait_for_deploy(story, 2)
    story.succeed("on_demand", "beside")
    story.assert_whole("raw.beside")
    now = catalog.load_table("ops.runs")
    kinds = {field.name: str(field.field_type) for field in now.schema().fields}
    assert kinds == {"id": "string", "rows": "long", "attempts": "int"}
    assert now.current_snapshot() == written, "columns changed, no row was written again"
    assert sorted(now.scan().to_arrow().to_pylist(), key=lambda row: row["rows"])[7]["rows"] == 7
    History(open_store(f"sqlite:///{story.airflow.home}/rfr_control_store.db"), catalog).maintain(always=True)
    history = story.lake.rows("rfr_system.refresh_history").to_pylist()
    assert [row["outcome"] for row in history if row["target"] == "raw.beside"] == ["published"]
    deploys = story.lake.rows("rfr_system.migration_history").to_pylist()
    steps = {(row["how"], row["state"]) for row in deploys if row["object_name"] == "ops.runs"}
    assert steps == {("create", "done"), ("evolve", "done")}


def test_a_run_by_hand_waits_for_approval_where_its_form_says_so(story: Story, objects: Path) -> None:
    wait_for_deploy(story, 1)
    before = len(ended_runs(story))
    (objects / "ops.yaml").write_text(THIRD)
    story.trigger(DAG, "asked", approval=True)
    task = f"/dags/{DAG}/dagRuns/asked/taskInstances/approve"
    waiting = ("deferred", "awaiting_input")
    wait_for(
        lambda: story.airflow.call("GET", task)["state"] in waiting, describe=lambda: story.log(DAG, "asked")[-4000:]
    )
    assert "note" not in columns(story)
    # Airflow fails a task that is answered before its scheduler has heard that it waits; nobody reads a plan so fast.
    heard = re.compile(r"Received executor event .*task_id='approve', run_id='asked'")
    wait_for(
        lambda: heard.search((story.airflow.home / "scheduler.log").read_text()), describe=lambda: "it was never heard"
    )
    story.airflow.call("PATCH", f"{task}/-1/hitlDetails", {"chosen_options": ["Approve"], "params_input": {}})
    assert story.wait_for_run(DAG, "asked") == "success", story.log(DAG, "asked")[-4000:]
    assert "note" in columns(story)
    assert len(ended_runs(story)) > before
    assert all(run["state"] == "success" for run in ended_runs(story))


def test_a_declared_source_is_refreshed_when_it_is_deployed_and_again_when_it_is_redefined(
    story: Story, objects: Path
) -> None:
    wait_for(lambda: ended_runs(story), describe=lambda: "nothing was ever deployed")
    (objects / "declared.yaml").write_text(SOURCE.replace("PARTITIONS", str(SIZES.partitions)))
    wait_for_rows(story, SIZES.partitions)
    story.assert_whole("raw.declared")
    table = story.lake.table("raw.declared")
    assert table.schema().find_field("id").field_id == 1, "the refresh wrote into the table that the deploy made"
    (objects / "declared.yaml").write_text(SOURCE.replace("PARTITIONS", str(SIZES.partitions // 2)))
    wait_for_rows(story, SIZES.partitions // 2)
    # Whether the DAG was known before its table was deployed is chance; it is refreshed once for that all the same.
    assert sorted(refreshes(story).values()).count("success") == 2
    assert all(run["state"] == "success" for run in ended_runs(story))


def test_a_deploy_is_started_once_from_the_page_of_migrations(chromium: Browser, story: Story) -> None:
    # The last test of this module: the others count runs that nobody has started.
    wait_for(lambda: ended_runs(story), describe=lambda: "nothing was ever deployed")
    earlier = manual_runs(story)
    url = f"http://127.0.0.1:{story.airflow.port}"
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.goto(url)
    expect(page.get_by_role("link", name="Dags", exact=True).first).to_be_visible()
    page.goto(f"{url}/rfr/migrations")
    expect(page.get_by_role("heading", name="Migrations", exact=True)).to_be_visible()
    dialog = act(page, "Deploy")
    expect(dialog).to_contain_text("makes a plan for rfr_lake_default, applies it and checks the result")
    dialog.get_by_role("button", name="Deploy").dblclick()
    expect(dialog).not_to_be_visible()
    run = run_started_by(page)
    assert story.wait_for_run(DAG, run) == "success"
    assert manual_runs(story) - earlier == {run}
    context.close()


def refreshes(story: Story) -> dict[str, str]:
    """States of the declared source's refreshes by run; none before its file is parsed anew, each half minute."""
    if not story.airflow.call("GET", f"/dags?dag_id_pattern={REFRESHES}")["dags"]:
        return {}
    runs = story.airflow.call("GET", f"/dags/{REFRESHES}/dagRuns")["dag_runs"]
    return {run["dag_run_id"]: str(story.task(REFRESHES, run["dag_run_id"])["state"]) for run in runs}


def wait_for_rows(story: Story, partitions: int) -> None:
    """Until so many partitions, each row once, and every run of the declared source's DAG, have come to their end."""

    def come() -> bool:
        states = refreshes(story)
        ids = story.lake.rows("raw.declared")["id"].to_pylist() if story.has("raw.declared") else []
        is_whole = len(set(ids)) == len(ids) == partitions * SIZES.pages * SIZES.page_records
        return is_whole and set(states.values()) <= {"success", "skipped"}

    wait_for(
        come,
        seconds=2 * PATIENCE,
        describe=lambda: "\n".join(story.log(REFRESHES, refresh)[-4000:] for refresh in refreshes(story)),
    )


def columns(story: Story) -> list[str]:
    return story.lake.table("ops.runs").schema().column_names
