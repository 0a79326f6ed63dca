"""Page numbers and offsets: tokens, stop policies, totals, addressing, resuming."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from rest_api import ids

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.streams.core import Complete, NextPage
from airflow_provider_rfr.streams.rest.stream import build_stream
from tests.unit.messages import raises

NUMBERS = {"type": "page_number", "page_size": 5}


def test_a_page_names_the_next_one_and_the_last_one_completes(api, make):
    api.pages(5, 8)
    stream = make(paginator={**NUMBERS, "stop": "short"})
    first = stream.read_page({}, None)
    assert (ids(first.records), first.next) == ([1, 2, 3, 4, 5], NextPage(2))
    last = stream.read_page({}, first.next.token)
    assert (ids(last.records), last.next) == ([6, 7, 8], Complete())


def test_a_resumed_stream_asks_for_no_page_before_its_token(api, make):
    api.pages(5, 12)
    records = make(paginator=NUMBERS).read_records(stream_state={"next_page_token": 2})
    assert ids(records) == [6, 7, 8, 9, 10, 11, 12]
    assert [asked.page for asked in api.asked] == [2, 3, 4]


def test_without_a_policy_a_short_page_does_not_end_the_stream(api, make):
    api.pages(4, 12, leave_out={2: 1})
    assert len(list(make(paginator={**NUMBERS, "page_size": 4}).read_records())) == 11
    assert [asked.page for asked in api.asked] == [1, 2, 3, 4, 4], "page 3 was full: page 4 is asked for once more"


def test_rows_that_the_filter_drops_still_count_as_rows_of_the_page(api, make):
    api.pages(2, 4)
    stream = make(
        paginator={**NUMBERS, "page_size": 2, "stop": "short"}, records={"path": "data", "filter": "record.id > 2"}
    )
    page = stream.read_page({}, None)
    assert (page.records, page.next) == ([], NextPage(2))


@pytest.mark.parametrize(("start", "token", "following"), [(0, None, 1), (10, None, 11), (1, 3, 4), (0, 0, 1)])
def test_the_number_after_a_token_depends_on_nothing_else(api, make, start, token, following):
    api.answers({"data": [{"id": 1}, {"id": 2}]})
    stream = make(paginator={"type": "page_number", "start": start, "page_size": 2, "stop": "short"})
    for _ in range(2):
        assert stream.read_page({}, token).next == NextPage(following)


def test_the_first_page_s_number_can_be_left_out(api, make):
    api.pages(5, 8)
    list(make(paginator={**NUMBERS, "send_first": False}).read_records())
    assert api.paths == ["/items", "/items?page=2", "/items?page=3"]


def test_number_and_size_go_where_the_definition_says(api, make):
    api.answers({"data": []})
    make(
        request={"method": "POST", "path": "/search", "json": {"sort": "id", "paging": {"dir": "up"}}},
        paginator={**NUMBERS, "send_as": {"json": "paging.page"}, "size_as": {"header": "X-Size"}},
    ).read_page({}, 7)
    assert api.asked[0].json == {"sort": "id", "paging": {"dir": "up", "page": 7}}
    assert api.asked[0].headers["X-Size"] == "5"


def test_a_page_that_is_put_into_a_constant_body_stays_out_of_the_next_request(api, make):
    stream = make(
        request={"method": "POST", "path": "/search", "json": {"paging": {"dir": "up"}}},
        paginator={**NUMBERS, "send_as": {"json": "paging.page"}, "send_first": False},
    )
    stream.read_page({}, 7)
    stream.read_page({}, None)
    assert api.asked[1].json == {"paging": {"dir": "up"}}


def test_a_total_of_records_tells_the_pages_and_saves_the_empty_one(api, make):
    api.pages(5, 12, total="records")
    stream = make(paginator={**NUMBERS, "total": {"path": "total"}})
    assert stream.read_page({}, None).total_pages == 3
    assert len(list(stream.read_records())) == 12
    assert [asked.page for asked in api.asked[1:]] == [1, 2, 3]


def test_a_total_of_pages_is_taken_as_it_is(api, make):
    api.pages(5, 12, total="pages")
    stream = make(paginator={"type": "page_number", "total": {"path": "total", "of": "pages"}})
    page = stream.read_page({}, 3)
    assert (page.total_pages, page.next) == (3, Complete())


def test_a_total_of_nothing_is_one_page(api, make):
    api.answers({"data": [], "total": 0})
    page = make(paginator={**NUMBERS, "total": {"path": "total"}}).read_page({}, None)
    assert (page.next, page.total_pages) == (Complete(), 1)


@pytest.mark.parametrize("count", [100, 150, 190, 200, 7])
def test_a_server_that_caps_the_page_size_below_the_one_asked_for_loses_no_record(api, make, count):
    api.pages(50, count, total="records")
    stream = make(paginator={**NUMBERS, "page_size": 100, "total": {"path": "total"}})
    assert ids(stream.read_records()) == list(range(1, count + 1))


def test_a_row_that_is_missing_in_a_page_costs_no_other_row(api, make):
    api.pages(4, 12, total="records", leave_out={2: 1})
    records = ids(make(paginator={**NUMBERS, "page_size": 4, "total": {"path": "total"}}).read_records())
    assert records == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]


@pytest.mark.parametrize("total", ["many", -1, True, 1.5, [3]])
def test_a_total_that_is_no_count_is_an_error(api, make, total):
    api.answers({"data": [], "total": total})
    with raises(SourceError):
        make(paginator={**NUMBERS, "total": {"path": "total"}}).read_page({}, None)


@pytest.mark.parametrize(("value", "last"), [(True, False), (False, True), ("false", True), (1, False)])
def test_a_flag_decides_alone(api, make, value, last):
    api.answers({"data": [], "more": value})
    page = make(paginator={"type": "page_number", "flag": {"path": "more"}}).read_page({}, None)
    assert isinstance(page.next, Complete) is last


def test_a_flag_that_is_neither_true_nor_false_is_an_error(api, make):
    stream = make(paginator={"type": "page_number", "flag": {"path": "more"}})
    api.answers({"data": [], "more": "perhaps"})
    with raises(SourceError):
        stream.read_page({}, None)


def test_tokens_of_positions_are_those_that_the_pages_name(api, make):
    api.pages(5, 12)
    stream = make(paginator=NUMBERS)
    assert stream.addressable
    assert [stream.token_at(n) for n in range(4)] == [None, 2, 3, 4]
    assert stream.read_page({}, stream.token_at(1)).next.token == stream.token_at(2)


def test_pages_can_be_read_on_many_threads_at_once(api, make):
    api.pages(5, 200)
    stream = make(paginator=NUMBERS)
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda n: stream.read_page({}, stream.token_at(n)), range(40)))
    assert [record["id"] for page in pages for record in page.records] == list(range(1, 201))
    assert len({asked.connection for asked in api.asked}) <= 8, "connections are kept"


@pytest.mark.parametrize("token", ["3", True, 2.0, {"page": "x"}, [1], 0])
def test_a_token_that_is_no_page_number_is_refused(make, token):
    with raises(SourceError):
        make(paginator=NUMBERS).read_page({}, token)


@pytest.mark.parametrize("size", ["{{ config.size }}", "abc", 0, True, 2.5])
def test_a_page_size_that_is_no_number_is_refused_before_the_first_request(make, size):
    with raises(SourceDefinitionError):
        make(paginator={"type": "page_number", "page_size": size}, config={"size": "x"})


def test_a_page_size_may_come_from_the_configuration(make):
    stream = make(paginator={"type": "page_number", "page_size": "{{ config.size }}"}, config={"size": 7})
    assert (stream.page_size, stream.fingerprint()["page_size"]) == (7, 7)


class TestAnEmptyPage:
    """After a full page, an empty one is asked for once more before it counts."""

    @staticmethod
    def empty_once(api, page):
        """The API's page is empty when it is asked for first."""
        usual, left = api.answer, {page}

        def answer(asked):
            if asked.page in left:
                left.discard(asked.page)
                return {**usual(asked).body, "data": []}
            return usual(asked)

        api.answer = answer

    @pytest.mark.parametrize(
        "paginator",
        [
            NUMBERS,
            {"type": "page_number"},
            {**NUMBERS, "page_size": 100},
            {**NUMBERS, "stop": "short"},
            {**NUMBERS, "total": {"path": "total"}},
        ],
    )
    def test_in_the_middle_loses_no_record(self, api, make, paginator, caplog):
        api.pages(5, 20, total="records")
        self.empty_once(api, 3)
        if paginator.get("page_size") == 100:
            api.pages(5, 20)  # a server that caps the page size: as many as on the page before is full, too
            self.empty_once(api, 3)
        assert ids(make(paginator=paginator).read_records()) == list(range(1, 21))
        assert [asked.page for asked in api.asked].count(3) == 2
        assert "GET /items?page=3: the page was empty, and has 5 records when asked again" in caplog.text

    def test_of_an_offset_loses_no_record_either(self, api, make):
        api.pages(2, 8)
        usual, empty = api.answer, iter([{"data": []}])
        api.answer = lambda asked: next(empty, usual(asked)) if asked.query["offset"] == "4" else usual(asked)
        stream = make(paginator={"type": "offset", "page_size": 2})
        assert ids(stream.read_records()) == list(range(1, 9))

    def test_of_a_keyset_loses_no_record_either(self, api, make):
        usual, left = {None: [1, 2], "2": [3, 4], "4": []}, {"2"}

        def answer(asked):
            after = asked.query.get("since")
            if after in left:
                left.discard(after)
                return {"data": []}
            return {"data": [{"id": n} for n in usual[after]]}

        api.answer = answer
        stream = make(paginator={"type": "keyset", "field": "id", "send_as": {"query": "since"}, "page_size": 2})
        assert ids(stream.read_records()) == [1, 2, 3, 4]
        assert api.paths[-2:] == ["/items?since=4"] * 2

    def test_after_a_short_one_is_the_end_at_once(self, api, make):
        api.pages(5, 12)
        assert len(list(make(paginator=NUMBERS).read_records())) == 12
        assert [asked.page for asked in api.asked] == [1, 2, 3, 4]

    def test_that_is_the_first_is_the_end_at_once(self, api, make):
        assert list(make(paginator=NUMBERS).read_records()) == []
        assert [asked.page for asked in api.asked] == [1]

    def test_that_a_flag_declares_the_last_is_the_end_at_once(self, api, make):
        api.answer = lambda asked: {"data": [] if asked.page == 2 else [{"id": 1}], "more": asked.page < 2}
        assert ids(make(paginator={"type": "page_number", "flag": {"path": "more"}}).read_records()) == [1]
        assert [asked.page for asked in api.asked] == [1, 2]

    def test_where_a_read_goes_on_is_asked_for_once_more_as_the_page_before_may_have_been_full(self, api, make):
        api.pages(5, 20)
        self.empty_once(api, 3)
        records = make(paginator=NUMBERS).read_records(stream_state={"next_page_token": 3})
        assert ids(records) == list(range(11, 21))

    def test_of_a_parent_loses_no_partition(self, api, make):
        api.pages(2, 6)
        self.empty_once(api, 2)
        children = {
            "request": {"path": "/parents/{{ stream_slice.parent_id }}/items"},
            "partitions": {"type": "substream", "parent": "items", "parent_key": "id", "field": "parent_id"},
        }
        definition = {
            "base_url": api.url,
            "streams": {
                "items": {
                    "request": {"path": "/items"},
                    "records": {"path": "data"},
                    "paginator": {"type": "page_number", "page_size": 2},
                },
                "children": children,
            },
        }
        slices = build_stream(definition, "children").stream_slices()
        assert [item["parent_id"] for item in slices] == [1, 2, 3, 4, 5, 6]


class TestOffsets:
    OFFSETS = {"type": "offset", "page_size": 2, "size_as": {"query": "limit"}}

    @pytest.mark.parametrize(("rows", "following"), [(2, NextPage(6)), (1, Complete()), (0, Complete())])
    def test_under_the_short_policy_a_page_below_its_size_is_the_last(self, api, make, rows, following):
        api.answers({"data": [{"id": n} for n in range(rows)]})
        stream = make(paginator={**self.OFFSETS, "stop": "short"})
        for _ in range(2):
            assert stream.read_page({}, 4).next == following

    def test_the_first_offset_is_sent_or_not_as_the_definition_says(self, api, make):
        make(paginator=self.OFFSETS).read_page({}, None)
        make(paginator={**self.OFFSETS, "send_first": False}).read_page({}, None)
        assert api.paths == ["/items?limit=2&offset=0", "/items?limit=2"]

    def test_offset_0_is_a_token(self, api, make):
        api.pages(2, 5)
        assert ids(make(paginator=self.OFFSETS).read_page({}, 0).records) == [1, 2]

    def test_a_server_that_caps_the_page_size_loses_no_record(self, api, make):
        api.pages(2, 7)
        assert ids(make(paginator={**self.OFFSETS, "page_size": 3}).read_records()) == list(range(1, 8))

    def test_a_total_ends_the_stream_where_it_is_reached(self, api, make):
        api.pages(2, 5, total="records")
        stream = make(paginator={**self.OFFSETS, "total": {"path": "total"}})
        assert ids(stream.read_records()) == [1, 2, 3, 4, 5]
        assert len(api.asked) == 3
        assert stream.read_page({}, None).total_pages == 3

    def test_offsets_can_advance_by_the_page_size(self, api, make):
        api.answers({"data": [{"id": 1}]})
        stream = make(paginator={**self.OFFSETS, "advance": "page_size"})
        assert stream.read_page({}, 4).next == NextPage(6)

    def test_positions_have_tokens_only_if_the_page_size_is_known(self, make):
        stream = make(paginator=self.OFFSETS)
        assert [stream.token_at(n) for n in range(3)] == [None, 2, 4]
        unsized = make(paginator={"type": "offset"})
        assert not unsized.addressable
        with pytest.raises(NotImplementedError):
            unsized.token_at(1)
