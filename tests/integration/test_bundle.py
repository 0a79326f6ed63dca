"""A bundle, submitted as a service does: by plain spark-submit, in a Python without Airflow and this package."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.sample_api import SHOP, SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import Lake, assert_whole, figures_of, kill_group, run_python
from tests.integration.standalone import SPARK_HOME, Standalone, executor_python
from tests.soon import PATIENCE

CANARY = "canary-5c1e"
KEY, LAKE_KEY = f"{CANARY}-api", f"{CANARY}-lake"
PARTITIONS, PAGES = 8, 40
DAG = """
from airflow.sdk import DAG

from airflow_provider_rfr.operators import ResumableFullRefreshOperator

with DAG("shop_bundle"):
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": "shop.yaml", "config": {"partitions": 8, "page_size": 10}},
        streams=["items"],
        target="raw.items",
        api_conn_id="shop",
        lake_conn_id="lake",
        options={"concurrency": 8, "round_seconds": 2, "head_start": False, "spark": "always"},
    )
"""

# A program that has Spark already and runs others' source, as Databricks does.
HOST = """
import sys
from pyspark import SparkContext

context = SparkContext("local[2]")
path, *sys.argv[1:] = sys.argv[1:]
try:
    exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
finally:
    print("Spark still runs:", context.parallelize(range(3)).count(), flush=True)
"""


class Job:
    """Submits a bundle, each time as a job of its own, from a folder with nothing in it but what the job was given.

    :ivar said: what the command printed, as JSON
    """

    def __init__(self, bundle: Path, folder: Path, python: Path, said: dict[str, Any]) -> None:
        self.bundle = bundle
        self.folder = folder
        self.said = said
        self._python = python
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, master: str, *, config: str | None = None, secrets: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Submit as the command said, with a master.

        :param config: value of ``--config``; None for the one that the command said
        """
        program, *arguments = shlex.split(self.said["submit"])
        arguments = [*arguments[:-1], config or arguments[-1]]
        settings = {
            "spark.executor.memory": "512m",
            "spark.pyspark.python": str(self._python),
            "spark.log.level": "WARN",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / program), "--master", master, *conf, *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**bare_environment(), **(secrets or {})},
        )
        self._started.append(process)
        return process

    def run(self, master: str, *, expect: int = 0, **options: Any) -> dict[str, Any]:
        """Submit and wait; returns the figures, or the error."""
        return outcome_of(self.start(master, **options), expect)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.returncode is None:
                kill_group(process)


def outcome_of(process: subprocess.Popen[str], expect: int = 0) -> dict[str, Any]:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == expect, output[-6000:]
    assert CANARY not in output
    return figures_of(output)


def bare_environment() -> dict[str, str]:
    """Of this process's environment nothing but where Java and Spark are."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return {**kept, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A driver also needs what its catalog needs.
    python = executor_python(tmp_path_factory.mktemp("job") / "python", "sqlalchemy")
    for name in ("airflow", "airflow_provider_rfr", "pyspark"):
        answer = subprocess.run([str(python), "-c", f"import {name}"], capture_output=True, text=True, cwd="/")
        assert f"No module named '{name}'" in answer.stderr
    return python


@pytest.fixture
def api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(partitions=PARTITIONS, pages=PAGES, page_records=10), latency_ms=100, api_key=KEY) as running:
        yield running


@pytest.fixture
def dags(tmp_path: Path, lake: Lake, api: SampleApi, airflow: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "shop.yaml").write_text(SHOP.read_text())
    (folder / "shop_bundle.py").write_text(DAG)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [{"name": "test", "classpath": local, "kwargs": {"path": str(folder)}}]
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(bundles))
    set_connections(monkeypatch, lake, api, lake_extra={"s3_secret_access_key": LAKE_KEY})
    return folder


@pytest.fixture
def job(dags: Path, tmp_path: Path, python: Path) -> Iterator[Job]:
    job = bundled(tmp_path, python)
    yield job
    job.end()


def bundled(tmp_path: Path, python: Path, *arguments: str) -> Job:
    """Call the command, as a user of any supported Airflow does."""
    out, folder = tmp_path / "out", tmp_path / "job"
    folder.mkdir()
    done = run_python("-m", "airflow_provider_rfr", "bundle", out, "--dag", "shop_bundle", "--json", *arguments)
    assert CANARY not in done.stdout + done.stderr
    return Job(out, folder, python, json.loads(done.stdout))


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below the folder, and every file in its archives."""
    for path in folder.rglob("*"):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                yield from ((name, archive.read(name)) for name in archive.namelist())
        elif path.is_file():
            yield path.name, path.read_bytes()


SECRETS = {"RFR_SHOP_PASSWORD": KEY, "RFR_LAKE_S3_SECRET_ACCESS_KEY": LAKE_KEY}


def test_a_job_that_is_killed_is_continued_by_the_next_submit_and_after_the_publish_comes_a_new_refresh(
    job: Job, api: SampleApi, lake: Lake
) -> None:
    assert {secret["name"] for secret in job.said["secrets"]} == set(SECRETS)
    files = dict(contents(job.bundle))
    assert {"run.json", "refresh.py", "airflow_provider_rfr/refresh/application.py"} <= set(files)
    assert [name for name, content in files.items() if CANARY.encode() in content] == []
    process = job.start("local[2]", secrets=SECRETS)
    api.wait_for_pages(120)
    kill_group(process)
    assert not lake.has("raw.items")
    before = api.counts(path="/partitions/*")
    resumed = job.run("local[2]", secrets=SECRETS)
    assert_whole(lake, api)
    assert (resumed["generation"], resumed["attempts"], resumed["resumed"]) == (1, 2, True)
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"] - resumed["overlap_checks"]
    assert again <= 2 * 8 + 0.05 * PARTITIONS * PAGES
    renewed = job.run("local[2]", secrets=SECRETS)
    assert_whole(lake, api)
    assert (renewed["generation"], renewed["attempts"], renewed["pages_fetched"]) == (2, 1, PARTITIONS * PAGES)
    assert [name for name, content in contents(job.folder) if CANARY.encode() in content] == []


def test_a_job_refreshes_on_a_cluster_whose_machines_have_neither_airflow_nor_the_package(
    dags: Path, tmp_path: Path, python: Path, api: SampleApi, lake: Lake
) -> None:
    job = bundled(tmp_path, python, "--secret-files", "secrets")
    (job.folder / "secrets").mkdir()
    for name, value in SECRETS.items():
        (job.folder / "secrets" / name).write_text(f"{value}\n")
    # As a service puts it there, next to the secrets.
    (job.bundle / "run.json").rename(job.folder / "run.json")
    try:
        with Standalone(tmp_path / "standalone") as cluster:
            process = job.start(cluster.url, config="run.json")
            api.wait_for_pages(60)
            assert len(cluster.executors()) == 2
            cluster.executors()[0].send_signal(signal.SIGKILL)
            figures = outcome_of(process)
    finally:
        job.end()
    assert_whole(lake, api)
    assert (figures["generation"], figures["attempts"], figures["pages"]) == (1, 1, PARTITIONS * PAGES)


def test_a_secret_that_the_job_was_not_given_is_named_before_anything_is_read(job: Job, api: SampleApi) -> None:
    failure = job.run("local[2]", secrets={"RFR_SHOP_PASSWORD": KEY}, expect=2)
    assert failure["error"]["type"] == "ConfigurationError"
    assert "RFR_LAKE_S3_SECRET_ACCESS_KEY is not set" in failure["error"]["message"]
    assert api.counts()["requests"] == 0


def test_a_program_that_has_spark_already_keeps_it_and_gets_the_package_from_the_bundle_s_folder(
    job: Job, python: Path, api: SampleApi, lake: Lake
) -> None:
    host = job.folder / "host.py"
    host.write_text(HOST)
    libraries = os.pathsep.join(map(str, (SPARK_HOME / "python" / "lib").glob("*.zip")))
    # With an argument of the service's own, as Glue adds.
    arguments = [job.bundle / "refresh.py", "--config", job.bundle / "run.json", "--JOB_NAME", "shop"]

    def run(secrets: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        environment = {**bare_environment(), "PYTHONPATH": libraries, "PYSPARK_PYTHON": str(python), **secrets}
        command = [str(part) for part in (python, host, *arguments)]
        done = subprocess.run(
            command, env=environment, cwd=job.folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.stdout.endswith("Spark still runs: 3\n"), done.stdout[-3000:] + done.stderr[-3000:]
        return done

    assert run({}).returncode == 2, "a failure reaches the service"
    done = run(SECRETS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert figures_of(done.stdout)["generation"] == 1
    assert_whole(lake, api)
