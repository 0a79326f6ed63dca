"""Claiming deliveries: by lease and fencing token, so that any number of deliverers can be at it.

A claim counts the attempt before anything is sent, and raises the row's token. Only who holds the newest token may
say how it ended. A lease that runs out makes the row claimable again, with the next token; whoever lost it finds that
out when it writes. On PostgreSQL rows that others are just claiming are skipped; on SQLite nobody else can be at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, exists, func, or_, select, update

from airflow_provider_rfr.store.endpoints import EndpointRow, insert_missing
from airflow_provider_rfr.store.tables import DELIVERIES, ENDPOINTS

_D: Final = DELIVERIES.c
_COLUMNS: Final = (
    _D.id,
    _D.endpoint_id,
    _D.event,
    _D.attempts,
    _D.failures,
    _D.token,
    _D.started_at,
    _D.created_at,
    _D.commits,
    _D.first_commit,
    _D.last_commit,
    _D.sequence,
    _D.snapshot_id,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to make one attempt.

    :ivar attempt: its number, from 1
    :ivar failures: attempts that were seen to fail since the delivery was made or replayed
    :ivar started_at: when the first attempt was claimed, in milliseconds since 1970
    """

    delivery_id: str
    endpoint_id: int
    event: str
    attempt: int
    failures: int
    token: int
    owner: str
    started_at: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What one deliverer wants of endpoints that are configured alike.

    :ivar room: how many deliveries it can take
    :ivar lease: milliseconds for which it wants them
    :ivar interval: milliseconds between two windows of an endpoint; 0 for every commit by itself
    :ivar strict: one at a time, in the order of the commits
    :ivar probe: first what was tried already, so that with an endpoint that is down a delivery uses up its attempts and
        somebody hears of it, rather than each of a long backlog being tried once
    """

    endpoint_ids: tuple[int, ...]
    room: int
    lease: int
    interval: int = 0
    strict: bool = False
    probe: bool = False


class Window(NamedTuple):
    """Commits that become one delivery."""

    delivery_id: str
    event: str


Merge = Callable[[EndpointRow, Sequence[str]], Window]
"""One delivery for several events, the oldest first; raises ValueError where one of them can't be read."""


def claim(
    connection: Connection, now: int, owner: str, wish: Wish, endpoints: Mapping[int, EndpointRow], merge: Merge
) -> list[Claim]:
    """Claim what is due, the oldest first.

    :param endpoints: rows of the wish's endpoints, as of this transaction
    """
    able = [endpoints[each] for each in wish.endpoint_ids if each in endpoints and endpoints[each].is_open(now)]
    if not able or wish.room < 1:
        return []
    query = _due([row.id for row in able], now)
    if wish.interval:
        query = query.where(or_(_D.started_at.is_not(None), _D.commits > 1))
    if wish.strict:
        query = query.where(~is_behind())
    if wish.probe:
        query = query.order_by(None).order_by(_D.failures.desc(), _D.due_at, _D.sequence)
    rows = list(connection.execute(query.limit(wish.room)))
    if wish.interval:
        for endpoint in able[: max(0, wish.room - len(rows))]:
            rows += _next_window(connection, now, wish, endpoint, merge)
    return _take(connection, now, owner, wish, rows)


def _due(endpoint_ids: Sequence[int], now: int) -> Select[Any]:
    return (
        select(*_COLUMNS)
        .where(_D.endpoint_id.in_(endpoint_ids), _D.state == "pending", _D.due_at <= now, _is_free(now))
        .order_by(_D.due_at, _D.sequence)
        .with_for_update(skip_locked=True)
    )


def _is_free(now: int) -> ColumnElement[bool]:
    return or_(_D.lease_until.is_(None), _D.lease_until < now)


def is_behind() -> ColumnElement[bool]:
    """An older delivery is not done: under way, waiting for its retry, or dead where that is to hold things up."""
    older = DELIVERIES.alias("older")
    # The states first, so that the index leads past all that is delivered.
    undone = (older.c.state.in_(("pending", "dead")), or_(older.c.state == "pending", older.c.on_failure == "block"))
    return exists().where(older.c.endpoint_id == _D.endpoint_id, older.c.sequence < _D.sequence, *undone)


def _next_window(
    connection: Connection, now: int, wish: Wish, endpoint: EndpointRow, merge: Merge
) -> Sequence[Row[Any]]:
    """The delivery of all that came since the endpoint was last fired; none while its interval lasts."""
    # The lock makes two deliverers open one window, not two.
    lock = select(ENDPOINTS.c.last_fired_at).where(ENDPOINTS.c.id == endpoint.id).with_for_update(skip_locked=True)
    found = connection.execute(lock).one_or_none()
    if found is None:
        return ()
    fired = found.last_fired_at
    if fired is not None and fired > now:
        # The clock was set back. Counted from now, the wait can't become longer than the interval.
        fired = now
        connection.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint.id).values(last_fired_at=now))
    if fired is not None and now < fired + wish.interval:
        return ()
    fresh = _due([endpoint.id], now).where(_D.started_at.is_(None), _D.commits == 1).order_by(None)
    rows = list(connection.execute(fresh.order_by(_D.sequence)))
    if not rows or (wish.strict and _has_undone(connection, endpoint, rows[0].sequence)):
        return ()
    connection.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint.id).values(last_fired_at=now))
    return rows if len(rows) == 1 else _merged(connection, now, endpoint, rows, merge)


def _has_undone(connection: Connection, endpoint: EndpointRow, sequence: int) -> bool:
    ahead = select(func.count()).where(_D.endpoint_id == endpoint.id, _D.sequence == sequence, is_behind())
    return bool(connection.execute(ahead).scalar_one())


def _merged(
    connection: Connection, now: int, endpoint: EndpointRow, rows: Sequence[Row[Any]], merge: Merge
) -> Sequence[Row[Any]]:
    try:
        window = merge(endpoint, [row.event for row in rows])
    except ValueError:
        # One that can't be read must not hold up the others: each goes by itself.
        return rows
    last = rows[-1]
    delivery = {
        "id": window.delivery_id,
        "endpoint_id": endpoint.id,
        "first_commit": rows[0].first_commit,
        "last_commit": last.last_commit,
        "commits": len(rows),
        "sequence": last.sequence,
        "snapshot_id": last.snapshot_id,
        "event": window.event,
        "state": "pending",
        "created_at": rows[0].created_at,
        "due_at": now,
    }
    insert_missing(connection, DELIVERIES, [delivery])
    covered = update(DELIVERIES).where(_D.id.in_([row.id for row in rows]))
    connection.execute(covered.values(state="merged", merged_into=window.delivery_id, ended_at=now))
    return list(connection.execute(_due([endpoint.id], now).where(_D.id == window.delivery_id)))


def _take(connection: Connection, now: int, owner: str, wish: Wish, rows: Sequence[Row[Any]]) -> list[Claim]:
    if not rows:
        return []
    taken = update(DELIVERIES).where(_D.id.in_([row.id for row in rows]))
    connection.execute(
        taken.values(
            attempts=_D.attempts + 1,
            token=_D.token + 1,
            lease_owner=owner,
            lease_until=now + wish.lease,
            started_at=func.coalesce(_D.started_at, now),
        )
    )
    return [
        Claim(
            delivery_id=row.id,
            endpoint_id=row.endpoint_id,
            event=row.event,
            attempt=row.attempts + 1,
            failures=row.failures,
            token=row.token + 1,
            owner=owner,
            started_at=now if row.started_at is None else row.started_at,
        )
        for row in rows
    ]
