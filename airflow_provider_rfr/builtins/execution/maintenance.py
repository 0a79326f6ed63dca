"""Garbage collection of retired tables, and forgetting objects: they leave the registry and keep their rows.

Only tables are deleted that carry our marker, that nothing uses, and whose time has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.builtins.execution.engine import SqlEngine
from airflow_provider_rfr.builtins.execution.observe import read_recorded
from airflow_provider_rfr.builtins.execution.work import TOKEN
from airflow_provider_rfr.builtins.spec import Kind, is_retired
from airflow_provider_rfr.builtins.state import (
    DEPLOY,
    DONE,
    EMPTIED,
    MARKER,
    PROJECT,
    STAMP,
    STEP,
    WAS,
    RecordedObject,
    RegistryState,
)
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.lake.migrated_table import MigratedTable, purge_table
from airflow_provider_rfr.lake.schema_changes import TableChange
from airflow_provider_rfr.sinks.registry import needed_physicals
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import Garbage, read_registry, write_registry
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import Lease, acquire

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection of garbage did.

    :ivar deleted: names of deleted tables
    :ivar kept: names of what has to wait, with why
    :ivar failed: names of what could not be deleted, with why; they are tried again
    """

    deleted: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def gc(*, project: str, catalog: Catalog, store: ControlStore) -> Collected:
    """Delete queued tables that may go, with their files. What can't be deleted stays in the queue for the next run.

    :raises DeployBusyError: another deploy holds the lease
    """
    outcomes: dict[str, tuple[str, str]] = {}
    with acquire(store, project) as lease:
        with store.read() as connection:
            now = store.now(connection)
            queue = deploys.queued(connection, project)
            current = {each.key for each in read_recorded(connection, project).objects}
            unfinished = deploys.unfinished_ids(connection, project)
            needed = needed_physicals(connection)
        for each in queue:
            name = each.physical
            if each.not_before > now:
                outcomes[name] = "kept", "its time has not come"
            elif each.deploy_id in unfinished:
                outcomes[name] = "kept", "its deploy did not finish, and may continue with it"
            elif name.casefold() in current or not is_retired(name):
                outcomes[name] = "kept", "it is in use"
            else:
                outcomes[name] = _delete(catalog, lease, each, needed)
    deleted, kept, failed = (
        {name: why for name, (found, why) in outcomes.items() if found == outcome}
        for outcome in ("deleted", "kept", "failed")
    )
    return Collected(tuple(deleted), kept, failed)


def _delete(catalog: Catalog, lease: Lease, row: Garbage, needed: Collection[str]) -> tuple[str, str]:
    """Delete a table, unless it is not ours or a sink needs it; a failure does not stop the others."""
    name = row.physical
    try:
        table = MigratedTable.load(catalog, name)
        if table is not None and table.properties.get(MARKER) != row.uuid:
            return "kept", "it does not carry our marker"
        if table is not None and table.entry.uuid in needed:
            return "kept", "a sink still reads from it"
        if table is not None:
            lease.ensure()
            purge_table(catalog, name)
        lease.write(lambda connection, now: deploys.retract(connection, lease.name, name))
        return ("gone" if table is None else "deleted"), ""
    except RfrError:
        raise
    except Exception as error:  # noqa: BLE001 - each store refuses in its own way; it is tried again
        problem = type(error).__name__
        lease.write(lambda connection, now: deploys.failed(connection, lease.name, name, problem))
        return "failed", problem


_MARKS: Final = (MARKER, PROJECT, DEPLOY, STAMP, STEP, DONE, TOKEN, WAS, EMPTIED)


def forget_objects(
    names: Collection[str], *, project: str, catalog: Catalog, store: ControlStore, sql: SqlEngine | None = None
) -> tuple[str, ...]:
    """Forget the objects of these names; returns the names as they were recorded. Rows and texts stay.

    A crash in the middle leaves objects recorded and without their marker; calling it again finishes the work.

    :param sql: needed for views, whose properties PyIceberg does not write
    :raises ConfigurationError: a name is not recorded, a sink exports one of them, or a view needs ``sql``
    :raises DeployBusyError: another deploy holds the lease
    """
    with acquire(store, project) as lease:
        with store.read() as connection:
            recorded, deploy_id = read_recorded(connection, project), read_registry(connection, project).deploy_id
        by_key = {each.key: each for each in recorded.objects}
        if unknown := [name for name in names if name.casefold() not in by_key]:
            known = ", ".join(sorted(by_key)[:5]) or "nothing"
            raise ConfigurationError("name", f"{unknown[0]} is not recorded", f"recorded is {known}")
        leaving = [by_key[key] for key in dict.fromkeys(name.casefold() for name in names)]
        _check_forgettable(recorded, leaving, sql)
        for each in leaving:
            _unmark(catalog, each, sql, lease)
        gone, base = [str(each.uuid) for each in leaving], (recorded.revision, recorded.version, deploy_id)
        lease.write(lambda connection, now: write_registry(connection, project, *base, now, forgotten=gone))
    return tuple(each.name for each in leaving)


def _check_forgettable(recorded: RegistryState, leaving: Sequence[RecordedObject], sql: SqlEngine | None) -> None:
    gone = {each.uuid: each.name for each in leaving}
    for sink in recorded.sinks:
        if sink.source in gone and sink.uuid not in gone:
            problem = f"the sink {sink.name} exports {gone[sink.source]}"
            raise ConfigurationError("name", problem, "forget or remove the sink first")
    for each in leaving:
        if each.kind is Kind.SINK:
            raise ConfigurationError("name", f"{each.name} is a sink", "remove it by its declaration")
        if each.kind is Kind.VIEW and sql is None:
            raise ConfigurationError("sql", f"{each.name} is a view", "give an engine")


def _unmark(catalog: Catalog, obj: RecordedObject, sql: SqlEngine | None, lease: Lease) -> None:
    lease.ensure()
    if obj.kind is Kind.VIEW:
        assert sql is not None
        sql.set_view_properties(obj.name, dict.fromkeys(_MARKS))
        return
    table = MigratedTable.load(catalog, obj.name)
    if table is not None and table.properties.get(MARKER) == str(obj.uuid):
        table.alter(TableChange(unset=[each for each in _MARKS if each in table.properties]))
