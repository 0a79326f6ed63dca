"""The refresh of materialized views: the query's rows replace all rows in one commit, if the inputs have new data.

The summary of the commit, also of a deploy's, names the snapshots of all tables that the query reads. A refresh takes
no lease: of two refreshes or deploys that change the table at once, one commits and the other starts again. A table
that a deploy has changed is refreshed once that deploy is finished: until then its query is in no registry.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_rfr.builtins.desired import in_order
from airflow_provider_rfr.builtins.maintenance import read_recorded, view_reads
from airflow_provider_rfr.builtins.model import DEPLOY, MARKER, Dependency, Kind, RecordedObject, files_family
from airflow_provider_rfr.builtins.queries import tables_below
from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError, StepError
from airflow_provider_rfr.lake.catalog import Catalog, load_table
from airflow_provider_rfr.lake.commits import CommitConflictError, last_change
from airflow_provider_rfr.lake.expiry import expire_table, is_ours
from airflow_provider_rfr.lake.migrated_table import MigratedTable, TableChange
from airflow_provider_rfr.lake.tables import find_view
from airflow_provider_rfr.store.engine import ControlStore

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.engine import SparkSqlEngine


log = logging.getLogger(__name__)
_INPUTS: Final = "rfr.inputs"
"""In a snapshot's summary: JSON, snapshot by name of each table that was read, null for one that never had a row."""
_TRIES: Final = 3


def inputs_summary(obj: RecordedObject, objects: Mapping[str, RecordedObject], catalog: Catalog) -> dict[str, str]:
    """Return the summary properties that name the snapshots of the tables that the rows of a commit come from.

    The result is empty if one of the tables is unknown. Call this before the tables are read: a commit to them in the
    meantime then counts as not read.
    """
    snapshots: dict[str, int | None] = {}

    def names(reads: Sequence[Dependency]) -> list[str]:
        return [read.name.removeprefix(f"{catalog.name.casefold()}.") for read in reads]

    def of_view(name: str) -> list[str] | None:
        record = objects.get(name)
        if record is not None and record.kind is Kind.VIEW:
            return names(record.deps)
        table = load_table(catalog, name if record is None else record.name)
        if table is not None:
            change = last_change(table)
            snapshots[name] = None if change is None else change.snapshot_id
            return None
        view = find_view(catalog, name) if record is None else None
        reads = None if view is None else view_reads(view, catalog.name)
        return None if reads is None else names(reads)

    if snapshots.keys() != set(tables_below(names(obj.deps), of_view)):
        return {}
    return {_INPUTS: json.dumps(snapshots, sort_keys=True, separators=(",", ":"))}


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of the refresh of one materialized view.

    ``state`` is ``refreshed``, or ``unchanged`` if its inputs had no new data. The id of its newest snapshot is a text,
    because Airflow's pages round numbers of this size.
    """

    name: str
    state: str
    rows: int | None = None
    snapshot_id: str | None = None


def refresh(
    names: Sequence[str] = (),
    *,
    project: str,
    catalog: Catalog,
    store: ControlStore,
    sql: SparkSqlEngine,
    force: bool = False,
) -> tuple[Refreshed, ...]:
    """Refresh materialized views as they are deployed, inputs before their readers.

    Safe to repeat: after a crash nothing is changed, or all, and what was refreshed is unchanged.

    :param names: empty, the default, for all of the project
    :param force: also where nothing came, for a query that says something else each time
    :raises ConfigurationError: a name is not that of a deployed materialized view; nothing was done
    :raises StepError: one can't be refreshed, mostly because a deploy or others change it; those before it are done
    :raises SchemaError: the query's columns or values don't fit the table
    :raises SparkJobError: Spark can't run the query
    """
    deployed = _Deployed(project, catalog, store)
    return tuple(_refresh(deployed, name, sql, force) for name in deployed.chosen(names))


def due(names: Sequence[str] = (), *, project: str, catalog: Catalog, store: ControlStore) -> dict[str, bool]:
    """Return, by name, whether a materialized view's inputs have new data; without Spark. Errors: :func:`refresh`."""
    deployed = _Deployed(project, catalog, store)
    return {view.obj.name: view.is_due for view in map(deployed.load, deployed.chosen(names))}


class _Loaded(NamedTuple):
    """A materialized view at one moment; ``summary`` is that of a commit whose rows are computed from now on. It is due
    if something came since its rows were computed, or if that can't be told."""

    obj: RecordedObject
    table: MigratedTable
    summary: Mapping[str, str]
    is_due: bool


class _Deployed(NamedTuple):
    """The deployed objects of a project; they are read from the registry on each call."""

    project: str
    catalog: Catalog
    store: ControlStore

    def _objects(self) -> dict[str, RecordedObject]:
        with self.store.read() as connection:
            return {obj.key: obj for obj in read_recorded(connection, self.project).objects}

    def chosen(self, names: Sequence[str]) -> list[str]:
        objects = self._objects()
        valid = {key: obj.name for key, obj in objects.items() if obj.kind is Kind.MATERIALIZED_VIEW}
        wanted = {name.casefold(): name for name in names} or valid
        if unknown := [name for key, name in wanted.items() if key not in valid]:
            problem = f"{unknown[0]} is not a deployed materialized view of project {self.project}"
            remedy = suggestion(unknown[0], valid.values()) if valid else "deploy it first"
            raise ConfigurationError("name", problem, remedy)
        reads = {key: [read.name for read in obj.deps] for key, obj in objects.items()}
        return [key for key in in_order(reads, str) if key in wanted]

    def load(self, key: str) -> _Loaded:
        """Return the materialized view in its present state.

        :raises StepError: the view is not as the registry has it
        """
        objects = self._objects()
        obj = objects.get(key)
        if obj is None or obj.kind is not Kind.MATERIALIZED_VIEW:
            raise StepError(key, "refresh", "a deploy has just removed it", "leave it out")
        table = MigratedTable.load(self.catalog, obj.name)
        if table is None:
            raise StepError(obj.name, "refresh", "it is gone from the catalog", "deploy with the policy drift: repair")
        if table.properties.get(MARKER) != str(obj.uuid):
            raise StepError(obj.name, "refresh", "it does not carry our marker: no deploy made it", "plan a deploy")
        deploy = table.properties.get(DEPLOY)
        if deploy != obj.deploy_id:
            # Its rows may be those of another query already, which an older one must not take away again.
            remedy = "wait for the deploy; if it failed, deploy again"
            raise StepError(obj.name, "refresh", f"deploy {deploy} has changed it and is not finished", remedy)
        summary, noted = inputs_summary(obj, objects, self.catalog), table.last_summary().get(_INPUTS)
        return _Loaded(obj, table, summary, noted is None or noted != summary.get(_INPUTS))


def _refresh(deployed: _Deployed, name: str, sql: SparkSqlEngine, force: bool) -> Refreshed:
    """Refresh one; start again when another refresh, or a deploy, committed first."""
    for _ in range(_TRIES):
        view = deployed.load(name)
        if not force and not view.is_due:
            log.info("%s: nothing came since its rows were computed", view.obj.name)
            return Refreshed(view.obj.name, "unchanged", view.table.entry.rows, str(view.table.snapshot_id))
        with suppress(CommitConflictError):
            return _compute(deployed.catalog, view, sql)
        log.info("%s: others committed while its rows were computed; starting again", view.obj.name)
    problem = f"others committed {_TRIES} times while its rows were computed"
    raise StepError(name, "refresh", problem, "run it again later")


def _compute(catalog: Catalog, view: _Loaded, sql: SparkSqlEngine) -> Refreshed:
    """Compute the rows and commit them; nothing is changed if the table is no longer as it was loaded.

    Then delete files of dead refreshes, and expire snapshots: each refresh leaves a copy of all rows.
    """
    obj, table, change = view.obj, view.table, TableChange()
    target = table.coming(change, files_family(obj.uuid, f"refresh/{table.snapshot_id}"))
    files = sql.compute(query=str(obj.sql), table=obj.name, target=target)
    try:
        # A snapshot in any case: it is what makes the other one's commit fail.
        snapshot = table.replace_rows(change, files, target, view.summary, always=True)
    except CommitConflictError:
        target.store.delete(file.location for file in files)
        raise
    rows = sum(file.rows for file in files)
    log.info("%s: refreshed, %s rows", obj.name, rows)
    try:
        target.collect(files)
        if is_ours(table.properties):
            expire_table(catalog, table.name)
    except Exception as error:  # noqa: BLE001 - stores fail in their own ways, and their texts may name secrets
        reason = str(error) if isinstance(error, RfrError) else type(error).__name__
        log.warning("%s is refreshed, but could not be tidied up: %s", table.name, reason)
    return Refreshed(obj.name, "refreshed", rows, str(snapshot))
