"""Surroundings that break while a refresh runs: its last line says what it was."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil

from airflow_provider_rfr.sample_api import SampleApi
from tests.headers import read_status
from tests.integration.conftest import Lake, Outcome, Runner, figures_of, kill_group, shop
from tests.soon import PATIENCE, wait_until

FAILED = 1


def reading(lake: Lake, runner: Runner, api: SampleApi) -> subprocess.Popen[str]:
    """A refresh that has committed two rounds, so that Spark reads; its end is far."""
    options = {"requests_per_second": 10, "round_seconds": 1, "head_start": False}
    process = runner.start(
        runner.config(source=shop(api, partitions=8, page_size=25), streams=["items"], options=options)
    )

    def two_rounds() -> bool:
        if not lake.folder.joinpath("catalog.db").exists() or not lake.has("raw.items__rfr_ledger"):
            return False
        status = read_status(lake.settings, "raw.items")
        return status is not None and status.rounds >= 2

    wait_until(two_rounds, seconds=120)
    return process


def ended(process: subprocess.Popen[str]) -> Outcome:
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        kill_group(process)
    return Outcome(process.returncode, output, figures_of(output))


def test_a_jvm_that_is_killed_is_told_as_that_and_nobody_waits_for_its_driver(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    process = reading(lake, runner, api)
    [jvm] = [one for one in psutil.Process(process.pid).children() if one.name() == "java"]
    jvm.kill()
    outcome = ended(process)
    error = outcome.figures["error"]
    assert (outcome.code, error["type"]) == (FAILED, "SparkJobError"), outcome.output[-3000:]
    assert error["message"].startswith("Spark: the JVM died (killed, often for memory")
    status = read_status(lake.settings, "raw.items")
    assert status.ended_at is not None
    assert (status.error or "").startswith("SparkJobError: Spark: the JVM died")


def test_a_stop_that_takes_spark_along_ends_as_stopped(lake: Lake, runner: Runner, api: SampleApi) -> None:
    process = reading(lake, runner, api)
    os.killpg(process.pid, signal.SIGTERM)
    outcome = ended(process)
    assert outcome.code == FAILED, outcome.output[-3000:]
    assert outcome.figures["error"]["type"] == "RefreshStoppedError", outcome.output[-3000:]
    assert "the next attempt continues" in outcome.figures["error"]["message"]
    status = read_status(lake.settings, "raw.items")
    assert status.ended_at is not None
