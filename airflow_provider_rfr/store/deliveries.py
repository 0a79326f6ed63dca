"""Rows of deliveries, attempts and endpoints: created, selected, and changed by hand; and the queue of history rows.

Rows of history tables, of deliveries as well as of refreshes and deploys, are queued until they are appended to the
lake. A key stays for some days after its row was appended, so that a process that reports the row again adds nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Select,
    String,
    cast,
    delete,
    exists,
    func,
    or_,
    select,
    tuple_,
    update,
)

from airflow_provider_rfr.store.engine import in_chunks, insert_missing
from airflow_provider_rfr.store.tables import ATTEMPTS, DELIVERIES, ENDPOINTS, HISTORY

_A: Final = ATTEMPTS.c
_D, _E, _H = DELIVERIES.c, ENDPOINTS.c, HISTORY.c
_OF_THE_DELIVERY: Final[tuple[Any, ...]] = (
    *(_D.id, _D.state, _D.reason, _D.first_commit, _D.last_commit, _D.commits, _D.sequence, _D.snapshot_id),
    *(_D.merged_into, _D.created_at, _D.due_at, _E.target, _E.trigger, _E.block),
)


def _is_of(lake: str | None) -> ColumnElement[bool]:
    """Return the condition that a delivery is of this lake, for queries by time.

    With a plain comparison, SQLite would begin with the endpoints, and read every delivery instead of the newest ones.
    """
    endpoints = ENDPOINTS.alias("of_lake")
    return exists().where(endpoints.c.id == _D.endpoint_id, endpoints.c.lake == lake)


def _attempts(lake: str, *more: ColumnElement[Any]) -> Select[Any]:
    """Return a query for the attempts of a lake, with further columns; times are milliseconds since 1970."""
    attempt = (_A.number, _A.at, _A.milliseconds, _A.outcome, _A.status, _A.detail, _A.answer)
    query = select(*_OF_THE_DELIVERY, *attempt, *more).join(DELIVERIES, _A.delivery_id == _D.id)
    return query.join(ENDPOINTS, _D.endpoint_id == _E.id).where(_is_of(lake))


def attempts_since(connection: Connection, lake: str, since: int, unreported_in: str) -> list[RowMapping]:
    """Return attempts that began at that moment or later, the oldest first.

    :param unreported_in: history table; attempts that were reported to it in the last days are left out
    """
    key = _D.id + "/" + cast(_A.number, String)
    query = _attempts(lake, _A.body_sha256).where(_A.at >= since, is_new(lake, unreported_in, key))
    return list(connection.execute(query.order_by(_A.at, _D.id, _A.number)).mappings())


def newest_attempts(connection: Connection, lake: str, limit: int) -> list[RowMapping]:
    """Return attempts that ended, the newest first."""
    query = _attempts(lake, _D.endpoint_id, _D.dag_ids).order_by(_A.at.desc(), _A.delivery_id.desc()).limit(limit)
    return list(connection.execute(query).mappings())


def counts_by_endpoint(connection: Connection, lake: str) -> dict[int, dict[str, int]]:
    """Count the deliveries by endpoint's id and state; an endpoint without deliveries has no entry."""
    query = (
        select(_D.endpoint_id, _D.state, func.count())
        .join(ENDPOINTS, _D.endpoint_id == _E.id)
        .where(_E.lake == lake)
        .group_by(_D.endpoint_id, _D.state)
    )
    counts: dict[int, dict[str, int]] = {}
    for endpoint, state, count in connection.execute(query):
        counts.setdefault(endpoint, dict.fromkeys(_STATES, 0))[state] = count
    return counts


def ended_without_attempt(connection: Connection, lake: str, since: int) -> list[RowMapping]:
    """Return deliveries that were cancelled or merged into another one before any attempt, the oldest first."""
    query = (
        select(*_OF_THE_DELIVERY, _D.ended_at)
        .join(ENDPOINTS, _D.endpoint_id == _E.id)
        .where(_is_of(lake), _D.ended_at >= since)
        .where(_D.state.in_(("cancelled", "merged")), _D.attempts == 0)
        .order_by(_D.ended_at, _D.id)
    )
    return list(connection.execute(query).mappings())


_KEY: Final = ("lake", "target", "trigger", "block")
_LONGEST_OPEN: Final = 25 * 3600 * 1000
"""Milliseconds. A time that is further in the future was written by a clock that ran ahead, and does not count."""


class EndpointKey(NamedTuple):
    """The key of an endpoint: a trigger of a block at a table.

    :ivar lake: the catalog's name
    :ivar block: the block's name; two blocks may have triggers of one name
    """

    lake: str
    table: str
    trigger: str
    block: str = ""

    @property
    def name(self) -> str:
        """Return the trigger as ``block/trigger``, as people write it and as ids contain it."""
        return f"{self.block}/{self.trigger}" if self.block else self.trigger

    def __str__(self) -> str:
        return f"trigger {self.name} of {self.lake}.{self.table}"


def parts_of(name: str) -> tuple[str, str | None]:
    """Return trigger and block of ``block/trigger``; the block is None if the name is only a trigger's."""
    block, slash, trigger = name.rpartition("/")
    return trigger, block if slash else None


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """An endpoint's row.

    :ivar address: digest of the address in its block; None before the first dispatcher
    :ivar conn_id: the connection that it is called with; None where its block has the whole address
    :ivar places: where the block was found, as JSON, the newest last
    :ivar table_uuid: UUID of the table that ``since`` and ``enqueued_until`` refer to; a new table has another one
    :ivar since: commits from this sequence number on are delivered
    :ivar enqueued_until: commits up to this sequence number have been looked at
    :ivar failing: consecutive failed attempts
    :ivar open_until: time until which the circuit breaker is open, in milliseconds since 1970
    :ivar disabled_address: digest of the address that answered 410
    :ivar dag_ids: DAGs whose runs made the commits of its deliveries; None in it for a commit of no DAG
    """

    id: int
    key: EndpointKey
    address: str | None
    conn_id: str | None
    places: str | None
    table_uuid: str | None
    since: int | None
    enqueued_until: int | None
    last_fired_at: int | None
    failing: int
    open_until: int | None
    paused_at: int | None
    disabled_at: int | None
    disabled_reason: str | None
    disabled_address: str | None
    dag_ids: frozenset[str | None]

    def is_circuit_open(self, now: int) -> bool:
        return self.open_until is not None and now < self.open_until <= now + _LONGEST_OPEN

    @property
    def is_enabled(self) -> bool:
        return self.paused_at is None and self.disabled_at is None

    @property
    def newest_place(self) -> str:
        """Return the newest task or file in which its block was found; empty before the first dispatcher."""
        places: list[str] = json.loads(self.places or "[]")
        return places[-1] if places else ""


def ensure_endpoint(connection: Connection, key: EndpointKey) -> EndpointRow:
    """Return the endpoint's row; insert it if it is missing, and lock it until the transaction ends."""
    insert_missing(connection, ENDPOINTS, [dict(zip(_KEY, key, strict=True))])
    return _row(connection.execute(select(ENDPOINTS).where(_is_key([key])).with_for_update()).mappings().one())


def load_endpoints(connection: Connection, keys: Iterable[EndpointKey]) -> dict[EndpointKey, EndpointRow]:
    """Return the rows of the keys that have one."""
    return {row.key: row for chunk in in_chunks(keys) for row in _endpoints(connection, _is_key(chunk))}


def endpoints_with_ids(connection: Connection, ids: Iterable[int]) -> dict[int, EndpointRow]:
    return {row.id: row for row in _endpoints(connection, _E.id.in_(sorted(ids)))}


def endpoints_of_table(connection: Connection, lake: str, table: str | None = None) -> list[EndpointRow]:
    """Return all endpoints of a lake or of one of its tables, sorted by table and trigger."""
    of_table = [] if table is None else [_E.target == table]
    return _endpoints(connection, _E.lake == lake, *of_table)


def endpoints_called_with(connection: Connection, conn_id: str) -> list[EndpointKey]:
    """Return the endpoints that are called with the connection, as far as deliveries to them were created."""
    return [row.key for row in _endpoints(connection, _E.conn_id == conn_id)]


def _endpoints(connection: Connection, *where: ColumnElement[bool]) -> list[EndpointRow]:
    query = select(ENDPOINTS).where(*where).order_by(*(_E[name] for name in _KEY))
    return [_row(row) for row in connection.execute(query).mappings()]


def pause_endpoints_called_with(connection: Connection, now: int, conn_id: str) -> None:
    """Pause the endpoints that are called with the connection, and remove its id from their rows."""
    called = _endpoints(connection, _E.conn_id == conn_id)
    change_endpoints(connection, [row.id for row in called], conn_id=None, paused_at=now)


def change_endpoints(connection: Connection, ids: Iterable[int], **values: Any) -> int:
    """Write columns of some endpoints, and return the number of changed rows."""
    wanted = sorted(ids)
    # Locked in one order by all transactions, so that they can't deadlock.
    connection.execute(select(_E.id).where(_E.id.in_(wanted)).order_by(_E.id).with_for_update()).all()
    return connection.execute(update(ENDPOINTS).where(_E.id.in_(wanted)).values(**values)).rowcount


def _is_key(keys: Sequence[EndpointKey]) -> Any:
    return tuple_(*(_E[name] for name in _KEY)).in_(keys)


def _row(row: RowMapping) -> EndpointRow:
    return EndpointRow(**_with_key(row))


def _with_key(row: RowMapping) -> dict[str, Any]:
    values = dict(row)
    return {"key": EndpointKey(*(values.pop(name) for name in _KEY)), **values}


_STATES: Final = ("pending", "delivered", "dead", "cancelled", "merged")
REPLAYABLE: Final = ("dead", "cancelled", "delivered")
CANCELLABLE: Final = ("pending", "dead")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery with its endpoint. Times are milliseconds since 1970.

    :ivar commits: number of commits that it covers; more than one if deliveries were merged into it
    :ivar dag_ids: DAGs whose runs made the commits; None in it for a commit of no DAG
    :ivar lease_until: time until which it is claimed, perhaps by a process that died
    """

    id: str
    key: EndpointKey
    first_commit: str
    last_commit: str
    commits: int
    sequence: int
    snapshot_id: int
    event: str
    dag_ids: frozenset[str | None]
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
class Selection:
    """A filter of deliveries; a field that is left out does not restrict it."""

    lake: str | None = None
    tables: Collection[str] = ()
    trigger: str | None = None
    block: str | None = None
    states: Collection[str] = ()
    ids: Collection[str] = ()
    commit_id: str | None = None
    snapshot_id: int | None = None
    reason: str | None = None

    def condition(self) -> list[ColumnElement[bool]]:
        """Return the condition for a query that joins endpoints."""
        by_time = self.lake is not None and not self.tables and self.trigger is None
        named = ((_E.lake, None if by_time else self.lake), (_E.trigger, self.trigger), (_E.block, self.block))
        pairs = (*named, (_D.reason, self.reason), (_D.snapshot_id, self.snapshot_id))
        conditions: list[ColumnElement[bool]] = [column == value for column, value in pairs if value is not None]
        several = ((_E.target, self.tables), (_D.state, self.states), (_D.id, self.ids))
        conditions += [column.in_(list(values)) for column, values in several if values]
        if by_time:
            conditions.append(_is_of(self.lake))
        if self.commit_id is not None:
            conditions.append(or_(_D.first_commit == self.commit_id, _D.last_commit == self.commit_id))
        return conditions


EVERYTHING: Final = Selection()


def add_deliveries(connection: Connection, now: int, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the missing rows, pending and due now, and return their number."""
    present = 0
    pending: dict[str, Any] = {"state": "pending", "created_at": now, "due_at": now}
    for chunk in in_chunks(rows):
        # Sorted, so that concurrent transactions insert in one order and can't deadlock.
        ordered = sorted(chunk, key=lambda row: str(row["id"]))
        count = select(func.count()).where(_D.id.in_([row["id"] for row in ordered]))
        present += connection.execute(count).scalar_one()
        insert_missing(connection, DELIVERIES, [{**row, **pending} for row in ordered])
    # Also stored with the endpoints, so that a page in Airflow need not read every delivery.
    new: dict[int, set[str | None]] = {}
    for row in rows:
        new.setdefault(row["endpoint_id"], set()).update(row.get("dag_ids", {None}))
    for endpoint_id, dag_ids in sorted(new.items()):
        is_endpoint = _E.id == endpoint_id
        before = connection.execute(select(_E.dag_ids).where(is_endpoint).with_for_update()).scalar_one()
        if not dag_ids <= before:
            connection.execute(update(ENDPOINTS).where(is_endpoint).values(dag_ids=before | dag_ids))
    return len(rows) - present


def select_deliveries(connection: Connection, selection: Selection, limit: int | None = None) -> list[Delivery]:
    """Return the selected deliveries, the newest first."""
    columns = [column for column in _D if column.name not in ("endpoint_id", "token", "notified_at")]
    query = _joined(select(*columns, _E.lake, _E.target, _E.trigger, _E.block), selection)
    query = query.order_by(_D.created_at.desc(), _D.sequence.desc(), _D.id).limit(limit)
    return [Delivery(**_with_key(row)) for row in connection.execute(query).mappings()]


def attempts_of(connection: Connection, delivery_id: str) -> list[Row[Any]]:
    """Return attempts that ended, the oldest first."""
    return list(connection.execute(select(ATTEMPTS).where(_A.delivery_id == delivery_id).order_by(_A.number)))


def count_states(connection: Connection, selection: Selection) -> dict[str, int]:
    """Count the deliveries by state, including states without deliveries."""
    query = _joined(select(_D.state, func.count()), selection).group_by(_D.state)
    return {**dict.fromkeys(_STATES, 0), **{row[0]: row[1] for row in connection.execute(query)}}


def count_pending(connection: Connection, endpoint_ids: Collection[int]) -> int:
    query = select(func.count()).where(_D.endpoint_id.in_(endpoint_ids), _D.state == "pending")
    return int(connection.execute(query).scalar_one())


def first_unsent(connection: Connection, endpoint_ids: Collection[int]) -> dict[int, int]:
    """Return, by endpoint, the sequence number of the first commit that is not sent; no entry if all are sent.

    A delivery that was merged is unsent while the one that it was merged into is.
    """
    merged = DELIVERIES.alias("merged")
    pending = (_D.endpoint_id.in_(endpoint_ids), _D.state == "pending")
    by_itself = select(_D.endpoint_id, _D.sequence).where(*pending)
    in_another = select(_D.endpoint_id, merged.c.sequence).join(merged, merged.c.merged_into == _D.id).where(*pending)
    unsent = by_itself.union_all(in_another).subquery()
    query = select(unsent.c.endpoint_id, func.min(unsent.c.sequence)).group_by(unsent.c.endpoint_id)
    return {row[0]: row[1] for row in connection.execute(query)}


def oldest_pending(connection: Connection, selection: Selection) -> int | None:
    query = _joined(select(func.min(_D.created_at)), selection).where(_D.state == "pending")
    created_at: int | None = connection.execute(query).scalar_one()
    return created_at


def set_pending(connection: Connection, now: int, ids: Iterable[str]) -> None:
    """Make deliveries pending again, under the same id and with a new budget of attempts."""
    again = {"state": "pending", "due_at": now, "failures": 0, "started_at": now, "ended_at": None, "notified_at": None}
    cleared = {"lease_owner": None, "lease_until": None, "reason": None, "detail": None, "on_failure": None}
    ended = update(DELIVERIES).where(_D.id.in_(list(ids)), _D.state.in_(REPLAYABLE))
    connection.execute(ended.values(**again, **cleared))


def set_cancelled(connection: Connection, now: int, ids: Iterable[str], detail: str) -> None:
    """Cancel deliveries. The token is incremented, so that a dispatcher with a claim can't write its result."""
    values = {"state": "cancelled", "ended_at": now, "lease_owner": None, "lease_until": None, "detail": detail}
    undone = update(DELIVERIES).where(_D.id.in_(list(ids)), _D.state.in_(CANCELLABLE))
    connection.execute(undone.values(token=_D.token + 1, **values))


def unnotified_dead_letters(connection: Connection, endpoint_ids: Collection[int]) -> list[Delivery]:
    """Return up to a hundred dead letters without a notification, at random.

    So none of them waits for older ones whose notification keeps failing.
    """
    query = select(_D.id).where(_D.endpoint_id.in_(endpoint_ids), _D.state == "dead", _D.notified_at.is_(None))
    ids = list(connection.execute(query.order_by(func.random()).limit(100)).scalars())
    return select_deliveries(connection, Selection(ids=ids)) if ids else []


def mark_notified(connection: Connection, now: int, delivery_id: str) -> None:
    """Mark the dead-letter notification of this delivery as sent."""
    connection.execute(update(DELIVERIES).where(_D.id == delivery_id).values(notified_at=now))


def limit_future_times(connection: Connection, now: int, endpoint_ids: Collection[int], longest_lease: int) -> None:
    """Shorten leases and waits that a clock that ran ahead has put into a far future."""
    pending = update(DELIVERIES).where(_D.endpoint_id.in_(endpoint_ids), _D.state == "pending")
    connection.execute(pending.where(_D.lease_until > now + longest_lease).values(lease_until=now + longest_lease))
    connection.execute(pending.where(_D.due_at > now + _LONGEST_OPEN).values(due_at=now))


def delete_ended(connection: Connection, before: int, selection: Selection, limit: int) -> int:
    """Delete deliveries that ended before that time, the oldest first; return their number.

    Dead letters stay, and so do deliveries that were merged into one that is pending or dead.
    """
    window = DELIVERIES.alias("window")
    is_unsent = exists().where(window.c.id == _D.merged_into, window.c.state.in_(("pending", "dead")))
    ended = (_D.state.in_(("delivered", "cancelled", "merged")), _D.ended_at < before, ~is_unsent)
    # A part at a time: a large backlog in one transaction would keep SQLite's other writers out for long.
    query = _joined(select(_D.id), selection).where(*ended).order_by(_D.ended_at).limit(limit)
    return connection.execute(delete(DELIVERIES).where(_D.id.in_(query))).rowcount


def _joined(query: Select[Any], selection: Selection) -> Select[Any]:
    return query.select_from(DELIVERIES.join(ENDPOINTS)).where(*selection.condition())


_LONGEST_KEY: Final = 255


def key_text(values: Iterable[object]) -> str:
    """Return the values of a row's key columns as one text; a digest if it is too long."""
    text = "/".join(map(str, values))
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


def add_rows(connection: Connection, now: int, lake: str, table: str, rows: Mapping[str, str]) -> None:
    """Queue history rows, except those whose key is known already.

    :param rows: rows as JSON, by key
    """
    same = {"lake": lake, "table": table, "reported_at": now}
    insert_missing(connection, HISTORY, [{**same, "key": key, "row": row} for key, row in rows.items()])


def is_new(lake: str, table: str, key: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that no row with this key is queued or was appended in the last days."""
    return ~exists().where(_H.lake == lake, _H.table == table, _H.key == key)


def waiting(connection: Connection, lake: str) -> tuple[int, int | None]:
    """Return the number of queued rows of the lake, and when the oldest was reported; None for no rows."""
    query = select(func.count(), func.min(_H.reported_at)).where(_H.lake == lake, _H.appended_at.is_(None))
    count, oldest = connection.execute(query).one()
    return int(count), oldest


def oldest_rows(connection: Connection, lake: str, limit: int) -> dict[str, dict[str, str]]:
    """Return the oldest queued rows of the lake, by table, as JSON by key."""
    query = select(_H.table, _H.key, _H.row).where(_H.lake == lake, _H.appended_at.is_(None))
    rows: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for table, key, row in connection.execute(query.order_by(_H.reported_at).limit(limit)):
        rows[table][key] = row
    return dict(rows)


def mark_appended(connection: Connection, now: int, lake: str, table: str, keys: Collection[str]) -> None:
    """Mark rows as appended to the table: only their keys are kept."""
    for chunk in in_chunks(keys):
        ours = (_H.lake == lake) & (_H.table == table) & _H.key.in_(chunk)
        connection.execute(update(HISTORY).where(ours).values(row=None, appended_at=now))


def drop_rows(connection: Connection, lake: str, table: str, keys: Collection[str]) -> None:
    """Delete rows with their keys, so that they may be reported again."""
    for chunk in in_chunks(keys):
        connection.execute(delete(HISTORY).where(_H.lake == lake, _H.table == table, _H.key.in_(chunk)))


def drop_old(connection: Connection, lake: str, *, appended_before: int, reported_before: int) -> int:
    """Delete old keys of appended rows, and rows queued for too long; return the number of these lost rows."""
    connection.execute(delete(HISTORY).where(_H.lake == lake, _H.appended_at < appended_before))
    too_old = (_H.lake == lake) & _H.appended_at.is_(None) & (_H.reported_at < reported_before)
    return connection.execute(delete(HISTORY).where(too_old)).rowcount
