"""A refresh on a real cluster: Spark standalone with two workers, executors without Airflow, and what dies there."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_rfr.operators.submit import zip_package
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.airflow_tasks import Onlooker, execute, items_operator, set_connections
from tests.integration.conftest import Lake, Runner, assert_whole, figures_of, is_alive, kill_group
from tests.integration.standalone import EXECUTORS_NEED, ClusterRunner, Standalone, executor_python, executor_settings
from tests.soon import PATIENCE, SOON, wait_until

PARTITIONS, PAGES = 8, 40
OPTIONS = {"concurrency": 8, "round_seconds": 2.0, "head_start": False}
CONFIG = {"partitions": PARTITIONS, "page_size": 10}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return executor_python(tmp_path_factory.mktemp("executor") / "python")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zip_package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture
def slow_api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(partitions=PARTITIONS, pages=PAGES, page_records=10), latency_ms=120) as running:
        yield running


@pytest.fixture
def submitter(cluster: Standalone, runner: Runner, package: Path, python: Path) -> Iterator[ClusterRunner]:
    cluster.wait_until_idle()
    cluster_runner = ClusterRunner(runner, cluster, package, python)
    yield cluster_runner
    cluster_runner.end()


def items(runner: Runner, api: SampleApi, **options: Any) -> Path:
    # By a relative path, which leads nowhere from an executor's folder.
    source = {
        "file": "airflow_provider_rfr/sample_api/shop.yaml",
        "config": {"base_url": api.base_url, **CONFIG},
        "secrets": {"api_key": "any-api-key"},
    }
    return runner.config(source=source, streams=["items"], options={**OPTIONS, **options})


def outcome_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output[-6000:]
    return figures_of(output)


def test_the_executors_python_has_neither_airflow_nor_this_package(python: Path) -> None:
    for name in ("airflow", "airflow_provider_rfr", "pyspark", "sqlalchemy"):
        answer = subprocess.run([str(python), "-c", f"import {name}"], capture_output=True, text=True, cwd="/")
        assert f"No module named '{name}'" in answer.stderr


@pytest.mark.gate
def test_a_plain_spark_submit_refreshes_with_executors_that_get_the_package_by_py_files(
    submitter: ClusterRunner, cluster: Standalone, slow_api: SampleApi, lake: Lake
) -> None:
    process = submitter.start(items(submitter, slow_api))
    slow_api.wait_for_pages(20)
    executors = {one.pid: one for one in cluster.executors()}
    assert len(executors) == 2, "both workers have their part"
    workers = cluster.python_workers()
    assert workers
    for one in [*executors.values(), *workers]:
        assert "airflow" not in one.environ().get("PYTHONPATH", "").lower()
    figures = outcome_of(process)
    assert_whole(lake, slow_api)
    assert (figures["attempts"], figures["pages"], figures["pages_refetched"]) == (1, PARTITIONS * PAGES, 0)


def test_an_executor_that_is_killed_in_a_round_costs_the_application_nothing_but_time(
    submitter: ClusterRunner, cluster: Standalone, slow_api: SampleApi, lake: Lake
) -> None:
    process = submitter.start(items(submitter, slow_api))
    slow_api.wait_for_pages(60)
    cluster.executors()[0].send_signal(signal.SIGKILL)
    figures = outcome_of(process)
    assert_whole(lake, slow_api)
    assert (figures["attempts"], figures["generation"]) == (1, 1)
    # What was on its way in one of two executors, and what it read since its last flush.
    assert slow_api.counts(path="/partitions/*")["refetched"] <= OPTIONS["concurrency"]


def test_a_worker_that_is_killed_in_a_round_leaves_the_refresh_to_the_other(
    submitter: ClusterRunner, cluster: Standalone, slow_api: SampleApi, lake: Lake
) -> None:
    process = submitter.start(items(submitter, slow_api))
    slow_api.wait_for_pages(60)
    worker = cluster.workers.pop(0)
    orphans = worker.children(recursive=True)
    worker.send_signal(signal.SIGKILL)
    try:
        figures = outcome_of(process)
    finally:
        psutil.wait_procs(orphans, timeout=10)
        cluster.add_worker()
        cluster.wait_for_workers(2)
    assert_whole(lake, slow_api)
    assert (figures["attempts"], figures["generation"]) == (1, 1)
    assert not any(is_alive(one) for one in orphans), "an executor ends with its worker"


def test_a_driver_that_is_killed_in_a_round_is_gone_on_with(
    submitter: ClusterRunner, cluster: Standalone, slow_api: SampleApi, lake: Lake
) -> None:
    config = items(submitter, slow_api)
    process = submitter.start(config)
    slow_api.wait_for_pages(100)
    kill_group(process)
    cluster.wait_until_idle()
    wait_until(lambda: not cluster.executors())
    before = slow_api.counts(path="/partitions/*")
    assert not lake.has("raw.items")
    figures = submitter.run(config).figures
    assert_whole(lake, slow_api)
    assert (figures["attempts"], figures["generation"]) == (2, 1)
    again = slow_api.counts(path="/partitions/*")["refetched"] - before["refetched"] - figures["overlap_checks"]
    assert again <= 2 * OPTIONS["concurrency"]


def failure_of(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Return type and message of the error that the application ended with."""
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, output[-6000:]
    error = figures_of(output)["error"]
    return error["type"], error["message"]


@pytest.mark.gate
def test_a_cluster_that_has_room_for_no_executor_ends_the_attempt(
    submitter: ClusterRunner, slow_api: SampleApi
) -> None:
    config = items(submitter, slow_api, executor_wait=3)
    kind, message = failure_of(submitter.start(config, settings={"spark.executor.memory": "4g"}), code=1)
    assert kind == "SparkJobError"
    assert "the cluster gave no executor for 3 s: asked spark://127.0.0.1:" in message
    assert "for any number of executors of 4g" in message and "executor_wait" in message


def test_a_master_that_forgot_the_application_ends_the_attempt_and_the_next_one_continues(
    submitter: ClusterRunner, cluster: Standalone, slow_api: SampleApi, lake: Lake
) -> None:
    # Longer than executors take to start on a busy machine; and pages for minutes, because a worker that finds the new
    # master ends its executors only after some ten seconds.
    process = submitter.start(items(submitter, slow_api, executor_wait=SOON, requests_per_second=2))
    slow_api.wait_for_pages(20)
    cluster.restart_master()
    kind, message = failure_of(process, code=1)
    assert (kind, f"gave no executor for {SOON:g} s" in message) == ("SparkJobError", True)
    cluster.wait_for_workers(2)
    figures = submitter.run(items(submitter, slow_api)).figures
    assert_whole(lake, slow_api)
    assert (figures["attempts"], figures["generation"]) == (2, 1)
    assert figures["pages_fetched"] < PARTITIONS * PAGES


def test_a_python_of_executors_that_can_t_run_tasks_is_named_with_all_that_it_lacks(
    submitter: ClusterRunner, cluster: Standalone, slow_api: SampleApi, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    bare = tmp_path / "bare" / "bin" / "python"
    config = items(submitter, slow_api)
    kind, message = failure_of(submitter.start(config, settings={"spark.pyspark.python": str(bare)}), code=2)
    assert kind == "PreflightError"
    assert str(bare) in message and platform.python_version() in message and "spark.pyspark.python" in message
    assert ", ".join(EXECUTORS_NEED) in message
    cluster.wait_until_idle()
    kind, message = failure_of(submitter.start(config, settings={"spark.pyspark.python": "/no/such/python"}), code=2)
    assert (kind, "/no/such/python" in message) == ("PreflightError", True)
    assert slow_api.counts(path="/partitions/*")["requests"] == 0


@pytest.fixture
def connections(cluster: Standalone, lake: Lake, slow_api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.wait_until_idle()
    host, _, port = cluster.url.rpartition(":")
    set_connections(monkeypatch, lake, slow_api, {"conn_type": "spark", "host": host, "port": int(port)})


def test_the_operator_refreshes_on_a_cluster_and_no_executor_gets_the_drivers_java_options(
    connections: None, cluster: Standalone, python: Path, slow_api: SampleApi, lake: Lake
) -> None:
    earlier = {one.pid for one in cluster.executors()}
    with Onlooker(cluster.executors) as onlooker:
        # One try of one run, as the task runner would make it.
        result = execute(items_operator(CONFIG, OPTIONS, conf=executor_settings(python)))
    assert_whole(lake, slow_api)
    assert (result["generation"], result["attempts"], result["pages"]) == (1, 1, PARTITIONS * PAGES)
    own = [seen for pid, seen in onlooker.seen.items() if pid not in earlier]
    assert len(own) >= 2
    for text in own:
        assert not any(option in text for option in ("TieredStopAtLevel", "UseSerialGC", "SharedArchiveFile", ".jsa"))
