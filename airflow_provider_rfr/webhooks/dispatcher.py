"""The dispatcher: claims due deliveries, hands them to the endpoints' workers, and writes the results.

Any number of dispatchers may run at once, in any number of processes. For every delivery, through any crash: at least
one call, the same id on every copy, and at most one call in flight unless a lease runs out.

Each worker has threads of its own, so that a dead or slow endpoint holds up no other, and a circuit breaker. Tables
that are configured alike share a worker: it is the same receiver.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial, reduce
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.http.client import Client
from airflow_provider_rfr.lake.commit_event import CommitEvent, merge
from airflow_provider_rfr.store import deliveries
from airflow_provider_rfr.store.claims import (
    AttemptOutcome,
    Claim,
    ClaimRequest,
    MergedCommits,
    Result,
    claim,
    next_due,
    settle,
)
from airflow_provider_rfr.store.deliveries import EndpointKey, EndpointRow, Selection
from airflow_provider_rfr.store.engine import Clock, ControlStore, SystemClock
from airflow_provider_rfr.webhooks.block import Endpoint, Ordering
from airflow_provider_rfr.webhooks.calls import (
    Call,
    Connections,
    ConnectionSettings,
    TokenKeeper,
    attempt,
    no_connections,
    resolve,
    scheduled_wait,
    with_next_attempt,
)
from airflow_provider_rfr.webhooks.operations import (
    DeliverySummary,
    FailedDelivery,
    Notifier,
    enable,
    notify_dead_letters,
)
from airflow_provider_rfr.webhooks.outbox import merged_id

log = logging.getLogger(__name__)

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
    longer, but without the breaker each of many due deliveries would use up an attempt to find the endpoint down.

    :ivar failures: failed attempts in a row, of any deliveries
    :ivar open_ms: milliseconds for which the last attempts opened it; 0 if they did not
    :ivar gone: one of the last attempts was answered with 410, so the endpoint is disabled. Only the store keeps that,
        because a user may enable the endpoint at any time
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
        """Tell whether enough attempts failed in a row that the endpoint is only probed, with one call at a time."""
        return self.failures >= _FAILURES_TO_OPEN

    def after(self, results: Iterable[Result]) -> CircuitBreaker:
        """Return the breaker after these attempts, in the order in which they ended."""
        failures, open_ms, gone = self.failures, 0, False
        for result in results:
            gone = gone or result.reason == "gone"
            if result.ending is AttemptOutcome.DELIVERED:
                failures, open_ms = 0, 0
            elif result.reason in _FAILURES or (result.status or 0) >= 500 or result.status in _BUSY or result.asked:
                failures += 1
                beyond = failures - _FAILURES_TO_OPEN + 1
                open_ms = max(result.asked, int(scheduled_wait("quick", beyond) * 1000) if beyond > 0 else 0)
            elif result.status is not None:
                # It answered, if only to refuse this delivery.
                failures, open_ms = 0, 0
        return CircuitBreaker(failures, open_ms, gone)


Ended: TypeAlias = "tuple[EndpointWorker, Result]"
"""A worker, and the result of one of its claims."""


class EndpointWorker:
    """A worker that sends the deliveries of endpoints that are configured alike.

    The dispatcher's thread calls all public methods; the worker's own threads take claims from a queue, send them, and
    put results into the dispatcher's queue. Besides, they write the resolved address and how long attempts take.

    :ivar keys: the endpoints, by their ids in the store
    :ivar in_hand: number of claims whose result the dispatcher has not taken
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
        # In seconds. The slack is for the wait for a thread, and for a store that is busy when the attempt ends.
        self._lease = endpoint.timeout + slack
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
        # Claims are fetched when half of them are done, rather than one by one; and less often, the longer nothing was
        # due.
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
        """Queue claims for the worker's threads.

        :param asked_at: time by the monotonic clock, in seconds, a moment before the leases began
        """
        # An attempt that begins later could end after its lease. A quarter of the slack is kept for writing the result
        # before the lease ends.
        latest = asked_at + self._lease - self._slack / 4 - self._endpoint.timeout
        for new_claim in claims:
            self.in_hand += 1
            self._jobs.put((new_claim, latest))
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
        """Update the circuit breaker after these attempts, and tell whether :meth:`row_values` have to be stored."""
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
        """Remove the claims that no thread has begun from the queue, and return them as unsent."""
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
        """Let each thread end after its present attempt, which the endpoint's timeout limits."""
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
        # One for each thread, since requests does not promise that threads can share a session.
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


_RESULT_WAIT: Final = 0.1
_BATCH_WAIT: Final = 0.008
_LARGEST_BATCH: Final = 128


def _merge_events(endpoint: EndpointRow, events: Sequence[str]) -> MergedCommits:
    """Merge these events, the oldest first, into one delivery.

    :raises ValueError: one of them can't be read
    """
    owed = [CommitEvent.from_json(event) for event in events]
    merged = reduce(merge, owed)
    return MergedCommits(merged_id(endpoint.key.name, owed[0].commit_id, owed[-1].commit_id), merged.to_json())


class _Run:
    """One run of a dispatcher.

    A step takes the results that workers have put into ``done``. In one transaction, it writes them, stores the circuit
    breakers that they changed, and claims deliveries for workers that have room. Then it hands the claims to those
    workers. Claims that no thread has begun are given back when their circuit breaker opens and when the run ends.

    One thread makes all steps, and only it talks to the store. Each worker owns its claims, threads and circuit
    breaker; the run owns the workers and the summary, which counts what was written.
    """

    def __init__(
        self,
        store: ControlStore,
        workers: Iterable[EndpointWorker],
        done: SimpleQueue[Ended],
        owner: str,
        *,
        notifies: bool,
    ) -> None:
        self.summary = DeliverySummary()
        self._store = store
        # Sorted, so that dispatchers lock the rows of endpoints in one order: this avoids deadlocks.
        self._workers = sorted(workers, key=lambda worker: min(worker.keys))
        self._done = done
        self._owner = owner
        self._notifies = notifies

    @property
    def in_hand(self) -> int:
        """Return the number of claims that have not ended."""
        return sum(worker.in_hand for worker in self._workers)

    def step(self, *, claiming: bool = True) -> int:
        """Do one step and return the number of new claims. Wait a moment for a result if something is under way.

        :param claiming: False: claim nothing, and give back the claims that no thread has begun
        """
        done: list[Ended] = []
        # Results come in bursts, so a short wait makes one transaction of many.
        most, wait, end = min(_LARGEST_BATCH, self.in_hand), _RESULT_WAIT, 0.0
        while len(done) < most:
            try:
                done.append(self._done.get(timeout=wait) if wait > 0 else self._done.get_nowait())
            except Empty:
                break
            end = end or time.monotonic() + _BATCH_WAIT
            wait = max(0.0, end - time.monotonic())
        changed = []
        for worker in self._workers:
            own = [result for its, result in done if its is worker]
            if own and worker.finish(own):
                changed.append(worker)
        for worker in self._workers:
            if not claiming or (worker in changed and worker.is_open):
                done += worker.take_back()
        is_idle = not self.in_hand
        asking = [worker for worker in self._workers if claiming and (is_idle or worker.wants_more())]
        if not done and not asking:
            return 0
        # Without notifications, dead letters are marked as if theirs had been sent.
        results = [result if self._notifies else replace(result, notified=True) for _, result in done]
        # Taken before the transaction: to assume too early an end of the leases does no harm, too late an end would.
        asked_at = time.monotonic()
        lost, claims = self._store.run(lambda connection: self._write(connection, results, changed, asking))
        self.summary.add([(result, worker.failure(result)) for worker, result in done], lost)
        for worker, claimed in zip(asking, claims, strict=True):
            worker.put(claimed, asked_at)
        for worker in self._workers:
            worker.widen()
        return sum(map(len, claims))

    def milliseconds_until_due(self) -> int | None:
        """Return the milliseconds until there is something to claim; None if nothing is pending."""
        ids = [key for worker in self._workers for key in worker.keys]
        with self._store.read() as connection:
            now = self._store.now(connection)
            rows = deliveries.endpoints_with_ids(connection, ids)
            moment = next_due(connection, [worker.claim_request() for worker in self._workers], rows)
        return None if moment is None else max(0, moment - now)

    def close(self) -> None:
        """Give back the claims that no thread has begun, wait for the others, and write both."""
        while self.in_hand:
            self.step(claiming=False)
        self.abandon()

    def abandon(self, *, settling: bool = False) -> None:
        """Let the threads end without writing their results. Those deliveries are sent again when their leases run out.

        :param settling: before that, write the results that have arrived, and give back claims that no thread has begun
        """
        if settling:
            with contextlib.suppress(Exception):
                self.step(claiming=False)
        for worker in self._workers:
            worker.take_back()
            worker.close()

    def _write(
        self,
        connection: Connection,
        results: Sequence[Result],
        changed: Sequence[EndpointWorker],
        asking: Sequence[EndpointWorker],
    ) -> tuple[set[str], list[list[Claim]]]:
        now = self._store.now(connection)
        # First the results: they decide which deliveries are still due, and which endpoint may be called again.
        lost = settle(connection, now, results) if results else set()
        for worker in changed:
            deliveries.change_endpoints(connection, worker.keys, **worker.row_values(now))
        rows = deliveries.endpoints_with_ids(connection, [key for worker in asking for key in worker.keys])
        return lost, [
            claim(connection, now, self._owner, worker.claim_request(), rows, _merge_events) for worker in asking
        ]


_LEASE_SLACK: Final = 20.0
_LEAST_SLACK: Final = 1.0
_LONGEST_NAP: Final = 30.0
_SHORTEST_NAP: Final = 0.05
_LONGEST_TIMEOUT: Final = 300.0


class Dispatcher:
    """A dispatcher that delivers the pending deliveries of these endpoints from the store.

    :param endpoints: endpoints by key; those of a sealed document after it was opened
    :param connections: looks up Airflow's HTTP connections, at delivery
    :param allowed_hosts: names, addresses and networks that may be called although they are private; an endpoint's own
        list narrows them
    :param on_dead: called at least once for each delivery that is given up, except with ``onFailure: ignore``; it runs
        while no attempt is under way, so it may be slow. Without it, the dead letters of this dispatcher count as
        notified
    :param notify_later: if there is no ``on_dead``, leave these calls to the next dispatcher that has one
    :param lease_slack: seconds that a lease lasts beyond the endpoint's timeout, for the wait for a thread and for a
        busy store
    :raises ConfigurationError: an endpoint is still sealed, or the slack is too short
    """

    def __init__(
        self,
        store: ControlStore,
        endpoints: Mapping[EndpointKey, Endpoint],
        *,
        connections: Connections = no_connections,
        allowed_hosts: Iterable[str] = (),
        on_dead: Notifier | None = None,
        notify_later: bool = False,
        lease_slack: float = _LEASE_SLACK,
    ) -> None:
        if lease_slack < _LEAST_SLACK:
            raise ConfigurationError("lease_slack", f"{lease_slack} is too little", f"at least {_LEAST_SLACK} seconds")
        sealed = [key for key, endpoint in endpoints.items() if endpoint.is_sealed]
        if sealed:
            raise ConfigurationError(str(sealed[0]), "is still sealed", "open the triggers block, then deliver")
        self._store = store
        self._endpoints = dict(endpoints)
        self._connections = connections
        self._lookup = threading.Lock()
        self._allowed_hosts = tuple(allowed_hosts)
        self._on_dead = on_dead
        self._notifies = notify_later or on_dead is not None
        self._clock = store.clock or SystemClock()
        self._slack = lease_slack
        # The random part: containers often have the same host name and process number again after a restart.
        self._owner = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stopped = threading.Event()
        self._warned: set[EndpointKey] = set()
        self._tokens: dict[str, TokenKeeper] = {}

    def deliver_due(self, until_empty: bool = False, *, patience: float | None = None) -> DeliverySummary:
        """Deliver all that is due, and deliveries that fall due meanwhile.

        :param until_empty: wait for retries, leases and intervals too, until nothing is pending
        :param patience: seconds after which ``until_empty`` stops waiting; None for no limit
        """
        rows = self._load_rows()
        ids = [row.id for row in rows.values()]
        skipped = self._count_skipped()
        # A worker for each group of endpoints that are configured alike.
        groups: dict[tuple[str, float, str], list[EndpointRow]] = {}
        for row in rows.values():
            endpoint = self._endpoints[row.key]
            document = json.dumps(endpoint.dump(), sort_keys=True)
            groups.setdefault((row.key.name, endpoint.interval, document), []).append(row)
        done: SimpleQueue[Ended] = SimpleQueue()
        workers = []
        for group in groups.values():
            endpoint = self._endpoints[group[0].key]
            call = partial(self._resolve, endpoint)
            workers.append(EndpointWorker(endpoint, group, call, done, self._clock, slack=self._slack))
        run = _Run(self._store, workers, done, self._owner, notifies=self._notifies)
        try:
            self._deliver(run, ids, until_empty, patience)
            run.close()
        except BaseException as error:
            # After an interrupt, results are still written; after an error of the store, that would fail, too.
            run.abandon(settling=not isinstance(error, Exception))
            raise
        summary = run.summary
        summary.notification_errors = self._notify(ids)
        summary.skipped = skipped
        with self._store.read() as connection:
            summary.pending = deliveries.count_pending(connection, ids)
        wait = run.milliseconds_until_due()
        if wait is not None:
            summary.next_due = datetime.fromtimestamp(self._clock.now() + wait / 1000, timezone.utc)
        counts = (summary.delivered, summary.failed, summary.dead, summary.pending)
        log.info("webhooks: %s delivered, %s to be repeated, %s given up, %s pending", *counts)
        return summary

    def stop(self) -> None:
        """Let :meth:`deliver_due`, on any thread, claim nothing more and return when all attempts have ended.

        The dispatcher can't be used afterwards.
        """
        self._stopped.set()

    def _deliver(self, run: _Run, ids: Collection[int], until_empty: bool, patience: float | None) -> None:
        """Make steps until nothing is due, or with ``until_empty`` until nothing is pending."""
        end = None if patience is None else self._clock.monotonic() + patience
        while not self._stopped.is_set():
            if run.step() or run.in_hand:
                continue
            wait = run.milliseconds_until_due() if until_empty else None
            if wait is None:
                return
            # Not only at the end of the run, which may be hours away: people should hear of a dead letter early.
            self._notify(ids)
            seconds = max(_SHORTEST_NAP, wait / 1000)
            if end is not None and self._clock.monotonic() + seconds > end:
                return
            # Not all of it at once: what is replayed or resumed meanwhile is due earlier.
            if isinstance(self._clock, SystemClock):
                self._stopped.wait(min(_LONGEST_NAP, seconds))
            else:
                self._clock.sleep(min(_LONGEST_NAP, seconds))

    def _load_rows(self) -> dict[EndpointKey, EndpointRow]:
        """Load the rows of the enabled endpoints.

        Times that were written by a clock that ran ahead are repaired. An endpoint that a 410 disabled is enabled again
        if it has another address now.
        """
        with self._store.read() as connection:
            enabled = [key for key, endpoint in self._endpoints.items() if endpoint.enabled]
            rows = deliveries.load_endpoints(connection, enabled)
        ids = [row.id for row in rows.values()]
        lease = int((_LONGEST_TIMEOUT + self._slack) * 1000)
        if ids:
            store = self._store
            store.run(lambda connection: deliveries.limit_future_times(connection, store.now(connection), ids, lease))
        for key, row in rows.items():
            if row.disabled_at is None or row.disabled_address is None:
                continue
            try:
                address = self._resolve(self._endpoints[key]).address_digest
            except Exception as error:  # noqa: BLE001 - secrets backends raise anything
                log.warning("%s: it can't be found out how to call it: %s", key, type(error).__name__)
                continue
            if address != row.disabled_address:
                log.warning("%s was disabled (%s); it has another address now and is enabled", key, row.disabled_reason)
                enable(self._store, [row.id])
        return rows

    def _count_skipped(self) -> int:
        """Count pending deliveries of triggers that were removed from these blocks; other blocks are left out."""
        total = 0
        with self._store.read() as connection:
            for lake, table, block in dict.fromkeys((key.lake, key.table, key.block) for key in self._endpoints):
                for key in (row.key for row in deliveries.endpoints_of_table(connection, lake, table)):
                    if key in self._endpoints or key.block != block:
                        continue
                    one = Selection(lake=lake, tables=(table,), trigger=key.trigger, block=block)
                    number = deliveries.count_states(connection, one)["pending"]
                    total += number
                    if number and key not in self._warned:
                        self._warned.add(key)
                        log.warning("%s was removed from the configuration; %s deliveries stay pending", key, number)
        return total

    def _resolve(self, endpoint: Endpoint) -> Call:
        """Resolve the call of an endpoint. Tokens are kept between runs while address and credentials are the same."""
        call = resolve(endpoint, self._look_up, self._allowed_hosts)
        if call.tokens is None:
            return call
        step = call.tokens.step
        # Address and password are part of the key: a token must not be used after either changed.
        same = json.dumps([step.url, dict(step.body), endpoint.name, sorted(endpoint.allowed_hosts), call.verify])
        return replace(call, tokens=self._tokens.setdefault(same, call.tokens))

    def _look_up(self, name: str) -> ConnectionSettings:
        # One worker after another: while `airflow dags test` answers one thread, it has no connection for a second one.
        with self._lookup:
            return self._connections(name)

    def _notify(self, ids: Collection[int]) -> list[str]:
        return notify_dead_letters(self._store, ids, self._on_dead) if self._on_dead is not None and ids else []
