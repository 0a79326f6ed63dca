"""``airflow rfr builtins`` on tables, which take no Spark; integration/test_builtins_docs.py has views as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.hooks.builtins import BuiltinsHook
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.store.leases import acquire
from tests.unit.cli import calls
from tests.unit.cli.calls import told
from tests.unit.triggers.lake import Lake

RUNS = """
kind: table
name: ops.runs
columns:
  - {name: id, type: string, required: true}
  - {name: rows, type: %s}
"""


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    folder = tmp_path / "objects"
    folder.mkdir()
    declare(folder, "int")
    return folder


def declare(folder: Path, kind: str, more: str = "") -> None:
    (folder / "ops.yaml").write_text(RUNS % kind + more)


def rfr(objects: Path, command: str, *arguments: Any) -> int:
    """``airflow rfr builtins ...`` in this process; returns the exit code."""
    place = ("--objects", objects, "--project", "acme", "--declared-version", "1.0", "--lake-conn-id", "lake")
    return calls.rfr("builtins", command, *place, *arguments)


def hook(objects: Path) -> BuiltinsHook:
    return BuiltinsHook([str(objects)], project="acme", version="1.0", lake_conn_id="lake")


def test_a_plan_says_by_its_exit_code_whether_there_is_anything_to_do(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rfr(objects, "plan", "-o", "json") == 2
    plan = told(capsys)
    assert [(step["name"], step["how"]) for step in plan["steps"]] == [("ops.runs", "create")]
    assert plan["exit_code"] == 2
    assert rfr(objects, "apply") == 0
    capsys.readouterr()
    assert rfr(objects, "plan", "-o", "json") == 0
    assert told(capsys)["steps"] == []
    declare(objects, "string")
    assert rfr(objects, "plan") == 1
    said = "- {name: rows, type: string, was: {type: int, using: CAST(`rows` AS string)}}"
    assert f"        write:  {said}    # {objects}/ops.yaml:2" in capsys.readouterr().out.splitlines()


def test_a_check_says_what_of_the_past_may_be_deleted(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a column was, once no table is so any more, and removals that are done: by its exit code, for CI."""
    rfr(objects, "apply")
    capsys.readouterr()
    assert rfr(objects, "plan", "--check", "-o", "json") == 0
    assert told(capsys) == []
    declare(
        objects, "int", "  - {name: ended_at, type: timestamp, was: finished_at}\n---\nkind: removed\nname: ops.old\n"
    )
    assert rfr(objects, "plan", "--check", "-o", "json") == 1
    assert told(capsys) == [{"name": "ops.old"}, {"name": "ops.runs.ended_at"}]
    rfr(objects, "apply")
    assert "ops.old, ops.runs.ended_at; delete them once no lake needs them" in capsys.readouterr().out
    declare(objects, "int", "  - {name: at, type: timestamp, was: ended_at}\n")
    assert rfr(objects, "plan", "--check") == 0, "it is what leads there"


def test_what_is_lost_and_which_views_break_is_said_name_by_name(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(objects, "int", "  - {name: note, type: string}\n")
    rfr(objects, "apply")
    declare(objects, "int")
    assert rfr(objects, "apply", "--accept-data-loss", "ops.runs") == 1, "that is another name"
    assert "column note would be lost" in capsys.readouterr().err
    assert rfr(objects, "plan", "--accept-data-loss", "ops.runs.note", "--break-views", "bob.v", "-o", "json") == 2
    plan = told(capsys)
    assert (plan["summary"]["data_loss"], list(plan["steps"][0]["losses"])) == (1, ["ops.runs.note"])
    assert plan["policies"]["break_views"] == ["bob.v"]
    assert rfr(objects, "apply", "--accept-data-loss", "ops.runs.note") == 0


def test_a_saved_plan_is_applied_only_to_what_it_was_made_from(
    lake: Lake, objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plan.json"
    assert rfr(objects, "plan", "--save", saved) == 2
    assert rfr(objects, "apply", "--plan", saved, "-o", "json") == 0
    declare(objects, "bigint")
    assert rfr(objects, "plan", "--save", saved) == 2
    declare(objects, "bigint", "  - {name: late, type: int}\n")
    capsys.readouterr()
    assert rfr(objects, "apply", "--plan", saved) == 1
    assert "stale" in capsys.readouterr().err
    table = load_table(hook(objects).catalog, "ops.runs")
    assert table is not None
    assert str(table.schema().find_type("rows")) == "int"


def test_a_lake_that_is_away_is_told_in_a_sentence(
    lake: Lake, objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.catalog.close()  # type: ignore[attr-defined]
    (tmp_path / "catalog.db").unlink()
    (tmp_path / "catalog.db").mkdir()
    assert rfr(objects, "plan") == 1
    said = capsys.readouterr().err
    assert f"the catalog 'rfr' (sqlite:///{tmp_path}/catalog.db) failed: unable to open" in said
    assert len(said.splitlines()) == 1


def test_status_and_history_tell_of_what_was_done(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rfr(objects, "apply")
    rfr(objects, "apply")
    capsys.readouterr()
    assert rfr(objects, "status", "-o", "json") == 0
    status = told(capsys)
    assert (status["version"], status["revision"], status["objects"], status["unfinished"]) == ("1.0", 1, 1, [])
    assert rfr(objects, "history", "-o", "json") == 0
    deploys = told(capsys)
    assert sorted(deploy["state"] for deploy in deploys) == ["done", "nothing"]
    done = next(deploy["deploy_id"] for deploy in deploys if deploy["state"] == "done")
    assert rfr(objects, "history", done, "-o", "json") == 0
    assert [(step["name"], step["action"], step["state"]) for step in told(capsys)] == [("ops.runs", "create", "done")]


def test_drift_is_told_and_stops_a_deploy_until_somebody_says_what_is_right(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rfr(objects, "apply")
    table = load_table(hook(objects).catalog, "ops.runs")
    assert table is not None
    with table.update_schema() as update:
        from pyiceberg.types import IntegerType

        update.add_column("by_hand", IntegerType())
    capsys.readouterr()
    assert rfr(objects, "drift", "-o", "json") == 2
    (drift,) = told(capsys)
    assert "by_hand" in str(drift["problems"])
    assert rfr(objects, "apply") == 1
    assert rfr(objects, "apply", "--drift", "repair") == 1, "that would lose what is in the column"
    assert rfr(objects, "apply", "--drift", "repair", "--accept-data-loss", "ops.runs.by_hand") == 0
    assert rfr(objects, "drift") == 0


def test_somebody_else_s_table_is_adopted_and_forgotten_with_its_rows(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa

    catalog = hook(objects).catalog
    catalog.create_namespace_if_not_exists("ops")
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("rows", pa.int32())])
    theirs = catalog.create_table("ops.runs", schema=schema)
    theirs.append(pa.Table.from_pylist([{"id": "a", "rows": 1}], schema=schema))
    assert rfr(objects, "apply") == 1
    assert "the table ops.runs is there and lacks our marker" in (said := capsys.readouterr().err)
    assert "rename one of the two, or adopt what has no marker" in said
    assert rfr(objects, "adopt", "ops.runs") == 0
    assert rfr(objects, "plan") == 0
    assert rfr(objects, "forget", "ops.runs") == 0
    table = load_table(catalog, "ops.runs")
    assert table is not None
    assert not [name for name in table.properties if name.startswith("rfr.")]
    assert table.scan().to_arrow().num_rows == 1
    assert rfr(objects, "forget", "ops.runs") == 1
    assert "is not recorded" in capsys.readouterr().err


def test_a_dead_deploy_s_lease_is_taken_by_its_token_and_by_no_other(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = hook(objects).store
    lease = acquire(store, "acme", holder="dead:1")
    assert rfr(objects, "force-unlock", "--token", lease.token + 1) == 1
    assert rfr(objects, "force-unlock", "--token", lease.token) == 0
    assert rfr(objects, "apply") == 0


def test_the_graph_and_the_garbage(lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (objects / "views.yaml").write_text("kind: view\nname: ops.v\nquery: SELECT id FROM ops.runs\n")
    assert rfr(objects, "graph") == 0
    graph = capsys.readouterr().out
    assert '"ops.runs" -> "ops.v";' in graph
    assert rfr(objects, "graph", "--json") == 0
    assert told(capsys) == {"text": graph.removesuffix("\n")}
    assert rfr(objects, "gc", "-o", "json") == 0
    assert told(capsys) == {"deleted": [], "kept": {}, "failed": {}}


def test_a_namespace_that_spark_would_take_for_the_catalog_is_refused(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (objects / "more.yaml").write_text("kind: table\nname: rfr.mine\ncolumns: [{name: a, type: int}]\n")
    assert rfr(objects, "plan") == 1
    assert "rfr is the catalog's name" in capsys.readouterr().err


def test_a_plan_looks_for_the_files_of_sources(lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "kind: source\nname: raw.orders\nsource: {source: {file: ../sources/shop.yaml}, streams: [orders]}\n"
    (objects / "sources.yaml").write_text(text)
    assert rfr(objects, "plan") == 1
    problem = f"source.source.file: {objects.parent}/sources/shop.yaml does not exist"
    assert f"sources.yaml:1: raw.orders: {problem}" in capsys.readouterr().err
    (objects.parent / "sources").mkdir()
    (objects.parent / "sources" / "shop.yaml").write_text("")
    assert rfr(objects, "plan") == 2


LOG = """
kind: log
name: ops.log
keep: false
per_instance: lake
columns: [{name: line, type: string}]
"""


def test_instances_are_declared_beside_what_is_generated_for_them(
    lake: Lake, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (objects / "log.yaml").write_text(LOG)
    assert rfr(objects, "apply") == 0
    assert "declare a document of kind instances" in capsys.readouterr().out
    lakes = objects / "lakes.yaml"
    lakes.write_text("kind: instances\nname: lake\ninstances: {eu: Europe West, us: main}\n")
    assert rfr(objects, "apply") == 0
    lakes.write_text("kind: instances\nname: lake\ninstances: {eu: Frankfurt, us: main}\n")
    capsys.readouterr()
    assert rfr(objects, "plan", "-o", "json") == 0, "an instance's new name changes nothing"
    there = {name for _, name in hook(objects).catalog.list_tables("ops")}
    assert there == {"runs", "log_Europe_West", "log_main"}
    lakes.write_text("kind: instances\nname: lake\ninstances: {eu: Frankfurt}\n")
    capsys.readouterr()
    assert rfr(objects, "plan", "-o", "json") == 2
    assert [(step["name"], step["how"]) for step in told(capsys)["steps"]] == [("ops.log_main", "remove")]
    lakes.unlink()
    assert rfr(objects, "plan") == 0, "unknown is not gone"
