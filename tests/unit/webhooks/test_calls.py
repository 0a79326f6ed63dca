"""Calls: when they are repeated, and signatures, checked by an implementation that is not ours."""

from __future__ import annotations

import base64
import json
import os
import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from airflow_provider_rfr.http.client import retry_after
from airflow_provider_rfr.store.claims import AttemptOutcome, Claim, Result
from airflow_provider_rfr.webhooks._fields import signing_key
from airflow_provider_rfr.webhooks.calls import _LONGEST_WAIT, scheduled_wait, wait_before, webhook_headers
from airflow_provider_rfr.webhooks.dispatcher import CircuitBreaker

NOW = 1_700_000_000.0
HOUR = 3600.0


def test_the_schedules_double_up_to_half_a_minute_and_go_on_for_days() -> None:
    assert [scheduled_wait("quick", n) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    waits = [scheduled_wait("standard", n) for n in range(1, 11)]
    assert waits == [5, 300, 1800, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR, 24 * HOUR]


def test_waits_are_spread_by_a_fifth() -> None:
    assert wait_before("quick", 3, chance=lambda: 0.0) == pytest.approx(3.6)
    assert wait_before("quick", 3, chance=lambda: 1.0) == pytest.approx(4.4)
    assert len({wait_before("quick", 3) for _ in range(20)}) > 10


def test_retry_after_in_seconds_and_as_a_date() -> None:
    assert retry_after("7", NOW) == 7
    assert retry_after(" 2.5 ", NOW) == 2.5
    assert retry_after(formatdate(NOW + 90, usegmt=True), NOW) == pytest.approx(90)
    assert retry_after("Wed, 15 Nov 2023 00:13:20 +0100", NOW) == pytest.approx(3600)
    assert retry_after("2023-11-14T23:13:20Z", NOW) == pytest.approx(3600)


@pytest.mark.parametrize("text", ["Tue Nov 14 22:15:00 2023", "Tue, 14 Nov 2023 22:15:00 -0000"])
def test_a_date_without_a_zone_is_in_utc_wherever_we_are(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert retry_after(text, NOW) == pytest.approx(100)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", " ", "-5", "0", "nan", "inf", "-inf", "1e999", "soon", "1,5", "\x00", "9" * 5000),
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Thu, 99 Foo 2023 99:99:99 GMT",
        "Tue, 14 Nov 99999 00:00:00 GMT",
    ],
)
def test_a_retry_after_that_can_t_be_meant_asks_for_nothing(text: str | None) -> None:
    assert not retry_after(text, NOW)


@pytest.mark.parametrize(("schedule", "longest"), [("quick", HOUR), ("standard", 24 * HOUR)])
def test_what_is_asked_for_is_honoured_and_capped(schedule: str, longest: float) -> None:
    assert 7 <= wait_before(schedule, 1, 7.0) <= 7.35
    assert longest <= wait_before(schedule, 1, 1e9) <= min(longest * 1.05, _LONGEST_WAIT)
    assert wait_before(schedule, 4, 0.001) >= {"quick": 7.2, "standard": 1.8 * HOUR}[schedule]


@given(st.text(max_size=60) | st.floats().map(str) | st.integers().map(str))
def test_no_retry_after_breaks_anything(text: str) -> None:
    asked = retry_after(text, NOW)
    assert asked is None or asked >= 0
    assert 0 < wait_before("quick", 1, asked or None) <= _LONGEST_WAIT


@given(st.integers(min_value=1, max_value=10**9), st.sampled_from(["quick", "standard"]))
def test_every_wait_is_bounded(failures: int, schedule: str) -> None:
    assert 0 < wait_before(schedule, failures, 1e12) <= _LONGEST_WAIT


def test_an_endpoint_that_failed_thrice_rests_and_then_longer() -> None:
    claim = Claim("d", 1, "{}", 1, 0, 1, "me", 0)
    breaker, opened = CircuitBreaker(), []
    for _ in range(9):
        breaker = breaker.after([Result(claim, AttemptOutcome.RETRY, "timeout")])
        opened.append((breaker.open_ms, breaker.is_open, breaker.needs_probe))
    assert [ms / 1000 for ms, _, _ in opened] == [0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert [state[1:] for state in opened] == [(False, False)] * 2 + [(True, True)] * 7
    closed = breaker.after([Result(claim, AttemptOutcome.DELIVERED)])
    assert (closed.is_open, closed.needs_probe, closed.failures) == (False, False, 0)


@pytest.mark.parametrize("status", [429, 403, 503])
def test_an_endpoint_that_asks_to_wait_gets_no_other_delivery_meanwhile(status: int) -> None:
    claim = Claim("d", 1, "{}", 1, 0, 1, "me", 0)
    limited = Result(claim, AttemptOutcome.RETRY, "http", status=status, asked=60_000)
    assert CircuitBreaker().after([limited]).open_ms == 60_000


# Signatures


def new_secret(size: int = 32) -> str:
    return "whsec_" + base64.b64encode(os.urandom(size)).decode()


def keys(*secrets: str) -> list[bytes]:
    return [signing_key(SecretStr(secret)) for secret in secrets]


@pytest.mark.parametrize("size", [24, 32, 64])
def test_an_independent_verifier_accepts_the_signature(size: int) -> None:
    secret, body = new_secret(size), json.dumps({"collections": ["a", "ü", "😀"]}).encode()
    headers = webhook_headers(keys(secret), "a" * 32, int(time.time()), body)
    assert Webhook(secret).verify(body, headers) == json.loads(body)


def test_each_of_several_secrets_signs_so_that_one_can_be_replaced() -> None:
    old, new = new_secret(), new_secret()
    headers = webhook_headers(keys(new, old), "id", int(time.time()), b"{}")
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        Webhook(secret).verify(b"{}", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(b"{}", headers)


@pytest.mark.parametrize("change", ["body", "webhook-id", "webhook-timestamp"])
def test_what_is_changed_on_the_way_is_not_accepted(change: str) -> None:
    secret, body, now = new_secret(), b'{"a":1}', int(time.time())
    headers = webhook_headers(keys(secret), "id", now, body)
    if change == "body":
        body = b'{"a":2}'
    else:
        headers[change] = {"webhook-id": "other", "webhook-timestamp": str(now + 1)}[change]
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body, headers)


def test_without_secrets_there_is_an_id_and_a_time_all_the_same() -> None:
    assert webhook_headers((), "id", 1_700_000_000, b"{}") == {"webhook-id": "id", "webhook-timestamp": "1700000000"}
