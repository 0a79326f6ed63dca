"""Garbage collection of retired tables, and forgetting objects: they leave the registry and keep their rows.

Only tables are deleted that carry our marker, that nothing uses, and whose time has come."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.builtins.desired import relation
from airflow_provider_rfr.builtins.execution.observe import read_recorded
from airflow_provider_rfr.builtins.execution.work import TOKEN, Collected, SqlEngine
from airflow_provider_rfr.builtins.sinks import needed_physicals
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import (
    DEPLOY,
    DONE,
    EMPTIED,
    MARKER,
    PROJECT,
    RETIRED,
    SHADOW,
    STAMP,
    STEP,
    LiveKind,
    RecordedObject,
    RegistryState,
)
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.migrated_table import MigratedTable, purge_table
from airflow_provider_rfr.lake.schema_changes import TableChange
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import Garbage, read_registry, unfinished_ids, write_registry
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import SECONDS, Lease, acquire

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


_RETIRED_NAME: Final = re.compile(rf"(?:{RETIRED}|{SHADOW})[0-9a-f]{{8}}$")


def gc(
    *,
    project: str,
    catalog: LakeSettings | Catalog,
    store: ControlStore,
    patience: float = 60.0,
    lease_seconds: float = SECONDS,
) -> Collected:
    """Delete queued tables that may go, with their files. What can't be deleted stays in the queue for the next run.

    :raises DeployBusyError: another deploy holds the lease for longer than ``patience``
    """
    opened = open_catalog(catalog) if isinstance(catalog, LakeSettings) else catalog
    with acquire(store, project, seconds=lease_seconds, patience=patience) as lease:
        return _Collection(opened, store, project, lease).run()


class _Collection:
    def __init__(self, catalog: Catalog, store: ControlStore, project: str, lease: Lease) -> None:
        self._catalog = catalog
        self._store = store
        self._project = project
        self._lease = lease
        with store.read() as connection:
            self._now = store.now(connection)
            self._queue = deploys.queued(connection, project)
            self._current = {each.physical.casefold() for each in read_recorded(connection, project).objects}
            self._open = unfinished_ids(connection, project)
            self._needed = needed_physicals(connection)

    def run(self) -> Collected:
        """Delete one after the other; a failure does not stop the others."""
        deleted: list[str] = []
        kept: dict[str, str] = {}
        failed: dict[str, str] = {}
        for each in self._queue:
            reason = self._kept(each)
            if reason is not None:
                kept[each.physical] = reason
                continue
            try:
                self._delete(each, deleted, kept)
            except RfrError:
                raise
            except Exception as error:  # noqa: BLE001 - each store refuses in its own way; it is tried again
                failed[each.physical] = type(error).__name__
                self._note_failure(each, error)
        return Collected(tuple(deleted), kept, failed)

    def _kept(self, row: Garbage) -> str | None:
        """Why the table has to stay, as far as the queue knows."""
        if row.not_before > self._now:
            return "its time has not come"
        if row.deploy_id in self._open:
            return "its deploy did not finish, and may continue with it"
        if row.physical.casefold() in self._current:
            return "it is in use"
        if not _RETIRED_NAME.search(row.physical.casefold()):
            return "its name is not that of a retired table"
        return None

    def _delete(self, row: Garbage, deleted: list[str], kept: dict[str, str]) -> None:
        table = MigratedTable.load(self._catalog, row.physical)
        if table is not None:
            if table.properties.get(MARKER) != row.uuid:
                kept[row.physical] = "it does not carry our marker"
                return
            if table.entry.uuid in self._needed:
                kept[row.physical] = "a sink still reads from it"
                return
            self._lease.ensure()
            purge_table(self._catalog, row.physical)
            deleted.append(row.physical)
        self._lease.write(lambda connection, now: deploys.retract(connection, self._project, row.physical))

    def _note_failure(self, row: Garbage, error: Exception) -> None:
        problem = type(error).__name__
        self._lease.write(lambda connection, now: deploys.failed(connection, self._project, row.physical, problem))


def waiting(store: ControlStore, project: str) -> Mapping[str, Garbage]:
    """What is in the queue, by name."""
    with store.read() as connection:
        return {each.physical: each for each in deploys.queued(connection, project)}


_MARKS: Final = (MARKER, PROJECT, DEPLOY, STAMP, STEP, DONE, TOKEN, EMPTIED)


def forget_objects(
    names: Collection[str],
    *,
    project: str,
    catalog: LakeSettings | Catalog,
    store: ControlStore,
    sql: SqlEngine | None = None,
    patience: float = 60.0,
) -> tuple[str, ...]:
    """Forget the objects of these names; returns the names as they were recorded. Rows and texts stay.

    A crash in the middle leaves objects recorded and without their marker; calling it again finishes the work.

    :param sql: needed for views, whose properties PyIceberg does not write
    :raises ConfigurationError: a name is not recorded, a sink exports one of them, or a view needs ``sql``
    :raises DeployBusyError: another deploy holds the lease
    """
    opened = open_catalog(catalog) if isinstance(catalog, LakeSettings) else catalog
    with acquire(store, project, patience=patience) as lease:
        with store.read() as connection:
            recorded = read_recorded(connection, project)
        by_key = {each.key: each for each in recorded.objects}
        if unknown := [name for name in names if name.casefold() not in by_key]:
            known = ", ".join(sorted(by_key)[:5]) or "nothing"
            raise ConfigurationError("name", f"{unknown[0]} is not recorded", f"recorded is {known}")
        leaving = [by_key[key] for key in dict.fromkeys(name.casefold() for name in names)]
        _check(recorded, leaving, sql)
        for each in leaving:
            _unmark(opened, each, sql, lease)
        lease.write(
            lambda connection, now: write_registry(
                connection,
                lease.name,
                base_revision=recorded.revision,
                version=recorded.version,
                deploy_id=read_registry(connection, lease.name).deploy_id,
                entries=(),
                forgotten=[str(each.uuid) for each in leaving],
                now=now,
            )
        )
    return tuple(each.name for each in leaving)


def _check(recorded: RegistryState, leaving: Sequence[RecordedObject], sql: SqlEngine | None) -> None:
    gone = {each.uuid: each.name for each in leaving}
    for sink in recorded.sinks:
        if sink.source in gone and sink.uuid not in gone:
            raise ConfigurationError(
                "name", f"the sink {sink.name} exports {gone[sink.source]}", "forget or remove the sink first"
            )
    for each in leaving:
        if each.kind is Kind.SINK:
            raise ConfigurationError("name", f"{each.name} is a sink", "remove it by its declaration")
        if relation(each.kind) is LiveKind.VIEW and sql is None:
            raise ConfigurationError("sql", f"{each.name} is a view", "give an engine")


def _unmark(catalog: Catalog, obj: RecordedObject, sql: SqlEngine | None, lease: Lease) -> None:
    lease.ensure()
    if relation(obj.kind) is LiveKind.VIEW:
        assert sql is not None
        sql.set_view_properties(obj.physical, dict.fromkeys(_MARKS), obj.comment)
        return
    table = MigratedTable.load(catalog, obj.physical)
    if table is not None and table.properties.get(MARKER) == str(obj.uuid):
        table.alter(TableChange(unset=[each for each in _MARKS if each in table.properties]))
