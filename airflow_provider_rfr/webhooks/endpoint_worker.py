"""Threads of their own for one endpoint, so that a dead or slow one holds up no other; and its circuit breaker.

Tables that are configured alike share a worker: it is the same receiver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Final

from airflow_provider_rfr.exceptions import RfrError
from airflow_provider_rfr.http.client import Client
from airflow_provider_rfr.store.claims import Claim, Ending, Result, Wish
from airflow_provider_rfr.store.deliveries import EndpointKey
from airflow_provider_rfr.store.engine import Clock
from airflow_provider_rfr.webhooks.attempts import attempt, is_half_open, open_seconds, wait_before
from airflow_provider_rfr.webhooks.calls import Call, TokenKeeper
from airflow_provider_rfr.webhooks.endpoint import Endpoint, Ordering

log = logging.getLogger(__name__)

_DEPTH: Final = 16
_WIDTH: Final = 4
_PATIENCE: Final = 0.05
_SLOW: Final = 0.025
_ASK_AGAIN: Final = 0.25
_ASK_AT_LEAST: Final = 2.0
_FAILURES: Final = frozenset({"connection", "timeout", "tls", "token", "redirect", "configuration", "lookup"})
_BUSY: Final = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """Stops calls to an endpoint that fails. It closes again when one probe succeeds.

    :ivar failures: failed attempts in a row, of whichever deliveries
    :ivar open_ms: milliseconds for which it is open: no call is made
    :ivar gone: the endpoint answered 410, so it stays open until somebody enables the endpoint
    """

    failures: int = 0
    open_ms: int = 0
    gone: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether calls are made."""
        return not (self.open_ms or self.gone)

    @property
    def is_half_open(self) -> bool:
        """Whether one call at a time probes if the endpoint is back."""
        return is_half_open(self.failures)

    def after(self, results: Iterable[Result]) -> CircuitBreaker:
        """The breaker after these attempts, in the order in which they ended."""
        failures, open_ms, gone = self.failures, 0, self.gone
        for result in results:
            found = _failed(result)
            if found is not None:
                failures = failures + 1 if found else 0
                open_ms = max(result.asked, int(open_seconds(failures) * 1000)) if found else 0
            gone = gone or result.reason == "gone"
        return CircuitBreaker(failures, open_ms, gone)


def _failed(result: Result) -> bool | None:
    """Whether the endpoint was not able to answer; None where it was not asked."""
    if result.ending is Ending.DELIVERED:
        return False
    if result.reason in _FAILURES:
        return True
    if result.status is None:
        return None
    return result.status >= 500 or result.status in _BUSY


@dataclass(frozen=True, slots=True)
class _Job:
    """A claim on its way to a thread.

    :ivar until: by the monotonic clock: it must not be sent so late that the answer may come after this
    """

    claim: Claim
    until: float


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended."""

    worker: EndpointWorker
    result: Result


class EndpointWorker:
    """Sends the deliveries of endpoints that are configured alike.

    :ivar breaker: of the endpoint, as far as this dispatcher and the store know
    :ivar in_hand: claims whose end the store does not know
    :ivar ask_after: by the monotonic clock: before, there is hardly anything to claim
    """

    def __init__(
        self,
        endpoint: Endpoint,
        keys: Mapping[int, EndpointKey],
        resolve: Callable[[], tuple[Call, TokenKeeper | None]],
        done: SimpleQueue[JobResult],
        clock: Clock,
        *,
        slack: float,
    ) -> None:
        self.endpoint = endpoint
        self.keys = keys
        self.breaker = CircuitBreaker()
        self.in_hand = 0
        self.ask_after = 0.0
        self._resolve = resolve
        self._done = done
        self._clock = clock
        self._slack = slack
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._taken_at = 0.0
        self._pace = 0.0
        self._misses = 0
        self._lock = threading.Lock()
        self._call: tuple[Call, TokenKeeper | None] | None = None

    @property
    def lease(self) -> float:
        """Seconds: for one attempt, some waiting for a thread, and a store that is busy when it ends."""
        return float(self.endpoint.timeout) + self._slack

    @property
    def depth(self) -> int:
        """How many claims it may have in hand; one while it is to be found out whether anybody is there."""
        return 1 if self.breaker.is_half_open else _DEPTH

    def wish(self) -> Wish:
        """What the worker can take now."""
        return Wish(
            endpoint_ids=tuple(self.keys),
            room=max(0, self.depth - self.in_hand),
            lease=int(self.lease * 1000),
            interval=int(self.endpoint.interval * 1000),
            strict=self.endpoint.ordering is Ordering.STRICT,
            probe=self.breaker.is_half_open,
        )

    def put(self, claims: list[Claim], claimed_at: float) -> None:
        """Send these; ``claimed_at`` is a moment before the lease began, by the monotonic clock."""
        until = claimed_at + self.lease - self._slack / 4
        for claim in claims:
            self.in_hand += 1
            self._jobs.put(_Job(claim, until))
        if claims and not self._threads:
            self._start_thread()

    def ask_again(self, asked_at: float, found: int) -> None:
        """Note when it is worth while to ask the store for more: the later, the longer there has been nothing."""
        self._misses = 0 if found else self._misses + 1
        self.ask_after = asked_at + min(_ASK_AT_LEAST, self._misses * _ASK_AGAIN)

    def widen(self) -> None:
        """One more thread, if jobs wait because all threads wait for answers."""
        slow = self._pace > _SLOW or time.monotonic() - self._taken_at > _PATIENCE
        more = 0 < len(self._threads) < _WIDTH and not self.breaker.is_half_open
        if slow and more and not self._jobs.empty():
            self._start_thread()

    def take_back(self) -> list[JobResult]:
        """What no thread has begun."""
        found: list[JobResult] = []
        try:
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    self.in_hand -= 1
                    found.append(JobResult(self, Result(job.claim, Ending.UNSENT)))
        except Empty:
            return found

    def close(self) -> None:
        """Let the threads end after the attempt that they are at, whose time is limited."""
        for _ in self._threads:
            self._jobs.put(None)

    @property
    def host(self) -> str:
        """For people."""
        return self._call[0].host if self._call is not None else "address unknown"

    @property
    def address_digest(self) -> str | None:
        """Tells whether the address is another one."""
        return self._call[0].address_digest if self._call is not None else None

    def resolved(self) -> tuple[Call, TokenKeeper | None]:
        """How the endpoint is called, found out once; raises what finding out raises."""
        with self._lock:
            if self._call is None:
                self._call = self._resolve()
            return self._call

    def _start_thread(self) -> None:
        self._taken_at = time.monotonic()
        name = f"rfr-webhook-{self.endpoint.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        client = Client()
        while (job := self._jobs.get()) is not None:
            began = self._taken_at = time.monotonic()
            try:
                result = self._made(job, client)
            except BaseException as error:  # noqa: BLE001 - a job that never ended would be waited for for ever
                told = f"it could not be sent: {type(error).__name__}"
                result = self._failed(job.claim, "internal", told)
            self._pace = time.monotonic() - began
            self._done.put(JobResult(self, result))
        client.close()

    def _made(self, job: _Job, client: Client) -> Result:
        claim = job.claim
        try:
            call, tokens = self.resolved()
        except RfrError as error:
            return self._failed(claim, "configuration", f"it can't be found out how to call it: {error}")
        except Exception as error:  # noqa: BLE001 - secrets backends raise anything; their texts may tell secrets
            told = f"it can't be found out how to call it: {type(error).__name__}"
            return self._failed(claim, "lookup", told)
        if time.monotonic() + float(self.endpoint.timeout) > job.until:
            # It waited too long: the lease could run out while the endpoint is at it.
            return Result(claim, Ending.UNSENT)
        return attempt(call, claim, self.keys[claim.endpoint_id], client, tokens, self._clock)

    def _failed(self, claim: Claim, reason: str, told: str) -> Result:
        log.warning("%s: %s", self.keys[claim.endpoint_id], told)
        result = Result(claim, Ending.RETRY, reason, told, at=int(self._clock.now() * 1000))
        if claim.failures + 1 < self.endpoint.attempts:
            wait = wait_before(self.endpoint.retry.schedule.value, claim.failures + 1)
            return replace(result, wait=int(wait * 1000))
        return replace(result, ending=Ending.DEAD, on_failure=self.endpoint.on_failure.value)
