"""Two live drivers of one refresh: the older one can't write any more once the newer one took over."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.conftest import CRASHING_APP, FENCED, Lake, Runner, assert_whole, figures_of, kill_group, shop
from tests.integration.test_crash_matrix import items
from tests.soon import PATIENCE, wait_until


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("before the opening commit", FENCED),
        ("after the opening commit", FENCED),
        ("before a flush", FENCED),
        pytest.param("before a ledger commit", FENCED, marks=pytest.mark.gate),
        ("after a ledger commit", FENCED),
        pytest.param("before the target commit", FENCED, marks=pytest.mark.gate),
        ("after the target commit", 0),
    ],
)
def test_a_driver_that_slept_while_another_took_over_can_not_commit(
    place: str, code: int, lake: Lake, runner: Runner, api: SampleApi
) -> None:
    config = items(runner, api, head_start=True)
    sleeper = runner.start(config, app=CRASHING_APP, environment={"RFR_TEST_STOP": place})
    try:
        wait_until(lambda: is_stopped(sleeper))
        second = runner.run(config)
        assert_whole(lake, api)
        snapshot = lake.table("raw.items").current_snapshot().snapshot_id
        assert second.figures["snapshot_id"] == snapshot
        os.kill(sleeper.pid, signal.SIGCONT)
        output, _ = sleeper.communicate(timeout=PATIENCE)
    finally:
        kill_group(sleeper)
    woken = figures_of(output)
    assert sleeper.returncode == code, output[-4000:]
    if code == FENCED:
        assert woken["error"]["type"] == "FencedError"
    else:
        assert woken["snapshot_id"] == snapshot, "a generation that was published is published once"
    assert_whole(lake, api)
    assert lake.table("raw.items").current_snapshot().snapshot_id == snapshot


@pytest.mark.parametrize(
    "head_start",
    [pytest.param(True, id="in the driver"), pytest.param(False, id="in Spark's workers", marks=pytest.mark.gate)],
)
def test_a_driver_that_slept_and_lost_its_refresh_asks_the_api_for_nothing_more_when_it_wakes(
    head_start: bool, lake: Lake, runner: Runner, api: SampleApi
) -> None:
    def config(**options: object) -> Path:
        source = shop(api, partitions=8, page_size=25)
        return runner.config(source=source, streams=["items"], options={"concurrency": 4, **options})

    slow = {"requests_per_second": 8, "round_seconds": 600}
    # Spark of its own may be ready at any time: the reading is slow enough to be met in the driver, and to outlast it.
    sleeper = runner.start(config(head_start=head_start, **slow))
    try:
        wait_until(lambda: api.counts()["requests"] >= 8, seconds=120)
        os.killpg(sleeper.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(sleeper))
        second = runner.run(config())
        assert second.figures["resumed"]
        requests = api.counts()["requests"]
        os.killpg(sleeper.pid, signal.SIGCONT)
        output, _ = sleeper.communicate(timeout=PATIENCE)
    finally:
        kill_group(sleeper)
    assert sleeper.returncode == FENCED, output[-4000:]
    assert figures_of(output)["error"]["type"] == "FencedError"
    assert api.counts()["requests"] - requests <= 4, "it read on"
    assert_whole(lake, api)
