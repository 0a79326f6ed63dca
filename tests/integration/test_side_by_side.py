"""Streams side by side in one application, by real processes: on Spark, in the driver alone, and killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.sample_api import SampleApi
from tests.integration.conftest import Lake, Runner, kill_group
from tests.integration.sources import figures_by_stream, source_of, stream_like

PARTITIONS, PAGES = 8, 20
#: Pages may be asked for again that were in flight, or in no file yet: those of 40 ms with eight readers in 0.1 s.
IN_FLIGHT, NOT_FLUSHED = 8, 20


def streams() -> dict[str, Any]:
    """A stream of each partition, which follows one chain of pages."""
    return {
        f"items_{number}": stream_like("items", partitions={"type": "list", "field": "partition", "values": [number]})
        for number in range(PARTITIONS)
    }


def config_of(runner: Runner, api: SampleApi, **options: Any) -> Path:
    source, options = source_of(api, streams()), {"concurrency": 8, "round_seconds": 1, **options}
    return runner.config(source=source, streams=list(streams()), options=options, run={"key": "one run"})


def assert_whole(lake: Lake, api: SampleApi) -> None:
    for number in range(PARTITIONS):
        ids = sorted(lake.rows(f"raw.items_{number}")["id"].to_pylist())
        assert ids == sorted(api.truth(f"/partitions/{number}/items")["ids"])


@pytest.mark.gate
@pytest.mark.parametrize("options", [{"head_start": False}, {"spark": "when_needed"}], ids=["rounds", "driver"])
def test_a_sigkill_at_half_costs_a_few_pages_and_no_row(
    options: dict[str, Any], lake: Lake, runner: Runner, api: SampleApi
) -> None:
    config = config_of(runner, api, **options)
    process = runner.start(config)
    api.wait_for_pages(PARTITIONS * PAGES // 2)
    kill_group(process)
    before = api.counts(path="/partitions/*")
    second = runner.run(config)
    assert_whole(lake, api)
    figures = figures_by_stream(second)
    assert list(figures) == list(streams())
    assert all(item["generation"] == 1 for item in figures.values())
    again = api.counts(path="/partitions/*")["refetched"] - before["refetched"] - second.figures["overlap_checks"]
    assert again <= IN_FLIGHT + NOT_FLUSHED


def test_a_failing_stream_harms_no_other_and_is_read_by_the_next_run(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    api.set_faults({"kind": "error", "status": 403, "path": "/partitions/3/items", "query": {"page": "7"}})
    config = config_of(runner, api, head_start=False)
    first = runner.run(config, expect=1)
    assert [error["stream"] for error in first.figures["errors"]] == ["items_3"]
    assert not lake.has("raw.items_3")
    api.set_faults()
    runner.run(config)
    assert_whole(lake, api)
    asked = Counter(entry["page"] for entry in api.log(path="/partitions/3/items"))
    pages = [f"/partitions/3/items at {25 * number} size 25" for number in range(4)]
    assert [asked[page] for page in pages] == [1, 1, 1, 1], "its pages were kept"
