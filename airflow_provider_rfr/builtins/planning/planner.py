"""The planner: from declarations, registry and catalog to a plan. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredState, Resolver, in_order, relation, release
from airflow_provider_rfr.builtins.planning._bridges import Bridges
from airflow_provider_rfr.builtins.planning._decide import Decider
from airflow_provider_rfr.builtins.planning._decision import Decision, record_of
from airflow_provider_rfr.builtins.planning._exports import exports
from airflow_provider_rfr.builtins.planning._order import leaving, removals, renames
from airflow_provider_rfr.builtins.planning._user_views import UserViews
from airflow_provider_rfr.builtins.planning.plan import Action, Blocked, Dependent, Drift, Plan, Policies, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, BuiltinObject, CatalogSpec, Kind
from airflow_provider_rfr.builtins.state import DEPLOY, ActualState, LiveObject, RecordedObject, RegistryState

_SHOWN = frozenset({Action.REBIND, Action.REPLACE, Action.RECOMPUTE})


class _Outcome:
    """All decisions of a plan, and the parts of the plan that follow from them.

    :ivar decisions: in the order in which things come: what is read before its readers
    :ivar going: those that nothing stops
    """

    def __init__(
        self,
        spec: CatalogSpec,
        desired_state: DesiredState,
        recorded: RegistryState,
        live: ActualState,
        policies: Policies,
    ) -> None:
        downgrade = None
        if recorded.version is not None and release(spec.version) < release(recorded.version):
            downgrade = because(Why.DOWNGRADE, recorded.version, spec.version)
        accepted = policies.accept_data_loss | {each.key for each in spec.removed}
        self.removed = removed = removals(desired_state, recorded, live, accepted, downgrade)
        # Objects that give up their present names.
        names = {each.marker for each in removed.leftovers.values() if each.marker is not None} | removed.leaving.keys()
        for each in desired_state.objects.values():
            if each.live is not None and each.live.marker == each.uuid and each.live.key != each.key:
                names.add(each.uuid)
        decisions = Decider(desired_state, recorded, live, policies, accepted, names, downgrade).decide()
        self.decisions = _in_order(decisions, desired_state)
        self.going = {uuid: each for uuid, each in self.decisions.items() if not each.problems}
        self.leaving = leaving(self.decisions, removed, recorded, policies)
        self.user_views = UserViews(self.decisions, removed.leaving, live, policies).decide()
        rebound = {each.name.casefold() for each in self.user_views.steps if each.how is Action.REBIND}
        self.bridges = Bridges(self.decisions, live, rebound)
        self.exports = exports(self.decisions, recorded, policies, removed.leftover_sinks)
        self.policies = policies

    def steps(self) -> tuple[Step, ...]:
        """In the order in which they are done: sinks stop; views are made to stay readable; what has to leave first
        leaves; names change; everything comes or changes; sinks and users' views follow; the rest leaves."""
        leaving = self.leaving
        # A sink stops before its source is emptied; it is put behind it, or to its beginning, afterwards.
        sinks = sorted(self.exports.steps.values(), key=lambda each: (each.name, str(each.uuid)))
        parts = (
            self._removed_sinks(),
            (each for each in sinks if each.how is Action.HOLD),
            self.user_views.pins,
            self._bridges(),
            self._leftovers(leaving.leftovers[0]),
            self._drops(leaving.early),
            renames(each for uuid, each in self.going.items() if uuid not in leaving.early),
            self._changes(),
            (each for each in sinks if each.how is not Action.HOLD),
            self.user_views.steps,
            self._drops(leaving.late),
            self._leftovers(leaving.leftovers[1]),
        )
        return tuple(replace(step, seq=seq) for seq, step in enumerate((each for part in parts for each in part), 1))

    def _changes(self) -> Iterator[Step]:
        for each in self.going.values():
            if each.how is None:
                continue
            obj, live = each.desired.obj, each.desired.live
            # What leaves before it comes is lost by the step that drops it.
            losses = {} if each.leaves else each.losses
            yield Step(
                0,
                obj.id,
                obj.name,
                obj.kind,
                each.how,
                tuple(dict.fromkeys(each.reasons)),
                tuple(each.words),
                each.details,
                tuple(losses),
                tuple(losses.values()),
                rows=live.rows if live is not None else None,
                bytes=live.bytes if live is not None else None,
            )

    def _bridges(self) -> Iterator[Step]:
        """Of views that get their own text again later in this plan; what can't be replaced is dropped instead."""
        if self.policies.replace_views:
            yield from (step for step in self.bridges.steps if step.user or step.uuid in self.going)

    def _drops(self, identities: Iterable[UUID]) -> Iterator[Step]:
        removed = self.removed
        for identity in identities:
            if identity in removed.there:
                known, why = removed.leaving[identity], (removed.reasons[identity],)
                lost = (known.name,) if identity in removed.lossy else ()
                yield self._gone(identity, known.kind, Action.REMOVE, why, removed.there[identity], lost)
            elif identity in self.going and (there := self.going[identity].desired.live) is not None:
                decision = self.going[identity]
                recorded = decision.desired.recorded
                # An unfinished deploy may have made something else of it than what is recorded.
                is_recorded = recorded is not None and relation(recorded.kind) is there.kind
                kind = recorded.kind if recorded is not None and is_recorded else Kind(there.kind.value)
                reasons = tuple(dict.fromkeys(decision.reasons)) or (because(Why.CREATED_AGAIN),)
                yield self._gone(identity, kind, Action.DROP, reasons, there, tuple(decision.losses))

    def _removed_sinks(self) -> Iterator[Step]:
        """Nothing in the catalog, but a cursor that ends; before its source goes."""
        for known in sorted(self.removed.leaving.values(), key=lambda each: each.key):
            if known.kind is Kind.SINK:
                yield Step(0, known.uuid, known.name, known.kind, Action.REMOVE, (self.removed.reasons[known.uuid],))
        for left in self.removed.leftover_sinks:
            yield Step(0, left.uuid, left.name, Kind.SINK, Action.REMOVE, (because(Why.LEFTOVER),))

    def _leftovers(self, keys: Iterable[str]) -> Iterator[Step]:
        for there in (self.removed.leftovers[key] for key in keys):
            if there.marker is not None:
                why = (because(Why.LEFTOVER),)
                yield self._gone(there.marker, Kind(there.kind.value), Action.REMOVE, why, there, ())

    def _gone(
        self, uuid: UUID, kind: Kind, how: Action, why: tuple[Reason, ...], live: LiveObject, loses: tuple[str, ...]
    ) -> Step:
        """The step that retires a table, to be collected later, or drops a view."""
        details = {"keep_days": self.policies.keep_days} if kind in STORED else {}
        losses = ("all rows",) * len(loses)
        return Step(0, uuid, live.name, kind, how, why, (), details, loses, losses, rows=live.rows, bytes=live.bytes)

    def dependents(self) -> tuple[Dependent, ...]:
        """Views and sinks that the steps touch, in the order of what they depend on."""
        ours = (
            Dependent(on, each.desired.obj.name, each.desired.kind, each.how.value, reason, each.desired.uuid)
            for each in self.going.values()
            if each.how in _SHOWN
            for on, reason in each.input_reasons.items()
        )
        return (*ours, *self.user_views.dependents, *self.exports.dependents)

    def drift(self) -> tuple[Drift, ...]:
        named = ((each, each.desired.recorded or each.desired.obj) for each in self.decisions.values() if each.drift)
        policy = self.policies.drift
        found = (Drift(each.desired.uuid, by.name, each.desired.kind, each.drift, policy) for each, by in named)
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
        lost = {name.casefold() for each in self.decisions.values() for name in each.losses}
        lost |= {each.key for each in self.removed.leaving.values()}
        lost |= {each.name.casefold() for each in self.removed.blocked}
        yield from (each.name for each in spec.removed if each.key not in lost)


def _record(decision: Decision, revision: int) -> RecordedObject | None:
    """The object's entry, if it is another one afterwards."""
    desired, known = decision.desired, decision.desired.recorded
    fresh = record_of(desired, revision)
    if decision.done and desired.live is not None:
        return replace(fresh, deploy_id=desired.live.properties.get(DEPLOY, ""))
    same = known is not None and replace(fresh, revision=known.revision) == known
    return fresh if decision.touched or not same else None


def _warnings(desired_state: DesiredState, recorded: RegistryState, live: ActualState) -> Iterator[str]:
    """What is worth a look and stops nothing: readers of users over what is not meant for that, and templates."""
    for state in recorded.sinks:
        source = desired_state.objects.get(state.source)
        if source is None or state.uuid in desired_state.objects:
            continue
        if _is_unstable(source.obj):
            yield f"sink {state.name} (user): {source.obj.name} is not kept: it may change or go at any time"
        elif not source.obj.exportable:
            remedy = "make a materialized view over it and export that"
            yield f"sink {state.name} (user): {source.obj.name} is not exportable; {remedy}"
    by_key = {each.key: each.obj for each in desired_state.objects.values()}
    for view in live.user_views:
        found = (by_key[each.name] for each in view.reads or () if each.name in by_key)
        for obj in filter(_is_unstable, found):
            yield f"view {view.name} (user): {obj.name} is not kept: it may change or go at any time"
    for each in desired_state.unlisted:
        problem = f"{each.name} is one object for each {each.per_instance}, and nothing says which there are"
        yield f"{problem}: none is made; declare a document of kind instances"


def _is_unstable(obj: BuiltinObject) -> bool:
    return obj.keep is False and obj.kind is not Kind.MATERIALIZED_VIEW


_COST = {Action.REWRITE: 2, Action.REPLACE_EMPTY: 2, Action.RECOMPUTE: 3}


def _in_order(decisions: dict[UUID, Decision], desired_state: DesiredState) -> dict[UUID, Decision]:
    """What is read before its readers; of what could come next, views first, and what takes long last, so that a view
    has its text right after its table has its columns."""

    def rank(identity: UUID) -> tuple[int, str]:
        decision = decisions[identity]
        cost = 1 if decision.how is None else _COST.get(decision.how, 1)
        if decision.desired.kind in (Kind.VIEW, Kind.SINK):
            cost = 0 if decision.desired.kind is Kind.VIEW else 4
        elif decision.how is Action.CREATE and "sql" in decision.details:
            cost = 3
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
    outcome = _Outcome(spec, desired_state, recorded, live, policies)
    blocked = outcome.blocked()
    stopped = {each.uuid for each in blocked}
    records = (
        _record(each, recorded.revision + 1)
        for each in sorted(outcome.decisions.values(), key=lambda each: each.desired.key)
        if each.desired.uuid not in stopped
    )
    untouched = [each for each in outcome.decisions.values() if not each.touched and not each.problems]
    outside = sorted(_warnings(desired_state, recorded, live))
    found = Plan(
        project=spec.project,
        version=spec.version,
        recorded_version=recorded.version,
        base_revision=recorded.revision,
        policies=policies,
        steps=outcome.steps(),
        dependents=outcome.dependents(),
        drift=outcome.drift(),
        blocked=blocked,
        warnings=tuple(dict.fromkeys((*outside, *outcome.bridges.warnings, *outcome.user_views.warnings))),
        stale=tuple(sorted(set(outcome.stale(spec)))),
        records=tuple(each for each in records if each is not None),
        forgotten=tuple(sorted(outcome.removed.leaving)),
        unchanged=len(untouched),
        done=sum(each.done for each in untouched),
    )
    return replace(found, plan_hash=found.digest())
