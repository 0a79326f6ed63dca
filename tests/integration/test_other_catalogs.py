"""The platform's own objects, and refreshes, on catalogs that teams have in production: PostgreSQL, and REST."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.catalog import open_catalog, spark_sql_settings
from airflow_provider_rfr.lake.tables import list_views
from airflow_provider_rfr.sample_api.client import SampleApi
from tests.integration.builtin_platform import TO_NUMBERS, Platform
from tests.integration.builtin_sql_deploy import SPARK
from tests.integration.conftest import ROOT, Lake, Runner, assert_whole, kill_group
from tests.integration.rest_catalog import RestCatalogServer
from tests.integration.test_crash_matrix import PAGES, items
from tests.soon import PATIENCE

READ = """
import json, sys
from pyspark.sql import SparkSession

settings, queries = json.loads(sys.stdin.read())
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sql("USE rfr")
print(json.dumps([[list(row) for row in spark.sql(query).collect()] for query in queries]))
"""


def read_as_a_user(lake: Lake, *queries: str) -> list[list[list[Any]]]:
    """What a session of somebody else's reads."""
    ended = subprocess.run(
        [sys.executable, "-c", READ],
        input=json.dumps([spark_sql_settings(lake.settings), queries]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return list(json.loads(ended.stdout.strip().splitlines()[-1]))


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.fixture(params=["rest", pytest.param("postgresql", marks=pytest.mark.full)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "rest":
        return Lake(tmp_path, request.getfixturevalue("rest").properties)
    uri = request.getfixturevalue("postgres").new_database()
    return Lake(tmp_path, {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"})


def test_a_deploy_makes_tables_and_views_and_a_later_one_rewrites_them(lake: Lake, tmp_path: Path) -> None:
    platform = Platform(tmp_path)
    platform.declare(1, "string")
    settings = {"name": lake.name, "properties": lake.properties}
    code, figures, output = platform.run_app(settings, spark=SPARK)
    assert (code, figures.get("state")) == (0, "done"), output[-4000:]
    catalog = open_catalog(lake.settings)
    assert {"ops.a", "ops.b", "rfr_system.refresh_status"} <= {view.name for view in list_views(catalog)}
    table = lake.table("ops.runs")
    rows = [{"id": number, "rows": str(number * 10)} for number in range(4)]
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    platform.declare(2, "bigint", TO_NUMBERS)
    code, figures, output = platform.run_app(settings, spark=SPARK, version="2.0")
    assert (code, figures.get("state")) == (0, "done"), output[-4000:]
    in_a, in_sums = read_as_a_user(lake, "SELECT * FROM ops.a ORDER BY id", "SELECT * FROM ops.sums")
    assert (in_a, in_sums) == ([[1, 10], [2, 20], [3, 30]], [[4, 30]])
    before = lake.table("ops.runs").metadata_location
    code, figures, output = platform.run_app(settings, spark=SPARK, version="2.0")
    assert (code, figures.get("state")) == (0, "nothing"), output[-4000:]
    assert lake.table("ops.runs").metadata_location == before
    assert not [secret for secret in passwords(lake) if secret in output]


def passwords(lake: Lake) -> list[str]:
    return [lake.properties["uri"].partition("rfr:")[2].partition("@")[0]] if "rfr:" in lake.properties["uri"] else []


@pytest.mark.gate
def test_a_refresh_on_a_rest_catalog_is_killed_half_way_and_resumed(
    rest: RestCatalogServer, tmp_path: Path, api: SampleApi
) -> None:
    lake = Lake(tmp_path, rest.properties)
    runner = Runner(lake, tmp_path)
    config = items(runner, api, requests_per_second=40)
    process = runner.start(config)
    api.wait_for_pages(PAGES // 2)
    kill_group(process)
    outcome = runner.run(config)
    assert_whole(lake, api)
    assert (outcome.figures["generation"], outcome.figures["attempts"]) == (1, 2)
