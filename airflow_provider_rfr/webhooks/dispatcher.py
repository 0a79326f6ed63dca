"""The dispatcher: claims due deliveries, hands them to the endpoints' workers, and writes the results.

Any number of dispatchers may run at once, in any number of processes. For every delivery, through any crash: at least
one call, the same id on every copy, and at most one call in flight unless a lease runs out.
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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial, reduce
from queue import Empty, SimpleQueue
from typing import Final

from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.commit_event import CommitEvent, merge
from airflow_provider_rfr.store import deliveries
from airflow_provider_rfr.store.claims import Claim, MergedCommits, Result, claim, next_due, settle
from airflow_provider_rfr.store.deliveries import EndpointKey, EndpointRow, Selection
from airflow_provider_rfr.store.engine import Clock, ControlStore, SystemClock
from airflow_provider_rfr.webhooks._fields import holds_sealed_text
from airflow_provider_rfr.webhooks._worker import Ended, EndpointWorker
from airflow_provider_rfr.webhooks.block import Endpoint
from airflow_provider_rfr.webhooks.calls import Call, Connections, ConnectionSettings, TokenKeeper, resolve
from airflow_provider_rfr.webhooks.deliveries import DeliverySummary, Notifier, notify_dead_letters
from airflow_provider_rfr.webhooks.outbox import merged_id

log = logging.getLogger(__name__)

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

    A step takes the results that workers have put into ``done``; then, in one transaction, writes them and the circuit
    breakers that they changed and claims for the workers that have room; then hands the claims to those workers.
    Claims that no thread has begun are given back when their circuit breaker opens and when the run ends.

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
        # In one order, so that two dispatchers that change endpoints do not wait for each other.
        self._workers = sorted(workers, key=lambda worker: min(worker.keys))
        self._done = done
        self._owner = owner
        self._notifies = notifies

    @property
    def in_hand(self) -> int:
        """Return the number of claims that have not ended."""
        return sum(worker.in_hand for worker in self._workers)

    def step(self, *, claiming: bool = True) -> int:
        """Do one step and return the number of claims. Wait a moment for a result if something is under way."""
        done = self._take_results()
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
        # Before the transaction: a lease that seems shorter than it is does no harm, a longer one would.
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
        """Let the threads end: their results are not written, and are sent again when the leases run out.

        :param settling: write at least the results that have arrived, and give back claims that no thread has begun
        """
        if settling:
            with contextlib.suppress(Exception):
                self.step(claiming=False)
        for worker in self._workers:
            worker.take_back()
            worker.close()

    def _take_results(self) -> list[Ended]:
        """Return the results that have arrived. They come in bursts, so a short wait makes one transaction of many."""
        ended: list[Ended] = []
        in_hand = self.in_hand
        wait, end = (_RESULT_WAIT if in_hand else 0.0), 0.0
        while len(ended) < min(_LARGEST_BATCH, in_hand):
            try:
                ended.append(self._done.get(timeout=wait) if wait > 0 else self._done.get_nowait())
            except Empty:
                break
            end = end or time.monotonic() + _BATCH_WAIT
            wait = max(0.0, end - time.monotonic())
        return ended

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


def no_connections(name: str) -> ConnectionSettings:
    """Raise an error for the name of a connection, for callers without Airflow connections."""
    raise ConfigurationError("connection", f"{name!r} can't be looked up here", "write a url, or deliver in Airflow")


class Dispatcher:
    """A dispatcher that delivers the pending deliveries of these endpoints from the store.

    :param endpoints: by lake, table and trigger; if they were sealed, of the opened block
    :param connections: asked for Airflow's HTTP connections, at delivery
    :param allowed_hosts: names, addresses and networks that may be called although they are private; an endpoint's own
        list narrows them
    :param on_dead: called at least once for each delivery that is given up, ``onFailure: ignore`` excepted; between
        attempts, so it may take its time. Without one, it is never called for what this dispatcher gives up
    :param notify_later: leave those calls to the next dispatcher that has an ``on_dead``
    :param clock: for tests
    :param lease_slack: seconds for which a claim holds beyond the endpoint's timeout: so long may the store be busy
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
        clock: Clock | None = None,
        lease_slack: float = _LEASE_SLACK,
    ) -> None:
        if lease_slack < _LEAST_SLACK:
            raise ConfigurationError("lease_slack", f"{lease_slack} is too little", f"at least {_LEAST_SLACK} seconds")
        sealed = [key for key, endpoint in endpoints.items() if holds_sealed_text(endpoint.dump())]
        if sealed:
            raise ConfigurationError(str(sealed[0]), "is still sealed", "open the triggers block, then deliver")
        self._store = store
        self._endpoints = dict(endpoints)
        self._connections = connections
        self._allowed_hosts = tuple(allowed_hosts)
        self._on_dead = on_dead
        self._notifies = notify_later or on_dead is not None
        self._clock = clock or store.clock or SystemClock()
        self._slack = lease_slack
        # The random part: containers often have the same host name and process number again after a restart.
        self._owner = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stopped = threading.Event()
        self._warned: set[EndpointKey] = set()
        self._tokens: dict[str, TokenKeeper] = {}

    def deliver_due(self, until_empty: bool = False, *, patience: float | None = None) -> DeliverySummary:
        """Deliver all that is due, and deliveries that fall due meanwhile.

        :param until_empty: wait for retries, leases and intervals too, until nothing is pending
        :param patience: ... but no longer than so many seconds
        """
        rows = self._load_rows()
        ids = [row.id for row in rows.values()]
        skipped = self._count_skipped()
        done: SimpleQueue[Ended] = SimpleQueue()
        run = _Run(self._store, self._new_workers(rows.values(), done), done, self._owner, notifies=self._notifies)
        try:
            self._deliver(run, ids, until_empty, patience)
            run.close()
        except BaseException as error:
            # When interrupted, what was sent is written; after an error of the store there is no use in trying.
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
        """Let :meth:`deliver_due`, on whatever thread, claim nothing more and return when all attempts have ended.

        The dispatcher is of no use afterwards.
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
        """Load the enabled endpoints' rows; repair those of a clock that ran ahead, and enable those that moved."""
        with self._store.read() as connection:
            enabled = [key for key, endpoint in self._endpoints.items() if endpoint.enabled]
            rows = deliveries.load_endpoints(connection, enabled)
        ids = [row.id for row in rows.values()]
        lease = int((_LONGEST_TIMEOUT + self._slack) * 1000)
        if ids:
            store = self._store
            store.run(lambda connection: deliveries.mend_times(connection, store.now(connection), ids, lease))
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

    def _new_workers(self, rows: Iterable[EndpointRow], done: SimpleQueue[Ended]) -> list[EndpointWorker]:
        """Return a worker for each group of endpoints that are configured alike."""
        groups: dict[tuple[str, float, str], list[EndpointRow]] = {}
        for row in rows:
            endpoint = self._endpoints[row.key]
            document = json.dumps(endpoint.dump(), sort_keys=True)
            groups.setdefault((row.key.name, endpoint.interval, document), []).append(row)
        workers = []
        for group in groups.values():
            endpoint = self._endpoints[group[0].key]
            call = partial(self._resolve, endpoint)
            workers.append(EndpointWorker(endpoint, group, call, done, self._clock, slack=self._slack))
        return workers

    def _resolve(self, endpoint: Endpoint) -> Call:
        """Resolve the call of an endpoint. Tokens are kept between runs while address and credentials are the same."""
        call = resolve(endpoint, self._connections, self._allowed_hosts)
        if call.tokens is None:
            return call
        step = call.tokens.step
        # A changed password or address must not be answered with the token of the former one.
        same = json.dumps([step.url, dict(step.body), endpoint.name, sorted(endpoint.allowed_hosts), call.verify])
        return replace(call, tokens=self._tokens.setdefault(same, call.tokens))

    def _notify(self, ids: Collection[int]) -> list[str]:
        return notify_dead_letters(self._store, ids, self._on_dead) if self._on_dead is not None and ids else []


def enable(store: ControlStore, ids: Iterable[int]) -> int:
    """Enable endpoints that were paused, disabled or failing, and return their number."""
    wanted = list(ids)
    values = dict.fromkeys(("paused_at", "disabled_at", "disabled_reason", "disabled_address", "open_until"))
    return store.run(lambda connection: deliveries.change_endpoints(connection, wanted, failing=0, **values))
