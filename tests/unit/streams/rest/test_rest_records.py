"""Finding, filtering and changing records."""

from __future__ import annotations

import json
import re

import pytest
from rest_api import ids

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.refresh.page_rows import encode_records
from airflow_provider_rfr.streams.rest._records import Records
from airflow_provider_rfr.streams.rest._responses import Response
from tests.soon import assert_grows_in_proportion
from tests.unit.messages import raises

A, B = {"id": 1}, {"id": 2}


@pytest.mark.parametrize(
    ("body", "path", "records"),
    [
        ([A, B], "", [A, B]),
        (A, "", [A]),
        ({"data": {"items": [A]}}, "data.items", [A]),
        ({"data": A}, "data", [A]),
        ({"a.b": [A]}, ["a.b"], [A]),
        ({"groups": [{"m": [A]}, {"m": [B]}]}, "groups.*.m", [A, B]),
        ({"by_id": {"x": A, "y": B}}, "by_id.*", [A, B]),
        ({"pages": [{"r": [A]}]}, "pages.0.r", [A]),
        ({"data": []}, "data", []),
    ],
)
def test_records_are_found_at_their_path(api, make, body, path, records):
    api.answers(body)
    assert make(records={"path": path}).read_page({}, None).records == records


def test_records_at_many_places_are_gathered_in_proportion_to_their_number():
    selector = Records(path="groups.*.m")

    def gather(groups: int) -> None:
        body = json.dumps({"groups": [{"m": [A]}] * groups}).encode()
        assert len(selector.select(Response(200, "OK", {}, body, "GET /", "http://a/"))) == groups

    assert_grows_in_proportion(gather, small=100, large=10_000)


@pytest.mark.parametrize(
    "body",
    [
        {"results": [], "count": 0},
        {"data": {"rows": 1}},
        {"data": None},
        {"data": {"items": None}},
        {"data": {"items": "no"}},
        {"data": {"items": [A, "x"]}},
        [],
        {"rows": [A], "data": {"nodes": [B], "ids": [1], "none": []}},
    ],
    ids=str,
)
def test_a_path_that_leads_to_no_records_is_an_error_that_says_what_there_is(api, make, body):
    api.answers(body)
    with raises(SourceError) as error:
        make(records={"path": "data.items"}).read_page({}, None)
    assert (error.value.status, error.value.request) == (200, "GET /items")


@pytest.mark.parametrize("body", [{}, {"data": None}])
def test_nothing_can_be_declared_to_mean_no_records(api, make, body):
    api.answers(body)
    assert make(records={"path": "data", "on_missing": "empty"}).read_page({}, None).records == []


@pytest.mark.parametrize(
    ("path", "starred"), [("", "*"), ("data.nodes", "data.nodes.*"), ("data.*.node", "data.*.node.*")]
)
def test_a_null_among_the_records_is_an_error_that_proposes_how_to_leave_it_out(api, make, path, starred):
    body = {"": [A, None], "data.nodes": {"data": {"nodes": [A, None]}}, "data.*.node": {"data": [{"node": [A, None]}]}}
    api.answers(body[path])
    remedy = f"has null as item 2, where a record is an object; records: {{path: {starred}, on_missing: empty}} leaves"
    with pytest.raises(SourceError, match=re.escape(remedy)):
        make(records={"path": path}).read_page({}, None)
    assert make(records={"path": starred, "on_missing": "empty"}).read_page({}, None).records == [A]


@pytest.mark.parametrize("text", ["record.id > 1", "{{ record.id > 1 }}", "record.id > config.least"])
def test_a_filter_keeps_what_fulfils_it(api, make, text):
    api.answers({"data": [A, B]})
    page = make(records={"path": "data", "filter": text}, config={"least": 1}).read_page({}, None)
    assert page.records == [B]


class TestAFieldThatARecordLacks:
    """In a filter it counts as null."""

    @pytest.mark.parametrize(
        ("condition", "kept"),
        [
            ("record.status", [1, 2]),
            ("not record.status", [3, 4]),
            ("record.status == 'open'", [1]),
            ("record.status != 'open'", [2, 3, 4]),
            ("record['status'] in ['open']", [1]),
            ("'urgent' in record.tags", [2]),
            ("record.owner.team.id", [4]),
            ("record.status is none", [3, 4]),
            ("record.status == none", [3, 4]),
            ("none == record.status", [3, 4]),
            ("record.status in [none, 'done']", [2, 3, 4]),
            ("record.status is not none", [1, 2]),
            ("record.status != none", [1, 2]),
            ("record.status == record.gone", [3, 4]),
            ("record.gone == 0 or record.gone == '' or record.gone == false", []),
            ("(record.owner or {}).team == none", [1, 2, 3]),
            ("record.status is defined", [1, 2, 3]),
            ("record.status | default('open') == 'open'", [1, 4]),
        ],
    )
    def test_is_false_and_equal_to_null_only(self, api, make, condition, kept):
        first, second = {"id": 1, "status": "open"}, {"id": 2, "status": "done", "tags": ["urgent"]}
        api.answers({"data": [first, second, {"id": 3, "status": None}, {"id": 4, "owner": {"team": {"id": 9}}}]})
        page = make(records={"path": "data", "filter": condition}).read_page({}, None)
        assert (ids(page.records), page.received) == (kept, 4)

    @pytest.mark.parametrize(
        ("other", "problem"),
        [({"name": "x"}, "no attribute 'id'"), ({"id": None}, "the expression fails with TypeError")],
    )
    def test_can_t_be_compared_by_size_nor_can_null_and_the_error_has_a_remedy(self, api, make, other, problem):
        api.answers({"data": [A, other]})
        remedy = rf"filter fails at record 2: .*{problem}.*missing or null write e\.g\. \(record\.x or 0\)"
        with pytest.raises(SourceError, match=remedy):
            make(records={"path": "data", "filter": "record.id > 0"}).read_page({}, None)
        assert make(records={"path": "data", "filter": "(record.id or 0) > 0"}).read_page({}, None).records == [A]

    def test_is_warned_about_once_if_no_record_of_a_page_has_it_with_the_nearest_name(self, api, make, caplog):
        api.answers({"data": [{"id": 1, "status": "open"}]})
        stream = make(records={"path": "data", "filter": "record.statsu != 'done'"})
        assert [ids(stream.read_page({}, None).records) for _ in range(2)] == [[1], [1]]
        (warning,) = [record.getMessage() for record in caplog.records]
        assert warning == (
            "GET /items: records.filter uses record.statsu, which no record of this page has: "
            "did you mean status? the first one is an object with the keys id, status"
        )

    @pytest.mark.parametrize("condition", ["record.id", "record.gone is not defined", "record.gone | default(true)"])
    def test_is_not_warned_about_if_one_record_has_it_or_the_filter_says_what_it_means(
        self, api, make, caplog, condition
    ):
        api.answers({"data": [A, {"name": "x"}]}, {"data": []})
        stream = make(records={"path": "data", "filter": condition})
        stream.read_page({}, None)
        stream.read_page({}, None)
        assert caplog.text == ""

    @pytest.mark.parametrize(
        "condition",
        [
            "recrod.id",
            "record.id > config.laest",
            "stream_slice.regoin == 'eu'",
        ],
    )
    def test_is_all_that_may_be_missing(self, make, condition):
        with raises(SourceDefinitionError):
            make(
                records={"path": "data", "filter": condition},
                config={"least": 1},
                partitions={"type": "list", "field": "region", "values": ["eu"]},
            )

    @pytest.mark.parametrize(
        "condition",
        [
            "record.status not in config.skip.statuses",
            "record.status != config.skip['statuses']",
            "record.gone != config.skip.statuses",
            "not config.skip.statuses.first",
            "record.status not in config.skip[record.gone]",
            "record.status != stream_slice.region.code",
        ],
    )
    def test_is_no_excuse_for_what_the_configuration_or_the_slice_lacks(self, api, make, condition):
        api.answers({"data": [{"id": 1, "status": "draft"}]})
        stream = make(
            records={"path": "data", "filter": condition},
            config={"skip": {"status": ["draft"]}},
            partitions={"type": "list", "field": "region", "values": ["eu"]},
        )
        with raises(SourceError):
            stream.read_page({"region": "eu"}, None)

    def test_leaves_to_the_filter_what_the_configuration_may_lack(self, api, make):
        api.answers({"data": [{"id": 1, "status": "draft"}]})
        records = {"path": "data", "filter": "record.status not in config.skip.statuses | default([])"}
        assert ids(make(records=records, config={"skip": {}}).read_page({}, None).records) == [1]


def test_a_key_named_like_a_method_is_the_key(api, make):
    api.answers({"data": [{"id": 1, "items": 0, "values": [1]}, {"id": 2, "items": 5}]})
    page = make(records={"path": "data", "filter": "record.items > 1"}).read_page({}, None)
    assert ids(page.records) == [2]


def test_fields_are_added_removed_and_renamed_in_order(api, make):
    api.answers({"data": [{"id": 7, "a": {"b": 1, "c": 2}, "old": True}]})
    stream = make(
        config={"tenant": "t1"},
        request={"path": "/items"},
        transformations=[
            {"type": "rename", "fields": {"old": "flags.new", "nothing": "x"}},
            {"type": "remove", "fields": ["a.b", "gone.too"]},
            {
                "type": "add",
                "fields": {
                    "key": "{{ config.tenant }}-{{ record.id }}",
                    "twice": "{{ record.id * 2 }}",
                    "meta.slice": "{{ stream_slice.day }}",
                    "fixed": [1, "{{ record.key }}"],
                },
            },
        ],
    )
    assert stream.read_page({"day": "mon"}, None).records == [
        {
            "id": 7,
            "a": {"c": 2},
            "flags": {"new": True},
            "key": "t1-7",
            "twice": 14,
            "meta": {"slice": "mon"},
            "fixed": [1, "t1-7"],
        }
    ]


@pytest.mark.parametrize(
    "transformation",
    [
        {"type": "add", "fields": {"x": "{{ record.nope }}"}},
        {"type": "rename", "fields": {"id": "name"}},
    ],
    ids=str,
)
def test_a_transformation_that_fails_names_the_record(api, make, transformation):
    api.answers({"data": [{"id": 1, "name": "n"}]})
    with raises(SourceError):
        make(transformations=[transformation]).read_page({}, None)


def test_without_filter_and_transformations_a_record_is_what_the_api_sent(api, make):
    record = {"id": 1, "text": "ü", "f": 1.5, "n": None, "big": 2**63, "list": [{}]}
    api.answers({"data": [record]})
    assert make().read_page({}, None).records == [record]


def test_a_long_number_keeps_its_digits_from_the_body_through_a_copy_into_the_ledger(api, make):
    body = b'{"data":[{"id":123456789012345678901234,"n":0.12345678901234567890,"m":1.5,"last":18446744073709551615}]}'
    api.answers(body)
    copied = {"type": "add", "fields": {"copy": "{{ record.n }}", "sum": "{{ record.n + 1 }}"}}
    records = make(transformations=[copied]).read_page({}, None).records
    assert encode_records(records) == (
        b'{"id":"123456789012345678901234","n":0.12345678901234567890,"m":1.5,"last":18446744073709551615,'
        b'"copy":0.12345678901234567890,"sum":1.1234567890123457}'
    )
