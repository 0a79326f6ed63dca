"""One attempt at a delivery: rendered, signed, sent, judged; and when it is repeated."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timezone
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Final
from urllib.parse import urljoin

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.http.addresses import Deadline, DeadlineExceeded
from airflow_provider_rfr.http.client import Answer, Client, NoAnswer, Request, host_of
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store.claims import Claim, Ending, Result
from airflow_provider_rfr.store.deliveries import EndpointKey
from airflow_provider_rfr.store.engine import Clock
from airflow_provider_rfr.webhooks.calls import Call, TokenKeeper, webhook_headers
from airflow_provider_rfr.webhooks.templates import content_type, render_body
from airflow_provider_rfr.webhooks.variables import template_variables

_MINUTE, _HOUR = 60.0, 3600.0
_QUICK_LIMIT: Final = 30.0
_STANDARD: Final = (
    5.0,
    5 * _MINUTE,
    30 * _MINUTE,
    2 * _HOUR,
    5 * _HOUR,
    10 * _HOUR,
    14 * _HOUR,
    20 * _HOUR,
    24 * _HOUR,
)
_LONGEST_WAIT: Final = 24 * _HOUR
_LONGEST_ASKED: Final = {"quick": _HOUR, "standard": _LONGEST_WAIT}
"""Seconds: a server that asks for more is asked again after so long."""

_JITTER = 0.2
_RESTS_AFTER = 3
_LARGEST_EXPONENT = 10


def quick(failures: int) -> float:
    """1, 2, 4, 8, 16, 30, 30 ... seconds after so many failures (from 1)."""
    return min(_QUICK_LIMIT, 2.0 ** min(max(0, failures - 1), _LARGEST_EXPONENT))


def standard(failures: int) -> float:
    """The waits of Standard Webhooks: 5 s, 5 min, 30 min, 2 h, 5 h ... a day."""
    return _STANDARD[min(max(1, failures), len(_STANDARD)) - 1]


_SCHEDULES: Final[Mapping[str, Callable[[int], float]]] = {"quick": quick, "standard": standard}


def wait_before(
    schedule: str, failures: int, asked: float | None = None, *, chance: Callable[[], float] = random.random
) -> float:
    """Seconds until the next attempt: by the schedule, spread by a fifth, and never less than was asked for.

    :param failures: attempts that failed, from 1
    :param asked: by the server, from :func:`retry_after`
    """
    wait = _SCHEDULES[schedule](failures) * (1 + _JITTER * (chance() - 0.5))
    if asked is not None:
        # A little later than asked, or all who were asked the same come at once.
        wait = max(wait, min(asked, _LONGEST_ASKED[schedule]) * (1 + 0.05 * chance()))
    return min(wait, _LONGEST_WAIT)


def open_seconds(failing: int) -> float:
    """Seconds for which an endpoint is left alone after so many failures in a row, whichever deliveries they were of.

    A single delivery's own waits are longer; but where many are due, not each has to find out that nobody is there.
    """
    return quick(failing - _RESTS_AFTER + 1) if failing >= _RESTS_AFTER else 0.0


def is_half_open(failing: int) -> bool:
    """Whether one delivery at a time is enough to find out that the endpoint is back."""
    return failing >= _RESTS_AFTER


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a ``Retry-After`` asks for: a number, or a date by the clock ``now``.

    None for none, and for what can't be meant: not a number, infinite, before now.
    """
    text = (header or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
            # The old form has no zone, and means this one.
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() - now
        except (TypeError, ValueError, OverflowError, IndexError):
            return None
    return seconds if isfinite(seconds) and seconds > 0 else None


_GONE = 410
_RETRIED = frozenset({408, 429})
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class _Verdict:
    """How an attempt ended.

    :ivar ending: ``RETRY`` for what may be repeated; whether it still is, the delivery's budget decides
    :ivar reason: of a failure, one word
    :ivar detail: ... and for people
    :ivar asked: seconds that the server asked to wait
    """

    ending: Ending
    reason: str | None = None
    detail: str | None = None
    status: int | None = None
    asked: float | None = None


def _judge(call: Call, outcome: Answer | NoAnswer, now: float) -> _Verdict:
    """Redirects are never delivery. Not repeated: what the endpoint's ``success`` says is delivered, and statuses
    from 400 to 499 but 408 and 429, and 403 where it is a rate limit, as GitHub says it.

    :param now: seconds since 1970, for dates in ``Retry-After``
    """
    if isinstance(outcome, NoAnswer):
        ending = Ending.DEAD if outcome.permanent else Ending.RETRY
        return _Verdict(ending, outcome.reason, outcome.detail)
    status = outcome.status
    if not 300 <= status < 400 and call.endpoint.success.accepts(status, outcome.body):
        return _Verdict(Ending.DELIVERED, status=status)
    asked = _asked(outcome, now)
    if status == _GONE:
        return _Verdict(Ending.DEAD, "gone", f"HTTP {status}: {call.host} wants no more calls", status)
    if 300 <= status < 400:
        return _Verdict(Ending.RETRY, "redirect", _redirect(call, outcome), status, asked)
    is_limit = status in _RETRIED or (status == _FORBIDDEN and asked is not None)
    if 400 <= status < 500 and not is_limit:
        return _Verdict(Ending.DEAD, "http", f"HTTP {status}", status)
    if 200 <= status < 300:
        return _Verdict(Ending.RETRY, "answer", f"HTTP {status}, but the answer is not what counts as success", status)
    return _Verdict(Ending.RETRY, "http", f"HTTP {status}", status, asked)


def _asked(answer: Answer, now: float) -> float | None:
    """Seconds that the server asked to wait, by ``Retry-After`` or by a rate limit of which nothing remains."""
    asked = retry_after(answer.headers.get("Retry-After"), now)
    if asked is not None or answer.headers.get("x-ratelimit-remaining", "").strip() != "0":
        return asked
    reset = answer.headers.get("x-ratelimit-reset", "").strip()
    # Seconds since 1970. No limit that means anything is longer than a number of ten digits says.
    return max(0.0, int(reset) - now) if reset.isascii() and reset.isdigit() and len(reset) <= 10 else 0.0


def _redirect(call: Call, answer: Answer) -> str:
    try:
        target = host_of(urljoin(call.url, answer.headers.get("Location", "")))
    except ValueError:
        target = "elsewhere"
    return f"HTTP {answer.status} leads to {target}; redirects are not followed"


log = logging.getLogger(__name__)

_UNAUTHORIZED = 401


def attempt(
    call: Call, claim: Claim, key: EndpointKey, client: Client, tokens: TokenKeeper | None, clock: Clock
) -> Result:
    """Make the attempt; never raises, and nothing of the result or the log is secret.

    All of it, a token that has to be fetched included, ends within the endpoint's timeout.
    """
    began, at = time.monotonic(), clock.now()
    outcome: Answer | NoAnswer
    digest: str | None = None
    try:
        body = _body(call, claim, key)
        digest = hashlib.sha256(body).hexdigest()
        outcome = _exchange(call, claim.delivery_id, body, client, tokens, int(at))
        verdict = _judge(call, outcome, at)
    except TemplateError as error:
        outcome, verdict = _NOTHING, _Verdict(Ending.DEAD, "template", str(error))
    except _UnreadableEvent:
        outcome, verdict = _NOTHING, _Verdict(Ending.DEAD, "event", "the event in the control store can't be read")
    except Exception as error:  # noqa: BLE001 - of one delivery, which others must not suffer for; its text may tell secrets
        outcome, verdict = _NOTHING, _Verdict(Ending.RETRY, "internal", f"it could not be sent: {type(error).__name__}")
    kept = call.masker.kept(outcome.body) if isinstance(outcome, Answer) else None
    result = Result(
        claim=claim,
        ending=verdict.ending,
        reason=verdict.reason,
        detail=call.masker.told(verdict.detail) if verdict.detail is not None else None,
        status=verdict.status,
        answer=kept,
        body_sha256=digest,
        at=int(at * 1000),
        milliseconds=int((time.monotonic() - began) * 1000),
    )
    return result if verdict.ending is Ending.DELIVERED else _budgeted(call, key, result, verdict, clock.now())


_NOTHING = NoAnswer("", "")


class _UnreadableEvent(Exception):
    pass


def _exchange(
    call: Call, delivery_id: str, body: bytes, client: Client, tokens: TokenKeeper | None, timestamp: int
) -> Answer | NoAnswer:
    """Send the body with all its headers; a token that is refused is fetched again, once."""
    deadline = Deadline(float(call.endpoint.timeout))
    headers = {"Content-Type": content_type(call.endpoint), **call.headers}
    headers |= webhook_headers(call.keys, delivery_id, timestamp, body)
    if tokens is None:
        return _send(call, headers, body, client, deadline)
    refused: str | None = None
    answer: Answer | NoAnswer = _NOTHING
    for _ in range(2):
        try:
            token = tokens.token(client, deadline, refused)
        except DeadlineExceeded:
            return NoAnswer("timeout", f"{call.host} gave no whole answer within {deadline.seconds:g} s")
        if isinstance(token, NoAnswer):
            return token
        answer = _send(call, {**headers, **tokens.header(token)}, body, client, deadline)
        if not isinstance(answer, Answer) or answer.status != _UNAUTHORIZED:
            break
        refused = token
    return answer


def _send(call: Call, headers: dict[str, str], body: bytes, client: Client, deadline: Deadline) -> Answer | NoAnswer:
    return client.send(Request(call.endpoint.method, call.url, headers, body, call.verify), deadline, call.guard)


def _event(claim: Claim) -> CommitEvent:
    try:
        return CommitEvent.from_json(claim.event)
    except (ValueError, TypeError):
        raise _UnreadableEvent from None


def _body(call: Call, claim: Claim, key: EndpointKey) -> bytes:
    variables = template_variables(
        _event(claim),
        delivery_id=claim.delivery_id,
        attempt=claim.attempt,
        trigger_name=key.trigger,
        headers=call.exposed,
    )
    return render_body(call.endpoint, variables)


def _budgeted(call: Call, key: EndpointKey, result: Result, verdict: _Verdict, now: float) -> Result:
    """The failed attempt, with its next one or with the end of them."""
    endpoint, claim = call.endpoint, result.claim
    failures, schedule = claim.failures + 1, endpoint.retry.schedule.value
    wait = wait_before(schedule, failures, verdict.asked)
    result = replace(result, asked=int(min(verdict.asked or 0.0, _LONGEST_ASKED[schedule]) * 1000))
    log.warning("%s: attempt %s at %s failed: %s", key, claim.attempt, call.host, result.detail)
    if verdict.ending is Ending.RETRY:
        limit = endpoint.retry.max_elapsed
        late = limit is not None and now + wait - claim.started_at / 1000 > limit
        if failures < endpoint.attempts and not late:
            return replace(result, wait=int(wait * 1000))
        result = replace(result, ending=Ending.DEAD, detail=f"{result.detail}; given up after {failures} attempts")
    return replace(result, on_failure=endpoint.on_failure.value)
