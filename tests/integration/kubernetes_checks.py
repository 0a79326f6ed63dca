"""A deferred refresh in Kubernetes. Run by test_deferral_kubernetes.py, in a Python that has Airflow's client for it.

Kubernetes does not run here; its API is served on loopback (tests/clusters/kubernetes.py), and containers of pods are
processes (tests/clusters/pods.py). Spark's own spark-submit, the Kubernetes client of Airflow's provider, the driver,
which is the real application, and the executors that its scheduler asks for are those of production.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk.execution_time import task_runner

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.hooks.spark import ClusterManagerError, DriverAddress, DriverState, open_driver
from airflow_provider_rfr.sample_api import SampleApi
from tests.clusters.kubernetes import KubernetesApi
from tests.clusters.pods import Pod
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import Lake, assert_whole
from tests.integration.standalone import executor_python
from tests.integration.test_deferral import CANARY, LAKE_KEY, Task, api, follow, header
from tests.soon import PATIENCE, SOON, wait_until
from tests.unit.triggers.refreshes import Supervisor

__all__ = ["api"]


@pytest.fixture
def cluster(tmp_path: Path, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi(tmp_path / "kubernetes") as kubernetes:
        # Spark reads the one, Airflow's client the other.
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig()))
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(kubernetes.kubeconfig()))
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
        spark = {"conn_type": "spark", "host": f"k8s://{kubernetes.url}", "extra": {"namespace": "data"}}
        lake_extra = {"s3_secret_access_key": LAKE_KEY}
        set_connections(monkeypatch, lake, api, spark, spark_conn_id="kubernetes", lake_extra=lake_extra)
        yield kubernetes


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's Python: neither Airflow nor this package is in it."""
    return executor_python(tmp_path_factory.mktemp("image") / "python", "sqlalchemy")


@pytest.fixture
def arguments(tmp_path: Path, python: Path) -> dict[str, Any]:
    (tmp_path / "uploads").mkdir()
    timeouts = [
        f"spark.kubernetes.{side}.{phase}Timeout"
        for side in ("submission", "driver")
        for phase in ("connection", "request")
    ]
    conf = {
        # Ten seconds by default, too few for the start of Java on a busy machine.
        **dict.fromkeys(timeouts, str(int(SOON * 1000))),
        "spark.kubernetes.container.image": "spark",
        "spark.kubernetes.file.upload.path": f"file://{tmp_path}/uploads",
        "spark.pyspark.python": str(python),
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": "1",
    }
    return {"conn_id": "kubernetes", "conf": conf}


def python_workers(pod: Pod) -> list[psutil.Process]:
    try:
        children = psutil.Process(pod.process.pid).children(recursive=True)
        return [child for child in children if "pyspark.daemon" in child.cmdline()]
    except psutil.Error:
        return []


def wait_for_two_executors(cluster: KubernetesApi, lake: Lake) -> list[Pod]:
    """Wait until two executors read, and some of what they read is committed; return them."""

    def executors() -> list[Pod]:
        working = [pod for pod in cluster.executors if python_workers(pod)]
        return working if len(working) == 2 and header(lake).pages >= 8 else []

    return wait_until(executors, every=0.2, describe=lambda: cluster.newest[1].log()[-6000:])


@pytest.fixture
def on_two_executors(api: SampleApi, arguments: dict[str, Any]) -> dict[str, Any]:
    """Two executors read everything, slowly until the faults of the API are set again."""
    api.set_faults({"kind": "latency", "path": "/partitions/*", "seconds": 1})
    # No task begins before both are there.
    more = {"spark.executor.instances": "2", "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE:.0f}s"}
    arguments["conf"].update(more)
    return {**arguments, "options": {"concurrency": 2, "round_seconds": 1, "head_start": False}}


@pytest.mark.gate
def test_a_refresh_is_submitted_by_spark_left_and_gone_on_with(
    cluster: KubernetesApi, lake: Lake, api: SampleApi, on_two_executors: dict[str, Any]
) -> None:
    task = Task()
    trigger = task.defer(**on_two_executors)
    name, pod = cluster.newest
    assert pod.process.exit_code is None, "the task waited for its driver"
    assert trigger.refresh["driver"] == {
        "manager": "kubernetes",
        "conn_id": "kubernetes",
        "driver_id": f"data:{name}",
        "kerberos": False,
    }
    wait_for_two_executors(cluster, lake)
    api.set_faults()
    payload = follow(trigger)
    assert payload["driver"] == {"state": "succeeded", "status": "Succeeded", "exit_code": 0}
    assert name in cluster.pods
    assert not cluster.executors
    assert task.go_on(payload, **on_two_executors)["rows"] == 2000
    assert_whole(lake, api)
    assert not any(cluster.objects.values()), "a pod that ended well is removed, as the Spark provider does"


@pytest.mark.gate
def test_the_secrets_are_in_what_spark_uploads_and_in_nothing_that_it_tells_kubernetes(
    cluster: KubernetesApi, lake: Lake, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """Files that are submitted are in no config map: Spark writes them to ``spark.kubernetes.file.upload.path``."""
    follow(Task().defer(**arguments))
    assert lake.rows("raw.items").num_rows == 2000
    kinds = {json.loads(text).get("kind") for text in cluster.sent}
    assert {"Pod", "ConfigMap", "Service"} <= kinds
    logs = [file.read_text(errors="replace") for file in tmp_path.rglob("stdout")]
    assert len(logs) == 2, "the driver's and the executor's"
    assert not [text for text in [*cluster.sent, *logs] if CANARY in text]
    files = [file for file in (tmp_path / "uploads").rglob("*") if file.is_file()]
    [document] = [file for file in files if CANARY.encode() in file.read_bytes()]
    assert document.suffix == ".json"


def test_a_driver_that_is_killed_fails_the_try_and_the_next_one_resumes(
    cluster: KubernetesApi, lake: Lake, api: SampleApi, on_two_executors: dict[str, Any]
) -> None:
    task = Task()
    trigger = task.defer(**on_two_executors)
    wait_for_two_executors(cluster, lake)
    name, pod = cluster.newest
    pod.process.kill()
    api.set_faults()
    payload = follow(trigger)
    with pytest.raises(RefreshFailedError, match=f"driver data:{name} is Failed with exit code 137"):
        task.go_on(payload, **on_two_executors)
    wait_until(lambda: not cluster.executors, describe=lambda: "executors end with their driver")
    result = task.go_on(follow(task.defer(**on_two_executors)), **on_two_executors)
    assert (result["generation"], result["attempts"], result["rows"]) == (1, 2, 2000)
    assert_whole(lake, api)
    assert api.counts(path="/partitions/*")["refetched"] <= 8 + 0.05 * 80


def test_an_executor_that_is_killed_is_replaced_and_the_same_try_publishes(
    cluster: KubernetesApi, lake: Lake, api: SampleApi, on_two_executors: dict[str, Any]
) -> None:
    task = Task()
    trigger = task.defer(**on_two_executors)
    dead, other = wait_for_two_executors(cluster, lake)
    dead.process.kill()
    wait_until(lambda: dead.name not in cluster.pods, describe=lambda: "Spark deletes the pod of a dead executor")
    wait_until(lambda: len(cluster.executors) == 2, describe=lambda: "Spark asks for another executor")
    assert other in cluster.executors
    api.set_faults()
    result = task.go_on(follow(trigger), **on_two_executors)
    assert (result["generation"], result["attempts"], result["rows"]) == (1, 1, 2000)
    assert_whole(lake, api)
    assert api.counts(path="/partitions/*")["refetched"] <= 8 + 0.05 * 80


def test_a_failed_driver_is_told_by_its_own_last_word(
    cluster: KubernetesApi, api: SampleApi, arguments: dict[str, Any]
) -> None:
    api.set_faults({"kind": "error", "status": 401, "path": "/partitions/*"})
    task = Task()
    payload = follow(task.defer(**arguments))
    assert payload["driver"]["exit_code"] == 1
    with pytest.raises(AirflowFailException, match="401.*check the credentials and clear the task"):
        task.go_on(payload, **arguments)
    assert cluster.pods, "a pod that failed is left to look at"


def test_a_pod_that_was_deleted_fails_the_try_and_the_next_one_resumes(
    cluster: KubernetesApi, lake: Lake, api: SampleApi, arguments: dict[str, Any]
) -> None:
    task = Task()
    trigger = task.defer(**arguments)
    api.wait_for_pages(40)
    name, _ = cluster.newest
    cluster.delete("pods", name)
    payload = follow(trigger)
    with pytest.raises(RefreshFailedError, match=f"driver data:{name} is not known to the cluster any more"):
        task.go_on(payload, **arguments)
    result = task.go_on(follow(task.defer(**arguments)), **arguments)
    assert (result["generation"], result["attempts"]) == (1, 2)
    assert lake.rows("raw.items").num_rows == 2000


def test_a_task_that_is_marked_or_cleared_deletes_the_pod(
    cluster: KubernetesApi, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = Task().defer(**arguments)
    name, pod = cluster.newest
    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    trigger.task_instance = supervisor.task_instance  # type: ignore[assignment]
    deletion = ("DELETE", f"/api/v1/namespaces/data/pods/{name}")
    asyncio.run(trigger.on_kill())
    assert deletion not in cluster.requests, "the task is still deferred"
    supervisor.state = None
    asyncio.run(trigger.on_kill())
    assert deletion in cluster.requests
    assert pod.process.exit_code == 137


def test_a_sidecar_that_never_ends_holds_nothing_up(cluster: KubernetesApi, arguments: dict[str, Any]) -> None:
    task = Task()
    trigger = task.defer(**arguments)
    _, pod = cluster.newest
    pod.sidecar = True
    payload = follow(trigger)
    assert payload["driver"] == {"state": "succeeded", "status": "Running", "exit_code": 0}
    assert task.go_on(payload, **arguments)["rows"] == 2000


def test_a_namespace_that_is_not_named_is_asked_for_before_the_submit(
    cluster: KubernetesApi, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES", json.dumps({"conn_type": "spark", "host": f"k8s://{cluster.url}"}))
    task = Task()
    with pytest.raises(AirflowFailException, match=r"conf.spark.kubernetes.namespace: is not set"):
        task.run(**arguments)
    assert not cluster.pods


def test_a_pod_is_seen_in_each_of_its_states_and_trouble_is_told_by_its_status(cluster: KubernetesApi) -> None:
    driver = open_driver(DriverAddress("kubernetes", "kubernetes", "data:pod"))
    assert driver.look().state is DriverState.GONE
    driver.stop()
    volume = {"name": "conf", "configMap": {"name": "not-yet-there"}}
    cluster.create("pods", {"metadata": {"name": "pod"}, "spec": {"containers": [{"name": "x"}], "volumes": [volume]}})
    report = driver.look()
    assert (report.state, report.status) == (DriverState.ACTIVE, "Pending")
    for status in (403, 404):
        cluster.trouble = status
        with pytest.raises(ClusterManagerError, match=f"Kubernetes answers with HTTP {status}"):
            driver.look()
    cluster.trouble = None
    driver.stop()
    wait_until(lambda: driver.look().state is DriverState.GONE)
