"""A benchmark of queries to the control store, as the number of deliveries in it grows.

``python -m benchmarks.deliveries`` fills a store with 20,000 and with 200,000 deliveries to 500 endpoints, times each
query, and prints a table for people and, as its last line, one JSON object for scripts. It fails if a query costs more
than three times as much.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, insert, text

from airflow_provider_rfr.store import deliveries as rows
from airflow_provider_rfr.store.claims import ClaimRequest, claim
from airflow_provider_rfr.store.deliveries import EndpointKey, Selection, ensure_endpoint
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES

LAKE = "rfr"
ENDPOINTS = 500
SIZES = (20_000, 200_000)
MOST = 3.0
_RUNS = 5
_PART = 10_000
_MINUTE = 60_000

Query = Callable[[Connection, list[int], int], Any]
QUERIES: Mapping[str, Query] = {
    "newest attempts": lambda connection, ids, now: rows.newest_attempts(connection, LAKE, 50),
    "attempts of a minute": lambda connection, ids, now: rows.attempts_since(
        connection, LAKE, now - _MINUTE, unreported_in="rfr_system.delivery_history"
    ),
    "ended without attempt": lambda connection, ids, now: rows.ended_without_attempt(connection, LAKE, now - _MINUTE),
    "newest deliveries": lambda connection, ids, now: rows.select_deliveries(connection, Selection(lake=LAKE), 50),
    "first unsent": lambda connection, ids, now: rows.first_unsent(connection, ids),
    "pending": lambda connection, ids, now: rows.count_pending(connection, ids),
    "due": lambda connection, ids, now: claim(
        connection,
        now,
        "me",
        ClaimRequest(tuple(ids), 100, _MINUTE),
        rows.endpoints_with_ids(connection, ids),
        None,  # type: ignore[arg-type]  # only windows are merged
    ),
    "endpoints with their dags": lambda connection, ids, now: rows.endpoints_of_table(connection, LAKE),
    "nothing to delete": lambda connection, ids, now: rows.delete_ended(connection, 1, rows.EVERYTHING, 1000),
}


def fill(store: ControlStore, endpoints: int, count: int) -> list[int]:
    """Insert deliveries, a second apart; the last one to each endpoint is pending. Return the endpoints' ids."""

    def make_endpoints(connection: Connection) -> list[int]:
        return [ensure_endpoint(connection, EndpointKey(LAKE, f"raw.t{n}", "hook")).id for n in range(endpoints)]

    ids = store.run(make_endpoints)
    for start in range(0, count, _PART):
        numbers = range(start, min(start + _PART, count))
        store.run(partial(_fill_part, store, ids, numbers, count))
    return ids


def _fill_part(store: ControlStore, ids: list[int], numbers: range, count: int, connection: Connection) -> None:
    deliveries, attempts, now = [], [], store.now(connection)
    for n in numbers:
        at, is_pending = now - (count - n) * 1000, n >= count - len(ids)
        commit = {"first_commit": f"c{n}", "last_commit": f"c{n}", "sequence": n, "snapshot_id": n, "event": "{}"}
        state = {"state": "pending", "ended_at": None} if is_pending else {"state": "delivered", "ended_at": at}
        of = {"endpoint_id": ids[n % len(ids)], "attempts": 1, "created_at": at, "due_at": at}
        deliveries.append({"id": f"{n:032x}", **of, **commit, **state})
        if not is_pending:
            attempt = {"number": 1, "at": at, "milliseconds": 50, "outcome": "delivered"}
            attempts.append({"delivery_id": f"{n:032x}", **attempt})
    connection.execute(insert(DELIVERIES), deliveries)
    if attempts:
        connection.execute(insert(ATTEMPTS), attempts)


def measure(url: str, count: int) -> dict[str, float]:
    """Return the shortest of some runs of each query, in milliseconds."""
    store = open_store(url)
    ids = fill(store, ENDPOINTS, count)
    if store.is_postgres:
        # Autovacuum does the same after a while.
        store.run(lambda connection: connection.execute(text("ANALYZE")))

    def best(query: Query) -> float:
        seconds = []
        for _ in range(_RUNS):
            with store.read() as connection:
                now, began = store.now(connection), time.perf_counter()
                # Rolled back at the end of the block, so that each run finds the same rows.
                query(connection, ids, now)
                seconds.append(time.perf_counter() - began)
        return min(seconds) * 1000

    milliseconds = {name: best(query) for name, query in QUERIES.items()}
    store.close()
    return milliseconds


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deliveries", description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs=2, default=SIZES, help="numbers of deliveries")
    parser.add_argument("--stores", nargs=2, help="SQLAlchemy addresses of two new databases; default: SQLite files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rfr-deliveries-") as folder:
        urls = options.stores or [f"sqlite:///{folder}/{size}.db" for size in options.sizes]
        small, large = (measure(url, size) for url, size in zip(urls, options.sizes, strict=True))
    ratios = {name: round(large[name] / small[name], 2) for name in QUERIES}
    for name, ratio in ratios.items():
        print(f"{name:<28}{small[name]:>10.1f} ms{large[name]:>10.1f} ms{ratio:>8.2f}")
    print(json.dumps({"sizes": list(options.sizes), "ratios": ratios, "milliseconds": large}))
    return 0 if max(ratios.values()) <= MOST else 1


if __name__ == "__main__":
    raise SystemExit(main())
