"""Maintenance besides the steps: write the history of deploys, delete retired tables, forget objects."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from airflow_provider_rfr.builtins import state
from airflow_provider_rfr.builtins.execution.observe import fence, read_recorded
from airflow_provider_rfr.builtins.planning.plan import Plan
from airflow_provider_rfr.builtins.spec import Kind, nearest
from airflow_provider_rfr.builtins.state import MARKER, RecordedObject
from airflow_provider_rfr.exceptions import ConfigurationError, PlanError, RfrError
from airflow_provider_rfr.history import History
from airflow_provider_rfr.lake.catalog import Catalog
from airflow_provider_rfr.lake.migrated_table import MigratedTable, purge_table
from airflow_provider_rfr.lake.schema_change import TableChange
from airflow_provider_rfr.sinks.registry import needed_physicals
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import read_registry, write_registry
from airflow_provider_rfr.store.engine import ControlStore, instant
from airflow_provider_rfr.store.leases import Lease, acquire

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.spark.engine import SparkSqlEngine

_log = logging.getLogger(__name__)
_MIGRATIONS: Final = "rfr_system.migration_history"
_OVER: Final = {"done": "done", "abandoned": "failed"}
_OF_DEPLOY: Final = ("deploy_id", "project", "from_version", "to_version", "base_revision", "plan_hash", "actor")


def record_deploys(catalog: Catalog, store: ControlStore, project: str) -> None:
    """Add each step of the project's newest finished deploys to the package's history, once.

    This includes deploys whose process died before it could do so. A history that can't be written is only a warning:
    the deploy itself is done.

    Rows of other history tables that wait are appended, too, because the deploy may have created their tables.
    """
    try:
        with store.read() as connection:
            over = [deploy for deploy in deploys.history(connection, project) if deploy.state in _OVER]
            rows = [row for deploy in over for row in _history(deploy, deploys.steps_of(connection, deploy.deploy_id))]
        history = History(store, catalog)
        history.report(_MIGRATIONS, rows, ("deploy_id", "seq"))
        history.maintain(always=True)
    except Exception as error:  # noqa: BLE001 - each catalog refuses in its own way
        _log.warning("the history of migrations can't be written (%s); the deploy is not affected", error)


def plan_of(deploy: deploys.Deploy) -> Plan | None:
    """Return the plan that a deploy carried out; None if another version of this package wrote it in its own format."""
    try:
        return Plan.from_json(orjson.loads(deploy.plan))
    except PlanError:
        return None


def _history(deploy: deploys.Deploy, steps: Sequence[deploys.JournalStep]) -> Iterator[dict[str, Any]]:
    same, plan = {name: getattr(deploy, name) for name in _OF_DEPLOY}, plan_of(deploy)
    planned = {step.seq: step for step in plan.steps} if plan is not None else {}
    # A deploy whose process died has no end until another one begins, nor has the step that it was at.
    ended = deploy.ended_at or deploy.started_at
    yield {**same, **_outcome(deploy, ended), "seq": 0, "state": _OVER[deploy.state]}
    for record in steps:
        evidence = orjson.loads(record.evidence or "{}")
        row = {
            **same,
            **_outcome(record, ended),
            "seq": record.seq,
            "object_id": record.uuid,
            "object_name": record.name,
            "how": record.action,
            "state": {"done": "done", "planned": "skipped"}.get(record.state, "failed"),
            "rows_after": evidence.get("rows"),
            "snapshot_after": evidence.get("snapshot_after"),
        }
        if (step := planned.get(record.seq)) is not None:
            row |= {"kind": step.kind.value, "reason": step.reason, "changes": step.changes, "loses": list(step.losses)}
        yield row


def _outcome(part: deploys.Deploy | deploys.JournalStep, ended: int) -> dict[str, Any]:
    started = None if part.started_at is None else instant(part.started_at)
    times = {"started_at": started, "ended_at": instant(part.ended_at or ended)}
    return {**times, "attempts": part.attempts, "error": part.error}


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a garbage collection, by names of tables.

    ``kept`` has the reasons why tables have to wait, ``failed`` the errors of tables that could not be deleted and are
    tried again.
    """

    deleted: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)


def gc(*, project: str, catalog: Catalog, store: ControlStore) -> Collected:
    """Delete queued tables that may be deleted, with their files, and data files that dead deploys did not commit.

    A table that can't be deleted stays in the queue for the next run.

    :raises DeployBusyError: another deploy holds the lease
    """
    outcomes: dict[str, dict[str, str]] = {"deleted": {}, "gone": {}, "kept": {}, "failed": {}}
    with acquire(store, project) as lease:
        fence(catalog, store, lease)
        with store.read() as connection:
            now = store.now(connection)
            queue = deploys.queued(connection, project)
            unfinished = deploys.unfinished_ids(connection, project)
            needed = needed_physicals(connection)
        for retired in queue:
            if retired.not_before > now:
                outcome, why = "kept", "its time has not come"
            elif retired.deploy_id in unfinished:
                outcome, why = "kept", "its deploy did not finish, and the next one may need it"
            else:
                outcome, why = _delete(catalog, lease, retired, needed)
            outcomes[outcome][retired.physical] = why
    return Collected(tuple(outcomes["deleted"]), outcomes["kept"], outcomes["failed"])


def _delete(catalog: Catalog, lease: Lease, row: deploys.Garbage, needed: Collection[str]) -> tuple[str, str]:
    """Delete a table, unless it is not ours or a sink needs it; a failure does not stop the others."""
    name = row.physical
    try:
        table = MigratedTable.load(catalog, name)
        if table is not None:
            if table.properties.get(MARKER) != row.uuid:
                return "kept", "it does not carry our marker"
            if table.entry.uuid in needed:
                return "kept", "a sink still reads from it"
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


_OF_STEPS: Final = (state.DEPLOY, state.STEP, state.TOKEN, state.DONE, state.WAS, state.EMPTIED)
_MARKS: Final = (MARKER, state.PROJECT, *_OF_STEPS)


def forget_objects(
    names: Collection[str], *, project: str, catalog: Catalog, store: ControlStore, sql: SparkSqlEngine | None = None
) -> tuple[str, ...]:
    """Forget the objects of these names, and return the names as they were recorded.

    Rows and texts stay. Views need ``sql``, because PyIceberg does not write their properties.

    A crash in the middle leaves objects recorded and without their marker; calling it again finishes the work.
    """
    with acquire(store, project) as lease:
        with store.read() as connection:
            recorded = read_recorded(connection, project)
            base = (recorded.revision, recorded.version, read_registry(connection, project).deploy_id)
        by_key = {obj.key: obj for obj in recorded.objects}
        if unknown := [name for name in names if name.casefold() not in by_key]:
            raise ConfigurationError("name", f"{unknown[0]} is not recorded", nearest(unknown[0], by_key))
        leaving = [by_key[key] for key in dict.fromkeys(name.casefold() for name in names)]
        for obj in leaving:
            if obj.kind is Kind.SINK:
                raise ConfigurationError("name", f"{obj.name} is a sink", "remove it by its declaration")
            if obj.kind is Kind.VIEW and sql is None:
                raise ConfigurationError("sql", f"{obj.name} is a view", "give an engine")
            if sink := next((sink for sink in recorded.sinks if sink.source == obj.uuid), None):
                raise ConfigurationError("name", f"the sink {sink.name} exports {obj.name}", "remove the sink first")
        for obj in leaving:
            lease.ensure()
            _unmark(catalog, obj, sql)
        gone = [str(obj.uuid) for obj in leaving]
        lease.write(lambda connection, now: write_registry(connection, project, *base, now, forgotten=gone))
    return tuple(obj.name for obj in leaving)


def _unmark(catalog: Catalog, obj: RecordedObject, sql: SparkSqlEngine | None) -> None:
    if obj.kind is Kind.VIEW and sql is not None:
        sql.set_view_properties(obj.name, dict.fromkeys(_MARKS))
        return
    table = MigratedTable.load(catalog, obj.name)
    if table is not None and table.properties.get(MARKER) == str(obj.uuid):
        table.alter(TableChange(unset=[mark for mark in _MARKS if mark in table.properties]))
