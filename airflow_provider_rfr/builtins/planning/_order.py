"""The order of a plan's steps: removals and renames.

What leaves goes readers first, by the reads in the registry. What is created or changed goes inputs first, by the
reads of now. A deploy needs both orders, because an edge may have turned round. What leaves for good waits until the
end, so that nothing loses an input too early, unless something else needs its name."""

from __future__ import annotations

from collections.abc import Container, Iterable, Set
from dataclasses import dataclass, field
from uuid import UUID

from airflow_provider_rfr.builtins.desired import (
    CycleError,
    DesiredObject,
    DesiredState,
    in_order,
    readers_of,
    relation,
)
from airflow_provider_rfr.builtins.fingerprint import definition_of, same_query
from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions
from airflow_provider_rfr.builtins.planning._origin import whose
from airflow_provider_rfr.builtins.planning.plan import Action, Blocked, Policies, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, Kind, is_retired
from airflow_provider_rfr.builtins.state import ActualState, LiveKind, LiveObject, RecordedObject, RegistryState
from airflow_provider_rfr.exceptions import PlanError
from airflow_provider_rfr.sinks.spec import SinkState


@dataclass
class Removals:
    """What leaves for good.

    :ivar leaving: by id; all of them are forgotten
    :ivar there: what of these is in the catalog, so that there is something to do
    :ivar lossy: ids of those whose rows are lost
    :ivar leftovers: by name, what an unfinished deploy left that belongs to nothing; ``leftover_sinks`` likewise
    """

    leaving: dict[UUID, RecordedObject] = field(default_factory=dict)
    reasons: dict[UUID, Reason] = field(default_factory=dict)
    there: dict[UUID, LiveObject] = field(default_factory=dict)
    lossy: set[UUID] = field(default_factory=set)
    leftovers: dict[str, LiveObject] = field(default_factory=dict)
    leftover_sinks: tuple[SinkState, ...] = ()
    blocked: list[Blocked] = field(default_factory=list)


def removals(
    desired_state: DesiredState,
    recorded: RegistryState,
    live: ActualState,
    accepted: Set[str],
    downgrade: Reason | None,
) -> Removals:
    """What leaves for good.

    :param downgrade: why nothing may be removed
    """
    found, declared = Removals(), desired_state.objects
    known_ids = recorded.by_uuid.keys() | declared.keys() | live.unfinished
    sinks = [each for each in recorded.sinks if each.uuid in declared or each.uuid not in known_ids]
    coming = [each for each in declared.values() if each.recorded is None]
    for known in sorted(recorded.objects, key=lambda each: each.key):
        if known.uuid in declared or known.uuid in desired_state.kept:
            continue
        there = _there(known, live, known_ids)
        problems, paste = _against(known, accepted, coming) if downgrade is None else ([downgrade], ())
        if downgrade is None:
            if there is not None and there.marker != known.uuid:
                problems.append(because(Why.NOT_REMOVED, whose(there, known.uuid), known.name))
            problems += [because(Why.EXPORTED, each.name) for each in sinks if each.source == known.uuid]
        if problems:
            found.blocked.append(Blocked(known.name, known.kind, tuple(problems), known.uuid, paste=paste))
            continue
        found.leaving[known.uuid] = known
        gone = Why.NOT_DECLARED if known.keep is False else Why.REMOVED
        found.reasons[known.uuid] = because(gone if known.instance is None else Why.INSTANCE_GONE)
        if known.kind in STORED and known.keep is not False:
            found.lossy.add(known.uuid)
        if there is not None:
            found.there[known.uuid] = there
    if not found.blocked:
        found.leftovers = _leftovers(found, desired_state, live)
        ours = recorded.by_uuid.keys() | declared.keys()
        begun = (each for each in recorded.sinks if each.uuid in live.unfinished)
        found.leftover_sinks = tuple(each for each in begun if each.uuid not in ours)
    return found


def _leftovers(found: Removals, desired_state: DesiredState, live: ActualState) -> dict[str, LiveObject]:
    """What an unfinished deploy made, and what belongs to nothing now. Only the journal counts: a marker alone may be
    that of another registry."""
    used = {(each.uuid, each.live.key) for each in desired_state.objects.values() if each.live is not None}
    used |= {(identity, each.key) for identity, each in found.there.items()}
    made = (each for identity in sorted(live.unfinished) for each in live.by_marker.get(identity, ()))
    return {each.key: each for each in made if not is_retired(each.name) and (each.marker, each.key) not in used}


def _there(known: RecordedObject, live: ActualState, known_ids: Container[UUID]) -> LiveObject | None:
    """What holds the object; under another name, if a deploy that did not finish renamed it. What has its name is no
    trace of it, if it is another object of ours."""
    was, named = relation(known.kind), live.objects.get(known.key)
    if was and named and (named.marker in (None, known.uuid) or named.marker not in known_ids):
        return named
    ours = [each for each in live.by_marker.get(known.uuid, ()) if each.kind is was and not is_retired(each.name)]
    return ours[0] if len(ours) == 1 else None


def _against(
    known: RecordedObject, accepted: Set[str], coming: Iterable[DesiredObject]
) -> tuple[list[Reason], tuple[str, ...]]:
    """What stops the removal of an object, and YAML against it: its id where it may have a new name, else the document
    that lets it go."""
    if known.keep is False or (known.keep is True and known.key in accepted):
        return [], ()
    what = f"all rows of {known.name}" if known.kind in STORED else f"the {known.kind.value} {known.name}"
    kept = isinstance(known.keep, str)
    why = because(Why.KEPT, what, known.keep) if kept else because(Why.WOULD_LOSE, what, known.name, known.name)
    like = [each.obj.name for each in coming if _is_like(known, each)]
    ids = tuple(f"id: {known.uuid}  # in {name}, if that is its new name" for name in like)
    document = () if kept else (f"{{kind: removed, name: {known.name}}}",)
    return [why, *(because(Why.MAYBE_RENAMED_OBJECT, name, known.uuid) for name in like)], ids or document


def _is_like(known: RecordedObject, desired: DesiredObject) -> bool:
    """Whether the new object may be the known one under another name: half of the columns are the same."""
    if known.kind is not desired.kind:
        return False
    before, now = (
        {(each.name.casefold(), each.type) for each in columns} for columns in (known.columns, desired.obj.columns)
    )
    if before or now:
        return 2 * len(before & now) >= max(len(before), len(now))
    return same_query(known.raw_sql, desired.obj.query) and known.definition == definition_of(desired.obj)


@dataclass(frozen=True)
class Leaving:
    """What leaves, readers first.

    :ivar early: before anything comes
    :ivar late: after everything came
    :ivar leftovers: names of what leaves at once, for it has a name that is needed, and of what leaves at the end
    """

    early: tuple[UUID, ...] = ()
    late: tuple[UUID, ...] = ()
    leftovers: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def leaving(decisions: Decisions, removed: Removals, recorded: RegistryState, policies: Policies) -> Leaving:
    """What leaves.

    :raises PlanError: the registry says that objects read each other in a cycle
    """
    needed = {each.desired.key for each in decisions.values() if each.how is Action.CREATE or each.renamed}
    gone = {identity: there.key for identity, there in removed.there.items()}
    early = {identity for identity, each in decisions.items() if each.leaves}
    early |= {identity for identity, key in gone.items() if key in needed}
    if not policies.replace_views:
        anew = (Action.REPLACE, Action.REBIND)
        early |= {uuid for uuid, each in decisions.items() if each.desired.kind is Kind.VIEW and each.how in anew}
    # What leftovers read is not recorded; views may read tables.
    left = sorted(removed.leftovers, key=lambda key: (removed.leftovers[key].kind is LiveKind.TABLE, key))
    leftovers = tuple(key for key in left if key in needed), tuple(key for key in left if key not in needed)
    if not early and not gone:
        return Leaving(leftovers=leftovers)
    reads = {each.uuid: [dep.uuid for dep in each.deps if dep.uuid] for each in recorded.objects}
    keys = {each.uuid: each.key for each in recorded.objects}
    try:
        order = in_order(reads, lambda identity: (keys[identity], identity))
    except CycleError as error:
        names = CycleError(keys[each] for each in error.cycle)
        raise PlanError(f"the registry is damaged, objects read each other in a circle: {names}") from None
    # A removed reader of something that leaves early leaves before it.
    early |= gone.keys() & readers_of(early, order, reads)
    return Leaving(
        tuple(each for each in reversed(order) if each in early),
        tuple(each for each in reversed(order) if each in gone and each not in early),
        leftovers,
    )


def renames(decisions: Iterable[Decision]) -> list[Step]:
    """Renames in an order in which each new name is free; those in a cycle use an intermediate name."""
    waiting = {
        each.desired.live.key: each.desired
        for each in sorted(decisions, key=lambda each: each.desired.key)
        if each.renamed and each.desired.live is not None
    }
    found: list[Step] = []
    last: list[Step] = []

    def rename(desired: DesiredObject, name: str, to: str) -> Step:
        return Step(0, desired.uuid, name, desired.kind, Action.RENAME, (because(Why.DECLARED_NAME),), (), {"to": to})

    while waiting:
        key = next((key for key, each in waiting.items() if each.key not in waiting), None)
        desired = waiting.pop(min(waiting) if key is None else key)
        assert desired.live is not None
        name, to = desired.live.name, desired.obj.name
        if key is None:
            between = f"{name}__r{desired.uuid.hex[:8]}"
            last.append(rename(desired, between, to))
            to = between
        found.append(rename(desired, name, to))
    return found + last
