"""What delivery tells of itself in the package's own tables: every attempt, once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow_provider_rfr.lake.catalog import load_table
from airflow_provider_rfr.lake.history import append_once
from airflow_provider_rfr.store.deliveries import EndpointKey, attempts_since, ended_without_attempt
from airflow_provider_rfr.store.engine import ControlStore, instant
from airflow_provider_rfr.webhooks.endpoint import Endpoint

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

_DELIVERIES: Final = "rfr_system.delivery_history"
KEYS: Final = ("delivery_id", "attempt")
_WINDOW: Final = timedelta(days=2)
"""How far back is looked for what nobody told yet; an attempt is told when its round of delivery ends."""


def record_deliveries(store: ControlStore, catalog: Catalog, lake: str, hosts: Mapping[EndpointKey, str]) -> int:
    """Tell of the attempts of the last days that the history lacks; returns how many.

    A history that can't be written is a warning and no reason to fail: nothing that was delivered is undone.

    :param lake: the catalog's name, by which the store knows it
    :param hosts: scheme and host of endpoints
    """
    since = datetime.now(timezone.utc) - _WINDOW
    try:
        if load_table(catalog, _DELIVERIES) is None:
            return 0
        with store.read() as connection:
            milliseconds = int(since.timestamp() * 1000)
            tried = attempts_since(connection, lake, milliseconds)
            untried = ended_without_attempt(connection, lake, milliseconds)
        rows = [*(_attempt(each, lake, hosts) for each in tried), *(_untried(each, lake, hosts) for each in untried)]
        return append_once(catalog, _DELIVERIES, rows, keys=KEYS, scope={"lake": lake}, since=("attempted_at", since))
    except Exception as error:  # noqa: BLE001 - each catalog refuses in its own way
        told = type(error).__name__  # Its text may tell the catalog's credentials.
        log.warning("the history of deliveries can't be written (%s); the deliveries are not affected", told)
        return 0


def host_of(endpoint: Endpoint) -> str | None:
    """Scheme and host of an endpoint that says them itself, never a path."""
    if endpoint.url is None:
        return None
    address = urlsplit(endpoint.url.get_secret_value())
    return f"{address.scheme}://{address.hostname}" if address.hostname else None


def _attempt(row: Mapping[str, Any], lake: str, hosts: Mapping[EndpointKey, str]) -> dict[str, Any]:
    outcome = "delivered" if row["outcome"] == "delivered" else "failed"
    pending = row["state"] == "pending"
    return {
        **_delivery(row, lake, hosts),
        "attempt": row["number"],
        "outcome": outcome,
        "attempted_at": instant(row["at"]),
        "next_at": instant(row["due_at"]) if pending and outcome == "failed" else None,
        **{name: row[name] for name in ("status", "detail", "answer", "body_sha256", "milliseconds")},
    }


def _untried(row: Mapping[str, Any], lake: str, hosts: Mapping[EndpointKey, str]) -> dict[str, Any]:
    return {
        **_delivery(row, lake, hosts),
        "attempt": 0,
        "outcome": row["state"],
        "attempted_at": instant(row["ended_at"]),
    }


def _delivery(row: Mapping[str, Any], lake: str, hosts: Mapping[EndpointKey, str]) -> dict[str, Any]:
    key = EndpointKey(lake, row["target"], row["trigger"], row["block"])
    same = ("state", "reason", "first_commit", "last_commit", "commits", "sequence", "snapshot_id", "merged_into")
    return {
        **{name: row[name] for name in (*same, "target")},
        "delivery_id": row["id"],
        "lake": lake,
        "endpoint": key.name,
        "host": hosts.get(key),
        "created_at": instant(row["created_at"]),
    }
