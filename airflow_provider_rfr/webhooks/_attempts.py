"""One attempt at a delivery: rendered, signed, sent, judged; and when it is repeated."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urljoin

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.http.client import Answer, Client, NoAnswer, Request, host_of, retry_after
from airflow_provider_rfr.http.sockets import Deadline, DeadlineExceeded
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store.claims import Claim, Ending, Result
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
    "standard": (
        *(5.0, 5 * _MINUTE, 30 * _MINUTE),
        *(hours * _HOUR for hours in (2, 5, 10, 14, 20, 24)),
    ),
}
_LONGEST_WAIT: Final = 24 * _HOUR
_LONGEST_ASKED: Final = {"quick": _HOUR, "standard": _LONGEST_WAIT}
"""Seconds that are waited at most because the server asked for more."""

_JITTER = 0.2


def scheduled_wait(schedule: str, failures: int) -> float:
    """Seconds to wait after so many failures (from 1); the last wait of a schedule is repeated."""
    waits = _SCHEDULES[schedule]
    return waits[min(max(1, failures), len(waits)) - 1]


def wait_before(
    schedule: str, failures: int, asked: float | None = None, *, chance: Callable[[], float] = random.random
) -> float:
    """Seconds until the next attempt: by the schedule, spread by a fifth, and never less than was asked for.

    :param failures: attempts that failed, from 1
    :param asked: by the server, see :func:`_asked_wait`
    """
    wait = scheduled_wait(schedule, failures) * (1 + _JITTER * (chance() - 0.5))
    if asked is not None:
        # A little later than asked: otherwise all that were asked the same come at once.
        wait = max(wait, min(asked, _LONGEST_ASKED[schedule]) * (1 + 0.05 * chance()))
    return min(wait, _LONGEST_WAIT)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call of an endpoint ended; nothing of it is secret.

    :ivar ending: ``RETRY`` for what may be repeated; whether it is, the delivery's budget decides
    :ivar reason: of a failure, one word
    :ivar detail: ... and for people
    :ivar asked: seconds that the server asked to wait
    :ivar answer: at most 2 KB, masked
    :ivar at: when the call began, in seconds since 1970
    """

    ending: Ending
    reason: str | None = None
    detail: str | None = None
    status: int | None = None
    asked: float | None = None
    answer: str | None = None
    body_sha256: str | None = None
    at: float = 0.0
    milliseconds: int = 0


def attempt(call: Call, claim: Claim, key: EndpointKey, client: Client, clock: Clock) -> Result:
    """Make the attempt that was claimed; never raises, and nothing of the result or the log is secret."""
    try:
        event = CommitEvent.from_json(claim.event)
    except (ValueError, TypeError, OverflowError):
        outcome = Outcome(Ending.DEAD, "event", "the event in the control store can't be read", at=clock.now())
    else:
        outcome = call_endpoint(
            call, event, claim.delivery_id, client, clock, trigger_name=key.trigger, number=claim.attempt
        )
    return result_of(outcome, claim, key, call.endpoint, clock, host=call.host)


def call_endpoint(
    call: Call,
    event: CommitEvent,
    delivery_id: str,
    client: Client,
    clock: Clock,
    *,
    trigger_name: str,
    number: int = 1,
) -> Outcome:
    """Render, sign and send an event once; never raises. A token is fetched within the same timeout.

    :param number: of the attempt, from 1
    """
    began, at = time.monotonic(), clock.now()
    body: bytes | None = None
    answer: Answer | NoAnswer | None = None
    try:
        variables = template_variables(
            event, delivery_id=delivery_id, attempt=number, trigger_name=trigger_name, headers=call.exposed
        )
        body = render_body(call.endpoint, variables)
        answer = _exchange(call, delivery_id, body, client, int(at))
        outcome = _judge(call, answer, at)
    except TemplateError as error:
        outcome = Outcome(Ending.DEAD, "template", str(error))
    except Exception as error:  # noqa: BLE001 - of one delivery, which others must not suffer for; its text may be secret
        outcome = Outcome(Ending.RETRY, "internal", f"it could not be sent: {type(error).__name__}")
    return replace(
        outcome,
        detail=None if outcome.detail is None else call.masker.one_line(outcome.detail),
        answer=call.masker.kept(answer.body) if isinstance(answer, Answer) else None,
        body_sha256=None if body is None else hashlib.sha256(body).hexdigest(),
        at=at,
        milliseconds=int((time.monotonic() - began) * 1000),
    )


def _exchange(call: Call, delivery_id: str, body: bytes, client: Client, timestamp: int) -> Answer | NoAnswer:
    """Send the body with all its headers; a token that is refused is fetched again, once."""
    deadline = Deadline(float(call.endpoint.timeout))
    headers = {"Content-Type": content_type(call.endpoint), **call.headers}
    headers |= webhook_headers(call.keys, delivery_id, timestamp, body)
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


def _judge(call: Call, answer: Answer | NoAnswer, now: float) -> Outcome:
    """Redirects are never delivery. Repeated are failures that may pass: no answer, 408, 429, from 500 on, and a 403
    that is a rate limit, as GitHub has it.

    :param now: seconds since 1970, for dates in ``Retry-After``
    """
    if isinstance(answer, NoAnswer):
        return Outcome(Ending.DEAD if answer.permanent else Ending.RETRY, answer.reason, answer.detail)
    status = answer.status
    is_redirect = 300 <= status < 400
    if not is_redirect and call.endpoint.success.accepts(status, answer.body):
        return Outcome(Ending.DELIVERED, status=status)
    asked = _asked_wait(answer, now)
    if status == 410:
        return Outcome(Ending.DEAD, "gone", f"HTTP {status}: {call.host} wants no more calls", status)
    if is_redirect:
        try:
            target = host_of(urljoin(call.url, answer.headers.get("Location", "")))
        except ValueError:
            target = "elsewhere"
        problem = f"HTTP {status} leads to {target}; redirects are not followed"
        return Outcome(Ending.RETRY, "redirect", problem, status, asked)
    is_limit = status in (408, 429) or (status == 403 and asked is not None)
    if 400 <= status < 500 and not is_limit:
        return Outcome(Ending.DEAD, "http", f"HTTP {status}", status)
    if 200 <= status < 300:
        return Outcome(Ending.RETRY, "answer", f"HTTP {status}, but the answer is not what counts as success", status)
    return Outcome(Ending.RETRY, "http", f"HTTP {status}", status, asked)


def _asked_wait(answer: Answer, now: float) -> float | None:
    """Seconds that the server asked to wait, by ``Retry-After`` or by a rate limit of which nothing remains."""
    asked = retry_after(answer.headers.get("Retry-After"), now) or None
    if asked is not None or answer.headers.get("x-ratelimit-remaining", "").strip() != "0":
        return asked
    reset = answer.headers.get("x-ratelimit-reset", "").strip()
    # Seconds since 1970. No limit that means anything is longer than a number of ten digits says.
    return max(0.0, int(reset) - now) if reset.isascii() and reset.isdigit() and len(reset) <= 10 else 0.0


def result_of(
    outcome: Outcome, claim: Claim, key: EndpointKey, endpoint: Endpoint, clock: Clock, *, host: str
) -> Result:
    """The outcome as the store takes it: a failure with the wait before its next attempt, or with the end of attempts.

    :param host: for the log
    """
    schedule = endpoint.retry.schedule.value
    result = Result(
        claim=claim,
        ending=outcome.ending,
        reason=outcome.reason,
        detail=outcome.detail,
        status=outcome.status,
        answer=outcome.answer,
        body_sha256=outcome.body_sha256,
        at=int(outcome.at * 1000),
        milliseconds=outcome.milliseconds,
        asked=int(min(outcome.asked or 0.0, _LONGEST_ASKED[schedule]) * 1000),
    )
    if result.ending is Ending.DELIVERED:
        return result
    log.warning("%s: attempt %s at %s failed: %s", key, claim.attempt, host, result.detail)
    if result.ending is Ending.RETRY:
        failures, limit = claim.failures + 1, endpoint.retry.max_elapsed
        wait = wait_before(schedule, failures, outcome.asked)
        is_late = limit is not None and clock.now() + wait - claim.started_at / 1000 > limit
        if failures < endpoint.attempts and not is_late:
            return replace(result, wait=int(wait * 1000))
        result = replace(result, ending=Ending.DEAD, detail=f"{result.detail}; given up after {failures} attempts")
    is_ignored = endpoint.on_failure is OnFailure.IGNORE
    return replace(result, on_failure=endpoint.on_failure.value, notified=is_ignored)
