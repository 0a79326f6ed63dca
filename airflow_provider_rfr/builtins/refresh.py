"""The refresh of materialized views: the query's rows replace all rows in one commit, if the inputs have new data.

The summary of each commit, a deploy's included, names the snapshots of all tables that the query reads. A refresh takes
no lease: of two refreshes or deploys that change the table at once, one commits and the other starts again. A table
that a deploy has changed can be refreshed only after that deploy has finished: before, the registry has an older query.
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
    from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine


log = logging.getLogger(__name__)
_INPUTS: Final = "rfr.inputs"
"""Key in a snapshot's summary; its value is JSON: snapshot id by name of each table that was read, or null if none."""
_TRIES: Final = 3


def inputs_summary(obj: RecordedObject, objects: Mapping[str, RecordedObject], catalog: Catalog) -> dict[str, str]:
    """Return the summary properties that name the snapshots of the tables that the rows of a commit come from.

    The result is empty if one of the tables is unknown. Call this before the tables are read: then a commit to them in
    the meantime counts as not read.
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
    """Refresh deployed materialized views, inputs before their readers.

    This is safe to repeat after a crash: each view changes in one commit, and is skipped if it is up to date.

    :param names: names of views; empty: all of the project
    :param force: refresh also without new data, for a query whose result changes by itself, e.g. with the date
    :raises ConfigurationError: a name is not that of a deployed materialized view; nothing was done
    :raises StepError: a view can't be refreshed, e.g. because others change it; the views before it are done
    :raises SchemaError: the query's columns or values don't fit the table
    :raises SparkJobError: Spark can't run the query
    """
    deployed = _Deployed(project, catalog, store)
    return tuple(_refresh(deployed, name, sql, force) for name in deployed.chosen(names))


def due(names: Sequence[str] = (), *, project: str, catalog: Catalog, store: ControlStore) -> dict[str, bool]:
    """Return, by name, whether a materialized view's inputs have new data. This needs no Spark.

    :raises ConfigurationError: a name is not that of a deployed materialized view
    :raises StepError: a view is not as the registry has it
    """
    deployed = _Deployed(project, catalog, store)
    return {view.obj.name: view.is_due for view in map(deployed.load, deployed.chosen(names))}


class _Loaded(NamedTuple):
    """A materialized view as it was loaded.

    :ivar family: prefix of the data files of a refresh that starts from this state
    :ivar summary: properties of the commit whose rows are computed from now on
    :ivar is_due: the inputs have new data since the view's rows were computed, or this is not known
    """

    obj: RecordedObject
    table: MigratedTable
    family: str
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
        """Return the case-folded names of these materialized views, or of all, inputs before their readers.

        :raises ConfigurationError: a name is not that of a deployed materialized view
        """
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
        loaded = load_table(self.catalog, obj.name)
        if loaded is None:
            raise StepError(obj.name, "refresh", "it is gone from the catalog", "deploy with the policy drift: repair")
        table = MigratedTable(self.catalog, obj.name, loaded)
        if table.properties.get(MARKER) != str(obj.uuid):
            raise StepError(obj.name, "refresh", "it does not carry our marker: no deploy made it", "plan a deploy")
        deploy = table.properties.get(DEPLOY)
        if deploy != obj.deploy_id:
            # Its rows may be those of a newer query already, which the recorded query must not overwrite.
            remedy = "wait for the deploy; if it failed, deploy again"
            raise StepError(obj.name, "refresh", f"deploy {deploy} has changed it and is not finished", remedy)
        summary, noted = inputs_summary(obj, objects, self.catalog), table.last_summary().get(_INPUTS)
        # All snapshots, because a rollback makes an earlier one current again: the files of the one after it are still
        # committed, for its tag or for who rolls forward.
        snapshots = sorted(snapshot.snapshot_id for snapshot in loaded.metadata.snapshots)
        family = files_family(obj.uuid, f"refresh/{table.snapshot_id}/{snapshots}")
        return _Loaded(obj, table, family, summary, noted is None or noted != summary.get(_INPUTS))


def _refresh(deployed: _Deployed, name: str, sql: SparkSqlEngine, force: bool) -> Refreshed:
    """Refresh one view; start again if another refresh, or a deploy, commits first.

    :raises StepError: others committed first each time, or the view can't be loaded
    """
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
    """Compute the rows and commit them, then delete files of dead refreshes, and expire snapshots.

    Snapshots are expired here, because each refresh leaves a copy of all rows.

    :raises CommitConflictError: the table is no longer as it was loaded; nothing is changed
    """
    obj, table, change = view.obj, view.table, TableChange()
    target = table.coming(change, view.family)
    files = sql.compute(query=str(obj.sql), table=obj.name, target=target)
    try:
        # A snapshot is made even without rows: it makes the commit of a concurrent refresh fail.
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
    except Exception as error:  # noqa: BLE001 - each store fails in its own way, and its message may contain secrets
        reason = str(error) if isinstance(error, RfrError) else type(error).__name__
        log.warning("%s is refreshed, but could not be tidied up: %s", table.name, reason)
    return Refreshed(obj.name, "refreshed", rows, str(snapshot))
