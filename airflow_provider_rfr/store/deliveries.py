"""Rows of deliveries: made, looked at, and changed by people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, delete, func, or_, select, update

from airflow_provider_rfr.store.endpoints import LONGEST_REST, EndpointKey, insert_missing
from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES, ENDPOINTS

STATES: Final = ("pending", "delivered", "dead", "cancelled", "merged")
REPLAYABLE: Final = ("dead", "cancelled", "delivered")
CANCELLABLE: Final = ("pending", "dead")
_D, _E = DELIVERIES.c, ENDPOINTS.c


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """What one endpoint is owed for one commit."""

    id: str
    endpoint_id: int
    commit_id: str
    sequence: int
    snapshot_id: int
    event: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery as people see it. Times are milliseconds since 1970.

    :ivar commits: how many it stands for; more than one after a debounce
    :ivar leased: somebody is at it, or died at it not long ago
    """

    id: str
    key: EndpointKey
    first_commit: str
    last_commit: str
    commits: int
    sequence: int
    snapshot_id: int
    event: str
    state: str
    reason: str | None
    detail: str | None
    attempts: int
    failures: int
    created_at: int
    due_at: int
    started_at: int | None
    ended_at: int | None
    lease_owner: str | None
    lease_until: int | None
    merged_into: str | None
    status: int | None
    body_sha256: str | None
    on_failure: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, of which an answer or a failure was seen."""

    number: int
    at: int
    milliseconds: int
    outcome: str
    status: int | None
    detail: str | None
    answer: str | None
    body_sha256: str | None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which deliveries; what is left out does not matter."""

    lake: str | None = None
    table: str | None = None
    trigger: str | None = None
    block: str | None = None
    states: Collection[str] = ()
    ids: Collection[str] = ()
    commit_id: str | None = None
    reason: str | None = None

    def condition(self) -> list[ColumnElement[bool]]:
        """For a query that joins endpoints."""
        named = ((_E.lake, self.lake), (_E.target, self.table), (_E.trigger, self.trigger), (_E.block, self.block))
        pairs = (*named, (_D.reason, self.reason))
        found: list[ColumnElement[bool]] = [column == value for column, value in pairs if value is not None]
        if self.states:
            found.append(_D.state.in_(list(self.states)))
        if self.ids:
            found.append(_D.id.in_(list(self.ids)))
        if self.commit_id is not None:
            found.append(or_(_D.first_commit == self.commit_id, _D.last_commit == self.commit_id))
        return found


EVERYTHING: Final = Selection()


def add_deliveries(connection: Connection, now: int, deliveries: Sequence[NewDelivery]) -> int:
    """Make the rows that are missing; returns how many were."""
    before = _count_of(connection, [each.id for each in deliveries])
    for start in range(0, len(deliveries), 500):
        rows = [
            {
                "id": each.id,
                "endpoint_id": each.endpoint_id,
                "first_commit": each.commit_id,
                "last_commit": each.commit_id,
                "sequence": each.sequence,
                "snapshot_id": each.snapshot_id,
                "event": each.event,
                "state": "pending",
                "created_at": now,
                "due_at": now,
            }
            for each in sorted(deliveries[start : start + 500], key=lambda each: each.id)
        ]
        insert_missing(connection, DELIVERIES, rows)
    return len(deliveries) - before


def _count_of(connection: Connection, ids: Sequence[str]) -> int:
    counts = (
        connection.execute(select(func.count()).where(_D.id.in_(ids[start : start + 500]))).scalar_one()
        for start in range(0, len(ids), 500)
    )
    return sum(counts)


def select_deliveries(connection: Connection, selection: Selection, limit: int | None = None) -> list[Delivery]:
    """The newest first."""
    columns = [column for column in _D if column.name not in ("endpoint_id", "token", "told_at")]
    query = _joined(select(*columns, _E.lake, _E.target, _E.trigger, _E.block), selection)
    query = query.order_by(_D.created_at.desc(), _D.sequence.desc(), _D.id).limit(limit)
    return [_delivery(dict(row)) for row in connection.execute(query).mappings()]


def attempts_of(connection: Connection, delivery_id: str) -> list[Attempt]:
    """Attempts that ended, the first one first."""
    names = Attempt.__dataclass_fields__
    columns = [ATTEMPTS.c[name] for name in names]
    query = select(*columns).where(ATTEMPTS.c.delivery_id == delivery_id).order_by(ATTEMPTS.c.number)
    return [Attempt(**row) for row in connection.execute(query).mappings()]


def count_states(connection: Connection, selection: Selection) -> dict[str, int]:
    """Deliveries by state; states without any are there with 0."""
    query = _joined(select(_D.state, func.count()), selection).group_by(_D.state)
    found = dict.fromkeys(STATES, 0)
    return {**found, **{row[0]: row[1] for row in connection.execute(query)}}


def count_pending(connection: Connection, endpoint_ids: Collection[int]) -> int:
    """Pending deliveries of these endpoints."""
    query = select(func.count()).where(_D.endpoint_id.in_(endpoint_ids), _D.state == "pending")
    found: int = connection.execute(query).scalar_one()
    return found


def first_unsent(connection: Connection, endpoint_ids: Collection[int]) -> dict[int, int]:
    """By endpoint, the sequence number of the first commit that is not sent; no entry where all are.

    A delivery that was merged is unsent while the one that it was merged into is.
    """
    pending = select(_D.id).where(_D.state == "pending")
    unsent = or_(_D.state == "pending", _D.merged_into.in_(pending))
    query = select(_D.endpoint_id, func.min(_D.sequence)).where(_D.endpoint_id.in_(endpoint_ids), unsent)
    return {row[0]: row[1] for row in connection.execute(query.group_by(_D.endpoint_id))}


def oldest_pending(connection: Connection, selection: Selection) -> int | None:
    """When the oldest pending delivery was made."""
    query = _joined(select(func.min(_D.created_at)), selection).where(_D.state == "pending")
    found: int | None = connection.execute(query).scalar_one()
    return found


def set_pending(connection: Connection, now: int, ids: Iterable[str]) -> None:
    """Let them be delivered again, under the same id and with a new budget of attempts."""
    again = {"state": "pending", "due_at": now, "failures": 0, "started_at": now, "ended_at": None, "told_at": None}
    nobody = {"lease_owner": None, "lease_until": None, "reason": None, "detail": None, "on_failure": None}
    ended = update(DELIVERIES).where(_D.id.in_(list(ids)), _D.state.in_(REPLAYABLE))
    connection.execute(ended.values(**again, **nobody))


def set_cancelled(connection: Connection, now: int, ids: Iterable[str], detail: str) -> None:
    """Let them never be delivered; who is at one of them can't say any more how it ended."""
    values = {"state": "cancelled", "ended_at": now, "lease_owner": None, "lease_until": None, "detail": detail}
    undone = update(DELIVERIES).where(_D.id.in_(list(ids)), _D.state.in_(CANCELLABLE))
    connection.execute(undone.values(token=_D.token + 1, **values))


def untold_deaths(connection: Connection, endpoint_ids: Collection[int], limit: int = 100) -> list[Delivery]:
    """The dead of whom nobody was told yet."""
    query = select(_D.id).where(_D.endpoint_id.in_(endpoint_ids), _D.state == "dead", _D.told_at.is_(None))
    ids = list(connection.execute(query.order_by(_D.ended_at).limit(limit)).scalars())
    return select_deliveries(connection, Selection(ids=ids)) if ids else []


def set_told(connection: Connection, now: int, delivery_id: str) -> None:
    """Somebody was told of its death."""
    connection.execute(update(DELIVERIES).where(_D.id == delivery_id).values(told_at=now))


def mend_times(connection: Connection, now: int, endpoint_ids: Collection[int], longest_lease: int) -> None:
    """Bring back what a clock that ran ahead has put into a far future: no lease and no wait is ever that long."""
    pending = update(DELIVERIES).where(_D.endpoint_id.in_(endpoint_ids), _D.state == "pending")
    late = pending.where(_D.lease_until > now + longest_lease).values(lease_until=now + longest_lease)
    connection.execute(late)
    connection.execute(pending.where(_D.due_at > now + LONGEST_REST).values(due_at=now))


def delete_ended(connection: Connection, before: int, selection: Selection) -> int:
    """Forget deliveries that ended before, the dead excepted; returns how many."""
    ended = ("delivered", "cancelled", "merged")
    query = _joined(select(_D.id), selection).where(_D.state.in_(ended), _D.ended_at < before)
    done = connection.execute(delete(DELIVERIES).where(_D.id.in_(query)))
    return done.rowcount


def _joined(query: Select[Any], selection: Selection) -> Select[Any]:
    return query.select_from(DELIVERIES.join(ENDPOINTS)).where(*selection.condition())


def _delivery(values: dict[str, Any]) -> Delivery:
    key = EndpointKey(values.pop("lake"), values.pop("target"), values.pop("trigger"), values.pop("block"))
    return Delivery(key=key, **values)
