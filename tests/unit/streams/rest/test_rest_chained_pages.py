"""Cursors, next URLs, Link headers and keysets."""

from __future__ import annotations

import pytest
from rest_api import QUICK, Reply, ids

from airflow_provider_rfr.exceptions import RepeatedPageError, SourceError
from airflow_provider_rfr.numbers import dumps, loads
from airflow_provider_rfr.refresh.page_rows import decode_token, encode_token
from airflow_provider_rfr.streams.core import Complete, NextPage
from tests.unit.messages import raises

GOOD = {"data": [{"id": 1}]}
CURSOR = {"type": "cursor", "cursor": {"path": "next"}}


def test_a_cursor_chain_is_read_to_its_end_and_resumed_in_the_middle(api, make):
    following = {None: "b", "b": "c", "c": None}
    api.answer = lambda asked: {
        "data": [{"id": asked.query.get("cursor", "a")}],
        "next": following[asked.query.get("cursor")],
    }
    stream = make(paginator=CURSOR)
    assert ids(stream.read_records()) == ["a", "b", "c"]
    assert ids(stream.read_records(stream_state={"next_page_token": "c"})) == ["c"]
    assert not stream.addressable


@pytest.mark.parametrize("value", [0, "0", 17, "x", {"after": 3}, None, "", False])
def test_any_value_is_a_cursor_even_0_but_not_null_false_and_an_empty_text(api, make, value):
    api.answers({"data": [], "next": value})
    following = make(paginator=CURSOR).read_page({}, None).next
    assert following == (Complete() if value in (None, "") or value is False else NextPage(value))


def test_a_list_with_a_long_number_is_sent_with_all_digits(api, make):
    api.answers(Reply(b'{"data": [{"id": 1}], "next": [1722470400.123456681, "a"]}'))
    for place in ("query", "json"):
        stream = make(request={"method": "POST", "path": "/q"}, paginator={**CURSOR, "send_as": {place: "after"}})
        stream.read_page({}, decode_token(encode_token(stream.read_page({}, None).next.token)))
    assert api.paths[1] == "/q?after=1722470400.123456681&after=a"
    assert dumps(loads(api.asked[3].body)) == b'{"after":[1722470400.123456681,"a"]}'


def test_cursor_0_is_sent(api, make):
    api.answers({"data": [], "next": None})
    make(paginator=CURSOR).read_page({}, 0)
    assert api.paths == ["/items?cursor=0"]


def test_a_cursor_may_come_from_a_header_and_go_into_the_body(api, make):
    api.answers(Reply({"data": []}, headers={"X-Next": "n2"}))
    stream = make(
        request={"method": "POST", "path": "/q"},
        paginator={"type": "cursor", "cursor": {"header": "x-next"}, "send_as": {"json": "page.after"}},
    )
    assert stream.read_page({}, "n1").next == NextPage("n2")
    assert api.asked[0].json == {"page": {"after": "n1"}}


def test_a_cursor_may_be_computed(api, make):
    api.answers({"data": [{"id": 4}, {"id": 9}]})
    expression = "{{ last_record.id if record_count == 2 else none }}"
    assert make(paginator={"type": "cursor", "cursor": {"expression": expression}}).read_page(
        {}, None
    ).next == NextPage(9)


AFTER_LAST = {"type": "cursor", "cursor": {"expression": "last_record.id"}, "send_as": {"query": "after"}}


@pytest.mark.parametrize("on_missing", ["end", "fail"])
def test_an_empty_page_is_the_end_of_a_cursor_that_is_computed_of_records(api, make, on_missing):
    api.answer = lambda asked: {"data": [] if asked.query.get("after") == "2" else [{"id": 1}, {"id": 2}]}
    assert ids(make(paginator={**AFTER_LAST, "on_missing": on_missing}).read_records()) == [1, 2]
    assert api.paths == ["/items", "/items?after=2", "/items?after=2"], "an empty page is asked for once more"


@pytest.mark.parametrize("expression", ["response.next", "response.meta.next", "headers['X-Next']", "response['a'].b"])
def test_a_missing_key_is_no_cursor_or_an_error_as_declared(api, make, expression):
    api.answers(GOOD)
    paginator = {"type": "cursor", "cursor": {"expression": expression}}
    assert make(paginator={**paginator, "on_missing": "end"}).read_page({}, None).next == Complete()
    with raises(SourceError):
        make(paginator={**paginator, "on_missing": "fail"}).read_page({}, None)


@pytest.mark.parametrize(
    ("paginator", "body"),
    [
        (AFTER_LAST, {"data": [{"name": "a"}]}),
        ({"type": "cursor", "cursor": {"expression": "response.data + 1"}}, GOOD),
        ({**CURSOR, "stop_when": "not response.more"}, {"data": [], "next": "x"}),
    ],
    ids=["a record without the field", "an expression that fails", "a stop condition that fails"],
)
def test_what_fails_is_an_error_about_the_page_and_no_end(api, make, paginator, body):
    api.answers(body)
    with raises(SourceError):
        make(paginator=paginator).read_page({}, None)


def test_a_repeated_cursor_is_given_on_as_it_is_and_ends_the_chain_with_an_error(api, make):
    api.answers({"data": [{"id": 1}], "next": "same"})
    stream = make(paginator=CURSOR)
    assert stream.read_page({}, "same").next == NextPage("same")
    with pytest.raises(RepeatedPageError):
        list(stream.read_records())
    assert len(api.asked) == 3


class TestKeysets:
    KEYSET = {"type": "keyset", "field": "id", "send_as": {"query": "after"}, "page_size": 2}

    def answer(self, asked):
        after = int(asked.query.get("after", 0))
        return {"data": [{"id": n, "odd": bool(n % 2)} for n in range(after + 1, min(after + 2, 5) + 1)]}

    def test_each_page_begins_after_the_last_record(self, api, make):
        api.answer = self.answer
        assert ids(make(paginator=self.KEYSET).read_records()) == [1, 2, 3, 4, 5]
        assert api.paths[1:] == ["/items?after=2", "/items?after=4", "/items?after=5"]

    def test_the_short_policy_saves_the_last_request(self, api, make):
        api.answer = self.answer
        list(make(paginator={**self.KEYSET, "stop": "short"}).read_records())
        assert len(api.asked) == 3

    def test_the_last_record_counts_even_if_the_filter_drops_it(self, api, make):
        api.answer = self.answer
        stream = make(paginator=self.KEYSET, records={"path": "data", "filter": "record.odd"})
        assert ids(stream.read_records()) == [1, 3, 5]

    def test_a_record_without_the_key_is_an_error(self, api, make):
        api.answers({"data": [{"id": 1}, {"name": "x"}]})
        with pytest.raises(SourceError, match=r"'id' of the last record is nothing"):
            make(paginator=self.KEYSET).read_page({}, None)

    def test_all_digits_of_a_key_go_into_the_next_request(self, api, make):
        first = Reply(b'{"data": [{"id": 1722470400.123456601}, {"id": 1722470400.123456681}]}')
        api.answers(first, {"data": []})
        stream = make(paginator=self.KEYSET)
        token = stream.read_page({}, None).next.token
        stream.read_page({}, decode_token(encode_token(token)))
        assert api.paths == ["/items", "/items?after=1722470400.123456681"]

    @pytest.mark.parametrize("size", [{"page_size": 4}, {}], ids=["a page size", "none"])
    @pytest.mark.parametrize(
        "paginator",
        [{"type": "keyset", "field": "t"}, {"type": "cursor", "cursor": {"expression": "last_record.t"}}],
        ids=["keyset", "cursor"],
    )
    def test_more_records_of_one_value_than_a_page_holds_are_no_end(self, api, make, paginator, size):
        times = [10, 50, 50, 50, 50, 50, 60]
        api.answer = lambda asked: {"data": [{"t": t} for t in times if t >= int(asked.query.get("since", 0))][:4]}
        stream = make(paginator={**paginator, **size, "send_as": {"query": "since"}}, error_handler=QUICK)
        assert stream.read_page({}, 60).next == NextPage(60), "the only record of the last page names itself"
        with raises(SourceError):
            list(stream.read_records())


class TestNextUrls:
    NEXT = {"type": "next_url", "url": {"path": "next"}}

    def test_the_address_is_the_token_and_a_resume_asks_for_it(self, api, make):
        api.answer = lambda asked: {
            "data": [{"id": asked.page}],
            "next": f"{api.url}/items?page={asked.page + 1}" if asked.page < 3 else None,
        }
        stream = make(paginator=self.NEXT, request={"path": "/items", "query": {"sort": "id"}})
        first = stream.read_page({}, None)
        assert first.next == NextPage(f"{api.url}/items?page=2")
        assert ids(stream.read_records(stream_state={"next_page_token": first.next.token})) == [2, 3]
        assert api.paths == ["/items?sort=id", "/items?page=2", "/items?page=3"]

    def test_a_relative_address_is_one_of_the_same_host(self, api, make):
        api.answers({"data": [], "next": "/v2/items?c=2"})
        assert make(paginator=self.NEXT).read_page({}, None).next == NextPage(f"{api.url}/v2/items?c=2")

    def test_the_declared_query_is_kept_only_if_that_is_said(self, api, make):
        request = {"path": "/items", "query": {"sort": "id", "page": 1}}
        make(paginator={**self.NEXT, "keep_query": True}, request=request).read_page({}, f"{api.url}/items?page=2")
        assert api.paths == ["/items?page=2&sort=id"]

    @pytest.mark.parametrize("link", ["http://evil.example/x", "//evil.example/x", "https://127.0.0.1/x"])
    def test_an_address_on_another_host_is_an_error_that_names_both(self, api, make, link):
        api.answers({"data": [{"id": 1}], "next": link})
        with pytest.raises(SourceError, match=r"allowed_hosts") as error:
            make(paginator=self.NEXT).read_page({}, None)
        assert api.url in str(error.value)
        assert ("evil.example" in str(error.value)) or ("https://127.0.0.1" in str(error.value))

    def test_a_stored_token_on_another_host_is_not_asked_for_either(self, other, make):
        with pytest.raises(SourceError, match=r"allowed_hosts"):
            make(paginator=self.NEXT).read_page({}, f"{other.url}/items")
        assert other.asked == []

    def test_a_listed_host_is_asked(self, api, other, make):
        api.answers({"data": [], "next": f"{other.url}/more"})
        stream = make(paginator=self.NEXT, source={"allowed_hosts": [other.host]})
        stream.read_page({}, stream.read_page({}, None).next.token)
        assert other.paths == ["/more"]

    @pytest.mark.parametrize("link", ["http://[bad", "ftp://127.0.0.1/x", "javascript:alert(1)"])
    def test_what_is_no_http_address_is_an_error(self, api, make, link):
        api.answers({"data": [], "next": link})
        with pytest.raises(SourceError, match=r"address"):
            make(paginator=self.NEXT).read_page({}, None)

    def test_credentials_in_an_address_never_become_part_of_the_token(self, api, make):
        key = "s3cr3t-key-0815"
        api.answers(
            {"data": [], "next": f"http://user:pw@{api.host}/items?page=2&api_key={key}&x={key}&access_token=zzz"}
        )
        stream = make(
            paginator=self.NEXT,
            source={"authenticator": {"type": "api_key", "value": "{{ config.key }}", "send_as": {"query": "api_key"}}},
            secrets={"key": key},
        )
        page = stream.read_page({}, None)
        assert page.next == NextPage(f"{api.url}/items?page=2")
        assert page.request == "GET /items"
        stream.read_page({}, page.next.token)
        assert api.asked[1].query == {"page": "2", "api_key": key}

    def test_a_short_secret_that_is_an_ordinary_word_takes_nothing_out_of_an_address(self, api, make):
        api.answers({"data": [], "next": "/items?status=open&page=2"})
        source = {"authenticator": {"type": "bearer", "token": "{{ config.key }}"}}
        page = make(paginator=self.NEXT, source=source, secrets={"key": "open"}).read_page({}, None)
        assert page.next == NextPage(f"{api.url}/items?status=open&page=2")

    def test_an_address_with_an_encoded_query_stays_byte_for_byte(self, api, make):
        link = f"{api.url}/items?cursor=a%2Bb%3D%3D&q=x%20y"
        api.answers({"data": [], "next": link})
        assert make(paginator=self.NEXT).read_page({}, None).next == NextPage(link)


def test_a_stream_without_paginator_has_one_page(api, make):
    api.answers({"data": [{"id": 1}], "next": "x"})
    stream = make()
    assert stream.read_page({}, None).next == Complete()
    with raises(SourceError):
        stream.read_page({}, 2)
