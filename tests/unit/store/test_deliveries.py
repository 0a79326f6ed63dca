"""What is asked of deliveries for the page that shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_rfr.store.deliveries import EndpointKey, add_deliveries, dags_by_endpoint, ensure_endpoint
from airflow_provider_rfr.store.engine import ControlStore


@pytest.mark.parametrize(
    ("events", "dags"),
    [
        ([{"dag_id": "shop"}, {"x": 1, "dag_id": "late"}, {"dag_id": "shop"}], {"shop", "late"}),
        ([{"note": 'a "dag_id": "forged" in a text', "dag_id": "true"}], {"true"}),
        ([{"dag_id": "Größe"}], {"Größe"}),
        ([{"dag_id": None}, {}, [1], "dag_id", 5], {None}),
    ],
)
def test_the_dags_of_an_endpoint_are_those_of_all_its_events(
    store: ControlStore, events: list[Any], dags: set[str | None]
) -> None:
    def work(connection: Any) -> None:
        row = ensure_endpoint(connection, EndpointKey("rfr", "raw.orders", "hook"))
        rows = []
        for number, event in enumerate(events):
            commits = {"first_commit": str(number), "last_commit": str(number), "snapshot_id": number}
            text = json.dumps(event, separators=((",", ":") if number % 2 else (", ", ": ")))
            rows.append({"id": str(number), "endpoint_id": row.id, "sequence": number, "event": text, **commits})
        add_deliveries(connection, store.now(connection), rows)

    store.run(work)
    with store.read() as connection:
        assert list(dags_by_endpoint(connection, "rfr").values()) == [dags]
        assert dags_by_endpoint(connection, "another") == {}
