"""One attempt: rendered, signed, sent, judged."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import replace

from airflow_provider_rfr.exceptions import TemplateError
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store.claims import Claim
from airflow_provider_rfr.store.clock import Clock
from airflow_provider_rfr.store.endpoints import EndpointKey
from airflow_provider_rfr.store.settling import Ending, Result
from airflow_provider_rfr.webhooks.delivery.calls import Call
from airflow_provider_rfr.webhooks.delivery.deadline import Deadline, DeadlineExceeded
from airflow_provider_rfr.webhooks.delivery.http import Answer, Client, NoAnswer, Request
from airflow_provider_rfr.webhooks.delivery.payloads import content_type, render_body
from airflow_provider_rfr.webhooks.delivery.schedules import LONGEST_ASKED, wait_before
from airflow_provider_rfr.webhooks.delivery.signing import webhook_headers
from airflow_provider_rfr.webhooks.delivery.tokens import TokenKeeper
from airflow_provider_rfr.webhooks.delivery.verdicts import Verdict, judge
from airflow_provider_rfr.webhooks.variables import template_variables

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
        outcome = exchange(call, claim.delivery_id, body, client, tokens, int(at))
        verdict = judge(call, outcome, at)
    except TemplateError as error:
        outcome, verdict = _NOTHING, Verdict(Ending.DEAD, "template", str(error))
    except _UnreadableEvent:
        outcome, verdict = _NOTHING, Verdict(Ending.DEAD, "event", "the event in the control store can't be read")
    except Exception as error:  # noqa: BLE001 - of one delivery, which others must not suffer for; its text may tell secrets
        outcome, verdict = _NOTHING, Verdict(Ending.RETRY, "internal", f"it could not be sent: {type(error).__name__}")
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


def exchange(
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


def _budgeted(call: Call, key: EndpointKey, result: Result, verdict: Verdict, now: float) -> Result:
    """The failed attempt, with its next one or with the end of them."""
    endpoint, claim = call.endpoint, result.claim
    failures, schedule = claim.failures + 1, endpoint.retry.schedule.value
    wait = wait_before(schedule, failures, verdict.asked)
    result = replace(result, asked=int(min(verdict.asked or 0.0, LONGEST_ASKED[schedule]) * 1000))
    log.warning("%s: attempt %s at %s failed: %s", key, claim.attempt, call.host, result.detail)
    if verdict.ending is Ending.RETRY:
        limit = endpoint.retry.max_elapsed
        late = limit is not None and now + wait - claim.started_at / 1000 > limit
        if failures < endpoint.attempts and not late:
            return replace(result, wait=int(wait * 1000))
        result = replace(result, ending=Ending.DEAD, detail=f"{result.detail}; given up after {failures} attempts")
    return replace(result, on_failure=endpoint.on_failure.value)
