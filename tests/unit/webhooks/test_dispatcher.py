"""Delivery, by a real endpoint and a real store: what is retried, what is not, and what people are told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from airflow_provider_rfr.exceptions import ConfigurationError, DeliveryError
from airflow_provider_rfr.store.deliveries import Selection
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.webhooks import operations
from airflow_provider_rfr.webhooks.block import parse_triggers
from airflow_provider_rfr.webhooks.calls import ConnectionSettings
from airflow_provider_rfr.webhooks.operations import DeadLetter, DeliverySummary
from airflow_provider_rfr.webhooks.outbox import delivery_id, enqueue
from tests.soon import SOON, soon, wait_until
from tests.unit.messages import check_messages, raises
from tests.webhook_receiver import (
    FakeClock,
    Post,
    Received,
    Receiver,
    Reply,
    endpoint,
    events,
    key,
    loopback_dispatcher,
    receiver,
)

HOUR = 3600.0


def after(seconds: float) -> Callable[[Received], Reply]:
    def answer(request: Received) -> Reply:
        time.sleep(seconds)
        return Reply(200)

    return answer


# What is delivered, retried and given up (scenarios 50 to 58)


def test_a_call_that_is_answered_with_200_is_delivered(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1)
    tally = post.drain()
    assert (tally.delivered, tally.failed, tally.dead, tally.pending, tally.next_due) == (1, 0, 0, 0, None)
    (got,) = server.received
    assert got.json == {"id": delivery_id("commit-1", "hook"), "sequence": 1}
    assert (post.row().state, post.row().attempts, post.row().status) == ("delivered", 1, 200)
    assert post.drain().delivered == 0
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("answers", "attempts", "calls", "state"),
    [
        ((429, 429, 200), 3, 3, "delivered"),
        ((500, 500, 500), 2, 2, "dead"),
        ((400, 200), 3, 1, "dead"),
        ((408, 200), 3, 2, "delivered"),
        ((401, 200), 3, 1, "dead"),
        ((503, 502, 204), 3, 3, "delivered"),
        ((599, 599), 0, 1, "dead"),
        *(((status, 200), 3, 1, "dead") for status in (404, 409, 413, 422)),
    ],
)
def test_what_is_retried_and_how_often(
    post: Post, server: Receiver, answers: tuple[int, ...], attempts: int, calls: int, state: str
) -> None:
    server.answers(*answers)
    post.owe(server.url, 1, maxAttempts=attempts)
    post.drain()
    assert (len(server.received), post.row().state) == (calls, state)
    assert len(set(server.ids)) == 1


def test_the_standard_schedule_leaves_its_deliveries_pending_and_says_until_when(post: Post, server: Receiver) -> None:
    server.answers(500)
    post.owe(server.url, 1, retry={"schedule": "standard"})
    assert post.deliver().failed == 1
    post.clock.sleep(6)
    tally = post.deliver()
    assert (tally.failed, tally.pending) == (1, 1)
    assert tally.next_due.timestamp() - post.clock.now() == pytest.approx(300, rel=0.11)
    assert post.dispatcher().deliver_due(until_empty=True, patience=60).failed == 0
    post.hop()
    assert (len(server.received), post.row().state) == (10, "dead")


def test_attempts_end_with_the_time_that_they_may_take(post: Post, server: Receiver) -> None:
    server.answers(500)
    post.owe(server.url, 1, retry={"schedule": "standard", "maxElapsed": "1h"})
    post.hop()
    assert len(server.received) == 4
    check_messages(post.row().detail)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "30"},
        {"Retry-After": "0"},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000030"},
        {"X-RateLimit-Remaining": "0"},
        {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "soon"},
    ],
)
def test_a_rate_limit_that_is_told_as_403_is_waited_for(post: Post, server: Receiver, headers: dict[str, str]) -> None:
    """As GitHub does it."""
    server.answers(Reply(403, headers=headers), Reply(200))
    post.owe(server.url, 1)
    began = post.clock.now()
    assert post.drain().delivered == 1
    if "x-ratelimit-reset" in headers or headers.get("Retry-After") == "30":
        assert 30 <= post.clock.now() - began < 32


def test_a_403_that_is_no_rate_limit_is_given_up(post: Post, server: Receiver) -> None:
    server.answers(Reply(403, headers={"x-ratelimit-remaining": "7", "x-ratelimit-reset": "1700000030"}))
    post.owe(server.url, 1)
    assert post.drain().dead == 1
    assert len(server.ids) == 1


@pytest.mark.parametrize(("status", "form"), [(429, "seconds"), (503, "date")])
def test_what_a_server_asks_for_is_waited(post: Post, server: Receiver, form: str, status: int) -> None:
    when = "7" if form == "seconds" else formatdate(post.clock.now() + 7, usegmt=True)
    server.answers(Reply(status, headers={"Retry-After": when}), Reply(200))
    post.owe(server.url, 1)
    began = post.clock.now()
    post.drain()
    assert 7 <= post.clock.now() - began < 8
    assert len(server.received) == 2


def test_a_server_that_asks_for_ages_is_asked_again_within_the_hour(post: Post, server: Receiver) -> None:
    server.answers(Reply(429, headers={"Retry-After": "1000000000"}), Reply(200))
    post.owe(server.url, 1)
    began = post.clock.now()
    post.drain()
    assert HOUR <= post.clock.now() - began < 1.1 * HOUR


def test_who_is_told_to_wait_tries_nothing_else_there_meanwhile(post: Post, server: Receiver) -> None:
    server.answers(Reply(429, headers={"Retry-After": "60"}), Reply(200))
    post.owe(server.url, *range(1, 31), ordering="strict")
    tally = post.deliver()
    assert (tally.delivered, tally.failed, tally.pending, len(server.received)) == (0, 1, 30, 1)
    assert post.deliver().delivered == 0
    assert 59 <= tally.next_due.timestamp() - post.clock.now() <= 64
    assert post.drain().delivered == 30


def test_content_type_is_json_unless_the_endpoint_says_otherwise(post: Post, server: Receiver) -> None:
    post.owe(server.url, name="a")
    post.owe(server.url, name="b", headers={"content-TYPE": "text/plain"})
    post.commit(1)
    post.drain()
    assert {request.headers["content-type"] for request in server.received} == {"application/json", "text/plain"}


def test_one_trigger_that_fails_leaves_the_other_alone_and_is_told_of(post: Post, server: Receiver) -> None:
    with receiver() as broken:
        broken.answers(500)
        post.owe(server.url, name="good")
        post.owe(broken.url + "/hunter22?key=hunter22", name="slack", maxAttempts=1)
        post.commit(1)
        tally = post.drain()
    assert (tally.delivered, tally.dead, len(server.received)) == (1, 1, 1)
    error = tally.error()
    assert isinstance(error, DeliveryError)
    host = f"http://127.0.0.1:{broken.port}"
    assert str(error) == f"1 trigger(s) failed: slack ({host}/...): HTTP 500; given up after 1 attempt"


def test_a_template_that_fails_is_given_up_and_the_others_are_sent(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1, name="bad", payload={"x": "{{nope}}"})
    post.owe(server.url, name="worse", payloadTemplate='{"a": {{commit_id}}')
    post.owe(server.url, name="good")
    post.commit(1)
    tally = post.drain()
    assert (tally.delivered, tally.dead) == (1, 2)
    assert {(row.reason, row.attempts) for row in post.rows(states=["dead"])} == {("template", 1)}
    assert len(server.received) == 1


@pytest.mark.parametrize("status", [302, 304])
def test_a_redirect_is_never_delivery_and_not_repeated(post: Post, server: Receiver, status: int) -> None:
    with receiver() as other:
        server.answers(Reply(status, headers={"Location": other.url + "/hunter22"}))
        post.owe(server.url, 1)
        assert post.drain().dead == 1
        assert (len(server.received), other.received) == (1, [])
    row = post.row()
    assert (row.state, row.reason) == ("dead", "redirect")
    check_messages(row.detail, f"127.0.0.1:{other.port};")


def test_an_endpoint_that_drips_is_cut_at_its_timeout(post: Post, server: Receiver) -> None:
    def drip(sock: Any) -> None:
        for byte in b"HTTP/1.1 200 " + b"O" * 1000:
            sock.sendall(bytes([byte]))
            time.sleep(0.3)

    server.answers(Reply(raw=drip))
    post.owe(server.url, 1, timeout="1s", maxAttempts=1)
    with soon():
        assert post.drain().dead == 1
    assert post.row().reason == "timeout"


def test_a_failed_attempt_is_history_with_a_masked_answer(post: Post, server: Receiver) -> None:
    server.answers_by(lambda request: Reply(500, b"I got " + request.headers["x-key"].encode() + b" " * 5000))
    post.owe(server.url, 1, headers={"X-Key": "hunter22hunter22"}, maxAttempts=2)
    post.drain()
    first, second = operations.history(post.store, post.row().id)
    assert (first.number, second.number, first.outcome, second.outcome) == (1, 2, "retry", "dead")
    assert (first.status, first.answer.strip()) == (500, "I got ***")
    assert len(first.answer) <= 2048
    assert first.body_sha256 == second.body_sha256


# Ids, signatures, headers


def test_every_copy_has_the_same_id_and_a_signature_of_its_own(post: Post, server: Receiver) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    server.answers(500, 200)
    post.clock.time = time.time()
    post.owe(server.url, 1, signing={"secrets": [secret]}, payload={"attempt": "{{attempt}}"})
    post.drain()
    first, second = server.received
    assert first.id == second.id == delivery_id("commit-1", "hook")
    assert (first.json, second.json) == ({"attempt": 1}, {"attempt": 2})
    for request in server.received:
        Webhook(secret).verify(request.body, dict(request.headers))


def test_a_connection_of_airflow_gives_address_and_credentials(post: Post, server: Receiver) -> None:
    asked: list[str] = []

    def connections(name: str) -> ConnectionSettings:
        asked.append(name)
        base = f"http://127.0.0.1:{server.port}/base"
        return ConnectionSettings(base, "robot", "hunter22", {"X-Team": "data"})

    document = {"connection": "my_http", "payload": {}}
    post.endpoints[key()] = parse_triggers({"config": {"hook": document}}).config["hook"]
    post.commit(1, 2)
    post.drain(connections=connections)
    assert asked == ["my_http"]
    request = server.received[0]
    assert (request.path, request.headers["x-team"]) == ("/base", "data")
    assert request.headers["authorization"] == "Basic cm9ib3Q6aHVudGVyMjI="


def test_a_connection_that_can_t_be_looked_up_is_told_without_what_the_backend_says(
    post: Post, server: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    def connections(name: str):
        raise KeyError("hunter22")

    post.owe(server.url, name="good")
    block = parse_triggers({"config": {"hook": {"connection": "my_http", "payload": {}, "maxAttempts": 2}}})
    post.endpoints[key()] = block.config["hook"]
    post.commit(1)
    tally = post.drain(connections=connections)
    assert (tally.delivered, tally.dead) == (1, 1)
    assert (post.row().reason, post.row().detail) == (
        "lookup",
        "it can't be found out how to call it: KeyError; given up after 2 attempts",
    )
    assert (tally.refusals, "hunter22" in caplog.text) == ([], False)


# Endpoints: gone, resting, paused, disabled


def test_410_disables_the_endpoint_and_what_is_left_waits(post: Post, server: Receiver) -> None:
    server.answers(410, 200)
    post.owe(server.url, 1, 2, 3, ordering="strict")
    tally = post.drain()
    assert (tally.dead, tally.pending, tally.next_due) == (1, 2, None)
    assert post.row(1).reason == "gone"
    (row,) = operations.endpoints(post.store, "rfr")
    assert row.disabled_reason == "it answered 410 Gone"
    post.commit(4)
    assert post.drain().delivered == 0
    assert len(server.received) == 1
    operations.resume(post.store, [key()])
    assert post.drain().delivered == 3


def test_an_endpoint_that_is_resumed_after_a_410_stays_enabled(post: Post, server: Receiver) -> None:
    """Also if its dispatcher was busy with another endpoint all the time."""

    def disabled() -> list[str]:
        return [row.key.trigger for row in operations.endpoints(post.store, "rfr") if row.disabled_at is not None]

    def resume(request: Received) -> Reply:
        wait_until(lambda: disabled() == ["gone"])
        operations.resume(post.store, [key("gone")])
        operations.replay(post.store, Selection(trigger="gone"))
        return Reply(200)

    with receiver() as busy:
        busy.answers_by(resume)
        server.answers(410, 200)
        post.owe(busy.url, name="busy")
        post.owe(server.url, 1, name="gone")
        assert post.drain().delivered == 2
    assert disabled() == []


def test_an_endpoint_that_was_gone_is_called_at_its_new_address(post: Post, server: Receiver) -> None:
    with receiver() as old:
        old.answers(410)
        post.owe(old.url, 1, 2, ordering="strict")
        post.drain()
        post.endpoints[key()] = endpoint(old.url, ordering="strict", payload={"changed": True})
        assert post.drain().delivered == 0
        post.endpoints[key()] = endpoint(server.url, ordering="strict")
        assert post.drain().delivered == 1
        assert len(old.received) == 1


def test_an_endpoint_that_is_down_is_not_asked_once_for_each_delivery(post: Post) -> None:
    post.owe("http://127.0.0.1:1/", *range(1, 101))
    tally = post.deliver()
    assert (tally.dead, tally.pending) == (0, 100)
    assert tally.failed < 25
    assert tally.failed == sum(row.attempts for row in post.rows())


def test_an_endpoint_that_was_down_gets_everything_once_it_is_back(post: Post, server: Receiver) -> None:
    down = threading.Event()
    down.set()
    server.answers_by(lambda request: Reply(503 if down.is_set() else 200))
    post.owe(server.url, *range(1, 41), maxAttempts=20)
    for _ in range(5):
        post.deliver()
        post.clock.sleep(3)
    down.clear()
    assert post.drain().pending == 0
    assert {row.state for row in post.rows()} == {"delivered"}


def test_a_paused_endpoint_is_sent_nothing_until_it_is_resumed(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1)
    assert operations.pause(post.store, [key(), key("unknown")]) == 1
    (row,) = operations.endpoints(post.store, "rfr", "raw.orders")
    assert row.paused_at is not None
    post.commit(2)
    assert (post.drain().delivered, len(server.received)) == (0, 0)
    assert operations.resume(post.store, [key()]) == 1
    assert operations.endpoints(post.store, "rfr")[0].paused_at is None
    assert post.drain().delivered == 2


def test_an_endpoint_that_is_switched_off_keeps_what_it_is_owed(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1)
    post.endpoints[key()] = endpoint(server.url, enabled=False)
    assert post.drain().delivered == 0
    post.endpoints[key()] = endpoint(server.url)
    assert post.drain().delivered == 1


# Configuration that changed meanwhile (scenarios 45 to 47, 65, 66)


def test_a_corrected_template_header_and_address_apply_to_what_is_pending(post: Post, server: Receiver) -> None:
    post.owe("http://127.0.0.1:1/", 1, 2, maxAttempts=9)
    post.deliver()
    post.endpoints[key()] = endpoint(server.url, headers={"X-Key": "new"}, payload={"fixed": "{{sequence}}"})
    assert post.drain().delivered == 2
    assert sorted(request.json["fixed"] for request in server.received) == [1, 2]
    assert {request.headers["x-key"] for request in server.received} == {"new"}
    assert set(server.ids) == {delivery_id(f"commit-{n}", "hook") for n in (1, 2)}


def test_a_trigger_that_was_removed_is_skipped_with_one_warning_and_the_others_fire(
    post: Post, server: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    post.owe(server.url, name="kept")
    post.owe(server.url, name="removed")
    post.commit(1, 2)
    del post.endpoints[key("removed")]
    dispatcher = post.dispatcher()
    with caplog.at_level(logging.WARNING):
        assert dispatcher.deliver_due().delivered == 2
        tally = dispatcher.deliver_due()
    assert (tally.skipped, tally.error()) == (2, None)
    assert caplog.text.count("trigger removed of rfr.raw.orders was removed from the configuration") == 1
    assert {row.state for row in post.rows(trigger="removed")} == {"pending"}
    post.owe(server.url, name="removed")
    assert post.drain().delivered == 2


def test_triggers_of_other_tables_are_nobody_s_concern_here(
    post: Post, server: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    post.owe(server.url, 1, table="raw.items")
    del post.endpoints[key(table="raw.items")]
    post.owe(server.url, 2)
    assert post.drain().skipped == 0
    assert not [record for record in caplog.records if "configuration" in record.getMessage()]


def test_a_dead_letter_is_replayed_with_the_same_id_and_body(post: Post, server: Receiver) -> None:
    server.answers(400, 200)
    post.owe(server.url, 1)
    assert post.drain().dead == 1
    assert operations.replay(post.store, Selection(trigger="hook")) == [delivery_id("commit-1", "hook")]
    assert post.drain().delivered == 1
    first, second = server.received
    assert (first.id, first.body) == (second.id, second.body)
    assert [attempt.number for attempt in operations.history(post.store, first.id)] == [1, 2]


def test_tables_that_are_configured_alike_share_a_lane(post: Post, server: Receiver) -> None:
    for number, table in enumerate(("raw.a", "raw.b", "raw.c")):
        post.owe(server.url, 10 * number + 1, 10 * number + 2, table=table, ordering="strict")
    assert post.drain().delivered == 6
    by_table: dict[str, list[int]] = {}
    for request in server.received:
        by_table.setdefault(str(request.json["sequence"] // 10), []).append(request.json["sequence"])
    assert all(sequences == sorted(sequences) for sequences in by_table.values())


# Order and windows


def test_strict_order_holds_while_the_first_is_retried(post: Post, server: Receiver) -> None:
    server.answers(500, 500, 200)
    post.owe(server.url, 1, 2, 3, ordering="strict", maxAttempts=5)
    post.drain()
    assert [request.json["sequence"] for request in server.received] == [1, 1, 1, 2, 3]
    assert server.most_at_once == 1


def test_a_window_of_600_seconds(post: Post, server: Receiver) -> None:
    payload = {"commits": "{{merged_commits}}", "from": "{{flow_published_at_min}}", "to": "{{flow_published_at_max}}"}
    post.owe(server.url, 1, payload=payload, interval="600s")
    post.drain()
    post.clock.sleep(100)
    post.commit(3, 2, 4)
    tally = post.deliver()
    assert (tally.delivered, tally.pending, len(server.received)) == (0, 3, 1)
    assert tally.next_due.timestamp() - post.clock.now() == pytest.approx(500, abs=1)
    began = post.clock.now()
    assert post.drain().delivered == 1
    assert 499 <= post.clock.now() - began <= 502
    assert server.received[1].json == {"commits": 3, "from": "1970-01-01T00:00:02Z", "to": "1970-01-01T00:01:44Z"}
    post.clock.sleep(10_000)
    assert post.drain().delivered == 0
    assert {row.state for row in post.rows()} == {"delivered", "merged"}


def test_windows_are_each_table_s_and_each_trigger_s_own(post: Post, server: Receiver) -> None:
    post.owe(server.url, 1, 2, interval="600s")
    post.owe(server.url, 11, 12, table="raw.items", interval="600s")
    post.owe(server.url, name="other")
    post.commit(3)
    assert post.drain().delivered == 3
    assert len(server.received) == 3


# What people are told


def test_somebody_is_told_once_of_each_delivery_that_is_given_up(post: Post, server: Receiver) -> None:
    server.answers(400)
    post.owe(server.url, 1, 2)
    letters = post.letters()
    assert {letter.id for letter in letters} == {delivery_id(f"commit-{n}", "hook") for n in (1, 2)}
    assert (letters[0].key, letters[0].reason, letters[0].detail, letters[0].status) == (key(), "http", "HTTP 400", 400)
    assert post.letters() == []


def test_who_could_not_be_told_is_told_the_next_time(
    post: Post, server: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(dead: DeadLetter) -> None:
        raise RuntimeError("smtp password hunter22")

    server.answers(400)
    post.owe(server.url, 1)
    (raised,) = post.drain(on_dead=fails).notification_errors
    assert raised.startswith("RuntimeError (test_dispatcher.py, line ")
    assert raised in caplog.text
    assert "hunter22" not in caplog.text
    assert len(post.letters()) == 1


def test_a_letter_does_not_wait_for_a_hundred_older_ones_that_nobody_can_be_told_of(
    post: Post, server: Receiver
) -> None:
    heard: list[int] = []

    def tell(dead: DeadLetter) -> None:
        if dead.sequence <= 150:
            raise RuntimeError
        heard.append(dead.sequence)

    server.answers(400)
    post.owe(server.url, *range(1, 152))
    while (due := post.deliver(notify_later=True).next_due) is not None:
        post.clock.time = due.timestamp() + 0.001
    for _ in range(50):
        post.drain(on_dead=tell)
        if heard:
            break
    assert heard == [151]


def test_with_a_long_backlog_at_a_dead_endpoint_somebody_hears_of_it_after_a_few_tries(
    post: Post, server: Receiver
) -> None:
    tries: list[int] = []

    def told(dead: DeadLetter) -> None:
        tries.append(len(server.received))

    server.answers(503)
    post.owe(server.url, *range(1, 201))
    while not tries:
        assert len(server.received) < 100, "each of the backlog is tried, and nobody hears of any"
        tally = post.deliver(on_dead=told)
        post.clock.time = tally.next_due.timestamp()
    assert tries[0] <= 25
    assert post.clock.time - FakeClock().time < 120


def test_nobody_is_told_of_what_may_be_ignored(post: Post, server: Receiver) -> None:
    server.answers(400)
    post.owe(server.url, 1, onFailure="ignore")
    tally = post.drain(notify_later=True)
    assert (tally.dead, tally.error(), post.letters()) == (1, None, [])


def test_who_leaves_the_telling_to_others_says_so(post: Post, server: Receiver) -> None:
    server.answers(400)
    post.owe(server.url, 1)
    post.drain(notify_later=True)
    assert [letter.id for letter in post.letters()] == [delivery_id("commit-1", "hook")]
    post.commit(2)
    post.drain()
    assert post.letters() == [], "nobody asked to be told of it"


# Many at once, slow ones, and the end


def test_a_dead_and_a_slow_endpoint_hold_up_no_other(post: Post, server: Receiver) -> None:
    with receiver() as slow:
        slow.answers_by(after(0.9))
        post.owe(slow.url, name="slow", timeout="1s")
        post.owe("http://127.0.0.1:1/", name="dead")
        post.owe(server.url, name="good")
        post.commit(*range(1, 41))
        dispatcher = post.dispatcher()
        thread = threading.Thread(target=dispatcher.deliver_due)
        thread.start()
        wait_until(lambda: len(server.received) == 40 or not thread.is_alive())
        assert len(slow.received) < 40
        dispatcher.stop()
        thread.join(SOON)
        assert not thread.is_alive()
    assert {row.state for row in post.rows(trigger="good")} == {"delivered"}
    assert {row.lease_until for row in post.rows()} == {None}, "what was not begun is given back"


def test_a_strict_order_is_not_slow_while_others_are(post: Post, server: Receiver) -> None:
    over = threading.Event()
    with receiver() as slow:
        slow.answers_by(lambda request: Reply(200 if over.wait(2 * SOON) else 500))
        post.owe(slow.url, name="slow", timeout="5m")
        post.owe(server.url, name="strict", ordering="strict")
        post.commit(*range(1, 41))
        dispatcher = post.dispatcher()
        thread = threading.Thread(target=dispatcher.deliver_due)
        thread.start()
        wait_until(lambda: len(server.received) == 40 or not thread.is_alive())
        dispatcher.stop()
        over.set()
        thread.join(SOON)
    assert [request.json["sequence"] for request in server.received] == list(range(1, 41))


def test_an_endpoint_that_takes_its_time_is_called_by_several_threads(post: Post, server: Receiver) -> None:
    server.answers_by(after(0.1))
    post.owe(server.url, *range(1, 31))
    assert post.drain().delivered == 30
    assert 2 <= server.most_at_once <= 4


def test_four_dispatchers_at_once_call_once_for_each_delivery(tmp_path: Path, server: Receiver) -> None:
    first = open_store(f"sqlite:///{tmp_path}/control.db")
    endpoints = {key(name): endpoint(server.url, name) for name in "abc"}
    enqueue(first, events(*range(1, 41)), endpoints)
    tallies: list[DeliverySummary] = []

    def work() -> None:
        tallies.append(loopback_dispatcher(open_store(f"sqlite:///{tmp_path}/control.db"), endpoints).deliver_due())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    loopback_dispatcher(first, endpoints).deliver_due(until_empty=True)
    assert len(server.ids) == len(set(server.ids)) == 120
    assert not sum(tally.lost for tally in tallies)


def test_a_claim_that_waited_too_long_is_given_back_and_claimed_anew(post: Post, server: Receiver) -> None:
    server.answers_by(after(1.0))
    post.owe(server.url, *range(1, 17), timeout="30s")
    tally = post.deliver(lease_slack=1.0)
    assert (tally.delivered, tally.lost) == (16, 0)
    assert tally.unsent > 0
    assert len(server.ids) == len(set(server.ids)) == 16
    assert {row.attempts for row in post.rows()} == {1}


def test_a_lease_without_slack_is_refused(post: Post) -> None:
    with raises(ConfigurationError):
        post.dispatcher(lease_slack=0)


def test_a_go_ends_with_an_error_of_the_store_and_the_rows_come_again(
    post: Post, server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    post.owe(server.url, 1)
    real, calls = ControlStore.run, []

    def failing(self: ControlStore, work: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the store is gone")
        return real(self, work, **options)

    monkeypatch.setattr(ControlStore, "run", failing)
    with raises(RuntimeError):
        post.deliver()
    monkeypatch.undo()
    post.clock.sleep(60)
    assert post.deliver().delivered == 1
    assert len(set(server.ids)) == 1


def test_there_is_nothing_to_do_for_no_endpoints(post: Post) -> None:
    assert loopback_dispatcher(post.store, {}).deliver_due(until_empty=True) == DeliverySummary()


def test_a_receiver_that_is_asked_by_two_names_gets_what_each_is_owed(post: Post, server: Receiver) -> None:
    requests: list[Received] = server.received
    post.owe(server.url, name="x", when={"collections": ["orders"]})
    post.owe(server.url, name="y", when={"collections": ["items"]})
    post.commit(1, collections=["orders"])
    post.commit(2, collections=["items"])
    post.commit(3, collections=["orders", "items"])
    assert post.drain().delivered == 4
    assert sorted(request.json["sequence"] for request in requests) == [1, 2, 3, 3]
