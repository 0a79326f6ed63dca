"""A driver in YARN, asked over HTTP."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_rfr.exceptions import ConfigurationError, PreflightError
from airflow_provider_rfr.hooks.spark import (
    ClusterManagerError,
    DriverAddress,
    DriverState,
    RefreshSparkHook,
    _yarn_report,
    open_driver,
)
from tests.clusters import waiting_app
from tests.clusters.yarn import ResourceManager
from tests.unit.messages import raises


@pytest.fixture
def cluster(connect: Callable[..., None]) -> Callable[[str], None]:
    """Make the connection to a cluster whose manager has this address."""
    extra = "yarn_resourcemanager_webapp_address"
    return lambda address: connect("cluster", conn_type="spark", host="yarn", extra={extra: address})


@pytest.mark.parametrize("with_scheme", [True, False])
def test_it_is_seen_from_its_submit_to_its_end(
    tmp_path: Path, cluster: Callable[[str], None], with_scheme: bool
) -> None:
    with ResourceManager(tmp_path) as manager:
        cluster(manager.url if with_scheme else manager.url.removeprefix("http://"))
        app = manager.submit({"files": [], "application": waiting_app.__file__, "arguments": []})["id"]
        driver = open_driver(DriverAddress("yarn", "cluster", app))
        assert driver.look().state is DriverState.ACTIVE
        (manager.drivers[app].folder / "end").write_text("0")
        manager.drivers[app]._process.wait(30)
        report = driver.look()
        assert (report.state, report.status, report.exit_code) == (DriverState.SUCCEEDED, "SUCCEEDED", 0)
        assert report.url == f"{manager.url}/proxy/{app}/"
        driver.tidy()
        assert driver.last_lines() == ()


@pytest.mark.parametrize(
    ("state", "final", "why", "expected"),
    [
        ("NEW_SAVING", "UNDEFINED", "", (DriverState.ACTIVE, "NEW_SAVING", None)),
        ("RUNNING", "UNDEFINED", None, (DriverState.ACTIVE, "RUNNING", None)),
        ("KILLED", "KILLED", "by user", (DriverState.FAILED, "KILLED", None)),
        ("FAILED", "FAILED", "failed 2 times due to AM Container", (DriverState.FAILED, "FAILED", None)),
        ("FINISHED", "FAILED", "User application exited with status 2", (DriverState.FAILED, "FAILED", 2)),
        ("FINISHED", "UNDEFINED", "", (DriverState.FAILED, "UNDEFINED", None)),
    ],
)
def test_each_state_of_an_application_is_understood(
    state: str, final: str, why: str | None, expected: tuple[Any, ...]
) -> None:
    report = _yarn_report({"state": state, "finalStatus": final, "diagnostics": why, "trackingUrl": "N/A"})
    assert (report.state, report.status, report.exit_code) == expected
    assert report.url is None


def test_an_answer_that_is_no_answer_is_no_news(tmp_path: Path, cluster: Callable[[str], None]) -> None:
    with ResourceManager(tmp_path) as manager:
        cluster(manager.url)
        driver = open_driver(DriverAddress("yarn", "cluster", "application_1_1"))
        assert driver.look().state is DriverState.GONE
        driver.stop()
        for status in (401, 404):
            manager.trouble = status
            for ask in (driver.look, driver.stop):
                with raises(ClusterManagerError):
                    ask()
        manager.trouble = 200
        with raises(ClusterManagerError):
            driver.look()
    with raises(ClusterManagerError):
        driver.look()


def test_what_is_missing_to_ask_the_manager_is_said(cluster: Callable[[str], None]) -> None:
    cluster("")
    with raises(ConfigurationError):
        open_driver(DriverAddress("yarn", "cluster", "application_1_1"))
    cluster("http://127.0.0.1:1")
    with raises(PreflightError):
        open_driver(DriverAddress("yarn", "cluster", "application_1_1", kerberos=True))


@pytest.mark.skipif(importlib.util.find_spec("kubernetes") is not None, reason="it is installed here")
def test_kubernetes_without_its_provider_says_what_to_install() -> None:
    with raises(PreflightError):
        open_driver(DriverAddress("kubernetes", "cluster", "spark:pod"))


def test_a_spark_provider_that_waits_for_its_driver_defers_nothing(connect: Callable[..., None]) -> None:
    connect("cluster", conn_type="spark", host="yarn", extra={"deploy-mode": "cluster"})
    parent = SparkSubmitHook(conn_id="cluster")
    # As in version 5.
    vars(parent).pop("_yarn_track_via_rm_api", None)
    with pytest.raises(ConfigurationError) as caught:
        RefreshSparkHook.from_parent(parent).leave_driver()
    assert caught.value.field == "deferrable"
    assert "install its version 6.3 or later" in str(caught.value)
