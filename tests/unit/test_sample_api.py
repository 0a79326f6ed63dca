"""The sample API is the ruler by which others are measured, so it is measured first."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson
import pytest

from airflow_provider_rfr.sample_api import SampleApi, Sizes, canonical, checksum
from tests.soon import wait_until

pytestmark = pytest.mark.test

SIZES = Sizes(records=230, customers=10, partitions=3, pages=4, page_records=25)


@pytest.fixture(scope="module")
def running() -> Iterator[SampleApi]:
    with SampleApi(SIZES, warm=True) as api:
        yield api


@pytest.fixture
def api(running: SampleApi) -> SampleApi:
    running.reset()
    return running


@dataclass
class Answer:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


def get(api: SampleApi, path: str, headers: dict[str, str] | None = None, timeout: float = 10, **query: Any) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=timeout)
    try:
        connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def test_two_processes_serve_the_same_bytes(api: SampleApi) -> None:
    with SampleApi(SIZES) as other:
        for path in ("/customers", "/orders", "/partitions/1/items", "/customers/4/orders"):
            assert get(api, path).body == get(other, path).body


def test_a_row_of_a_typed_table_equals_its_record() -> None:
    record = {"id": 1, "coupon": None, "placed_at": "2026-03-01T10:00:00Z", "tags": ["a"], "ship_to": {"zip": "1"}}
    placed_at = datetime(2026, 3, 1, 10, tzinfo=timezone.utc)
    row = {"id": 1, "placed_at": placed_at, "tags": ["a"], "ship_to": {"zip": "1", "express": None}, "_rfr_epoch": 4}
    assert canonical(record) == canonical(row)
    assert checksum([record]) == checksum([row])
    assert checksum([record, record]) != checksum([record])


def test_wrong_requests_are_refused_with_a_reason(api: SampleApi) -> None:
    unknown = ["/nothing", "/customers/99/orders", "/partitions/3/items", "/_admin/nothing", "/_admin/truth/nothing"]
    wrong = ["/orders?offset=x", "/customers?page=0", "/customers/1/orders?cursor=garbage"]
    answers = {path: get(api, path) for path in (*unknown, *wrong)}
    assert {path: answer.status for path, answer in answers.items()} == {
        **dict.fromkeys(unknown, 404),
        **dict.fromkeys(wrong, 400),
    }
    assert all(answer.json["error"] for answer in answers.values())


def test_the_key_is_wanted_in_a_header() -> None:
    headers = [{}, {"X-Api-Key": "wrong"}, {"X-Api-Key": "k1"}, {"Authorization": "Bearer k1"}]
    with SampleApi(SIZES, api_key="k1") as closed:
        assert [get(closed, "/orders", header).status for header in headers] == [401, 401, 200, 200]
        assert closed.counts()["statuses"] == {"401": 2, "200": 2}


class TestCounting:
    def test_a_page_served_twice_counts_once_more_whatever_its_spelling(self, api: SampleApi) -> None:
        for query in ({"page": 1}, {}, {"page": 2}):
            get(api, "/customers", page_size=5, **query)
        counts = api.counts(detail=True)
        expected = {"requests": 3, "served": 3, "pages": 2, "once": 1, "repeated": 1, "refetched": 1}
        assert {name: counts[name] for name in expected} == expected
        assert list(counts["repeated_pages"].values()) == [2]

    def test_errors_and_broken_answers_are_no_pages(self, api: SampleApi) -> None:
        api.set_faults({"kind": "error", "path": "/orders"}, {"kind": "truncate", "path": "/invoices"})
        get(api, "/orders")
        with pytest.raises(http.client.IncompleteRead):
            get(api, "/invoices")
        assert api.counts()["pages"] == 0
        assert [entry["complete"] for entry in api.log()] == [True, False]

    def test_counts_and_log_are_told_by_path_and_since_a_moment(self, api: SampleApi) -> None:
        get(api, "/orders")
        since = api.counts()["last_sequence"]
        get(api, "/orders")
        get(api, "/customers", page=3)
        assert api.counts(since=since)["pages"] == 2
        assert api.counts(since=since)["refetched"] == 0
        assert api.counts(path="/orders")["refetched"] == 1
        (entry,) = api.log(since=since, path="/cust*")
        assert (entry["query"], entry["status"], entry["complete"]) == ({"page": "3"}, 200, True)


class TestFaults:
    def test_429_comes_after_so_many_requests_with_the_wait_in_seconds_or_as_a_date(self, api: SampleApi) -> None:
        api.set_faults({"kind": "rate_limit", "path": "/orders", "after": 2, "times": 2, "retry_after": 3})
        answers = [get(api, "/orders") for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 200, 429, 429, 200]
        assert answers[2].headers["Retry-After"] == "3"
        api.set_faults({"kind": "rate_limit", "retry_after": 30, "as_date": True})
        moment = parsedate_to_datetime(get(api, "/orders").headers["Retry-After"])
        assert 20 < (moment - datetime.now(timezone.utc)).total_seconds() <= 30

    def test_an_error_hits_only_the_requests_it_names(self, api: SampleApi) -> None:
        api.set_faults({"kind": "error", "status": 503, "path": "/customers", "query": {"page": 2}, "times": 1})
        assert [get(api, "/customers", page=page).status for page in (1, 2, 2)] == [200, 503, 200]
        assert api.faults()[0]["used"] == 1

    def test_a_dripping_body_arrives_whole_but_slowly(self, api: SampleApi) -> None:
        whole = get(api, "/orders").body
        api.set_faults({"kind": "drip", "chunk": len(whole) // 4, "seconds": 0.03})
        begin = time.monotonic()
        assert get(api, "/orders").body == whole
        assert time.monotonic() - begin >= 0.09

    def test_a_held_request_is_answered_when_the_faults_are_set_again(self, api: SampleApi) -> None:
        api.set_faults({"kind": "hold"})
        with pytest.raises(TimeoutError):
            get(api, "/orders", timeout=0.2)
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(get, api, "/orders")
            wait_until(lambda: len(api.log()) == 2)
            api.set_faults()
            assert pending.result().status == 200
        assert (api.counts()["requests"], api.counts()["served"]) == (2, 1)

    def test_broken_answers_are_broken(self, api: SampleApi) -> None:
        """Campaigns would pass as well if a fault did nothing."""
        first = get(api, "/customers/1/orders", limit=3).json["next_cursor"]
        api.set_faults({"kind": "repeat_cursor"})
        assert get(api, "/customers/1/orders", limit=3, cursor=first).json["next_cursor"] == first
        api.set_faults({"kind": "repeat_page", "path": "/partitions/1/items", "query": {"page": 3}})
        pages = [get(api, "/partitions/1/items", page=page, page_size=10).json for page in (2, 3)]
        assert pages[1]["data"] == pages[0]["data"]
        api.set_faults({"kind": "redirect", "location": "http://elsewhere.example/"})
        assert get(api, "/orders").headers["Location"] == "http://elsewhere.example/"
        api.set_faults({"kind": "malformed"})
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(get(api, "/orders").body)
        for fault in ({"kind": "disconnect"}, {"kind": "hang", "seconds": 0.05}):
            api.set_faults(fault)
            with pytest.raises((ConnectionError, http.client.BadStatusLine)):
                get(api, "/orders")

    def test_deleted_records_move_the_later_ones_forward(self, api: SampleApi) -> None:
        api.set_faults({"kind": "shrink", "path": "/orders", "after": 1, "records": 10})
        get(api, "/orders", limit=20)
        page = get(api, "/orders", offset=20, limit=20).json
        assert page["data"][0]["id"] == 31
        assert page["total"] == api.truth("/orders")["count"] == 220

    def test_parents_can_come_go_and_change_places(self, api: SampleApi) -> None:
        get(api, "/customers/2/orders")
        api.set_faults({"kind": "change_parents", "path": "/customers", "add": 1, "remove": [2], "reverse": True})
        ids = [record["id"] for record in get(api, "/customers").json["data"]]
        assert ids == [11, 10, 9, 8, 7, 6, 5, 4, 3, 1]
        assert get(api, "/customers/2/orders").status == 404

    def test_shipments_change_while_they_are_read(self, api: SampleApi) -> None:
        api.set_faults({"kind": "change_shipments", "path": "/shipments", "after": 1, "remove": [7], "add": 1})
        for _ in range(2):
            page = get(api, "/shipments", updated_since="2026-01-01T00:00:00Z").json
        assert [(record["id"], record["is_deleted"]) for record in page["data"]] == [(7, True), (231, False)]

    @pytest.mark.parametrize("fault", [{"kind": "nonsense"}, {"path": "/"}, {"kind": "error", "tiems": 1}, 7])
    def test_a_wrong_fault_is_refused_and_the_present_ones_stay(self, api: SampleApi, fault: Any) -> None:
        api.set_faults({"kind": "error"})
        with pytest.raises(ValueError, match=r"fault|nonsense"):
            api.set_faults(fault)
        assert [one["kind"] for one in api.faults()] == ["error"]


class TestShipments:
    def pages(self, api: SampleApi, limit: int, **query: str) -> Iterator[list[dict[str, Any]]]:
        while True:
            page = get(api, "/shipments", limit=limit, **query).json
            yield page["data"]
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    def test_they_come_in_the_order_of_their_changes_within_a_range(self, api: SampleApi) -> None:
        records = [record for page in self.pages(api, 50) for record in page]
        assert checksum(records) == api.truth("/shipments")["checksum"]
        times = [record["updated_at"] for record in records]
        assert times == sorted(times)
        # The lower bound belongs to the range, and the upper one does not.
        bounds = {"updated_since": times[10], "updated_before": times[20]}
        assert [record for page in self.pages(api, 3, **bounds) for record in page] == records[10:20]
        assert get(api, "/shipments", updated_since="monday").status == 400
        assert get(api, "/shipments", cursor="x").status == 400

    def test_changes_move_a_record_to_the_end_and_a_deleted_one_stays_as_a_tombstone(self, api: SampleApi) -> None:
        before = api.records("/shipments")
        at = datetime(2026, 2, 3, 4, 5, 6, 700, tzinfo=timezone.utc)
        api.change_shipments(edit=[3, 4], add=1, remove=[5], at=at)
        api.change_shipments(edit=[4, 5], remove=[6], at=at + timedelta(seconds=1))
        [changed] = self.pages(api, 100, updated_since="2026-01-01T00:00:00Z")
        assert [(record["id"], record["revision"], record["is_deleted"]) for record in changed] == [
            (3, 1, False),
            (231, 0, False),
            (4, 2, False),
            (5, 2, False),
            (6, 1, True),
        ]
        assert changed[0]["updated_at"] == "2026-02-03T04:05:06.000700Z"
        after = api.records("/shipments")
        assert after.keys() == (before.keys() | {231}) - {6}
        assert {number for number in after if after[number] != before.get(number)} == {3, 4, 5, 231}
        with pytest.raises(ValueError, match="nothing exists at /shipments/232"):
            api.change_shipments(edit=[232])

    def test_a_record_that_changes_between_two_pages_comes_again_and_none_is_missing(self, api: SampleApi) -> None:
        pages = self.pages(api, 100)
        first = next(pages)
        api.change_shipments(edit=[first[0]["id"], first[99]["id"]])
        ids = [record["id"] for page in [first, *pages] for record in page]
        assert sorted(ids) == sorted([*range(1, 231), first[0]["id"], first[99]["id"]])


def test_a_taken_port_is_an_error_at_once(api: SampleApi, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="at its start"):
        SampleApi(SIZES, port=api.port).start()
    expected = f"The sample API can't listen on 127.0.0.1:{api.port}: Address already in use; choose another --port"
    assert capfd.readouterr().err.splitlines() == [expected]


def test_the_diary_outlives_a_kill_and_goes_on(tmp_path: Path) -> None:
    diary = tmp_path / "diary.jsonl"
    change = {"kind": "edit", "collection": "/partitions/items"}
    for _ in range(2):
        with SampleApi(SIZES, diary=diary, changes=[change]) as killed:
            pid = killed.pid
            get(killed, "/partitions/0/items", page=1, page_size=3)
            killed.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    lines = [orjson.loads(line) for line in diary.read_text().splitlines()]
    assert [line["records"] for line in lines] == [[[1, 1], [2, 1], [3, 1]]] * 2
    assert lines[0]["path"] == "/partitions/0/items"
