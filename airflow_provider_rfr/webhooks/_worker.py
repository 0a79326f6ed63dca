"""The worker of one endpoint: attempts at deliveries, rendered, signed, sent, judged; when they are repeated.

Each has threads of its own, so that a dead or slow endpoint holds up no other, and a circuit breaker. Tables that are
configured alike share a worker: it is the same receiver.
"""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias
from urllib.parse import urljoin

from airflow_provider_rfr.exceptions import RfrError, TemplateError
from airflow_provider_rfr.http.client import Answer, Client, NoAnswer, Request, retry_after
from airflow_provider_rfr.http.redaction import host_of
from airflow_provider_rfr.http.sockets import Deadline, DeadlineExceeded
from airflow_provider_rfr.lake.commit_event import CommitEvent
from airflow_provider_rfr.store.claims import AttemptOutcome, Claim, ClaimRequest, Result
from airflow_provider_rfr.store.deliveries import EndpointKey, EndpointRow
from airflow_provider_rfr.store.engine import Clock
from airflow_provider_rfr.webhooks._templates import content_type, render_body, template_variables
from airflow_provider_rfr.webhooks.block import Endpoint, OnFailure, Ordering
from airflow_provider_rfr.webhooks.calls import Call, webhook_headers
from airflow_provider_rfr.webhooks.deliveries import FailedDelivery

_MOST_CLAIMS: Final = 16
_MOST_THREADS: Final = 4
_SLOW_START: Final = 0.05
_SLOW_ATTEMPT: Final = 0.025
_ASK_AGAIN: Final = 0.25
_ASK_AT_LEAST: Final = 2.0
_FAILURES_TO_OPEN: Final = 3
_FAILURES: Final = frozenset({"connection", "timeout", "tls", "token", "redirect", "configuration", "lookup"})
_BUSY: Final = frozenset({408, 429})
_REFUSALS: Final = frozenset({"address", "configuration"})


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """A circuit breaker that stops calls to an endpoint that fails.

    Closed: calls are made. Open: none is made, for a time that the store keeps. Half-open, after that time: one call at
    a time probes the endpoint; a success closes the breaker, a failure opens it for longer. A delivery's own waits are
    longer than that; but where many are due, not each has to find out that the endpoint is down.

    :ivar failures: failed attempts in a row, of any deliveries
    :ivar open_ms: milliseconds for which the last attempts opened it
    :ivar gone: the endpoint answered 410, so the breaker stays open until the endpoint is enabled by hand
    """

    failures: int = 0
    open_ms: int = 0
    gone: bool = False

    @property
    def is_open(self) -> bool:
        """Tell whether the last attempts opened the circuit breaker."""
        return self.gone or self.open_ms > 0

    @property
    def needs_probe(self) -> bool:
        """Tell whether so many attempts failed that the breaker is half-open after its time: one call at a time."""
        return self.failures >= _FAILURES_TO_OPEN

    def after(self, results: Iterable[Result]) -> CircuitBreaker:
        """Return the breaker after these attempts, in the order in which they ended."""
        failures, open_ms, gone = self.failures, 0, self.gone
        for result in results:
            gone = gone or result.reason == "gone"
            if result.ending is AttemptOutcome.DELIVERED:
                failures, open_ms = 0, 0
            elif result.reason in _FAILURES or (result.status or 0) >= 500 or result.status in _BUSY:
                failures += 1
                beyond = failures - _FAILURES_TO_OPEN + 1
                open_ms = max(result.asked, int(scheduled_wait("quick", beyond) * 1000) if beyond > 0 else 0)
            elif result.status is not None:
                # It answered, if only to refuse this delivery.
                failures, open_ms = 0, 0
        return CircuitBreaker(failures, open_ms, gone)


Ended: TypeAlias = "tuple[EndpointWorker, Result]"
"""How a claim of a worker ended."""


class EndpointWorker:
    """A worker that sends the deliveries of endpoints that are configured alike.

    The dispatcher's thread calls all public methods; the worker's own threads take claims from a queue, send them, and
    put results into the dispatcher's queue. Besides, they write the resolved address and how long attempts take.

    :ivar keys: the endpoints, by their ids in the store
    :ivar in_hand: claims whose result the dispatcher has not taken
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rows: Sequence[EndpointRow],
        resolve: Callable[[], Call],
        done: SimpleQueue[Ended],
        clock: Clock,
        *,
        slack: float,
    ) -> None:
        self.keys: Mapping[int, EndpointKey] = {row.id: row.key for row in rows}
        self.in_hand = 0
        self._endpoint = endpoint
        self._resolve = resolve
        self._done = done
        self._clock = clock
        self._slack = slack
        # Seconds: for one attempt, some waiting for a thread, and a store that is busy when it ends.
        self._lease = float(endpoint.timeout) + slack
        self._breaker = CircuitBreaker(max(row.failing for row in rows))
        self._jobs: SimpleQueue[tuple[Claim, float] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ask_after = 0.0
        self._misses = 0
        self._began_at = 0.0
        self._last_seconds = 0.0
        self._lock = threading.Lock()
        self._call: Call | None = None

    def wants_more(self) -> bool:
        """Tell whether the store should be asked for claims although workers have some in hand."""
        # Half of them at once, rather than one by one; and more seldom, the longer nothing has been due.
        return self.in_hand <= self._most_claims // 2 and time.monotonic() >= self._ask_after

    def claim_request(self) -> ClaimRequest:
        """Return the number and kind of claims that the worker can take now."""
        return ClaimRequest(
            endpoint_ids=tuple(self.keys),
            capacity=max(0, self._most_claims - self.in_hand),
            lease=int(self._lease * 1000),
            interval=int(self._endpoint.interval * 1000),
            strict=self._endpoint.ordering is Ordering.STRICT,
            probe=self._breaker.needs_probe,
        )

    def put(self, claims: Sequence[Claim], asked_at: float) -> None:
        """Send the claims of the store; ``asked_at``: by the monotonic clock, a moment before the leases began."""
        # An attempt that began later could be answered after its lease.
        # A quarter of the slack is kept for writing the result before the lease ends.
        latest = asked_at + self._lease - self._slack / 4 - float(self._endpoint.timeout)
        for claim in claims:
            self.in_hand += 1
            self._jobs.put((claim, latest))
        if claims and not self._threads:
            self._start_thread()
        self._misses = 0 if claims else self._misses + 1
        self._ask_after = asked_at + min(_ASK_AT_LEAST, self._misses * _ASK_AGAIN)

    def widen(self) -> None:
        """Start one more thread, if jobs wait because all threads wait for answers."""
        is_slow = self._last_seconds > _SLOW_ATTEMPT or time.monotonic() - self._began_at > _SLOW_START
        may_start = 0 < len(self._threads) < _MOST_THREADS and not self._breaker.needs_probe
        if is_slow and may_start and not self._jobs.empty():
            self._start_thread()

    def finish(self, results: Sequence[Result]) -> bool:
        """Take note of attempts that ended, and tell whether :meth:`row_values` have to be stored."""
        self.in_hand -= len(results)
        before, self._breaker = self._breaker, self._breaker.after(results)
        return self._breaker != before or self._breaker.is_open

    @property
    def is_open(self) -> bool:
        return self._breaker.is_open

    def row_values(self, now: int) -> dict[str, Any]:
        """Return the circuit breaker as columns of the endpoints' rows; ``now``: milliseconds since 1970."""
        breaker = self._breaker
        open_until = now + breaker.open_ms if breaker.open_ms else None
        values: dict[str, Any] = {"failing": breaker.failures, "open_until": open_until}
        if breaker.gone:
            digest = None if self._call is None else self._call.address_digest
            values |= {"disabled_at": now, "disabled_reason": "it answered 410 Gone", "disabled_address": digest}
        return values

    def take_back(self) -> list[Ended]:
        """Return the claims that no thread has begun."""
        unsent: list[Ended] = []
        try:
            while True:
                # A thread may take the same job a moment earlier. Then it is sent, and ends like any other.
                job = self._jobs.get_nowait()
                if job is not None:
                    unsent.append((self, Result(job[0], AttemptOutcome.UNSENT)))
        except Empty:
            self.in_hand -= len(unsent)
            return unsent

    def close(self) -> None:
        """Let the threads end after the attempt that they are at, whose time is limited."""
        for _ in self._threads:
            self._jobs.put(None)

    def failure(self, result: Result) -> FailedDelivery | None:
        """Return the report of a delivery that was given up or refused; None for others."""
        is_refusal = result.reason in _REFUSALS
        if result.ending is not AttemptOutcome.DEAD and not is_refusal:
            return None
        trigger, detail = self.keys[result.claim.endpoint_id].trigger, result.detail or result.reason or ""
        return FailedDelivery(trigger, self._host, detail, self._endpoint.on_failure.value, is_refusal)

    @property
    def _host(self) -> str:
        return "address unknown" if self._call is None else self._call.host

    @property
    def _most_claims(self) -> int:
        return 1 if self._breaker.needs_probe else _MOST_CLAIMS

    def _start_thread(self) -> None:
        self._began_at = time.monotonic()
        name = f"rfr-webhook-{self._endpoint.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        # Of its own, since requests does not promise that threads can share a session.
        client = Client()
        while (job := self._jobs.get()) is not None:
            claim, latest = job
            began = self._began_at = time.monotonic()
            try:
                result = self._send(claim, latest, client)
            except BaseException as error:  # noqa: BLE001 - a job without a result would be waited for for ever
                result = self._failed(claim, "internal", f"it could not be sent: {type(error).__name__}")
            self._last_seconds = time.monotonic() - began
            self._done.put((self, result))
        client.close()

    def _send(self, claim: Claim, latest: float, client: Client) -> Result:
        try:
            # One thread asks for the connection, and the others wait: secrets backends are slow.
            with self._lock:
                call = self._call = self._call or self._resolve()
        except RfrError as error:
            return self._failed(claim, "configuration", f"it can't be found out how to call it: {error}")
        except Exception as error:  # noqa: BLE001 - secrets backends raise anything; their texts may hold secrets
            return self._failed(claim, "lookup", f"it can't be found out how to call it: {type(error).__name__}")
        if time.monotonic() > latest:
            # It waited too long for a thread, or for the address.
            return Result(claim, AttemptOutcome.UNSENT)
        return attempt(call, claim, self.keys[claim.endpoint_id], client, self._clock)

    def _failed(self, claim: Claim, reason: str, detail: str) -> Result:
        result = Result(claim, AttemptOutcome.RETRY, reason, detail, at=int(self._clock.now() * 1000))
        return with_next_attempt(result, self.keys[claim.endpoint_id], self._endpoint, self._clock, host=self._host)


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
                answer_or_token = call.tokens.token(client, deadline, refused)
            except DeadlineExceeded:
                return NoAnswer("timeout", f"{call.host} gave no complete answer within {deadline.seconds:g} s")
            if isinstance(answer_or_token, NoAnswer):
                return answer_or_token
            token = answer_or_token
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
    if not is_redirect and call.endpoint.accepts(status, answer.body):
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
