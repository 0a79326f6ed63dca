"""A deferred refresh in Kubernetes. Run by test_deferral_kubernetes.py, in a Python that has Airflow's client for it.

Kubernetes does not run here; its API is served on loopback (tests/clusters/kubernetes.py). Spark's own spark-submit,
the Kubernetes client of Airflow's provider and the driver, which is the real application, are those of production.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.hooks.spark import ClusterManagerError, DriverAddress, DriverState, open_driver
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.triggers.refresh import RefreshTrigger
from tests.clusters.kubernetes import KubernetesApi
from tests.integration.airflow_tasks import set_connections
from tests.integration.conftest import Lake
from tests.integration.test_deferral import Task, api, follow
from tests.soon import wait_until

__all__ = ["api"]


@pytest.fixture
def cluster(tmp_path: Path, lake: Lake, api: SampleApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    with KubernetesApi(tmp_path / "kubernetes") as kubernetes:
        # Spark reads the one, Airflow's client the other.
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig()))
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(kubernetes.kubeconfig()))
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
        spark = {"conn_type": "spark", "host": f"k8s://{kubernetes.url}", "extra": {"namespace": "data"}}
        set_connections(monkeypatch, lake, api, spark, spark_conn_id="kubernetes")
        yield kubernetes


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "uploads").mkdir()
    conf = {
        "spark.kubernetes.container.image": "spark",
        "spark.kubernetes.file.upload.path": f"file://{tmp_path}/uploads",
    }
    return {"conn_id": "kubernetes", "conf": conf}


def test_a_refresh_is_submitted_by_spark_left_and_gone_on_with(
    cluster: KubernetesApi, lake: Lake, arguments: dict[str, Any]
) -> None:
    task = Task()
    trigger = task.defer(**arguments)
    name, pod = cluster.newest
    assert pod.driver.exit_code is None, "the task waited for its driver"
    assert trigger.refresh["driver"] == {
        "manager": "kubernetes",
        "conn_id": "kubernetes",
        "driver_id": f"data:{name}",
        "kerberos": False,
    }
    payload = follow(trigger)
    assert payload["driver"] == {"state": "succeeded", "status": "Succeeded", "exit_code": 0}
    assert name in cluster.pods
    assert task.go_on(payload, **arguments)["rows"] == 2000
    assert lake.rows("raw.items").num_rows == 2000
    assert not cluster.pods, "a pod that ended well is removed, as the Spark provider does"


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
    cluster.delete(name)
    payload = follow(trigger)
    with pytest.raises(RefreshFailedError, match=f"driver data:{name} is not known to the cluster any more"):
        task.go_on(payload, **arguments)
    result = task.go_on(follow(task.defer(**arguments)), **arguments)
    assert (result["generation"], result["attempts"]) == (1, 2)
    assert lake.rows("raw.items").num_rows == 2000


def test_a_task_that_is_marked_or_cleared_deletes_the_pod(
    cluster: KubernetesApi, api: SampleApi, arguments: dict[str, Any]
) -> None:
    import asyncio

    trigger = Task().defer(**arguments)
    name, pod = cluster.newest
    _, kept = trigger.serialize()
    asyncio.run(RefreshTrigger(**kept).on_kill())
    assert ("DELETE", f"/api/v1/namespaces/data/pods/{name}") in cluster.requests
    assert pod.driver.exit_code == 137


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
    cluster.create({"metadata": {"name": "pod"}, "spec": {"containers": [{"name": "x"}]}})
    report = driver.look()
    assert (report.state, report.status) == (DriverState.ACTIVE, "Pending")
    cluster.trouble = 403
    with pytest.raises(ClusterManagerError, match="Kubernetes answers with HTTP 403"):
        driver.look()
    cluster.trouble = None
    driver.stop()
    wait_until(lambda: driver.look().state is DriverState.GONE)
