"""The platform's own objects, and refreshes, on catalogs that teams have in production: PostgreSQL, and REST."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.tables import list_views
from airflow_provider_rfr.sample_api import SampleApi
from tests.headers import read_status
from tests.integration.builtin_platform import TO_NUMBERS, Platform
from tests.integration.builtin_sql_deploy import SPARK
from tests.integration.conftest import Lake, Runner, assert_one_of_two_publishes, assert_whole, kill_group, start_python
from tests.integration.postgres import PostgresServer
from tests.integration.rest_catalog import RestCatalog, rest_catalog
from tests.integration.test_crash_matrix import OPTIONS, PAGES, items
from tests.integration.users_spark import run_on_spark

READ = "print(json.dumps([[list(row) for row in spark.sql(query).collect()] for query in argument]))"
FIRST_USE = """
import sys, time
import psycopg2, pyiceberg.catalog.sql
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable

print("ready", flush=True)
for line in sys.stdin:
    moment, uri, warehouse, target = line.split()
    settings = LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse})
    while time.time() < float(moment):
        pass
    print(LedgerTable.load_or_create(open_catalog(settings), target).id, flush=True)
"""


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.fixture(params=["rest", "postgresql"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "rest":
        return Lake(tmp_path, request.getfixturevalue("rest").properties)
    uri = request.getfixturevalue("postgres").new_database()
    return Lake(tmp_path, {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"})


@pytest.fixture
def passwords(lake: Lake) -> list[str]:
    return [lake.properties["uri"].partition("rfr:")[2].partition("@")[0]] if "rfr:" in lake.properties["uri"] else []


def deployed(platform: Platform, lake: Lake, version: str, state: str = "done") -> str:
    """Deploy by the application; return its output."""
    code, figures, output = platform.run_app(lake.settings, spark=SPARK, version=version)
    assert (code, figures.get("state")) == (0, state), output[-4000:]
    return output


def test_a_deploy_makes_tables_and_views_and_a_later_one_rewrites_them(
    lake: Lake, tmp_path: Path, passwords: list[str]
) -> None:
    platform = Platform(tmp_path)
    platform.declare(1, "string")
    deployed(platform, lake, "1.0")
    catalog = open_catalog(lake.settings)
    assert {"ops.a", "ops.b", "rfr_system.refresh_status"} <= {view.name for view in list_views(catalog)}
    table = lake.table("ops.runs")
    rows = [{"id": number, "rows": str(number * 10)} for number in range(4)]
    table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
    platform.declare(2, "bigint", TO_NUMBERS)
    deployed(platform, lake, "2.0")
    queries = ["SELECT * FROM rfr.ops.a ORDER BY id", "SELECT * FROM rfr.ops.sums"]
    in_a, in_sums = run_on_spark(lake.settings, READ, queries)
    assert (in_a, in_sums) == ([[1, 10], [2, 20], [3, 30]], [[4, 30]])
    before = lake.table("ops.runs").metadata_location
    output = deployed(platform, lake, "2.0", "nothing")
    assert lake.table("ops.runs").metadata_location == before
    assert not [secret for secret in passwords if secret in output]


@pytest.mark.parametrize("lake", [pytest.param("rest", marks=pytest.mark.gate), "postgresql"], indirect=True)
def test_a_refresh_that_is_killed_half_way_is_resumed(
    lake: Lake, runner: Runner, api: SampleApi, passwords: list[str]
) -> None:
    config = items(runner, api, requests_per_second=40)
    process = runner.start(config)
    api.wait_for_pages(PAGES // 2)
    kill_group(process)
    before = api.counts(path="/partitions/*")
    outcome = runner.run(config)
    assert_whole(lake, api)
    assert (outcome.figures["generation"], outcome.figures["attempts"]) == (1, 2)
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"] - outcome.figures["overlap_checks"]
    assert again <= 0.05 * before["pages"] + OPTIONS["concurrency"]
    status = read_status(lake.settings, "raw.items")
    assert status.snapshot_id == lake.table("raw.items").current_snapshot().snapshot_id
    assert not [secret for secret in passwords if secret in outcome.output]


@pytest.mark.parametrize("lake", ["postgresql"], indirect=True)
def test_of_two_drivers_that_start_at_once_one_publishes_and_the_other_is_fenced(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    assert_one_of_two_publishes(lake, runner, api, items(runner, api), "raw.items")


def test_an_empty_catalog_bears_many_first_users_at_the_same_moment(postgres: PostgresServer, tmp_path: Path) -> None:
    targets = ["raw.shared", "raw.shared", "raw.own"]
    with ExitStack() as stack:
        users = [stack.enter_context(user_of_a_catalog()) for _ in targets]
        for number in range(6):
            for uri in (postgres.new_database(), f"sqlite:///{tmp_path}/catalog-{number}.db"):
                moment = time.time() + 0.2
                for user, target in zip(users, targets, strict=True):
                    tell(user, f"{moment} {uri} file://{tmp_path}/warehouse-{number} {target}")
                first, second, own = [told(user) for user in users]
                assert first == second != own, "two ledgers of one target"


@contextmanager
def user_of_a_catalog() -> Iterator[subprocess.Popen[str]]:
    user = start_python("-c", FIRST_USE, stdin=subprocess.PIPE, stderr=None)
    try:
        assert told(user) == "ready"
        yield user
    finally:
        user.kill()
        user.communicate()


def tell(user: subprocess.Popen[str], line: str) -> None:
    user.stdin.write(line + "\n")
    user.stdin.flush()


def told(user: subprocess.Popen[str]) -> str:
    line = user.stdout.readline().strip()
    assert line, "it ended with an error"
    return line
