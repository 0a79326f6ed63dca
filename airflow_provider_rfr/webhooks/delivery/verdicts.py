"""What an answer means for its delivery, and for the endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urljoin

from airflow_provider_rfr.store.settling import Ending
from airflow_provider_rfr.webhooks.delivery.calls import Call
from airflow_provider_rfr.webhooks.delivery.http import Answer, NoAnswer, host_of
from airflow_provider_rfr.webhooks.delivery.schedules import retry_after

GONE = 410
_RETRIED = frozenset({408, 429})
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class Verdict:
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


def judge(call: Call, outcome: Answer | NoAnswer, now: float) -> Verdict:
    """Redirects are never delivery. Not repeated: what the endpoint's ``success`` says is delivered, and statuses
    from 400 to 499 but 408 and 429, and 403 where it is a rate limit, as GitHub says it.

    :param now: seconds since 1970, for dates in ``Retry-After``
    """
    if isinstance(outcome, NoAnswer):
        ending = Ending.DEAD if outcome.permanent else Ending.RETRY
        return Verdict(ending, outcome.reason, outcome.detail)
    status = outcome.status
    if not 300 <= status < 400 and call.endpoint.success.accepts(status, outcome.body):
        return Verdict(Ending.DELIVERED, status=status)
    asked = _asked(outcome, now)
    if status == GONE:
        return Verdict(Ending.DEAD, "gone", f"HTTP {status}: {call.host} wants no more calls", status)
    if 300 <= status < 400:
        return Verdict(Ending.RETRY, "redirect", _redirect(call, outcome), status, asked)
    is_limit = status in _RETRIED or (status == _FORBIDDEN and asked is not None)
    if 400 <= status < 500 and not is_limit:
        return Verdict(Ending.DEAD, "http", f"HTTP {status}", status)
    if 200 <= status < 300:
        return Verdict(Ending.RETRY, "answer", f"HTTP {status}, but the answer is not what counts as success", status)
    return Verdict(Ending.RETRY, "http", f"HTTP {status}", status, asked)


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
