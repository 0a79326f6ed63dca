"""``airflow rfr objects`` on tables, which take no Spark; integration/test_builtins_docs.py has views as well."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from airflow_provider_rfr.builtins import maintenance
from airflow_provider_rfr.builtins.model import BROKEN, broken_mark
from airflow_provider_rfr.hooks.builtins import BuiltinsHook
from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.store.leases import acquire
from tests.unit.builtins.execution.places import DuckEngine
from tests.unit.cli.calls import Rfr
from tests.unit.messages import check_messages
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


@pytest.fixture
def rfr(command: Rfr, lake: Lake, objects: Path) -> Rfr:
    """``airflow rfr objects ...``, for the objects in the lake."""
    place = ("--objects", objects, "--project", "acme", "--declared-version", "1.0", "--lake-conn-id", "lake")
    return lambda name, *arguments, code=0: command("objects", name, *place, *arguments, code=code)


def hook(objects: Path) -> BuiltinsHook:
    return BuiltinsHook([str(objects)], project="acme", version="1.0", lake_conn_id="lake")


def test_a_plan_says_by_its_exit_code_whether_there_is_anything_to_do(objects: Path, rfr: Rfr) -> None:
    plan = rfr("plan", "-o", "json", code=2).json
    assert [(step["name"], step["how"]) for step in plan["steps"]] == [("ops.runs", "create")]
    assert plan["exit_code"] == 2
    rfr("apply")
    assert rfr("plan", "-o", "json").json["steps"] == []
    declare(objects, "string")
    said = "- {name: rows, type: string, was: {type: int, using: CAST(`rows` AS string)}}"
    assert f"        write:  {said}    # {objects}/ops.yaml:2" in rfr("plan", code=1).out.splitlines()


def test_a_check_says_what_of_the_past_may_be_deleted(lake: Lake, objects: Path, rfr: Rfr) -> None:
    """What a column was, once no table is so any more, and removals that are done: by its exit code, for CI."""
    rfr("apply")
    assert rfr("plan", "--check", "-o", "json").json == []
    declare(
        objects, "int", "  - {name: ended_at, type: timestamp, was: finished_at}\n---\nkind: removed\nname: ops.old\n"
    )
    assert rfr("plan", "--check", "-o", "json", code=1).json == [{"name": "ops.old"}, {"name": "ops.runs.ended_at"}]
    assert "ops.old, ops.runs.ended_at; delete them once no lake needs them" in rfr("apply").out
    declare(objects, "int", "  - {name: at, type: timestamp, was: ended_at}\n")
    rfr("plan", "--check")  # it is what leads there


def test_what_is_lost_and_which_views_break_is_said_name_by_name(objects: Path, rfr: Rfr) -> None:
    declare(objects, "int", "  - {name: note, type: string}\n")
    rfr("apply")
    declare(objects, "int")
    another_name = rfr("apply", "--accept-data-loss", "ops.runs", code=1)
    assert "column note would be lost" in another_name.err
    plan = rfr("plan", "--accept-data-loss", "ops.runs.note", "--break-views", "bob.v", "-o", "json", code=2).json
    assert (plan["summary"]["data_loss"], list(plan["steps"][0]["losses"])) == (1, ["ops.runs.note"])
    assert plan["policies"]["break_views"] == ["bob.v"]
    rfr("apply", "--accept-data-loss", "ops.runs.note")


def test_a_saved_plan_is_applied_only_to_what_it_was_made_from(objects: Path, tmp_path: Path, rfr: Rfr) -> None:
    saved = tmp_path / "plan.json"
    rfr("plan", "--save", saved, code=2)
    rfr("apply", "--plan", saved, "-o", "json")
    declare(objects, "bigint")
    rfr("plan", "--save", saved, code=2)
    declare(objects, "bigint", "  - {name: late, type: int}\n")
    assert "stale" in rfr("apply", "--plan", saved, code=1).err
    table = load_table(hook(objects).catalog, "ops.runs")
    assert table is not None
    assert str(table.schema().find_type("rows")) == "int"


def test_a_lake_that_is_away_is_told_in_a_sentence(lake: Lake, tmp_path: Path, rfr: Rfr) -> None:
    lake.catalog.close()  # type: ignore[attr-defined]
    (tmp_path / "catalog.db").unlink()
    (tmp_path / "catalog.db").mkdir()
    said = rfr("plan", code=1).err
    assert f"the catalog 'rfr' (sqlite:///{tmp_path}/catalog.db) failed: unable to open" in said
    assert len(said.splitlines()) == 1


def test_status_and_history_tell_of_what_was_done(objects: Path, rfr: Rfr) -> None:
    rfr("apply")
    rfr("apply")
    status = rfr("status", "-o", "json").json
    assert (status["version"], status["revision"], status["objects"], status["unfinished"]) == ("1.0", 1, 1, [])
    deploys = rfr("history", "-o", "json").json
    assert sorted(deploy["state"] for deploy in deploys) == ["done", "nothing"]
    done = next(deploy["deploy_id"] for deploy in deploys if deploy["state"] == "done")
    assert [(step["name"], step["action"], step["state"]) for step in rfr("history", done, "-o", "json").json] == [
        ("ops.runs", "create", "done")
    ]


def test_status_names_tables_that_could_not_be_deleted_and_views_that_broke(
    objects: Path, rfr: Rfr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 62."""
    old = objects / "old.yaml"
    old.write_text("kind: table\nname: ops.old\nkeep: false\ncolumns: [{name: a, type: int}]\n")
    rfr("apply")
    old.unlink()
    rfr("apply", "--keep-days", "0")

    def refuse(*arguments: object) -> None:
        raise OSError("no route to the store")

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "purge_table", refuse)
        [aside] = rfr("gc", "-o", "json", code=1).json["failed"]
    query, why = "SELECT a FROM ops.old", "reads ops.old, which is removed"
    catalog = hook(objects).catalog
    DuckEngine(catalog, objects.parent / "views").create_view("bob.v", query, {BROKEN: broken_mark(query, why)})
    status = rfr("status", "-o", "json").json
    [waiting] = status["garbage"]
    since = datetime.now(timezone.utc) - datetime.fromisoformat(waiting.pop("not_before"))
    assert timedelta() <= since < timedelta(hours=1)
    assert waiting == {"table": aside, "reason": "no longer declared", "error": "OSError"}
    assert aside.startswith("ops.old__g")
    assert status["broken_views"] == [{"view": "bob.v", "reason": why}]
    assert rfr("gc", "-o", "json").json["deleted"] == [aside]
    assert rfr("status", "-o", "json").json["garbage"] == []


def test_drift_is_told_and_stops_a_deploy_until_somebody_says_what_is_right(objects: Path, rfr: Rfr) -> None:
    rfr("apply")
    table = load_table(hook(objects).catalog, "ops.runs")
    assert table is not None
    with table.update_schema() as update:
        update.add_column("by_hand", IntegerType())
    (drift,) = rfr("drift", "-o", "json", code=2).json
    assert "by_hand" in str(drift["problems"])
    rfr("apply", code=1)
    rfr("apply", "--drift", "repair", code=1)  # that would lose what is in the column
    rfr("apply", "--drift", "repair", "--accept-data-loss", "ops.runs.by_hand")
    rfr("drift")


def test_somebody_else_s_table_is_adopted_and_forgotten_with_its_rows(objects: Path, rfr: Rfr) -> None:
    import pyarrow as pa

    catalog = hook(objects).catalog
    catalog.create_namespace_if_not_exists("ops")
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("rows", pa.int32())])
    theirs = catalog.create_table("ops.runs", schema=schema)
    theirs.append(pa.Table.from_pylist([{"id": "a", "rows": 1}], schema=schema))
    assert "the table ops.runs is there and lacks our marker" in (said := rfr("apply", code=1).err)
    assert "rename one of the two, or adopt what has no marker" in said
    rfr("adopt", "ops.runs")
    rfr("plan")
    rfr("forget", "ops.runs")
    table = load_table(catalog, "ops.runs")
    assert table is not None
    assert not [name for name in table.properties if name.startswith("rfr.")]
    assert table.scan().to_arrow().num_rows == 1
    assert "is not recorded" in rfr("forget", "ops.runs", code=1).err


def test_an_adoption_does_nothing_else_and_prints_what_it_did(objects: Path, rfr: Rfr) -> None:
    catalog = hook(objects).catalog
    catalog.create_namespace_if_not_exists("ops")
    catalog.create_table(
        "ops.runs", Schema(NestedField(1, "id", StringType(), True), NestedField(2, "rows", IntegerType()))
    )
    more = objects / "more.yaml"
    more.write_text("kind: table\nname: ops.more\ncolumns: [{name: a, type: int}]\n")
    check_messages(rfr("adopt", "ops.runs", code=1).err)
    assert load_table(catalog, "ops.more") is None
    more.unlink()
    done = rfr("adopt", "ops.runs", "--json").json
    assert (done["state"], [(step["name"], step["how"]) for step in done["steps"]]) == ("done", [("ops.runs", "adopt")])


def test_no_days_are_kept_where_that_is_said(rfr: Rfr) -> None:
    assert rfr("plan", "--keep-days", "0", "--json", code=2).json["policies"]["keep_days"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("apply", "--spark-conf", "spark.master"),
        ("plan", "--sink", "ops.export"),
        ("plan", "--keep-days", "-5"),
        ("plan", "--keep-days", "1000000000000"),
        ("plan", "--check", "--save", "plan.json"),
        *(
            ("apply", "--plan", "plan.json", *policy)
            for policy in (("--drift", "repair"), ("--adopt", "ops.runs"), ("--keep-days", "0"), ("--sink", "a=hold"))
        ),
        ("history", "typo"),
        ("history", "--limit", "-1"),
        ("refresh", "ops.daily", "--all"),
        ("refresh",),
    ],
)
def test_arguments_that_would_be_ignored_or_do_not_fit_are_refused(arguments: tuple[str, ...], rfr: Rfr) -> None:
    check_messages(rfr(*arguments, code=1).err)


def test_a_file_that_can_not_be_written_is_told_in_a_line(tmp_path: Path, rfr: Rfr) -> None:
    (line,) = rfr("plan", "--save", tmp_path / "nowhere" / "plan.json", code=1).err.splitlines()
    assert line.startswith(f"{tmp_path}/nowhere/")
    assert line.endswith(" can't be read or written: No such file or directory")


def test_a_user_without_a_name_deploys_under_the_number(monkeypatch: pytest.MonkeyPatch, rfr: Rfr) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nameless)
    rfr("apply")
    assert rfr("history", "--json").json[0]["actor"] == f"user {os.getuid()}, airflow rfr objects"


def test_a_dead_deploy_s_lease_is_taken_by_its_token_and_by_no_other(objects: Path, rfr: Rfr) -> None:
    store = hook(objects).store
    lease = acquire(store, "acme", holder="dead:1")
    rfr("force-unlock", "--token", lease.token + 1, code=1)
    rfr("force-unlock", "--token", lease.token)
    rfr("apply")


def test_the_graph_and_the_garbage(objects: Path, rfr: Rfr) -> None:
    (objects / "views.yaml").write_text("kind: view\nname: ops.v\nquery: SELECT id FROM ops.runs\n")
    graph = rfr("graph").out
    assert '"ops.runs" -> "ops.v";' in graph
    assert rfr("graph", "--json").json == {"text": graph.removesuffix("\n")}
    assert rfr("gc", "-o", "json").json == {"deleted": [], "kept": {}, "failed": {}}


def test_a_namespace_that_spark_would_take_for_the_catalog_is_refused(objects: Path, rfr: Rfr) -> None:
    (objects / "more.yaml").write_text("kind: table\nname: rfr.mine\ncolumns: [{name: a, type: int}]\n")
    assert "rfr is the catalog's name" in rfr("plan", code=1).err


def test_a_plan_looks_for_the_files_of_sources(lake: Lake, objects: Path, rfr: Rfr) -> None:
    text = "kind: source\nname: raw.orders\nsource: {source: {file: ../sources/shop.yaml}, streams: [orders]}\n"
    (objects / "sources.yaml").write_text(text)
    problem = f"source.source.file: {objects.parent}/sources/shop.yaml does not exist"
    assert f"sources.yaml:1: raw.orders: {problem}" in rfr("plan", code=1).err
    (objects.parent / "sources").mkdir()
    (objects.parent / "sources" / "shop.yaml").write_text("")
    rfr("plan", code=2)


LOG = """
kind: log
name: ops.log
keep: false
per_instance: lake
columns: [{name: line, type: string}]
"""


def test_instances_are_declared_beside_what_is_generated_for_them(lake: Lake, objects: Path, rfr: Rfr) -> None:
    (objects / "log.yaml").write_text(LOG)
    assert "declare a document of kind instances" in rfr("apply").out
    lakes = objects / "lakes.yaml"
    lakes.write_text("kind: instances\nname: lake\ninstances: {eu: Europe West, us: main}\n")
    rfr("apply")
    lakes.write_text("kind: instances\nname: lake\ninstances: {eu: Frankfurt, us: main}\n")
    rfr("plan", "-o", "json")  # an instance's new name changes nothing
    there = {name for _, name in hook(objects).catalog.list_tables("ops")}
    assert there == {"runs", "log_Europe_West", "log_main"}
    lakes.write_text("kind: instances\nname: lake\ninstances: {eu: Frankfurt}\n")
    assert [(step["name"], step["how"]) for step in rfr("plan", "-o", "json", code=2).json["steps"]] == [
        ("ops.log_main", "remove")
    ]
    lakes.unlink()
    rfr("plan")  # unknown is not gone
