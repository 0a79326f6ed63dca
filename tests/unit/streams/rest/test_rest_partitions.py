"""Lists, parents and products; what identifies a partition."""

from __future__ import annotations

import json

import pytest
from rest_api import CountingLimiter, Reply

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.refresh.page_rows import opening_rows
from airflow_provider_rfr.refresh.partitions import PartitionBook
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.loader import load_streams
from tests.unit.messages import raises

PARENT = {
    "request": {"path": "/parents"},
    "records": {"path": "data"},
    "paginator": {"type": "page_number", "page_size": 2},
}
CHILDREN = {"type": "substream", "parent": "parents", "parent_key": "id", "field": "parent_id"}


def streams(api, partitions, parent=PARENT, path="/parents/{{ stream_slice.parent_id }}/items", **more):
    child = {"request": {"path": path}, "records": {"path": "data"}, "partitions": partitions}
    definition = {"base_url": api.url, "streams": {"parents": parent, "items": child, **more}}
    return load_streams({"definition": definition, "config": {"regions": ["eu", "us"]}})


def test_a_stream_without_router_is_one_partition(make):
    assert list(make().stream_slices()) == [{}]
    assert make().partition_key({}) == "{}"


def test_a_list_is_one_partition_for_each_value(api):
    router = {"type": "list", "field": "region", "values": "{{ config.regions }}"}
    stream = streams(api, router, path="/{{ stream_slice.region }}")["items"]
    assert list(stream.stream_slices()) == [{"region": "eu"}, {"region": "us"}]
    api.answers({"data": [{"id": 1}]})
    stream.read_page({"region": "us"}, None)
    assert api.paths == ["/us"]


def test_all_pages_of_the_parent_become_partitions(api):
    api.pages(2, 5)
    stream = streams(api, CHILDREN)["items"]
    assert list(stream.stream_slices()) == [{"parent_id": n} for n in range(1, 6)]
    assert [asked.page for asked in api.asked] == [1, 2, 3, 4]


def test_only_the_key_of_a_parent_identifies_its_partition(api):
    stream = streams(api, {**CHILDREN, "extra_fields": {"changed": "meta.updated_at", "none": "x"}})["items"]
    api.answers({"data": [{"id": 1, "meta": {"updated_at": "2026-01-01"}}]}, {"data": []})
    before = list(stream.stream_slices())
    api.answers({"data": [{"id": 1, "meta": {"updated_at": "2026-02-02"}}]}, {"data": []})
    after = list(stream.stream_slices())
    assert before == [{"parent_id": 1, "changed": "2026-01-01", "none": None}]
    assert after[0]["changed"] == "2026-02-02"
    assert stream.partition_key(before[0]) == stream.partition_key(after[0]) == '{"parent_id":1}'


def test_a_parent_that_comes_twice_is_one_partition_and_the_first_counts(api, caplog):
    api.answers({"data": [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]}, {"data": [{"id": 1, "v": "c"}] * 3}, {"data": []})
    stream = streams(api, {**CHILDREN, "extra_fields": {"v": "v"}})["items"]
    assert list(stream.stream_slices()) == [{"parent_id": 1, "v": "a"}, {"parent_id": 2, "v": "b"}]
    assert caplog.text.count("listed twice and read once") == 1


def test_a_parent_s_long_number_keeps_its_digits_in_the_ledger_and_in_requests(api):
    keys = ["0.12345678901234567891", "0.12345678901234567892"]
    api.answers(Reply(f'{{"data": [{{"id": {keys[0]}}}, {{"id": {keys[1]}}}]}}'.encode()), {"data": []})
    stream = streams(api, CHILDREN)["items"]
    slices = list(stream.stream_slices())
    rows = list(opening_rows([(stream.partition_key(item), item) for item in slices], generation=1, epoch=1))
    book = PartitionBook([row.partition_key for row in rows], [str(row.slice) for row in rows])
    assert list(book.keys) == [f'{{"parent_id":{key}}}' for key in keys]
    api.asked.clear()
    for ordinal in range(len(book)):
        stream.read_page(book.work(ordinal).slice, None)
    assert api.paths == [f"/parents/{key}/items" for key in keys]


def test_a_parent_s_partitions_and_fields_reach_the_grandchildren(api):
    child = {**CHILDREN, "extra_fields": {}}
    grandchild = {
        "request": {"path": "/p/{{ stream_slice.parent_id }}/i/{{ stream_slice.item_id }}"},
        "records": {"path": "data"},
        "partitions": {
            "type": "substream",
            "parent": "items",
            "parent_key": "id",
            "field": "item_id",
            "parent_slice_fields": ["parent_id"],
        },
    }
    api.answer = lambda asked: {"data": [{"id": 1}, {"id": 2}] if asked.page == 1 else []}
    notes = streams(api, child, notes=grandchild)["notes"]
    slices = list(notes.stream_slices())
    assert slices == [{"item_id": i, "parent_id": p} for p in (1, 2) for i in (1, 2)]
    assert json.loads(notes.partition_key(slices[0])) == {"item_id": 1, "parent_id": 1}
    notes.read_page(slices[1], None)
    assert api.paths[-1] == "/p/1/i/2"


def test_a_product_has_every_combination(api):
    api.pages(2, 2)
    router = {"type": "product", "of": [{"type": "list", "field": "day", "values": ["mon", "tue"]}, CHILDREN]}
    slices = list(streams(api, router)["items"].stream_slices())
    assert slices == [{"day": d, "parent_id": p} for d in ("mon", "tue") for p in (1, 2)]
    assert [asked.page for asked in api.asked] == [1, 2, 2], "the parent is read once, to its end"


@pytest.mark.parametrize("value", [{}, {"id": None}, {"id": {"a": 1}}, {"id": [1]}])
def test_a_parent_without_a_plain_key_is_an_error_that_names_the_record(api, value):
    api.answers({"data": [{"id": 1}, {"id": 2}]}, {"data": [{"id": 3}, {"name": "x", **value}]})
    with raises(SourceError) as error:
        list(streams(api, CHILDREN)["items"].stream_slices())
    assert error.value.request == "GET /parents?page=2"


@pytest.mark.parametrize("key", ["number", ["number", "zone"]])
def test_the_record_is_named_by_its_primary_key_if_it_has_one(api, key):
    api.answers({"data": [{"id": None, "number": 17, "zone": "eu", "name": "x"}]})
    with raises(SourceError):
        list(streams(api, CHILDREN, {**PARENT, "primary_key": key})["items"].stream_slices())


def test_the_filter_that_the_error_proposes_leaves_out_parents_without_a_key_and_no_others(api):
    api.answers({"data": [{"id": 0}, {"id": None}, {"x": 1}, {"id": "a"}]}, {"data": []})
    condition = "record.id is defined and record.id is not none"
    parent = {**PARENT, "records": {"path": "data", "filter": condition}}
    slices = list(streams(api, CHILDREN, parent)["items"].stream_slices())
    assert slices == [{"parent_id": 0}, {"parent_id": "a"}]


def test_a_parent_obeys_the_limiter_and_the_stop_signal_of_its_child(api):
    api.pages(2, 3)
    stream = streams(api, CHILDREN)["items"]
    limiter = CountingLimiter()
    stream.bind(ReadContext(limiter=limiter))
    list(stream.stream_slices())
    assert limiter.acquired == len(api.asked) == 3


def test_values_in_a_path_can_t_lead_elsewhere(api):
    api.answers({"data": []})
    stream = streams(api, CHILDREN)["items"]
    stream.read_page({"parent_id": "../admin?x=1#y z"}, None)
    assert api.paths == ["/parents/..%2Fadmin%3Fx%3D1%23y%20z/items"]
    for value in ("..", "", None):
        with raises(SourceDefinitionError):
            stream.read_page({"parent_id": value}, None)
    as_path = streams(api, CHILDREN, path="/f/{{ stream_slice.parent_id | as_path }}")["items"]
    as_path.read_page({"parent_id": "a b/c"}, None)
    assert api.paths[-1] == "/f/a%20b/c"


@pytest.mark.parametrize(
    "partitions",
    [
        {**CHILDREN, "parent": "parent"},
        {**CHILDREN, "parent": "items"},
        {**CHILDREN, "parent_slice_fields": ["x"]},
        {**CHILDREN, "extra_fields": {"parent_id": "x"}},
        {"type": "list", "field": "a", "values": "eu"},
        {"type": "product", "of": [CHILDREN, CHILDREN]},
    ],
    ids=str,
)
def test_a_router_that_can_t_work_is_refused_before_the_first_request(api, partitions):
    with raises(SourceDefinitionError):
        streams(api, partitions)
    assert api.asked == []


def test_the_parents_are_part_of_the_fingerprint(api):
    before = streams(api, CHILDREN)["items"].fingerprint()
    changed = {**PARENT, "request": {"path": "/parents", "query": {"active": True}}}
    assert streams(api, CHILDREN, changed)["items"].fingerprint() != before
    assert streams(api, CHILDREN)["items"].fingerprint() == before
