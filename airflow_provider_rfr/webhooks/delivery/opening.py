"""What a courier finds before it sends anything: endpoints with rows, triggers that are gone, clocks that ran ahead."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from airflow_provider_rfr.store.deliveries import Selection, count_states, mend_times
from airflow_provider_rfr.store.endpoints import (
    EndpointKey,
    EndpointRow,
    change_endpoints,
    endpoints_of_table,
    load_endpoints,
)
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.webhooks.configuration.endpoint import Endpoint
from airflow_provider_rfr.webhooks.delivery.calls import Call

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Opening:
    """What there is to work with.

    :ivar rows: of the endpoints that are configured and enabled
    :ivar skipped: pending deliveries of triggers that are not in the configuration
    """

    rows: dict[EndpointKey, EndpointRow] = field(default_factory=dict)
    skipped: dict[EndpointKey, int] = field(default_factory=dict)


def look_around(store: ControlStore, endpoints: Mapping[EndpointKey, Endpoint], longest_lease: int) -> Opening:
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
    return Opening(rows, skipped)


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


def enable_moved(
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
    values = dict.fromkeys(("paused_at", "disabled_at", "disabled_reason", "disabled_address", "resting_until"))
    return store.run(lambda connection: change_endpoints(connection, wanted, failing=0, **values))
