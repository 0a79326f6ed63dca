"""History of deliveries as a table of the lake: every attempt, once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sqlalchemy import RowMapping

from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.history import REPORTED_AGAIN
from airflow_provider_rfr.store.deliveries import EndpointKey, attempts_since, ended_without_attempt
from airflow_provider_rfr.store.engine import ControlStore, instant
from airflow_provider_rfr.webhooks.endpoint import Endpoint

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

_TABLE: Final = "rfr_system.delivery_history"
_KEYS: Final = ("delivery_id", "attempt")


def record_deliveries(
    store: ControlStore, catalog: Catalog, lake: str, endpoints: Mapping[EndpointKey, Endpoint]
) -> None:
    """Report the attempts of the last days that the history lacks, and append waiting rows if it is time.

    A history that can't be written is a warning and not an error: the deliveries were made.

    :param lake: the catalog's name, by which the store knows it
    :param endpoints: for the hosts of those that have an address of their own
    """
    since = int((datetime.now(timezone.utc) - REPORTED_AGAIN).timestamp() * 1000)
    try:
        history = History(store, catalog)
        if not history.has(_TABLE):
            return
        with store.read() as connection:
            tried = attempts_since(connection, lake, since, unreported_in=_TABLE)
            untried = ended_without_attempt(connection, lake, since)
        rows = []
        for row in tried:
            is_delivered = row["outcome"] == "delivered"
            rows.append(
                {
                    **_delivery(row, lake, endpoints),
                    "attempt": row["number"],
                    "outcome": "delivered" if is_delivered else "failed",
                    "attempted_at": instant(row["at"]),
                    "next_at": None if is_delivered or row["state"] != "pending" else instant(row["due_at"]),
                    **{name: row[name] for name in ("status", "detail", "answer", "body_sha256", "milliseconds")},
                }
            )
        for row in untried:
            ended = {"attempt": 0, "outcome": row["state"], "attempted_at": instant(row["ended_at"])}
            rows.append({**_delivery(row, lake, endpoints), **ended})
        history.report(_TABLE, rows, _KEYS)
        history.maintain()
    except Exception as error:  # noqa: BLE001 - each catalog fails in its own way; the text may hold its credentials
        problem = type(error).__name__
        log.warning("the history of deliveries can't be written (%s); the deliveries are not affected", problem)


def _delivery(row: RowMapping, lake: str, endpoints: Mapping[EndpointKey, Endpoint]) -> dict[str, Any]:
    key = EndpointKey(lake, row["target"], row["trigger"], row["block"])
    url = endpoints[key].url if key in endpoints else None
    # Of the address scheme and host, never the path, which may be secret.
    address = urlsplit(url.get_secret_value() if url is not None else "")
    same = ("state", "reason", "first_commit", "last_commit", "commits", "sequence", "snapshot_id", "merged_into")
    return {
        **{name: row[name] for name in (*same, "target")},
        "delivery_id": row["id"],
        "lake": lake,
        "endpoint": key.name,
        "host": f"{address.scheme}://{address.hostname}" if address.hostname else None,
        "created_at": instant(row["created_at"]),
    }
