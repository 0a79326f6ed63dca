"""Servers that hang, drip, cut off, redirect, or send what isn't JSON."""

from __future__ import annotations

import gzip
import json
import socket
import threading

import orjson
import pytest
from rest_api import QUICK, Reply, drip, ids

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.core import NextPage
from tests.soon import SOON, soon, wait_until
from tests.unit.messages import raises

GOOD = {"data": [{"id": 1}]}
ONCE = {**QUICK, "max_retries": 0}
BEARER = {"authenticator": {"type": "bearer", "token": "s3cr3t-token"}}


def test_a_server_that_accepts_and_never_answers_is_given_up(make):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = {"base_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        stream = make(source=source, timeouts={"read": 0.3}, error_handler={**QUICK, "max_retries": 1})
        with soon(), raises(SourceError):
            stream.read_page({}, None)


def test_a_server_that_hung_once_is_asked_again(api, make):
    hung = []

    def answer(asked):
        if hung:
            return GOOD
        hung.append(asked)
        return Reply(raw=lambda out: api.closing.wait(30))

    api.answer = answer
    assert ids(make(timeouts={"read": 0.2}).read_page({}, None).records) == [1]


def test_a_body_that_drips_ends_at_the_total_deadline(api, make):
    def raw(out):
        out.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        drip(out, iter(lambda: b" ", b""), 0.05, api.closing)

    api.answer = lambda asked: Reply(raw=raw)
    with soon(), raises(SourceError):
        make(timeouts={"read": 5, "total": 0.5}, error_handler=ONCE).read_page({}, None)


def test_deadlines_of_many_threads_are_kept_apart(api, make):
    def raw(out):
        drip(out, iter(lambda: b"H", b""), 0.05, api.closing)

    api.answer = lambda asked: Reply(raw=raw) if asked.query.get("page") == "2" else GOOD
    stream = make(paginator={"type": "page_number"}, timeouts={"read": 5, "total": 0.6}, error_handler=ONCE)
    failures = []

    def read_slow_page():
        try:
            stream.read_page({}, 2)
        except SourceError as error:
            failures.append(str(error))

    slow = threading.Thread(target=read_slow_page)
    slow.start()
    for _ in range(20):
        assert ids(stream.read_page({}, 1).records) == [1]
    slow.join(SOON)
    assert not slow.is_alive()
    assert "no complete answer within 0.6 s" in failures[0]


def test_a_body_that_is_cut_off_is_not_taken_for_a_page(api, make):
    body = json.dumps({"data": [{"id": n} for n in range(100)]}).encode()

    def raw(out):
        out.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:50])

    api.answers(Reply(raw=raw), Reply(raw=raw), GOOD)
    assert ids(make().read_page({}, None).records) == [1]
    assert len(api.asked) == 3


def test_a_chunked_body_is_read_whole(api, make):
    def raw(out):
        out.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (b'{"data": [{"id"', b": 7}]}"):
            out.write(b"%x\r\n%s\r\n" % (len(part), part))
        out.write(b"0\r\n\r\n")

    api.answers(Reply(raw=raw))
    assert ids(make().read_page({}, None).records) == [7]


def test_html_with_status_200_is_tried_again_and_then_an_error_that_says_so(api, make):
    api.answers(Reply(b"<html>Please log in</html>", headers={"Content-Type": "text/html"}))
    with raises(SourceError):
        make(error_handler={**QUICK, "max_retries": 2}).read_page({}, None)


NEARLY = {
    "nan": (b'{"data": [{"id": 1, "v": NaN}, {"id": 2, "v": -Infinity}]}', "NaN", None),
    "huge": (b'{"data": [{"id": 1, "v": 1e400}]}', "a number beyond", None),
    "half a pair": (b'{"data": [{"id": 1, "v": "a\\ud800b"}]}', "half of a surrogate pair", "a\ufffdb"),
    "latin-1": (b'{"data": [{"id": 1, "v": "caf\xe9"}]}', "a byte that is not UTF-8, at 29 of 34", "caf\ufffd"),
    "control": (b'{"data": [{"id": 1, "v": "a\tb"}]}', "unexpected control character", "a\tb"),
}


@pytest.mark.parametrize("name", NEARLY)
class TestNearlyJson:
    def test_is_an_error_at_once_that_says_what_and_how_to_accept_it(self, api, make, name):
        body, problem, _ = NEARLY[name]
        api.answers(Reply(body))
        with pytest.raises(SourceError, match=rf"not strict JSON \({problem}.*on_bad_json: replace or skip"):
            make().read_page({}, None)
        assert len(api.asked) == 1

    def test_is_read_where_that_is_allowed(self, api, make, name):
        body, _, value = NEARLY[name]
        api.answers(Reply(body))
        records = make(error_handler={**QUICK, "on_bad_json": "replace"}).read_page({}, None).records
        assert records[0] == {"id": 1, "v": value}
        assert orjson.loads(orjson.dumps(records)) == records

    def test_is_skipped_where_that_is_allowed_and_recorded_as_such(self, api, make, name):
        body, problem, _ = NEARLY[name]
        api.answer = lambda asked: {2: Reply(body), 4: Reply({"data": []})}.get(asked.page, GOOD)
        stream = make(paginator={"type": "page_number"}, error_handler={**QUICK, "on_bad_json": "skip"})
        page = stream.read_page({}, 2)
        assert (list(page.records), page.next) == ([], NextPage(3))
        assert problem in page.skipped
        assert ids(stream.read_records()) == [1, 1]


def test_whole_numbers_beyond_64_bits_are_exact_in_nearly_json_too(api, make):
    api.answers(Reply(b'{"data": [{"id": 123456789012345678901234567890, "v": NaN}]}'))
    records = make(error_handler={**QUICK, "on_bad_json": "replace"}).read_page({}, None).records
    assert records == [{"id": "123456789012345678901234567890", "v": None}]


LINES, TABLE = r"declare records: \{format: jsonl\}", r"declare records: \{format: csv\}"


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"id,name\n1,a\n", "text/csv; charset=utf-8"),
        (b"id;name\n1;a\n", "text/plain"),
        (b"<?xml version='1.0'?><a/>", "text/plain"),
        (b"<feed/>", "application/atom+xml"),
        (b'{"id": 1}\n{"id": 2}\n', "application/json"),
        (b'{"id": 1}\n{"id"', "application/x-ndjson"),
    ],
)
def test_another_format_is_answered_at_once_by_what_to_do(api, make, body, media_type):
    api.answers(Reply(body, headers={"Content-Type": media_type}))
    with raises(SourceError):
        make().read_page({}, None)
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"data": [{"id": 1}, {"i',
        b'{\n "data": 1,\n "more": 2,\n',
        b'{"data": []}<br/>Warning',
        b"Internal error, please retry\n",
        b'{"data": [{"id": 1, "v": NaN}, {"i',
    ],
)
def test_what_is_broken_may_be_whole_the_next_time(api, make, body):
    api.answers(Reply(body), GOOD)
    assert ids(make().read_page({}, None).records) == [1]
    assert len(api.asked) == 2


def test_an_empty_body_is_an_error_and_no_content_is_no_records(api, make):
    api.answers(Reply(b""))
    with raises(SourceError):
        make(error_handler=ONCE).read_page({}, None)
    api.answers(Reply(None, 204))
    assert list(make().read_page({}, None).records) == []


def test_a_compressed_body_is_read_and_a_broken_one_is_not(api, make):
    packed = gzip.compress(json.dumps(GOOD).encode())
    api.answers(
        Reply(packed[:20], headers={"Content-Encoding": "gzip"}),
        Reply(b"not gzip", headers={"Content-Encoding": "gzip"}),
        Reply(packed, headers={"Content-Encoding": "gzip"}),
    )
    assert ids(make().read_page({}, None).records) == [1]
    assert len(api.asked) == 3


def test_a_wrong_content_encoding_is_named_in_the_error(api, make):
    api.answers(Reply(GOOD, headers={"Content-Encoding": "gzip"}))
    wrong = r"from http://\S+ is cut, damaged or not packed as its Content-Encoding says; .*Accept-Encoding: identity"
    with pytest.raises(SourceError, match=wrong):
        make(error_handler=ONCE).read_page({}, None)
    api.answers(Reply(b"\x0b\x02\x80\x03", headers={"Content-Encoding": "br"}))
    with raises(SourceError):
        make(error_handler=ONCE).read_page({}, None)


def test_a_gzip_file_is_unpacked_whatever_its_headers_say(api, make):
    packed = gzip.compress(json.dumps(GOOD).encode())
    for headers in ({"Content-Type": "application/gzip"}, {}, {"Content-Encoding": "gzip"}):
        body = gzip.compress(packed) if "Content-Encoding" in headers else packed
        api.answers(Reply(body, headers=headers))
        assert ids(make().read_page({}, None).records) == [1]
    error = gzip.compress(b'{"message": "slow down"}')
    api.answers(Reply(error, 429), Reply(packed))
    handler = {**QUICK, "rules": [{"text": "slow down", "action": "RATE_LIMITED"}]}
    assert ids(make(error_handler=handler).read_page({}, None).records) == [1]


def test_a_damaged_gzip_file_is_asked_for_again_and_named_in_the_error(api, make):
    packed = gzip.compress(json.dumps(GOOD).encode())
    damaged = packed[:-6] + b"\0" * 6
    api.answers(Reply(packed[:20]), Reply(damaged), Reply(packed[:10] + b"\xff" * 20), Reply(packed))
    assert ids(make().read_page({}, None).records) == [1]
    assert len(api.asked) == 4
    api.answers(Reply(packed[:20]))
    with raises(SourceError):
        make(error_handler=ONCE).read_page({}, None)


def test_a_large_page_arrives_whole(api, make):
    api.answers({"data": [{"id": n, "text": "x" * 1000} for n in range(20_000)]})
    assert len(make().read_page({}, None).records) == 20_000


def test_a_page_that_is_larger_than_allowed_fails_at_once(api, make):
    api.answers({"data": ["x" * 1000] * 100})
    with raises(SourceError):
        make(max_response_bytes=5000).read_page({}, None)
    assert len(api.asked) == 1


def test_a_small_body_that_unpacks_to_a_huge_one_is_stopped(api, make):
    bomb = gzip.compress(b" " * 50_000_000)
    for headers in ({"Content-Encoding": "gzip"}, {"Content-Type": "application/gzip"}):
        api.asked.clear()
        api.answers(Reply(bomb, headers=headers))
        with raises(SourceError):
            make(max_response_bytes=1_000_000).read_page({}, None)
        assert len(api.asked) == 1


def test_texts_of_every_alphabet_arrive_as_they_are(api, make):
    text = "Zürich 東京 🎉 \u0000 \u2028"
    api.answers({"data": [{"id": text}]})
    assert ids(make().read_page({}, None).records) == [text]
    api.answers(
        Reply(
            json.dumps({"data": [{"id": "Zürich"}]}, ensure_ascii=False).encode("latin-1"),
            headers={"Content-Type": "application/json; charset=ISO-8859-1"},
        )
    )
    assert ids(make().read_page({}, None).records) == ["Zürich"]
    api.answers(Reply(b"\xef\xbb\xbf" + json.dumps(GOOD).encode()))
    assert ids(make().read_page({}, None).records) == [1]


def test_a_refused_connection_is_tried_again_and_named(make, api):
    api.close()
    with raises(SourceError, f"127.0.0.1:{api.port}:"):
        make().read_page({}, None)


def test_a_connection_that_the_server_closed_between_two_pages_is_opened_again(api, make):
    api.answers(Reply(GOOD, headers={"Connection": "close"}))
    stream = make()
    for _ in range(3):
        stream.read_page({}, None)
    assert len(api.asked) == 3


def test_cookies_are_not_kept(api, make):
    api.answers(Reply(GOOD, headers={"Set-Cookie": "sid=1"}))
    stream = make()
    stream.read_page({}, None)
    stream.read_page({}, None)
    assert api.asked[1].headers["Cookie"] is None


def test_a_declared_proxy_is_asked_for_the_whole_address(api, make):
    api.answers(GOOD)
    source = {"base_url": "http://shop.invalid", "proxy": "{{ config.proxy }}"}
    assert ids(make(source=source, config={"proxy": api.url}).read_page({}, None).records) == [1]
    assert api.paths == ["http://shop.invalid/items"]


class TestRedirects:
    def test_another_host_is_not_asked_and_both_are_named(self, api, other, make):
        api.answers(Reply({}, 302, {"Location": f"{other.url}/stolen"}))
        with pytest.raises(SourceError, match=r"allowed_hosts") as error:
            make(source=BEARER).read_page({}, None)
        assert api.url in str(error.value)
        assert other.url in str(error.value)
        assert other.asked == []

    def test_a_listed_host_is_asked_without_credentials(self, api, other, make):
        api.answers(Reply({}, 302, {"Location": f"{other.url}/file?sig=1"}))
        other.answers(GOOD)
        request = {"path": "/items", "headers": {"X-Key": "{{ config.key }}"}}
        source = {**BEARER, "allowed_hosts": [other.host]}
        make(source=source, request=request, secrets={"key": "s3cr3t"}).read_page({}, None)
        assert api.asked[0].headers["Authorization"] == "Bearer s3cr3t-token"
        assert (other.asked[0].headers["Authorization"], other.asked[0].headers["X-Key"]) == (None, None)

    def test_the_same_host_is_asked_with_them(self, api, make):
        api.answer = lambda asked: GOOD if asked.path == "/v2/items" else Reply({}, 301, {"Location": "/v2/items"})
        make(source=BEARER).read_page({}, None)
        assert api.asked[1].headers["Authorization"] == "Bearer s3cr3t-token"

    def test_a_key_in_the_query_is_sent_again_and_once(self, api, make):
        def answer(asked):
            return GOOD if asked.path.startswith("/v2") else Reply({}, 307, {"Location": "/v2?a=1&key=zzz"})

        api.answer = answer
        key = {"authenticator": {"type": "api_key", "value": "s3cr3t-key", "send_as": {"query": "key"}}}
        make(source=key).read_page({}, None)
        assert api.paths[1] == "/v2?a=1&key=s3cr3t-key"

    def test_a_circle_of_redirects_ends(self, api, make):
        api.answers(Reply({}, 302, {"Location": "/items"}))
        with pytest.raises(SourceError, match=r"more than 5 redirects"):
            make().read_page({}, None)

    def test_a_post_is_redirected_only_where_its_body_may_go_along(self, api, make):
        request = {"method": "POST", "path": "/q", "json": {"a": 1}}
        api.answer = lambda asked: GOOD if asked.path == "/r" else Reply({}, 308, {"Location": "/r"})
        make(request=request).read_page({}, None)
        assert (api.asked[1].method, api.asked[1].json) == ("POST", {"a": 1})
        api.answer = lambda asked: Reply({}, 302, {"Location": "/r"})
        with pytest.raises(SourceError, match=r"302 redirects a POST"):
            make(request=request).read_page({}, None)

    def test_the_body_of_a_redirect_is_limited_too(self, api, make):
        api.answers(Reply(b"x" * 100_000, 302, {"Location": "/items"}))
        with pytest.raises(SourceError, match=r"larger than 1000 bytes"):
            make(max_response_bytes=1000).read_page({}, None)


def test_threads_of_ended_requests_leave_nothing_behind(api, make):
    api.answers(GOOD)
    before = threading.active_count()
    stream = make()
    for _ in range(50):
        stream.read_page({}, None)
    wait_until(lambda: threading.active_count() <= before + 3)
