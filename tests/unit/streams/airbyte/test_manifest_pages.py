"""A manifest's streams are read page by page as the CDK reads them whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from manifest_api import KEY, Api, needs_cdk, rows, shop, shop_with, through_json
from manifest_reads import Read, read_by_the_cdk, read_by_us

from airflow_provider_rfr.exceptions import ConfigurationError, SourceError, TokenExpiredError
from airflow_provider_rfr.streams import Complete, NextPage
from airflow_provider_rfr.streams.airbyte._slices import from_json, to_json
from airflow_provider_rfr.streams.loader import inline_source, load_stream, load_streams
from airflow_provider_rfr.streams.paged import iter_pages
from tests.unit.messages import check_messages, raises

pytestmark = needs_cdk

FIELDS = "airflow rfr source connection lists the fields"

INFINITY = float("inf")
NAMES = ["customers", "orders", "Offset Events", "links", "windows"]

PAGE = """
import json, sys
from airflow_provider_rfr.streams.loader import load_stream
asked = json.load(sys.stdin)
page = load_stream(asked["source"], asked["name"]).read_page(asked["slice"], asked["token"])
print(json.dumps([list(page.records), getattr(page.next, "token", None)]))
"""


def read_as_by_the_cdk(source: dict[str, Any], name: str, api: Api) -> Read:
    """Our read, each page by another object, after a comparison with the CDK's own."""
    # One worker, so that the order is that of the partitions.
    source["manifest"]["concurrency_level"] = {"type": "ConcurrencyLevel", "default_concurrency": 1}
    api.requests.clear()
    wanted, ours = read_by_the_cdk(source, name, api), read_by_us(source, name, api, by_one=False)
    assert ours.records == wanted.records
    assert ours.requests == wanted.requests
    return ours


@pytest.mark.parametrize("name", NAMES)
def test_every_page_read_by_another_object_gives_the_records_and_requests_of_the_cdk(api: Api, name: str) -> None:
    assert len(read_as_by_the_cdk(inline_source(api.source()), name, api).records) > 4


def test_a_page_is_read_by_another_process_from_what_an_executor_gets(api: Api) -> None:
    source = inline_source(api.source())
    stream = load_stream(source, "windows")
    stream_slice = list(stream.stream_slices())[1]
    first = stream.read_page(stream_slice, None)
    asked = {"source": source, "name": "windows", "slice": stream_slice, "token": first.next.token}
    done = subprocess.run(
        [sys.executable, "-c", PAGE], input=json.dumps(asked), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[{**rows(1, 9)[0], "day": "2024-01-05T00:00:00Z"}], None]


def test_a_copy_in_another_process_is_made_from_the_text_of_manifest_and_components(api: Api, tmp_path: Path) -> None:
    components = tmp_path / "components.py"
    components.write_text("VALUE = 1")
    shipped = inline_source(api.source(components=str(components)))
    assert shipped["manifest"]["definitions"]["customers"]["name"] == "customers"
    assert shipped["components"] == "VALUE = 1\n"
    assert inline_source(shipped) == shipped
    assert through_json(shipped) == shipped


@pytest.mark.parametrize("name", ["customers", "Offset Events"])
def test_a_numbered_page_is_addressed_beforehand_by_the_token_that_the_chain_reaches(api: Api, name: str) -> None:
    stream = load_stream(api.source(), name)
    assert stream.addressable
    for position, page in enumerate(iter_pages(stream, {})):
        if isinstance(page.next, NextPage):
            assert stream.token_at(position + 1) == page.next.token
        assert stream.read_page({}, stream.token_at(position)).records == page.records


def test_numbers_are_not_addressed_where_something_else_decides_which_page_follows(api: Api) -> None:
    manifest = shop_with("customers")
    manifest["streams"][0]["retriever"]["pagination_reset"] = {"type": "PaginationReset", "action": "RESET"}
    stream = load_stream(api.source(manifest), "customers")
    assert not stream.addressable
    assert stream.paging.by_page


def test_a_token_that_the_cdk_evaluates_as_a_tuple_comes_back_as_one() -> None:
    for value in [
        (1, 2),
        {"a": [(1,), "x"]},
        {1: "x"},
        {"__literal__": "1"},
        {1, 2},
        b"x",
        0,
        "",
        1.5,
        INFINITY,
        [-INFINITY],
        None,
    ]:
        restored = from_json(through_json(to_json(value, "page token")))
        assert restored == value
        assert type(restored) is type(value)
    with raises(ConfigurationError):
        to_json({"a": object()}, "page token")


def test_a_slice_has_its_parts_by_name_and_what_a_parent_adds_is_not_in_its_key(api: Api) -> None:
    stream = load_stream(api.source(), "orders")
    first = next(iter(stream.stream_slices()))
    assert first == {"partition": {"customer": 1, "parent_slice": {}}, "extra_fields": {"name": "name 1"}}
    assert stream.partition_key(first) == '{"partition":{"customer":1,"parent_slice":{}}}'
    assert list(load_stream(api.source(), "links").stream_slices()) == [{}]


def test_a_reset_of_the_paging_starts_the_chain_again(api: Api) -> None:
    api.answer = lambda path, query, url: (410, {"error": "gone"})
    stream = load_stream(api.source(), "links")
    with raises(TokenExpiredError):
        stream.read_page({}, f"{api.url}/v1/links?p=3")
    assert len(api.asked) == 1


def test_a_reset_at_the_first_page_asks_for_it_once_more_as_the_cdk_does(api: Api) -> None:
    answers: list[tuple[int, Any]] = [(410, {}), (200, {"data": rows(2), "next": None})]
    api.answer = lambda path, query, url: answers.pop(0)
    page = load_stream(api.source(), "links").read_page({}, None)
    assert (list(page.records), page.next, page.skipped) == (rows(2), Complete(), None)
    assert api.taken() == ["/v1/links", "/v1/links"]
    api.answer = lambda path, query, url: (410, {})
    with raises(SourceError) as found:
        load_stream(api.source(), "links").read_page({}, None)
    # Not one after which the engine would begin another chain.
    assert not isinstance(found.value, TokenExpiredError)
    assert len(api.asked) == 2


@pytest.mark.parametrize(
    ("status", "skipped"), [(404, "the manifest ignores HTTP 404, which ends the slice"), (200, None)]
)
def test_a_page_with_an_ignored_error_is_a_skipped_one_and_an_empty_page_is_not(
    api: Api, status: int, skipped: str | None
) -> None:
    api.answer = lambda path, query, url: (status, {"data": [], "next": None})
    page = load_stream(api.source(), "links").read_page({}, None)
    assert (list(page.records), page.next, page.request) == ([], Complete(), "GET /v1/links")
    assert (page.status, page.skipped) == (status, skipped)


EVEN = {"type": "RecordFilter", "condition": "{{ record['id'] % 2 == 0 }}"}


def test_numbered_pages_go_on_after_one_of_which_a_filter_drops_records(api: Api) -> None:
    manifest = shop_with("customers")
    manifest["definitions"]["selector"]["record_filter"] = EVEN
    pages = list(iter_pages(load_stream(api.source(manifest), "customers"), {}))
    assert [[record["id"] for record in page.records] for page in pages] == [[2], [4, 6], [8]]
    # So a page that the filter empties is no empty page, of which only so many may follow each other.
    assert [page.received for page in pages] == [3, 3, 2]


@pytest.mark.parametrize("is_parent", [False, True])
def test_the_size_of_a_page_that_a_stop_condition_reads_is_the_one_before_the_filter(api: Api, is_parent: bool) -> None:
    manifest = shop_with("orders" if is_parent else "customers")
    customers = manifest["definitions"]["customers"] if is_parent else manifest["streams"][0]
    customers["retriever"]["record_selector"] = {**manifest["definitions"]["selector"], "record_filter": EVEN}
    customers["retriever"]["paginator"]["pagination_strategy"] = {
        "type": "CursorPagination",
        "page_size": 3,
        "cursor_value": "{{ response['next'] }}",
        "stop_condition": "{{ last_page_size < 3 }}",
    }

    def numbered(path: str, query: Mapping[str, str], url: str) -> tuple[int, Any]:
        status, body = shop(path, query, url)[:2]
        return status, {**body, "next": int(query.get("page", 1)) + 1}

    api.answer = numbered
    stream = load_stream(api.source(manifest), "orders" if is_parent else "customers")
    if is_parent:
        assert [item["partition"]["customer"] for item in stream.stream_slices()] == [2, 4, 6, 8]
    else:
        assert [record["id"] for page in iter_pages(stream, {}) for record in page.records] == [2, 4, 6, 8]
    assert len(api.asked) == 3


def quota_at(parameter: str, value: str, **body: Any) -> Callable[..., tuple[int, Any]]:
    """The shop's answers, but one page is an error with status 200."""

    def answer(path: str, query: Mapping[str, str], url: str) -> tuple[int, Any]:
        return (200, {"error": "quota", **body}) if query.get(parameter) == value else shop(path, query, url)[:2]

    return answer


def ignoring_quota(name: str) -> dict[str, Any]:
    """One stream of the shop, whose manifest ignores that error by the answer's text."""
    manifest = shop_with(name)
    ignored = {"type": "HttpResponseFilter", "predicate": "{{ 'error' in response }}", "action": "IGNORE"}
    handler = {"type": "DefaultErrorHandler", "response_filters": [ignored]}
    manifest["streams"][0]["retriever"]["requester"]["error_handler"] = handler
    manifest["definitions"]["requester"]["error_handler"] = handler
    return manifest


def test_a_cursor_that_advances_over_any_number_of_empty_pages_is_progress(api: Api) -> None:
    def answer(path: str, query: Mapping[str, str], url: str) -> tuple[int, Any]:
        page = int(query.get("p", 1))
        link = f"{url}/v1/links?p={page + 1}" if page < 150 else None
        return 200, {"data": [] if link else rows(2), "next": link}

    api.answer = answer
    pages = list(iter_pages(load_stream(api.source(), "links"), {}))
    assert (len(pages), pages[-1].records) == (150, rows(2))


def test_a_byte_order_mark_before_json_does_not_make_the_page_an_empty_one(api: Api) -> None:
    body = json.dumps({"data": rows(2)}).encode("utf-8-sig")
    api.answer = lambda path, query, url: (200, body, {"Content-Type": "application/json; charset=utf-8"})
    assert load_stream(api.source(), "links").read_page({}, None).records == rows(2)


def test_an_answer_200_that_is_ignored_is_a_skipped_page(api: Api) -> None:
    api.answer = quota_at("page", "2")
    first, second = iter_pages(load_stream(api.source(ignoring_quota("customers")), "customers"), {})
    assert (len(first.records), first.skipped) == (3, None)
    assert (second.records, second.next, second.status) == ([], Complete(), 200)
    assert second.skipped == "the manifest ignores HTTP 200, which ends the slice"


def test_the_page_after_an_ignored_answer_is_read_where_the_manifest_names_it(api: Api) -> None:
    api.answer = quota_at("p", "2", data=[], next=f"{api.url}/v1/links?p=3")
    pages = list(iter_pages(load_stream(api.source(ignoring_quota("links")), "links"), {}))
    assert [len(page.records) for page in pages] == [2, 0, 2, 2]
    assert [page.skipped for page in pages] == [None, "the manifest ignores HTTP 200", None, None]


def test_an_ignored_answer_in_the_middle_of_a_slice_that_is_read_whole_is_told(api: Api) -> None:
    manifest = ignoring_quota("links")
    reset = manifest["streams"][0]["retriever"]["pagination_reset"]
    reset["limits"] = {"type": "PaginationResetLimits", "number_of_records": 100}
    api.answer = quota_at("p", "2", data=[], next=f"{api.url}/v1/links?p=3")
    stream = load_stream(api.source(manifest), "links")
    assert not stream.paging.by_page
    page = stream.read_page({}, None)
    assert (len(page.records), page.status, page.skipped) == (6, 200, "the manifest ignores HTTP 200")


def test_an_ignored_answer_200_of_a_parent_is_told(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    api.answer = quota_at("page", "2")
    stream = load_stream(api.source(ignoring_quota("orders")), "orders")
    assert [item["partition"]["customer"] for item in stream.stream_slices()] == [1, 2, 3]
    assert "orders: partitions may be missing: the manifest ignores HTTP 200" in caplog.text


def test_the_schema_and_the_key_are_the_manifests(api: Api) -> None:
    streams = load_streams(api.source())
    assert streams["customers"].primary_key == ["id"]
    assert streams["links"].primary_key is None
    assert streams["customers"].json_schema["properties"].keys() == {"id", "name"}
    assert streams["customers"].casts
    assert not api.asked


def test_the_fingerprint_says_what_decides_requests_and_no_secret(api: Api) -> None:
    def fingerprint(source: Mapping[str, Any], name: str = "orders") -> str:
        return json.dumps(load_stream(source, name).fingerprint(), sort_keys=True)

    usual = fingerprint(api.source())
    assert KEY not in usual
    assert usual == fingerprint(api.source(secrets={"api_key": "another-key-0816"}))
    assert usual == fingerprint(inline_source(api.source()))
    assert usual != fingerprint(api.source(config={"url": api.url, "more": 1}))
    parent = shop_with("orders")
    parent["definitions"]["customers"]["retriever"]["requester"]["path"] = "clients"
    assert usual != fingerprint(api.source(parent))


def test_what_a_connection_gives_every_source_is_left_out_where_the_spec_takes_no_more_fields(api: Api) -> None:
    manifest = shop_with("customers")
    manifest["spec"]["connection_specification"]["additionalProperties"] = False
    secrets = dict.fromkeys(("api_key", "token", "password"), KEY)
    source = api.source(manifest, config={"url": api.url, "base_url": "x", "login": "me"}, secrets=secrets)
    assert load_stream(source, "customers").read_page({}, None).records == rows(3)
    assert api.headers[0]["Authorization"] == f"Bearer {KEY}"
    source["config"]["typo"] = 1
    with raises(ConfigurationError):
        load_stream(source, "customers")


def test_mistakes_are_said_in_one_sentence_each(api: Api, tmp_path: Path) -> None:
    def problem(**changes: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            load_stream({**api.source(), **changes}, "orders")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    broken = tmp_path / "broken.yaml"
    broken.write_text("streams: [}\n")
    assert problem(secrets={}) == f"config.api_key: is missing; {FIELDS}"
    check_messages(problem(config={"url": 5}))
    check_messages(problem(manifest="no-such.yaml"))
    assert "broken.yaml, line 1" in problem(manifest=str(broken))
    assert "source.manifest" in problem(manifest={"streams": [{"type": "Nonsense"}]})
    check_messages(problem(file="x.yaml"))
    with raises(ConfigurationError):
        load_stream(api.source(), "nope")
    with raises(ConfigurationError):
        load_stream({"class": "a:b", "components": "components.py"}, "x")
    assert not api.asked


def test_children_that_come_with_their_parent_are_read_by_slice_as_the_cdk_reads_them(api: Api) -> None:
    def embedding(path: str, query: Mapping[str, str], url: str) -> tuple[int, Any]:
        status, body = shop(path, query, url)[:2]
        if path == "/v1/customers":
            body = {"data": [{**row, "orders": shop(f"{path}/{row['id']}/orders", {}, url)[1]} for row in body["data"]]}
        return status, body

    api.answer = embedding
    manifest = shop_with("orders")
    [parent] = manifest["streams"][0]["retriever"]["partition_router"]["parent_stream_configs"]
    parent["lazy_read_pointer"] = ["orders"]
    source = api.source(manifest)
    assert not load_stream(source, "orders").paging.by_page
    ours = read_as_by_the_cdk(source, "orders", api)
    assert len(ours.records) == 24
    # Of customer 3, three pages: the first of them came with the customer.
    assert sum(target.startswith("/v1/customers/3/orders") for _, target, _ in ours.requests.elements()) == 2


def asynchronous() -> dict[str, Any]:
    """A stream whose records are in reports, which are ordered, waited for and downloaded."""
    manifest = shop_with("windows")
    stream, requester = manifest["streams"][0], manifest["definitions"]["requester"]
    stream["retriever"] = {
        "type": "AsyncRetriever",
        "creation_requester": {**requester, "path": "reports", "http_method": "POST"},
        "polling_requester": {**requester, "path": "reports/{{ creation_response['id'] }}"},
        "download_requester": {**requester, "url_base": "{{ download_target }}", "path": ""},
        "status_mapping": {
            "type": "AsyncJobStatusMap",
            "running": ["running"],
            "completed": ["done"],
            "failed": ["failed"],
            "timeout": ["late"],
        },
        "status_extractor": {"type": "DpathExtractor", "field_path": ["status"]},
        "download_target_extractor": {"type": "DpathExtractor", "field_path": ["url"]},
        "record_selector": manifest["definitions"]["selector"],
        "download_extractor": manifest["definitions"]["selector"]["extractor"],
    }
    return manifest


def test_an_asynchronous_stream_is_read_slice_by_slice_and_its_jobs_live_within_one_read(api: Api) -> None:
    def reports(path: str, query: Mapping[str, str], url: str) -> tuple[int, Any]:
        if path == "/v1/reports":
            return 201, {"id": f"r{len(api.asked)}"}
        if path.startswith("/v1/reports/"):
            return 200, {"status": "done", "url": f"{url}/files/{path.rpartition('/')[2]}"}
        return 200, {"data": rows(3)}

    api.answer = reports
    stream = load_stream(api.source(asynchronous()), "windows")
    assert not stream.paging.by_page
    slices = through_json(list(stream.stream_slices()))
    starts = [window["cursor_slice"]["start_time"][:10] for window in slices]
    assert starts == ["2024-01-01", "2024-01-05", "2024-01-09"]
    assert not api.asked
    page = load_stream(api.source(asynchronous()), "windows").read_page(slices[1], None)
    assert [row["id"] for row in page.records] == [1, 2, 3]
    assert page.next == Complete()
    assert [path.split("?")[0] for path in api.asked] == ["/v1/reports", "/v1/reports/r1", "/files/r1"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda manifest: strategy_of(manifest).update(type="PageIncremen"),
            "pagination_strategy.type: must be one of CursorPagination, CustomPaginationStrategy, OffsetIncrement, "
            "PageIncrement;",
        ),
        (
            lambda manifest: strategy_of(manifest).update(page_size=["canary"]),
            "pagination_strategy.page_size: does not fit the CDK's schema, type: integer;",
        ),
        (
            lambda manifest: manifest["streams"][0]["retriever"]["requester"].update(http_method="canary"),
            "retriever.requester.http_method: does not fit the CDK's schema, enum: GET, POST;",
        ),
    ],
)
def test_a_mistake_in_the_manifest_is_told_with_its_place(
    api: Api, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    manifest = shop_with("customers")
    manifest["streams"][0]["retriever"]["requester"] = dict(manifest["definitions"]["requester"])
    change(manifest)
    with pytest.raises(ConfigurationError) as caught:
        load_stream(api.source(manifest), "customers")
    assert "source.manifest: streams.0.retriever." in str(caught.value)
    assert told in str(caught.value)
    assert "canary" not in str(caught.value)


def strategy_of(manifest: dict[str, Any]) -> dict[str, Any]:
    strategy: dict[str, Any] = manifest["streams"][0]["retriever"]["paginator"]["pagination_strategy"]
    return strategy
