"""Rate limits of a manifest, which all processes of a refresh share.

The CDK applies ``api_budget`` in each process, so ten processes would send ten times as many requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from airflow_provider_rfr.exceptions import ConfigurationError

#: Fields of a budget that concern answers of the API. A refresh slows down only for 429.
_OF_ANSWERS: Final = ("ratelimit_reset_header", "ratelimit_remaining_header", "status_codes_for_ratelimit_hit")

Render = Callable[[str, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """Limits of one stream; None where the manifest sets none.

    :ivar concurrency: requests in flight
    :ivar not_kept: fields of ``api_budget`` that have no effect
    """

    requests_per_second: float | None = None
    concurrency: int | None = None
    not_kept: tuple[str, ...] = ()

    def words(self) -> Iterator[str]:
        """Yield the limits as text for messages."""
        if self.requests_per_second is not None:
            yield f"at most {self.requests_per_second:.4g} requests per second"
        if self.concurrency is not None:
            yield f"at most {self.concurrency} requests at the same time"


def limits_of(
    budget: Any, nodes: Iterable[Mapping[str, Any]], concurrency: int | None, render: Render
) -> ManifestLimits:
    """Return the limits of a stream.

    :param budget: ``api_budget`` of the manifest
    :param nodes: all mappings in the definition of the stream, which holds its parents
    :param render: renders a template with the configuration; returns an empty text if it needs more
    :raises ConfigurationError: a rate is invalid
    """
    if not isinstance(budget, Mapping):
        return ManifestLimits(concurrency=concurrency)
    requests = [_request(node, render) for node in nodes if {"url_base", "url"} & node.keys()]
    rates = [rate for policy in budget.get("policies") or () for rate in _rates(policy, requests, render)]
    if not rates:
        return ManifestLimits(concurrency=concurrency)
    not_kept = tuple(name for name in _OF_ANSWERS if budget.get(name) not in (None, [429]))
    return ManifestLimits(min(rates), concurrency, not_kept)


def _request(requester: Mapping[str, Any], render: Render) -> tuple[str, str]:
    """Return method and address of a requester; the address is empty if it depends on the slice."""
    parameters = requester.get("$parameters") or {}
    base = render(str(requester.get("url") or requester.get("url_base")), parameters)
    path = str(requester.get("path") or "")
    rendered = render(path, parameters)
    is_known = base.startswith("http") and bool(rendered or not path)
    address = f"{base.rstrip('/')}/{rendered.lstrip('/')}" if is_known else ""
    return str(requester.get("http_method") or "GET").upper(), address


def _rates(policy: Mapping[str, Any], requests: list[tuple[str, str]], render: Render) -> Iterator[float]:
    """Yield the rates of a policy that may apply to one of the requests."""
    matchers = policy.get("matchers") or [{}]
    concerned = [matcher for matcher in matchers if any(_may_match(matcher, *request) for request in requests)]
    if not concerned:
        return
    weight = max(_number(matcher.get("weight") or 1, render) for matcher in concerned)
    if policy.get("type") == "FixedWindowCallRatePolicy":
        yield _number(policy["call_limit"], render) / _seconds(policy["period"]) / weight
    for rate in policy.get("rates") or ():
        yield _number(rate["limit"], render) / _seconds(rate["interval"]) / weight


def _may_match(matcher: Mapping[str, Any], method: str, address: str) -> bool:
    """Return True if the matcher may apply to a request of this method and address."""
    if str(matcher.get("method") or method).upper() != method:
        return False
    if not address:
        return True
    parts = urlsplit(address)
    base, pattern = matcher.get("url_base"), matcher.get("url_path_pattern")
    if base and base.rstrip("/") != f"{parts.scheme}://{parts.netloc}":
        return False
    return not pattern or re.search(pattern, parts.path.rstrip("/")) is not None


def _number(value: Any, render: Render) -> int:
    text = render(str(value), {})
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError("source.manifest", f"api_budget: {value!r} is not a positive number of requests")
    return int(text)


def _seconds(duration: str) -> float:
    from isodate import ISO8601Error, parse_duration

    try:
        parsed = parse_duration(duration)
    except ISO8601Error:
        parsed = None
    if not isinstance(parsed, timedelta) or parsed <= timedelta():
        problem = f"api_budget: {duration!r} is not a duration in days or smaller units"
        raise ConfigurationError("source.manifest", problem, "write one such as PT1S or PT1M")
    return parsed.total_seconds()
