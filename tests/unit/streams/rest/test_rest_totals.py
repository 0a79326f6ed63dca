"""The API's own count of pages and records: where it ends a partition, and where the records contradict it."""

from __future__ import annotations

from typing import Any

import pytest
from rest_api import QUICK, Asked, Reply, ids

from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.paged import iter_pages
from airflow_provider_rfr.streams.rest import RestStream
from tests.unit.messages import raises


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


def test_a_number_of_pages_is_believed_and_costs_no_request(api, make):
    totals(api, 30, lambda start, count: 3)
    assert read_ids(make(paginator=BY_PAGES)) == list(range(1, 31))
    assert len(api.asked) == 3


def test_a_number_of_pages_that_leaves_out_the_page_with_the_records_ends_nothing(api, make):
    totals(api, 55, lambda start, count: 0)
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
    with raises(SourceError):
        read_ids(make(paginator=BY_PAGE))


@both_kinds
@pytest.mark.parametrize("beyond", [{"total": 30}, {"data": None, "total": 30}], ids=["absent", "null"])
def test_so_may_a_page_with_the_count_alone_behind_it(api, make, paginator, beyond):
    totals(api, 30, lambda start, count: 30, beyond=beyond)
    assert read_ids(make(paginator=paginator)) == list(range(1, 31))


@both_kinds
@pytest.mark.parametrize(
    "beyond",
    [
        {"message": "down"},
        {"error": "down"},
        {"success": False, "data": []},
        Reply({}, 403),
        Reply({}, 503),
        Reply(raw=lambda out: None),
    ],
    ids=["no records", "an error", "no success", "403", "503", "no answer"],
)
def test_any_other_error_behind_it_is_no_end(api, make, paginator, beyond):
    totals(api, 30, lambda start, count: 30, beyond=beyond)
    with pytest.raises(SourceError):
        read_ids(make(paginator=paginator))


def test_so_does_a_page_behind_it_that_a_rule_ignores(api, make):
    totals(api, 30, lambda start, count: 30, beyond=Reply({}, 404))
    stream = make(paginator=BY_PAGE, error_handler={**QUICK, "rules": [{"status": 404, "action": "IGNORE"}]})
    pages = list(iter_pages(stream))
    assert [len(page.records) for page in pages] == [10, 10, 10, 0]
    assert not any(page.skipped for page in pages)


@pytest.mark.parametrize("status", [401, 429])
def test_a_refusal_of_the_credentials_or_the_rate_is_no_end(api, make, status):
    totals(api, 30, lambda start, count: 30, beyond=Reply({}, status))
    with pytest.raises(SourceError, match=str(status)):
        read_ids(make(paginator=BY_PAGE, error_handler={**QUICK, "max_rate_limit_wait": 0}))


def with_page_5(api: Any, answers: list[Any]) -> None:
    """Have 60 records and a total of 20. Page 5 has these answers first."""

    def page(asked: Asked) -> Any:
        if asked.page == 5 and answers:
            return answers.pop(0)
        numbers = range(asked.page * 10 - 9, asked.page * 10 + 1) if asked.page <= 6 else []
        return {"data": [{"id": number} for number in numbers], "total": 20}

    api.answer = page


@pytest.mark.parametrize(
    "refusal", [Reply({}, 404), Reply({}, 503), Reply(raw=lambda out: None)], ids=["404", "503", "no answer"]
)
def test_once_the_total_was_wrong_an_error_is_no_end(api, make, refusal):
    with_page_5(api, [refusal] * 10)
    with pytest.raises(SourceError):
        read_ids(make(paginator=BY_PAGE))


@pytest.mark.parametrize("empty", [{"data": [], "total": 20}, Reply(None, 204)], ids=["empty", "204"])
def test_once_the_total_was_wrong_an_empty_page_is_asked_for_again(api, make, empty):
    with_page_5(api, [empty])
    assert read_ids(make(paginator=BY_PAGE)) == list(range(1, 61))


@pytest.mark.parametrize(
    ("total", "refused"), [(20, 404), (40, 500)], ids=["behind other records", "behind the last page"]
)
def test_an_ignored_error_is_a_skipped_page_where_it_does_not_say_that_there_is_none(api, make, total, refused):
    with_page_5(api, [Reply({}, refused)])
    answer = api.answer
    api.answer = lambda asked: {**page, "total": total} if isinstance(page := answer(asked), dict) else page
    stream = make(paginator=BY_PAGE, error_handler={**QUICK, "rules": [{"status": refused, "action": "IGNORE"}]})
    pages = list(iter_pages(stream))
    assert [len(page.records) for page in pages if not page.skipped] == [10, 10, 10, 10, 10, 0]
    assert len(pages) == 7


@pytest.mark.parametrize("count", [23, 35])
def test_records_that_are_added_while_they_are_read_are_followed_by_a_refusal(api, make, count):
    def page(asked: Asked) -> Any:
        total = 20 if asked.page <= 2 else count
        numbers = range(asked.page * 10 - 9, min(asked.page * 10, total) + 1)
        return {"data": [{"id": number} for number in numbers], "total": total} if numbers else Reply({}, 404)

    api.answer = page
    assert read_ids(make(paginator=BY_PAGE)) == list(range(1, count + 1))


def test_a_last_page_that_comes_again_is_recognised_by_its_keys(api, make):
    clock = iter(range(1_000))

    def page(asked: Asked) -> Any:
        first = min(asked.page, 2) * 10 - 9
        records = [{"id": number, "age": next(clock)} for number in range(first, first + 10)]
        return {"data": records, "total": 20}

    api.answer = page
    assert read_ids(make(paginator=BY_PAGE, primary_key="id")) == list(range(1, 21))
    assert len(api.asked) == 3


@pytest.mark.parametrize("empty", [{"data": [], "total": 20}, Reply(None, 204)], ids=["empty", "204"])
def test_a_number_of_pages_is_believed_however_many_of_them_are_empty(api, make, empty):
    def page(asked: Asked) -> Any:
        if 5 <= asked.page <= 11:
            return empty
        numbers = range(10) if asked.page <= 20 else ()
        return {"data": [{"id": asked.page * 10 + number} for number in numbers], "total": 20}

    api.answer = page
    assert len(read_ids(make(paginator=BY_PAGES))) == 130
