"""SQL of a deploy: real Spark with Iceberg's runtime on PyIceberg's SQL catalog; views, and rows of queries."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.builtins.model import Column
from airflow_provider_rfr.builtins.spark_sql import _has_runtime
from airflow_provider_rfr.exceptions import ConfigurationError, SchemaError, SparkJobError
from airflow_provider_rfr.lake.catalog import spark_sql_settings
from airflow_provider_rfr.lake.commits import CommitConflictError
from airflow_provider_rfr.lake.migrated_table import MigratedTable, TableChange, table_definition
from airflow_provider_rfr.lake.tables import find_view, list_views
from airflow_provider_rfr.preflight import installed_version
from tests.integration import builtin_sql_program, builtin_sql_runtime
from tests.integration.builtin_sql_deploy import AS_NUMBER, MADE_BY_US, REWRITE, Deploy
from tests.integration.conftest import figures_of, kill_group, start_python
from tests.soon import PATIENCE, wait_until


def count(files: Any) -> int:
    """The rows in files."""
    return sum(file.rows for file in files)


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    try:
        yield Deploy(tmp_path)
    except ConfigurationError as error:
        if error.field == "jars" and not os.environ.get("CI"):
            pytest.skip("Iceberg's runtime can't be had from Maven here")
        raise


@pytest.mark.gate
def test_a_view_keeps_text_columns_comment_and_markers(deploy: Deploy) -> None:
    deploy.runs(range(3))
    properties = {"rfr.object-id": "it's \\ me", "rfr.step": "d/1"}
    columns = [Column("id", "bigint", comment="who's `first`"), Column("state", "string")]
    text = "SELECT id, /* why */ 'a ${x} \\\\ b' AS state FROM runs -- the end"
    deploy.view("ops.v", text, *columns, properties={**properties, "comment": 'it\'s a "view"\nof ours'})
    (view,) = list_views(deploy.catalog)
    assert (view.name, view.query, view.namespace) == ("ops.v", text, "ops")
    assert properties.items() <= view.properties.items()
    assert view.comment == 'it\'s a "view"\nof ours'
    assert [(column.name, column.type, column.comment) for column in view.columns] == [
        ("id", "bigint", "who's `first`"),
        ("state", "string", None),
    ]
    assert deploy.sql("SELECT * FROM ops.v ORDER BY id")[0] == (0, "a ${x} \\ b")


def test_a_view_whose_text_becomes_a_part_of_the_former_one_has_the_new_text(deploy: Deploy) -> None:
    deploy.runs()
    for text in ("SELECT id FROM ops.runs /* some */ WHERE id > 0", "SELECT id FROM ops.runs"):
        deploy.view("ops.v", text)
        assert list_views(deploy.catalog)[0].query == text


def test_views_that_read_each_other_turn_round_in_the_new_order(deploy: Deploy) -> None:
    deploy.runs(range(3))
    deploy.view("ops.a", "SELECT id FROM ops.runs")
    deploy.view("ops.b", "SELECT id FROM ops.a WHERE id > 0")
    deploy.view("ops.b", "SELECT id, state FROM ops.runs")
    deploy.view("ops.a", "SELECT id, state FROM ops.b WHERE id > 1")
    assert deploy.sql("SELECT * FROM ops.a") == [(2, "done")]
    assert len(deploy.sql("SELECT * FROM ops.b")) == 3


def test_a_view_can_not_read_itself_and_stays_what_it_was(deploy: Deploy) -> None:
    deploy.runs(range(3))
    deploy.view("ops.a", "SELECT id FROM ops.runs")
    deploy.view("ops.b", "SELECT id FROM ops.a")
    with pytest.raises(SparkJobError, match="view ops.a"):
        deploy.view("ops.a", "SELECT id FROM ops.b")
    assert len(deploy.sql("SELECT * FROM ops.b")) == 3


def test_a_view_over_a_widened_column_reads_large_values_after_it_is_made_again(deploy: Deploy) -> None:
    columns = [Column("id", "int")]
    MigratedTable.create(deploy.catalog, "ops.narrow", table_definition(columns))
    deploy.view("ops.v", "SELECT id FROM ops.narrow")
    MigratedTable.load(deploy.catalog, "ops.narrow").alter(
        TableChange(updates=[[{"op": "widen", "column": "id", "type": "bigint"}]])
    )
    table = deploy.catalog.load_table("ops.narrow")
    table.append(pa.Table.from_pylist([{"id": 2**40}], table.schema().as_arrow()))
    with pytest.raises(Exception, match="(?s)CAST|cast"):
        deploy.sql("SELECT * FROM ops.v")
    deploy.view("ops.v", "SELECT id FROM ops.narrow")
    assert deploy.sql("SELECT * FROM ops.v") == [(2**40,)]
    assert list_views(deploy.catalog)[0].columns[0].type == "bigint"


def test_properties_and_comment_of_a_view_change_without_its_text(deploy: Deploy) -> None:
    deploy.runs()
    deploy.view("ops.v", "SELECT id FROM ops.runs", properties={"a": "1", "b": "2", "comment": "old"})
    for _ in range(2):
        deploy.engine.set_view_properties("ops.v", {"a": None, "c": "3", "comment": "it's new"})
    (view,) = list_views(deploy.catalog)
    assert {key: view.properties.get(key) for key in "abc"} == {"a": None, "b": "2", "c": "3"}
    assert (view.comment, view.query) == ("it's new", "SELECT id FROM ops.runs")
    deploy.engine.set_view_properties("ops.v", {"comment": None})
    assert list_views(deploy.catalog)[0].comment is None


def test_the_owner_of_a_view_changes_with_its_other_properties(deploy: Deploy) -> None:
    """Spark's ALTER VIEW takes none, and nothing takes it away."""
    deploy.runs()
    columns = [Column("n", "bigint", comment="a number")]
    text = "SELECT id AS n FROM ops.runs -- all"
    deploy.view("ops.v", text, *columns, properties={**MADE_BY_US, "b": "2", "owner": "ann", "comment": "old"})
    for owner, said in (("bob", "bob"), (None, "")):
        deploy.engine.set_view_properties("ops.v", {"owner": owner, "c": "3", "b": None, "comment": None})
        (view,) = list_views(deploy.catalog)
        assert dict(view.properties) == {**MADE_BY_US, "owner": said, "c": "3"}
        assert (view.query, view.columns[0].name, view.columns[0].comment) == (text, "n", "a number")


def test_a_view_is_renamed_and_dropped_as_often_as_one_asks(deploy: Deploy) -> None:
    deploy.runs(range(2))
    deploy.view("ops.v", "SELECT id FROM runs")
    for _ in range(2):
        deploy.engine.rename_view("ops.v", "other.w")
    assert [view.name for view in list_views(deploy.catalog)] == ["other.w"]
    assert len(deploy.sql("SELECT * FROM other.w")) == 2, "a name without a namespace is still looked for in ops"
    for _ in range(2):
        deploy.engine.drop_view("other.w")
    assert list_views(deploy.catalog) == ()
    with pytest.raises(SparkJobError, match="view ops.v"):
        deploy.engine.rename_view("ops.v", "ops.x")


def test_a_view_whose_query_gives_the_columns_in_another_order_is_refused(deploy: Deploy) -> None:
    deploy.runs()
    with pytest.raises(SchemaError, match="gives state, id; declared are id, state; write"):
        deploy.view("ops.v", "SELECT state, id FROM ops.runs", Column("id", "bigint"), Column("state", "string"))
    with pytest.raises(SparkJobError, match=r"view ops.v: .*ops.*nowhere.* cannot be found"):
        deploy.view("ops.v", "SELECT * FROM ops.nowhere")
    with pytest.raises(SparkJobError, match="PARSE_SYNTAX_ERROR"):
        deploy.view("ops.v", "DROP TABLE ops.runs")
    with pytest.raises(SparkJobError, match="already exists"):
        deploy.view("ops.runs", "SELECT 1 AS id")
    assert list_views(deploy.catalog) == ()


def test_a_users_view_made_elsewhere_keeps_its_meaning_and_its_columns_when_it_is_bound_anew(deploy: Deploy) -> None:
    deploy.runs(range(3))
    deploy.engine.create_view("mine.x", "SELECT 1 AS n", {})
    deploy.sql("USE rfr.ops")
    deploy.sql(
        "CREATE VIEW rfr.mine.v (number COMMENT 'c', word) TBLPROPERTIES ('k' = 'v') AS SELECT id, state FROM runs"
    )
    deploy.sql("USE spark_catalog.default")
    before = find_view(deploy.catalog, "mine.v")
    deploy.view("mine.v", before.query, properties=before.properties)
    after = find_view(deploy.catalog, "mine.v")
    assert after == before
    assert (after.namespace, dict(after.properties)) == ("ops", {"k": "v"})
    assert deploy.sql("SELECT number, word FROM rfr.mine.v WHERE number > 1") == [(2, "done")]


@pytest.mark.gate
def test_a_string_becomes_a_number_in_every_row_and_the_old_snapshot_still_reads(deploy: Deploy) -> None:
    deploy.runs(range(5), range(5, 9))
    old = deploy.catalog.load_table("ops.runs").current_snapshot()
    computed = deploy.rewrite()
    assert count(computed) == 9
    assert [row["rows"] for row in deploy.rows()] == [n * 10 for n in range(9)]
    assert [row["rows"] for row in deploy.rows(snapshot_id=old.snapshot_id)] == [str(n * 10) for n in range(9)]
    assert deploy.sql("SELECT sum(rows), count(*) FROM ops.runs") == [(360, 9)]
    now = deploy.catalog.load_table("ops.runs").current_snapshot()
    assert now.summary.additional_properties["rfr.migration"] == "d/1"


@pytest.mark.gate
def test_only_rows_that_came_are_computed_after_a_commit_that_was_refused(deploy: Deploy) -> None:
    deploy.runs(range(5), range(5, 9))
    table, target, computed = deploy.start()
    for ids in (range(9, 11), range(11, 12)):
        deploy.append(ids)
        with pytest.raises(CommitConflictError):
            table.replace_rows(AS_NUMBER, computed, target, {})
        before = {file.location for file in computed}
        table, target, computed = deploy.start()
        # Spark 3 computes all of them again.
        if installed_version("pyspark") >= "4":
            assert before < {file.location for file in computed}
            assert sum(file.rows for file in computed if file.location not in before) == len(ids)
    table.replace_rows(AS_NUMBER, computed, target, {})
    assert [row["rows"] for row in deploy.rows()] == [n * 10 for n in range(12)]


def test_a_rewrite_starts_again_after_rows_were_deleted(deploy: Deploy) -> None:
    deploy.runs(range(5))
    _, _, computed = deploy.start()
    deploy.sql("DELETE FROM ops.runs WHERE id = 3")
    deploy.append(range(5, 6))
    table, target, again = deploy.start()
    assert not {file.location for file in computed} & {file.location for file in again}
    table.replace_rows(AS_NUMBER, again, target, {})
    assert [row["id"] for row in deploy.rows()] == [0, 1, 2, 4, 5]


def test_a_rewrite_reads_columns_that_came_after_the_last_row(deploy: Deploy) -> None:
    deploy.runs(range(3))
    MigratedTable.load(deploy.catalog, "ops.runs").alter(
        TableChange(updates=[[{"op": "add", "column": "note", "type": "string"}]])
    )
    query = REWRITE.replace("region FROM", "region, coalesce(note, state) AS note FROM")
    table, target, computed = deploy.start(query=query)
    table.replace_rows(AS_NUMBER, computed, target, {})
    assert [(row["rows"], row["note"]) for row in deploy.rows()] == [(n * 10, "done") for n in range(3)]


def test_another_query_or_other_columns_take_nothing_of_what_was_finished(deploy: Deploy) -> None:
    deploy.runs(range(5))
    _, _, computed = deploy.start()
    _, _, other = deploy.start(query=REWRITE.replace("AS BIGINT)", "AS BIGINT) + 1"))
    assert not {file.location for file in computed} & {file.location for file in other}


@pytest.mark.gate
def test_rows_that_spark_deleted_by_position_do_not_come_back(deploy: Deploy) -> None:
    deploy.runs(range(6), range(6, 8))
    deploy.sql("ALTER TABLE ops.runs SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    deploy.sql("DELETE FROM ops.runs WHERE id = 3")
    assert deploy.catalog.load_table("ops.runs").inspect.delete_files().num_rows == 1
    deploy.rewrite()
    assert [row["id"] for row in deploy.rows()] == [0, 1, 2, 4, 5, 6, 7]


def test_a_table_with_equality_deletes_is_computed_as_a_whole(deploy: Deploy, tmp_path: Path) -> None:
    deploy.runs(range(4), range(4, 8))
    deploy.delete_by_equality(tmp_path / "deletes.parquet", [3, 6])
    _, _, computed = deploy.start()
    assert count(computed) == 6
    assert count(deploy.start()[2]) == 6


def test_files_of_a_partitioned_table_are_described_with_their_partitions_also_when_taken_again(deploy: Deploy) -> None:
    deploy.runs(range(12), partitioning=("region", "bucket(2, id)"))
    deploy.start()
    deploy.rewrite()
    assert [row["rows"] for row in deploy.rows()] == [n * 10 for n in range(12)]
    assert [row["id"] for row in deploy.rows(row_filter="region = 'r1'")] == [1, 4, 7, 10]
    assert deploy.sql("SELECT id FROM ops.runs WHERE region = 'r2' AND id > 5 ORDER BY id") == [(8,), (11,)]


def test_an_expression_over_other_rows_is_computed_as_a_whole(deploy: Deploy) -> None:
    deploy.runs(range(3), range(3, 5))
    query = "SELECT id, state, max(CAST(rows AS BIGINT)) OVER () AS rows, region FROM ops.runs"
    _, _, first = deploy.start(query=query)
    assert count(first) == 5
    deploy.append(range(5, 6))
    table, target, again = deploy.start(query=query)
    assert not {file.location for file in first} & {file.location for file in again}
    table.replace_rows(AS_NUMBER, again, target, {})
    assert {row["rows"] for row in deploy.rows()} == {50}


def test_a_value_that_does_not_fit_fails_the_work_with_its_column(deploy: Deploy) -> None:
    deploy.runs(range(3))
    with pytest.raises(SparkJobError, match="CAST_INVALID_INPUT.*'done'"):
        deploy.start(query=REWRITE.replace("CAST(rows", "CAST(state"))
    with pytest.raises(SchemaError, match="column rows: string does not fit"):
        deploy.start(query=REWRITE.replace("CAST(rows AS BIGINT)", "state"))
    with pytest.raises(SchemaError, match="gives more; declared are id, "):
        deploy.start(query="SELECT 1 AS more FROM ops.runs", snapshot=None)
    with pytest.raises(SparkJobError, match="PARSE_SYNTAX_ERROR"):
        deploy.start(query="DELETE FROM ops.runs", snapshot=None)
    assert [row["rows"] for row in deploy.rows()] == ["0", "10", "20"]


SUMS = [Column("region", "string"), Column("n", "bigint"), Column("at", "timestamp"), Column("by", "map<string,int>")]
SUMS_OF = """SELECT region, count(*) AS n, TIMESTAMP '2026-01-02 03:04:05' AS at, map('a', 1) AS by
FROM runs GROUP BY region"""


@pytest.mark.gate
def test_a_materialized_view_is_computed_with_the_declared_types_and_equal_contents(deploy: Deploy) -> None:
    deploy.runs(range(6))
    MigratedTable.create(deploy.catalog, "ops.sums", table_definition(SUMS))
    contents = []
    for number in range(2):
        table = MigratedTable.load(deploy.catalog, "ops.sums")
        target = table.coming(TableChange(), f"d-{number}-")
        computed = deploy.engine.compute(query=SUMS_OF, table="ops.sums", target=target)
        table.replace_rows(TableChange(), computed, target, {"rfr.migration": f"d/{number}"})
        rows = deploy.catalog.load_table("ops.sums").scan().to_arrow().to_pylist()
        contents.append(sorted(rows, key=lambda row: row["region"]))
    assert contents[0] == contents[1]
    assert [(row["region"], row["n"], row["by"]) for row in contents[0]] == [(f"r{n}", 2, [("a", 1)]) for n in range(3)]
    assert deploy.sql("SELECT sum(n), min(at) FROM ops.sums")[0][0] == 6


def test_two_lakes_of_one_name_in_one_process_are_not_mistaken_for_each_other(deploy: Deploy, tmp_path: Path) -> None:
    deploy.runs(range(2))
    (tmp_path / "other").mkdir()
    other = Deploy(tmp_path / "other")
    other.runs(range(5))
    counts = [project.sql("SELECT count(*) FROM ops.runs") for project in (deploy, other)]
    assert counts == [[(2,)], [(5,)]]


@pytest.mark.gate
def test_nothing_that_opens_the_catalog_is_a_setting_of_the_application(deploy: Deploy) -> None:
    settings = dict(deploy.session.sparkContext.getConf().getAll())
    assert not [name for name in settings if name.startswith("spark.sql.catalog.")]
    assert "credential" in settings["spark.redaction.regex"]


def test_what_a_sigkill_leaves_is_deleted_once_somebody_commits(deploy: Deploy, tmp_path: Path) -> None:
    deploy.runs(range(5), range(5, 10), range(10, 15), range(15, 20))
    # A task for each file.
    splits = {"read.split.target-size": "1", "read.split.adaptive-size.enabled": "false"}
    MigratedTable.load(deploy.catalog, "ops.runs").alter(TableChange(properties=splits))
    process = start_python("-m", builtin_sql_program.__name__, tmp_path)
    folder = tmp_path / "warehouse" / "ops" / "runs" / "data"
    wait_until(lambda: len(list(folder.glob("d-1-*.parquet"))) >= 2 or process.poll() is not None, 400)
    alive = process.poll() is None
    kill_group(process)
    assert alive, "the program ended before it could be killed"
    left = set(folder.glob("d-1-*.parquet"))
    table, target, computed = deploy.start()
    ours = {Path(file.location.removeprefix("file://")) for file in computed}
    assert left and not left & ours
    table.replace_rows(AS_NUMBER, computed, target, {})
    target.collect(computed)
    assert set(folder.glob("d-1-*.parquet")) == ours
    assert [row["rows"] for row in deploy.rows()] == [n * 10 for n in range(20)]


def test_plain_spark_sql_reads_a_view_of_ours(deploy: Deploy, tmp_path: Path) -> None:
    deploy.runs(range(3))
    deploy.view("ops.v", "SELECT id FROM runs WHERE id > 0", Column("id", "bigint", comment="c"))
    other = deploy.session.newSession()
    for name, value in spark_sql_settings(deploy.lake).items():
        if name.startswith("spark.sql.catalog."):
            other.conf.set(name, value)
    assert other.sql("SELECT current_catalog()").first()[0] == "spark_catalog"
    assert [row.id for row in other.sql("SELECT * FROM rfr.ops.v ORDER BY id").collect()] == [1, 2]


def test_without_maven_it_takes_jars_and_without_either_it_says_what_to_give(deploy: Deploy, tmp_path: Path) -> None:
    jars = deploy.session.sparkContext.getConf().get("spark.jars").split(",")
    processes = {}
    for name, files in {"jars": jars, "neither": []}.items():
        (tmp_path / name).mkdir()
        arguments = ("-m", builtin_sql_runtime.__name__, tmp_path / name, json.dumps(files))
        processes[name] = start_python(*arguments, stderr=subprocess.DEVNULL)
    figures = {name: figures_of(process.communicate(timeout=PATIENCE)[0]) for name, process in processes.items()}
    assert figures["jars"] == {"namespaces": ["ops"]}
    assert figures["neither"]["error"].startswith("jars: ")
    assert "could not be had from Maven" in figures["neither"]["error"]
    assert "or give the files as jars" in figures["neither"]["error"]


def test_a_spark_that_was_started_without_the_extensions_is_none_to_work_with(deploy: Deploy) -> None:
    extensions = spark_sql_settings(deploy.lake)["spark.sql.extensions"]
    assert _has_runtime(deploy.session, extensions)
    assert not _has_runtime(deploy.session, "some.other.Extensions")
