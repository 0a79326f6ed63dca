"""Two runs at one target at the same time: of two parts, and of the same rows."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.sample_api.client import SampleApi
from tests.headers import read_status
from tests.integration.conftest import Lake, Runner, figures_of, shop
from tests.integration.sources import schema_like, source_of, stream_like
from tests.soon import PATIENCE, wait_until

FAILED = 1


def of_day(runner: Runner, api: SampleApi, day: int) -> Path:
    """A backfill of one day: half of the API's partitions, with the day in each row."""
    daily = stream_like(
        "items",
        partitions={"type": "list", "field": "partition", "values": "{{ config.parts }}"},
        transformations=[{"type": "add", "fields": {"day": "{{ config.day }}"}}],
        json_schema=schema_like("items", day={"type": "string", "format": "date"}),
    )
    text = f"2026-01-{day:02}"
    parts = [number for number in range(8) if number % 2 == day % 2]
    return runner.config(
        source=source_of(api, {"daily": daily}, day=text, parts=parts),
        streams=["daily"],
        options={"replace_where": f"day = '{text}'", "round_seconds": 1},
        run={"key": f"shop/backfill-{text}/refresh/-1/0"},
    )


def test_two_days_at_once_are_two_refreshes_with_generations_of_their_own(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    days = [runner.start(of_day(runner, api, day)) for day in (5, 6)]
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in days]
    for process, output in zip(days, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
    assert [figures_of(output)["generation"] for output in outputs] == [1, 1]
    pages: dict[str, list[int]] = {}
    for row in lake.rows("raw.daily").to_pylist():
        pages.setdefault(row["day"].isoformat(), []).append(row["id"])
    for day in (5, 6):
        paths = [f"/partitions/{number}/items" for number in range(8) if number % 2 == day % 2]
        truth = sorted(one for path in paths for one in api.truth(path)["ids"])
        assert sorted(pages[f"2026-01-{day:02}"]) == truth
    assert api.counts()["refetched"] == 0, "one of the two was taken for the other's retry"


def test_the_second_run_waits_for_the_first_or_fails_at_once_as_on_busy_says(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    def config(run: str, on_busy: str, **more: object) -> Path:
        options = {"round_seconds": 1, "on_busy": on_busy, **more}
        key = f"shop/{run}/refresh/-1/0"
        return runner.config(
            source=shop(api, partitions=8, page_size=25), streams=["items"], options=options, run={"key": key}
        )

    def reads() -> bool:
        if not open_catalog(lake.settings).table_exists("raw.items__rfr_ledger"):
            return False
        return read_status(lake.settings, "raw.items") is not None

    api.set_faults({"kind": "hold", "path": "/partitions/*", "after": 10})
    first = runner.start(config("one", "wait", requests_per_second=10))
    wait_until(reads)
    refused = runner.run(config("two", "fail"), expect=FAILED)
    assert refused.figures["error"]["type"] == "RefreshBusyError"
    assert "raw.items is being refreshed by shop/one/refresh/-1/0" in refused.figures["error"]["message"]
    third = runner.start(config("three", "wait"))
    assert third.stdout is not None
    lines = []
    for line in third.stdout:
        lines.append(line)
        if "waiting for it, since on_busy is wait" in line:
            api.set_faults()
    assert third.wait() == 0, "".join(lines)
    waited = figures_of("".join(lines))
    output, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0, output[-4000:]
    assert figures_of(output)["generation"] == 1
    assert waited["generation"] == 2, json.dumps(waited)
    assert not waited["resumed"]
    assert waited["seconds"]["wait"] > 1
    assert waited["pages_refetched"] == 0
