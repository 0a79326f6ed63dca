"""Whole deploys with SQL on Spark: the application as a process, then versions that follow."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins.refresh import refresh
from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine
from airflow_provider_rfr.lake.tables import list_views
from airflow_provider_rfr.store.engine import open_store
from tests.integration.builtin_platform import TO_NUMBERS, Platform
from tests.integration.builtin_sql_deploy import SPARK, Deploy
from tests.integration.conftest import Lake


class AppendingEngine(SparkSqlEngine):
    """Somebody appends once while rows are computed."""

    late: Any = None

    def compute(self, **options: Any) -> Any:
        computed = super().compute(**options)
        if self.late is not None:
            late, self.late = self.late, None
            late()
        return computed


def test_an_application_deploys_and_later_versions_rewrite_turn_views_round_and_lose_no_row(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    platform.declare(1, "string")
    deploy = Deploy(tmp_path)
    code, figures, output = platform.run_app(deploy.lake, actor="a test", spark=SPARK)
    assert code == 0, output[-4000:]
    assert (figures["state"], figures["revision"]) == ("done", 1)
    assert {"ops.a", "ops.b"} <= {shown.name for shown in list_views(deploy.catalog)}
    for view in list_views(deploy.catalog):
        assert deploy.sql(f"SELECT * FROM {view.name}") == [], "what the package declares itself is read as well"
    deploy.add(0, 1, 2)
    deploy.add(3)
    platform.declare(2, "bigint", TO_NUMBERS)
    engine = deploy.engine_of(AppendingEngine)
    engine.late = lambda: deploy.add(4)
    done = platform.deploy(deploy, engine, "2.0")
    steps = {step.name: step.how for step in done.steps if step.name.startswith("ops.")}
    assert (steps["ops.runs"], steps["ops.sums"]) == ("rewrite", "recompute")
    assert deploy.sql("SELECT * FROM ops.runs ORDER BY id") == [(n, n * 10) for n in range(5)]
    assert deploy.sql("SELECT * FROM ops.a ORDER BY id") == [(n, n * 10) for n in range(1, 5)]
    assert deploy.sql("SELECT * FROM ops.sums") == [(5, 40)]
    before = {name: deploy.catalog.load_table(name).metadata_location for name in ("ops.runs", "ops.sums")}
    assert platform.deploy(deploy, engine, "2.0").state == "nothing"
    assert {name: deploy.catalog.load_table(name).metadata_location for name in before} == before


def test_a_session_that_read_a_table_before_a_deploy_rewrote_it_reads_it_as_it_is_now(tmp_path: Path) -> None:
    """Row 63: nothing is kept of the table as it was."""
    platform = Platform(tmp_path)
    platform.declare(1, "string")
    deploy = Deploy(tmp_path)
    engine = deploy.engine_of(SparkSqlEngine)
    platform.deploy(deploy, engine, "1.0")
    deploy.add(1, 2)
    queries = [f"SELECT * FROM ops.{name} ORDER BY id" for name in ("runs", "a", "b")]
    assert [deploy.sql(query) for query in queries] == [[(1, "10"), (2, "20")]] * 3
    platform.declare(1, "bigint", TO_NUMBERS)
    done = platform.deploy(deploy, engine, "2.0")
    assert {step.name: step.how for step in done.steps}["ops.runs"] == "rewrite"
    assert [deploy.sql(query) for query in queries] == [[(1, 10), (2, 20)]] * 3


THROUGH = """
kind: materialized_view
name: ops.through
columns: [{name: id, type: bigint}, {name: rows, type: string}]
keys: [id]
query: SELECT b.id, b.rows FROM ops.b b JOIN bob.mine m ON b.id = m.id
"""


def test_materialized_views_are_refreshed_by_the_application_once_for_whatever_came(tmp_path: Path) -> None:
    """One over our views and a user's; one over the table itself, to which somebody appends meanwhile."""
    platform = Platform(tmp_path)
    platform.declare(1, "string")
    deploy = Deploy(tmp_path)
    engine = deploy.engine_of(AppendingEngine)
    platform.deploy(deploy, engine, "1.0")
    deploy.sql("CREATE NAMESPACE rfr.bob")
    deploy.sql("CREATE VIEW rfr.bob.mine AS SELECT id FROM rfr.ops.a")
    (platform.objects / "through.yaml").write_text(THROUGH)
    platform.deploy(deploy, engine, "1.1")

    def newest(name: str) -> Any:
        return deploy.catalog.load_table(name).current_snapshot()

    deploy.add(1, 2)
    request: dict[str, Any] = {"refresh": {"names": ["ops.through"]}, "version": None, "objects": None}
    code, figures, output = platform.run_app(deploy.lake, spark=SPARK, **request)
    assert code == 0, output[-4000:]
    assert [(view["state"], view["rows"]) for view in figures["views"].values()] == [("refreshed", 2)]
    assert deploy.sql("SELECT * FROM ops.through ORDER BY id") == [(1, "10"), (2, "20")]
    summary = newest("ops.through").summary.additional_properties
    assert json.loads(summary["rfr.inputs"]) == {"ops.runs": newest("ops.runs").snapshot_id}
    assert "rfr.migration" not in summary
    with closing(open_store(platform.store)) as store:

        def again() -> list[tuple[str, str]]:
            done = refresh(project="rfr", catalog=deploy.catalog, store=store, sql=engine)
            return [(entry.name, entry.state) for entry in done]

        engine.late = lambda: deploy.add(3)
        assert again() == [("ops.sums", "refreshed"), ("ops.through", "refreshed")]
        assert deploy.sql("SELECT n FROM ops.sums") == [(2,)]
        assert again() == [("ops.sums", "refreshed"), ("ops.through", "unchanged")]
        assert deploy.sql("SELECT n FROM ops.sums") == [(3,)]
        before = {name: newest(name) for name in ("ops.sums", "ops.through")}
        assert again() == [("ops.sums", "unchanged"), ("ops.through", "unchanged")]
        assert {name: newest(name) for name in before} == before
    assert platform.deploy(deploy, engine, "1.1").state == "nothing"


@pytest.mark.gate
def test_an_application_that_can_not_deploy_says_why_in_its_last_line(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    (platform.objects / "wrong.yaml").write_text("kind: nonsense\nname: ops.x\n")
    lake = Lake(tmp_path).settings
    code, figures, _ = platform.run_app(lake)
    assert (code, figures["error"]["type"]) == (1, "DeclarationError")
    assert "wrong.yaml:1" in figures["error"]["message"]
    code, figures, output = platform.run_app(lake, stroe="sqlite:///hidden")
    assert (code, figures["error"]["message"]) == (1, "stroe: unknown field; did you mean store?")
    assert "hidden" not in output
