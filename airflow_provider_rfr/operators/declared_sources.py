"""A refresh for each declared source: on its schedule, and after deploys that emptied or redefined its table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetOrTimeSchedule, CronTriggerTimetable
from airflow.sdk.definitions.timetables.simple import OnceTimetable
from croniter import CroniterError, croniter  # type: ignore[import-untyped]

from airflow_provider_rfr.exceptions import ConfigurationError, TriggerConfigError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.hooks.dag_arguments import file_folders, located
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.operators._outcome import source_asset
from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor
    from airflow.sdk.types import DagRunProtocol as DagRun

    from airflow_provider_rfr.builtins import BuiltinObject
    from airflow_provider_rfr.builtins.model import RecordedObject

GIVEN_BY_DAG = {
    "lake_conn_id": "the lake that is deployed to",
    **dict.fromkeys(("task_id", "dag", "task_group", "inlets", "outlets"), "an argument of the DAG"),
}
"""Arguments of an operator that no declaration holds, and what they are."""
_GIVEN = {"target": "the object's name", **GIVEN_BY_DAG}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeclaredObject:
    """A declared object that a DAG refreshes."""

    declared: BuiltinObject
    project: str
    lake_conn_id: str

    @property
    def name(self) -> str:
        """Return the name of the object and of its table."""
        return self.declared.name

    @property
    def place(self) -> str:
        """Return the place of the declaration, for errors."""
        return f"{self.declared.place}: {self.name}"

    def hook(self, control_store_conn_id: str | None) -> BuiltinsHook:
        store = control_store_conn_id
        return BuiltinsHook(project=self.project, lake_conn_id=self.lake_conn_id, control_store_conn_id=store)

    def recorded(self, hook: BuiltinsHook) -> RecordedObject | None:
        """Return the object as it is deployed; None if it is not."""
        with closing(hook.store):
            return hook.recorded().by_uuid.get(self.declared.id)


class _DeclaredSource(DeclaredObject):
    """A declared source and how it is refreshed."""

    @property
    def asset(self) -> Asset:
        """Return the asset that has an event for each deploy after which the rows have to be read again."""
        return source_asset(self.lake_conn_id, self.name)

    @property
    def schedule(self) -> AssetOrTimeSchedule:
        """Return the schedule of the DAG.

        It runs by the clock (UTC), or once as soon as the DAG exists; and for deploys that ask for it.

        :raises ConfigurationError: ``refresh.schedule`` is not a cron expression
        """
        cron = self._how.get("schedule")
        timetable = OnceTimetable() if cron is None else cron_timetable(cron, self.place, "refresh once")
        return AssetOrTimeSchedule(timetable=timetable, assets=[self.asset])

    @property
    def _how(self) -> Mapping[str, Any]:
        return self.declared.refresh or {}

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the declared arguments of :class:`ResumableFullRefreshOperator`.

        :raises ConfigurationError: one of them can't be declared, or is declared twice
        """
        what, how = plain(self.declared.source or {}), plain(self._how)
        for part, arguments in (("source", what), ("refresh", how)):
            for name in _GIVEN.keys() & arguments.keys():
                raise self._wrong(f"{part}.{name}", f"is {_GIVEN[name]}", "leave it out")
        for name in what.keys() & how.keys():
            raise self._wrong(f"refresh.{name}", "is in source as well", "write it once")
        how.pop("schedule", None)
        source = what.get("source")
        if isinstance(source, dict):
            what["source"] = located(source, self.declared.place.file, self.place)
        return {**how, **what, "target": self.name, "lake_conn_id": self.lake_conn_id}

    def is_deployed(self, control_store_conn_id: str | None = None) -> bool:
        """Tell whether the table is deployed under this name, for this definition.

        Before that, a refresh would make a table that no deploy knows, or overwrite one before the plan was approved.

        :raises ConfigurationError: there is no control store
        """
        from airflow_provider_rfr.builtins import Kind
        from airflow_provider_rfr.builtins.desired import definition_of

        known = self.recorded(self.hook(control_store_conn_id))
        return (
            known is not None
            and known.kind is Kind.SOURCE
            and known.key == self.declared.key
            and known.definition == definition_of(self.declared)
        )

    def is_needed(
        self, dag_run: DagRun, triggering_asset_events: TriggeringAssetEventsAccessor, store: str | None = None
    ) -> bool:
        """Tell whether a run has anything to do.

        A run for the first rows has nothing to do if a refresh has published some already.

        :param store: connection of the control store
        """
        whys = {event.extra.get("why") for events in triggering_asset_events.values() for event in events}
        is_first = whys == {"created"} or (dag_run.run_type == "scheduled" and "schedule" not in self._how)
        if not is_first:
            return True
        from airflow_provider_rfr.lake.catalog import load_table
        from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY

        hook = self.hook(store)
        known = self.recorded(hook)
        table = None if known is None else load_table(hook.catalog, known.name)
        return table is None or PUBLISHED_PROPERTY not in table.properties

    def refresh(self, task_id: str = "refresh", **arguments: Any) -> ResumableFullRefreshOperator:
        """Create the task.

        :param arguments: of the operator, where none are declared
        :raises ConfigurationError: what is declared is not an argument of the operator, or has an invalid value
        """
        combined = {**arguments, **self.arguments}
        try:
            return ResumableFullRefreshOperator(task_id=task_id, **combined)
        except ConfigurationError as error:
            # Besides triggers blocks, only what is wrong in a source's file has a place.
            argument = "" if error.place else error.field.partition(".")[0]
            if isinstance(error, TriggerConfigError):
                argument = "deliver_after"
            raise error.inside(f"{self.place}: {'refresh' if argument in self._how else 'source'}") from error
        except TypeError as error:
            remedy = "source and refresh hold arguments of ResumableFullRefreshOperator"
            raise self._wrong("source", str(error), remedy) from error

    def _wrong(self, field: str, problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(field, problem, remedy, self.place)


def declared_sources(
    objects: Sequence[str | Path] | str = (),
    *,
    project: str = PROJECT,
    declared_version: str | None = None,
    lake_conn_id: str = LakeHook.default_conn_name,
) -> list[_DeclaredSource]:
    """Return the sources of these declarations, by name.

    It reads no connection, so that a DAG's file may call it.

    Those with ``per_instance`` are left out: the names of their tables are in the registry alone.

    :param objects: YAML files or folders of declarations
    :raises DeclarationError: with every mistake, its file and its line
    """
    from airflow_provider_rfr.builtins import Kind

    spec = BuiltinsHook(objects, project=project, version=declared_version, folders=file_folders()).spec
    sources = [obj for obj in spec.objects if obj.kind is Kind.SOURCE]
    for source in sources:
        if source.per_instance is not None:
            _log.info("%s: a source of each %s has no DAG made for it", source.name, source.per_instance)
    return [_DeclaredSource(source, project, lake_conn_id) for source in sources if source.per_instance is None]


def cron_timetable(cron: Any, place: str, otherwise: str) -> CronTriggerTimetable:
    """Return the timetable of a declared ``refresh.schedule``, in UTC.

    :param otherwise: what happens without one
    :raises ConfigurationError: it is not a cron expression
    """
    try:
        # There has to be a next time; otherwise the scheduler would be the first to fail.
        croniter(cron, datetime.now(timezone.utc)).get_next()
    except (CroniterError, AttributeError, TypeError) as error:
        remedy = f"write one like '0 4 * * *', or leave it out to {otherwise}"
        problem = f"{cron!r} is not a cron expression"
        raise ConfigurationError("refresh.schedule", problem, remedy, place) from error
    return CronTriggerTimetable(cron, timezone="UTC")


def plain(value: Any) -> Any:
    """Return the frozen values of a declaration as the dicts and lists that Airflow's templates and JSON take."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
