"""Telling somebody of deliveries that were given up: at least once for each, also after a crash in between."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

from airflow_provider_rfr.store.deliveries import set_told, untold_deaths
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.webhooks.delivery.tally import DeadDelivery

log = logging.getLogger(__name__)

Notifier = Callable[[DeadDelivery], None]


def tell_of_deaths(store: ControlStore, endpoint_ids: Collection[int], notifier: Notifier) -> list[str]:
    """Call the notifier for each of the dead that it was not called for; returns what it raised, in words.

    It is called again the next time for a delivery for which it raised.
    """
    with store.read() as connection:
        found = untold_deaths(connection, endpoint_ids)
    failed = []
    for row in found:
        try:
            notifier(DeadDelivery.of(row))
        except Exception as error:  # noqa: BLE001 - anybody's code; its texts may tell secrets
            failed.append(f"{_raised(error)} for delivery {row.id}")
            log.error("on_dead raised %s", failed[-1])
            continue
        _note(store, row.id)
    return failed


def _raised(error: Exception) -> str:
    """The kind and the place, without the text."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} ({Path(place.filename).name}, line {place.lineno})"


def _note(store: ControlStore, delivery_id: str) -> None:
    store.run(lambda connection: set_told(connection, store.now(connection), delivery_id))
