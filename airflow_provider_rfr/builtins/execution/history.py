"""Deploys in the package's own history table: each step of each finished deploy, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from airflow_provider_rfr.builtins.planning.plan import Plan, Step
from airflow_provider_rfr.exceptions import PlanError
from airflow_provider_rfr.lake.commits import append_once
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import Deploy, DeployState, JournalStep, StepState
from airflow_provider_rfr.store.engine import ControlStore, instant

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

log = logging.getLogger(__name__)

_MIGRATIONS: Final = "rfr_system.migration_history"
_OVER: Final = {DeployState.DONE: "done", DeployState.ABANDONED: "failed"}
_STEPS: Final = {StepState.DONE: "done", StepState.FAILED: "failed", StepState.STARTED: "failed"}


def record_deploys(catalog: Catalog, store: ControlStore, project: str) -> int:
    """Add the project's newest finished deploys that the history lacks; returns the number of rows.

    That includes a deploy whose process died before it could do so. A history that can't be written is only a warning:
    the deploy itself is done.
    """
    try:
        with store.read() as connection:
            over = [each for each in deploys.history(connection, project) if each.state in _OVER]
            rows = [row for each in over for row in _rows(each, deploys.steps_of(connection, each.deploy_id))]
        return append_once(catalog, _MIGRATIONS, rows, keys=("deploy_id", "seq"), scope={"project": project})
    except Exception as error:  # noqa: BLE001 - each catalog refuses in its own way
        log.warning("the history of migrations can't be written (%s); the deploy is not affected", error)
        return 0


def plan_of(deploy: Deploy) -> Plan | None:
    """The plan that a deploy carried out; None if another version of this package wrote it in a format of its own."""
    try:
        return Plan.from_json(orjson.loads(deploy.plan))
    except PlanError:
        return None


def _rows(deploy: Deploy, steps: tuple[JournalStep, ...]) -> Iterator[dict[str, Any]]:
    same = {
        "deploy_id": deploy.deploy_id,
        "project": deploy.project,
        "from_version": deploy.from_version,
        "to_version": deploy.to_version,
        "base_revision": deploy.base_revision,
        "plan_hash": deploy.plan_hash,
        "actor": deploy.actor,
    }
    yield {**same, **_times(deploy), "seq": 0, "state": _OVER[deploy.state], "error": deploy.error}
    plan = plan_of(deploy)
    planned = {} if plan is None else {each.seq: each for each in plan.steps}
    for each in steps:
        yield {**same, **_step_row(each, planned.get(each.seq))}


def _step_row(done: JournalStep, step: Step | None) -> dict[str, Any]:
    """The columns of a step: from the journal, and from the plan, if it is known."""
    evidence: Mapping[str, Any] = orjson.loads(done.evidence or "{}")
    row = {
        **_times(done),
        "seq": done.seq,
        "object_id": done.uuid,
        "object_name": done.name,
        "how": done.action,
        "state": _STEPS.get(done.state, "skipped"),
        "error": done.error,
        "rows_after": evidence.get("rows"),
        "snapshot_after": evidence.get("snapshot_after"),
    }
    if step is None:
        return row
    return {
        **row,
        "kind": step.kind.value,
        "reason": step.reason,
        "changes": list(step.changes),
        "loses": list(step.loses),
    }


def _times(each: Deploy | JournalStep) -> dict[str, Any]:
    return {"started_at": _moment(each.started_at), "ended_at": _moment(each.ended_at), "attempts": each.attempts}


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else instant(milliseconds)
