"""What takes longer than a round: slow rates, long waits, and errors that must not be forgotten when a round ends."""

from __future__ import annotations

import time

from airflow_provider_rfr.sample_api.client import SampleApi
from tests.integration.conftest import Lake, Runner, shop

FAILED = 1


def test_a_rate_far_below_the_readers_reads_everything_and_is_kept(lake: Lake, runner: Runner, api: SampleApi) -> None:
    """Sixteen readers wait for eight seconds of turns; a round has one."""
    options = {"requests_per_second": 2, "round_seconds": 1, "concurrency": 16}
    config = runner.config(source=shop(api, partitions=1, page_size=25), streams=["items"], options=options)
    began = time.monotonic()
    figures = runner.run(config).figures
    assert (figures["pages"], figures["pages_refetched"]) == (20, 0)
    assert time.monotonic() - began > 9, "the rate was not kept"
    assert sorted(lake.rows("raw.items")["id"].to_pylist()) == sorted(api.truth("/partitions/0/items")["ids"])


def test_a_page_that_never_comes_fails_its_partition_although_its_retries_outlast_many_rounds(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    api.set_faults({"kind": "error", "status": 500, "path": "/partitions/0/items", "after": 2})
    options = {"round_seconds": 0.5, "concurrency": 4}
    config = runner.config(source=shop(api, partitions=2, page_size=25), streams=["items"], options=options)
    failed = runner.run(config, expect=FAILED).figures
    assert "1 of 2 partitions could not be read" in failed["error"]["message"]
    assert "gave up after" in failed["error"]["message"]
    statuses = api.counts(path="/partitions/0/items")["statuses"]
    assert statuses["500"] < 40, "each round tried anew"
