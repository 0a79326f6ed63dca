"""Built-in objects in DAGs: their migration, refreshes of materialized views, and schedules of declared objects.

A declared source or materialized view is refreshed by its own schedule. Without one, a source is refreshed once, and
after deploys that emptied or redefined its table; a view is refreshed after each commit to a table that it reads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset, AssetAny, AssetWatcher
from croniter import CroniterError, croniter  # type: ignore[import-untyped]

from airflow_provider_rfr.builtins.model import Kind, encode
from airflow_provider_rfr.builtins.plan import Plan, render, summary
from airflow_provider_rfr.compat import AssetOrTimeSchedule, CronTriggerTimetable, OnceTimetable
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError, StalePlanError, TriggerConfigError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook, policies_of
from airflow_provider_rfr.hooks.dag_arguments import calling_folder, file_folders, located
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.operators._outcome import SOURCES, add_source_events, final_errors, source_asset
from airflow_provider_rfr.operators.arguments import names_in
from airflow_provider_rfr.operators.submit import SparkApplicationOperator, load_migration, private_folder
from airflow_provider_rfr.preflight import check_machine
from airflow_provider_rfr.triggers import CommitTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor
    from airflow.sdk.types import DagRunProtocol as DagRun

    from airflow_provider_rfr.builtins import BuiltinObject
    from airflow_provider_rfr.builtins.model import RecordedObject
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

_ACTIONS: Final = ("plan", "apply", "check", "gc")
_GIVEN_BY_DAG: Final = {
    "lake_conn_id": "the lake that is deployed to",
    **dict.fromkeys(("task_id", "dag", "task_group", "inlets", "outlets"), "an argument of the DAG"),
}
"""Arguments of an operator that a declaration must not hold, and what they are."""
_GIVEN_TO_SOURCES: Final = {"target": "the object's name", **_GIVEN_BY_DAG}
_GIVEN_TO_VIEWS: Final = {"views": "the object's name", "project": "the project that declares it", **_GIVEN_BY_DAG}

_log = logging.getLogger(__name__)


class BuiltinMigrationOperator(SparkApplicationOperator):
    """Migrate the platform's own tables, views and sinks to their declarations.

    Spark is submitted only for a plan that needs SQL (views, rewrites, materialized views); new columns, settings and
    empty tables need none. Takes every argument of its parent, ``SparkSubmitOperator``. After a try that died, the
    next one plans from the state that it left. A lease in the control store allows one deploy at a time.

    :param action: ``plan`` returns the plan of a deploy; ``apply``, the default, applies it; ``check`` fails if
        anything is left to do, or was changed by hand; ``gc`` deletes objects that earlier deploys retired (templated)
    :param objects: YAML files or folders of declarations, next to the DAG's file if relative; declarations of the
        package and of entry points are added (templated)
    :param project: project that the objects belong to; default ``rfr`` (templated)
    :param declared_version: version of the code that declares them; None for this package's. Not templated: Jinja's
        native types would make a number of it
    :param policies: decisions for this deploy, see :class:`airflow_provider_rfr.builtins.Policies` (templated)
    :param plan: a plan that the action ``plan`` returned, e.g. ``"{{ ti.xcom_pull('plan')['plan'] }}"``: ``apply``
        applies this one, and fails if the present state would give another one, also after a try that died half way.
        Without it, each try makes a plan and applies it at once (templated)
    :param lake_conn_id: connection of type ``rfr_lake``; default ``rfr_lake_default`` (templated)
    :param control_store_conn_id: connection of the control store; None for the default, see :class:`ControlStoreHook`
    :raises ConfigurationError: field, problem and remedy, while the DAG is parsed
    """

    template_fields: Sequence[str] = (
        *SparkApplicationOperator.template_fields,
        *("action", "objects", "project", "policies", "plan", "lake_conn_id"),
    )
    template_fields_renderers = dict.fromkeys(("policies", "plan", "conf", "env_vars", "post_submit_commands"), "json")
    ui_color = "#dbe3ee"
    _application_name = "builtin_migration"

    def __init__(
        self,
        *,
        action: str = "apply",
        objects: Sequence[str] | str = (),
        project: str = PROJECT,
        declared_version: str | None = None,
        policies: Mapping[str, Any] | str | None = None,
        plan: Mapping[str, Any] | str | None = None,
        lake_conn_id: str = LakeHook.default_conn_name,
        control_store_conn_id: str | None = None,
        name: str = "rfr-builtin-migration",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.action = action
        self.objects = objects
        self.project = project
        self.declared_version = declared_version
        self.policies = policies
        self.plan = plan
        self.lake_conn_id = lake_conn_id
        self.control_store_conn_id = control_store_conn_id
        self._calling_folder = calling_folder()
        if "{{" not in action:
            _check_action(action)
        if plan is not None and action in ("plan", "check", "gc"):
            raise ConfigurationError("plan", f"{action} makes its own", "leave it out")
        if action == "apply" or "{{" in action:
            self.outlets = [*self.outlets, SOURCES]
        if isinstance(policies, Mapping) and "{{" not in str(policies):
            policies_of(policies)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Run the action; return the plan, or the changes that were made.

        :raises AirflowFailException: a retry would meet the same error, or the plan is blocked, or a check found
            something that is left to do or was changed by hand
        :raises RfrError: a retry may help
        """
        with final_errors(self.log.error):
            _check_action(self.action)
            hook = BuiltinsHook.of_task(self)
            if self.action == "gc":
                collected = hook.collect_garbage()
                for name, reason in collected.failed.items():
                    self.log.warning("%s could not be deleted: %s; the next run tries again", name, reason)
                return dict(encode(collected))
            approved = _mapping("plan", self.plan)
            policies = policies_of(_mapping("policies", self.policies))
            plan = Plan.from_json(approved) if approved else hook.plan(policies)
            for line in render(plan).splitlines():
                self.log.info("%s", line)
            if self.action == "apply":
                return self._apply(hook, plan, context, approved=bool(approved))
            blockers = plan.stopped_by()
            if self.action == "plan":
                if blockers:
                    raise AirflowFailException(f"the plan is blocked: {'; '.join(blockers)}")
                changes = bool(plan.steps or plan.records or plan.forgotten)
                return {"changes": changes, "summary": summary(plan), "text": render(plan), "plan": plan.to_json()}
            if left := blockers + [f"{step.how.value} {step.name}" for step in plan.steps]:
                raise AirflowFailException(f"not as declared: {'; '.join(left)}")
            return {"changes": False, "summary": summary(plan)}

    def _apply(self, hook: BuiltinsHook, plan: Plan, context: Context, *, approved: bool) -> dict[str, Any]:
        ti = context["ti"]
        actor = f"{ti.dag_id} {ti.run_id} {ti.task_id}"
        if plan.applicable and hook.needs_spark(plan):
            check_machine()
            # The declarations are passed as a value, because their files need not be on the driver's machine.
            work = {"spec": encode(hook.spec), "actor": actor}
            # Without approval, the driver plans for itself: another deploy may come first.
            work |= {"plan": plan.to_json()} if approved else {"policies": encode(plan.policies)}
            with private_folder() as folder:
                done = self._run_application(context, partial(load_migration, folder, hook, work))
            if done is None or "deploy_id" not in done:
                raise RfrError("Spark ended well, but did not say what it deployed; see the driver's log")
            result = {name: done[name] for name in ("deploy_id", "state", "steps", "revision")}
        else:
            try:
                applied = hook.apply(plan, actor=actor, replan=not approved)
            except StalePlanError:
                if approved:
                    raise
                return self._apply(hook, hook.plan(plan.policies), context, approved=False)
            result = {"deploy_id": applied.deploy_id, "state": applied.state}
            result |= {"steps": len(applied.steps), "revision": applied.revision}
        deploy_id = result["deploy_id"]
        self.log.info("Deploy %s: %s, registry at revision %s", deploy_id, result["state"], result["revision"])
        # If an earlier try died after its deploy, this one has nothing to deploy, but still has to send the events.
        deploys = {deploy_id: plan, **hook.done_by(actor)}
        add_source_events(context, self.lake_conn_id, deploys)
        return {**result, "sources": sorted({name for deploy in deploys.values() for name in deploy.sources_to_load()})}


def _check_action(action: str) -> None:
    if action not in _ACTIONS:
        raise ConfigurationError("action", f"invalid action {action!r}", f"one of {', '.join(_ACTIONS)}")


def _mapping(field: str, value: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    """Return a templated mapping, which may be rendered as JSON text; None for an empty text.

    :raises ConfigurationError: it is not a mapping
    """
    if isinstance(value, str) and value.strip() in ("", "None"):
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ConfigurationError(
                field, "is not a JSON object", "set render_template_as_native_obj on the DAG"
            ) from None
    if value is not None and not isinstance(value, Mapping):
        raise ConfigurationError(field, "must be a mapping", "give a JSON object")
    return value


class RefreshMaterializedViewOperator(SparkApplicationOperator):
    """Refresh materialized views: compute their queries as they are deployed, and replace all rows in one commit each.

    Spark is submitted only if there is a new commit to a table that is read, also through views. Takes every argument
    of its parent, ``SparkSubmitOperator``. A killed try has replaced all rows of a view or none. The next try skips the
    views that it refreshed. Returns state (``refreshed`` or ``unchanged``), rows and snapshot by name.

    :param views: names of the views; empty, the default, for all that are deployed in the project (templated)
    :param force: refresh also without new commits, for a query whose result depends on the time, e.g. by
        ``current_date()``; default false
    :param project: project that they belong to; default ``rfr`` (templated)
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
            names = names_in(self.views)
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
class _DeclaredObject:
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
        """Return the object in the registry; None if it is not deployed."""
        with closing(hook.store):
            return hook.recorded().by_uuid.get(self.declared.id)


class _DeclaredSource(_DeclaredObject):
    """A declared source and how it is refreshed."""

    @property
    def asset(self) -> Asset:
        """Return the asset with an event for each deploy after which the source has to be read again."""
        return source_asset(self.lake_conn_id, self.name)

    @property
    def schedule(self) -> AssetOrTimeSchedule:
        """Return the schedule of the DAG.

        It runs by the cron expression ``refresh.schedule`` (UTC), or without one once, as soon as the DAG exists; and
        after deploys that created, emptied or redefined the source.

        :raises ConfigurationError: ``refresh.schedule`` is not a cron expression
        """
        cron = self._how.get("schedule")
        timetable = OnceTimetable() if cron is None else _cron_timetable(cron, self.place, "refresh once")
        return AssetOrTimeSchedule(timetable=timetable, assets=[self.asset])

    @property
    def _how(self) -> Mapping[str, Any]:
        return self.declared.refresh or {}

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the declared arguments of :class:`ResumableFullRefreshOperator`.

        :raises ConfigurationError: one of them can't be declared, or is declared twice
        """
        what, how = _plain(self.declared.source or {}), _plain(self._how)
        for part, arguments in (("source", what), ("refresh", how)):
            for name in _GIVEN_TO_SOURCES.keys() & arguments.keys():
                raise self._wrong(f"{part}.{name}", f"is {_GIVEN_TO_SOURCES[name]}", "leave it out")
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

        A run for the first load has nothing to do if a refresh has published the table already.

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

        :param arguments: arguments of the operator; declared ones take precedence
        :raises ConfigurationError: a declared name is not an argument of the operator, or has an invalid value
        """
        from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

        combined = {**arguments, **self.arguments}
        try:
            return ResumableFullRefreshOperator(task_id=task_id, **combined)
        except ConfigurationError as error:
            # An error that has a place is in the source's file, or in a triggers block, which is ``deliver_after``.
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

    It reads no connection, so that a DAG's file may call it. Sources with ``per_instance`` are left out: the names of
    their tables are in the registry alone.

    :param objects: YAML files or folders of declarations
    :raises DeclarationError: with every mistake, its file and its line
    """
    spec = BuiltinsHook(objects, project=project, version=declared_version, folders=file_folders()).spec
    sources = [obj for obj in spec.objects if obj.kind is Kind.SOURCE]
    for source in sources:
        if source.per_instance is not None:
            _log.info("%s: a source of each %s has no DAG made for it", source.name, source.per_instance)
    return [_DeclaredSource(source, project, lake_conn_id) for source in sources if source.per_instance is None]


@dataclass(frozen=True)
class _DeclaredView(_DeclaredObject):
    """A declared materialized view, and when it is refreshed.

    :ivar inputs: names of the tables that it reads
    """

    inputs: tuple[str, ...]

    @property
    def schedule(self) -> CronTriggerTimetable | AssetOrTimeSchedule | OnceTimetable:
        """Return the schedule of the DAG.

        It runs by the cron expression ``refresh.schedule`` (UTC); without one, once and after each commit of an input.

        :raises ConfigurationError: ``refresh.schedule`` is not a cron expression
        """
        cron = (self.declared.refresh or {}).get("schedule")
        if cron is not None:
            return _cron_timetable(cron, self.place, "refresh with each commit of what is read")
        # Once as well: there is no event for a commit between the deploy and the first check of a watcher.
        once = OnceTimetable()
        assets = []
        for table in self.inputs:
            # The asset has an event for each commit of the table, by any program: the triggerer watches the table.
            name = f"rfr_commits:{self.lake_conn_id}/{table}"
            trigger = CommitTrigger(table, asset=name, lake_conn_id=self.lake_conn_id)
            assets.append(Asset(name=name, watchers=[AssetWatcher(name="commits", trigger=trigger)]))
        return AssetOrTimeSchedule(timetable=once, assets=AssetAny(*assets)) if assets else once

    def is_deployed(self, control_store_conn_id: str | None = None) -> bool:
        """Tell whether the view is deployed under this name.

        :raises ConfigurationError: there is no control store
        """
        known = self.recorded(self.hook(control_store_conn_id))
        return known is not None and known.kind is Kind.MATERIALIZED_VIEW and known.key == self.declared.key

    def refresh(self, task_id: str = "refresh", **arguments: Any) -> RefreshMaterializedViewOperator:
        """Create the task.

        :param arguments: arguments of the operator; declared ones take precedence
        :raises ConfigurationError: a declared name is not an argument of the operator
        """
        how: Mapping[str, Any] = _plain(self.declared.refresh or {})
        for name in _GIVEN_TO_VIEWS.keys() & how.keys():
            raise ConfigurationError(f"refresh.{name}", f"is {_GIVEN_TO_VIEWS[name]}", "leave it out", self.place)
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

    It reads no connection, so that a DAG's file may call it. Views with ``per_instance`` are left out: the names of
    their tables are in the registry alone.

    :param objects: YAML files or folders of declarations
    :raises DeclarationError: with every mistake, its file and its line
    """
    from airflow_provider_rfr.builtins.queries import declared_inputs

    declared = BuiltinsHook(objects, project=project, version=declared_version, folders=file_folders()).spec.by_key()
    views = [obj for obj in declared.values() if obj.kind is Kind.MATERIALIZED_VIEW and obj.per_instance is None]
    return [_DeclaredView(view, project, lake_conn_id, declared_inputs(view, declared)) for view in views]


def _cron_timetable(cron: Any, place: str, otherwise: str) -> CronTriggerTimetable:
    """Return the timetable of a declared ``refresh.schedule``, in UTC.

    :param otherwise: what happens without one, for the error
    :raises ConfigurationError: it is not a cron expression
    """
    try:
        # An expression without a next time, such as one for 30 February, would otherwise fail in the scheduler.
        croniter(cron, datetime.now(timezone.utc)).get_next()
    except (CroniterError, AttributeError, TypeError) as error:
        remedy = f"write one like '0 4 * * *', or leave it out to {otherwise}"
        problem = f"{cron!r} is not a cron expression"
        raise ConfigurationError("refresh.schedule", problem, remedy, place) from error
    return CronTriggerTimetable(cron, timezone="UTC")


def _plain(value: Any) -> Any:
    """Return the frozen values of a declaration as the dicts and lists that Airflow's templates and JSON take."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
