"""What the tasks of a migration return, and when they fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_rfr.builtins import exit_code
from airflow_provider_rfr.builtins.planning.plans import summary
from airflow_provider_rfr.builtins.planning.render import render

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins import Plan
    from airflow_provider_rfr.builtins.execution.values import Applied, Collected

_BLOCKED = 1


def plan_result(plan: Plan) -> dict[str, Any]:
    """The plan, for the task that applies it, and whether there is anything to do.

    :raises AirflowFailException: something stops it
    """
    if exit_code(plan) == _BLOCKED:
        raise AirflowFailException(f"the plan is blocked: {'; '.join(_stopping(plan))}")
    changes = bool(plan.steps or plan.records or plan.forgotten)
    return {"changes": changes, "summary": summary(plan), "text": render(plan), "plan": plan.to_json()}


def applied_result(done: Applied) -> dict[str, Any]:
    """What was done, in short."""
    return {"deploy_id": done.deploy_id, "state": done.state, "steps": len(done.steps), "revision": done.revision}


def check_result(plan: Plan) -> dict[str, Any]:
    """Counts, all of them zero but one.

    :raises AirflowFailException: something is left to do, was changed by hand and not adopted, or stops the next deploy
    """
    left = [f"{each.how.value} {each.name}" for each in plan.steps]
    if left or not plan.applicable:
        raise AirflowFailException(f"not as declared: {'; '.join([*_stopping(plan), *left])}")
    return {"changes": False, "summary": summary(plan)}


def gc_result(collected: Collected, warn: Callable[..., None]) -> dict[str, Any]:
    """What was deleted; what could not be is told, and tried again by the next run."""
    for name, reason in collected.failed.items():
        warn("%s could not be deleted: %s; the next run tries again", name, reason)
    return {"deleted": list(collected.deleted), "kept": dict(collected.kept), "failed": dict(collected.failed)}


def _stopping(plan: Plan) -> list[str]:
    blocked = [f"{each.name}: {', '.join(each.problems)}" for each in plan.blocked]
    drift = [f"{each.name} was changed by hand: {', '.join(each.problems)}" for each in plan.drift if each.blocking]
    return blocked + drift
