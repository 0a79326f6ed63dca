"""The dispatcher: claims what is due, hands it to the endpoints' workers, and writes how it ended.

Any number of dispatchers may run, in any number of processes. Promised for every delivery and through any crash: at
least one call, the same id on every copy, and at most one in flight unless a lease runs out. Before it sends anything
it looks for endpoints with rows, triggers that are gone, and clocks that ran ahead.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import reduce
from queue import Empty, SimpleQueue
from typing import Any, Final

from sqlalchemy import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.commit_event import CommitEvent, merge
from airflow_provider_rfr.store.claims import Claim, Ending, Result, Window, claim, next_due, settle
from airflow_provider_rfr.store.deliveries import (
    EndpointKey,
    EndpointRow,
    Selection,
    change_endpoints,
    count_pending,
    count_states,
    endpoints_of_table,
    endpoints_with_ids,
    load_endpoints,
    mend_times,
)
from airflow_provider_rfr.store.engine import Clock, ControlStore, SystemClock
from airflow_provider_rfr.webhooks.calls import Call, Connections, ConnectionSettings, TokenKeeper, resolve
from airflow_provider_rfr.webhooks.delivery_summary import DeliverySummary, Failure, Notifier, notify_dead_letters
from airflow_provider_rfr.webhooks.endpoint import Endpoint
from airflow_provider_rfr.webhooks.endpoint_worker import CircuitBreaker, EndpointWorker, JobResult
from airflow_provider_rfr.webhooks.fields import holds_sealed_text
from airflow_provider_rfr.webhooks.variables import merged_id

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Opening:
    """What there is to work with.

    :ivar rows: of the endpoints that are configured and enabled
    :ivar skipped: pending deliveries of triggers that are not in the configuration
    """

    rows: dict[EndpointKey, EndpointRow] = field(default_factory=dict)
    skipped: dict[EndpointKey, int] = field(default_factory=dict)


def _look_around(store: ControlStore, endpoints: Mapping[EndpointKey, Endpoint], longest_lease: int) -> _Opening:
    """The endpoints' rows, mended where a clock ran ahead.

    :param longest_lease: milliseconds; no lease is longer
    """
    on = [key for key, endpoint in endpoints.items() if endpoint.enabled]
    with store.read() as connection:
        rows = load_endpoints(connection, on)
        skipped = dict(_skipped(connection, endpoints))
    ids = [row.id for row in rows.values()]
    if ids:
        store.run(lambda connection: mend_times(connection, store.now(connection), ids, longest_lease))
    return _Opening(rows, skipped)


def _skipped(connection: Connection, endpoints: Mapping[EndpointKey, Endpoint]) -> Iterable[tuple[EndpointKey, int]]:
    """Pending deliveries of triggers that the blocks had at these tables, but have no more. Other blocks are delivered
    by others.
    """
    for lake, table, block in dict.fromkeys((key.lake, key.table, key.block) for key in endpoints):
        for row in endpoints_of_table(connection, lake, table):
            if row.key not in endpoints and row.key.block == block:
                one = Selection(lake=lake, table=table, trigger=row.key.trigger, block=block)
                number = count_states(connection, one)["pending"]
                if number:
                    yield row.key, number


def _enable_moved(
    store: ControlStore, rows: Mapping[EndpointKey, EndpointRow], call_of: Callable[[EndpointKey], Call]
) -> None:
    """Enable endpoints whose address was gone, and that have another one since."""
    for key, row in rows.items():
        if row.disabled_at is None or row.disabled_address is None:
            continue
        try:
            digest = call_of(key).address_digest
        except Exception as error:  # noqa: BLE001 - secrets backends raise anything
            log.warning("%s: it can't be found out how to call it: %s", key, type(error).__name__)
            continue
        if digest != row.disabled_address:
            log.warning("%s was disabled (%s); it has another address now and is enabled", key, row.disabled_reason)
            enable(store, [row.id])


def enable(store: ControlStore, ids: Iterable[int]) -> int:
    """Let endpoints be called again; returns how many there were."""
    wanted = list(ids)
    values = dict.fromkeys(("paused_at", "disabled_at", "disabled_reason", "disabled_address", "open_until"))
    return store.run(lambda connection: change_endpoints(connection, wanted, failing=0, **values))


def _merge_events(endpoint: EndpointRow, events: Sequence[str]) -> Window:
    """One delivery for these events, the oldest first; its id follows from the first and the last commit.

    :raises ValueError: one of them can't be read
    """
    found = [CommitEvent.from_json(each) for each in events]
    merged = reduce(merge, found)
    return Window(merged_id(endpoint.key.name, found[0].commit_id, found[-1].commit_id), merged.to_json())


_LOOK: Final = 0.1
_LINGER: Final = 0.008
_MOST: Final = 128
_REFUSED: Final = frozenset({"address", "configuration"})


class _DispatchRun:
    """One run of a dispatcher: workers, and what is in flight in them. One thread talks to the store for all of them.

    :ivar summary: of what was written to the store
    """

    def __init__(
        self,
        store: ControlStore,
        workers: Sequence[EndpointWorker],
        done: SimpleQueue[JobResult],
        owner: str,
        *,
        tells: bool,
    ) -> None:
        self.summary = DeliverySummary()
        self._store = store
        # In one order, so that two dispatchers that change endpoints do not wait for each other.
        self._workers = sorted(workers, key=lambda worker: min(worker.keys))
        self._done = done
        self._owner = owner
        self._tells = tells

    @property
    def in_hand(self) -> int:
        """Claims that have not ended."""
        return sum(worker.in_hand for worker in self._workers)

    def step(self, *, claiming: bool = True) -> int:
        """Write what has ended and claim what there is room for; returns the number of claims.

        Waits a moment for something to end, if something is under way.
        """
        done = self._ended()
        changed = self._changed(done)
        for worker in self._workers:
            if not claiming or (worker in changed and not changed[worker].is_closed):
                done += worker.take_back()
        asked = [worker for worker in self._workers if claiming and self._may_ask(worker)]
        if not done and not asked:
            return 0
        results = [self._addressed(each.result) for each in done]
        asked_at = time.monotonic()
        lost, claims = self._store.run(lambda connection: self._write(connection, results, changed, asked))
        self.summary.add([(result, _failure(each, result)) for each, result in zip(done, results, strict=True)], lost)
        for worker, found in zip(asked, claims, strict=True):
            worker.put(found, asked_at)
            worker.ask_again(asked_at, len(found))
        for worker in self._workers:
            worker.widen()
        return sum(map(len, claims))

    def milliseconds_until_due(self) -> int | None:
        """Until there is something to claim; None if nothing is pending."""
        ids = [each for worker in self._workers for each in worker.keys]
        with self._store.read() as connection:
            now = self._store.now(connection)
            moment = next_due(
                connection, [worker.wish() for worker in self._workers], endpoints_with_ids(connection, ids)
            )
        return None if moment is None else max(0, moment - now)

    def close(self) -> None:
        """Give back what was not begun, wait for what was, and write both."""
        while self.in_hand:
            self.step(claiming=False)
        self.abandon()

    def abandon(self, *, settling: bool = False) -> None:
        """Only let the threads end: what they are at is not written, and is done again when the leases run out.

        :param settling: write at least what has ended, and give back what was not begun
        """
        if settling:
            with contextlib.suppress(Exception):
                self.step(claiming=False)
        for worker in self._workers:
            worker.take_back()
            worker.close()

    def _ended(self) -> list[JobResult]:
        """What has ended by now; a little more patience makes one transaction of many."""
        found: list[JobResult] = []
        wait, end = (_LOOK if self.in_hand else 0.0), 0.0
        while len(found) < _MOST and self.in_hand:
            try:
                each = self._done.get(timeout=wait) if wait > 0 else self._done.get_nowait()
            except Empty:
                break
            each.worker.in_hand -= 1
            found.append(each)
            end = end or time.monotonic() + _LINGER
            wait = max(0.0, end - time.monotonic())
        return found

    def _changed(self, done: Sequence[JobResult]) -> dict[EndpointWorker, CircuitBreaker]:
        """Circuit breakers whose state has to be written."""
        found: dict[EndpointWorker, CircuitBreaker] = {}
        for worker in dict.fromkeys(each.worker for each in done):
            breaker = worker.breaker.after(each.result for each in done if each.worker is worker)
            if breaker != worker.breaker or not breaker.is_closed:
                found[worker] = worker.breaker = breaker
        return found

    def _may_ask(self, worker: EndpointWorker) -> bool:
        if not self.in_hand:
            return True
        # Half of it at once, rather than one by one.
        return worker.in_hand <= worker.depth // 2 and time.monotonic() >= worker.ask_after

    def _addressed(self, result: Result) -> Result:
        """With whether anybody is to be told."""
        notified = result.ending is Ending.DEAD and (not self._tells or result.on_failure == "ignore")
        return replace(result, notified=True) if notified else result

    def _write(
        self,
        connection: Connection,
        results: Sequence[Result],
        changed: dict[EndpointWorker, CircuitBreaker],
        asked: Sequence[EndpointWorker],
    ) -> tuple[set[str], list[list[Claim]]]:
        now = self._store.now(connection)
        lost = settle(connection, now, results) if results else set()
        for worker, breaker in changed.items():
            change_endpoints(connection, worker.keys, **_values(worker, breaker, now))
        rows = endpoints_with_ids(connection, [each for worker in asked for each in worker.keys])
        return lost, [claim(connection, now, self._owner, worker.wish(), rows, _merge_events) for worker in asked]


def _values(worker: EndpointWorker, breaker: CircuitBreaker, now: int) -> dict[str, Any]:
    open_until = now + breaker.open_ms if breaker.open_ms else None
    values: dict[str, Any] = {"failing": breaker.failures, "open_until": open_until}
    if breaker.gone:
        values |= {
            "disabled_at": now,
            "disabled_reason": "it answered 410 Gone",
            "disabled_address": worker.address_digest,
        }
    return values


def _failure(done: JobResult, result: Result) -> Failure | None:
    is_refusal = result.reason in _REFUSED
    if result.ending is not Ending.DEAD and not is_refusal:
        return None
    worker, detail = done.worker, result.detail or result.reason or ""
    key = worker.keys[result.claim.endpoint_id]
    return Failure(key.trigger, worker.host, detail, worker.endpoint.on_failure.value, is_refusal)


_LEASE_SLACK: Final = 20.0
_LEAST_SLACK: Final = 1.0
_NAP: Final = 30.0
_SHORTEST_NAP: Final = 0.05
_LONGEST_TIMEOUT: Final = 300.0


def no_connections(name: str) -> ConnectionSettings:
    """For where there are no Airflow connections."""
    raise ConfigurationError("connection", f"{name!r} can't be looked up here", "write a url, or deliver in Airflow")


class Dispatcher:
    """Delivers what the store says is owed to these endpoints.

    :param endpoints: by lake, table and trigger; if they were sealed, of the opened block
    :param connections: asked for Airflow's HTTP connections, at delivery
    :param allowed_hosts: names, addresses and networks that may be called although they are private; an endpoint's own
        list narrows them
    :param on_dead: called at least once for each delivery that is given up, ``onFailure: ignore`` excepted; between
        attempts, so it may take its time. Without one nobody is told of what this dispatcher gives up, later neither
    :param leaves_telling: ... but who comes next with an ``on_dead``
    :param clock: for tests
    :param lease_slack: seconds for which a claim holds beyond the endpoint's timeout: so long may the store be busy
    """

    def __init__(
        self,
        store: ControlStore,
        endpoints: Mapping[EndpointKey, Endpoint],
        *,
        connections: Connections = no_connections,
        allowed_hosts: Iterable[str] = (),
        on_dead: Notifier | None = None,
        leaves_telling: bool = False,
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
        self._tells = leaves_telling or on_dead is not None
        self._clock = clock or store.clock or SystemClock()
        self._slack = lease_slack
        self._owner = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stopped = threading.Event()
        self._warned: set[EndpointKey] = set()
        self._tokens: dict[str, TokenKeeper] = {}

    def deliver_due(self, until_empty: bool = False, *, patience: float | None = None) -> DeliverySummary:
        """Deliver all that is due, and what falls due meanwhile.

        :param until_empty: wait for retries, leases and intervals too, until nothing is pending
        :param patience: ... but no longer than so many seconds
        """
        opening = self._look_around()
        done: SimpleQueue[JobResult] = SimpleQueue()
        workers = self._workers(opening.rows, done)
        run = _DispatchRun(self._store, workers, done, self._owner, tells=self._tells)
        try:
            self._work(run, opening, until_empty, patience)
            run.close()
        except BaseException as error:
            run.abandon(settling=not isinstance(error, Exception))
            raise
        run.summary.untold = self._tell(opening)
        return self._summed_up(run, opening)

    def stop(self) -> None:
        """Let :meth:`deliver_due`, on whatever thread, claim nothing more and return when all attempts have ended.

        The dispatcher is of no use afterwards.
        """
        self._stopped.set()

    def _work(self, run: _DispatchRun, opening: _Opening, until_empty: bool, patience: float | None) -> None:
        end = None if patience is None else self._clock.monotonic() + patience
        while not self._stopped.is_set():
            if run.step() or run.in_hand:
                continue
            wait = run.milliseconds_until_due() if until_empty else None
            if wait is None:
                return
            self._tell(opening)
            seconds = max(_SHORTEST_NAP, wait / 1000)
            if end is not None and self._clock.monotonic() + seconds > end:
                return
            self._rest(min(_NAP, seconds))

    def _rest(self, seconds: float) -> None:
        if isinstance(self._clock, SystemClock):
            self._stopped.wait(seconds)
        else:
            self._clock.sleep(seconds)

    def _look_around(self) -> _Opening:
        longest = int((_LONGEST_TIMEOUT + self._slack) * 1000)
        opening = _look_around(self._store, self._endpoints, longest)
        for key, number in opening.skipped.items():
            if key not in self._warned:
                self._warned.add(key)
                log.warning("%s is not in the configuration any more; %s deliveries stay pending", key, number)
        _enable_moved(self._store, opening.rows, lambda key: self._resolve(self._endpoints[key])[0])
        return opening

    def _workers(self, rows: Mapping[EndpointKey, EndpointRow], done: SimpleQueue[JobResult]) -> list[EndpointWorker]:
        alike: dict[tuple[str, float, str], dict[int, EndpointKey]] = {}
        for key, row in rows.items():
            endpoint = self._endpoints[key]
            sign = (key.name, endpoint.interval, json.dumps(endpoint.dump(), sort_keys=True))
            alike.setdefault(sign, {})[row.id] = key
        workers = []
        for keys in alike.values():
            endpoint = self._endpoints[next(iter(keys.values()))]
            worker = EndpointWorker(
                endpoint,
                keys,
                lambda endpoint=endpoint: self._resolve(endpoint),  # type: ignore[misc]
                done,
                self._clock,
                slack=self._slack,
            )
            worker.breaker = CircuitBreaker(max(rows[key].failing for key in keys.values()))
            workers.append(worker)
        return workers

    def _resolve(self, endpoint: Endpoint) -> tuple[Call, TokenKeeper | None]:
        call = resolve(endpoint, self._connections, self._allowed_hosts)
        step = call.token_step
        if step is None:
            return call, None
        # Kept from go to go, for as long as address and credentials are the same.
        sign = json.dumps([step.url, dict(step.body), endpoint.name, sorted(endpoint.allowed_hosts), call.verify])
        return call, self._tokens.setdefault(sign, TokenKeeper(step, call.guard, call.verify))

    def _tell(self, opening: _Opening) -> list[str]:
        if self._on_dead is None or not opening.rows:
            return []
        return notify_dead_letters(self._store, [row.id for row in opening.rows.values()], self._on_dead)

    def _summed_up(self, run: _DispatchRun, opening: _Opening) -> DeliverySummary:
        summary = run.summary
        summary.skipped = sum(opening.skipped.values())
        with self._store.read() as connection:
            summary.pending = count_pending(connection, [row.id for row in opening.rows.values()])
        wait = run.milliseconds_until_due()
        if wait is not None:
            summary.next_due = datetime.fromtimestamp(self._clock.now() + wait / 1000, timezone.utc)
        log.info(
            "webhooks: %s delivered, %s to be repeated, %s given up, %s pending",
            summary.delivered,
            summary.failed,
            summary.dead,
            summary.pending,
        )
        return summary
