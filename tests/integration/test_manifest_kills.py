"""A manifest's streams in the real engine, killed by SIGKILL again and again: nothing lost, doubled or read twice.

Then what a manifest says of all processes together: its rate, and the answers that it ignores.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_rfr.sample_api.client import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.conftest import Lake, Runner, kill_group
from tests.profile import share

pytest.importorskip("airbyte_cdk", reason="the extra airbyte is not installed")

KILLS = share(10, least=3)
OPTIONS = {"concurrency": 4, "round_seconds": 2}
SIZES = Sizes(records=1000, customers=200)
SECONDS_A_PAGE = 0.02


def _cursor(value: str, option: Mapping[str, Any]) -> dict[str, Any]:
    strategy = {"type": "CursorPagination", "cursor_value": value, "page_size": 4}
    return {"type": "DefaultPaginator", "page_token_option": option, "pagination_strategy": strategy}


def _stream(name: str, path: str, field_path: list[str], size_as: str, **retriever: Any) -> dict[str, Any]:
    size = {"type": "RequestOption", "inject_into": "request_parameter", "field_name": size_as}
    paginator = retriever.pop("paginator")
    types = {"id": "integer", "revision": "integer"}
    return {
        "type": "DeclarativeStream",
        "name": name,
        "schema_loader": {
            "type": "InlineSchemaLoader",
            "schema": {"type": "object", "properties": {column: {"type": kind} for column, kind in types.items()}},
        },
        "retriever": {
            "type": "SimpleRetriever",
            "requester": {"type": "HttpRequester", "url_base": "{{ config['base_url'] }}", "path": path},
            "record_selector": {
                "type": "RecordSelector",
                "extractor": {"type": "DpathExtractor", "field_path": field_path},
            },
            "paginator": {**paginator, "page_size_option": size},
            **retriever,
        },
    }


_TOKEN = {"type": "RequestOption", "inject_into": "request_parameter"}
_CUSTOMERS = _stream(
    "customers",
    "customers",
    ["data"],
    "page_size",
    paginator={
        "type": "DefaultPaginator",
        "page_token_option": {**_TOKEN, "field_name": "page"},
        "pagination_strategy": {"type": "PageIncrement", "page_size": 100, "start_from_page": 1},
    },
)
#: No primary key: a publish would hide a doubled row by it.
INVOICES = _stream(
    "invoices",
    "invoices",
    [],
    "per_page",
    paginator=_cursor("{{ headers['link'].get('next', {}).get('url', '') }}", {"type": "RequestPath"}),
)
ORDERS = _stream(
    "customer_orders",
    "customers/{{ stream_partition['customer'] }}/orders",
    ["data"],
    "limit",
    paginator=_cursor("{{ response['next_cursor'] or '' }}", {**_TOKEN, "field_name": "cursor"}),
    partition_router={
        "type": "SubstreamPartitionRouter",
        "parent_stream_configs": [
            {"type": "ParentStreamConfig", "stream": _CUSTOMERS, "parent_key": "id", "partition_field": "customer"}
        ],
    },
)


@dataclass(frozen=True)
class Case:
    """:ivar path: of the pages; truth and counts are of all that it matches
    :ivar at_once: pages on their way when the process dies
    """

    stream: Mapping[str, Any]
    truth: str
    path: str
    at_once: int


CASES = {
    "cursor": Case(INVOICES, "/invoices", "/invoices", 1),
    "substream": Case(ORDERS, "/customers/orders", "/customers/*/orders", OPTIONS["concurrency"]),
}


@pytest.fixture
def shop() -> Iterator[SampleApi]:
    with SampleApi(SIZES, latency_ms=SECONDS_A_PAGE * 1000, api_key="key-of-the-shop-0815") as running:
        yield running


def source_of(api: SampleApi, stream: Mapping[str, Any]) -> dict[str, Any]:
    key = {
        "type": "ApiKeyAuthenticator",
        "api_token": "{{ config['api_key'] }}",
        "inject_into": {"type": "RequestOption", "inject_into": "header", "field_name": "X-Api-Key"},
    }
    manifest = json.loads(json.dumps({"version": "7.20.0", "type": "DeclarativeSource", "streams": [stream]}))
    for requester in _requesters(manifest):
        requester["authenticator"] = key
    manifest["check"] = {"type": "CheckStream", "stream_names": [stream["name"]]}
    return {"manifest": manifest, "config": {"base_url": api.base_url}, "secrets": {"api_key": api.api_key}}


def _requesters(value: Any) -> Iterator[dict[str, Any]]:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _requesters(part)
    if isinstance(value, dict) and value.get("type") == "HttpRequester":
        yield value


@pytest.mark.parametrize("name", CASES)
def test_kills_at_random_pages_lose_and_double_nothing(name: str, lake: Lake, runner: Runner, shop: SampleApi) -> None:
    case, seed = CASES[name], random.randrange(2**32)
    print(json.dumps({"seed": seed}))
    truth = shop.truth(case.truth)
    generator = random.Random(seed)
    pages = 250 if name == "cursor" else 400
    points = sorted(generator.sample(range(5, int(pages * 0.95)), KILLS))
    config = runner.config(
        source=source_of(shop, case.stream), streams=[case.stream["name"]], target="raw.rows", options=OPTIONS
    )
    for point in points:
        process = runner.start(config)
        # At least one page more than the attempt before: it is killed while it reads.
        shop.wait_for_pages(max(point, shop.counts()["pages"] + 1))
        assert process.poll() is None, process.communicate()[0][-4000:]
        kill_group(process)
        assert not lake.has("raw.rows"), "it was published before it was killed"
    done = runner.run(config)
    assert done.figures["generation"] == 1
    ids = lake.rows("raw.rows")["id"].to_pylist()
    assert sorted(ids) == sorted(truth["ids"])
    counts = shop.counts(path=case.path)
    print(json.dumps({"case": name, "kills": points, **counts, "figures": done.figures}))
    again = counts["refetched"] - done.figures["overlap_checks"]
    assert again <= allowed(case, counts["pages"])


def allowed(case: Case, pages: int) -> float:
    """Pages that may be asked for twice: 5 %, and for each kill those that were on their way."""
    return 0.05 * pages + KILLS * case.at_once


def test_the_rate_of_a_manifest_is_kept_by_all_workers_together_and_ignored_answers_are_counted(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    items = _stream(
        "items",
        "partitions/{{ stream_partition['number'] }}/items",
        ["data"],
        "page_size",
        paginator={
            "type": "DefaultPaginator",
            "page_token_option": {**_TOKEN, "field_name": "page"},
            "pagination_strategy": {"type": "PageIncrement", "page_size": 25, "start_from_page": 1},
        },
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
