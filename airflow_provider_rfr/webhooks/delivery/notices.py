"""Telling somebody of deliveries that were given up: at least once for each, also after a crash in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from airflow_provider_rfr.store.deliveries import set_told, untold_deaths
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.webhooks.delivery.tally import DeadDelivery

log = logging.getLogger(__name__)

Notifier = Callable[[DeadDelivery], None]


def tell_of_deaths(store: ControlStore, endpoint_ids: Collection[int], notifier: Notifier) -> int:
    """Call the notifier for each of the dead that it was not called for; returns for how many.

    What it raises is logged by its kind, and it is called for that delivery again the next time.
    """
    with store.read() as connection:
        found = untold_deaths(connection, endpoint_ids)
    told = 0
    for row in found:
        try:
            notifier(DeadDelivery.of(row))
        except Exception as error:  # noqa: BLE001 - anybody's code; its texts may tell secrets
            log.error("the notifier failed for delivery %s: %s", row.id, type(error).__name__)
            continue
        _note(store, row.id)
        told += 1
    return told


def _note(store: ControlStore, delivery_id: str) -> None:
    store.run(lambda connection: set_told(connection, store.now(connection), delivery_id))
