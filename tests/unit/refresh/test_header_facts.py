"""Facts that a driver writes into the header of a ledger for people: the source, its attempts, repeated requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import RefreshFailedError
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.config import parse_config
from airflow_provider_rfr.refresh.inspection import status_of
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.refresh.page_rows import FlushLabel, FlushWriter
from airflow_provider_rfr.refresh.state import LedgerHeader, read_header
from airflow_provider_rfr.streams import Page, PagedStream
from airflow_provider_rfr.streams.core import NextPage
from airflow_provider_rfr.streams.repeats import RetriedErrors, in_words, kind_of_failure, kind_of_status
from tests.loopback import LoopbackServer
from tests.unit.refresh.in_driver import TABLE, SyncedTable, refresh_of
from tests.unit.refresh.paged_sources import row_of
from tests.unit.refresh.test_state import begun, read_page

CANARY = "c4n4ry-s3cr3t"
SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}}


class Api(LoopbackServer):
    """An API of one page.

    :ivar failing: statuses of its first answers
    """

    def __init__(self) -> None:
        self.failing: list[int] = []
        super().__init__()

    def respond(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes, Mapping[str, str]]:
        if self.failing:
            return self.failing.pop(0), b"{}", {"Retry-After": "0"}
        return 200, json.dumps({"data": [{"id": 1}]}).encode(), {"Content-Type": "application/json"}

    @property
    def host(self) -> str:
        return self.url.partition("://")[2]


class Items(PagedStream):
    """A stream of one page in Python."""

    name = "items"
    primary_key = (("shop", "id"), "day")

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.api_host = config.get("host")

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        return Page([{"shop": {"id": 1}, "day": "2026-01-01"}])


class Lake(SyncedTable):
    """A lake into which the driver loads the stream ``items``."""

    def load(self, source: Mapping[str, Any], options: Mapping[str, Any] | None = None, **run: Any) -> LedgerHeader:
        document = {
            "source": source,
            "streams": ["items"],
            "target": TABLE,
            "lake": {"name": "rfr", "properties": self.properties},
            "options": options or {},
            "run": run,
        }
        refresh_of(parse_config(document), self.catalog).run()
        return self.header

    @property
    def header(self) -> LedgerHeader:
        status = status_of(self.catalog, TABLE)
        assert status is not None and status.header is not None
        return status.header


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    yield server
    server.close()


def defined(url: str) -> dict[str, Any]:
    """A source in YAML whose address has a path, and which has a secret."""
    stream = {"primary_key": "id", "request": {"path": "/items"}, "records": {"path": "data"}}
    stream["error_handler"] = {"max_retries": 2, "backoff": [{"type": "constant", "seconds": 0.01}]}
    login = {"type": "api_key", "value": "{{ config.key }}", "send_as": {"header": "X-Key"}}
    definition = {"base_url": f"{url}/v1/{CANARY}", "authenticator": login, "streams": {"items": stream}}
    return {"definition": definition, "secrets": {"key": CANARY}}


def manifest(url: str) -> dict[str, Any]:
    """The same as a manifest of Airbyte, whose address is in its configuration."""
    backoff = {"type": "ConstantBackoffStrategy", "backoff_time_in_seconds": 0.01}
    requester = {
        "type": "HttpRequester",
        "url_base": "{{ config['base_url'] }}",
        "path": "/items",
        "error_handler": {"type": "DefaultErrorHandler", "backoff_strategies": [backoff]},
    }
    retriever = {
        "type": "SimpleRetriever",
        "requester": {**requester, "http_method": "GET"},
        "record_selector": {
            "type": "RecordSelector",
            "extractor": {"type": "DpathExtractor", "field_path": ["data"]},
        },
    }
    stream = {
        "type": "DeclarativeStream",
        "name": "items",
        "primary_key": ["id"],
        "schema_loader": {"type": "InlineSchemaLoader", "schema": SCHEMA},
        "retriever": retriever,
    }
    content = {
        "version": "6.0.0",
        "type": "DeclarativeSource",
        "check": {"type": "CheckStream", "stream_names": ["items"]},
        "streams": [stream],
    }
    return {"manifest": content, "config": {"base_url": f"{url}/v1/{CANARY}"}, "secrets": {"key": CANARY}}


def facts(header: LedgerHeader) -> tuple[str | None, ...]:
    return header.stream, header.host, header.paging, header.primary_key


def test_a_definition_is_described_by_its_host_alone(lake: Lake, api: Api) -> None:
    header = lake.load(defined(api.url))
    assert facts(header) == ("items", api.host, "one page", "id")
    assert CANARY not in json.dumps(header.to_summary())


def test_a_manifest_is_described_by_its_host_alone(lake: Lake, api: Api) -> None:
    pytest.importorskip("airbyte_cdk")
    header = lake.load(manifest(api.url))
    assert facts(header) == ("items", api.host, "one page a slice", "id")
    assert CANARY not in json.dumps(header.to_summary())


@pytest.mark.parametrize(
    ("host", "described"),
    [
        (None, None),
        ("api.example:8443", "api.example:8443"),
        (f"https://user:{CANARY}@api.example/v1/{CANARY}?key={CANARY}#{CANARY}", "api.example"),
        (f"{CANARY}.api.example", "***.api.example"),
    ],
)
def test_a_stream_in_python_is_described_as_far_as_it_says(lake: Lake, host: str | None, described: str | None) -> None:
    source = {"class": f"{__name__}:Items", "config": {"host": host}, "secrets": {"key": CANARY}}
    header = lake.load(source)
    assert facts(header) == ("items", described, "its own code", "shop.id, day")
    assert CANARY not in json.dumps(header.to_summary())
    assert ("rfr.host" in header.to_summary()) is (host is not None)


@pytest.mark.parametrize("source", [defined, manifest])
def test_retried_errors_are_counted_by_kind(lake: Lake, api: Api, source: Callable[[str], dict[str, Any]]) -> None:
    if source is manifest:
        pytest.importorskip("airbyte_cdk")
    api.failing = [503, 429, 500]
    header = lake.load(source(api.url))
    assert header.retried == {"http_5xx": 2, "http_429": 1}
    assert header == read_header(header.to_summary())
    assert in_words(header.retried) == "HTTP 429: 1, HTTP 500-599: 2"


def test_an_attempt_that_fails_leaves_its_counts_to_the_next_one(lake: Lake, api: Api) -> None:
    api.failing = [500, 500, 404]
    with pytest.raises(RefreshFailedError):
        lake.load(defined(api.url))
    assert lake.header.retried == {"http_5xx": 2}
    api.failing = [429]
    assert lake.load(defined(api.url)).retried == {"http_429": 1}
    status = status_of(lake.catalog, TABLE)
    assert status is not None
    assert [attempt.retried for attempt in status.attempts] == [{"http_429": 1}, {"http_5xx": 2}]
    assert status.retried == {"http_429": 1, "http_5xx": 2}
    assert status.to_json()["retried"] == status.retried


def test_a_cleared_task_continues_what_its_run_began_by_force_restart(lake: Lake, api: Api) -> None:
    key = "shop/manual/refresh/-1/2026-11-21T06:00:00Z"
    for generation, clears in ((1, 0), (1, 2)):
        api.failing = [404]
        with pytest.raises(RefreshFailedError):
            lake.load(defined(api.url), {"force_restart": True}, key=f"{key}-{clears}")
        assert lake.header.generation == generation
    assert lake.load(defined(api.url), {"force_restart": True}, key="another run").generation == 2


def test_counts_of_a_killed_attempt_are_those_of_the_files_that_it_left(lake: Lake) -> None:
    first = begun(lake.catalog)
    first.note_retried({"timeout": 1})
    read_page(first)
    retried = RetriedErrors()
    label = FlushLabel(first.held.generation, first.held.epoch, 1, 0, 0, 0)
    writer = FlushWriter(first.store, first.folder, label, retried=retried)
    for page in (1, 2):
        retried.note("connection")
        token = None if page == 1 else page
        row = row_of(Page([{"page": page}], NextPage(page + 1)), page, token, ordinal=1)
        writer.write([row])
    second = Ledger(LedgerTable.load(lake.catalog, TABLE))  # type: ignore[arg-type]
    second.take_over("p", "k")
    [before] = second.held.earlier
    assert (before.pages, before.retried, second.held.retried) == (3, {"timeout": 1, "connection": 2}, None)


def test_a_request_without_an_answer_is_a_timeout_a_connection_or_something_else() -> None:
    assert [*map(kind_of_failure, ("timeout", "connection", "proxy"))] == ["timeout", "connection", "other"]
    assert [*map(kind_of_status, (429, 500, 599, 400, 600))] == ["http_429", "http_5xx", "http_5xx", "other", "other"]
    assert in_words(None) == in_words({}) == ""
