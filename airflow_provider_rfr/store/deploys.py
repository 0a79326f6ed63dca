"""The registry of built-in objects, the journal of deploys, the queue of tables that may be deleted, and sinks.

The registry is the result of the last deploy, written in one transaction. The journal is a log: the remaining work is
derived from the lake. A table is queued for deletion before it is retired, and dequeued when it is deleted.

Sinks are registered by deploys. The run that holds a sink's lease moves its cursor. Each write of a run is made under
its lease, so a run that lost it changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from airflow_provider_rfr.exceptions import SinkBusyError, StalePlanError
from airflow_provider_rfr.store.engine import insert_missing, upsert
from airflow_provider_rfr.store.leases import Grant, LeaseKind, lease_state, revoke_lease, take_lease
from airflow_provider_rfr.store.tables import DEPLOYS, GARBAGE, OBJECTS, REGISTRY, SINKS, STEPS

_D: Final = DEPLOYS.c
_S: Final = STEPS.c


class DeployState(str, Enum):
    """The state of a deploy in the journal."""

    RUNNING = "running"
    FAILED = "failed"
    DONE = "done"
    NOTHING = "nothing"
    """There was nothing to do."""
    SUPERSEDED = "superseded"
    """It did not finish, and another one was begun; what it touched still has to be checked."""
    ABANDONED = "abandoned"
    """It did not finish, and a later one did."""


_OPEN: Final = (DeployState.RUNNING.value, DeployState.FAILED.value)
_UNFINISHED: Final = (*_OPEN, DeployState.SUPERSEDED.value)


class StepState(str, Enum):
    """The state of a step in the journal."""

    PLANNED = "planned"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


_TOUCHED: Final = (StepState.STARTED.value, StepState.DONE.value, StepState.FAILED.value)


@dataclass(frozen=True, slots=True)
class Deploy:
    """A deploy in the journal.

    :ivar plan: the plan, as JSON
    :ivar revision: revision of the registry that it wrote; None if it wrote none
    :ivar attempts: always 1, since a deploy is never resumed
    """

    deploy_id: str
    project: str
    base_revision: int
    from_version: str | None
    to_version: str
    plan_hash: str
    plan: str
    state: DeployState
    actor: str
    attempts: int
    revision: int | None
    started_at: int
    ended_at: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class JournalStep:
    """A step of a deploy in the journal.

    :ivar token: fencing token of the lease under which the step was planned, or begun last
    :ivar evidence: what was found and what was left behind, as JSON
    """

    deploy_id: str
    seq: int
    uuid: str | None
    name: str
    action: str
    state: StepState
    token: int
    attempts: int
    started_at: int | None
    ended_at: int | None
    evidence: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class NewDeploy:
    """A deploy that is to be recorded when it begins.

    :ivar steps: number, id, name and action of each
    """

    deploy_id: str
    project: str
    base_revision: int
    from_version: str | None
    to_version: str
    plan_hash: str
    plan: str
    actor: str
    steps: Sequence[tuple[int, str | None, str, str]] = ()


def _deploys(
    connection: Connection, *where: ColumnElement[bool], newest_first: bool = True, limit: int | None = None
) -> tuple[Deploy, ...]:
    order = _D.started_at.desc() if newest_first else _D.started_at
    rows = connection.execute(select(DEPLOYS).where(*where).order_by(order, _D.deploy_id).limit(limit))
    return tuple(Deploy(**{**row._mapping, "state": DeployState(row.state)}) for row in rows)


def find_deploy(connection: Connection, deploy_id: str) -> Deploy | None:
    return next(iter(_deploys(connection, _D.deploy_id == deploy_id)), None)


def open_deploys(connection: Connection, project: str) -> tuple[Deploy, ...]:
    """Return deploys that did not finish and were not followed by another one, the newest first."""
    return _deploys(connection, _D.project == project, _D.state.in_(_OPEN))


def history(connection: Connection, project: str, limit: int = 50) -> tuple[Deploy, ...]:
    return _deploys(connection, _D.project == project, limit=limit)


def deployed_projects(connection: Connection) -> tuple[str, ...]:
    """Return the projects of which a deploy was begun, sorted by name."""
    return tuple(connection.scalars(select(_D.project).distinct().order_by(_D.project)))


def done_by(connection: Connection, project: str, actor: str) -> tuple[Deploy, ...]:
    """Return deploys that this actor has finished, the oldest first."""
    done = (_D.project == project, _D.actor == _stored(actor), _D.state == DeployState.DONE.value)
    return _deploys(connection, *done, newest_first=False)


def touched(connection: Connection, project: str) -> frozenset[str]:
    """Return the ids of objects that unfinished deploys began to change."""
    is_touched = _S.state.in_(_TOUCHED) & _S.uuid.is_not(None)
    unfinished = (_D.project == project) & _D.state.in_(_UNFINISHED) & is_touched
    return frozenset(connection.execute(select(_S.uuid).join(DEPLOYS).where(unfinished)).scalars())


def unfinished_ids(connection: Connection, project: str) -> frozenset[str]:
    """Return the ids of deploys that did not finish, and whose results a later one may still use."""
    unfinished = (_D.project == project) & _D.state.in_(_UNFINISHED)
    return frozenset(connection.execute(select(_D.deploy_id).where(unfinished)).scalars())


def _steps(connection: Connection, *where: ColumnElement[bool]) -> tuple[JournalStep, ...]:
    rows = connection.execute(select(STEPS).join(DEPLOYS).where(*where).order_by(_S.deploy_id, _S.seq))
    return tuple(JournalStep(**{**row._mapping, "state": StepState(row.state)}) for row in rows)


def begun_steps(connection: Connection, project: str) -> tuple[JournalStep, ...]:
    """Return steps of unfinished deploys that were begun and did not succeed."""
    is_unsuccessful = _S.state.in_((StepState.STARTED.value, StepState.FAILED.value))
    return _steps(connection, _D.project == project, is_unsuccessful, _D.state.in_(_UNFINISHED))


def steps_of(connection: Connection, deploy_id: str) -> tuple[JournalStep, ...]:
    return _steps(connection, _S.deploy_id == deploy_id)


def open_deploy(connection: Connection, deploy: NewDeploy, *, token: int, now: int) -> None:
    """Record a deploy that begins, with its planned steps, and mark other open deploys as superseded."""
    others = (_D.project == deploy.project) & _D.state.in_(_OPEN)
    # Superseded and not abandoned: the objects that they touched are checked until a deploy has finished.
    connection.execute(update(DEPLOYS).where(others).values(state=DeployState.SUPERSEDED.value, ended_at=now))
    connection.execute(insert(DEPLOYS).values(**_row(deploy, DeployState.RUNNING, now)))
    for seq, uuid, name, action in deploy.steps:
        values = {"deploy_id": deploy.deploy_id, "seq": seq, "uuid": uuid, "name": name, "action": action}
        connection.execute(insert(STEPS).values(**values, state=StepState.PLANNED.value, token=token, attempts=0))


def abandon_others(connection: Connection, project: str, deploy_id: str) -> None:
    """Mark all other unfinished deploys as abandoned, after a deploy that finished."""
    others = (_D.project == project) & _D.state.in_(_UNFINISHED) & (_D.deploy_id != deploy_id)
    connection.execute(update(DEPLOYS).where(others).values(state=DeployState.ABANDONED.value))


def record_nothing(connection: Connection, deploy: NewDeploy, *, now: int) -> None:
    connection.execute(insert(DEPLOYS).values(**_row(deploy, DeployState.NOTHING, now), ended_at=now))


def end_deploy(
    connection: Connection,
    deploy_id: str,
    state: DeployState,
    *,
    now: int,
    revision: int | None = None,
    error: str = "",
) -> None:
    """Record the end of a deploy; one that is done stays done.

    Its last commit may have got no answer for longer than the store repeats it, so that the caller takes it for failed.
    """
    values = {"state": state.value, "ended_at": now, "revision": revision, "error": error or None}
    undone = (_D.deploy_id == deploy_id) & (_D.state != DeployState.DONE.value)
    connection.execute(update(DEPLOYS).where(undone).values(**values))


def start_step(connection: Connection, deploy_id: str, seq: int, *, token: int, now: int) -> None:
    """Record that a step begins, before it changes anything."""
    values = {"state": StepState.STARTED.value, "token": token, "attempts": _S.attempts + 1, "error": None}
    _update(connection, deploy_id, seq, {**values, "started_at": now, "ended_at": None})


def end_step(
    connection: Connection, deploy_id: str, seq: int, state: StepState, *, now: int, evidence: str = "", error: str = ""
) -> None:
    """Record the end of a step, with its evidence or its error."""
    values: dict[str, Any] = {"state": state.value, "ended_at": now, "error": error or None}
    _update(connection, deploy_id, seq, {**values, "evidence": evidence} if evidence else values)


def _update(connection: Connection, deploy_id: str, seq: int, values: dict[str, Any]) -> None:
    connection.execute(update(STEPS).where((_S.deploy_id == deploy_id) & (_S.seq == seq)).values(**values))


def _stored(actor: str) -> str:
    """Return the actor as the column holds it: a long one with a digest, by which it is found again."""
    return actor if len(actor) <= 255 else f"{actor[:238]} {sha256(actor.encode()).hexdigest()[:16]}"


def _row(deploy: NewDeploy, state: DeployState, now: int) -> dict[str, Any]:
    values = {name: value for name, value in asdict(deploy).items() if name != "steps"}
    return {**values, "actor": _stored(deploy.actor), "state": state.value, "attempts": 1, "started_at": now}


_O: Final = OBJECTS.c
_R: Final = REGISTRY.c


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in the registry; ``body``: the whole of it, as JSON."""

    uuid: str
    name: str
    kind: str
    physical: str
    body: str


@dataclass(frozen=True, slots=True)
class StoredRegistry:
    """A consistent snapshot of the registry; before the first deploy it is empty, at revision 0."""

    revision: int = 0
    version: str | None = None
    deploy_id: str = ""
    entries: tuple[Entry, ...] = ()


def read_registry(connection: Connection, project: str) -> StoredRegistry:
    """Return the registry of a project, sorted by name."""
    head = connection.execute(select(REGISTRY).where(_R.project == project)).one_or_none()
    if head is None:
        return StoredRegistry()
    columns = [_O[name] for name in Entry.__dataclass_fields__]
    rows = connection.execute(select(*columns).where(_O.project == project).order_by(_O.name, _O.uuid))
    return StoredRegistry(head.revision, head.version, head.deploy_id, tuple(Entry(*row) for row in rows))


def objects_with(connection: Connection, conn_id: str) -> list[str]:
    """Return the deployed sources and sinks of all projects whose definitions name a connection, for people."""
    kinds = _O.kind.in_(("source", "sink"))
    rows = connection.execute(select(_O.name, _O.kind, _O.body).where(kinds).order_by(_O.kind, _O.name))
    return [f"{row.kind} {row.name}" for row in rows if _names(json.loads(row.body), conn_id)]


def _names(value: Any, conn_id: str) -> bool:
    """Tell whether a field for the id of a connection has this value; definitions are JSON texts within JSON."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            return _names(json.loads(value), conn_id)
    if isinstance(value, dict):
        return any(
            (item == conn_id and (name == "connection" or name.endswith("conn_id"))) or _names(item, conn_id)
            for name, item in value.items()
        )
    return isinstance(value, list) and any(_names(item, conn_id) for item in value)


def write_registry(
    connection: Connection,
    project: str,
    base_revision: int,
    version: str | None,
    deploy_id: str,
    now: int,
    *,
    entries: Iterable[Entry] = (),
    forgotten: Iterable[str] = (),
) -> int:
    """Write the registry by compare-and-set, and return the new revision.

    :param base_revision: revision that the deploy was planned from; 0 if there was none
    :param entries: objects to insert or replace
    :param forgotten: ids of objects to delete
    :raises StalePlanError: the registry is at another revision than ``base_revision``
    """
    stale = StalePlanError(f"the registry is no longer at revision {base_revision}; plan again")
    revision = base_revision + 1
    values = {"revision": revision, "version": version, "deploy_id": deploy_id, "written_at": now}
    if base_revision == 0:
        if connection.execute(select(_R.revision).where(_R.project == project)).first() is not None:
            raise stale
        connection.execute(insert(REGISTRY).values(project=project, **values))
    else:
        # Compared and set in one statement: of two deploys from the same base, one finds no row to update.
        base = (_R.project == project) & (_R.revision == base_revision)
        if connection.execute(update(REGISTRY).where(base).values(**values)).rowcount != 1:
            raise stale
    for entry in entries:
        upsert(connection, OBJECTS, {"project": project, **asdict(entry)})
    for uuid in forgotten:
        connection.execute(delete(OBJECTS).where((_O.project == project) & (_O.uuid == uuid)))
    return revision


_G: Final = GARBAGE.c


@dataclass(frozen=True, slots=True)
class Garbage:
    """A retired table that may be deleted from a certain time on.

    :ivar physical: its name, which contains the deploy that retired it
    :ivar uuid: id of the object that it belonged to
    :ivar not_before: that time, in milliseconds since 1970
    """

    physical: str
    uuid: str
    deploy_id: str
    reason: str
    not_before: int
    queued_at: int = 0
    attempts: int = 0
    last_error: str | None = None


def queue(connection: Connection, project: str, garbage: Garbage, *, now: int) -> None:
    """Queue a table for deletion; one that is queued already is not changed."""
    row = {**asdict(garbage), "project": project, "reason": garbage.reason[:255], "queued_at": now}
    insert_missing(connection, GARBAGE, [row])


def queued(connection: Connection, project: str) -> tuple[Garbage, ...]:
    """Return all queued tables, the oldest first."""
    columns = [_G[name] for name in Garbage.__dataclass_fields__]
    rows = connection.execute(select(*columns).where(_G.project == project).order_by(_G.queued_at, _G.physical))
    return tuple(Garbage(*row) for row in rows)


def dequeue(connection: Connection, project: str, physical: str) -> None:
    """Remove a table from the queue, because it was deleted or is needed again."""
    connection.execute(delete(GARBAGE).where((_G.project == project) & (_G.physical == physical)))


def failed(connection: Connection, project: str, physical: str, error: str) -> None:
    """Record that a table could not be deleted; the deletion is tried again."""
    row = (_G.project == project) & (_G.physical == physical)
    connection.execute(update(GARBAGE).where(row).values(attempts=_G.attempts + 1, last_error=error[:2000]))


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A sink as the store knows it.

    :ivar source: id of the exported object
    :ivar physical: UUID of the table that the cursor is a snapshot of
    :ivar cursor: snapshot up to which everything was sent; None: the first window sends all rows of the table
    :ivar sequence: the cursor's sequence number, where it is known
    :ivar pins: the sent columns, as :class:`~airflow_provider_rfr.sinks.windows.SentColumns` writes them
    :ivar since: rows that were there at this time, in milliseconds since 1970, are not to be sent; None once the cursor
        is after them
    :ivar deploy_id: id of the deploy that emptied the source
    :ivar decided_by: the last decision and its subject: ``<deploy, or new source>/<decision>``
    :ivar held_at: since when it waits for a decision, in milliseconds since 1970; None if it does not
    :ivar behind: snapshot that replaced the rows; the sink continues after it if these rows are not to be sent
    :ivar round: number that goes up when everything is sent again; part of each batch's id
    :ivar window: the snapshots that are being sent, as JSON; None between windows
    :ivar batches: number of batches acknowledged so far; ``rows`` likewise
    """

    uuid: UUID
    name: str
    source: UUID
    physical: str | None
    cursor: int | None
    sequence: int | None
    pins: str
    on_replace: str | None
    since: int | None
    deploy_id: str | None
    decided_by: str | None
    held_at: int | None
    held_reason: str | None
    behind: int | None
    round: int
    window: str | None
    batches: int
    rows: int
    last_batch: str | None
    created_at: int


def insert_sink(
    connection: Connection, identity: UUID, name: str, source: UUID, pins: str, on_replace: str | None, now: int
) -> None:
    """Insert a sink that begins with the present rows of its source; an existing one is not changed."""
    row = {"uuid": str(identity), "name": name, "source": str(source), "pins": pins, "on_replace": on_replace}
    insert_missing(connection, SINKS, [{**row, "created_at": now, "round": 0, "batches": 0, "rows": 0}])


def load_sink(connection: Connection, identity: UUID) -> SinkRow | None:
    """Return the sink's row; a writing transaction locks it until its end."""
    query = select(SINKS).where(SINKS.c.uuid == str(identity)).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _sink_row(row)


def all_sinks(connection: Connection) -> tuple[SinkRow, ...]:
    rows = connection.execute(select(SINKS).order_by(SINKS.c.name, SINKS.c.uuid)).mappings()
    return tuple(_sink_row(row) for row in rows)


def move_sink(connection: Connection, identity: UUID, **values: Any) -> None:
    """Write columns of a sink, for the run that holds its lease.

    The run locks its lease before the sink's row, a deploy the row before the lease. If that is a deadlock, PostgreSQL
    ends one of the two transactions, and the store retries it.
    """
    connection.execute(update(SINKS).where(SINKS.c.uuid == str(identity)).values(**values))


def change_sink(connection: Connection, identity: UUID, **values: Any) -> None:
    """Update a sink unconditionally, and revoke its lease; a deploy overrides a running export."""
    move_sink(connection, identity, **values)
    revoke_lease(connection, LeaseKind.SINK, str(identity))


def delete_sink(connection: Connection, identity: UUID) -> None:
    """Delete a sink's row, if there is one, and revoke its lease."""
    connection.execute(delete(SINKS).where(SINKS.c.uuid == str(identity)))
    revoke_lease(connection, LeaseKind.SINK, str(identity))


def take_sink_lease(connection: Connection, now: int, identity: UUID, owner: str, milliseconds: int) -> Grant | None:
    """Take the lease of a sink; None if there is no such sink.

    :raises SinkBusyError: another run holds it
    """
    row = load_sink(connection, identity)
    if row is None:
        return None
    key = (LeaseKind.SINK, str(identity))
    grant = take_lease(connection, now, *key, owner, milliseconds)
    if grant is None:
        lease = lease_state(connection, *key)
        raise SinkBusyError(row.name, lease.holder or "", (lease.until or now) - now)
    return grant


def _sink_row(row: Mapping[Any, Any]) -> SinkRow:
    values = dict(row)
    return SinkRow(uuid=UUID(values.pop("uuid")), source=UUID(values.pop("source")), **values)
