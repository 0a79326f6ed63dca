"""SIGKILL at every place that matters, by real processes; each time the next attempt publishes exactly the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.conftest import CRASHING_APP, Lake, Runner, assert_whole, kill_group, shop

PAGES = 8 * 20
SECONDS_A_PAGE = 0.04
FLUSH_ON_A_BUSY_MACHINE = 0.1
OPTIONS = {"round_seconds": 0.5, "concurrency": 8}

PLACES = [
    "before the opening commit",
    "after the opening commit",
    "before a flush",
    "after a flush",
    "before a ledger commit",
    "after a ledger commit",
    "before the target commit",
    "after the target commit",
    "after the published mark",
]


#: Places where Spark makes a difference: its tasks write, or its jobs lie between.
ON_SPARK = ("after a flush", "before a ledger commit", "before the target commit")


def items(runner: Runner, api: SampleApi, target: str = "raw.items", **options: object) -> Path:
    source = shop(api, partitions=8, page_size=25)
    return runner.config(source=source, streams=["items"], target=target, options={**OPTIONS, **options})


def allowed(pages_done: int) -> float:
    """Pages that may be fetched again: 5 % of what was done, those on their way, and those that arrive
    while one flush is written."""
    on_their_way = OPTIONS["concurrency"]
    return 0.05 * pages_done + on_their_way + OPTIONS["concurrency"] * FLUSH_ON_A_BUSY_MACHINE / SECONDS_A_PAGE


@pytest.mark.parametrize(
    ("place", "spark"),
    [
        *(pytest.param(place, "when_needed", marks=pytest.mark.gate) for place in PLACES),
        *(pytest.param(place, "always", marks=[pytest.mark.gate] if place in ON_SPARK else []) for place in PLACES),
    ],
)
def test_a_sigkill_loses_nothing_and_doubles_nothing(
    place: str, spark: str, lake: Lake, runner: Runner, api: SampleApi
) -> None:
    """On Spark, and where the driver publishes alone, because the load is small."""
    config = items(runner, api, spark=spark)
    killed = runner.run(config, app=CRASHING_APP, environment={"RFR_TEST_KILL": place}, expect=-9)
    before = api.counts(path="/partitions/*")
    assert "error" not in killed.figures
    visible = place in ("after the target commit", "after the published mark")
    assert lake.has("raw.items") is visible
    second = runner.run(config)
    assert_whole(lake, api)
    if place == "after the published mark":
        # It was published and told so: a run without a key is a new refresh.
        assert second.figures["generation"] == 2
        return
    assert second.figures["generation"] == 1
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"]
    lost = again - second.figures["overlap_checks"]
    if place in (
        "before a ledger commit",
        "after a ledger commit",
        "before the target commit",
        "after the target commit",
    ):
        assert lost == 0, "pages that were on disk were asked for again"
    assert lost <= allowed(before["pages"])


@pytest.mark.parametrize("share", [0.05, pytest.param(0.5, marks=pytest.mark.gate), 0.9])
def test_a_sigkill_of_driver_and_jvm_while_pages_are_on_their_way(
    share: float, lake: Lake, runner: Runner, api: SampleApi
) -> None:
    config = items(runner, api)
    process = runner.start(config)
    api.wait_for_pages(int(PAGES * share))
    kill_group(process)
    before = api.counts(path="/partitions/*")
    second = runner.run(config)
    assert_whole(lake, api)
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"] - second.figures["overlap_checks"]
    assert again <= allowed(before["pages"])
