"""A manifest's streams in the real engine, killed by SIGKILL again and again: nothing lost, doubled or read twice.

Then what a manifest says of all processes together: its rate, and the answers that it ignores.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.lake.sync_state import read_state
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.conftest import Lake, Runner, kill_group
from tests.manifests.case import without_duration
from tests.profile import share
from tests.unit.refresh.changing_api import ChangingApi, children_of, datetime_cursor, manifest_of, stream_of

pytest.importorskip("airbyte_cdk", reason="the extra airbyte is not installed")

KILLS = share(10, least=3)
OPTIONS = {"concurrency": 4, "round_seconds": 2}
SIZES = Sizes(records=1000, customers=200)


KEY = {
    "type": "ApiKeyAuthenticator",
    "api_token": "{{ config['api_key'] }}",
    "inject_into": {"type": "RequestOption", "inject_into": "header", "field_name": "X-Api-Key"},
}


def _stream(
    name: str, path: str, paging: Mapping[str, Any], *, token_as: str, size_as: str, **retriever: Any
) -> dict[str, Any]:
    query = {"type": "RequestOption", "inject_into": "request_parameter"}
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "revision": {"type": "integer"}}}
    extractor = {"type": "DpathExtractor", "field_path": ["data"]}
    requester = {"type": "HttpRequester", "url_base": "{{ config['base_url'] }}", "path": path, "authenticator": KEY}
    paginator = {
        "type": "DefaultPaginator",
        "page_token_option": {**query, "field_name": token_as},
        "page_size_option": {**query, "field_name": size_as},
        "pagination_strategy": paging,
    }
    return {
        "type": "DeclarativeStream",
        "name": name,
        "schema_loader": {"type": "InlineSchemaLoader", "schema": schema},
        "retriever": {
            "type": "SimpleRetriever",
            "requester": requester,
            "record_selector": {"type": "RecordSelector", "extractor": extractor},
            "paginator": paginator,
            **retriever,
        },
    }


_CUSTOMERS = _stream(
    "customers",
    "customers",
    {"type": "PageIncrement", "page_size": 100, "start_from_page": 1},
    token_as="page",
    size_as="page_size",
)
#: No primary key: a publish would hide a doubled row by it.
ORDERS = _stream(
    "customer_orders",
    "customers/{{ stream_partition['customer'] }}/orders",
    {"type": "CursorPagination", "cursor_value": "{{ response['next_cursor'] or '' }}", "page_size": 4},
    token_as="cursor",
    size_as="limit",
    partition_router={
        "type": "SubstreamPartitionRouter",
        "parent_stream_configs": [
            {"type": "ParentStreamConfig", "stream": _CUSTOMERS, "parent_key": "id", "partition_field": "customer"}
        ],
    },
)


@pytest.fixture
def shop() -> Iterator[SampleApi]:
    with SampleApi(SIZES, latency_ms=20, api_key="key-of-the-shop-0815") as running:
        yield running


def source_of(api: SampleApi, stream: Mapping[str, Any]) -> dict[str, Any]:
    check = {"type": "CheckStream", "stream_names": [stream["name"]]}
    manifest = {"version": "7.20.0", "type": "DeclarativeSource", "check": check, "streams": [stream]}
    return {"manifest": manifest, "config": {"base_url": api.base_url}, "secrets": {"api_key": api.api_key}}


def test_kills_at_random_pages_lose_and_double_nothing(lake: Lake, runner: Runner, shop: SampleApi) -> None:
    seed = random.randrange(2**32)
    points = sorted(random.Random(seed).sample(range(5, 380), KILLS))
    print(json.dumps({"seed": seed, "kills": points}))
    config = runner.config(source=source_of(shop, ORDERS), streams=[ORDERS["name"]], target="raw.rows", options=OPTIONS)
    for point in points:
        process = runner.start(config)
        # At least one page more than the attempt before: it is killed while it reads.
        shop.wait_for_pages(max(point, shop.counts()["pages"] + 1))
        assert process.poll() is None, process.communicate()[0][-4000:]
        kill_group(process)
        assert not lake.has("raw.rows"), "it was published before it was killed"
    figures = runner.run(config).figures
    assert figures["generation"] == 1
    ids = lake.rows("raw.rows")["id"].to_pylist()
    assert sorted(ids) == sorted(shop.truth("/customers/orders")["ids"])
    counts = shop.counts(path="/customers/*/orders")
    # 5 %, and for each kill those that were on their way.
    allowed = 0.05 * counts["pages"] + KILLS * OPTIONS["concurrency"]
    assert counts["refetched"] - figures["overlap_checks"] <= allowed, counts


def filled(api: ChangingApi, shops: int) -> None:
    api.change("/shops", range(shops), 0)
    for shop in range(shops):
        api.change(f"/shops/{shop}", [f"{shop}-{number}" for number in range(7)], shop % 40)


def test_kills_in_incremental_syncs_leave_rows_and_state_as_without_kills(
    lake: Lake, runner: Runner, tmp_path: Path
) -> None:
    seed, shops, kills = random.randrange(2**32), 200, share(20, least=2)
    chance = random.Random(seed)
    parents = stream_of("/shops", datetime_cursor(), "shops")
    orders = children_of(parents, datetime_cursor(), incremental_dependency=True)
    api = ChangingApi()
    filled(api, shops)
    source = {"manifest": manifest_of(orders), "config": {"url": api.url, "end": ""}}
    options = {"mode": "merge", "concurrency": 4, "round_seconds": 1, "spark": "when_needed"}

    def config_of(table: str) -> Path:
        return runner.config(source=source, streams=["orders"], target=table, sync="incremental", options=options)

    for table in ("raw.killed", "raw.whole"):
        runner.run(config_of(table))
    api.change("/shops", range(0, shops, 2), 300)
    for shop in range(0, shops, 2):
        api.change(f"/shops/{shop}", [f"{shop}-{number}" for number in (1, 2, *range(20, 32))], 110 + shop % 30)
    runner.run(config_of("raw.whole"))
    api.asked.clear()
    points = sorted(chance.sample(range(30, 380), kills))
    print(json.dumps({"seed": seed, "kills": points}))
    api.seconds, config = 0.03, config_of("raw.killed")
    before = read_state(lake.table("raw.killed"))
    for point in points:
        process = runner.start(config)
        api.wait_for_requests(max(point, len(api.asked) + 1))
        assert process.poll() is None, process.communicate()[0][-4000:]
        kill_group(process)
        assert read_state(lake.table("raw.killed")) == before, "it was published before it was killed"
    api.seconds = 0.0
    runner.run(config)
    rows = {table: rows_of(lake, table) for table in ("raw.killed", "raw.whole")}
    assert rows["raw.killed"] == rows["raw.whole"]
    assert len(rows["raw.killed"]) == len({row[0] for row in rows["raw.killed"]}) == shops * 7 + shops // 2 * 12
    states = [read_state(lake.table(table)) for table in rows]
    assert without_duration(states[0].of_source) == without_duration(states[1].of_source)
    assert len(states[0].of_source["states"]) == shops
    asked = [path for path in api.asked if path.startswith("/shops/")]
    again = len(asked) - len(set(asked))
    assert again <= 0.05 * len(asked) + kills * 2 * options["concurrency"], again
    api.close()


def rows_of(lake: Lake, table: str) -> list[tuple[Any, ...]]:
    rows = lake.rows(table).select(["id", "updated_at", "value"]).to_pylist()
    return sorted((row["id"], row["updated_at"], row["value"]) for row in rows)


def test_the_rate_of_a_manifest_is_kept_by_all_workers_together_and_ignored_answers_are_counted(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    items = _stream(
        "items",
        "partitions/{{ stream_partition['number'] }}/items",
        {"type": "PageIncrement", "page_size": 25, "start_from_page": 1},
        token_as="page",
        size_as="page_size",
        partition_router={"type": "ListPartitionRouter", "values": ["0", "1", "2", "3"], "cursor_field": "number"},
    )
    ignored = {"type": "HttpResponseFilter", "predicate": "{{ 'error' in response }}", "action": "IGNORE"}
    handler = {"type": "DefaultErrorHandler", "response_filters": [ignored]}
    items["retriever"]["requester"]["error_handler"] = handler
    source = source_of(api, items)
    rate = {"type": "Rate", "limit": 10, "interval": "PT2S"}
    policy = {"type": "MovingWindowCallRatePolicy", "rates": [rate], "matchers": []}
    source["manifest"]["api_budget"] = {"type": "HTTPAPIBudget", "policies": [policy]}
    api.set_faults({"kind": "error", "status": 200, "path": "/partitions/3/items", "query": {"page": "2"}})
    # No driver prefetch: it would read with one process.
    config = runner.config(source=source, streams=["items"], options={"concurrency": 4, "head_start": False})
    done = runner.run(config)
    assert "items: at most 5 requests per second, as set by the source" in done.output
    times = sorted(entry["at"] for entry in api.log(path="/partitions/*"))
    assert len(times) >= 62
    # Two workers of which each keeps the rate by itself take half of it. A slow machine only adds to it.
    assert times[-1] - times[0] >= 0.75 * (len(times) - 1) / 5
    assert (done.figures["pages_skipped"], done.figures["rows"]) == (1, 3 * 20 * 25 + 25)
