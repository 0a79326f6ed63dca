"""A platform's declarations over several versions, and deploys of them, by the application as a process or here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.builtins.deploy import Applied, apply
from airflow_provider_rfr.builtins.maintenance import observe
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine
from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.store.engine import open_store
from tests.integration.builtin_sql_deploy import Deploy
from tests.integration.conftest import ROOT, figures_of, run_python

APP = ROOT / "spark_apps" / "builtin_migration.py"
RUNS = """
kind: table
name: ops.runs
columns: [{{name: id, type: bigint}}, {{name: rows, type: {type}, was: {was}}}]
"""
TO_NUMBERS = "{type: string, using: CAST(rows AS BIGINT)}"
"""What ``rows`` was, so that its texts become numbers."""
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


class Platform:
    """Declarations in a folder, and deploys of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = folder / "objects"
        self.objects.mkdir()
        self.store = f"sqlite:///{folder}/store.db"

    def declare(self, number: int, type: str, was: str = "[]") -> None:
        (self.objects / "runs.yaml").write_text(RUNS.format(type=type, was=was))
        (self.objects / "sums.yaml").write_text(SUMS)
        for name, query in VIEWS[number].items():
            columns = f"[{{name: id, type: bigint}}, {{name: rows, type: {type}}}]"
            text = f"kind: view\nname: {name}\ncolumns: {columns}\nquery: {query}\n"
            (self.objects / f"{name}.yaml").write_text(text)

    def run_app(self, lake: LakeSettings, **fields: Any) -> tuple[int, dict[str, Any], str]:
        """Run the application by a document with these fields, without those that are None."""
        config = self.folder / "migration.json"
        document: dict[str, Any] = {
            "lake": {"name": lake.name, "properties": dict(lake.properties)},
            "store": self.store,
        }
        document |= {"version": "1.0", "objects": ["objects"], **fields}
        config.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
        ended = run_python(APP, "--config", config, cwd=self.folder, expect=None)
        return ended.returncode, figures_of(ended.stdout), ended.stdout + ended.stderr

    def deploy(self, deploy: Deploy, engine: SparkSqlEngine, version: str) -> Applied:
        spec = load_objects(self.objects, version=version)
        store = open_store(self.store)
        recorded, live = observe(deploy.catalog, store, project="rfr", spec=spec)
        return apply(plan(spec, recorded, live), catalog=deploy.catalog, store=store, spec=spec, sql=engine)
