"""What is asked of deliveries: rows that are kept, and queries whose costs do not grow with all that was delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from airflow_provider_rfr.store import deliveries as rows
from airflow_provider_rfr.store.deliveries import EndpointKey, add_deliveries, ensure_endpoint
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.tables import DELIVERIES
from airflow_provider_rfr.webhooks import operations
from benchmarks.deliveries import LAKE, QUERIES, fill
from tests.unit.store.conftest import Call
from tests.webhook_receiver import FakeClock

DAY = 86_400


def test_the_dags_of_an_endpoint_are_those_of_all_its_deliveries(call: Call) -> None:
    endpoint, deliveries = call(ensure_endpoint, EndpointKey(LAKE, "raw.orders", "hook")), []
    for number, dag_id in enumerate(("shop", None, "late", "shop")):
        commit = {"first_commit": str(number), "last_commit": str(number), "snapshot_id": number, "event": "{}"}
        ids = {"id": str(number), "endpoint_id": endpoint.id, "dag_ids": {dag_id}}
        deliveries.append({"sequence": number, **ids, **commit})
    assert call(add_deliveries, 1, deliveries[:2]) == 2
    assert call(add_deliveries, 1, deliveries) == 2
    assert [row.dag_ids for row in call(rows.endpoints_of_table, LAKE)] == [{"shop", "late", None}]


def plans(store: ControlStore, connection: Connection, query: Callable[[], Any]) -> str:
    """The plans of the statements that the query executes."""
    executed: list[tuple[str, Any]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        executed.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    query()
    event.remove(connection, "before_cursor_execute", note)
    explain = "EXPLAIN " if store.is_postgres else "EXPLAIN QUERY PLAN "
    found = [row for statement, given in executed for row in connection.exec_driver_sql(explain + statement, given)]
    return "\n".join(str(row[0] if store.is_postgres else row[3]) for row in found)


def full_scans(plan: str) -> list[str]:
    """Return the lines of a plan that read a whole table, but for small tables and for subqueries."""
    small = ("rfr_webhook_endpoints", "rfr_history_rows")
    lines = [line.strip() for line in plan.splitlines() if not any(table in line for table in small)]
    scans = [line for line in lines if "Seq Scan on" in line or (line.startswith("SCAN ") and "USING" not in line)]
    return [line for line in scans if "anon_1" not in line]


@pytest.mark.parametrize("is_analyzed", [True, False])
def test_no_query_reads_all_that_was_ever_delivered(store: ControlStore, is_analyzed: bool) -> None:
    ids = fill(store, 50, 10_000)

    def work(connection: Connection) -> dict[str, str]:
        # PostgreSQL analyzes by itself, after a while.
        if is_analyzed or store.is_postgres:
            connection.execute(text("ANALYZE"))
        now = store.now(connection)
        return {
            name: plans(store, connection, lambda query=query: query(connection, ids, now))  # type: ignore[misc]
            for name, query in QUERIES.items()
        }

    found = store.run(work)
    print("\n".join(f"== {name}\n{plan}" for name, plan in found.items()))
    assert {name: full_scans(plan) for name, plan in found.items()} == {name: [] for name in QUERIES}
    used = {
        "newest attempts": "ix_rfr_webhook_attempts",
        "attempts of a minute": "ix_rfr_webhook_attempts",
        "ended without attempt": "ix_rfr_webhook_ended",
        "newest deliveries": "ix_rfr_webhook_created",
        "nothing to delete": "ix_rfr_webhook_ended",
    }
    assert {name: index for name, index in used.items() if index not in found[name]} == {}


def change(connection: Connection, number: int, **values: Any) -> None:
    """Write columns of a delivery that :func:`fill` made."""
    connection.execute(DELIVERIES.update().where(DELIVERIES.c.id == f"{number:032x}").values(**values))


def test_what_ended_long_ago_is_deleted_in_parts_and_nothing_undelivered_is(
    store: ControlStore, call: Call, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 5, 105)
    monkeypatch.setattr(operations, "_FORGOTTEN_AT_ONCE", 30)
    # A window that is not sent yet, with a commit that was merged into it, and one that was given up.
    call(change, 0, state="merged", merged_into=f"{104:032x}")
    call(change, 1, state="merged", merged_into=f"{2:032x}")
    call(change, 103, state="dead", ended_at=1)
    clock.sleep(31 * DAY)
    assert operations.forget(store, 32 * DAY) == 0
    assert operations.forget(store, 30 * DAY) == 99
    kept = {delivery.id: delivery.state for delivery in operations.deliveries(store)}
    pending = {f"{n:032x}": "pending" for n in (100, 101, 102, 104)}
    assert kept == {f"{0:032x}": "merged", f"{103:032x}": "dead", **pending}
    with store.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM rfr_webhook_attempts")).scalar_one() == 1


def test_what_is_merged_counts_as_unsent_until_its_window_is_sent(store: ControlStore, call: Call) -> None:
    first, second = fill(store, 2, 6)
    call(change, 0, state="merged", merged_into=f"{4:032x}")
    assert call(rows.first_unsent, [first, second]) == {first: 0, second: 5}
    call(change, 4, state="delivered")
    assert call(rows.first_unsent, [first, second]) == {second: 5}
