"""The operator that plans, deploys and checks built-in objects, and the return values of its tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr.builtins.model import encode
from airflow_provider_rfr.builtins.plan import Plan, render, summary
from airflow_provider_rfr.exceptions import ConfigurationError, RfrError, StalePlanError
from airflow_provider_rfr.hooks.builtins import PROJECT, BuiltinsHook, policies_of
from airflow_provider_rfr.hooks.dag_arguments import calling_folder
from airflow_provider_rfr.hooks.lake import LakeHook
from airflow_provider_rfr.operators._outcome import SOURCES, add_source_events, final_errors
from airflow_provider_rfr.operators.submit import SparkApplicationOperator, load_migration, private_folder
from airflow_provider_rfr.preflight import check_machine

if TYPE_CHECKING:
    from airflow.sdk import Context


_ACTIONS: Final = ("plan", "apply", "check", "gc")


class BuiltinMigrationOperator(SparkApplicationOperator):
    """Migrate the platform's own tables, views and sinks to their declarations.

    Spark is submitted only for a plan that takes SQL (views, rewrites, materialized views); new columns, settings and
    empty tables need none. Takes every argument of its parent, ``SparkSubmitOperator``. After a try that died, the
    next one plans from what it left; two deploys at once are kept apart by a lease in the control store.

    :param action: ``plan`` returns what a deploy would do; ``apply``, the default, does it; ``check`` fails if anything
        is left to do, or was changed by hand; ``gc`` deletes what earlier deploys retired (templated)
    :param objects: YAML files or folders of declarations, next to the DAG's file if relative; what the package and
        entry points declare comes besides (templated)
    :param project: that the objects belong to; default ``rfr`` (templated)
    :param declared_version: of the code that declares them; None for this package's. Not templated: Jinja's native
        types would make a number of it
    :param policies: decisions for this deploy, see :class:`airflow_provider_rfr.builtins.Policies` (templated)
    :param plan: a plan as ``plan`` returned it, e.g. ``"{{ ti.xcom_pull('plan')['plan'] }}"``: ``apply`` applies that
        one, and fails if the present state would give another one, also after a try that died half way. Without it
        each try makes a plan and applies it at once (templated)
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
            # The declarations travel as a value: their files need not be on the driver's machine.
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
        # A try that died after its deploy left the events to this one, which finds nothing to do.
        deploys = {deploy_id: plan, **hook.done_by(actor)}
        add_source_events(context, self.lake_conn_id, deploys)
        return {**result, "sources": sorted({name for deploy in deploys.values() for name in deploy.sources_to_load()})}


def _check_action(action: str) -> None:
    if action not in _ACTIONS:
        raise ConfigurationError("action", f"invalid action {action!r}", f"one of {', '.join(_ACTIONS)}")


def _mapping(field: str, value: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    """Return a templated mapping, which may come as text."""
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
