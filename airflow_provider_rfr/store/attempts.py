"""Attempts at deliveries, and deliveries that ended without one: what history is made of."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Select, select

from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES, ENDPOINTS

WITHOUT_ATTEMPT: Final = ("cancelled", "merged")
_A, _D, _E = ATTEMPTS.c, DELIVERIES.c, ENDPOINTS.c
_OF_THE_DELIVERY: Final[tuple[Any, ...]] = (
    *(_D.id, _D.state, _D.reason, _D.first_commit, _D.last_commit, _D.commits, _D.sequence, _D.snapshot_id),
    *(_D.merged_into, _D.created_at, _D.due_at, _E.target, _E.trigger, _E.block),
)


def attempts_since(connection: Connection, lake: str, since: int) -> list[dict[str, Any]]:
    """Attempts that began at that moment or later, the oldest first; times are milliseconds since 1970."""
    query = (
        select(*_OF_THE_DELIVERY, _A.number, _A.at, _A.milliseconds, _A.outcome, _A.status, _A.detail, _A.answer)
        .add_columns(_A.body_sha256)
        .join(DELIVERIES, _A.delivery_id == _D.id)
        .join(ENDPOINTS, _D.endpoint_id == _E.id)
        .where(_E.lake == lake, _A.at >= since)
        .order_by(_A.at, _D.id, _A.number)
    )
    return _rows(connection, query)


def ended_without_attempt(connection: Connection, lake: str, since: int) -> list[dict[str, Any]]:
    """Deliveries that were cancelled or merged into another one before anybody tried them, the oldest first."""
    query = (
        select(*_OF_THE_DELIVERY, _D.ended_at)
        .join(ENDPOINTS, _D.endpoint_id == _E.id)
        .where(_E.lake == lake, _D.state.in_(WITHOUT_ATTEMPT), _D.attempts == 0, _D.ended_at >= since)
        .order_by(_D.ended_at, _D.id)
    )
    return _rows(connection, query)


def _rows(connection: Connection, query: Select[Any]) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in connection.execute(query).mappings()]
