"""Repeats a request as long as its verdicts and the budgets allow.

Two budgets: errors count against ``max_retries`` and ``max_time``; a rate limit counts against neither,
only against ``max_rate_limit_wait``, because the API is well and merely asks for patience.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from tenacity import RetryCallState, Retrying

from airflow_provider_rfr.exceptions import (
    AuthenticationError,
    RateLimitedError,
    SourceError,
    TokenExpiredError,
)
from airflow_provider_rfr.streams.context import ReadContext
from airflow_provider_rfr.streams.rest.actions import REPEATING, Action, Verdict
from airflow_provider_rfr.streams.rest.backoff import seconds_to_wait
from airflow_provider_rfr.streams.rest.error_handler import AUTHENTICATION_STATUS, ErrorHandler

log = logging.getLogger(__name__)


def repeat(attempt: Callable[[], Verdict], handler: ErrorHandler, context: ReadContext) -> Verdict:
    """The first verdict that needs no repetition: SUCCESS, IGNORE or END.

    :raises SourceError: FAIL, TOKEN_EXPIRED, or a budget is used up
    :raises ReadInterrupted: the reader was stopped
    """
    verdict = attempt()
    if verdict.action in REPEATING:
        budget = _Budget(handler, context, verdict)
        verdict = Retrying(
            retry=budget.again,
            stop=budget.used_up,
            wait=budget.wait,
            before_sleep=budget.announce,
            sleep=context.sleep,
            retry_error_callback=budget.give_up,
        )(budget.first_then(attempt))
    if verdict.action in (Action.FAIL, Action.TOKEN_EXPIRED):
        raise _error(verdict, verdict.reason)
    return verdict


class _Budget:
    """What one page's requests have used so far; the policies that tenacity asks."""

    def __init__(self, handler: ErrorHandler, context: ReadContext, first: Verdict) -> None:
        self._handler = handler
        self._context = context
        self._first: Verdict | None = first
        self._began = time.monotonic()
        self._requests = 0
        self._errors = 0
        self._limits = 0
        self._limited = 0.0

    def first_then(self, attempt: Callable[[], Verdict]) -> Callable[[], Verdict]:
        """The verdict that is there already, then new ones."""

        def next_verdict() -> Verdict:
            verdict, self._first = self._first or attempt(), None
            self._requests += 1
            self._errors += verdict.action is Action.RETRY
            self._limits = self._limits + 1 if verdict.action is Action.RATE_LIMITED else 0
            return verdict

        return next_verdict

    def again(self, state: RetryCallState) -> bool:
        """Whether the verdict asks for a repetition; an exception is never repeated."""
        outcome = state.outcome
        return outcome is not None and not outcome.failed and outcome.result().action in REPEATING

    def wait(self, state: RetryCallState) -> float:
        verdict = _verdict(state)
        failures = self._limits if verdict.action is Action.RATE_LIMITED else self._errors
        headers = verdict.answer.headers if verdict.answer is not None else {}
        return seconds_to_wait((*verdict.backoff, *self._handler.backoff), failures, headers)

    def used_up(self, state: RetryCallState) -> bool:
        """Asked after ``wait``, so that a wait that can't be afforded isn't begun."""
        verdict = _verdict(state)
        if verdict.action is Action.RATE_LIMITED:
            return self._limited + state.upcoming_sleep > self._handler.max_rate_limit_wait
        spent = time.monotonic() - self._began - self._limited
        return self._errors > self._handler.max_retries or spent + state.upcoming_sleep > self._handler.max_time

    def announce(self, state: RetryCallState) -> None:
        verdict = _verdict(state)
        seconds = state.upcoming_sleep
        log.warning("%s: %s; next try in %.1f s", verdict.request, verdict.reason, seconds)
        if verdict.action is Action.RATE_LIMITED:
            self._limited += seconds
            self._context.limiter.penalize(seconds)

    def give_up(self, state: RetryCallState) -> Any:
        verdict = _verdict(state)
        spent = time.monotonic() - self._began
        if verdict.action is not Action.RATE_LIMITED:
            times = "1 request" if self._requests == 1 else f"{self._requests} requests"
            raise _error(verdict, f"{verdict.reason}; gave up after {times} in {spent:.0f} s")
        raise RateLimitedError(
            f"{verdict.reason}; the API asks to wait {state.upcoming_sleep:.0f} s more, after {spent:.0f} s, "
            f"and max_rate_limit_wait is {self._handler.max_rate_limit_wait:.0f} s",
            retry_after=state.upcoming_sleep,
            status=verdict.status,
            request=verdict.request,
        )


def _verdict(state: RetryCallState) -> Verdict:
    assert state.outcome is not None
    verdict: Verdict = state.outcome.result()
    return verdict


def _error(verdict: Verdict, message: str) -> SourceError:
    if verdict.action is Action.TOKEN_EXPIRED:
        kind: type[SourceError] = TokenExpiredError
        message = f"the page token is no longer accepted: {message}"
    elif verdict.status in AUTHENTICATION_STATUS:
        kind = AuthenticationError
        message = f"the API does not accept the credentials: {message}"
    else:
        kind = SourceError
    return kind(message, status=verdict.status, request=verdict.request)
