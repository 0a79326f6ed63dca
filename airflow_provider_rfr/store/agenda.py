"""When there will be something to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, case, func, select

from airflow_provider_rfr.store.claims import Wish, is_behind
from airflow_provider_rfr.store.endpoints import EndpointRow
from airflow_provider_rfr.store.tables import DELIVERIES

_D: Final = DELIVERIES.c


def next_due(connection: Connection, wishes: Iterable[Wish], endpoints: Mapping[int, EndpointRow]) -> int | None:
    """When the next delivery can be claimed, in milliseconds since 1970; it may be past. None if none is pending.

    Paused and disabled endpoints do not count. A delivery that somebody is at counts from the end of the lease.
    """
    moments: list[int] = []
    for wish in wishes:
        able = [endpoints[each] for each in wish.endpoint_ids if each in endpoints and _is_on(endpoints[each])]
        by_id = {row.id: row for row in able}
        moments += [_moment(row, by_id[row.endpoint_id], wish) for row in _earliest(connection, wish, list(by_id))]
    return min(moments, default=None)


def _is_on(row: EndpointRow) -> bool:
    return row.paused_at is None and row.disabled_at is None


def _earliest(connection: Connection, wish: Wish, endpoint_ids: list[int]) -> list[Row[Any]]:
    if not endpoint_ids:
        return []
    fresh = case((and_(_D.started_at.is_(None), _D.commits == 1), 1), else_=0)
    able = case((_D.lease_until > _D.due_at, _D.lease_until), else_=_D.due_at)
    query = select(_D.endpoint_id, fresh.label("fresh"), func.min(able).label("moment"))
    query = query.where(_D.endpoint_id.in_(endpoint_ids), _D.state == "pending").group_by(_D.endpoint_id, fresh)
    if wish.strict:
        query = query.where(~is_behind())
    return list(connection.execute(query))


def _moment(row: Row[Any], endpoint: EndpointRow, wish: Wish) -> int:
    moment = int(row.moment)
    if endpoint.resting_until is not None:
        moment = max(moment, endpoint.resting_until)
    if wish.interval and row.fresh and endpoint.last_fired_at is not None:
        moment = max(moment, endpoint.last_fired_at + wish.interval)
    return moment
