"""Every stream of ten manifests is read as the CDK itself reads it: the same records in order, the same requests.

The manifests are written for these tests, and use together what real ones use. The CDK's own ``read`` of the same
manifest, configuration, API and clock says what is right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from manifest_api import MANIFESTS, Answer, Api, Asked, needs_cdk, rows
from manifest_apis import APIS, CONFIG, SECRETS, after
from manifest_reads import Read, frozen, read_by_the_cdk, read_by_us

from airflow_provider_rfr.streams.airbyte import _cdk
from airflow_provider_rfr.streams.loader import inline_source, load_streams

# The gate runs them on the lowest airbyte-cdk (scripts/lowest_cdk.sh), `make test-all` on the newest, too.
pytestmark = [needs_cdk, pytest.mark.full]

#: Streams, slices and pages of each manifest: how much is compared, so that no comparison is of nothing.
SIZES = {
    "paging": (10, 10, 31),
    "partitions": (9, 41, 57),
    "records": (10, 10, 40),
    "dates": (9, 15, 28),
    "logins": (15, 15, 45),
    "errors": (10, 10, 26),
    "formats": (10, 17, 23),
    "jobs": (3, 10, 10),
    "dynamic": (10, 10, 30),
    "custom": (9, 10, 30),
}

#: What 482 published manifests use (the count is of 2025-08), by the names of the CDK's components.
USED_BY_REAL_ONES = """
AddFields ApiKeyAuthenticator AsyncJobStatusMap AsyncRetriever BasicHttpAuthenticator BearerAuthenticator
CompositeErrorHandler ComponentMappingDefinition ConcurrencyLevel ConditionalStreams ConfigComponentsResolver
ConfigMigration ConfigNormalizationRules ConstantBackoffStrategy CsvDecoder CursorPagination CustomAuthenticator
CustomBackoffStrategy CustomDecoder CustomErrorHandler CustomPaginationStrategy CustomPartitionRouter
CustomRecordExtractor CustomRecordFilter CustomRequester CustomRetriever CustomSchemaLoader CustomSchemaNormalization
CustomStateMigration CustomTransformation DatetimeBasedCursor DeclarativeStream DefaultErrorHandler DefaultPaginator
DpathExtractor DpathFlattenFields DynamicDeclarativeStream DynamicSchemaLoader ExponentialBackoffStrategy
FixedWindowCallRatePolicy FlattenFields GroupingPartitionRouter GzipDecoder HTTPAPIBudget HttpComponentsResolver
HttpRequester HttpResponseFilter IncrementingCountCursor InlineSchemaLoader IterableDecoder JsonDecoder JsonlDecoder
JwtAuthenticator KeysReplace KeysToLower KeysToSnakeCase LegacySessionTokenAuthenticator
LegacyToPerPartitionStateMigration ListPartitionRouter MinMaxDatetime MovingWindowCallRatePolicy NoAuth NoPagination
OAuthAuthenticator OffsetIncrement PageIncrement PaginationReset ParametrizedComponentsResolver ParentStreamConfig
PropertiesFromEndpoint PropertyChunking QueryProperties RecordFilter RecordSelector RemoveFields RequestOption
RequestPath SelectiveAuthenticator SessionTokenAuthenticator SimpleRetriever StateDelegatingStream
SubstreamPartitionRouter WaitTimeFromHeader WaitUntilTimeFromHeader XmlDecoder ZipfileDecoder
"""


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AIRBYTE_ENABLE_UNSAFE_CODE", "true")
    with frozen():
        yield


def source_of(manifest: str, api: Api) -> dict[str, Any]:
    api.serve = APIS[manifest]
    components = {"components": str(MANIFESTS / "components.py")} if manifest == "custom" else {}
    source = api.source(MANIFESTS / f"{manifest}.yaml", **components)
    return inline_source({**source, "config": {**CONFIG, "url": api.url}, "secrets": SECRETS})


def oracle(source: Mapping[str, Any], name: str, api: Api) -> Read:
    with _cdk.registering():
        return read_by_the_cdk(source, name, api)


@pytest.mark.parametrize("manifest", APIS)
def test_records_and_requests_are_those_of_the_cdk_whoever_reads_a_page(manifest: str, api: Api) -> None:
    source = source_of(manifest, api)
    names = list(load_streams(source))
    api.asked.clear()
    pages: list[tuple[str, Read]] = []
    for name in names:
        wanted = oracle(source, name, api)
        for by_one in (True, False):
            ours = read_by_us(source, name, api, by_one=by_one)
            assert ours.records == wanted.records, name
            assert ours.requests == wanted.requests, name
            assert bool(ours.error) == bool(wanted.error), name
            assert not by_one or ours.once <= wanted.once, name
        assert len(wanted.records) > 1, name
        pages.append((name, ours))
    slices = sum(len({json.dumps(page[0]) for page in ours.pages}) for _, ours in pages)
    assert (len(names), slices, sum(len(ours.pages) for _, ours in pages)) == SIZES[manifest], manifest


def test_the_manifests_use_every_component_that_real_ones_use() -> None:
    used = set()
    for manifest in APIS:
        for node in _nodes(yaml.safe_load((MANIFESTS / f"{manifest}.yaml").read_text())):
            used.add(str(node.get("type")))
    assert not set(USED_BY_REAL_ONES.split()) - used


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(item)


def test_a_paging_that_starts_again_half_way_gives_each_record_once(api: Api) -> None:
    """The CDK gives those before it twice; we begin a new chain, whose pages alone count."""
    source = source_of("paging", api)

    def changing(asked: Asked) -> Answer:
        token = asked.query.get("after")
        return (410, {}) if token == "2" and not asked.times else (200, after(rows(5), token))

    api.serve = changing
    wanted = oracle(source, "restarted", api)
    ours = read_by_us(source, "restarted", api, by_one=False)
    assert wanted.records == [*rows(2), *rows(5)]
    assert ours.records == rows(5)
    assert ours.requests == wanted.requests
