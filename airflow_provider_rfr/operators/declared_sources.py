"""Declared sources as Airflow runs them: a refresh each, and again where a deploy has taken or outdated the rows."""

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

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook
from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.lineage import source_asset

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor
    from airflow.sdk.types import DagRunProtocol as DagRun

    from airflow_provider_rfr.builtins import BuiltinObject
    from airflow_provider_rfr.builtins.state import RecordedObject

_GIVEN = {
    "target": "the object's name",
    "lake_conn_id": "the lake that is deployed to",
    **dict.fromkeys(("task_id", "dag", "task_group", "inlets", "outlets"), "the DAG's affair"),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _DeclaredSource:
    """A declared source and how it is refreshed.

    :ivar declared: the object
    :ivar project: whose object it is
    :ivar lake_conn_id: connection of the lake that it is deployed to
    """

    declared: BuiltinObject
    project: str
    lake_conn_id: str

    @property
    def name(self) -> str:
        """Of the object, which is the table's."""
        return self.declared.name

    @property
    def asset(self) -> Asset:
        """Has an event for each deploy after which the rows have to come anew."""
        return source_asset(self.lake_conn_id, self.name)

    @property
    def schedule(self) -> AssetOrTimeSchedule:
        """For the DAG: by the clock (UTC), or once as soon as the DAG is there; and by deploys that ask for it.

        :raises ConfigurationError: ``refresh.schedule`` is not a cron expression
        """
        cron = self._how.get("schedule")
        if cron is not None and not _is_cron(cron):
            remedy = "write one like '0 4 * * *', or leave it out to refresh once"
            raise self._wrong("refresh.schedule", f"{cron!r} is not a cron expression", remedy)
        timetable = OnceTimetable() if cron is None else CronTriggerTimetable(cron, timezone="UTC")
        return AssetOrTimeSchedule(timetable=timetable, assets=[self.asset])

    @property
    def _how(self) -> Mapping[str, Any]:
        return self.declared.refresh or {}

    def _hook(self, control_store_conn_id: str | None) -> BuiltinsHook:
        store = control_store_conn_id
        return BuiltinsHook(project=self.project, lake_conn_id=self.lake_conn_id, control_store_conn_id=store)

    def _recorded(self, hook: BuiltinsHook) -> RecordedObject | None:
        with closing(hook.store):
            return hook.recorded().by_uuid.get(self.declared.id)

    def _is_published(self, hook: BuiltinsHook) -> bool:
        """Whether a refresh has ever published into the table."""
        from airflow_provider_rfr.lake.catalog import load_table
        from airflow_provider_rfr.lake.target import PUBLISHED_PROPERTY

        known = self._recorded(hook)
        table = None if known is None else load_table(hook.catalog, known.physical)
        return table is not None and PUBLISHED_PROPERTY in table.properties

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Of :class:`ResumableFullRefreshOperator`, as far as they are declared.

        :raises ConfigurationError: one of them is not for the declaration to say, or is said twice
        """
        what, how = _plain(self.declared.source or {}), _plain(self._how)
        for part, arguments in (("source", what), ("refresh", how)):
            for name in _GIVEN.keys() & arguments.keys():
                raise self._wrong(f"{part}.{name}", f"is {_GIVEN[name]}", "leave it out")
        for name in what.keys() & how.keys():
            raise self._wrong(f"refresh.{name}", "stands in source too", "say it once")
        how.pop("schedule", None)
        self._find_file(what.get("source"))
        return {**how, **what, "target": self.name, "lake_conn_id": self.lake_conn_id}

    def is_deployed(self, control_store_conn_id: str | None = None) -> bool:
        """Whether the table is there under this name, for this definition: until then a refresh would make a table of
        nobody's, or overwrite one before anybody approved.

        :raises ConfigurationError: there is no control store
        """
        from airflow_provider_rfr.builtins import Kind
        from airflow_provider_rfr.builtins.fingerprint import definition_of

        known = self._recorded(self._hook(control_store_conn_id))
        return (
            known is not None
            and known.kind is Kind.SOURCE
            and known.key == self.declared.key
            and known.fingerprints.logic.text == definition_of(self.declared.source or {})
        )

    def is_needed(
        self, dag_run: DagRun, triggering_asset_events: TriggeringAssetEventsAccessor, store: str | None = None
    ) -> bool:
        """Whether a run has anything to do: one that is to bring the first rows has not, if they are there.

        :param store: connection of the control store
        """
        whys = {event.extra.get("why") for events in triggering_asset_events.values() for event in events}
        is_first = whys == {"created"} or (dag_run.run_type == "scheduled" and "schedule" not in self._how)
        return not (is_first and self._is_published(self._hook(store)))

    def refresh(self, task_id: str = "refresh", **arguments: Any) -> ResumableFullRefreshOperator:
        """The task.

        :param arguments: of the operator's, where nothing is declared
        :raises ConfigurationError: something declared is no argument of the operator's, or has a value it can't have
        """
        given = {**arguments, **self.arguments}
        try:
            return ResumableFullRefreshOperator(task_id=task_id, **given)
        except ConfigurationError as error:
            part = "refresh" if error.field.partition(".")[0] in self._how else "source"
            raise self._wrong(part, f"{error.field}: {error.problem}", error.remedy) from error
        except TypeError as error:
            remedy = "source and refresh hold arguments of ResumableFullRefreshOperator"
            raise self._wrong("source", str(error), remedy) from error

    def _find_file(self, source: Any) -> None:
        """A relative file is meant as seen from the declaration."""
        file, declaration = source.get("file") if isinstance(source, dict) else None, self.declared.place.file
        if not isinstance(file, str) or is_pending(file) or declaration is None:
            return
        given = Path(file).expanduser()
        path = (Path(declaration).resolve().parent / given).resolve()
        if not path.is_file() and not given.is_absolute():
            raise self._wrong("source.source.file", f"{path} is not there", "name it as seen from the declaration")
        source["file"] = str(path)

    def _wrong(self, field: str, problem: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"{self.declared.place}: {self.name}: {field}", problem, remedy)


def declared_sources(
    objects: Sequence[str | Path] | str = (),
    *,
    project: str = PROJECT,
    declared_version: str | None = None,
    lake_conn_id: str = LakeHook.default_conn_name,
) -> list[_DeclaredSource]:
    """The sources of these declarations, by name; needs no connection, so a DAG's file may ask.

    Those with ``per_instance`` are left out: the names of their tables are in the registry alone.

    :param objects: YAML files or folders of declarations
    :raises DeclarationError: with every mistake, its file and its line
    """
    from airflow_provider_rfr.builtins import Kind
    from airflow_provider_rfr.builtins.wanted import is_gone

    spec = BuiltinsHook(objects, project=project, version=declared_version).spec
    found = [each for each in spec.objects if each.kind is Kind.SOURCE and not is_gone(each, spec.version)]
    for each in found:
        if each.per_instance is not None:
            log.info("%s: a source of each %s has no DAG made for it", each.name, each.per_instance)
    return [_DeclaredSource(each, project, lake_conn_id) for each in found if each.per_instance is None]


def _plain(value: Any) -> Any:
    """What was frozen when it was declared, as Airflow's templates and JSON take it."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _is_cron(text: Any) -> bool:
    """Whether there is a next time; Airflow's scheduler would be the first to look."""
    try:
        croniter(text, datetime.now(timezone.utc)).get_next()
    except (CroniterError, AttributeError, TypeError):
        return False
    return True
