"""The planner: from declarations, registry and catalog to a plan. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredState, Resolver, in_order
from airflow_provider_rfr.builtins.planning._decide import Decider
from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, States, record_of
from airflow_provider_rfr.builtins.planning._exports import Exports
from airflow_provider_rfr.builtins.planning._leaving import Removals, renames
from airflow_provider_rfr.builtins.planning._views import Views
from airflow_provider_rfr.builtins.planning.plan import Action, Dependent, Finding, Plan, Policies, Step
from airflow_provider_rfr.builtins.spec import BuiltinObject, CatalogSpec, Kind
from airflow_provider_rfr.builtins.state import DEPLOY, ActualState, RecordedObject, RegistryState

_SHOWN = frozenset({Action.REBIND, Action.REPLACE, Action.RECOMPUTE})


def plan(spec: CatalogSpec, recorded: RegistryState, live: ActualState, *, policies: Policies | None = None) -> Plan:
    """What a deploy would do: a pure function, whose result does not depend on the order of its inputs.

    :param policies: decisions for this deploy; by default the cautious ones of :class:`Policies`
    :raises PlanError: objects read each other in a cycle. All other problems are in the plan
    """
    wanted = Resolver(spec, recorded, live).resolve()
    states = States(spec, wanted, recorded, live, policies or Policies())
    removed = Removals(states)
    decisions = _in_order(Decider(states, _giving_names_up(wanted, removed)).decide(), wanted)
    going = {uuid: each for uuid, each in decisions.items() if not each.problems}
    views = Views(states, decisions, removed.forgotten.values())
    exports = Exports(states, decisions, {each.uuid for each in removed.sinks})
    drifted = ((each.old_name, each.desired.kind, each.drift, uuid) for uuid, each in decisions.items() if each.drift)
    blocked = [each.finding() for each in decisions.values() if each.problems]
    blocked += [*exports.blocked, *removed.blocked, *views.blocked]
    untouched = [each for each in going.values() if not each.touched]
    found = Plan(
        project=spec.project,
        version=spec.version,
        recorded_version=recorded.version,
        base_revision=recorded.revision,
        policies=states.policies,
        steps=_numbered(going, removed, views, exports),
        dependents=(*_dependents(going), *views.dependents, *exports.dependents),
        drift=_by_name(Finding(*each) for each in drifted),
        blocked=_by_name(blocked),
        warnings=tuple(dict.fromkeys([*sorted(_warnings(wanted, recorded, live)), *views.warnings])),
        stale=tuple(sorted(set(_stale(spec, decisions, removed)))),
        records=tuple(_records(decisions, blocked, recorded.revision + 1)),
        forgotten=tuple(sorted(removed.forgotten)),
        unchanged=len(untouched),
        done=sum(each.done for each in untouched),
    )
    return replace(found, plan_hash=found.digest())


def _giving_names_up(wanted: DesiredState, removed: Removals) -> set[UUID | None]:
    """Ids of objects whose present names others may take."""
    held = ((each, each.live) for each in wanted.objects.values() if each.live is not None)
    moving = (each.uuid for each, live in held if live.marker == each.uuid and live.key != each.key)
    return {*removed.forgotten, *(each.uuid for each in removed.leftovers), *moving}


def _numbered(going: Decisions, removed: Removals, views: Views, exports: Exports) -> tuple[Step, ...]:
    """All steps in the order in which they are done."""
    first, last = removed.leaving(going)
    # A sink stops before its source is emptied; it is put behind it, or to its beginning, afterwards.
    stopping = [each for each in exports.steps if each.how is Action.HOLD]
    parts = (
        removed.sinks,
        stopping,
        views.pins,
        views.bridges,
        first,
        renames(going.values()),
        (each.step(each.how) for each in going.values() if each.how is not None),
        (each for each in exports.steps if each.how is not Action.HOLD),
        views.steps,
        last,
    )
    return tuple(replace(step, seq=seq) for seq, step in enumerate(chain.from_iterable(parts), 1))


def _by_name(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda each: (each.name.casefold(), str(each.uuid))))


_COST = {Action.REWRITE: 2, Action.REPLACE_EMPTY: 2, Action.RECOMPUTE: 3}


def _in_order(decisions: Decisions, wanted: DesiredState) -> dict[UUID, Decision]:
    """What is read before its readers; of what could come next, views first, and what takes long last, so that a view
    has its text right after its table has its columns."""

    def rank(identity: UUID) -> tuple[int, str]:
        decision = decisions[identity]
        kind, how = decision.desired.kind, decision.how
        if kind in (Kind.VIEW, Kind.SINK):
            cost = 0 if kind is Kind.VIEW else 4
        elif how is Action.CREATE and "sql" in decision.details:
            cost = 3
        else:
            cost = 1 if how is None else _COST.get(how, 1)
        return (cost, decision.desired.key)

    reads = {identity: [read.uuid for read in each.reads if read.uuid] for identity, each in wanted.objects.items()}
    return {identity: decisions[identity] for identity in in_order(reads, rank)}


def _dependents(going: Decisions) -> Iterator[Dependent]:
    """Our views that the steps touch, in the order of what they depend on."""
    for uuid, each in going.items():
        if each.how is not None and each.how in _SHOWN:
            for on, reason in each.input_reasons.items():
                yield Dependent(on, each.desired.obj.name, each.desired.kind, each.how.value, reason, uuid)


def _records(decisions: Decisions, blocked: Iterable[Finding], revision: int) -> Iterator[RecordedObject]:
    stopped = {each.uuid for each in blocked}
    for decision in sorted(decisions.values(), key=lambda each: each.desired.key):
        record = _record(decision, revision) if decision.desired.uuid not in stopped else None
        if record is not None:
            yield record


def _record(decision: Decision, revision: int) -> RecordedObject | None:
    """The object's entry, if it is another one afterwards."""
    desired, known = decision.desired, decision.desired.recorded
    fresh = record_of(desired, revision)
    if decision.done and desired.live is not None:
        return replace(fresh, deploy_id=desired.live.properties.get(DEPLOY, ""))
    same = known is not None and replace(fresh, revision=known.revision) == known
    return fresh if decision.touched or not same else None


def _stale(spec: CatalogSpec, decisions: Decisions, removed: Removals) -> Iterator[str]:
    """What the declarations say about the past, and is met by nothing in this lake any more."""
    sent = {
        (each.desired.reads[0].uuid, name.casefold())
        for each in decisions.values()
        if (sink := each.desired.obj.sink) is not None
        for name in sink.columns
    }
    for identity, decision in decisions.items():
        obj = decision.desired.obj
        for column in obj.columns:
            # A sink may send a column under a name that it had.
            is_sent = any(was.name and (identity, was.name.casefold()) in sent for was in column.was)
            if column.was and column.name not in decision.was_used and not is_sent:
                yield f"{obj.name}.{column.name}"
    lost = {name.casefold() for each in decisions.values() for name in each.losses}
    lost |= {each.key for each in removed.forgotten.values()} | {each.name.casefold() for each in removed.blocked}
    yield from (each.name for each in spec.removed if each.key not in lost)


def _warnings(wanted: DesiredState, recorded: RegistryState, live: ActualState) -> Iterator[str]:
    """What is worth a look and stops nothing: readers of users over what is not meant for that, and templates."""
    for state in recorded.sinks:
        source = wanted.objects.get(state.source)
        if source is None or state.uuid in wanted.objects:
            continue
        if _is_unstable(source.obj):
            yield f"sink {state.name} (user): {source.obj.name} is not kept: it may change or go at any time"
        elif not source.obj.exportable:
            remedy = "make a materialized view over it and export that"
            yield f"sink {state.name} (user): {source.obj.name} is not exportable; {remedy}"
    unstable = {each.key: each.obj.name for each in wanted.objects.values() if _is_unstable(each.obj)}
    for view in live.user_views:
        for name in (unstable[each.name] for each in view.reads or () if each.name in unstable):
            yield f"view {view.name} (user): {name} is not kept: it may change or go at any time"
    for each in wanted.unlisted:
        problem = f"{each.name} is one object for each {each.per_instance}, and nothing says which there are"
        yield f"{problem}: none is made; declare a document of kind instances"


def _is_unstable(obj: BuiltinObject) -> bool:
    return obj.keep is False and obj.kind is not Kind.MATERIALIZED_VIEW
