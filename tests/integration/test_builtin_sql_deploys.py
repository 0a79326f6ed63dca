"""Whole deploys with SQL on Spark: the application as a process, then versions that follow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.builtins import Applied, apply, load_objects, observe, plan
from airflow_provider_rfr.builtins.fingerprint import contract_of
from airflow_provider_rfr.builtins.spark import SparkSqlEngine
from airflow_provider_rfr.builtins.spec import Column
from airflow_provider_rfr.lake.views import list_views
from airflow_provider_rfr.store.engine import open_store
from tests.integration.builtin_sql_deploy import SPARK, Deploy
from tests.integration.conftest import ROOT, figures_of

APP = ROOT / "spark_apps" / "builtin_migration.py"
RUNS = """
kind: table
name: ops.runs
columns: [{{name: id, type: bigint}}, {{name: rows, type: {type}}}]
migrations: {migrations}
"""
VIEWS = {
    1: {"ops.a": "SELECT id, rows FROM ops.runs", "ops.b": "SELECT id, rows FROM ops.a WHERE id > 0"},
    2: {"ops.b": "SELECT id, rows FROM ops.runs WHERE id > 0", "ops.a": "SELECT id, rows FROM ops.b"},
}
SUMS = """
kind: materialized_view
name: ops.sums
columns: [{name: n, type: bigint}, {name: largest, type: bigint}]
query: SELECT count(*) AS n, max(CAST(rows AS BIGINT)) AS largest FROM ops.runs
"""


class AppendingEngine(SparkSqlEngine):
    """Somebody appends once while rows are computed."""

    late: Any = None

    def compute(self, **options: Any) -> Any:
        found = super().compute(**options)
        if self.late is not None:
            late, self.late = self.late, None
            late()
        return found


class Platform:
    """Declarations in a folder, and deploys of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = folder / "objects"
        self.objects.mkdir()
        self.store = f"sqlite:///{folder}/store.db"

    def declare(self, number: int, type: str, migrations: str = "[]") -> None:
        (self.objects / "runs.yaml").write_text(RUNS.format(type=type, migrations=migrations))
        (self.objects / "sums.yaml").write_text(SUMS)
        for name, query in VIEWS[number].items():
            columns = f"[{{name: id, type: bigint}}, {{name: rows, type: {type}}}]"
            text = f"kind: view\nname: {name}\ncolumns: {columns}\nquery: {query}\n"
            (self.objects / f"{name}.yaml").write_text(text)

    def run_app(self, lake: Mapping[str, Any], **fields: Any) -> tuple[int, dict[str, Any], str]:
        config = self.folder / "migration.json"
        said = {
            "lake": lake,
            "store": self.store,
            "version": "1.0",
            "objects": ["objects"],
            **fields,
        }
        config.write_text(json.dumps(said))
        ended = subprocess.run(
            [sys.executable, str(APP), "--config", str(config)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        return ended.returncode, figures_of(ended.stdout), ended.stdout + ended.stderr

    def deploy(self, deploy: Deploy, engine: SparkSqlEngine, version: str) -> Applied:
        spec = load_objects(self.objects, version=version)
        store = open_store(self.store)
        recorded, live = observe(deploy.catalog, store, project="rfr")
        return apply(plan(spec, recorded, live), catalog=deploy.catalog, store=store, spec=spec, sql=engine)


def contract(type: str) -> str:
    return contract_of([Column("id", "bigint"), Column("rows", type)]).digest


@pytest.mark.timeout(600)
def test_an_application_deploys_and_later_versions_rewrite_turn_views_round_and_lose_no_row(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    platform.declare(1, "string")
    deploy = Deploy(tmp_path)
    lake = {"name": deploy.lake.name, "properties": dict(deploy.lake.properties)}
    code, figures, output = platform.run_app(lake, actor="a test", spark=dict(SPARK.settings))
    assert code == 0, output[-4000:]
    assert (figures["state"], figures["revision"]) == ("done", 1)
    assert {"ops.a", "ops.b"} <= {each.name for each in list_views(deploy.catalog)}
    for each in list_views(deploy.catalog):
        assert deploy.sql(f"SELECT * FROM {each.name}") == [], "what the package declares itself is read as well"

    def add(*ids: int) -> None:
        table = deploy.catalog.load_table("ops.runs")
        table.append(pa.Table.from_pylist([{"id": n, "rows": str(n * 10)} for n in ids], table.schema().as_arrow()))

    add(0, 1, 2)
    add(3)
    entry = f'[{{from: "{contract("string")}", to: "{contract("bigint")}", how: rewrite,'
    platform.declare(2, "bigint", f"{entry} expressions: {{rows: CAST(rows AS BIGINT)}}}}]")
    engine = AppendingEngine(deploy.lake, session=deploy.session)
    engine.late = lambda: add(4)
    done = platform.deploy(deploy, engine, "2.0")
    steps = {each.name: each.how for each in done.steps if each.name.startswith("ops.")}
    assert (steps["ops.runs"], steps["ops.sums"]) == ("rewrite", "recompute")
    assert deploy.sql("SELECT * FROM ops.runs ORDER BY id") == [(n, n * 10) for n in range(5)]
    assert deploy.sql("SELECT * FROM ops.a ORDER BY id") == [(n, n * 10) for n in range(1, 5)]
    assert deploy.sql("SELECT * FROM ops.sums") == [(5, 40)]
    before = {name: deploy.catalog.load_table(name).metadata_location for name in ("ops.runs", "ops.sums")}
    assert platform.deploy(deploy, engine, "2.0").state == "nothing"
    assert {name: deploy.catalog.load_table(name).metadata_location for name in before} == before


def test_an_application_that_can_not_deploy_says_why_in_its_last_line(tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    (platform.objects / "wrong.yaml").write_text("kind: nonsense\nname: ops.x\n")
    lake = {"name": "rfr", "properties": {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "w"}}
    code, figures, _ = platform.run_app(lake)
    assert (code, figures["error"]["type"]) == (1, "DeclarationError")
    assert "wrong.yaml:1" in figures["error"]["message"]
    code, figures, output = platform.run_app(lake, stroe="sqlite:///hidden")
    assert (code, figures["error"]["message"]) == (1, "stroe: is no field; did you mean store? " + allowed(figures))
    assert "hidden" not in output


def allowed(figures: Mapping[str, Any]) -> str:
    return str(figures["error"]["message"]).partition("did you mean store? ")[2]
