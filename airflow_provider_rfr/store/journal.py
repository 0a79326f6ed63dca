"""The journal of deploys: what was planned, begun, done. A log: what is left to do, the lake says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from sqlalchemy import Connection, insert, select, update

from airflow_provider_rfr.store.builtin_tables import DEPLOYS, STEPS

_D: Final = DEPLOYS.c
_S: Final = STEPS.c


class DeployState(str, Enum):
    """How far a deploy is."""

    RUNNING = "running"
    FAILED = "failed"
    DONE = "done"
    NOTHING = "nothing"
    """There was nothing to do."""
    SUPERSEDED = "superseded"
    """It did not finish, and another one was begun; what it touched is still to be looked at."""
    ABANDONED = "abandoned"
    """It did not finish, and another one after it did."""


OPEN: Final = (DeployState.RUNNING.value, DeployState.FAILED.value)
UNFINISHED: Final = (*OPEN, DeployState.SUPERSEDED.value)


class StepState(str, Enum):
    """How far a step is."""

    PLANNED = "planned"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"


TOUCHED: Final = (StepState.STARTED.value, StepState.DONE.value, StepState.FAILED.value)


@dataclass(frozen=True, slots=True)
class Deploy:
    """One deploy.

    :ivar plan: as JSON
    :ivar revision: of the registry that it wrote; None if it did not
    :ivar attempts: how often it was begun or gone on with
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
    """One step of a deploy.

    :ivar token: of the lease under which it was touched last
    :ivar evidence: what was found and left, as JSON
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
class Opening:
    """A deploy that begins. :ivar steps: number, id, name and action of each"""

    deploy_id: str
    project: str
    base_revision: int
    from_version: str | None
    to_version: str
    plan_hash: str
    plan: str
    actor: str
    steps: Sequence[tuple[int, str | None, str, str]] = ()


def find_deploy(connection: Connection, deploy_id: str) -> Deploy | None:
    """The deploy, if there was one with this id."""
    row = connection.execute(select(DEPLOYS).where(_D.deploy_id == deploy_id)).one_or_none()
    return None if row is None else _deploy(row)


def open_deploys(connection: Connection, project: str) -> tuple[Deploy, ...]:
    """Deploys that neither finished nor were followed by another one, the newest first."""
    of = (_D.project == project) & _D.state.in_(OPEN)
    rows = connection.execute(select(DEPLOYS).where(of).order_by(_D.started_at.desc(), _D.deploy_id))
    return tuple(_deploy(row) for row in rows)


def touched(connection: Connection, project: str) -> frozenset[str]:
    """Ids of objects that unfinished deploys began to change."""
    begun = _S.state.in_(TOUCHED) & _S.uuid.is_not(None)
    of = (_D.project == project) & _D.state.in_(UNFINISHED) & begun
    return frozenset(connection.execute(select(_S.uuid).join(DEPLOYS).where(of)).scalars())


def unfinished_ids(connection: Connection, project: str) -> frozenset[str]:
    """Deploys of which what they left may still be used."""
    of = (_D.project == project) & _D.state.in_(UNFINISHED)
    return frozenset(connection.execute(select(_D.deploy_id).where(of)).scalars())


def begun_steps(connection: Connection, project: str) -> tuple[JournalStep, ...]:
    """Steps of unfinished deploys that were begun, and of which nobody said how they ended."""
    begun = _S.state.in_((StepState.STARTED.value, StepState.FAILED.value)) & _D.state.in_(UNFINISHED)
    rows = connection.execute(
        select(STEPS).join(DEPLOYS).where((_D.project == project) & begun).order_by(_S.deploy_id, _S.seq)
    )
    return tuple(_step(row) for row in rows)


def history(connection: Connection, project: str, limit: int = 50) -> tuple[Deploy, ...]:
    """Deploys, the newest first."""
    rows = connection.execute(
        select(DEPLOYS).where(_D.project == project).order_by(_D.started_at.desc(), _D.deploy_id).limit(limit)
    )
    return tuple(_deploy(row) for row in rows)


def done_by(connection: Connection, project: str, actor: str) -> tuple[Deploy, ...]:
    """Deploys that this actor has finished, the oldest first."""
    of = (_D.project == project) & (_D.actor == actor) & (_D.state == DeployState.DONE.value)
    rows = connection.execute(select(DEPLOYS).where(of).order_by(_D.started_at, _D.deploy_id))
    return tuple(_deploy(row) for row in rows)


def steps_of(connection: Connection, deploy_id: str) -> tuple[JournalStep, ...]:
    """The deploy's steps, in order."""
    rows = connection.execute(select(STEPS).where(_S.deploy_id == deploy_id).order_by(_S.seq))
    return tuple(_step(row) for row in rows)


def open_deploy(connection: Connection, opening: Opening, *, token: int, now: int) -> None:
    """Write down what is going to be done. Others that did not finish are given up."""
    others = (_D.project == opening.project) & _D.state.in_(OPEN)
    connection.execute(update(DEPLOYS).where(others).values(state=DeployState.SUPERSEDED.value, ended_at=now))
    connection.execute(insert(DEPLOYS).values(**_row(opening, DeployState.RUNNING, now)))
    for seq, uuid, name, action in opening.steps:
        values = {"deploy_id": opening.deploy_id, "seq": seq, "uuid": uuid, "name": name, "action": action}
        connection.execute(insert(STEPS).values(**values, state=StepState.PLANNED.value, token=token, attempts=0))


def abandon_others(connection: Connection, project: str, deploy_id: str) -> None:
    """After a deploy that finished, what others left is its own business no more."""
    others = (_D.project == project) & _D.state.in_(UNFINISHED) & (_D.deploy_id != deploy_id)
    connection.execute(update(DEPLOYS).where(others).values(state=DeployState.ABANDONED.value))


def record_nothing(connection: Connection, opening: Opening, *, now: int) -> None:
    """A run that had nothing to do."""
    connection.execute(insert(DEPLOYS).values(**_row(opening, DeployState.NOTHING, now), ended_at=now))


def end_deploy(
    connection: Connection,
    deploy_id: str,
    state: DeployState,
    *,
    now: int,
    revision: int | None = None,
    error: str = "",
) -> None:
    """Say how it ended."""
    values = {"state": state.value, "ended_at": now, "revision": revision, "error": error or None}
    connection.execute(update(DEPLOYS).where(_D.deploy_id == deploy_id).values(**values))


def start_step(connection: Connection, deploy_id: str, seq: int, *, token: int, now: int) -> None:
    """Say that it is begun, before anything is done."""
    values = {"state": StepState.STARTED.value, "token": token, "attempts": _S.attempts + 1, "error": None}
    _update(connection, deploy_id, seq, {**values, "started_at": now, "ended_at": None})


def end_step(
    connection: Connection, deploy_id: str, seq: int, state: StepState, *, now: int, evidence: str = "", error: str = ""
) -> None:
    """Say that it is done, or why it is not."""
    values: dict[str, Any] = {"state": state.value, "ended_at": now, "error": error or None}
    _update(connection, deploy_id, seq, {**values, "evidence": evidence} if evidence else values)


def _update(connection: Connection, deploy_id: str, seq: int, values: dict[str, Any]) -> None:
    connection.execute(update(STEPS).where((_S.deploy_id == deploy_id) & (_S.seq == seq)).values(**values))


def _row(opening: Opening, state: DeployState, now: int) -> dict[str, Any]:
    names: Iterable[str] = ("deploy_id", "project", "base_revision", "from_version", "to_version", "plan_hash", "plan")
    values = {name: getattr(opening, name) for name in names}
    return {**values, "actor": opening.actor[:255], "state": state.value, "attempts": 1, "started_at": now}


def _step(row: Any) -> JournalStep:
    return JournalStep(**{**row._mapping, "state": StepState(row.state)})


def _deploy(row: Any) -> Deploy:
    return Deploy(**{**row._mapping, "state": DeployState(row.state)})
