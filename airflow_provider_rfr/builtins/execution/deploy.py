"""Applying a plan: under a lease, step by step, safe against a crash anywhere and against a second deploy at once.

Each step is probed, noted in the journal as begun, done, probed again, and noted as done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.builtins.desired import release
from airflow_provider_rfr.builtins.execution.analysis import analyse
from airflow_provider_rfr.builtins.execution.history import record_deploys
from airflow_provider_rfr.builtins.execution.mechanisms import Mechanism, mechanism_of, takes_sql
from airflow_provider_rfr.builtins.execution.observe import ViewsOf, catalog_views, entry_of, fence, observe
from airflow_provider_rfr.builtins.execution.work import Applied, AppliedStep, SqlEngine, Work
from airflow_provider_rfr.builtins.planning.plan import Plan, Step, ensure_current
from airflow_provider_rfr.builtins.planning.planner import plan as make_plan
from airflow_provider_rfr.builtins.spec import CatalogSpec
from airflow_provider_rfr.exceptions import (
    BlockedPlanError,
    ConfigurationError,
    DeployError,
    RfrError,
    StalePlanError,
    StepError,
)
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.commits import CommitConflictError, TargetChangedError
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import DeployState, Opening, StepState, read_registry, write_registry
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import PATIENCE, SECONDS, Lease, acquire

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


_TRIES: Final = 20
"""How often a change is repeated because another writer of the table was faster."""
_DAY: Final = 86_400_000


def _run_step(work: Work, step: Step) -> AppliedStep:
    """Do the step.

    :raises StepError: it can't be done
    :raises LeaseLostError: another deploy took over; nothing more is written
    """
    mechanism = mechanism_of(step)

    def start(connection: Connection, now: int) -> None:
        deploys.start_step(connection, work.deploy_id, step.seq, token=work.lease.token, now=now)
        if "keep_days" in step.details:
            # Garbage is queued before it exists: a crash in between must not leave a table that nothing ever collects.
            until, name = now + int(step.details["keep_days"]) * _DAY, work.retired_name(step.name)
            left = deploys.Garbage(name, str(step.uuid), work.deploy_id, step.reason, until)
            deploys.queue(connection, work.plan.project, left, now=now)

    def end(connection: Connection, now: int) -> None:
        mechanism.settle(connection, now, work, step)
        shown = orjson.dumps(evidence).decode()
        deploys.end_step(connection, work.deploy_id, step.seq, StepState.DONE, now=now, evidence=shown)

    found = bool(mechanism.probe(work, step))
    work.lease.write(start)
    if not found:
        _do(work, step, mechanism)
    if mechanism.probe(work, step) is False:
        raise StepError(step.name, step.how.value, "the catalog does not show its change", "plan again")
    evidence = mechanism.evidence(work, step)
    work.lease.write(end)
    return AppliedStep(step.seq, step.uuid, step.name, step.how.value, found, evidence)


def _do(work: Work, step: Step, mechanism: Mechanism) -> None:
    """Do the step; repeat it when another writer's commit came first, which must not be overwritten."""
    for left in range(_TRIES, 0, -1):
        try:
            mechanism.do(work, step)
            return
        except (CommitConflictError, TargetChangedError) as error:
            work.lease.ensure()
            if mechanism.probe(work, step):
                return
            if left == 1:
                problem = f"others committed {_TRIES} times while it was done ({error})"
                raise StepError(step.name, step.how.value, problem, "run it when fewer write") from error


def _check_applicable(plan: Plan) -> None:
    if not plan.applicable:
        found = [f"{each.name}: {'; '.join(map(str, each.problems))}" for each in plan.blocked]
        drift = [each for each in plan.drift if each.blocking]
        found += [f"{each.name}: {'; '.join(map(str, each.problems))} (drift)" for each in drift]
        raise BlockedPlanError(found)


def apply(
    plan: Plan,
    *,
    catalog: LakeSettings | Catalog,
    store: ControlStore,
    spec: CatalogSpec,
    sql: SqlEngine | None = None,
    actor: str = "",
    views: ViewsOf = catalog_views,
    patience: float = PATIENCE,
    lease_seconds: float = SECONDS,
    replan: bool = False,
) -> Applied:
    """Do what the plan says, if the present state gives the very same plan.

    A deploy that died is not resumed: plan again, and the new plan starts from what it left.

    :param sql: needed for views, rewrites and materialized views
    :param actor: who or what deploys, for the journal
    :param patience: seconds to wait for another deploy
    :param lease_seconds: after this time without renewal, another deploy may take over
    :param replan: nobody has approved the plan: if another deploy came first, do what is left by a plan of now
    :raises BlockedPlanError: something stops the plan; nothing was done
    :raises StalePlanError: the present state gives another plan; nothing was done
    :raises DeployBusyError: another deploy holds the lease
    :raises StepError: a step failed; what was done before it stays, and the next plan starts from there
    :raises LeaseLostError: another deploy took over
    """
    if (plan.project, plan.version) != (spec.project, spec.version):
        ours, declared = f"{plan.project} {plan.version}", f"{spec.project} {spec.version}"
        raise StalePlanError(f"the plan is for {ours}, what is declared is {declared}; plan again")
    _check_applicable(plan)
    opened = open_catalog(catalog) if isinstance(catalog, LakeSettings) else catalog
    with acquire(store, plan.project, seconds=lease_seconds, patience=patience) as lease:
        applied = _Deploy(opened, store, spec, lease, sql, actor, views).run(plan, replan=replan)
    if applied.state == DeployState.DONE.value:
        record_deploys(opened, store, plan.project)
    return applied


@dataclass(frozen=True)
class _Deploy:
    """One run under one lease."""

    catalog: Catalog
    store: ControlStore
    spec: CatalogSpec
    lease: Lease
    sql: SqlEngine | None
    actor: str
    views: ViewsOf

    def run(self, approved: Plan, *, replan: bool) -> Applied:
        """Do the plan, if what is there now gives the very same one; nothing is touched before that is known."""
        recorded, live = observe(self.catalog, self.store, project=approved.project, views=self.views)
        fresh = make_plan(self.spec, recorded, live, policies=approved.policies)
        if fresh.plan_hash != approved.plan_hash and (done := self._done_already(approved, fresh)) is not None:
            return done
        plan = fresh if replan else ensure_current(approved, fresh)
        _check_applicable(plan)
        run, views = uuid4().hex, lambda: self.views(self.catalog)
        opening = self._opening(plan, run)
        # That an older version found nothing to do is not recorded.
        newer = recorded.version is None or release(plan.version) > release(recorded.version)
        if not (plan.steps or plan.records or plan.forgotten or newer):
            self.lease.write(lambda connection, now: deploys.record_nothing(connection, opening, now=now))
            return Applied(run, plan.plan_hash, DeployState.NOTHING.value, (), recorded.revision)
        work = Work(run, plan, self.spec, recorded, self.catalog, self.lease, self.sql, views)
        self._prepare(work, replan=replan)
        return self._do(work, opening)

    def _prepare(self, work: Work, *, replan: bool) -> None:
        """What can be checked before anything is done, and not half way."""
        needing = [each.name for each in work.plan.steps if takes_sql(each)]
        if self.sql is None and needing and replan:
            raise StalePlanError("another deploy came first, and what is left takes SQL on Spark; plan again")
        if self.sql is None and needing:
            more = f" and {len(needing) - 3} more" if len(needing) > 3 else ""
            raise ConfigurationError("sql", f"{', '.join(needing[:3])}{more} take SQL on Spark", "give an engine")
        if needing:
            work.bridged.update(analyse(work))

    def _do(self, work: Work, opening: Opening) -> Applied:
        fence(self.catalog, self.store, self.lease)
        token = self.lease.token
        self.lease.write(lambda connection, now: deploys.open_deploy(connection, opening, token=token, now=now))
        try:
            steps = tuple(self._step(work, step) for step in work.plan.steps)
            revision = self.lease.write(lambda connection, now: self._close(connection, now, work))
        except Exception as error:
            message = _message(error)
            self._note_failure(
                lambda connection, now: deploys.end_deploy(
                    connection, work.deploy_id, DeployState.FAILED, now=now, error=message
                )
            )
            raise
        return Applied(work.deploy_id, work.plan.plan_hash, DeployState.DONE.value, steps, revision)

    def _step(self, work: Work, step: Step) -> AppliedStep:
        try:
            return _run_step(work, step)
        except Exception as error:
            message = _message(error)
            self._note_failure(
                lambda connection, now: deploys.end_step(
                    connection, work.deploy_id, step.seq, StepState.FAILED, now=now, error=message
                )
            )
            if isinstance(error, DeployError):
                raise
            problem = message if isinstance(error, RfrError) else f"{message}: {str(error).partition(chr(10))[0][:300]}"
            raise StepError(step.name, step.how.value, problem) from error

    def _done_already(self, approved: Plan, fresh: Plan) -> Applied | None:
        """The result of a deploy that did this very plan, if nothing is left to do: makes ``apply`` idempotent.

        For the slower of two deploys, and for a task that died before it could return.
        """
        with self.store.read() as connection:
            last = deploys.find_deploy(connection, read_registry(connection, approved.project).deploy_id)
            if last is None or last.plan_hash != approved.plan_hash or fresh.steps or not fresh.applicable:
                return None
            noted = deploys.steps_of(connection, last.deploy_id)
        evidence = {each.seq: orjson.loads(each.evidence or "{}") for each in noted}
        steps = tuple(
            AppliedStep(each.seq, each.uuid, each.name, each.how.value, True, evidence.get(each.seq, {}))
            for each in approved.steps
        )
        return Applied(last.deploy_id, last.plan_hash, last.state.value, steps, last.revision or 0)

    def _opening(self, plan: Plan, deploy_id: str) -> Opening:
        steps = [
            (each.seq, None if each.uuid is None else str(each.uuid), each.name, each.how.value) for each in plan.steps
        ]
        return Opening(
            deploy_id,
            plan.project,
            plan.base_revision,
            plan.recorded_version,
            plan.version,
            plan.plan_hash,
            orjson.dumps(plan.to_json()).decode(),
            self.actor,
            steps,
        )

    def _close(self, connection: Connection, now: int, work: Work) -> int:
        """Write the registry, and end this deploy and the unfinished ones that it replaces, in one transaction."""
        plan = work.plan
        stepped = {each.uuid for each in plan.steps}
        # Records of objects that a step changed bear the deploy's id, as their properties do.
        records = [
            replace(each, deploy_id=work.deploy_id if each.uuid in stepped else each.deploy_id) for each in plan.records
        ]
        revision = write_registry(
            connection,
            plan.project,
            base_revision=plan.base_revision,
            version=plan.version,
            deploy_id=work.deploy_id,
            entries=list(map(entry_of, records)),
            forgotten=map(str, plan.forgotten),
            now=now,
        )
        deploys.end_deploy(connection, work.deploy_id, DeployState.DONE, now=now, revision=revision)
        deploys.abandon_others(connection, plan.project, work.deploy_id)
        return revision

    def _note_failure(self, write: Callable[[Connection, int], None]) -> None:
        # A second error must not hide the first one.
        with suppress(DeployError, DBAPIError):
            self.lease.write(write)


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, RfrError) else type(error).__name__
