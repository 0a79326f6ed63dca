"""Refreshes on a real YARN in deploy mode ``cluster``: Spark's own spark-submit, application masters and containers."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.clusters.real_yarn import RealYarn, real_yarn
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import Lake, assert_whole
from tests.integration.standalone import SPARK_HOME, executor_python
from tests.integration.test_deferral import HOLD, Task, follow, header
from tests.soon import wait_until

CANARY = "canary-58fa"
KEY, LAKE_KEY = f"{CANARY}-api", f"{CANARY}-lake"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealYarn]:
    with real_yarn(tmp_path_factory.mktemp("yarn")) as running:
        yield running


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return executor_python(tmp_path_factory.mktemp("node") / "python", "sqlalchemy")


@pytest.fixture
def api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(partitions=4, pages=20, page_records=25), latency_ms=40, api_key=KEY) as running:
        yield running


@pytest.fixture
def task(yarn: RealYarn, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
    spark = {"conn_type": "spark", "host": "yarn", "extra": {"yarn_resourcemanager_webapp_address": yarn.url}}
    set_connections(monkeypatch, lake, api, spark, spark_conn_id="yarn", lake_extra={"s3_secret_access_key": LAKE_KEY})
    return Task()


@pytest.fixture
def conf(yarn: RealYarn, python: Path, tmp_path: Path) -> dict[str, str]:
    """Spark's settings for small containers whose Python has neither Airflow nor this package."""
    java = {f"spark.{name}.JAVA_HOME": os.environ["JAVA_HOME"] for name in ("yarn.appMasterEnv", "executorEnv")}
    loopback = {f"spark.{name}.SPARK_LOCAL_IP": "127.0.0.1" for name in ("yarn.appMasterEnv", "executorEnv")}
    return {
        **java,
        **loopback,
        "spark.pyspark.python": str(python),
        "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": "1",
        "spark.yarn.maxAppAttempts": "1",
    }


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode(errors="replace"))


def killed(process: psutil.Process | None) -> None:
    assert process is not None
    process.kill()
    process.wait(60)


OPTIONS = {"concurrency": 2, "round_seconds": 1}


def test_a_driver_that_is_killed_fails_the_try_and_the_next_one_resumes(
    yarn: RealYarn, task: Task, conf: dict[str, str], lake: Lake, api: SampleApi
) -> None:
    api.set_faults(HOLD)
    conf["spark.ui.enabled"] = "true"
    trigger = task.defer(conf=conf, options=OPTIONS)
    app = trigger.refresh["driver"]["driver_id"]
    wait_until(lambda: header(lake).pages >= 20, every=0.2, describe=lambda: yarn.ask("apps"))
    # Pages are read from the start; Spark's UI is there a little later.
    link = task.links["_link_SparkUiLink"]
    wait_until(lambda: "Spark Jobs" in page(link), every=0.5, describe=lambda: page(link)[-3000:])
    killed(yarn.python_driver())
    api.set_faults()
    payload = follow(trigger)
    assert payload["driver"]["state"] == "failed"
    with pytest.raises(RefreshFailedError, match=f"driver {app} is FAILED with exit code 137") as failure:
        task.go_on(payload, conf=conf, options=OPTIONS)
    log = re.search(r"its log: (\S+)\)", str(failure.value))
    assert log is not None and app in page(log.group(1))
    result = task.go_on(follow(task.defer(conf=conf, options=OPTIONS)), conf=conf, options=OPTIONS)
    assert (result["generation"], result["attempts"], result["rows"]) == (1, 2, 2000)
    assert_whole(lake, api)
    assert api.counts(path="/partitions/*")["refetched"] <= 8 + 0.05 * 80
    logs = [file for file in yarn.logs.rglob("std*") if file.is_file()]
    assert logs and not [file for file in logs if CANARY in file.read_text(errors="replace")]


def test_an_application_master_that_is_killed_is_started_again_by_yarn_and_resumes_in_the_same_try(
    yarn: RealYarn, task: Task, conf: dict[str, str], lake: Lake, api: SampleApi
) -> None:
    api.set_faults(HOLD)
    trigger = task.defer(conf={**conf, "spark.yarn.maxAppAttempts": "2"}, options=OPTIONS)
    wait_until(lambda: header(lake).pages >= 20, every=0.2, describe=lambda: yarn.ask("apps"))
    killed(yarn.application_master())
    api.set_faults()
    payload = follow(trigger)
    assert payload["driver"]["state"] == "succeeded"
    result = task.go_on(payload, conf=conf, options=OPTIONS)
    assert (result["generation"], result["attempts"], result["rows"]) == (1, 2, 2000)
    assert_whole(lake, api)
    app = trigger.refresh["driver"]["driver_id"]
    attempts = yarn.ask(f"apps/{app}/appattempts")["appAttempts"]["appAttempt"]
    assert len(attempts) == 2
