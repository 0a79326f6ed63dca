"""Applying a plan: under a lease, step by step, safe against a crash anywhere and against a second deploy at once.

All new texts are analysed before anything is touched. Then each step is probed, noted in the journal as begun, done,
probed again, and noted as done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.builtins.desired import in_order, readers_of, release
from airflow_provider_rfr.builtins.execution.engine import AnalysedQuery, Outputs, SqlEngine
from airflow_provider_rfr.builtins.execution.maintenance import record_deploys
from airflow_provider_rfr.builtins.execution.mechanisms import ReplaceRows, mechanism_of, takes_sql
from airflow_provider_rfr.builtins.execution.observe import entry_of, fence, observe
from airflow_provider_rfr.builtins.execution.work import Mechanism, Work
from airflow_provider_rfr.builtins.planning.plan import Action, Plan, Step, ensure_current
from airflow_provider_rfr.builtins.planning.planner import plan as make_plan
from airflow_provider_rfr.builtins.spec import QUERIED, STORED, CatalogSpec, Column, Kind
from airflow_provider_rfr.exceptions import (
    BlockedPlanError,
    ConfigurationError,
    DeployError,
    LeaseLostError,
    RfrError,
    StalePlanError,
)
from airflow_provider_rfr.lake.commits import CommitConflictError, TargetChangedError
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import DeployState, Opening, StepState, read_registry, write_registry
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import PATIENCE, SECONDS, acquire

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_TRIES: Final = 20
"""How often a change is repeated because another writer of the table was faster."""
_DAY: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """A step that is done; ``found``: already, by a run before this one.

    :ivar evidence: what was left, e.g. ``rows`` and ``snapshot_after``
    """

    seq: int
    uuid: UUID | None
    name: str
    how: str
    found: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Applied:
    """A deploy that is finished; ``state``: ``done``, or ``nothing`` where there was nothing to do."""

    deploy_id: str
    plan_hash: str
    state: str
    steps: tuple[AppliedStep, ...] = ()
    revision: int = 0


def apply(
    plan: Plan,
    *,
    catalog: Catalog,
    store: ControlStore,
    spec: CatalogSpec,
    sql: SqlEngine | None = None,
    actor: str = "",
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
    with acquire(store, plan.project, seconds=lease_seconds, patience=patience) as lease:
        recorded, live = observe(catalog, store, project=plan.project)
        fresh = make_plan(spec, recorded, live, policies=plan.policies)
        applied = _done_already(store, plan, fresh) if fresh.plan_hash != plan.plan_hash else None
        if applied is None:
            plan = fresh if replan else ensure_current(plan, fresh)
            _check_applicable(plan)
            work = Work(uuid4().hex, plan, spec, recorded, catalog, lease, sql)
            applied = _apply(work, store, actor, replan=replan)
    if applied.state == DeployState.DONE.value:
        record_deploys(catalog, store, plan.project)
    return applied


def _check_applicable(plan: Plan) -> None:
    if found := plan.stopped_by():
        raise BlockedPlanError(found)


def _done_already(store: ControlStore, approved: Plan, fresh: Plan) -> Applied | None:
    """The result of a deploy that did this very plan, if nothing is left to do: makes ``apply`` idempotent, for the
    slower of two deploys, and for a task that died before it could return."""
    with store.read() as connection:
        last = deploys.find_deploy(connection, read_registry(connection, approved.project).deploy_id)
        if last is None or last.plan_hash != approved.plan_hash or fresh.steps or not fresh.applicable:
            return None
        done = deploys.steps_of(connection, last.deploy_id)
    evidence = {each.seq: orjson.loads(each.evidence or "{}") for each in done}
    steps = (
        AppliedStep(each.seq, each.uuid, each.name, each.how.value, True, evidence[each.seq]) for each in approved.steps
    )
    return Applied(last.deploy_id, last.plan_hash, last.state.value, tuple(steps), last.revision or 0)


def _apply(work: Work, store: ControlStore, actor: str, *, replan: bool) -> Applied:
    """Do the plan of now. What can be checked is checked before anything is done."""
    plan, recorded, lease = work.plan, work.recorded, work.lease
    steps = [(each.seq, str(each.uuid) if each.uuid else None, each.name, each.how.value) for each in plan.steps]
    said, versions = orjson.dumps(plan.to_json()).decode(), (plan.recorded_version, plan.version)
    opening = Opening(work.deploy_id, plan.project, plan.base_revision, *versions, plan.plan_hash, said, actor, steps)
    # That an older version found nothing to do is not recorded.
    newer = recorded.version is None or release(plan.version) > release(recorded.version)
    if not (plan.steps or plan.records or plan.forgotten or newer):
        lease.write(lambda connection, now: deploys.record_nothing(connection, opening, now=now))
        return Applied(work.deploy_id, plan.plan_hash, DeployState.NOTHING.value, (), recorded.revision)
    if needing := [each.name for each in plan.steps if takes_sql(each)]:
        _analyse(work, needing, replan=replan)
    fence(work.catalog, store, lease)
    lease.write(lambda connection, now: deploys.open_deploy(connection, opening, token=lease.token, now=now))
    with _failure_noted(work, deploys.end_deploy, DeployState.FAILED):
        done = tuple(_run(work, step) for step in plan.steps)
        revision = lease.write(lambda connection, now: _close(connection, now, work))
    return Applied(work.deploy_id, plan.plan_hash, DeployState.DONE.value, done, revision)


def _analyse(work: Work, needing: list[str], *, replan: bool) -> None:
    """Analyse all new texts over the tables as they are going to be, before anything is touched."""
    if work.sql is None and replan:
        raise StalePlanError("another deploy came first, and what is left takes SQL on Spark; plan again")
    if work.sql is None:
        raise ConfigurationError("sql", f"{', '.join(needing[:3])} take SQL on Spark", "give an engine")
    try:
        work.bridged.update(_analysed(work, work.sql))
    except LeaseLostError:
        raise
    except RfrError as error:
        raise DeployError(f"{error}; nothing was done") from error


def _analysed(work: Work, sql: SqlEngine) -> Mapping[str, Outputs]:
    """Analyse every query that the plan changes, or whose inputs it changes; returns the outputs of the present text of
    each view that is bridged, over what it is going to read."""
    objects = {each.uuid: each for each in work.objects.values()}
    reads = {uuid: [read.uuid for read in each.deps if read.uuid] for uuid, each in objects.items()}
    order = in_order(reads, lambda uuid: (objects[uuid].key, uuid))
    changed = readers_of((step.uuid for step in work.plan.steps if step.uuid), order, reads)
    asked = {uuid for uuid in order if uuid in changed and objects[uuid].kind in QUERIED and objects[uuid].sql}
    bridges = [each for each in work.plan.steps if each.how is Action.BRIDGE]
    # What users' views read is known by name alone, so everything is there for them.
    needed = set(order) if any(each.user for each in bridges) else set(asked)
    for uuid in reversed(order):
        if uuid in needed:
            needed.update(reads[uuid])
    here = [objects[uuid] for uuid in order if uuid in needed]
    tables = {each.name: each.columns for each in here if each.kind in STORED and each.columns}
    queries = [
        AnalysedQuery(each.name, each.sql, tuple(one.name for one in each.columns), is_view=each.kind is Kind.VIEW)
        for each in here
        if each.sql and (each.kind is Kind.VIEW or each.uuid in asked)
    ]
    texts = [AnalysedQuery(each.name, str(each.details["sql"]), optional=True) for each in bridges]
    found = sql.analyse(tables, [*queries, *texts]) if queries or texts else []
    for step in work.plan.steps:
        if step.how is Action.REWRITE:
            _analyse_rewrite(work, sql, step)
    outputs = zip(bridges, found[len(queries) :], strict=True)
    return {step.name.casefold(): each for step, each in outputs if each is not None}


def _analyse_rewrite(work: Work, sql: SqlEngine, step: Step) -> None:
    # The table may get its name only in an earlier step, so what is there now is looked for by its recorded name.
    known = work.recorded.by_uuid.get(step.uuid) if step.uuid is not None else None
    table = work.table(known.name if known is not None else step.name) or work.table(step.name)
    if table is not None:
        columns = tuple(Column(each.name, each.type) for each in table.entry.columns)
        sql.analyse({step.name: columns}, [AnalysedQuery(step.name, ReplaceRows(work, step).query(table))])


@contextmanager
def _failure_noted(work: Work, end: Callable[..., None], *of: Any) -> Iterator[None]:
    """If it fails, note why in the journal."""
    try:
        yield
    except Exception as error:
        message = _message(error)
        # A second error must not hide the first one.
        with suppress(DeployError, DBAPIError):
            work.lease.write(lambda connection, now: end(connection, work.deploy_id, *of, now=now, error=message))
        raise


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, RfrError) else type(error).__name__


def _run(work: Work, step: Step) -> AppliedStep:
    """Do the step, and note what becomes of it."""
    mechanism = mechanism_of(work, step)

    def start(connection: Connection, now: int) -> None:
        deploys.start_step(connection, work.deploy_id, step.seq, token=work.lease.token, now=now)
        if "keep_days" in step.details:
            # Garbage is queued before it exists: a crash in between must not leave a table that nothing ever collects.
            until, name = now + int(step.details["keep_days"]) * _DAY, work.retired_name(step.name)
            left = deploys.Garbage(name, str(step.uuid), work.deploy_id, step.reason, until)
            deploys.queue(connection, work.plan.project, left, now=now)

    def end(connection: Connection, now: int) -> None:
        mechanism.settle(connection, now)
        shown = orjson.dumps(evidence).decode()
        deploys.end_step(connection, work.deploy_id, step.seq, StepState.DONE, now=now, evidence=shown)

    try:
        with _failure_noted(work, deploys.end_step, step.seq, StepState.FAILED):
            found = bool(mechanism.probe())
            work.lease.write(start)
            if not found:
                _do(work, mechanism)
            if mechanism.probe() is False:
                raise mechanism.refused("the catalog does not show its change")
            evidence = mechanism.evidence()
            work.lease.write(end)
            return AppliedStep(step.seq, step.uuid, step.name, step.how.value, found, evidence)
    except DeployError:
        raise
    except Exception as error:
        problem = _message(error)
        problem += "" if isinstance(error, RfrError) else f": {str(error).partition(chr(10))[0][:300]}"
        raise mechanism.refused(problem, "") from error


def _do(work: Work, mechanism: Mechanism) -> None:
    """Do the step; repeat it when another writer's commit came first, which must not be overwritten."""
    for left in range(_TRIES, 0, -1):
        try:
            mechanism.do()
            return
        except (CommitConflictError, TargetChangedError) as error:
            work.lease.ensure()
            if mechanism.probe():
                return
            if left == 1:
                problem = f"others committed {_TRIES} times while it was done ({error})"
                raise mechanism.refused(problem, "run it when fewer write") from error


def _close(connection: Connection, now: int, work: Work) -> int:
    """Write the registry, and end this deploy and the unfinished ones that it replaces, in one transaction."""
    plan, ours = work.plan, work.deploy_id
    stepped = {each.uuid for each in plan.steps}
    # Records of objects that a step changed bear the deploy's id, as their properties do.
    records = (replace(each, deploy_id=ours) if each.uuid in stepped else each for each in plan.records)
    base, forgotten = (plan.base_revision, plan.version, ours), map(str, plan.forgotten)
    revision = write_registry(connection, plan.project, *base, now, entries=map(entry_of, records), forgotten=forgotten)
    deploys.end_deploy(connection, ours, DeployState.DONE, now=now, revision=revision)
    deploys.abandon_others(connection, plan.project, ours)
    return revision
