"""The API's own count of pages and records: where it ends a partition, and where the records contradict it."""

from __future__ import annotations

from typing import Any

import pytest
from rest_api import Asked, Reply, ids

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.paged import iter_pages
from airflow_provider_rfr.streams.rest import RestStream


def read_ids(stream: RestStream) -> list[Any]:
    return ids(stream.read_records())


def totals(api: Any, count: int, total: Any, *, size: int = 10, beyond: Any = None) -> None:
    """``count`` records in pages of ``size``; ``total`` maps page number and records of the page to the API's count."""

    def page(asked: Asked) -> Any:
        start = int(asked.query["offset"]) if "offset" in asked.query else (asked.page - 1) * size
        numbers = list(range(start + 1, min(start + size, count) + 1))
        if not numbers and beyond is not None:
            return beyond
        return {"data": [{"id": number} for number in numbers], "total": total(start, len(numbers))}

    api.answer = page


BY_PAGE = {"type": "page_number", "page_size": 10, "total": {"path": "total"}}
BY_OFFSET = {"type": "offset", "page_size": 10, "total": {"path": "total"}}
BY_PAGES = {"type": "page_number", "page_size": 10, "total": {"path": "total", "of": "pages"}}
both_kinds = pytest.mark.parametrize("paginator", [BY_PAGE, BY_OFFSET], ids=["pages", "offsets"])


@both_kinds
@pytest.mark.parametrize(
    "total",
    [
        pytest.param(lambda start, count: 30, id="an estimate that is too low"),
        pytest.param(lambda start, count: 55 - start, id="what is left"),
        pytest.param(lambda start, count: max(0, 45 - start), id="what is left after the page"),
        pytest.param(lambda start, count: count, id="the records of the page"),
        pytest.param(lambda start, count: 0, id="always nothing"),
    ],
)
def test_a_total_that_the_records_contradict_ends_nothing(api, make, paginator, total, caplog):
    totals(api, 55, total)
    assert read_ids(make(paginator=paginator)) == list(range(1, 56))
    assert caplog.text.count("by the API's own count") == 1


def test_a_number_of_pages_that_is_too_low_ends_nothing(api, make):
    totals(api, 55, lambda start, count: 3)
    assert read_ids(make(paginator=BY_PAGES)) == list(range(1, 56))


@both_kinds
@pytest.mark.parametrize(
    "beyond",
    [None, Reply(None, 204), Reply({"code": "no such page"}, 400), Reply(None, 404), Reply({}, 422), Reply({}, 416)],
    ids=["empty", "204", "400", "404", "422", "416"],
)
def test_a_full_last_page_costs_one_request_which_may_be_refused(api, make, paginator, beyond, caplog):
    totals(api, 30, lambda start, count: 30, beyond=beyond)
    assert read_ids(make(paginator=paginator)) == list(range(1, 31))
    assert len(api.asked) == 4 and "own count" not in caplog.text


def test_a_server_that_sends_its_last_page_again_for_the_one_behind_it_doubles_nothing(api, make):
    last = {"data": [{"id": number} for number in range(21, 31)], "total": 30}
    totals(api, 30, lambda start, count: 30, beyond=last)
    assert read_ids(make(paginator=BY_PAGE)) == list(range(1, 31))
    assert len(api.asked) == 4


def test_a_last_page_that_is_not_full_costs_no_request(api, make):
    totals(api, 25, lambda start, count: 25)
    assert read_ids(make(paginator=BY_PAGE)) == list(range(1, 26))
    assert len(api.asked) == 3


def test_an_api_that_hides_what_its_total_counts_is_asked_for_a_handful_of_empty_pages(api, make):
    totals(api, 50, lambda start, count: 3289)
    pages = list(iter_pages(make(paginator=BY_PAGE)))
    assert sum(len(page.records) for page in pages) == 50 and pages[4].promised == 3289
    assert len(api.asked) <= 5 + 8


def test_a_few_empty_pages_within_the_total_lose_nothing(api, make):
    hidden = {3, 4, 5}

    def page(asked: Asked) -> Any:
        numbers = range(asked.page * 10 - 9, asked.page * 10 + 1) if asked.page not in hidden else []
        return {"data": [{"id": number} for number in numbers if asked.page <= 8], "total": 80}

    api.answer = page
    stream = make(paginator=BY_PAGE)
    assert len(read_ids(stream)) == 50
    # By the token of a page in the middle, any other process continues.
    assert len([*iter_pages(stream, None, {"page": 5, "empty": 2})]) == 5


def test_a_refusal_of_any_other_page_is_an_error(api, make):
    totals(api, 55, lambda start, count: 55, beyond=None)
    answer = api.answer
    api.answer = lambda asked: Reply({}, 404) if asked.page == 3 else answer(asked)
    with pytest.raises(SourceError, match="404"):
        read_ids(make(paginator=BY_PAGE))
