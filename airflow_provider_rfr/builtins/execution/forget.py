"""Objects that the platform gives up without taking anything away: they leave the registry, and lose our marker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from airflow_provider_rfr.builtins.execution.records import read_recorded
from airflow_provider_rfr.builtins.execution.sql_engine import SqlEngine
from airflow_provider_rfr.builtins.execution.work import TOKEN
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import (
    DEPLOY,
    DONE,
    EMPTIED,
    MARKER,
    PROJECT,
    STAMP,
    STEP,
    LiveKind,
    Recorded,
    RecordedObject,
)
from airflow_provider_rfr.builtins.wanted import relation
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.migrations import MigratedTable
from airflow_provider_rfr.lake.table_changes import TableChange
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.lease import Lease, acquire
from airflow_provider_rfr.store.registry import read_registry, write_registry

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

MARKS: Final = (MARKER, PROJECT, DEPLOY, STAMP, STEP, DONE, TOKEN, EMPTIED)


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

    A crash in the middle leaves objects without their marker and still recorded: forget them again.

    :param sql: needed for views, whose properties PyIceberg does not write
    :raises ConfigurationError: a name is not recorded, a sink exports one of them, or a view needs ``sql``
    :raises DeployBusyError: somebody is deploying
    """
    opened = open_catalog(catalog) if isinstance(catalog, LakeSettings) else catalog
    with acquire(store, project, patience=patience) as lease:
        with store.read() as connection:
            recorded = read_recorded(connection, project)
        leaving = _named(recorded, names)
        _check(recorded, leaving, sql)
        for each in leaving:
            _unmark(opened, each, sql, lease)
        _write(lease, recorded, leaving)
    return tuple(each.name for each in leaving)


def _named(recorded: Recorded, names: Collection[str]) -> list[RecordedObject]:
    by_key = {each.key: each for each in recorded.objects}
    if unknown := [name for name in names if name.casefold() not in by_key]:
        known = ", ".join(sorted(by_key)[:5]) or "nothing"
        raise ConfigurationError("name", f"{unknown[0]} is not recorded", f"recorded is {known}")
    return [by_key[key] for key in dict.fromkeys(name.casefold() for name in names)]


def _check(recorded: Recorded, leaving: Sequence[RecordedObject], sql: SqlEngine | None) -> None:
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
        sql.set_view_properties(obj.physical, dict.fromkeys(MARKS), obj.comment)
        return
    table = MigratedTable.load(catalog, obj.physical)
    if table is not None and table.properties.get(MARKER) == str(obj.uuid):
        table.alter(TableChange(unset=[each for each in MARKS if each in table.properties]))


def _write(lease: Lease, recorded: Recorded, leaving: Sequence[RecordedObject]) -> None:
    lease.write(
        lambda connection, now: write_registry(
            connection,
            lease.project,
            base_revision=recorded.revision,
            version=recorded.version,
            deploy_id=read_registry(connection, lease.project).deploy_id,
            entries=(),
            forgotten=[str(each.uuid) for each in leaving],
            now=now,
        )
    )
