"""A declared field that an answer lacks: for each paginator, when that ends a partition and when it is an error."""

from __future__ import annotations

from typing import Any

import pytest
from rest_api import Reply

from airflow_provider_rfr.exceptions import ConfigurationError, SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.paged import AbsentFieldGuard, iter_pages
from airflow_provider_rfr.streams.rest import RestStream
from airflow_provider_rfr.streams.rest.stream import build_stream
from tests.unit.messages import raises

CURSOR = {"type": "cursor", "cursor": {"path": "paging.next"}}
HEADER = {"type": "cursor", "cursor": {"header": "X-Next"}}
COMPUTED = {"type": "cursor", "cursor": {"expression": "response.paging.next"}}
ADDRESS = {"type": "next_url", "url": {"path": "paging.next"}}
LINK = {"type": "link_header"}
NUMBER = {"type": "page_number", "flag": {"path": "paging.more"}}
OFFSET = {"type": "offset", "page_size": 100, "flag": {"path": "paging.more"}}
KEYSET = {"type": "keyset", "field": "id", "send_as": {"query": "after"}, "flag": {"path": "paging.more"}}
LEADING = {
    "a cursor": CURSOR,
    "a cursor in a header": HEADER,
    "a computed cursor": COMPUTED,
    "an address": ADDRESS,
    "a Link header": LINK,
    "a flag of page numbers": NUMBER,
    "a flag of offsets": OFFSET,
    "a flag of a keyset": KEYSET,
}
TWO = [{"id": 1}, {"id": 2}]


def every_paginator(function: Any) -> Any:
    return pytest.mark.parametrize("paginator", LEADING.values(), ids=LEADING.keys())(function)


def with_field(url: str, paginator: dict[str, Any]) -> Reply:
    """The first page, with every field that leads to the second."""
    address = f"{url}/items?cursor=2"
    body = {"data": TWO, "paging": {"next": address if paginator["type"] == "next_url" else "2", "more": True}}
    return Reply(body, headers={"X-Next": "2", "Link": f'<{address}>; rel="next"'})


def read(stream: RestStream) -> list[Any]:
    return [record["id"] for page in iter_pages(stream) for record in page.records]


@every_paginator
def test_a_first_page_without_the_field_is_no_whole_table(api, make, paginator):
    api.answers({"data": TWO * 50})
    with pytest.raises(SourceDefinitionError) as raised:
        read(make(paginator=paginator))
    error = raised.value
    assert error.field == "streams.items" and "on_missing: end" in error.remedy
    assert "the answer has no" in error.problem or "absent" in error.problem
    assert not error.retryable


@every_paginator
def test_the_field_may_be_left_out_after_a_page_that_had_it(api, make, paginator):
    paginator = {**paginator, "page_size": 2, "size_as": {"query": "n"}}
    api.answers(with_field(api.url, paginator), {"data": [{"id": 3}, {"id": 4}]})
    assert read(make(paginator=paginator)) == [1, 2, 3, 4]


@every_paginator
@pytest.mark.parametrize(
    ("first", "size", "meaning"),
    [
        ({"data": TWO}, {"page_size": 3, "size_as": {"query": "n"}}, None),
        ({"data": []}, {}, None),
        (Reply(None, 204), {}, None),
        ({"data": TWO}, {}, "end"),
    ],
    ids=["shorter than its size", "empty", "no content", "on_missing end"],
)
def test_a_first_page_that_explains_itself_is_the_only_one(api, make, paginator, first, size, meaning):
    api.answers(first)
    paginator = absence_is(paginator, meaning) if meaning else paginator
    assert read(make(paginator={**paginator, **size})) == ([1, 2] if first == {"data": TWO} else [])
    assert len(api.asked) == 1


@every_paginator
def test_on_missing_fail_never_does(api, make, paginator):
    api.answers(with_field(api.url, paginator), {"data": [{"id": 3}]})
    with raises(SourceError):
        read(make(paginator=absence_is({**paginator, "page_size": 2, "size_as": {"query": "n"}}, "fail")))


def absence_is(paginator: dict[str, Any], meaning: str) -> dict[str, Any]:
    if "flag" in paginator:
        return {**paginator, "flag": {**paginator["flag"], "on_missing": meaning}}
    return {**paginator, "on_missing": meaning}


def test_null_on_the_way_to_the_field_is_the_end(api, make):
    api.answers({"data": TWO, "paging": None})
    assert read(make(paginator=CURSOR)) == read(make(paginator=NUMBER)) == [1, 2]


@pytest.mark.parametrize(
    "paginator",
    [
        {**CURSOR, "cursor": {"path": "paging.nextt"}},
        {**CURSOR, "cursor": {"path": "next"}},
        {**ADDRESS, "url": {"path": "links.next"}},
        {**NUMBER, "flag": {"path": "paging.mor"}},
        {**CURSOR, "cursor": {"path": "paging.token"}},
        {"type": "link_header", "rel": "nxt"},
        {"type": "link_header", "header": "Links"},
    ],
    ids=str,
)
def test_the_error_names_what_is_there_instead(api, make, paginator):
    api.answers(with_field(api.url, paginator))
    with raises(SourceDefinitionError):
        read(make(paginator=paginator))


def test_a_wrong_total_is_an_error_that_names_the_likely_path(api, make):
    api.answers({"data": TWO, "meta": {"total": 2}})
    with raises(SourceError):
        read(make(paginator={"type": "page_number", "page_size": 2, "total": {"path": "meta.totl"}}))


def test_a_total_that_later_pages_leave_out_is_replaced_by_the_first_empty_page(api, make):
    api.answers({"data": TWO, "total": 5}, {"data": TWO}, {"data": TWO}, {"data": []})
    assert len(read(make(paginator={"type": "page_number", "page_size": 2, "total": {"path": "total"}}))) == 6


def test_a_total_that_is_null_ends_nothing(api, make):
    api.answers({"data": TWO, "total": None}, {"data": [{"id": 3}], "total": None}, {"data": [], "total": None})
    assert read(make(paginator={"type": "offset", "page_size": 2, "total": {"path": "total"}})) == [1, 2, 3]


def test_links_without_a_next_one_are_the_end(api, make):
    api.answers(Reply({"data": TWO}, headers={"Link": '</items>; rel="first", </items>; rel="last"'}))
    assert read(make(paginator=LINK)) == [1, 2]


def test_a_field_such_as_is_last_says_nothing_where_it_is_absent(api, make):
    api.answers({"data": TWO})
    with raises(SourceError):
        read(make(paginator={"type": "page_number", "flag": {"path": "is_last", "stop_when": True}}))
    with raises(ConfigurationError):
        make(paginator={"type": "page_number", "flag": {"path": "is_last", "stop_when": True, "on_missing": "end"}})


class TestPartitions:
    """Where a stream has partitions, one that has the field explains the others."""

    LIST = {"type": "list", "field": "group", "values": ["a", "b"]}

    def stream(self, make: Any, paginator: dict[str, Any]) -> RestStream:
        stream: RestStream = make(
            request={"path": "/{{ stream_slice.group }}"}, partitions=self.LIST, paginator=paginator
        )
        return stream

    def pages(self, stream: RestStream) -> list[Any]:
        return [page for part in stream.stream_slices() for page in iter_pages(stream, part)]

    def test_the_page_says_what_is_absent_and_the_load_decides(self, api, make):
        api.answers({"data": TWO, "paging": {"next": None}}, {"data": TWO})
        named, absent = self.pages(self.stream(make, CURSOR))
        assert named.absent is None and "no paging.next" in absent.absent
        guard = AbsentFieldGuard(None)
        guard.note(absent)
        with pytest.raises(SourceDefinitionError, match="no partition has a second page"):
            guard.check("streams.items")
        guard.note(named)
        guard.check("streams.items")

    @pytest.mark.parametrize("first", [{"data": []}, {"data": TWO}], ids=["empty", "short"])
    def test_a_page_that_explains_itself_does_not_explain_another(self, api, make, first):
        guard = AbsentFieldGuard(3)
        api.answers(first, {"data": [*TWO, {"id": 3}]})
        for page in self.pages(self.stream(make, {**CURSOR, "page_size": 3, "size_as": {"query": "n"}})):
            guard.note(page)
        with pytest.raises(SourceDefinitionError):
            guard.check("streams.items")

    def test_a_parent_whose_paths_are_wrong_has_not_half_its_children(self, api):
        streams = {
            "parents": {
                "request": {"path": "/{{ stream_slice.group }}"},
                "records": {"path": "data"},
                "partitions": self.LIST,
                "paginator": {"type": "cursor", "cursor": {"path": "paging.nextt"}},
            },
            "children": {
                "request": {"path": "/children"},
                "partitions": {"type": "substream", "parent": "parents", "parent_key": "id", "field": "parent"},
            },
        }
        api.answers({"data": TWO, "paging": {"next": "2"}})
        stream = build_stream({"base_url": api.url, "streams": streams}, "children")
        with pytest.raises(SourceDefinitionError, match=r"streams\.parents: no partition has .*paging\.next\?"):
            list(stream.stream_slices())
