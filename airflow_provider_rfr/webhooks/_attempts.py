"""One attempt at a delivery: rendered, signed, sent, judged; and when it is repeated."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urljoin

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.http.client import Answer, Client, NoAnswer, Request, retry_after
from airflow_provider_rfr.http.redaction import host_of
from airflow_provider_rfr.http.sockets import Deadline, DeadlineExceeded
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store.claims import AttemptOutcome, Claim, Result
from airflow_provider_rfr.store.deliveries import EndpointKey
from airflow_provider_rfr.store.engine import Clock
from airflow_provider_rfr.webhooks._templates import content_type, render_body, template_variables
from airflow_provider_rfr.webhooks.calls import Call, webhook_headers
from airflow_provider_rfr.webhooks.endpoint import Endpoint, OnFailure

log = logging.getLogger(__name__)

_MINUTE, _HOUR = 60.0, 3600.0
_SCHEDULES: Final[Mapping[str, tuple[float, ...]]] = {
    "quick": (1.0, 2.0, 4.0, 8.0, 16.0, 30.0),
    # The waits of Standard Webhooks.
    "standard": (5.0, 5 * _MINUTE, 30 * _MINUTE, *(hours * _HOUR for hours in (2, 5, 10, 14, 20, 24))),
}
_LONGEST_WAIT: Final = 24 * _HOUR
_LONGEST_ASKED: Final = {"quick": _HOUR, "standard": _LONGEST_WAIT}
"""Seconds that are waited at most because the server asked for more."""
_JITTER = 0.2


def scheduled_wait(schedule: str, failures: int) -> float:
    """Return the seconds to wait after so many failures (from 1); the last wait of a schedule is repeated."""
    waits = _SCHEDULES[schedule]
    return waits[min(max(1, failures), len(waits)) - 1]


def wait_before(
    schedule: str, failures: int, asked: float | None = None, *, chance: Callable[[], float] = random.random
) -> float:
    """Return the seconds until the next attempt.

    The wait of the schedule is spread by a fifth, and is never less than the server asked for.
    """
    wait = scheduled_wait(schedule, failures) * (1 + _JITTER * (chance() - 0.5))
    if asked is not None:
        # A little later than asked: otherwise all that were asked the same come at once.
        wait = max(wait, min(asked, _LONGEST_ASKED[schedule]) * (1 + 0.05 * chance()))
    return min(wait, _LONGEST_WAIT)


def attempt(call: Call, claim: Claim, key: EndpointKey, client: Client, clock: Clock) -> Result:
    """Make the attempt that was claimed; never raise, and keep secrets out of the result and the log."""
    try:
        event = CommitEvent.from_json(claim.event)
    except (ValueError, TypeError, OverflowError):
        at, problem = int(clock.now() * 1000), "the event in the control store can't be read"
        result = Result(claim, AttemptOutcome.DEAD, "event", problem, at=at)
    else:
        result = call_endpoint(call, event, claim, client, clock, trigger_name=key.trigger)
    return with_next_attempt(result, key, call.endpoint, clock, host=call.host)


def call_endpoint(
    call: Call, event: CommitEvent, claim: Claim, client: Client, clock: Clock, *, trigger_name: str
) -> Result:
    """Render, sign and send an event once; never raise. A token is fetched within the same timeout."""
    began, at = time.monotonic(), clock.now()
    body: bytes | None = None
    answer: Answer | NoAnswer | None = None
    try:
        variables = template_variables(
            event, delivery_id=claim.delivery_id, attempt=claim.attempt, trigger_name=trigger_name, headers=call.exposed
        )
        body = render_body(call.endpoint, variables)
        answer = _exchange(call, claim.delivery_id, body, client, int(at))
        result = _judge(call, claim, answer, at)
    except TemplateError as error:
        result = Result(claim, AttemptOutcome.DEAD, "template", str(error))
    except Exception as error:  # noqa: BLE001 - of one delivery, which others must not suffer for; its text may be secret
        result = Result(claim, AttemptOutcome.RETRY, "internal", f"it could not be sent: {type(error).__name__}")
    return replace(
        result,
        detail=None if result.detail is None else call.masker.one_line(result.detail),
        answer=call.masker.kept(answer.body) if isinstance(answer, Answer) else None,
        body_sha256=None if body is None else hashlib.sha256(body).hexdigest(),
        at=int(at * 1000),
        milliseconds=int((time.monotonic() - began) * 1000),
    )


def _exchange(call: Call, delivery_id: str, body: bytes, client: Client, timestamp: int) -> Answer | NoAnswer:
    """Send the body with all its headers; a token that is refused is fetched again, once."""
    deadline = Deadline(float(call.endpoint.timeout))
    headers = {"Content-Type": content_type(call.endpoint), **call.headers}
    signing = call.endpoint.signing
    headers |= webhook_headers(signing.keys if signing is not None else (), delivery_id, timestamp, body)
    token: str | None = None
    refused: str | None = None
    while True:
        if call.tokens is not None:
            try:
                found = call.tokens.token(client, deadline, refused)
            except DeadlineExceeded:
                return NoAnswer("timeout", f"{call.host} gave no complete answer within {deadline.seconds:g} s")
            if isinstance(found, NoAnswer):
                return found
            token = found
            headers["Authorization"] = f"Bearer {token}"
        request = Request(call.endpoint.method, call.url, headers, body, call.verify)
        answer = client.send(request, deadline, call.guard)
        is_refused = isinstance(answer, Answer) and answer.status == 401
        if call.tokens is None or refused is not None or not is_refused:
            return answer
        refused = token


def _judge(call: Call, claim: Claim, answer: Answer | NoAnswer, now: float) -> Result:
    """Judge an answer. A redirect is never delivery, and not repeated. Repeated are failures that may pass: no answer,
    408, 429, from 500 on, and a 403 that is a rate limit, as GitHub has it.

    :param now: seconds since 1970, for dates in ``Retry-After``
    """
    if isinstance(answer, NoAnswer):
        return Result(
            claim, AttemptOutcome.DEAD if answer.permanent else AttemptOutcome.RETRY, answer.reason, answer.detail
        )
    status = answer.status
    is_redirect = 300 <= status < 400
    if not is_redirect and call.endpoint.success.accepts(status, answer.body):
        return Result(claim, AttemptOutcome.DELIVERED, status=status)
    if status == 410:
        return Result(claim, AttemptOutcome.DEAD, "gone", f"HTTP {status}: {call.host} wants no more calls", status)
    asked_wait = _asked_wait(answer, now)
    asked = int(min(asked_wait or 0.0, _LONGEST_ASKED[call.endpoint.retry.schedule.value]) * 1000)
    if is_redirect:
        try:
            target = host_of(urljoin(call.url, answer.headers.get("Location", "")))
        except ValueError:
            target = "elsewhere"
        problem = f"HTTP {status} leads to {target}; redirects are not followed"
        return Result(claim, AttemptOutcome.DEAD, "redirect", problem, status)
    is_limit = status in (408, 429) or (status == 403 and asked_wait is not None)
    if 400 <= status < 500 and not is_limit:
        return Result(claim, AttemptOutcome.DEAD, "http", f"HTTP {status}", status)
    if 200 <= status < 300:
        problem = f"HTTP {status}, but the answer is not what counts as success"
        return Result(claim, AttemptOutcome.RETRY, "answer", problem, status)
    return Result(claim, AttemptOutcome.RETRY, "http", f"HTTP {status}", status, asked=asked)


def _asked_wait(answer: Answer, now: float) -> float | None:
    """Return the seconds that the server asked to wait, by ``Retry-After`` or by a rate limit that is used up."""
    asked = retry_after(answer.headers.get("Retry-After"), now) or None
    if asked is not None or answer.headers.get("x-ratelimit-remaining", "").strip() != "0":
        return asked
    reset = answer.headers.get("x-ratelimit-reset", "").strip()
    # Seconds since 1970. No limit that means anything is longer than a number of ten digits says.
    return max(0.0, int(reset) - now) if reset.isascii() and reset.isdigit() and len(reset) <= 10 else 0.0


def with_next_attempt(result: Result, key: EndpointKey, endpoint: Endpoint, clock: Clock, *, host: str) -> Result:
    """Return a failure with the wait before its next attempt, or with the end of attempts; ``host`` is for the log."""
    if result.ending is AttemptOutcome.DELIVERED:
        return result
    claim = result.claim
    log.warning("%s: attempt %s at %s failed: %s", key, claim.attempt, host, result.detail)
    if result.ending is AttemptOutcome.RETRY:
        failures, limit = claim.failures + 1, endpoint.retry.max_elapsed
        wait = wait_before(endpoint.retry.schedule.value, failures, result.asked / 1000)
        is_late = limit is not None and clock.now() + wait - claim.started_at / 1000 > limit
        if failures < endpoint.attempts and not is_late:
            return replace(result, wait=int(wait * 1000))
        result = replace(
            result, ending=AttemptOutcome.DEAD, detail=f"{result.detail}; given up after {failures} attempts"
        )
    is_ignored = endpoint.on_failure is OnFailure.IGNORE
    return replace(result, on_failure=endpoint.on_failure.value, notified=is_ignored)
