"""The operator that refreshes materialized views, and a schedule for each declared one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAny, AssetOrTimeSchedule, AssetWatcher, CronTriggerTimetable
from airflow.sdk.definitions.timetables.simple import OnceTimetable

from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.hooks.dag_arguments import file_folders
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.operators._outcome import final_errors
from airflow_provider_rfr.operators.declared_sources import GIVEN_BY_DAG, DeclaredObject, cron_timetable, plain
from airflow_provider_rfr.operators.submit import SparkApplicationOperator, load_migration, private_folder
from airflow_provider_rfr.preflight import check_machine
from airflow_provider_rfr.triggers.commit import CommitTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

_GIVEN = {"views": "the object's name", "project": "the project that declares it", **GIVEN_BY_DAG}


class RefreshMaterializedViewOperator(SparkApplicationOperator):
    """Refresh materialized views: compute their queries as they are deployed, and replace all rows in one commit each.

    Spark is submitted only if something came: a commit to a table that is read, also through views. Takes every
    argument of its parent, ``SparkSubmitOperator``. A try that was killed has changed nothing, or all; what it has
    refreshed, the next one leaves alone. Returns state (``refreshed`` or ``unchanged``), rows and snapshot by name.

    :param views: names; empty, the default, for all that are deployed in the project (templated)
    :param force: also where nothing came, for a query that says something else each time, e.g. by ``current_date()``
    :param project: that they belong to; default ``rfr`` (templated)
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default`` (templated)
    :param control_store_conn_id: connection of the control store; None for the default, see :class:`ControlStoreHook`
    """

    template_fields: Sequence[str] = (*SparkApplicationOperator.template_fields, "views", "project", "lake_conn_id")
    ui_color = "#dbe3ee"
    _application_name = "builtin_migration"

    def __init__(
        self,
        *,
        views: Sequence[str] | str = (),
        force: bool = False,
        project: str = PROJECT,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        name: str = "rfr-refresh-materialized-view",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.views = views
        self.force = force
        self.project = project
        self.lake_conn_id = lake_conn_id
        self.control_store_conn_id = control_store_conn_id

    def execute(self, context: Context) -> dict[str, dict[str, Any]]:  # type: ignore[override]
        """Refresh the views.

        :raises AirflowFailException: a retry would meet the same error
        :raises RfrError: a retry may help, e.g. because a deploy is changing one of them
        """
        with final_errors(self.log.error):
            hook = BuiltinsHook(
                project=self.project, lake_conn_id=self.lake_conn_id, control_store_conn_id=self.control_store_conn_id
            )
            names = [self.views] if isinstance(self.views, str) else list(self.views)
            due = hook.due_views(names)
            if not self.force and not any(due.values()):
                self.log.info("Nothing came since the rows were computed: %s", ", ".join(due) or "none is deployed")
                return {name: {"name": name, "state": "unchanged"} for name in due}
            check_machine()
            work = {"project": self.project, "refresh": {"names": names, "force": self.force}}
            with private_folder() as folder:
                done = self._run_application(context, partial(load_migration, folder, hook, work))
            if done is None or "views" not in done:
                raise RfrError("Spark ended well, but did not say what it refreshed; see the driver's log")
            outcomes: dict[str, dict[str, Any]] = done["views"]
            for name, outcome in outcomes.items():
                self.log.info("%s: %s, %s rows", name, outcome["state"], outcome["rows"])
            return outcomes


@dataclass(frozen=True)
class _DeclaredView(DeclaredObject):
    """A declared materialized view, and when it is refreshed.

    :ivar inputs: names of the tables that it reads
    """

    inputs: tuple[str, ...]

    @property
    def schedule(self) -> CronTriggerTimetable | AssetOrTimeSchedule | OnceTimetable:
        """Return the schedule of the DAG.

        It runs by the clock (UTC); without ``refresh.schedule`` once, and with each commit of an input.

        :raises ConfigurationError: ``refresh.schedule`` is not a cron expression
        """
        cron = (self.declared.refresh or {}).get("schedule")
        if cron is not None:
            return cron_timetable(cron, self.place, "refresh with each commit of what is read")
        # Once as well: what came between the deploy and the first look of a watcher is in no event.
        once = OnceTimetable()
        assets = []
        for table in self.inputs:
            # It has an event for each commit of the table, by any program: the triggerer watches the table.
            name = f"rfr_commits:{self.lake_conn_id}/{table}"
            trigger = CommitTrigger(table, asset=name, lake_conn_id=self.lake_conn_id)
            assets.append(Asset(name=name, watchers=[AssetWatcher(name="commits", trigger=trigger)]))
        return AssetOrTimeSchedule(timetable=once, assets=AssetAny(*assets)) if assets else once

    def is_deployed(self, control_store_conn_id: str | None = None) -> bool:
        """Tell whether there is anything to refresh.

        :raises ConfigurationError: there is no control store
        """
        from airflow_provider_rfr.builtins import Kind

        known = self.recorded(self.hook(control_store_conn_id))
        return known is not None and known.kind is Kind.MATERIALIZED_VIEW and known.key == self.declared.key

    def refresh(self, task_id: str = "refresh", **arguments: Any) -> RefreshMaterializedViewOperator:
        """Create the task.

        :param arguments: of the operator, where none are declared
        :raises ConfigurationError: what is declared is not an argument of the operator
        """
        how: Mapping[str, Any] = plain(self.declared.refresh or {})
        for name in _GIVEN.keys() & how.keys():
            raise ConfigurationError(f"refresh.{name}", f"is {_GIVEN[name]}", "leave it out", self.place)
        combined = {**arguments, **{name: value for name, value in how.items() if name != "schedule"}}
        combined |= {"views": [self.name], "project": self.project, "lake_conn_id": self.lake_conn_id}
        try:
            return RefreshMaterializedViewOperator(task_id=task_id, **combined)
        except TypeError as error:
            remedy = "refresh holds schedule, and arguments of RefreshMaterializedViewOperator"
            raise ConfigurationError("refresh", str(error), remedy, self.place) from error


def declared_materialized_views(
    objects: Sequence[str | Path] | str = (),
    *,
    project: str = PROJECT,
    declared_version: str | None = None,
    lake_conn_id: str = LakeHook.default_conn_name,
) -> list[_DeclaredView]:
    """Return the materialized views of these declarations, by name.

    It reads no connection, so that a DAG's file may call it.

    Those with ``per_instance`` are left out: the names of their tables are in the registry alone.

    :param objects: YAML files or folders of declarations
    :raises DeclarationError: with every mistake, its file and its line
    """
    from airflow_provider_rfr.builtins import Kind
    from airflow_provider_rfr.builtins.queries import declared_inputs

    declared = BuiltinsHook(objects, project=project, version=declared_version, folders=file_folders()).spec.by_key()
    views = [obj for obj in declared.values() if obj.kind is Kind.MATERIALIZED_VIEW and obj.per_instance is None]
    return [_DeclaredView(view, project, lake_conn_id, declared_inputs(view, declared)) for view in views]
