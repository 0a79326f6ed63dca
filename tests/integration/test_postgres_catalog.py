"""The same promises on a catalog in PostgreSQL: resumed after SIGKILL, and one of two drivers is fenced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_rfr.refresh.status import read_status
from demo.sample_api.client import SampleApi
from tests.integration.conftest import ROOT, Lake, Runner, figures_of, kill_group
from tests.integration.postgres import PostgresServer
from tests.integration.test_crash_matrix import OPTIONS, PAGES, allowed, assert_published_whole, items

FENCED = 3
FIRST_USE = """
import sys
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable

uri, warehouse, target = sys.argv[1:]
settings = LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": warehouse})
print("ready", flush=True)
sys.stdin.readline()
print(LedgerTable.load_or_create(open_catalog(settings), target).id)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture
def lake(server: PostgresServer, tmp_path: Path) -> Lake:
    properties = {"type": "sql", "uri": server.new_database(), "warehouse": f"file://{tmp_path}/warehouse"}
    return Lake(tmp_path, properties)


def test_a_refresh_killed_half_way_is_resumed(lake: Lake, runner: Runner, api: SampleApi) -> None:
    config = items(runner, api)
    process = runner.start(config)
    api.wait_for_pages(PAGES // 2)
    kill_group(process)
    before = api.counts(path="/partitions/*")
    outcome = runner.run(config)
    assert_published_whole(lake, api)
    assert (outcome.figures["generation"], outcome.figures["attempts"]) == (1, 2)
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"] - outcome.figures["overlap_checks"]
    assert again <= allowed(before["pages"])
    status = read_status(lake.settings, "raw.items")
    assert status is not None
    assert status.snapshot_id == lake.table("raw.items").current_snapshot().snapshot_id
    password = lake.properties["uri"].partition("rfr:")[2].partition("@")[0]
    assert password not in outcome.output


def test_of_two_drivers_that_start_at_once_one_publishes_and_the_other_is_fenced(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    config = items(runner, api, requests_per_second=40)
    drivers = [runner.start(config) for _ in range(2)]
    try:
        outputs = [driver.communicate(timeout=150)[0] for driver in drivers]
    finally:
        for driver in drivers:
            kill_group(driver)
    assert sorted(driver.returncode for driver in drivers) == [0, FENCED], outputs[0][-3000:] + outputs[1][-3000:]
    fenced = next(figures_of(text) for text, driver in zip(outputs, drivers, strict=True) if driver.returncode)
    assert fenced["error"]["type"] == "FencedError"
    assert_published_whole(lake, api)
    assert len(lake.table("raw.items").metadata.snapshots) == 1
    assert OPTIONS["round_seconds"] < PAGES / 40, "the loser had no round to lose"


def test_an_empty_catalog_bears_many_first_users_at_once(lake: Lake) -> None:
    warehouse = lake.properties["warehouse"]
    targets = ["raw.shared", "raw.shared", "raw.one", "raw.two", "other.three", "other.four"]
    users = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_USE, lake.properties["uri"], warehouse, target],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in targets
    ]
    for user in users:
        assert user.stdout is not None
        assert user.stdout.readline() == "ready\n"
    ended = []
    for user in users:
        assert user.stdin is not None
        user.stdin.write("go\n")
        user.stdin.flush()
    for user in users:
        output, errors = user.communicate(timeout=60)
        assert user.returncode == 0, errors[-3000:]
        ended.append(output.strip())
    assert ended[0] == ended[1], "two ledgers of one target"
    assert len(set(ended)) == len(targets) - 1
