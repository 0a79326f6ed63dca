"""What becomes of a refresh when the process of its task ends before it, and of a run that is run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from airflow_provider_rfr.sample_api.client import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.headers import read_status
from tests.integration.airflow_tasks import execute, items_operator, set_connections
from tests.integration.conftest import ROOT, Lake, is_alive
from tests.soon import PATIENCE, wait_until

ROUND_SECONDS = 2.0


@pytest.fixture
def slow_api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(partitions=4, pages=40, page_records=10), latency_ms=100) as running:
        yield running


@pytest.fixture
def connections(lake: Lake, slow_api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    return set_connections(monkeypatch, lake, slow_api)


def run_task(tries_before_clear: int = 0, *, hour: int = 6, stoppable: bool = False) -> dict[str, Any]:
    """One try of one run, as the task runner would make it.

    :param hour: at which the run started
    :param stoppable: SIGTERM asks it to stop, as Airflow does
    """
    options = {"concurrency": 4, "round_seconds": ROUND_SECONDS, "head_start": False}
    operator = items_operator({"partitions": 4, "page_size": 10}, options)
    if stoppable:
        signal.signal(signal.SIGTERM, lambda number, frame: operator.on_kill())
    run = SimpleNamespace(start_date=datetime(2026, 1, 1, hour, tzinfo=timezone.utc))
    return execute(operator, dag_run=run, max_tries=operator.retries + tries_before_clear)


def drivers_below(pid: int) -> list[psutil.Process]:
    drivers = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if any(part.endswith("full_refresh.py") for part in process.cmdline()):
                drivers.append(process)
        except psutil.Error:
            continue
    return drivers


def test_a_published_run_gives_its_first_commit_again_and_a_cleared_one_a_new_generation(
    connections: dict[str, str], lake: Lake, slow_api: SampleApi
) -> None:
    first = run_task()
    pages = slow_api.counts(path="/partitions/*")["requests"]
    again = run_task()
    assert (again["generation"], again["snapshot_id"], again["rows"]) == (1, first["snapshot_id"], 1600)
    assert slow_api.counts(path="/partitions/*")["requests"] == pages
    assert (first["already_published"], again["already_published"]) == (False, True)
    cleared = run_task(tries_before_clear=1)
    assert cleared["generation"] == 2
    assert cleared["snapshot_id"] != first["snapshot_id"]
    assert lake.rows("raw.items").num_rows == 1600


def test_a_run_that_was_deleted_and_created_again_under_the_same_id_reads_everything(
    connections: dict[str, str], lake: Lake, slow_api: SampleApi
) -> None:
    first = run_task()
    pages = slow_api.counts(path="/partitions/*")["requests"]
    again = run_task(hour=7)
    assert (again["generation"], again["pages_fetched"], again["rows"]) == (2, first["pages"], 1600)
    assert again["snapshot_id"] != first["snapshot_id"]
    assert slow_api.counts(path="/partitions/*")["requests"] == 2 * pages


def test_a_driver_whose_task_process_was_killed_ends_within_a_round_and_leaves_no_secret_file(
    connections: dict[str, str], slow_api: SampleApi, tmp_path: Path
) -> None:
    environment = {**os.environ, **connections, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    code = "from tests.integration.test_operator_process import run_task; run_task()"
    task = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        slow_api.wait_for_pages(20)
        drivers = drivers_below(task.pid)
        assert len(drivers) == 2, "spark-submit's Java and its Python"
        os.kill(task.pid, signal.SIGKILL)
        task.wait()
        wait_until(lambda: not any(is_alive(driver) for driver in drivers), PATIENCE)
    finally:
        try:
            os.killpg(task.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    left = list(tmp_path.rglob("rfr-*.json"))
    assert len(left) == 1, "a killed process can't remove it"
    assert slow_api.counts(path="/partitions/*")["pages"] < 160
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, capture_output=True)
    assert not list(tmp_path.rglob("rfr-*.json")), "the next try on the machine does"
    counts = slow_api.counts(path="/partitions/*")
    assert counts["pages"] == 160
    assert counts["refetched"] <= 8


@pytest.mark.gate
def test_a_task_that_is_told_to_stop_keeps_what_it_has_read(
    connections: dict[str, str], slow_api: SampleApi, lake: Lake
) -> None:
    environment = {**os.environ, **connections, "PYTHONPATH": str(ROOT)}
    code = "from tests.integration.test_operator_process import run_task; run_task(stoppable=True)"
    task = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    slow_api.wait_for_pages(20)
    began = time.monotonic()
    task.terminate()
    output, _ = task.communicate(timeout=PATIENCE)
    print(f"it ended after {time.monotonic() - began:.1f} s; Airflow ends a task hard after five")
    assert "Asking the Spark driver" in output
    assert task.returncode != 0
    status = read_status(lake.settings, "raw.items")
    assert status is not None
    assert status.pages == slow_api.counts(path="/partitions/*")["pages"]
