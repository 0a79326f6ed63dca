"""What is done about errors: rules, retries, backoff, rate limits, expired tokens, ignored pages."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from email.utils import formatdate

import pytest
from rest_api import QUICK, CountingLimiter, Reply, ids

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    RateLimitedError,
    ReadInterrupted,
    SourceError,
    TokenExpiredError,
)
from airflow_provider_rfr.streams.core import Complete, NextPage, ReadContext
from airflow_provider_rfr.streams.rest._errors import (
    ConstantBackoff,
    ExponentialBackoff,
    ResetTimeBackoff,
    RetryAfterBackoff,
    seconds_to_wait,
)
from tests.soon import SOON, soon
from tests.unit.messages import raises

GOOD = {"data": [{"id": 1}]}
NUMBERS = {"type": "page_number", "page_size": 1}


def rules(*items, **settings):
    return {**QUICK, "rules": list(items), **settings}


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 508, 418])
def test_server_errors_and_unknown_ones_are_tried_again(api, make, status):
    api.answers(Reply({}, status), Reply({}, status), GOOD)
    assert ids(make().read_page({}, None).records) == [1]


def test_five_retries_are_six_requests_by_default(api, make):
    api.answers(Reply({"why": "broken"}, 500))
    with raises(SourceError) as error:
        make().read_page({}, None)
    assert len(api.asked) == 6
    assert (error.value.status, error.value.request) == (500, "GET /items")


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}])
@pytest.mark.parametrize("status", [400, 401, 404, 405, 410])
def test_what_a_repetition_can_t_help_fails_at_once(api, make, status, headers):
    api.answers(Reply({}, status, headers))
    with pytest.raises(SourceError) as error:
        make().read_page({}, None)
    assert (error.value.status, len(api.asked)) == (status, 1)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_have_an_error_of_their_own(api, make, status):
    api.answers(Reply({"error": "go away"}, status))
    with raises(AuthenticationError):
        make().read_page({}, None)
    assert len(api.asked) == 1


def test_time_runs_out_before_a_wait_that_can_t_be_afforded(api, make):
    api.answers(Reply({}, 500))
    handler = {"max_time": 0.5, "backoff": [{"type": "constant", "seconds": 300}]}
    with soon(), raises(SourceError):
        make(error_handler=handler).read_page({}, None)


def test_rate_limits_don_t_eat_the_retry_budget(api, make):
    api.answers(*[Reply({}, 429)] * 10, GOOD)
    limiter = CountingLimiter()
    stream = make(error_handler={**QUICK, "max_retries": 1}, context=ReadContext(limiter=limiter))
    assert ids(stream.read_page({}, None).records) == [1]
    assert limiter.acquired == 11
    assert limiter.penalties == [0.01] * 10


def test_errors_among_rate_limits_are_counted_alone(api, make):
    api.answers(Reply({}, 429), Reply({}, 500), Reply({}, 429), Reply({}, 500), GOOD)
    assert ids(make(error_handler={**QUICK, "max_retries": 2}).read_page({}, None).records) == [1]


def test_a_longer_wait_than_the_refresh_may_spend_is_an_error_with_that_wait(api, make):
    api.answers(Reply({}, 429, {"Retry-After": "7200"}))
    with raises(RateLimitedError) as error:
        make(error_handler={}).read_page({}, None)
    assert error.value.retry_after == 7200
    assert len(api.asked) == 1


def test_retry_after_is_obeyed_in_seconds(api, make):
    api.answers(Reply({}, 429, {"Retry-After": "0.3"}), GOOD)
    began = time.monotonic()
    make(error_handler={}).read_page({}, None)
    assert 0.3 <= time.monotonic() - began < SOON


class TestAnErrorWithRetryAfter:
    """It counts as a wait, as a rate limit does, whatever its status."""

    @pytest.mark.parametrize("status", [202, 403, 408, 429, 500, 502, 503, 504, 529])
    def test_costs_no_retry_and_slows_every_reader_down(self, api, make, status):
        body = {"message": "You have exceeded a secondary rate limit"} if status == 403 else {}
        api.answers(*[Reply(body, status, {"Retry-After": "0.01"})] * 8, GOOD)
        limiter = CountingLimiter()
        stream = make(error_handler={"max_retries": 0}, context=ReadContext(limiter=limiter))
        assert ids(stream.read_page({}, None).records) == [1]
        assert limiter.penalties == [0.01] * 8

    @pytest.mark.parametrize(
        ("body", "headers"),
        [
            ({"error": {"errors": [{"reason": "userRateLimitExceeded"}]}}, {}),
            ({"code": "REQUEST_LIMIT_EXCEEDED"}, {}),
            ({"message": "Too many requests"}, {}),
            ({"message": "Forbidden"}, {"X-RateLimit-Remaining": "0"}),
            ({"message": "Forbidden"}, {"ratelimit-remaining": "0"}),
        ],
    )
    def test_is_a_rate_limit_with_403_if_its_text_or_headers_say_so(self, api, make, body, headers):
        api.answers(Reply(body, 403, {"Retry-After": "0.01", **headers}), GOOD)
        assert ids(make(error_handler={"max_retries": 0}).read_page({}, None).records) == [1]

    @pytest.mark.parametrize("headers", [{}, {"X-RateLimit-Remaining": "41"}])
    def test_is_a_refusal_with_403_otherwise_and_names_the_rule_that_waits(self, api, make, headers):
        reply = Reply({"error": "forbidden"}, 403, {"Retry-After": "0.01", **headers})
        api.answers(reply, reply, GOOD)
        remedy = r"does not accept the credentials: .*forbidden.*Retry-After: .*{status: 403, action: RATE_LIMITED}"
        with pytest.raises(AuthenticationError, match=remedy):
            make().read_page({}, None)
        assert len(api.asked) == 1
        handler = rules({"status": 403, "action": "RATE_LIMITED"})
        assert ids(make(error_handler=handler).read_page({}, None).records) == [1]

    @pytest.mark.parametrize(
        ("records", "body"),
        [
            ({"path": "data"}, {"status": "partial", "data": [{"id": 1}]}),
            ({"path": ""}, [{"id": 1}]),
            ({"path": "", "format": "jsonl"}, b'{"id": 1}\n{"id": 1}\n'),
        ],
    )
    def test_is_a_page_with_202_and_records(self, api, make, records, body):
        api.answers(Reply(body, 202, {"Retry-After": "0.01"}))
        page = make(records=records, error_handler={"max_rate_limit_wait": 0}).read_page({}, None)
        assert set(ids(page.records)) == {1}

    @pytest.mark.parametrize(
        ("records", "body"),
        [
            ({"path": "data"}, b""),
            ({"path": "data"}, {"data": []}),
            ({"path": "data"}, {"data": {}, "status": "pending"}),
            ({"path": ""}, {"status": "pending"}),
            ({"path": "", "format": "jsonl"}, {"status": "pending"}),
            ({"path": "", "format": "csv"}, {"status": "pending"}),
        ],
    )
    def test_is_waited_for_with_202_without_records(self, api, make, records, body):
        good = {"csv": b"id\n1\n", "jsonl": b'{"id": 1}\n'}.get(records.get("format", ""), [{"id": 1}])
        api.answers(Reply(body, 202, {"Retry-After": "0.01"}), {"data": good} if records["path"] else Reply(good))
        page = make(records=records, error_handler={"max_retries": 0}).read_page({}, None)
        assert [int(number) for number in ids(page.records)] == [1]

    @pytest.mark.parametrize("status", [429, 503])
    def test_is_waited_for_no_longer_than_max_rate_limit_wait(self, api, make, status):
        api.answers(Reply({}, status, {"Retry-After": "0.02"}))
        with pytest.raises(RateLimitedError, match=r"max_rate_limit_wait is 0 s") as error:
            make(error_handler={"max_rate_limit_wait": 0.05}).read_page({}, None)
        assert (error.value.status, len(api.asked)) == (status, 3)

    def test_is_an_error_where_a_rule_says_so(self, api, make):
        api.answers(Reply({}, 503, {"Retry-After": "0.01"}))
        with pytest.raises(SourceError, match=r"gave up after 3 requests"):
            make(error_handler=rules({"status": 503, "action": "RETRY"}, max_retries=2)).read_page({}, None)

    @pytest.mark.parametrize("status", [503, 403])
    def test_is_as_without_it_where_the_header_says_nothing_usable(self, api, make, status):
        api.answers(Reply({}, status, {"Retry-After": "soon"}))
        with pytest.raises(SourceError):
            make(error_handler={**QUICK, "max_retries": 2}).read_page({}, None)
        assert len(api.asked) == {503: 3, 403: 1}[status]


class TestBackoff:
    def test_a_header_that_says_at_once_is_believed_less_and_less(self):
        past = formatdate(time.time() - 60, usegmt=True)
        for text in (past, "0", "-5"):
            waits = [seconds_to_wait((), n, {"Retry-After": text}) for n in range(1, 30)]
            assert waits[0] == 0.05
            assert waits == sorted(waits)
            assert (sum(waits[:10]) < 6, waits[-1]) == (True, 60)

    @pytest.mark.parametrize("text", ["soon", "", "nan", "inf"])
    def test_a_header_that_says_nothing_usable_leaves_it_to_the_next_strategy(self, text):
        seven = ConstantBackoff(type="constant", seconds=7)
        assert seconds_to_wait([seven], 1, {"Retry-After": text}) == 7
        assert seconds_to_wait([ResetTimeBackoff(type="reset_time", header="R"), seven], 1, {"R": text}) == 7
        assert 0.5 <= seconds_to_wait((), 1, {"Retry-After": text}) <= 1

    def test_a_declared_wait_never_undercuts_what_the_api_asks_for(self):
        short, long = (ConstantBackoff(type="constant", seconds=seconds) for seconds in (1.0, 100.0))
        assert seconds_to_wait([short], 1, {"Retry-After": "20"}) == 20
        assert seconds_to_wait([long], 1, {"Retry-After": "20"}) == 100

    def test_a_reset_time_counts_from_now_and_a_small_one_is_the_seconds_that_are_left(self):
        soon = pytest.approx(1000, abs=SOON)
        seconds = ResetTimeBackoff(type="reset_time", header="R")
        milliseconds = ResetTimeBackoff(type="reset_time", header="R", unit="milliseconds")
        assert seconds_to_wait([seconds], 1, {"R": str(time.time() + 1000)}) == soon
        assert seconds_to_wait([milliseconds], 1, {"R": str((time.time() + 1000) * 1000)}) == soon
        assert seconds_to_wait([seconds], 1, {}) <= 1
        assert seconds_to_wait([seconds], 1, {"R": "3"}) == 3
        assert seconds_to_wait([milliseconds], 1, {"R": "2500"}) == 2.5
        assert seconds_to_wait([seconds], 1, {"R": "0"}) == 0.05

    @pytest.mark.parametrize(
        "form", ["%a, %d %b %Y %H:%M:%S GMT", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S.%f%z", "%Y-%m-%d %H:%M:%S"]
    )
    @pytest.mark.parametrize("kind", [ResetTimeBackoff, RetryAfterBackoff])
    def test_a_reset_time_may_be_a_date(self, form, kind):
        text = (datetime.now(timezone.utc) + timedelta(seconds=1000)).strftime(form)
        strategy = kind(type="reset_time" if kind is ResetTimeBackoff else "retry_after", header="R")
        assert seconds_to_wait([strategy], 1, {"R": text}) == pytest.approx(1000, abs=SOON)

    def test_exponential_waits_grow_to_their_limit_and_jitter_shortens_them_at_most_by_half(self):
        plain = ExponentialBackoff(type="exponential", initial=1, multiplier=2, max=60, jitter=False)
        assert [seconds_to_wait([plain], n, {}) for n in (1, 2, 3, 7, 5000)] == [1, 2, 4, 60, 60]
        spread = plain.model_copy(update={"jitter": True})
        waits = [seconds_to_wait([spread], 3, {}) for _ in range(200)]
        assert all(2 <= wait <= 4 for wait in waits)
        assert max(waits) - min(waits) > 0.5

    def test_a_rule_s_own_backoff_comes_before_the_handler_s(self, api, make):
        api.answers(Reply({}, 503), GOOD)
        rule = {"status": 503, "action": "RETRY", "backoff": [{"type": "constant", "seconds": 0.01}]}
        handler = {"rules": [rule], "backoff": [{"type": "constant", "seconds": 600}]}
        with soon():
            make(error_handler=handler).read_page({}, None)


def test_a_wait_ends_when_the_reader_is_stopped(api, make):
    api.answers(Reply({}, 429, {"Retry-After": "600"}))
    stop = threading.Event()
    stream = make(error_handler={}, context=ReadContext(stop=stop))
    threading.Timer(0.2, stop.set).start()
    with soon(), pytest.raises(ReadInterrupted):
        stream.read_page({}, None)


class TestRules:
    def test_the_first_rule_that_matches_decides(self, api, make):
        api.answers(Reply({"code": 7}, 403), GOOD)
        handler = rules(
            {"status": 403, "predicate": "response.code == 8", "action": "FAIL"},
            {"status": 403, "predicate": "{{ response.code == 7 }}", "action": "RATE_LIMITED"},
            {"status": "4xx", "action": "IGNORE"},
        )
        assert ids(make(error_handler=handler).read_page({}, None).records) == [1]

    def test_an_error_with_status_200_is_recognised_by_its_text(self, api, make):
        api.answers({"data": [], "errors": ["quota exceeded"]})
        handler = rules({"text": "quota exceeded", "action": "FAIL", "message": "the daily quota is used up"})
        with pytest.raises(SourceError, match=r"the daily quota is used up"):
            make(error_handler=handler).read_page({}, None)

    def test_a_predicate_that_can_t_be_told_does_not_match(self, api, make):
        api.answers(Reply(b"<html>", 500), GOOD)
        handler = rules({"predicate": "response.error.code == 1", "action": "FAIL"})
        assert ids(make(error_handler=handler).read_page({}, None).records) == [1]

    def test_an_error_can_be_a_success(self, api, make):
        api.answers(Reply(GOOD, 404))
        assert ids(make(error_handler=rules({"status": 404, "action": "SUCCESS"})).read_page({}, None).records) == [1]


class TestAnErrorBesideRecords:
    ERRORS = (
        {"error": {"code": 7, "message": "the shard is down"}},
        {"errors": [{"message": "the shard is down"}]},
        {"error": "the shard is down"},
        {"errors": {"detail": ["", "the shard is down"]}},
    )

    @pytest.mark.parametrize("error", ERRORS)
    def test_or_rather_beside_none_is_no_end_but_an_error(self, api, make, error):
        api.answer = lambda asked: GOOD if asked.page < 3 else {"data": [], **error}
        with pytest.raises(SourceError, match=r"no records and an error, in errors?: .*the shard is down.*error_keys"):
            list(make(paginator=NUMBERS).read_records())
        assert len(api.asked) == 2 + 6

    @pytest.mark.parametrize(
        "flag", [{"success": False}, {"success": 0}, {"ok": False}, {"status": "error"}, {"status": "fail"}]
    )
    @pytest.mark.parametrize("records", [{"path": "data"}, {"path": "data", "on_missing": "empty"}])
    def test_may_be_said_by_a_flag_with_the_message_beside_it(self, api, make, flag, records):
        body = {**flag, "message": "the quota is used up", **({} if "on_missing" in records else {"data": []})}
        api.answer = lambda asked: GOOD if asked.page < 3 else body
        (name,) = flag
        with pytest.raises(SourceError, match=rf"no records and an error, in {name}: .*the quota is used up"):
            list(make(records=records, paginator=NUMBERS).read_records())
        ended = make(records=records, paginator=NUMBERS, error_handler={**QUICK, "error_keys": []})
        assert ids(ended.read_records()) == [1, 1]
        ended = make(records=records, paginator=NUMBERS, error_handler=rules({"text": "used up", "action": "END"}))
        assert ids(ended.read_records()) == [1, 1]

    @pytest.mark.parametrize("path", ["data", "data.*.row"])
    @pytest.mark.parametrize(
        "rest",
        [
            *({"success": True}, {"ok": None}, {"status": "ok"}, {"status": [1]}, {"status": 200}),
            # A status that repeats a filter.
            *({"status": word, "page": 1} for word in ("error", "fail", "failure", "failed")),
            *({"error": empty, "errors": empty} for empty in (None, False, 0, "", " ", [], {}, [None], 0.0)),
            *({"errors": empty} for empty in ({"code": 0, "message": ""}, {"items": []})),
        ],
    )
    def test_is_said_by_nothing_else(self, api, make, path, rest):
        api.answers({"data": [], **rest})
        assert make(records={"path": path}, paginator=NUMBERS).read_page({}, None).next == Complete()

    @pytest.mark.parametrize("rest", [{}, {"data": None}, {"data": [], "msg": "the quota is used up"}])
    def test_is_said_by_a_status_without_a_list_or_with_a_message(self, api, make, rest):
        api.answers({"status": "failed", **rest})
        with pytest.raises(SourceError, match=r"no records and an error, in status: "):
            make(records={"path": "data", "on_missing": "empty"}, paginator=NUMBERS).read_page({}, None)

    def test_is_said_by_no_flag_where_there_are_records(self, api, make, caplog):
        api.answers({**GOOD, "success": False})
        assert ids(make(paginator=NUMBERS).read_page({}, None).records) == [1]
        assert caplog.text == ""

    @pytest.mark.parametrize("rest", [{}, {"data": None}, {"data": "none"}, {"ok": False}])
    def test_is_the_error_where_there_is_no_place_of_records(self, api, make, rest):
        api.answers({"errors": [{"message": "Throttled"}], **rest})
        with pytest.raises(SourceError, match=r'no records and an error, in errors: .*"Throttled".*gave up after 2'):
            make(error_handler={**QUICK, "max_retries": 1}).read_page({}, None)

    def test_is_asked_for_again_as_it_may_pass(self, api, make):
        api.answers({"data": [], "error": "busy"}, GOOD)
        assert ids(make().read_page({}, None).records) == [1]

    def test_leaves_the_records_and_is_logged_once(self, api, make, caplog):
        api.answers({**GOOD, "errors": [{"message": "one field is null"}]})
        stream = make(paginator=NUMBERS)
        assert [ids(stream.read_page({}, n).records) for n in (1, 2)] == [[1], [1]]
        assert caplog.text.count("records are taken from an answer with an error, in errors: ") == 1
        assert "one field is null" in caplog.text

    def test_may_have_another_place_or_none(self, api, make):
        api.answers({"data": [], "meta": {"fault": "down"}, "error": "no more"})
        fault = {**QUICK, "error_keys": ["meta.fault"], "max_retries": 0}
        with pytest.raises(SourceError, match=r'in meta\.fault: \["down"\]'):
            make(error_handler=fault).read_page({}, None)
        assert list(make(error_handler={**QUICK, "error_keys": []}).read_page({}, None).records) == []

    def test_is_left_to_a_rule_that_matches(self, api, make):
        api.answers({"data": [], "error": "no such parent"})
        handler = rules({"predicate": "response.error == 'no such parent'", "action": "SUCCESS"})
        assert make(error_handler=handler).read_page({}, None).next == Complete()

    def test_is_a_field_where_the_answer_itself_is_the_record_and_records_where_they_are_read(self, api, make, caplog):
        api.answers({"id": 1, "error": "failed"})
        assert make(records={"path": ""}).read_page({}, None).records == [{"id": 1, "error": "failed"}]
        api.answers({"errors": [{"id": 2}]})
        assert ids(make(records={"path": "errors"}).read_page({}, None).records) == [2]
        assert "with an error" not in caplog.text

    def test_names_no_secret(self, api, make):
        api.answers({"data": [], "error": "the key s3cretK3y is unknown"})
        with pytest.raises(SourceError) as error:
            make(error_handler={**QUICK, "max_retries": 0}, secrets={"key": "s3cretK3y"}).read_page({}, None)
        assert "s3cretK3y" not in str(error.value) and "the key *** is unknown" in str(error.value)


class TestExpiredTokens:
    CURSOR = {"type": "cursor", "cursor": {"path": "next"}}

    def test_a_declared_status_means_expired_where_a_token_was_sent(self, api, make):
        api.answers(Reply({"e": "cursor expired"}, 400))
        stream = make(paginator=self.CURSOR, error_handler={"expired_token_status": [400, 410]})
        with pytest.raises(TokenExpiredError, match=r"cursor expired"):
            stream.read_page({}, "old")
        with pytest.raises(SourceError) as error:
            stream.read_page({}, None)
        assert type(error.value) is SourceError

    def test_410_means_that_by_default_for_cursors_and_not_for_page_numbers(self, api, make):
        api.answers(Reply({}, 410))
        with pytest.raises(TokenExpiredError):
            make(paginator=self.CURSOR).read_page({}, "old")
        with pytest.raises(SourceError) as error:
            make(paginator=NUMBERS).read_page({}, 2)
        assert type(error.value) is SourceError


class TestIgnoredPages:
    IGNORE = rules({"status": 404, "action": "IGNORE"})

    @pytest.mark.parametrize(
        ("condition", "gone"),
        [
            ({"status": 404}, Reply({"error": "gone"}, 404)),
            ({"status": 200, "text": "gone"}, Reply({"data": [], "error": "gone"})),
            ({"status": 200, "predicate": "response.error == 'gone'"}, Reply({"data": [], "error": "gone"})),
        ],
    )
    def test_an_ignored_page_is_reported_and_the_next_ones_are_read(self, api, make, condition, gone):
        api.pages(3, 12)
        answer = api.answer
        api.answer = lambda asked: gone if asked.page == 3 else answer(asked)
        handler = rules({**condition, "action": "IGNORE"})
        stream = make(paginator={"type": "page_number", "page_size": 3}, error_handler=handler)
        page = stream.read_page({}, 3)
        assert (list(page.records), page.next, page.status) == ([], NextPage(4), gone.status)
        assert '"error": "gone"' in page.skipped
        assert ids(stream.read_records()) == [1, 2, 3, 4, 5, 6, 10, 11, 12]
        cursor = make(paginator=TestExpiredTokens.CURSOR, error_handler=handler)
        api.answers(gone)
        first = cursor.read_page({}, None)
        assert (first.next, bool(first.skipped)) == (Complete(), True)
        with pytest.raises(SourceError, match=rf"the next one can't be known: {gone.status}"):
            cursor.read_page({}, "c2")

    def test_offsets_go_on_by_the_page_size(self, api, make):
        api.answers(Reply({}, 404))
        stream = make(paginator={"type": "offset", "page_size": 10}, error_handler=self.IGNORE)
        assert stream.read_page({}, 20).next == NextPage(30)

    def test_an_api_that_answers_404_beyond_its_end_is_not_asked_for_ever(self, api, make):
        api.answer = lambda asked: GOOD if asked.page < 3 else Reply({}, 404)
        stream = make(paginator=NUMBERS, error_handler={**self.IGNORE, "max_skipped_pages": 20})
        with pytest.raises(SourceError, match=r"20 pages in a row were ignored.*END"):
            list(stream.read_records())
        assert len(api.asked) == 2 + 21
