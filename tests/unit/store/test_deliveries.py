"""What is asked of deliveries for the page that shows them."""

from __future__ import annotations

from typing import Any

from airflow_provider_rfr.store.deliveries import EndpointKey, add_deliveries, dags_by_endpoint, ensure_endpoint
from airflow_provider_rfr.store.engine import ControlStore


def test_the_dags_of_an_endpoint_are_those_of_all_its_deliveries(store: ControlStore) -> None:
    def work(connection: Any) -> None:
        row = ensure_endpoint(connection, EndpointKey("rfr", "raw.orders", "hook"))
        rows = []
        for number, dag_id in enumerate(("shop", None, "late", "shop")):
            commit = {"first_commit": str(number), "last_commit": str(number), "snapshot_id": number, "event": "{}"}
            of = {"endpoint_id": row.id, "dag_ids": {dag_id}}
            rows.append({"id": str(number), "sequence": number, **of, **commit})
        add_deliveries(connection, store.now(connection), rows)

    store.run(work)
    with store.read() as connection:
        assert list(dags_by_endpoint(connection, "rfr").values()) == [{"shop", "late", None}]
        assert dags_by_endpoint(connection, "another") == {}
