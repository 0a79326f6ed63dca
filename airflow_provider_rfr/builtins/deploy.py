"""The execution of a plan under a lease, safe against crashes and concurrent deploys; and its Spark application.

All new queries are analysed before the first change. Then each step is probed in the catalog, noted in the journal as
begun, executed, probed again, and noted as done.

The Spark application runs one deploy, or one refresh of materialized views, from a document, and prints one line of
JSON at its end. The operator ships the document in a private file; users may write one themselves.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from uuid import uuid4

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from airflow_provider_rfr.builtins.declarations import load_objects
from airflow_provider_rfr.builtins.desired import in_order, readers_of, release
from airflow_provider_rfr.builtins.maintenance import entry_of, fence, observe, record_deploys
from airflow_provider_rfr.builtins.model import QUERIED, STORED, CatalogSpec, Column, Kind, retired_name
from airflow_provider_rfr.builtins.plan import Plan, PlanStep, Policies, StepAction, ensure_current
from airflow_provider_rfr.builtins.planner import plan as make_plan
from airflow_provider_rfr.builtins.refresh import refresh
from airflow_provider_rfr.builtins.spark_sql import Outputs, SparkSqlEngine
from airflow_provider_rfr.builtins.steps import DeployWork, Mechanism, ReplaceRows, mechanism_of, takes_sql
from airflow_provider_rfr.documents import problems_of, read_yaml
from airflow_provider_rfr.exceptions import (
    BlockedPlanError,
    CatalogError,
    ConfigurationError,
    DeployError,
    LeaseLostError,
    RfrError,
    StalePlanError,
)
from airflow_provider_rfr.http.redaction import Redactor, secrets_in
from airflow_provider_rfr.lake.catalog import Catalog, LakeSettings, open_catalog
from airflow_provider_rfr.lake.commits import CommitConflictError, TargetChangedError
from airflow_provider_rfr.lake.spark import result_line
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import DeployState, NewDeploy, StepState, read_registry, write_registry
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.leases import PATIENCE, SECONDS, acquire

_TRIES: Final = 20
"""Maximum number of attempts at a change while other writers of the table commit first."""
_DAY: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Applied:
    """A finished deploy; ``state`` is ``done``, or ``nothing`` if there was nothing to do."""

    deploy_id: str
    plan_hash: str
    state: str
    steps: tuple[PlanStep, ...] = ()
    revision: int = 0


def apply(
    plan: Plan,
    *,
    catalog: Catalog,
    store: ControlStore,
    spec: CatalogSpec,
    sql: SparkSqlEngine | None = None,
    actor: str = "",
    patience: float = PATIENCE,
    lease_seconds: float = SECONDS,
    replan: bool = False,
) -> Applied:
    """Apply the plan, if the present state gives the very same plan.

    A deploy that died is not resumed: plan again, and the new plan starts from what it left.

    :param sql: needed for views, rewrites and materialized views
    :param actor: who or what deploys, for the journal
    :param patience: seconds to wait for another deploy
    :param lease_seconds: after this time without renewal, another deploy may take over
    :param replan: nobody has approved the plan: if the present state gives another one, apply that one
    :raises BlockedPlanError: something stops the plan; nothing was done
    :raises StalePlanError: the present state gives another plan; nothing was done
    :raises ConfigurationError: the plan needs ``sql``, and there is none; nothing was done
    :raises DeployBusyError: another deploy holds the lease
    :raises DeployError: the analysis of a query failed; nothing was done
    :raises StepError: a step failed; what was done before it stays, and the next plan starts from there
    :raises LeaseLostError: another deploy took over
    """
    if (plan.project, plan.version) != (spec.project, spec.version):
        raise StalePlanError(f"not a plan of {spec.project} {spec.version}: {plan.project} {plan.version}; plan again")
    with acquire(store, plan.project, seconds=lease_seconds, patience=patience) as lease:
        # Under the lease: until it is held, another deploy may still change what is observed here.
        recorded, live = observe(catalog, store, project=plan.project, spec=spec)
        fresh = make_plan(spec, recorded, live, policies=plan.policies)
        applied = _done_already(store, plan, fresh) if fresh.plan_hash != plan.plan_hash else None
        if applied is None:
            plan = fresh if replan else ensure_current(plan, fresh)
            if blockers := plan.stopped_by():
                raise BlockedPlanError(blockers)
            texts = {view.key: view.query for view in live.user_views}
            work = DeployWork(uuid4().hex, plan, spec, recorded, catalog, lease, sql, texts)
            applied = _apply(work, store, actor, replan=replan)
    if applied.state == DeployState.DONE.value:
        # After the lease was given back: appending to the history takes seconds, and no deploy has to wait for that.
        record_deploys(catalog, store, plan.project)
    return applied


def _done_already(store: ControlStore, approved: Plan, fresh: Plan) -> Applied | None:
    """Return the result of a deploy that has already applied this plan, if nothing is left to do.

    This makes ``apply`` idempotent, for the slower of two concurrent deploys, and for a task that died before it could
    return.
    """
    with store.read() as connection:
        last = deploys.find_deploy(connection, read_registry(connection, approved.project).deploy_id)
    if last is None or last.plan_hash != approved.plan_hash or fresh.steps or not fresh.applicable:
        return None
    return Applied(last.deploy_id, last.plan_hash, last.state.value, approved.steps, last.revision or 0)


def _apply(work: DeployWork, store: ControlStore, actor: str, *, replan: bool) -> Applied:
    """Apply the current plan; everything that can be checked is checked before the first change."""
    plan, recorded, lease = work.plan, work.recorded, work.lease
    steps = [(step.seq, str(step.uuid) if step.uuid else None, step.name, step.how.value) for step in plan.steps]
    document, versions = orjson.dumps(plan.to_json()).decode(), (plan.recorded_version, plan.version)
    opening = NewDeploy(
        work.deploy_id, plan.project, plan.base_revision, *versions, plan.plan_hash, document, actor, steps
    )
    # Only a newer version is written to the registry if there is nothing else to do.
    newer = recorded.version is None or release(plan.version) > release(recorded.version)
    if not (plan.steps or plan.records or plan.forgotten or newer):
        lease.write(lambda connection, now: deploys.record_nothing(connection, opening, now=now))
        return Applied(work.deploy_id, plan.plan_hash, DeployState.NOTHING.value, (), recorded.revision)
    if needing := [step.name for step in plan.steps if takes_sql(step)]:
        if work.sql is None and replan:
            raise StalePlanError("another deploy came first, and what is left takes SQL on Spark; plan again")
        if work.sql is None:
            raise ConfigurationError("sql", f"{', '.join(needing[:3])} take SQL on Spark", "give an engine")
        try:
            work.bridged.update(_analyse(work, work.sql))
        except LeaseLostError:
            raise
        except RfrError as error:
            raise DeployError(f"{error}; nothing was done") from error
    # Fence first: a deploy that was paused can commit to its tables until they carry this lease's token.
    fence(work.catalog, store, lease)
    lease.write(lambda connection, now: deploys.open_deploy(connection, opening, token=lease.token, now=now))
    return Applied(work.deploy_id, plan.plan_hash, DeployState.DONE.value, plan.steps, _finish(work))


def _analyse(work: DeployWork, sql: SparkSqlEngine) -> Mapping[str, Outputs]:
    """Analyse each query that the plan changes, or whose inputs it changes, over the tables as they will be.

    :returns: the outputs of the present text of each view that is bridged
    """
    objects = work.objects
    reads = {uuid: [read.uuid for read in obj.deps if read.uuid] for uuid, obj in objects.items()}
    order = in_order(reads, lambda uuid: (objects[uuid].key, uuid))
    changed = readers_of((step.uuid for step in work.plan.steps if step.uuid), order, reads)
    asked = {uuid for uuid in order if uuid in changed and objects[uuid].kind in QUERIED and objects[uuid].sql}
    bridges = [step for step in work.plan.steps if step.how is StepAction.BRIDGE]
    # The dependencies of users' views have no ids, so all objects are provided for them.
    needed = set(order) if any(bridge.user for bridge in bridges) else set(asked)
    for uuid in reversed(order):
        if uuid in needed:
            needed.update(reads[uuid])
    here = [objects[uuid] for uuid in order if uuid in needed]
    tables = {obj.name: obj.columns for obj in here if obj.kind in STORED and obj.columns}
    queries = [obj for obj in here if obj.sql and (obj.kind is Kind.VIEW or obj.uuid in asked)]
    texts = {bridge.name: str(bridge.details["sql"]) for bridge in bridges}
    outputs = sql.analyse(tables, queries, texts) if queries or texts else {}
    for rewrite in (ReplaceRows(work, step) for step in work.plan.steps if step.how is StepAction.REWRITE):
        # An earlier step may rename it, so the present table is looked for by its recorded name first.
        recorded = work.recorded.by_uuid.get(rewrite.record.uuid)
        table = work.table(recorded.name if recorded is not None else rewrite.name) or work.table(rewrite.name)
        if table is not None:
            columns = [Column(column.name, column.type) for column in table.entry.columns]
            record = replace(rewrite.record, columns=(), sql=rewrite.query(table))
            texts = {rewrite.name: rewrite.query(table, casts=False)}
            rewrite.check_fields(sql.analyse({rewrite.name: columns}, [record], texts).get(rewrite.name, ()))
    return outputs


def _finish(work: DeployWork) -> int:
    """Run all steps, write the registry, and return its revision; if a step fails, note the error in the journal."""
    failing: PlanStep | None = None
    try:
        for failing in work.plan.steps:
            _run(work, failing)
        # An error of the last transaction must not mark the last step as failed: that one is done.
        failing = None
        return work.lease.write(lambda connection, now: _close(connection, now, work))
    except Exception as error:
        failure: dict[str, Any] = {"error": str(error) if isinstance(error, RfrError) else type(error).__name__}

        def note(connection: Connection, now: int) -> None:
            if failing is not None:
                deploys.end_step(connection, work.deploy_id, failing.seq, StepState.FAILED, now=now, **failure)
            deploys.end_deploy(connection, work.deploy_id, DeployState.FAILED, now=now, **failure)

        # A second error must not hide the first one.
        with suppress(DeployError, DBAPIError):
            work.lease.write(note)
        raise


def _run(work: DeployWork, step: PlanStep) -> None:
    """Run the step, and note its beginning and its end in the journal."""
    mechanism = mechanism_of(work, step)

    def start(connection: Connection, now: int) -> None:
        deploys.start_step(connection, work.deploy_id, step.seq, token=work.lease.token, now=now)
        if "keep_days" in step.details:
            # Garbage is queued before it exists: a crash in between must not leave a table that nothing ever collects.
            until, name = now + int(step.details["keep_days"]) * _DAY, retired_name(step.name, work.deploy_id)
            left = deploys.Garbage(name, str(step.uuid), work.deploy_id, step.reason, until)
            deploys.queue(connection, work.plan.project, left, now=now)

    def end(connection: Connection, now: int) -> None:
        mechanism.settle(connection, now)
        shown = orjson.dumps(evidence).decode()
        deploys.end_step(connection, work.deploy_id, step.seq, StepState.DONE, now=now, evidence=shown)

    try:
        done = mechanism.probe()
        # Before anything is done: the fence of a later deploy protects only tables of steps that are noted as begun.
        work.lease.write(start)
        if not done:
            _do(work, mechanism)
        # Only what the catalog shows counts as done: the next deploy plans from that, not from the journal.
        if mechanism.probe() is False:
            raise mechanism.refused("the catalog does not show its change")
        evidence = mechanism.evidence()
        work.lease.write(end)
    except DeployError:
        raise
    except Exception as error:
        # The text of another library's error may hold a secret, and it is stored.
        problem = Redactor(secrets_in(work.catalog.properties)).text(str(error).partition("\n")[0])[:300]
        problem = str(error) if isinstance(error, RfrError) else f"{type(error).__name__}: {problem}"
        raise mechanism.refused(problem, "") from error


def _do(work: DeployWork, mechanism: Mechanism) -> None:
    """Execute the step, and repeat it if another writer, whose commit must not be overwritten, has committed first."""
    for left in range(_TRIES, 0, -1):
        try:
            mechanism.do()
            return
        except (CommitConflictError, TargetChangedError) as error:
            # The other writer may be a deploy that took over and has fenced the table. Then this one ends here.
            work.lease.ensure()
            if mechanism.probe():
                return
            if left == 1:
                problem = f"others committed {_TRIES} times while it was done ({error})"
                raise mechanism.refused(problem, "run it when fewer write") from error
        except CatalogError:
            # The catalog may have made the change, and its answer was lost.
            if mechanism.probe():
                return
            raise


def _close(connection: Connection, now: int, work: DeployWork) -> int:
    """Write the registry, and end this deploy and the unfinished ones that it replaces, in one transaction."""
    plan, ours = work.plan, work.deploy_id
    stepped = {step.uuid for step in plan.steps}
    # Records of objects that a step changed have the deploy's id, as their properties do.
    records = (replace(record, deploy_id=ours) if record.uuid in stepped else record for record in plan.records)
    base, forgotten = (plan.base_revision, plan.version, ours), map(str, plan.forgotten)
    revision = write_registry(connection, plan.project, *base, now, entries=map(entry_of, records), forgotten=forgotten)
    deploys.end_deploy(connection, ours, DeployState.DONE, now=now, revision=revision)
    deploys.abandon_others(connection, plan.project, ours)
    return revision


log = logging.getLogger("airflow_provider_rfr")

# Spark and PyIceberg expect "true" for YAML's true; Python's text would be "True".
_Setting = Annotated[str, BeforeValidator(lambda value: str(value).lower() if isinstance(value, bool) else value)]
_Plan = Annotated[Plan, BeforeValidator(lambda value: Plan.from_json(value) if isinstance(value, Mapping) else value)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class _Lake(_Part):
    name: str = "rfr"
    properties: dict[str, _Setting] = Field(repr=False)


class _Refresh(_Part):
    names: tuple[str, ...] = ()
    force: bool = False


class _SupervisorProcess(NamedTuple):
    pid: int
    started: int
    host: str


class MigrationDocument(_Part):
    """The document of the Spark application: one deploy, or one refresh of materialized views.

    :ivar store: address of the control store; it may hold a password
    :ivar objects: YAML files and folders of declarations, as :func:`.declarations.load_objects` reads them
    :ivar spec: the declarations themselves, instead of ``objects``, if the files are not on the driver's machine
    :ivar plan: the plan to apply; None: plan now
    :ivar refresh: deploy nothing, and refresh these materialized views, or all of the project if it names none
    :ivar run: written by the operator: its process, without which the driver ends itself
    """

    lake: _Lake
    store: str = Field(min_length=1, repr=False)
    project: str = "rfr"
    version: str | None = None
    objects: tuple[Path, ...] = ()
    spec: CatalogSpec | None = None
    policies: Policies | None = None
    plan: _Plan | None = None
    actor: str = ""
    refresh: _Refresh | None = None
    spark: dict[str, _Setting] = {}
    jars: tuple[str, ...] = ()
    run: dict[Literal["supervisor"], _SupervisorProcess] = {}

    def catalog_spec(self) -> CatalogSpec:
        """Return the declared objects.

        :raises DeclarationError: the declarations are invalid; it lists every problem
        """
        return self.spec or load_objects(*self.objects, project=self.project, version=self.version)


def read_document(path: Path) -> MigrationDocument:
    """Read the document of a YAML or JSON file; paths in it are relative to its folder.

    :raises ConfigurationError: it can't be read, or fields of it are wrong; the message shows no value
    :raises PlanError: its plan is invalid, or was changed after it was made
    """
    try:
        document = MigrationDocument.model_validate(read_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problems = problems_of(error, MigrationDocument).values()
        raise ConfigurationError.of(replace(problem, field=problem.field or "config") for problem in problems) from None
    except (OSError, ValueError) as error:
        # A parser's message quotes the line, which may hold a password.
        problem = f"can't be read: {type(error).__name__}"
        raise ConfigurationError("config", problem, "give a YAML or JSON file") from None
    return document.model_copy(update={"objects": tuple(path.parent / obj for obj in document.objects)})


def _work(document: MigrationDocument) -> dict[str, Any]:
    """Deploy or refresh as the document says, and return the figures to print."""
    lake = LakeSettings(document.lake.name, document.lake.properties)
    engine = SparkSqlEngine(lake, document.spark, document.jars)
    with closing(open_store(document.store)) as store, closing(engine) as sql:
        where: dict[str, Any] = {"catalog": open_catalog(lake), "store": store}
        if (asked := document.refresh) is not None:
            views = refresh(asked.names, project=document.project, sql=sql, force=asked.force, **where)
            return {"views": {view.name: asdict(view) for view in views}}
        spec, plan, replan = document.catalog_spec(), document.plan, document.plan is None
        if plan is None:
            plan = make_plan(spec, *observe(**where, project=spec.project, spec=spec), policies=document.policies)
        applied = apply(plan, spec=spec, sql=sql, actor=document.actor, replan=replan, **where)
    return {**asdict(replace(applied, steps=())), "steps": len(applied.steps)}


def main(document: MigrationDocument, *, began: float) -> int:
    """Deploy or refresh, print one JSON object as the last line, and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        figures = _work(document)
    except Exception as error:
        log.debug("it could not be done", exc_info=error)
        return failed(error, secrets_in({**document.lake.properties, "control store": document.store}))
    print(result_line({**figures, "seconds": round(time.monotonic() - began, 3)}), flush=True)
    return 0


def failed(error: BaseException, secrets: tuple[str, ...] = ()) -> int:
    """Print the error as one JSON object, without secrets, and return the exit code."""
    kind, cause = type(error).__name__, type(error.__cause__).__name__ if error.__cause__ else None
    details = {"type": kind, "cause": cause, "message": Redactor(secrets).text(str(error) or kind)}
    print(result_line({"error": details}), flush=True)
    return 1
