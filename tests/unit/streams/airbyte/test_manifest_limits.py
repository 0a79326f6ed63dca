"""The limits that a manifest sets for its API become those of the refresh."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from manifest_api import Api, needs_cdk, shop_with

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.airbyte.source import check_manifest
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.loader import load_stream

pytestmark = needs_cdk


def moving(*rates: tuple[Any, str], **matcher: Any) -> dict[str, Any]:
    return {
        "type": "MovingWindowCallRatePolicy",
        "rates": [{"type": "Rate", "limit": limit, "interval": interval} for limit, interval in rates],
        "matchers": [{"type": "HttpRequestRegexMatcher", **matcher}] if matcher else [],
    }


def fixed(limit: int, period: str, **matcher: Any) -> dict[str, Any]:
    policy = {**moving(**matcher), "type": "FixedWindowCallRatePolicy", "period": period, "call_limit": limit}
    del policy["rates"]
    return policy


def with_budget(*policies: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    manifest = shop_with("customers", "orders")
    manifest["api_budget"] = {"type": "HTTPAPIBudget", "policies": list(policies), **fields}
    return manifest


@pytest.mark.parametrize(
    ("policies", "customers", "orders"),
    [
        ([moving((5, "PT1S"))], 5, 5),
        ([moving((5, "PT1S"), (120, "PT1M"))], 2, 2),
        ([fixed(3600, "PT1H"), moving((20, "PT1S"))], 1, 1),
        ([moving(("{{ config['rate'] }}", "PT2S"))], 4, 4),
        ([moving((6, "PT1S"), url_path_pattern="^/v1/customers$", weight=3)], 2, 2),
        ([moving((6, "PT1S"), url_path_pattern="/events")], None, 6),
        ([moving((6, "PT1S"), method="POST")], None, None),
        ([moving((6, "PT1S"), url_base="https://elsewhere.example.com")], None, 6),
        ([moving((6, "PT1S"), params={"page": "2"})], 6, 6),
        ([{"type": "UnlimitedCallRatePolicy", "matchers": []}], None, None),
    ],
)
def test_the_rate_is_the_smallest_of_the_policies_that_may_concern_the_stream_or_a_parent(
    api: Api, policies: list[dict[str, Any]], customers: float | None, orders: float | None
) -> None:
    # The path of orders is known with a slice only, so that a policy for any path may be meant.
    source = api.source(with_budget(*policies), config={"url": api.url, "rate": 8})
    rates = {name: load_stream(source, name).requests_per_second for name in ("customers", "orders")}
    assert rates == {"customers": customers, "orders": orders}
    assert load_stream(api.source(), "customers").requests_per_second is None


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (moving(("{{ config.nothing }}", "PT1S")), r"'\{\{ config.nothing \}\}' is not a positive number of requests"),
        (moving((5, "soon")), "'soon' is not a duration in days or smaller units; write one such as PT1S or PT1M"),
        (moving((5, "P1M")), "'P1M' is not a duration"),
        (moving((0, "PT1S")), "'?0'? is not a positive number of requests"),
    ],
)
def test_a_rate_that_is_none_is_refused(api: Api, policy: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load_stream(api.source(with_budget(policy)), "customers")


def test_the_budget_is_not_kept_a_second_time_by_each_process(api: Api) -> None:
    def slept(seconds: float) -> None:
        raise AssertionError("the CDK's own budget made a request wait")

    class Context(ReadContext):
        sleep: Callable[[Any, float], None] = staticmethod(slept)  # type: ignore[assignment]

    stream = load_stream(api.source(with_budget(fixed(1, "P1D"))), "customers")
    stream.bind(Context())
    assert [len(stream.read_page({}, token).records) for token in (None, 2, 3)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("level", "workers", "wanted"),
    [
        ({"default_concurrency": 2}, 9, 2),
        ({"default_concurrency": "{{ config.get('workers', 3) }}", "max_concurrency": 5}, 4, 4),
        ({"default_concurrency": "{{ config.get('workers', 3) }}", "max_concurrency": 5}, 9, 5),
    ],
)
def test_the_level_of_concurrency_may_depend_on_the_configuration(
    api: Api, level: dict[str, Any], workers: int, wanted: int
) -> None:
    manifest = shop_with("customers")
    manifest["concurrency_level"] = {"type": "ConcurrencyLevel", **level}
    source = api.source(manifest, config={"url": api.url, "workers": workers})
    assert load_stream(source, "customers").max_concurrency == wanted
    assert load_stream(api.source(), "customers").max_concurrency is None


def test_fields_of_the_budget_without_effect_are_told_once(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "airflow_provider_rfr")
    manifest = with_budget(
        moving((5, "PT1S")), ratelimit_remaining_header="X-Left", status_codes_for_ratelimit_hit=[429]
    )
    source = api.source(manifest)
    list(load_stream(source, "customers").stream_slices())
    words = "api_budget.ratelimit_remaining_header has no effect; only answers 429 slow the refresh down"
    assert [record.getMessage() for record in caplog.records] == [f"customers: {words}"]
    [report, _] = check_manifest(source)
    assert report.notes == ("at most 5 requests per second", words)


def test_limits_are_not_part_of_the_fingerprint(api: Api) -> None:
    limited = load_stream(api.source(with_budget(moving((5, "PT1S")))), "customers")
    assert limited.fingerprint() == load_stream(api.source(with_budget()), "customers").fingerprint()
