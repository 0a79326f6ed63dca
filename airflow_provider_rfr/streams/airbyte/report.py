"""A manifest's limits, which all processes of a refresh share, and a report of its streams that needs no request.

The CDK applies ``api_budget`` in each process, so ten processes would send ten times as many requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams.airbyte._cdk import Interpreted, Paging

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


Resumable: TypeAlias = Literal["by page", "by slice", "one request", "no"]


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A report of one stream.

    :ivar resumable: after which parts of it a refresh continues; None where that is not known
    :ivar why: in words, for people
    :ivar partitions: kinds of the routers that divide it, with their parents or steps; it has their product
    :ivar columns: of the schema that the manifest declares; None where the API is asked for it, or code makes it
    :ivar is_readable: whether it can be read at all
    :ivar notes: its limits, and the parts of the manifest that have no effect
    """

    name: str
    resumable: Resumable | None
    why: str
    partitions: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    schema: str = "declared"
    columns: int | None = None
    is_readable: bool = True
    notes: tuple[str, ...] = ()


def report_of(stream: Interpreted, paging: Paging, limits: ManifestLimits) -> StreamReport:
    """Return the report of a stream that the manifest declares."""
    partitions, schema = tuple(_partitions(stream.definition)), _schema(stream.definition)
    resumable: Resumable = "by page" if paging.by_page else "by slice"
    why = paging.why
    if not partitions and paging.is_one_page:
        resumable, why = "one request", "no paging, no partitions"
    elif not partitions and not paging.by_page:
        resumable, why = "no", f"{why}, and there is one slice"
    columns = len(stream.schema.get("properties") or ()) if schema == "declared" else None
    if columns == 0:
        schema, columns = "none", None
    key, notes = tuple(stream.primary_key or ()), (*limits.words(), *warnings_of(stream.definition, limits))
    return StreamReport(stream.name, resumable, why, partitions, key, schema, columns, notes=notes)


def warnings_of(definition: Mapping[str, Any], limits: ManifestLimits) -> Iterator[str]:
    """Yield a warning for each setting of the manifest that a refresh does not support."""
    if definition.get("file_uploader"):
        yield "only rows are read, and files are not fetched (file_uploader)"
    yield from (
        f"api_budget.{field} has no effect; only answers 429 slow the refresh down" for field in limits.not_kept
    )


def custom_classes(definition: Mapping[str, Any]) -> list[str]:
    """Return the names of the connector's own classes that help to read a slice."""
    retriever = definition.get("retriever") or {}
    parts = [{**retriever, "partition_router": None}, definition.get("transformations")]
    return list(dict.fromkeys(_custom_classes(parts)))


def _custom_classes(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        name = str(value.get("class_name") or "")
        # An authenticator keeps a token, which is the same for each page.
        if name and not name.startswith("airbyte_cdk.") and value.get("type") != "CustomAuthenticator":
            yield name.rpartition(".")[2]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _custom_classes(item)


def report_of_listing(definition: Mapping[str, Any]) -> StreamReport:
    """Return the report of streams that only the API can list."""
    template = definition.get("stream_template")
    template = template if isinstance(template, Mapping) else {}
    name = str(definition.get("name") or template.get("name") or "dynamic_streams")
    why = "not known before the API lists these streams"
    return StreamReport(name, None, why, tuple(_partitions(template)), schema=_schema(template))


def _partitions(definition: Mapping[str, Any]) -> Iterator[str]:
    routers = (definition.get("retriever") or {}).get("partition_router") or []
    for router in routers if isinstance(routers, list) else [routers]:
        yield _router(router)
    cursor = definition.get("incremental_sync") or {}
    if cursor.get("type") == "DatetimeBasedCursor":
        yield f"DatetimeBasedCursor by {cursor['step']}" if cursor.get("step") else "DatetimeBasedCursor, one window"


def _router(router: Mapping[str, Any]) -> str:
    kind = str(router.get("class_name") or router.get("type"))
    parents = [
        str(parent_stream_config.get("stream", {}).get("name"))
        for parent_stream_config in router.get("parent_stream_configs") or ()
    ]
    inner = router.get("underlying_partition_router")
    if isinstance(inner, Mapping):
        return f"{kind} of {_router(inner)}"
    values = router.get("values")
    if isinstance(values, list):
        return f"{kind} of {len(values)} values"
    return f"{kind} of {', '.join(parents)}" if parents else kind


def _schema(definition: Mapping[str, Any]) -> str:
    loaders = definition.get("schema_loader") or []
    kinds = {str(loader.get("type")) for loader in (loaders if isinstance(loaders, list) else [loaders])}
    if "DynamicSchemaLoader" in kinds:
        return "asked of the API"
    return "made by code" if "CustomSchemaLoader" in kinds else "declared"
