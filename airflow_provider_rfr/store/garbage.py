"""What was put aside and may be deleted later: queued before it is put aside, taken off the queue when it is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from airflow_provider_rfr.store.builtin_tables import GARBAGE

_G: Final = GARBAGE.c


@dataclass(frozen=True, slots=True)
class Garbage:
    """A table that nobody needs, or will not when its time has come.

    :ivar physical: its name, which says the deploy that put it aside
    :ivar uuid: of the object that it was
    :ivar not_before: milliseconds since 1970
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
    """Queue it; what is queued already stays as it is."""
    row = (_G.project == project) & (_G.physical == garbage.physical)
    if connection.execute(select(_G.uuid).where(row)).first() is not None:
        return
    values = {"uuid": garbage.uuid, "deploy_id": garbage.deploy_id, "reason": garbage.reason[:255]}
    connection.execute(
        insert(GARBAGE).values(
            project=project,
            physical=garbage.physical,
            **values,
            queued_at=now,
            not_before=garbage.not_before,
            attempts=0,
        )
    )


def queued(connection: Connection, project: str) -> tuple[Garbage, ...]:
    """Everything that waits, the oldest first."""
    columns = (_G.physical, _G.uuid, _G.deploy_id, _G.reason, _G.not_before, _G.queued_at, _G.attempts, _G.last_error)
    rows = connection.execute(select(*columns).where(_G.project == project).order_by(_G.queued_at, _G.physical))
    return tuple(Garbage(*row) for row in rows)


def retract(connection: Connection, project: str, physical: str) -> None:
    """It is gone, or is no garbage any more."""
    connection.execute(delete(GARBAGE).where((_G.project == project) & (_G.physical == physical)))


def failed(connection: Connection, project: str, physical: str, error: str) -> None:
    """It could not be deleted; it is tried again."""
    row = (_G.project == project) & (_G.physical == physical)
    connection.execute(update(GARBAGE).where(row).values(attempts=_G.attempts + 1, last_error=error[:2000]))
