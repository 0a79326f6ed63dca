"""The operator that plans, deploys and checks built-in objects, and what its tasks return."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_rfr.builtins import exit_code
from airflow_provider_rfr.builtins.planning.plan import summary
from airflow_provider_rfr.builtins.planning.render import render
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook, policies_of
from airflow_provider_rfr.hooks.common import connection_named
from airflow_provider_rfr.hooks.dag_arguments import dag_folder
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.hooks.spark import STOP_GRACE_SECONDS, RefreshSparkHook
from airflow_provider_rfr.operators import outcome, submit
from airflow_provider_rfr.operators.lineage import SOURCES, tell_sources
from airflow_provider_rfr.operators.submit import load_migration
from airflow_provider_rfr.preflight import check_machine

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.builtins import Plan
    from airflow_provider_rfr.builtins.execution.work import Applied, Collected


_BLOCKED = 1


def _plan_result(plan: Plan) -> dict[str, Any]:
    """The plan, for the task that applies it, and whether there is anything to do.

    :raises AirflowFailException: something stops it
    """
    if exit_code(plan) == _BLOCKED:
        raise AirflowFailException(f"the plan is blocked: {'; '.join(_stopping(plan))}")
    changes = bool(plan.steps or plan.records or plan.forgotten)
    return {"changes": changes, "summary": summary(plan), "text": render(plan), "plan": plan.to_json()}


def _applied_result(done: Applied) -> dict[str, Any]:
    """What was done, in short."""
    return {"deploy_id": done.deploy_id, "state": done.state, "steps": len(done.steps), "revision": done.revision}


def _check_result(plan: Plan) -> dict[str, Any]:
    """Counts, all of them zero but one.

    :raises AirflowFailException: something is left to do, was changed by hand and not adopted, or stops the next deploy
    """
    left = [f"{each.how.value} {each.name}" for each in plan.steps]
    if left or not plan.applicable:
        raise AirflowFailException(f"not as declared: {'; '.join([*_stopping(plan), *left])}")
    return {"changes": False, "summary": summary(plan)}


def _gc_result(collected: Collected, warn: Callable[..., None]) -> dict[str, Any]:
    """What was deleted; what could not be is told, and tried again by the next run."""
    for name, reason in collected.failed.items():
        warn("%s could not be deleted: %s; the next run tries again", name, reason)
    return {"deleted": list(collected.deleted), "kept": dict(collected.kept), "failed": dict(collected.failed)}


def _stopping(plan: Plan) -> list[str]:
    blocked = [f"{each.name}: {', '.join(each.problems)}" for each in plan.blocked]
    drift = [f"{each.name} was changed by hand: {', '.join(each.problems)}" for each in plan.drift if each.blocking]
    return blocked + drift


_RENDERERS: Final = dict.fromkeys(("policies", "plan", "conf", "env_vars", "post_submit_commands"), "json")
_ACTIONS: Final = ("plan", "apply", "check", "gc")


class BuiltinMigrationOperator(SparkSubmitOperator):
    """Bring the platform's own tables, views and sinks to what the code declares.

    Spark is submitted only for a plan that takes SQL (views, rewrites, materialized views); new columns, settings and
    empty tables need none. Takes every argument of its parent, ``SparkSubmitOperator``. After a try that died, the
    next one plans from what it left; two deploys at once are kept apart by a lease in the control store.

    :param action: ``plan`` returns what a deploy would do; ``apply`` does it; ``check`` fails if anything is left to
        do, or was changed by hand; ``gc`` deletes what earlier deploys put aside (templated)
    :param objects: YAML files or folders of declarations, beside the DAG's file if relative; what the package and
        entry points declare comes besides (templated)
    :param project: whose objects they are (templated)
    :param declared_version: of the code that declares them; this package's where left out. Not templated: Jinja's
        native types would make a number of it
    :param policies: decisions for this deploy, see :class:`airflow_provider_rfr.builtins.Policies` (templated)
    :param plan: a plan as ``plan`` returned it, e.g. ``"{{ ti.xcom_pull('plan')['plan'] }}"``: ``apply`` does that one,
        and fails if what is there now would give another one, also after a try that died half way. Without it each try
        makes a plan and does it at once (templated)
    :param lake_conn_id: connection of type ``rfr_lake`` (templated)
    :param control_store_conn_id: connection of the control store, see :class:`ControlStoreHook`
    :raises ConfigurationError: field, problem and remedy, while the DAG is parsed
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        *("action", "objects", "project", "policies", "plan", "lake_conn_id"),
    )
    template_fields_renderers = _RENDERERS
    ui_color = "#dbe3ee"

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
        self._load: Callable[[RefreshSparkHook], None] | None = None
        if "{{" not in action:
            _check_action(action)
        if plan is not None and action in ("plan", "check", "gc"):
            raise ConfigurationError("plan", f"{action} makes its own", "leave it out")
        if action == "apply" or "{{" in action:
            self.outlets = [*self.outlets, SOURCES]
        if isinstance(policies, Mapping) and "{{" not in str(policies):
            policies_of(policies)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Do it; returns the plan, or what was done.

        :raises AirflowFailException: a retry would meet the same error
        :raises RfrError: a retry may help
        """
        return outcome.final(lambda: self._execute(context), self.log.error)

    def on_kill(self) -> None:
        """End the driver."""
        if isinstance(self._hook, RefreshSparkHook):
            with self._hook.driver_asked_to_stop(STOP_GRACE_SECONDS):
                super().on_kill()

    def _execute(self, context: Context) -> dict[str, Any]:
        self._hook = None
        _check_action(self.action)
        hook = BuiltinsHook(
            self.objects or (),
            project=self.project,
            version=self.declared_version or None,
            lake_conn_id=self.lake_conn_id,
            control_store_conn_id=self.control_store_conn_id,
            folder=dag_folder(self),
        )
        if self.action == "gc":
            return _gc_result(hook.collect_garbage(), self.log.warning)
        plan = self._given_plan() or hook.plan(policies_of(_mapping("policies", self.policies)))
        self._show(plan)
        if self.action == "check":
            return _check_result(plan)
        return _plan_result(plan) if self.action == "plan" else self._apply(hook, plan, context)

    def _apply(self, hook: BuiltinsHook, plan: Plan, context: Context) -> dict[str, Any]:
        ti = context["ti"]
        actor = f"{ti.dag_id} {ti.run_id} {ti.task_id}"
        if plan.applicable and hook.needs_spark(plan):
            done = self._submit(hook, plan, actor, context)
        else:
            done = _applied_result(hook.apply(plan, actor=actor))
        self.log.info("Deploy %s: %s, registry at revision %s", done["deploy_id"], done["state"], done["revision"])
        told = {done["deploy_id"]: plan, **hook.done_by(actor)}
        tell_sources(context, self.lake_conn_id, told)
        return {**done, "sources": sorted({name for each in told.values() for name in each.sources_to_load()})}

    def _submit(self, hook: BuiltinsHook, plan: Plan, actor: str, context: Context) -> dict[str, Any]:
        check_machine()
        with submit.private_folder() as folder:
            self._load = partial(load_migration, folder, hook, plan, actor)
            try:
                super().execute(context)
            except AirflowException:
                self._raise_failure()
                raise
        word = self._hook.last_word if isinstance(self._hook, RefreshSparkHook) else None
        if word is None or "deploy_id" not in word:
            raise RfrError("Spark ended well, but did not say what it deployed; see the driver's log")
        return {name: word[name] for name in ("deploy_id", "state", "steps", "revision")}

    def _raise_failure(self) -> None:
        """Say what failed, if it was the deploy; errors of the submit itself are the parent's."""
        hook = self._hook
        if isinstance(hook, RefreshSparkHook):
            told = outcome.failure_of_driver(hook.last_word, hook.exit_code, hook.last_lines)
            if told is not None:
                raise told from None

    def _get_hook(self) -> RefreshSparkHook:
        """The hook with everything of this try; the parent asks for it once its own settings are complete."""
        remedy = "make one of type spark whose host is the master, e.g. local[*] or spark://host:7077"
        connection_named(self._conn_id, "conn_id", remedy)
        self.application = self.application or str(submit.application_path("builtin_migration"))
        hook = RefreshSparkHook.like(super()._get_hook())
        if self._load is not None:
            self._load(hook)
        return hook

    def _given_plan(self) -> Plan | None:
        from airflow_provider_rfr.builtins import Plan

        document = _mapping("plan", self.plan)
        return Plan.from_json(document) if document else None

    def _show(self, plan: Plan) -> None:
        from airflow_provider_rfr.builtins.planning.render import render

        for line in render(plan).splitlines():
            self.log.info("%s", line)


def _check_action(action: str) -> None:
    if action not in _ACTIONS:
        raise ConfigurationError("action", f"{action!r} is unknown", f"one of {', '.join(_ACTIONS)}")


def _mapping(field: str, value: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    """A templated mapping may come as text."""
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
        raise ConfigurationError(field, "is not a mapping", "give a JSON object")
    return value
