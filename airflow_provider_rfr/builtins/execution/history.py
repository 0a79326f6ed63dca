"""Deploys in the package's own history table: each step of each finished deploy, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import orjson

from airflow_provider_rfr.builtins.planning.plan import Plan
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
_OF_DEPLOY: Final = ("deploy_id", "project", "from_version", "to_version", "base_revision", "plan_hash", "actor")


def record_deploys(catalog: Catalog, store: ControlStore, project: str) -> None:
    """Add the project's newest finished deploys that the history lacks.

    That includes a deploy whose process died before it could do so. A history that can't be written is only a warning:
    the deploy itself is done.
    """
    try:
        with store.read() as connection:
            over = [each for each in deploys.history(connection, project) if each.state in _OVER]
            rows = [row for each in over for row in _rows(each, deploys.steps_of(connection, each.deploy_id))]
        append_once(catalog, _MIGRATIONS, rows, keys=("deploy_id", "seq"), scope={"project": project})
    except Exception as error:  # noqa: BLE001 - each catalog refuses in its own way
        log.warning("the history of migrations can't be written (%s); the deploy is not affected", error)


def plan_of(deploy: Deploy) -> Plan | None:
    """The plan that a deploy carried out; None if another version of this package wrote it in a format of its own."""
    try:
        return Plan.from_json(orjson.loads(deploy.plan))
    except PlanError:
        return None


def _rows(deploy: Deploy, steps: tuple[JournalStep, ...]) -> Iterator[dict[str, Any]]:
    same = {name: getattr(deploy, name) for name in _OF_DEPLOY}
    yield {**same, **_outcome(deploy), "seq": 0, "state": _OVER[deploy.state]}
    plan = plan_of(deploy)
    planned = {} if plan is None else {each.seq: each for each in plan.steps}
    for each in steps:
        evidence = orjson.loads(each.evidence or "{}")
        row = {
            **same,
            **_outcome(each),
            "seq": each.seq,
            "object_id": each.uuid,
            "object_name": each.name,
            "how": each.action,
            "state": _STEPS.get(each.state, "skipped"),
            "rows_after": evidence.get("rows"),
            "snapshot_after": evidence.get("snapshot_after"),
        }
        if (step := planned.get(each.seq)) is not None:
            row |= {"kind": step.kind.value, "reason": step.reason, "changes": step.changes, "loses": step.loses}
        yield row


def _outcome(each: Deploy | JournalStep) -> dict[str, Any]:
    times = {"started_at": each.started_at, "ended_at": each.ended_at}
    moments = {name: None if time is None else instant(time) for name, time in times.items()}
    return {**moments, "attempts": each.attempts, "error": each.error}
