"""Claims on deliveries: lease and fencing token, so that any number of dispatchers can run.

A claim counts the attempt before anything is sent, and increments the row's token. Only the holder of the newest token
may write the result. A lease that runs out makes the row claimable again. On PostgreSQL, rows that others are claiming
are skipped; on SQLite the write lock excludes others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, case, exists, func, or_, select, update

from airflow_provider_rfr.store.deliveries import EndpointRow
from airflow_provider_rfr.store.engine import insert_missing
from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES, ENDPOINTS

_D: Final = DELIVERIES.c


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to make one attempt.

    :ivar event: the event, as JSON
    :ivar attempt: number of the attempt, from 1
    :ivar failures: attempts whose failure was recorded since the delivery was made or replayed
    :ivar token: fencing token of the claim
    :ivar started_at: when the first attempt was claimed, or the delivery replayed, in milliseconds since 1970
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
class ClaimRequest:
    """A dispatcher's request for deliveries of endpoints that are configured alike.

    :ivar capacity: how many deliveries it can take
    :ivar lease: duration of the claims, in milliseconds
    :ivar interval: milliseconds between two windows of an endpoint; 0 delivers every commit by itself
    :ivar strict: True: an endpoint's deliveries are claimed one at a time, in the order of the commits
    :ivar probe: deliveries that were tried already come first, so that with an endpoint that is down one delivery uses
        up its attempts and becomes a dead letter, rather than each of a long backlog being tried once
    """

    endpoint_ids: tuple[int, ...]
    capacity: int
    lease: int
    interval: int = 0
    strict: bool = False
    probe: bool = False


class MergedCommits(NamedTuple):
    """The id and the event of a delivery for several commits."""

    delivery_id: str
    event: str


_Merge = Callable[[EndpointRow, Sequence[str]], MergedCommits]
"""A function that merges events, the oldest first, into one delivery. It raises ValueError if one can't be read."""


def claim(
    connection: Connection,
    now: int,
    owner: str,
    request: ClaimRequest,
    endpoints: Mapping[int, EndpointRow],
    merge: _Merge,
) -> list[Claim]:
    """Claim due deliveries, the oldest first.

    :param endpoints: rows of the request's endpoints, as of this transaction
    """
    present = [endpoints[endpoint_id] for endpoint_id in request.endpoint_ids if endpoint_id in endpoints]
    able = [endpoint for endpoint in present if endpoint.is_enabled and not endpoint.is_circuit_open(now)]
    if not able or request.capacity < 1:
        return []
    query = _due([row.id for row in able], now)
    if request.interval:
        query = query.where(or_(_D.started_at.is_not(None), _D.commits > 1))
    if request.strict:
        query = query.where(~_is_behind())
    if request.probe:
        query = query.order_by(None).order_by(_D.failures.desc(), _D.due_at, _D.sequence)
    rows = list(connection.execute(query.limit(request.capacity)))
    if request.interval:
        for endpoint in able[: max(0, request.capacity - len(rows))]:
            rows += _next_window(connection, now, request, endpoint, merge)
    return _take(connection, now, owner, request, rows)


def _due(endpoint_ids: Sequence[int], now: int) -> Select[Any]:
    free = or_(_D.lease_until.is_(None), _D.lease_until < now)
    return (
        select(DELIVERIES)
        .where(_D.endpoint_id.in_(endpoint_ids), _D.state == "pending", _D.due_at <= now, free)
        .order_by(_D.due_at, _D.sequence)
        # Rows that another dispatcher is claiming at this moment are left to it.
        .with_for_update(skip_locked=True)
    )


def _is_behind() -> ColumnElement[bool]:
    """Return the condition that an older delivery of the endpoint blocks this one.

    It does while it is pending, or if it is dead and the endpoint's ``onFailure`` is ``block``.
    """
    older = DELIVERIES.alias("older")
    # The list of states is redundant, and lets the index on endpoint, state and sequence skip delivered rows.
    undone = (older.c.state.in_(("pending", "dead")), or_(older.c.state == "pending", older.c.on_failure == "block"))
    return exists().where(older.c.endpoint_id == _D.endpoint_id, older.c.sequence < _D.sequence, *undone)


def _next_window(
    connection: Connection, now: int, request: ClaimRequest, endpoint: EndpointRow, merge: _Merge
) -> Sequence[Row[Any]]:
    """Return the delivery of all new commits of an endpoint; empty until its interval has passed."""
    # The lock lets only one of two dispatchers open a window.
    lock = select(ENDPOINTS.c.last_fired_at).where(ENDPOINTS.c.id == endpoint.id).with_for_update(skip_locked=True)
    locked = connection.execute(lock).one_or_none()
    if locked is None:
        return ()
    fired = locked.last_fired_at
    if fired is not None and fired > now:
        # The clock was set back. Counted from now, the wait can't become longer than the interval.
        fired = now
        connection.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint.id).values(last_fired_at=now))
    if fired is not None and now < fired + request.interval:
        return ()
    fresh = _due([endpoint.id], now).where(_D.started_at.is_(None), _D.commits == 1).order_by(None)
    rows = list(connection.execute(fresh.order_by(_D.sequence)))
    if rows and request.strict:
        first = select(_D.id).where(_D.endpoint_id == endpoint.id, _D.sequence == rows[0].sequence)
        if connection.execute(first.where(_is_behind()).limit(1)).first() is not None:
            return ()
    if not rows:
        return ()
    # In the transaction that claims the window: a process that dies after it has used up this interval, so no second
    # window is opened in it.
    connection.execute(update(ENDPOINTS).where(ENDPOINTS.c.id == endpoint.id).values(last_fired_at=now))
    return rows if len(rows) == 1 else _merged(connection, now, endpoint, rows, merge)


def _merged(
    connection: Connection, now: int, endpoint: EndpointRow, rows: Sequence[Row[Any]], merge: _Merge
) -> Sequence[Row[Any]]:
    try:
        window = merge(endpoint, [row.event for row in rows])
    except ValueError:
        # An event that can't be read must not block the others: each is delivered by itself.
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
        "dag_ids": frozenset().union(*(row.dag_ids for row in rows)),
        "state": "pending",
        "created_at": rows[0].created_at,
        "due_at": now,
    }
    # Its id follows from the commits that it covers. So a transaction whose commit got no answer can run again.
    insert_missing(connection, DELIVERIES, [delivery])
    covered = update(DELIVERIES).where(_D.id.in_([row.id for row in rows]))
    connection.execute(covered.values(state="merged", merged_into=window.delivery_id, ended_at=now))
    return list(connection.execute(_due([endpoint.id], now).where(_D.id == window.delivery_id)))


def _take(connection: Connection, now: int, owner: str, request: ClaimRequest, rows: Sequence[Row[Any]]) -> list[Claim]:
    if not rows:
        return []
    taken = update(DELIVERIES).where(_D.id.in_([row.id for row in rows]))
    # Counted before anything is sent: a call that kills its dispatcher each time must use up its attempts as well.
    connection.execute(
        taken.values(
            attempts=_D.attempts + 1,
            token=_D.token + 1,
            lease_owner=owner,
            lease_until=now + request.lease,
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


class AttemptOutcome(str, Enum):
    """The outcome of an attempt, for its delivery."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DEAD = "dead"
    UNSENT = "unsent"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a claim; nothing in it is secret.

    :ivar ending: outcome; a ``RETRY`` becomes ``DEAD`` if the delivery has no attempts or time left
    :ivar reason: reason of a failure, one word: ``http``, ``connection``, ``template`` ...
    :ivar detail: explanation of a failure, for people
    :ivar answer: the endpoint's answer, at most 2 KB, masked
    :ivar wait: milliseconds until the next attempt, for ``RETRY`` and ``UNSENT``
    :ivar asked: milliseconds that the endpoint asked to wait (``Retry-After``)
    :ivar at: when the attempt began, in milliseconds since 1970
    :ivar milliseconds: duration of the attempt
    :ivar on_failure: value of the endpoint's ``onFailure``, stored with a dead delivery
    :ivar notified: True: no notification is to be sent for a dead delivery
    """

    claim: Claim
    ending: AttemptOutcome
    reason: str | None = None
    detail: str | None = None
    status: int | None = None
    answer: str | None = None
    body_sha256: str | None = None
    wait: int = 0
    asked: int = 0
    at: int = 0
    milliseconds: int = 0
    on_failure: str | None = None
    notified: bool = False


_OF_ATTEMPTS: Final = ("at", "milliseconds", "status", "detail", "answer", "body_sha256")


def settle(connection: Connection, now: int, results: Sequence[Result]) -> set[str]:
    """Write the results, and return the ids of deliveries that another dispatcher has claimed, or that were cancelled.

    Their attempts are recorded as well: the endpoint has received them.
    """
    by_id = {result.claim.delivery_id: result.claim for result in results}
    query = select(_D.id, _D.token, _D.lease_owner).where(_D.id.in_(sorted(by_id)), _D.state == "pending")
    # Locked in one order, so that two dispatchers that settle never wait for each other.
    rows = connection.execute(query.order_by(_D.id).with_for_update())
    # The owner as well as the token: a store that was lost and filled again counts its tokens from 0.
    ours = {by_id[row.id] for row in rows if (row.token, row.lease_owner) == (by_id[row.id].token, by_id[row.id].owner)}
    for ending in AttemptOutcome:
        changes = [_values(result, now) for result in results if result.ending is ending and result.claim in ours]
        if changes:
            names = [name for name in changes[0] if name != "key"]
            change = update(DELIVERIES).where(_D.id == bindparam("key"))
            connection.execute(change.values({name: bindparam(name) for name in names}), changes)
    attempts = [
        {
            "delivery_id": result.claim.delivery_id,
            "number": result.claim.attempt,
            "outcome": result.ending.value,
            **{name: getattr(result, name) for name in _OF_ATTEMPTS},
        }
        for result in results
        if result.ending is not AttemptOutcome.UNSENT
    ]
    # Only the missing ones: a transaction whose commit got no answer is run again.
    insert_missing(connection, ATTEMPTS, attempts)
    return {result.claim.delivery_id for result in results if result.claim not in ours}


def _values(result: Result, now: int) -> dict[str, Any]:
    claim = result.claim
    free = {"key": claim.delivery_id, "lease_owner": None, "lease_until": None, "due_at": now + result.wait}
    if result.ending is AttemptOutcome.UNSENT:
        # The claim has counted an attempt, and nothing was sent: it must not use up the delivery's attempts.
        return {**free, "attempts": claim.attempt - 1}
    answered = {"reason": result.reason, "detail": result.detail, "status": result.status}
    values = {**free, **answered, "body_sha256": result.body_sha256}
    if result.ending is AttemptOutcome.DELIVERED:
        return {**values, "state": "delivered", "ended_at": now}
    values["failures"] = claim.failures + 1
    if result.ending is AttemptOutcome.RETRY:
        return values
    notified_at = now if result.notified else None
    return {**values, "state": "dead", "ended_at": now, "on_failure": result.on_failure, "notified_at": notified_at}


def next_due(
    connection: Connection, requests: Iterable[ClaimRequest], endpoints: Mapping[int, EndpointRow]
) -> int | None:
    """Return the time at which the next delivery can be claimed, in milliseconds since 1970; None if none is pending.

    The time may be past.

    Paused and disabled endpoints do not count. A delivery that is claimed counts from the end of its lease.
    """
    moments: list[int] = []
    for request in requests:
        present = (endpoints[endpoint_id] for endpoint_id in request.endpoint_ids if endpoint_id in endpoints)
        enabled = {endpoint.id: endpoint for endpoint in present if endpoint.is_enabled}
        # By endpoint, and by whether it was never tried: when the first delivery can be claimed.
        fresh = case((and_(_D.started_at.is_(None), _D.commits == 1), 1), else_=0)
        able = case((_D.lease_until > _D.due_at, _D.lease_until), else_=_D.due_at)
        query = select(_D.endpoint_id, fresh.label("fresh"), func.min(able).label("moment"))
        query = query.where(_D.endpoint_id.in_(enabled), _D.state == "pending").group_by(_D.endpoint_id, fresh)
        if request.strict:
            query = query.where(~_is_behind())
        for row in connection.execute(query) if enabled else ():
            endpoint, moment = enabled[row.endpoint_id], int(row.moment)
            if endpoint.open_until is not None:
                moment = max(moment, endpoint.open_until)
            if request.interval and row.fresh and endpoint.last_fired_at is not None:
                moment = max(moment, endpoint.last_fired_at + request.interval)
            moments.append(moment)
    return min(moments, default=None)
