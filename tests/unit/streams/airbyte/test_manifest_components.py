"""What a stream asks for besides its pages: lists of streams, schemas, files; and code that keeps something."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from manifest_api import Api, needs_cdk, rows, shop_with, through_json

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.streams import Complete
from airflow_provider_rfr.streams.airbyte.source import check_manifest
from airflow_provider_rfr.streams.airbyte.spec import custom_classes
from airflow_provider_rfr.streams.loader import inline_source, load_stream, load_streams
from airflow_provider_rfr.streams.paged import iter_pages
from tests.unit.messages import raises

pytestmark = needs_cdk

SEEN = """
from dataclasses import dataclass
from airbyte_cdk.sources.declarative.extractors import DpathExtractor

@dataclass
class SeenExtractor(DpathExtractor):
    def __post_init__(self, parameters):
        super().__post_init__(parameters)
        self.seen = set()

    def extract_records(self, response):
        for record in super().extract_records(response):
            if record["id"] not in self.seen:
                self.seen.add(record["id"])
                yield record
"""


def custom(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "class_name": f"source_declarative_manifest.components.{name}", **fields}


def overlapping(path: str, query: Mapping[str, str], url: str) -> tuple[int, Any]:
    """Seven records in pages of three, each of which begins with the last record of the page before."""
    page = int(query.get("p", 1))
    link = f"{url}/v1/links?p={page + 1}" if page < 3 else None
    return 200, {"data": rows(3, 2 * page - 1), "next": link}


def remembering(api: Api, **more: Any) -> dict[str, Any]:
    api.answer = overlapping
    manifest = shop_with("links")
    extractor = custom("CustomRecordExtractor", "SeenExtractor", field_path=["data"])
    manifest["streams"][0]["retriever"]["record_selector"]["extractor"] = extractor
    return api.source(manifest, components=SEEN, **more)


def ids(records: Any) -> list[int]:
    return [record["id"] for record in records]


def test_code_of_the_connector_is_named_where_a_stream_is_resumed_by_page(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "airflow_provider_rfr")
    source = remembering(api)
    [report] = check_manifest(source)
    words = "page by page, by CursorPaginationStrategy, if SeenExtractor keeps nothing between pages"
    assert (report.resumable, report.why) == ("by page", words)
    list(load_stream(source, "links").stream_slices())
    message = f"links: resumed by page: {words}; else set components_keep_state"
    assert [record.getMessage() for record in caplog.records] == [message]


@pytest.mark.parametrize("place", ["filter", "transformation", "error handler", "requester"])
def test_code_of_the_connector_is_found_wherever_it_may_keep_something(place: str) -> None:
    requester: dict[str, Any] = {"authenticator": custom("CustomAuthenticator", "Login")}
    retriever: dict[str, Any] = {
        "record_selector": {},
        "requester": requester,
        "partition_router": {"stream": {"retriever": {"requester": custom("CustomRequester", "OfTheParent")}}},
    }
    definition: dict[str, Any] = {"retriever": retriever}
    assert custom_classes(definition) == []
    put: dict[str, Callable[[Any], None]] = {
        "filter": lambda part: retriever["record_selector"].update(record_filter=part),
        "transformation": lambda part: definition.update(transformations=[part]),
        "error handler": lambda part: requester.update(error_handler={"error_handlers": [part]}),
        "requester": lambda part: requester.update(part),
    }
    put[place](custom("Custom", "Mine"))
    assert custom_classes(definition) == ["Mine"]


def test_a_slice_is_read_whole_by_new_objects_where_components_keep_state(api: Api) -> None:
    one, other = (load_stream(remembering(api), "links") for _ in range(2))
    pages = list(iter_pages(one, {}))
    assert ids(record for page in pages for record in page.records) == [1, 2, 3, 4, 5, 6, 7]
    # Another object would double the record at which two pages meet.
    assert ids(other.read_page({}, pages[0].next.token).records) == [3, 4, 5]
    source = remembering(api, components_keep_state=True)
    stream = load_stream(source, "links")
    for _ in range(2):
        page = stream.read_page({}, None)
        assert (ids(page.records), page.next) == ([1, 2, 3, 4, 5, 6, 7], Complete())
    assert check_manifest(source)[0].resumable == "no"


def test_streams_without_code_of_the_connector_are_read_by_page_all_the_same(api: Api) -> None:
    source = api.source(components=SEEN, components_keep_state=True)
    assert all(stream.paging.by_page for stream in load_streams(source).values())


def test_components_keep_state_is_in_the_fingerprint_where_it_is_set(api: Api) -> None:
    usual = load_stream(remembering(api), "links").fingerprint()
    assert load_stream(remembering(api, components_keep_state=False), "links").fingerprint() == usual
    keeping = load_stream(remembering(api, components_keep_state=True), "links").fingerprint()
    assert keeping == {**usual, "components_keep_state": True}
    with raises(ConfigurationError):
        load_stream(remembering(api, components_keep_state="no"), "links")


def test_files_are_not_fetched_and_that_is_told(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "airflow_provider_rfr")
    manifest = shop_with("links", "orders")
    uploader = {
        "type": "FileUploader",
        "requester": {"type": "HttpRequester", "url_base": "{{ download_target }}", "path": ""},
        "download_target_extractor": {"type": "DpathExtractor", "field_path": ["file"]},
    }
    manifest["streams"][0]["file_uploader"] = uploader
    # Of a parent, whose files would be fetched when the partitions are listed.
    manifest["definitions"]["customers"]["file_uploader"] = uploader
    api.answer = lambda path, query, url: (200, {"data": [{"id": 1, "file": f"{url}/files/1"}], "next": None})
    source = api.source(manifest)
    links, orders = (load_stream(source, name) for name in ("links", "orders"))
    [stream_slice] = links.stream_slices()
    assert ids(links.read_page(stream_slice, None).records) == [1]
    assert len(list(orders.stream_slices())) == 1
    assert api.taken() == ["/v1/links", "/v1/customers?per_page=3"]
    words = "only rows are read, and files are not fetched (file_uploader)"
    assert [record.getMessage() for record in caplog.records] == [f"links: {words}"]
    assert [report.notes for report in check_manifest(source)] == [(words,), ()]


def listing(api: Api) -> dict[str, Any]:
    """The customers are tables, of which each is a stream with the links' records."""
    manifest = shop_with("links")
    template, manifest["streams"] = manifest["streams"][0], []
    mapping = {
        "type": "ComponentMappingDefinition",
        "field_path": ["name"],
        "value": "{{ components_values['name'] }}",
    }
    resolver = {
        "type": "HttpComponentsResolver",
        "retriever": manifest["definitions"]["customers"]["retriever"],
        "components_mapping": [mapping],
    }
    tables = {"type": "DynamicDeclarativeStream", "stream_template": template, "components_resolver": resolver}
    return api.source({**manifest, "dynamic_streams": [tables]})


def test_a_list_of_streams_is_asked_for_once_a_stream_and_not_by_executors(api: Api) -> None:
    source = listing(api)
    stream = load_stream(source, "name 3")
    assert len(api.taken()) == 3
    shipped = through_json(inline_source(stream.source_for_executors(source)))
    # The API has another list by now.
    usual = api.answer
    api.answer = lambda path, query, url: (404, {}) if path == "/v1/customers" else usual(path, query, url)
    copies = [load_stream(shipped, "name 3"), pickle.loads(pickle.dumps(stream))]
    assert not api.taken()
    for copy in copies:
        assert copy.fingerprint() == stream.fingerprint()
        assert copy._hosts == stream._hosts
        assert copy.read_page({}, None).records == stream.read_page({}, None).records == rows(2, 10)


def test_a_stream_is_shipped_without_the_others_and_is_the_same_there(api: Api) -> None:
    source = api.source()
    stream = load_stream(source, "orders")
    shipped = through_json(stream.source_for_executors(source))
    assert list(load_streams(shipped)) == ["orders"]
    there = load_stream(shipped, "orders")
    assert there.fingerprint() == stream.fingerprint()
    assert through_json(there.source_for_executors(shipped)) == shipped
    slices = through_json(list(stream.stream_slices()))
    assert through_json(list(there.stream_slices())) == slices
    assert there.read_page(slices[1], None).records == stream.read_page(slices[1], None).records


def test_a_schema_that_the_api_has_is_asked_for_by_the_driver_alone(api: Api) -> None:
    manifest = shop_with("links")
    whole = {"type": "RecordSelector", "extractor": {"type": "DpathExtractor", "field_path": []}}
    manifest["streams"][0]["schema_loader"] = {
        "type": "DynamicSchemaLoader",
        "retriever": {**manifest["definitions"]["customers"]["retriever"], "record_selector": whole},
        "schema_type_identifier": {"schema_pointer": ["data"], "key_pointer": ["name"]},
    }
    driver, executor = (load_stream(api.source(manifest), "links") for _ in range(2))
    assert driver.json_schema is not None
    assert set(driver.json_schema["properties"]) == {"name 1", "name 2", "name 3"}
    assert api.taken() == ["/v1/customers?per_page=3"]
    executor.read_page({}, None)
    assert api.taken() == ["/v1/links"]
