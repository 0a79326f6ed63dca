"""The same promises on a catalog in PostgreSQL: resumed after SIGKILL, and one of two drivers is fenced."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from airflow_provider_rfr.sample_api.client import SampleApi
from tests.headers import read_status
from tests.integration.conftest import ROOT, Lake, Runner, assert_whole, figures_of, kill_group
from tests.integration.postgres import PostgresServer
from tests.integration.test_crash_matrix import OPTIONS, PAGES, items
from tests.soon import PATIENCE, wait_until

FENCED = 3
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


@pytest.fixture
def lake(postgres: PostgresServer, tmp_path: Path) -> Lake:
    properties = {"type": "sql", "uri": postgres.new_database(), "warehouse": f"file://{tmp_path}/warehouse"}
    return Lake(tmp_path, properties)


def test_a_refresh_killed_half_way_is_resumed(lake: Lake, runner: Runner, api: SampleApi) -> None:
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
    assert status is not None
    assert status.snapshot_id == lake.table("raw.items").current_snapshot().snapshot_id
    password = lake.properties["uri"].partition("rfr:")[2].partition("@")[0]
    assert password not in outcome.output


def test_of_two_drivers_that_start_at_once_one_publishes_and_the_other_is_fenced(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    # The API waits until both have opened the refresh: whichever came first has lost it, and reads on. Where both open
    # it at the same moment, one of them ends at once.
    api.set_faults({"kind": "hold", "path": "/partitions/*"})
    config = items(runner, api)
    drivers = [runner.start(config) for _ in range(2)]

    def one_has_lost() -> bool:
        status = read_status(lake.settings, "raw.items")
        return (status is not None and status.epoch == 2) or any(driver.poll() is not None for driver in drivers)

    try:
        wait_until(one_has_lost)
        api.set_faults()
        outputs = [driver.communicate(timeout=PATIENCE)[0] for driver in drivers]
    finally:
        for driver in drivers:
            kill_group(driver)
    assert sorted(driver.returncode for driver in drivers) == [0, FENCED], outputs[0][-3000:] + outputs[1][-3000:]
    fenced = next(figures_of(text) for text, driver in zip(outputs, drivers, strict=True) if driver.returncode)
    assert fenced["error"]["type"] == "FencedError"
    assert_whole(lake, api)
    assert len(lake.table("raw.items").metadata.snapshots) == 1


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
    command = [sys.executable, "-c", FIRST_USE]
    user = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert told(user) == "ready"
        yield user
    finally:
        user.kill()
        user.communicate()


def tell(user: subprocess.Popen[str], line: str) -> None:
    assert user.stdin is not None
    user.stdin.write(line + "\n")
    user.stdin.flush()


def told(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    line = user.stdout.readline().strip()
    assert line, "it ended with an error"
    return line
