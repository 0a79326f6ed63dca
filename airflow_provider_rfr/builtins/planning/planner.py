"""The planner: from declarations, registry and catalog to a plan. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredState, in_order, relation, release
from airflow_provider_rfr.builtins.planning._bridges import Bridges
from airflow_provider_rfr.builtins.planning._decide import Decider
from airflow_provider_rfr.builtins.planning._decision import Accepted, Decision
from airflow_provider_rfr.builtins.planning._exports import Exports, exports
from airflow_provider_rfr.builtins.planning._order import Leaving, Removals, leaving, removals, renames
from airflow_provider_rfr.builtins.planning._resolve import Resolver
from airflow_provider_rfr.builtins.planning._user_views import UserViews
from airflow_provider_rfr.builtins.planning.plan import Action, Blocked, Dependent, Drift, Plan, Policies, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import QUERIED, STORED, CatalogSpec, Kind
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER
from airflow_provider_rfr.builtins.state import DEPLOY, ActualState, LiveKind, LiveObject, RecordedObject, RegistryState

_SHOWN = frozenset({Action.REBIND, Action.REPLACE, Action.RECOMPUTE})


@dataclass(frozen=True)
class _Outcome:
    """All decisions of a plan, and the parts of the plan that follow from them."""

    decisions: dict[UUID, Decision]
    removed: Removals
    leaving: Leaving
    user_views: UserViews
    bridges: Bridges
    exports: Exports
    policies: Policies

    @cached_property
    def _going(self) -> dict[UUID, Decision]:
        """Decisions that nothing stops."""
        return {uuid: each for uuid, each in self.decisions.items() if not each.problems}

    @cached_property
    def lost(self) -> frozenset[str]:
        """Names, as they are compared, of what goes or would go."""
        found = {each.casefold() for decision in self.decisions.values() for each in decision.loses}
        going = {each.key for each in self.removed.leaving.values()}
        return frozenset(found | going | {each.name.casefold() for each in self.removed.blocked})

    def steps(self) -> tuple[Step, ...]:
        """In the order in which they are done: sinks stop; what has to leave first leaves; names change; everything
        comes or changes; sinks and users' views follow; the rest leaves."""
        leaving = self.leaving
        # A sink stops before its source is emptied; it is put behind it, or to its beginning, afterwards.
        sinks = sorted(self.exports.steps.values(), key=lambda each: (each.name, str(each.uuid)))
        parts = (
            self._removed_sinks(),
            (each for each in sinks if each.how is Action.HOLD),
            self._bridges(),
            self._leftovers(leaving.leftovers[0]),
            self._drops(leaving.early),
            renames(each for uuid, each in self._going.items() if uuid not in leaving.early),
            self._changes(),
            (each for each in sinks if each.how is not Action.HOLD),
            self.user_views.steps,
            self._drops(leaving.late),
            self._leftovers(leaving.leftovers[1]),
        )
        return tuple(replace(step, seq=seq) for seq, step in enumerate((each for part in parts for each in part), 1))

    def _changes(self) -> Iterator[Step]:
        for decision in self._going.values():
            if decision.how is None:
                continue
            obj, live = decision.desired.obj, decision.desired.live
            details = dict(decision.details)
            if decision.desired.instance is not None and decision.how is Action.CREATE:
                details["instance"] = decision.desired.instance
            yield Step(
                0,
                obj.id,
                obj.name,
                obj.kind,
                decision.how,
                tuple(dict.fromkeys(decision.reasons)),
                tuple(decision.words),
                details,
                () if decision.leaves else decision.loses,
                () if decision.leaves else decision.losses,
                rows=live.rows if live is not None else None,
                bytes=live.bytes if live is not None else None,
            )

    def _bridges(self) -> Iterator[Step]:
        """Of views that get their own text again later in this plan; what can't be replaced is dropped instead."""
        if self.policies.replace_views:
            yield from (step for step in self.bridges.steps if step.user or step.uuid in self._going)

    def _drops(self, identities: tuple[UUID, ...]) -> Iterator[Step]:
        for identity in identities:
            decision = self._going.get(identity)
            if identity in self.removed.there:
                removed = self.removed
                known = removed.leaving[identity]
                loses = (known.name,) if identity in removed.lossy else ()
                there, why = removed.there[identity], (removed.reasons[identity],)
                yield self._gone(identity, known.kind, Action.REMOVE, why, there, loses)
            elif decision is not None and decision.desired.live is not None:
                there = decision.desired.live
                recorded = decision.desired.recorded
                # An unfinished deploy may have made something else of it than what is recorded.
                is_recorded = recorded is not None and relation(recorded.kind) is there.kind
                kind = recorded.kind if recorded is not None and is_recorded else _live_kind(there)
                reasons = tuple(dict.fromkeys(decision.reasons)) or (because(Why.CREATED_AGAIN),)
                yield self._gone(identity, kind, Action.DROP, reasons, there, decision.loses)

    def _removed_sinks(self) -> Iterator[Step]:
        """Nothing in the catalog, but a cursor that ends; before its source goes."""
        removed = self.removed
        for known in sorted(removed.leaving.values(), key=lambda each: each.key):
            if known.kind is Kind.SINK:
                yield Step(0, known.uuid, known.name, known.kind, Action.REMOVE, (removed.reasons[known.uuid],))
        for left in removed.leftover_sinks:
            yield Step(0, left.uuid, left.name, Kind.SINK, Action.REMOVE, (because(Why.LEFTOVER),))

    def _leftovers(self, keys: tuple[str, ...]) -> Iterator[Step]:
        for key in keys:
            there = self.removed.leftovers[key]
            if there.marker is not None:
                yield self._gone(there.marker, _live_kind(there), Action.REMOVE, (because(Why.LEFTOVER),), there, ())

    def _gone(
        self,
        identity: UUID,
        kind: Kind,
        how: Action,
        reasons: tuple[Reason, ...],
        live: LiveObject,
        loses: tuple[str, ...],
    ) -> Step:
        """The step that retires a table, to be collected later, or drops a view."""
        details: dict[str, Any] = {"physical": live.name}
        if kind in STORED:
            details["keep_days"] = self.policies.keep_days
        losses = ("all rows",) * len(loses)
        return Step(
            0, identity, live.name, kind, how, reasons, (), details, loses, losses, rows=live.rows, bytes=live.bytes
        )

    def dependents(self) -> tuple[Dependent, ...]:
        """Views and sinks that the steps touch, in the order of what they depend on."""
        ours = (
            Dependent(
                on, decision.desired.obj.name, decision.desired.kind, decision.how.value, reason, decision.desired.uuid
            )
            for decision in self._going.values()
            if decision.how in _SHOWN
            for on, reason in decision.input_reasons.items()
        )
        return (*ours, *self.user_views.dependents, *self.exports.dependents)

    def drift(self) -> tuple[Drift, ...]:
        policy = self.policies.drift
        found = (
            Drift(
                each.desired.uuid,
                (each.desired.recorded or each.desired.obj).name,
                each.desired.kind,
                each.drift,
                policy,
            )
            for each in self.decisions.values()
            if each.drift
        )
        return tuple(sorted(found, key=lambda each: (each.name.casefold(), each.uuid)))

    def blocked(self) -> tuple[Blocked, ...]:
        found = [
            Blocked(
                each.desired.obj.name,
                each.desired.kind,
                tuple(dict.fromkeys(each.problems)),
                each.desired.uuid,
                tuple(each.words),
                tuple(each.paste),
                str(each.desired.obj.place),
            )
            for each in self.decisions.values()
            if each.problems
        ]
        every = (*found, *self.exports.blocked.values(), *self.removed.blocked, *self.user_views.blocked)
        return tuple(sorted(every, key=lambda each: (each.name.casefold(), str(each.uuid))))

    def stale(self, spec: CatalogSpec) -> Iterator[str]:
        """What the declarations say about the past, and is met by nothing in this lake any more."""
        sent = {
            (each.desired.reads[0].uuid, name.casefold())
            for each in self.decisions.values()
            if (sink := each.desired.obj.sink) is not None
            for name in sink.columns
        }
        for decision in self.decisions.values():
            obj = decision.desired.obj
            for column in obj.columns:
                # A sink may send a column under a name that it had.
                is_sent = any(was.name and (obj.id, was.name.casefold()) in sent for was in column.was)
                if column.was and column.name not in decision.was_used and not is_sent:
                    yield f"{obj.name}.{column.name}"
        yield from (each.name for each in spec.removed if each.key not in self.lost)

    def plan(self, spec: CatalogSpec, recorded: RegistryState, warnings: tuple[str, ...]) -> Plan:
        """The plan, with the records of objects that are not blocked."""
        blocked = self.blocked()
        stopped = {each.uuid for each in blocked}
        records = (
            _record(each, recorded.revision + 1)
            for each in sorted(self.decisions.values(), key=lambda each: each.desired.key)
            if each.desired.uuid not in stopped
        )
        leaving = (*self.leaving.early, *self.leaving.late)
        untouched = [each for each in self.decisions.values() if not each.touched and not each.problems]
        found = Plan(
            project=spec.project,
            version=spec.version,
            recorded_version=recorded.version,
            base_revision=recorded.revision,
            policies=self.policies,
            canonicalizer=CANONICALIZER,
            steps=self.steps(),
            dependents=self.dependents(),
            drift=self.drift(),
            blocked=blocked,
            warnings=warnings,
            stale=tuple(sorted(set(self.stale(spec)))),
            drop_order=tuple(each for each in leaving if each in self.removed.there or each in self._going),
            create_order=tuple(identity for identity, each in self._going.items() if each.how is not None),
            records=tuple(each for each in records if each is not None),
            forgotten=tuple(sorted(self.removed.leaving)),
            unchanged=len(untouched),
            done=sum(each.done for each in untouched),
        )
        return replace(found, plan_hash=found.digest())


def _live_kind(there: LiveObject) -> Kind:
    return Kind.TABLE if there.kind is LiveKind.TABLE else Kind.VIEW


_SAID = ("name", "kind", "columns", "keep", "partitioning", "keys", "comment", "owner")
"""What a record has from the declaration as it is."""


def _record(decision: Decision, revision: int) -> RecordedObject | None:
    """The object's entry, if it is another one afterwards; who applies the plan puts its deploy's id into it."""
    desired, known, obj = decision.desired, decision.desired.recorded, decision.desired.obj
    said: dict[str, Any] = {name: getattr(obj, name) for name in _SAID}
    fresh = RecordedObject(
        uuid=obj.id,
        physical=obj.name,
        fingerprints=desired.fingerprints,
        canonicalizer=CANONICALIZER,
        raw_sql=obj.query,
        deps=desired.reads,
        revision=revision,
        deploy_id=known.deploy_id if known is not None else "",
        sql=desired.sql,
        properties=dict(obj.properties),
        instance=desired.instance,
        **said,
    )
    same = known is not None and replace(fresh, revision=known.revision, physical=known.physical) == known
    if same and not decision.touched and not decision.done:
        return None
    if decision.done and desired.live is not None:
        fresh = replace(fresh, deploy_id=desired.live.properties.get(DEPLOY, ""))
    if known is None or decision.leaves or decision.how is Action.CREATE:
        return fresh
    under_its_name = known.physical.casefold() == known.key
    return fresh if decision.renamed and under_its_name else replace(fresh, physical=known.physical)


def _warnings(
    outcome: _Outcome, desired_state: DesiredState, recorded: RegistryState, live: ActualState
) -> tuple[str, ...]:
    """What is worth a look in the plan and stops nothing."""
    found = [*_unneeded_permissions(outcome), *_outside_readers(desired_state, recorded, live)]
    for each in desired_state.unlisted:
        problem = f"{each.name} is one object for each {each.per_instance}, and nothing says which there are"
        found.append(f"{problem}: none is made; declare a document of kind instances")
    writers = [
        each.canonicalizer for each in recorded.objects if each.kind in QUERIED and each.uuid in desired_state.objects
    ]
    if others := {each for each in writers if each and each != CANONICALIZER}:
        count = sum(each in others for each in writers)
        before = ", ".join(sorted(others))
        found.append(f"{count} queries are recorded again by {CANONICALIZER}, before by {before}")
    return tuple(dict.fromkeys((*sorted(found), *outcome.bridges.warnings, *outcome.user_views.warnings)))


def _unneeded_permissions(outcome: _Outcome) -> Iterator[str]:
    """A permission that nothing needs today would be in force on the day that something does."""
    adopted = {each.desired.key for each in outcome.decisions.values() if each.how is Action.ADOPT}
    for name in sorted(outcome.policies.accept_data_loss - outcome.lost):
        yield f"accept_data_loss names {name}, which loses nothing"
    for name in sorted(outcome.policies.adopt - adopted):
        yield f"adopt names {name}, which is not there to be adopted"
    broken = {each.name.casefold() for each in outcome.user_views.steps if each.how is Action.MARK_BROKEN}
    for name in sorted(outcome.policies.break_views - broken):
        yield f"break_views names {name}, which does not break"


def _outside_readers(desired_state: DesiredState, recorded: RegistryState, live: ActualState) -> Iterator[str]:
    """Sinks and views of users over objects that are not meant for that."""
    for state in recorded.sinks:
        source = desired_state.objects.get(state.source)
        if source is None or state.uuid in desired_state.objects:
            continue
        if source.obj.keep is False and source.kind is not Kind.MATERIALIZED_VIEW:
            yield f"sink {state.name} (user): {source.obj.name} is not kept: it may change or go at any time"
        elif not source.obj.exportable:
            remedy = "make a materialized view over it and export that"
            yield f"sink {state.name} (user): {source.obj.name} is not exportable; {remedy}"
    by_key = {each.key: each.obj for each in desired_state.objects.values()}
    for view in live.user_views:
        for each in view.reads or ():
            obj = by_key.get(each.name)
            if obj is not None and obj.keep is False and obj.kind is not Kind.MATERIALIZED_VIEW:
                yield f"view {view.name} (user): {obj.name} is not kept: it may change or go at any time"


_COST = {Action.REWRITE: 2, Action.REPLACE_EMPTY: 2, Action.RECOMPUTE: 3}


def _in_order(decisions: dict[UUID, Decision], desired_state: DesiredState) -> dict[UUID, Decision]:
    """What is read before its readers; of what could come next, views first, and what takes long last, so that a view
    has its text right after its table has its columns."""

    def rank(identity: UUID) -> tuple[int, str]:
        decision = decisions[identity]
        kind = decision.desired.kind
        if kind in (Kind.VIEW, Kind.SINK):
            return (0 if kind is Kind.VIEW else 4, decision.desired.key)
        filled = decision.how is Action.CREATE and "sql" in decision.details
        cost = 3 if filled else _COST.get(decision.how, 1) if decision.how is not None else 1
        return (cost, decision.desired.key)

    reads = {
        identity: [read.uuid for read in each.reads if read.uuid] for identity, each in desired_state.objects.items()
    }
    return {identity: decisions[identity] for identity in in_order(reads, rank)}


def plan(spec: CatalogSpec, recorded: RegistryState, live: ActualState, *, policies: Policies | None = None) -> Plan:
    """What a deploy would do: a pure function, whose result does not depend on the order of its inputs.

    :param policies: decisions for this deploy; by default the cautious ones of :class:`Policies`
    :raises PlanError: objects read each other in a cycle. All other problems are in the plan
    """
    policies = policies or Policies()
    desired_state = Resolver(spec, recorded, live).resolve()
    downgrade = None
    if recorded.version is not None and release(spec.version) < release(recorded.version):
        downgrade = because(Why.DOWNGRADE, recorded.version, spec.version)
    accepted = Accepted(frozenset(each.key for each in spec.removed), policies.accept_data_loss)
    removed = removals(desired_state, recorded, live, accepted, downgrade)
    # Objects that give up their present names.
    names = {each.marker for each in removed.leftovers.values() if each.marker is not None} | removed.leaving.keys()
    for each in desired_state.objects.values():
        if each.live is not None and each.live.marker == each.uuid and each.live.key != each.key:
            names.add(each.uuid)
    decider = Decider(desired_state, recorded, live, policies, accepted=accepted, leaving=names, downgrade=downgrade)
    decisions = _in_order(decider.decide(), desired_state)
    user_views = UserViews(decisions, removed.leaving, live, policies).decide()
    outcome = _Outcome(
        decisions,
        removed,
        leaving(decisions, removed, recorded, policies),
        user_views,
        Bridges(decisions, live, {each.name.casefold() for each in user_views.steps if each.how is Action.REBIND}),
        exports(decisions, recorded, policies, removed.leftover_sinks),
        policies,
    )
    return outcome.plan(spec, recorded, _warnings(outcome, desired_state, recorded, live))
