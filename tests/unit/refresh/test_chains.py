"""A chain decides what may be asked for next and what counts."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    RepeatedPageError,
    SourceChangedError,
    SourceError,
    TokenExpiredError,
)
from airflow_provider_rfr.refresh import chains
from airflow_provider_rfr.refresh.chains import (
    Chain,
    ChainState,
    Cursor,
    FetchedPage,
    OverlapCheck,
    PartitionWork,
    Scheduler,
    _PageRequest,
)
from airflow_provider_rfr.refresh.page_rows import (
    PageRow,
    checksum_of,
    encode_records,
    encode_token,
    opening_rows,
    seen_marks,
)
from airflow_provider_rfr.streams.core import Complete, NextPage, Page
from tests.unit.messages import raises
from tests.unit.refresh.paged_sources import row_of


def token_at(position: int) -> Any:
    return None if position == 0 else position + 1


def fetched(
    request: _PageRequest,
    *,
    last: int,
    next_token: Any = "default",
    records: Sequence[Any] | None = None,
    total: int | None = None,
) -> FetchedPage:
    number = request.number
    after = NextPage(number + 1 if next_token == "default" else next_token) if number < last else Complete()
    content = [{"page": number}] if records is None else records
    return arrived(request, Page(content, after, total_pages=total, received=len(content)))


def empty(request: _PageRequest) -> FetchedPage:
    return arrived(request, Page([], Complete(), received=0, unconfirmed=True))


def arrived(request: _PageRequest, page: Page) -> FetchedPage:
    return FetchedPage(row_of(page, request.number, request.token, chain=request.chain_number), page)


def work(pages: int = 0, token: str | None = None, *, resumed: bool = False, **state: Any) -> PartitionWork:
    return PartitionWork(0, "{}", {}, Cursor(pages=pages, token=token), ChainState(**state), resumed)


def chain(on_repeated_page: str = "fail", **options: Any) -> Chain:
    return Chain(work(**options), None, on_repeated_page=on_repeated_page)


def addressable(**options: Any) -> Chain:
    return Chain(work(**options), token_at, on_repeated_page="fail")


def claim(source: Chain, window: int = 1) -> _PageRequest:
    request = source.claim(window)
    assert request is not None
    return request


def test_a_serial_chain_hands_out_one_page_at_a_time() -> None:
    subject = chain()
    first = claim(subject)
    assert (first.number, first.token) == (1, None)
    assert subject.claim(8) is None
    rows = subject.deliver(first, fetched(first, last=2))
    assert [row.page for row in rows] == [1]
    second = claim(subject, 8)
    assert (second.number, second.token) == (2, 2)
    subject.deliver(second, fetched(second, last=2))
    assert subject.complete and subject.claim(8) is None


def test_token_zero_is_a_token() -> None:
    subject = chain()
    first = claim(subject)
    subject.deliver(first, fetched(first, last=2, next_token=0))
    assert claim(subject).token == 0


def test_pages_asked_for_ahead_count_in_order_whatever_order_they_arrive_in() -> None:
    seed = 20261121
    generator = random.Random(seed)
    subject, last, rows, waiting = addressable(), 40, [], []
    while not subject.complete:
        while (request := subject.claim(8)) is not None:
            waiting.append(request)
        request = waiting.pop(generator.randrange(len(waiting)))
        rows += subject.deliver(request, fetched(request, last=last, total=last))
    assert [row.page for row in rows] == list(range(1, last + 1)), f"seed {seed}"
    assert [row.token_in for row in rows[:3]] == [None, "2", "3"]


def test_without_a_total_no_more_is_asked_for_ahead_than_was_read_before() -> None:
    subject = addressable()
    first = claim(subject, 16)
    assert subject.claim(16) is None
    subject.deliver(first, fetched(first, last=99))
    assert claim(subject, 16).number == 2
    assert subject.claim(16) is None


def test_a_page_asked_for_ahead_does_not_count_when_the_page_before_names_another_token() -> None:
    subject = addressable(pages=4, token="5")
    five, six = claim(subject, 8), claim(subject, 8)
    subject.deliver(six, fetched(six, last=99))
    rows = subject.deliver(five, fetched(five, last=99, next_token=60))
    assert [row.page for row in rows] == [5]
    assert claim(subject).token == 60


def test_an_empty_page_that_may_have_lost_its_records_is_asked_for_once_more() -> None:
    subject = addressable(pages=4, token="5")
    five = claim(subject)
    assert subject.deliver(five, empty(five)) == [] and subject.open
    again = claim(subject, 8)
    assert (again.number, again.token) == (5, 5)
    assert subject.claim(8) is None, "nothing is read ahead of it"
    rows = subject.deliver(again, fetched(again, last=9))
    assert [row.page for row in rows] == [5]
    sixth = claim(subject)
    subject.deliver(sixth, empty(sixth))
    sixth = claim(subject)
    subject.deliver(sixth, empty(sixth))
    assert subject.complete and subject.pages == 6


def test_what_a_page_was_asked_for_once_more_is_known_to_the_next_round() -> None:
    subject = addressable(pages=4, token="5")
    five = claim(subject)
    subject.deliver(five, empty(five))
    progress = subject.progress()
    assert (progress.cursor.pages, progress.state.asked) == (4, True)
    later = addressable(pages=progress.cursor.pages, token=progress.cursor.token, asked=progress.state.asked)
    again = claim(later)
    later.deliver(again, empty(again))
    assert later.complete and not later.progress().state.asked


def test_an_empty_page_after_one_that_was_not_full_is_the_end() -> None:
    subject = Chain(work(), token_at, on_repeated_page="fail", page_size=2)
    first = claim(subject)
    page = fetched(first, last=9)
    subject.deliver(first, FetchedPage(page.row, Page(page.page.records, page.page.next, received=1)))
    second = claim(subject)
    subject.deliver(second, empty(second))
    assert subject.complete


def test_an_error_beyond_the_end_is_nobodys_error() -> None:
    subject = addressable(pages=4, token="5")
    five, six = claim(subject, 8), claim(subject, 8)
    subject.deliver(six, SourceError("404"))
    subject.deliver(five, fetched(five, last=5))
    assert subject.complete and subject.error is None


def test_an_error_in_its_turn_ends_the_partition_and_keeps_the_pages_before() -> None:
    subject = addressable(pages=4, token="5")
    five, six = claim(subject, 8), claim(subject, 8)
    subject.deliver(six, SourceError("500"))
    assert subject.error is None
    assert len(subject.deliver(five, fetched(five, last=9))) == 1
    assert str(subject.error) == "500" and subject.progress().cursor.pages == 5


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("error", [SourceError("404"), TokenExpiredError("410")])
def test_an_error_of_a_page_that_was_asked_for_with_another_token_is_dropped(
    order: tuple[int, int], error: SourceError
) -> None:
    subject = addressable(pages=4, token="5")
    five, six = claim(subject, 8), claim(subject, 8)
    scheduler = Scheduler([subject], window=8, max_bytes=10**9, on_source_change="restart")
    for number in order:
        if number:
            scheduler.fail(six, error)
        else:
            scheduler.deliver(five, fetched(five, last=9, next_token={"page": 6}))
    assert subject.error is None and subject.restarts == 0
    again = claim(subject)
    assert (again.number, again.token) == (6, {"page": 6})


def read(subject: Chain, *tokens: str) -> None:
    """Pages that name these tokens as the next."""
    for token in tokens:
        request = claim(subject)
        subject.deliver(request, fetched(request, last=99, next_token=token))


def test_a_repeated_token_starts_the_chain_again_and_is_an_error_the_second_time() -> None:
    subject = chain()
    read(subject, "a", "b", "a")
    assert (subject.number, subject.pages, subject.error) == (1, 0, None)
    request = claim(subject)
    assert (request.number, request.token) == (1, None)
    subject.deliver(request, fetched(request, last=99, next_token="a"))
    read(subject, "b", "a")
    assert isinstance(subject.error, RepeatedPageError) and '"a"' in str(subject.error)


def test_a_wrong_token_that_an_earlier_attempt_kept_does_not_stop_the_refresh_for_ever() -> None:
    first = chain()
    read(first, "back-to-the-start")
    progress = first.progress()
    resumed = chain(pages=progress.cursor.pages, token=progress.cursor.token, seen=progress.state.seen)
    read(resumed, "back-to-the-start")
    assert (resumed.number, resumed.error) == (1, None)
    read(resumed, "a", "b")
    assert resumed.pages == 2


def test_a_page_with_the_same_records_is_an_error_unless_accepted() -> None:
    for accept in (False, True):
        subject = chain("accept" if accept else "fail")
        for _ in range(4):
            if (request := subject.claim(1)) is not None:
                subject.deliver(request, fetched(request, last=9, records=[{"same": 1}]))
        assert (subject.error is None) is accept


def test_empty_pages_may_follow_each_other() -> None:
    subject = chain()
    for token in "abc":
        deliver(subject, [], token)
    assert subject.error is None and subject.pages == 3


@pytest.mark.parametrize("policy", ["restart", "fail", "accept"])
def test_the_overlap_check_comes_first_and_its_policy_decides(policy: str) -> None:
    known = checksum_of(encode_records([{"page": "as it was"}]))
    subject = addressable(pages=3, token="4", overlap=OverlapCheck("3", known))
    request = claim(subject, 8)
    assert (request.number, request.token) == (0, 3)
    assert subject.claim(8) is None
    restarted = subject.check_overlap(request, Page([{"page": "changed"}], NextPage(4)), policy)
    assert restarted is (policy == "restart")
    if policy == "fail":
        assert isinstance(subject.error, SourceChangedError) and subject.claim(1) is None
        return
    after = claim(subject)
    assert (after.number, after.chain_number) == ((1, 1) if policy == "restart" else (4, 0))


def test_an_unchanged_page_lets_the_chain_go_on() -> None:
    records = [{"page": 3}]
    subject = addressable(pages=3, token="4", overlap=OverlapCheck("3", checksum_of(encode_records(records))))
    request = claim(subject)
    assert subject.check_overlap(request, Page(records, NextPage(4)), "restart") is False
    assert claim(subject).number == 4
    assert subject.progress().state.overlap is None


def test_what_arrives_for_an_older_chain_does_not_count() -> None:
    subject = chain(pages=3, token="4")
    late = claim(subject)
    subject.restart()
    assert subject.deliver(late, fetched(late, last=9)) == []
    first = claim(subject)
    assert (first.number, first.token, first.chain_number) == (1, None, 1)


def deliver(subject: Chain, records: list[Any], next_token: Any) -> list[PageRow]:
    request = claim(subject)
    return subject.deliver(request, fetched(request, last=1_000, records=records, next_token=next_token))


def test_a_page_that_repeats_the_one_before_it_may_be_the_end() -> None:
    subject = chain("end")
    deliver(subject, [{"id": 1}], "b")
    deliver(subject, [{"id": 2}], "c")
    (row,) = deliver(subject, [{"id": 2}], "d")
    assert (row.page, row.complete, row.record_count, row.records, row.token_out) == (3, True, 0, b"", None)
    assert subject.complete and subject.records == 2 and subject.restarts == 0


def test_so_may_a_page_that_names_itself_as_the_next_one_and_its_records_count() -> None:
    subject = chain("end")
    deliver(subject, [{"id": 1}], "b")
    (row,) = deliver(subject, [{"id": 2}], "b")
    assert (row.complete, row.record_count, row.token_out) == (True, 1, None)


def test_that_end_is_recognised_by_the_attempt_that_resumes_behind_the_page() -> None:
    first = chain("end")
    rows = deliver(first, [{"id": 1}], "b") + deliver(first, [{"id": 2}], "c")
    marks = seen_marks([asdict(row) for row in rows])
    subject = chain("end", pages=2, token='"c"', seen=marks)
    deliver(subject, [{"id": 2}], "d")
    assert subject.complete and subject.restarts == 0


def test_a_page_that_repeats_an_earlier_one_is_no_end() -> None:
    subject = chain("end")
    for records, token in (([{"id": 1}], "b"), ([{"id": 2}], "c"), ([{"id": 1}], "d")):
        deliver(subject, records, token)
    assert not subject.complete and subject.restarts == 1


def test_pages_that_may_repeat_may_not_repeat_for_ever() -> None:
    subject = chain("accept")
    while subject.open:
        deliver(subject, [{"same": 1}], f"t{subject.pages}")
    assert isinstance(subject.error, RepeatedPageError) and subject.pages == 101


def test_a_chain_of_empty_pages_ends_with_an_error_that_keeps_what_was_read() -> None:
    subject = Chain(work(), None, on_repeated_page="fail", max_empty_pages=3)
    deliver(subject, [{"id": 1}], "a")
    for token in "bcd":
        deliver(subject, [], token)
    assert isinstance(subject.error, SourceError) and "stop_when" in str(subject.error)
    assert subject.pages == 4 and subject.records == 1


def scheduled(subject: Chain) -> tuple[Scheduler, _PageRequest]:
    """Return a scheduler of one chain, and the request that it handed out."""
    scheduler = Scheduler([subject], window=1, max_bytes=10**9, on_source_change="restart")
    return scheduler, following(scheduler, None)


def following(scheduler: Scheduler, last: Chain | None) -> _PageRequest:
    request = scheduler.next_request(last)
    assert request is not None
    return request


@pytest.mark.parametrize("status", [400, 404, 410, 422])
def test_a_cursor_of_an_earlier_attempt_that_is_refused_starts_its_chain_again_once(status: int, caplog: Any) -> None:
    subject = chain(pages=39, token='"old"', resumed=True)
    scheduler, request = scheduled(subject)
    assert request.token == "old"
    scheduler.fail(request, SourceError("INVALID_CURSOR", status=status))
    assert subject.error is None and subject.pages == 0 and scheduler.figures.refetched == 39
    assert "probably expired" in caplog.text and "expired_token_status" in caplog.text
    again = following(scheduler, subject)
    assert (again.number, again.token) == (1, None)
    scheduler.fail(again, SourceError("still refused", status=status))
    assert isinstance(subject.error, SourceError)


@pytest.mark.parametrize(
    ("options", "status"),
    [({"resumed": True}, 403), ({"resumed": True}, 500), ({"resumed": False}, 400)],
    ids=["forbidden", "broken", "a cursor of this attempt"],
)
def test_any_other_refusal_ends_the_partition(options: dict[str, Any], status: int) -> None:
    subject = chain(pages=39, token='"old"', **options)
    scheduler, request = scheduled(subject)
    scheduler.fail(request, SourceError("refused", status=status))
    assert isinstance(subject.error, SourceError) and subject.pages == 39


def test_only_the_first_request_of_a_resumed_chain_may_have_an_expired_cursor() -> None:
    subject = chain(pages=2, token='"old"', resumed=True)
    scheduler, request = scheduled(subject)
    scheduler.deliver(request, fetched(request, last=99, next_token="new"))
    scheduler.fail(following(scheduler, subject), SourceError("refused", status=400))
    assert isinstance(subject.error, SourceError) and subject.pages == 3


def test_a_task_holds_and_asks_for_no_more_than_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "_MOST_BYTES", 350_000)
    scheduler = Scheduler([chain() for _ in range(40)], window=8, max_bytes=10**9, on_source_change="restart")
    in_flight: list[int] = []
    lock = threading.Lock()
    held = [0]

    def read() -> None:
        last = None
        while (request := scheduler.next_request(last)) is not None:
            last = request.chain
            with lock:
                in_flight.append(1)
                held.append(len(in_flight) + scheduler.waiting)
            time.sleep(0.005)
            with lock:
                in_flight.pop()
            scheduler.deliver(request, fetched(request, last=1, records=[{"text": "x" * 100_000}]))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.01)
        scheduler.take_ready()
    assert scheduler.figures.pages == 40
    assert max(held) <= chains._FIRST_PAGES


def beyond_the_end(pages: int = 3) -> tuple[Chain, list[_PageRequest]]:
    """Return a chain of full pages, and its requests for the two pages behind them."""
    subject = addressable()
    for _ in range(pages):
        request = claim(subject)
        subject.deliver(request, fetched(request, last=99))
    return subject, [claim(subject, 8) for _ in range(2)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_empty_page_behind_an_empty_one_is_the_second_answer(order: tuple[int, int]) -> None:
    subject, requests = beyond_the_end()
    rows = [row for number in order for row in subject.deliver(requests[number], empty(requests[number]))]
    assert [(row.page, row.record_count, row.complete) for row in rows] == [(4, 0, True)]
    assert subject.complete and subject.claim(8) is None


def test_while_the_page_behind_an_empty_one_is_in_flight_nothing_else_is_requested() -> None:
    subject, requests = beyond_the_end()
    assert subject.deliver(requests[0], empty(requests[0])) == []
    assert subject.claim(8) is None
    assert subject.progress().cursor.pages == 3


@pytest.mark.parametrize("behind", ["has records", "failed", "interrupted"])
def test_without_that_second_answer_an_empty_page_is_asked_for_again(behind: str) -> None:
    subject, requests = beyond_the_end()
    subject.deliver(requests[0], empty(requests[0]))
    if behind == "interrupted":
        subject.release(requests[1])
    else:
        subject.deliver(requests[1], SourceError("no") if behind == "failed" else fetched(requests[1], last=99))
    again = claim(subject)
    assert again.number == 4
    rows = subject.deliver(again, fetched(again, last=99))
    assert [row.page for row in rows] == ([4, 5] if behind == "has records" else [4])


def test_an_integer_beyond_64_bits_is_refused_in_tokens_and_slices() -> None:
    with raises(ConfigurationError):
        encode_token({"after": 2**64})
    with raises(ConfigurationError):
        list(opening_rows([("{}", {"id": 2**64})], generation=1, epoch=1))
