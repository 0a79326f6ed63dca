"""The registry of built-in objects: what the last deploy left, written in one transaction or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from airflow_provider_rfr.exceptions import StalePlanError
from airflow_provider_rfr.store.builtin_tables import OBJECTS, REGISTRY

_O: Final = OBJECTS.c
_R: Final = REGISTRY.c


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as it is kept.

    :ivar body: the whole of it, as JSON
    """

    uuid: str
    name: str
    kind: str
    physical: str
    body: str


@dataclass(frozen=True, slots=True)
class RegistryState:
    """All of it, at one moment.

    :ivar revision: 0 before the first deploy
    :ivar deploy_id: of the deploy that wrote last; empty before the first
    """

    revision: int = 0
    version: str | None = None
    deploy_id: str = ""
    entries: tuple[Entry, ...] = ()


def read_registry(connection: Connection, project: str) -> RegistryState:
    """What is recorded, sorted by name."""
    head = connection.execute(select(REGISTRY).where(_R.project == project)).one_or_none()
    if head is None:
        return RegistryState()
    columns = (_O.uuid, _O.name, _O.kind, _O.physical, _O.body)
    rows = connection.execute(select(*columns).where(_O.project == project).order_by(_O.name, _O.uuid))
    return RegistryState(head.revision, head.version, head.deploy_id, tuple(Entry(*row) for row in rows))


def write_registry(
    connection: Connection,
    project: str,
    *,
    base_revision: int,
    version: str | None,
    deploy_id: str,
    entries: Iterable[Entry],
    forgotten: Iterable[str],
    now: int,
) -> int:
    """Put these entries in the place of older ones, and take away the forgotten; returns the new revision.

    :raises StalePlanError: the registry is not at ``base_revision``
    """
    revision = base_revision + 1
    values = {"revision": revision, "version": version, "deploy_id": deploy_id, "written_at": now}
    if base_revision == 0:
        if connection.execute(select(_R.revision).where(_R.project == project)).first() is not None:
            raise _stale(base_revision)
        connection.execute(insert(REGISTRY).values(project=project, **values))
    else:
        base = (_R.project == project) & (_R.revision == base_revision)
        if connection.execute(update(REGISTRY).where(base).values(**values)).rowcount != 1:
            raise _stale(base_revision)
    for each in entries:
        _remove(connection, project, each.uuid)
        body = {"uuid": each.uuid, "name": each.name, "kind": each.kind, "physical": each.physical, "body": each.body}
        connection.execute(insert(OBJECTS).values(project=project, **body))
    for uuid in forgotten:
        _remove(connection, project, uuid)
    return revision


def _remove(connection: Connection, project: str, uuid: str) -> None:
    connection.execute(delete(OBJECTS).where((_O.project == project) & (_O.uuid == uuid)))


def _stale(base_revision: int) -> StalePlanError:
    return StalePlanError(f"the registry is no longer at revision {base_revision}; plan again")
