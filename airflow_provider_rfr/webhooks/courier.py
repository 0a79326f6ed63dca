"""The courier: claims what is due, lets each endpoint's lane send it, and writes how it ended.

Any number of couriers may run, in any number of processes. Promised, for every delivery and through any crash: at
least one call, the same id on every copy, and at most one under way unless a lease runs out.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from queue import SimpleQueue
from typing import Final

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store.clock import Clock, SystemClock
from airflow_provider_rfr.store.deliveries import count_pending
from airflow_provider_rfr.store.endpoints import EndpointKey, EndpointRow
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.webhooks.configuration.endpoint import Endpoint
from airflow_provider_rfr.webhooks.configuration.secret_values import holds_sealed_text
from airflow_provider_rfr.webhooks.delivery.calls import Call, Connections, ConnectionSettings, resolve
from airflow_provider_rfr.webhooks.delivery.conditions import Condition
from airflow_provider_rfr.webhooks.delivery.lanes import Done, Lane
from airflow_provider_rfr.webhooks.delivery.notices import Notifier, tell_of_deaths
from airflow_provider_rfr.webhooks.delivery.opening import Opening, enable_moved, look_around
from airflow_provider_rfr.webhooks.delivery.rounds import Round
from airflow_provider_rfr.webhooks.delivery.tally import Tally
from airflow_provider_rfr.webhooks.delivery.tokens import TokenKeeper

log = logging.getLogger(__name__)

LEASE_SLACK: Final = 20.0
_LEAST_SLACK: Final = 1.0
_NAP: Final = 30.0
_SHORTEST_NAP: Final = 0.05
_LONGEST_TIMEOUT: Final = 300.0


def no_connections(name: str) -> ConnectionSettings:
    """For where there are no Airflow connections."""
    raise ConfigurationError("connection", f"{name!r} can't be looked up here", "write a url, or deliver in Airflow")


class Courier:
    """Delivers what the store says is owed to these endpoints.

    :param endpoints: by lake, table and trigger; if they were sealed, of the opened block
    :param connections: asked for Airflow's HTTP connections, at delivery
    :param allowed_hosts: names, addresses and networks that may be called although they are private; an endpoint's own
        list narrows them
    :param on_dead: called at least once for each delivery that is given up, ``onFailure: ignore`` excepted; between
        attempts, so it may take its time. Without one nobody is told of what this courier gives up, later neither
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
        lease_slack: float = LEASE_SLACK,
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

    def deliver_due(self, until_empty: bool = False, *, patience: float | None = None) -> Tally:
        """Deliver all that is due, and what falls due meanwhile.

        :param until_empty: wait for retries, leases and intervals too, until nothing is pending
        :param patience: ... but no longer than so many seconds
        """
        opening = self._look_around()
        done: SimpleQueue[Done] = SimpleQueue()
        lanes = self._lanes(opening.rows, done)
        round_ = Round(self._store, lanes, done, self._owner, tells=self._tells)
        try:
            self._work(round_, opening, until_empty, patience)
            round_.close()
        except BaseException as error:
            round_.abandon(settling=not isinstance(error, Exception))
            raise
        round_.tally.untold = self._tell(opening)
        return self._summed_up(round_, opening)

    def stop(self) -> None:
        """Let :meth:`deliver_due`, on whatever thread, claim nothing more and return when all attempts have ended.

        The courier is of no use afterwards.
        """
        self._stopped.set()

    def _work(self, round_: Round, opening: Opening, until_empty: bool, patience: float | None) -> None:
        end = None if patience is None else self._clock.monotonic() + patience
        while not self._stopped.is_set():
            if round_.step() or round_.in_hand:
                continue
            wait = round_.milliseconds_until_due() if until_empty else None
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

    def _look_around(self) -> Opening:
        longest = int((_LONGEST_TIMEOUT + self._slack) * 1000)
        opening = look_around(self._store, self._endpoints, longest)
        for key, number in opening.skipped.items():
            if key not in self._warned:
                self._warned.add(key)
                log.warning("%s is not in the configuration any more; %s deliveries stay pending", key, number)
        enable_moved(self._store, opening.rows, lambda key: self._resolve(self._endpoints[key])[0])
        return opening

    def _lanes(self, rows: Mapping[EndpointKey, EndpointRow], done: SimpleQueue[Done]) -> list[Lane]:
        alike: dict[tuple[str, float, str], dict[int, EndpointKey]] = {}
        for key, row in rows.items():
            endpoint = self._endpoints[key]
            sign = (key.name, endpoint.interval, json.dumps(endpoint.dump(), sort_keys=True))
            alike.setdefault(sign, {})[row.id] = key
        lanes = []
        for keys in alike.values():
            endpoint = self._endpoints[next(iter(keys.values()))]
            lane = Lane(
                endpoint,
                keys,
                lambda endpoint=endpoint: self._resolve(endpoint),  # type: ignore[misc]
                done,
                self._clock,
                slack=self._slack,
            )
            lane.condition = Condition(max(rows[key].failing for key in keys.values()))
            lanes.append(lane)
        return lanes

    def _resolve(self, endpoint: Endpoint) -> tuple[Call, TokenKeeper | None]:
        call = resolve(endpoint, self._connections, self._allowed_hosts)
        step = call.token_step
        if step is None:
            return call, None
        # Kept from go to go, for as long as address and credentials are the same.
        sign = json.dumps([step.url, dict(step.body), endpoint.name, sorted(endpoint.allowed_hosts), call.verify])
        return call, self._tokens.setdefault(sign, TokenKeeper(step, call.guard, call.verify))

    def _tell(self, opening: Opening) -> list[str]:
        if self._on_dead is None or not opening.rows:
            return []
        return tell_of_deaths(self._store, [row.id for row in opening.rows.values()], self._on_dead)

    def _summed_up(self, round_: Round, opening: Opening) -> Tally:
        tally = round_.tally
        tally.skipped = sum(opening.skipped.values())
        with self._store.read() as connection:
            tally.pending = count_pending(connection, [row.id for row in opening.rows.values()])
        wait = round_.milliseconds_until_due()
        if wait is not None:
            tally.next_due = datetime.fromtimestamp(self._clock.now() + wait / 1000, timezone.utc)
        log.info(
            "webhooks: %s delivered, %s to be repeated, %s given up, %s pending",
            tally.delivered,
            tally.failed,
            tally.dead,
            tally.pending,
        )
        return tally
