"""What leaves, and in which order; and renames.

What leaves goes readers first, by the reads in the registry. What is created or changed goes inputs first, by the
reads of now. A deploy needs both orders, because an edge may have turned round. What leaves for good waits until the
end, so that nothing loses an input too early, unless something else needs its name."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from uuid import UUID

from airflow_provider_rfr.builtins.desired import (
    CycleError,
    DesiredObject,
    in_order,
    readers_of,
    relation,
)
from airflow_provider_rfr.builtins.fingerprint import definition_of, same_query
from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, States
from airflow_provider_rfr.builtins.planning._origin import whose
from airflow_provider_rfr.builtins.planning.plan import Action, Finding, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, Kind, is_retired
from airflow_provider_rfr.builtins.state import ActualState, LiveKind, LiveObject, RecordedObject, RegistryState
from airflow_provider_rfr.exceptions import PlanError


@dataclass
class Removals:
    """What leaves for good.

    :ivar forgotten: by id, whether it is in the catalog or not
    :ivar steps: of what is in the catalog, by id; ``sinks`` are not in it
    :ivar leftovers: what an unfinished deploy left in the catalog that belongs to nothing, views first
    """

    forgotten: dict[UUID, RecordedObject] = field(default_factory=dict)
    steps: dict[UUID, Step] = field(default_factory=dict)
    sinks: list[Step] = field(default_factory=list)
    leftovers: list[Step] = field(default_factory=list)
    blocked: list[Finding] = field(default_factory=list)


def removals(states: States) -> Removals:
    """What leaves for good."""
    recorded, live, days = states.recorded, states.live, states.policies.keep_days
    found, declared = Removals(), states.wanted.objects
    ours = recorded.by_uuid.keys() | declared.keys()
    known_ids = ours | live.unfinished
    sinks = [each for each in recorded.sinks if each.uuid in declared or each.uuid not in known_ids]
    coming = [each for each in declared.values() if each.recorded is None]
    for known in sorted(recorded.objects, key=lambda each: each.key):
        if known.uuid in declared or known.uuid in states.wanted.kept:
            continue
        there, paste = _there(known, live, known_ids), tuple[str, ...]()
        if states.downgrade is not None:
            problems = [states.downgrade]
        else:
            problems, paste = _against(known, states.accepted, coming)
            if there is not None and there.marker != known.uuid:
                problems.append(because(Why.NOT_REMOVED, whose(there, known.uuid), known.name))
            problems += [because(Why.EXPORTED, each.name) for each in sinks if each.source == known.uuid]
        if problems:
            found.blocked.append(Finding(known.name, known.kind, tuple(problems), known.uuid, paste=paste))
            continue
        found.forgotten[known.uuid] = known
        gone = Why.NOT_DECLARED if known.keep is False else Why.REMOVED
        why = because(gone if known.instance is None else Why.INSTANCE_GONE)
        if known.kind is Kind.SINK:
            found.sinks.append(Step(known.uuid, known.name, Kind.SINK, Action.REMOVE, (why,)))
        elif there is not None:
            losses = {known.name: "all rows"} if known.kind in STORED and known.keep is not False else {}
            found.steps[known.uuid] = _gone(there, known.uuid, known.kind, Action.REMOVE, (why,), losses, days)
    if not found.blocked:
        why = because(Why.LEFTOVER)
        begun = (each for each in recorded.sinks if each.uuid in live.unfinished and each.uuid not in ours)
        found.sinks += [Step(each.uuid, each.name, Kind.SINK, Action.REMOVE, (why,)) for each in begun]
        found.leftovers += [
            _gone(each, identity, Kind(each.kind.value), Action.REMOVE, (why,), {}, days)
            for identity, each in _leftovers(found, states)
        ]
    return found


def _leftovers(found: Removals, states: States) -> list[tuple[UUID, LiveObject]]:
    """What an unfinished deploy made, and what belongs to nothing now. Only the journal counts: a marker alone may be
    that of another registry."""
    live = states.live
    used = {(each.uuid, each.live.key) for each in states.wanted.objects.values() if each.live is not None}
    used |= {(identity, step.name.casefold()) for identity, step in found.steps.items()}
    made = ((identity, each) for identity in live.unfinished for each in live.by_marker.get(identity, ()))
    left = [each for each in made if not is_retired(each[1].name) and (each[0], each[1].key) not in used]
    # What leftovers read is not recorded; views may read tables.
    return sorted(left, key=lambda each: (each[1].kind is LiveKind.TABLE, each[1].key))


def _gone(
    live: LiveObject,
    uuid: UUID,
    kind: Kind,
    how: Action,
    why: tuple[Reason, ...],
    losses: Mapping[str, str],
    keep_days: int,
) -> Step:
    """The step that retires a table, to be collected later, or drops a view."""
    details = {"keep_days": keep_days} if kind in STORED else {}
    lost, words = tuple(losses), tuple(losses.values())
    return Step(uuid, live.name, kind, how, why, (), details, lost, words, live.rows, live.bytes)


def _there(known: RecordedObject, live: ActualState, known_ids: Container[UUID]) -> LiveObject | None:
    """What holds the object; under another name, if a deploy that did not finish renamed it."""
    was, named = relation(known.kind), live.objects.get(known.key)
    if was and named and (named.marker in (None, known.uuid) or named.marker not in known_ids):
        return named
    ours = [each for each in live.by_marker.get(known.uuid, ()) if each.kind is was and not is_retired(each.name)]
    return ours[0] if len(ours) == 1 else None


def _against(
    known: RecordedObject, accepted: Set[str], coming: Iterable[DesiredObject]
) -> tuple[list[Reason], tuple[str, ...]]:
    """What stops the removal, and YAML against it: the id where there may be a new name, else what lets it go."""
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


def leaving(states: States, going: Decisions, removed: Removals) -> tuple[list[Step], list[Step]]:
    """Steps of what leaves before anything comes, and of what leaves after everything came.

    :raises PlanError: the registry says that objects read each other in a cycle
    """
    needed = {each.desired.key for each in going.values() if each.how is Action.CREATE or each.renamed}
    drops = {identity: _drop(each, states.policies.keep_days) for identity, each in going.items() if each.leaves}
    steps = drops | removed.steps
    early = {identity for identity, step in steps.items() if identity in drops or step.name.casefold() in needed}
    order: list[UUID] = []
    if steps:
        order, reads = _readers_first(states.recorded)
        # A removed reader of something that leaves early leaves before it.
        early |= steps.keys() & readers_of(early, reversed(order), reads)
    at_once = [each for each in removed.leftovers if each.name.casefold() in needed]
    return (
        [*at_once, *(steps[each] for each in order if each in early)],
        [
            *(steps[each] for each in order if each in steps and each not in early),
            *(each for each in removed.leftovers if each not in at_once),
        ],
    )


def _drop(decision: Decision, keep_days: int) -> Step:
    """What holds an object leaves, before the object comes as something else."""
    known, there = decision.desired.recorded, decision.desired.live
    assert known is not None
    assert there is not None
    # An unfinished deploy may have made something else of it than what is recorded.
    kind = known.kind if relation(known.kind) is there.kind else Kind(there.kind.value)
    reasons = tuple(dict.fromkeys(decision.reasons)) or (because(Why.CREATED_AGAIN),)
    return _gone(there, known.uuid, kind, Action.DROP, reasons, decision.losses, keep_days)


def _readers_first(recorded: RegistryState) -> tuple[list[UUID], dict[UUID, list[UUID]]]:
    """All recorded ids in order, and what each of them reads."""
    reads = {each.uuid: [dep.uuid for dep in each.deps if dep.uuid] for each in recorded.objects}
    keys = {each.uuid: each.key for each in recorded.objects}
    try:
        return list(reversed(in_order(reads, lambda identity: (keys[identity], identity)))), reads
    except CycleError as error:
        names = CycleError(keys[each] for each in error.cycle)
        raise PlanError(f"the registry is damaged, objects read each other in a circle: {names}") from None


def renames(going: Iterable[Decision]) -> Iterator[Step]:
    """Renames in an order in which each new name is free; those in a cycle use an intermediate name."""
    waiting = {
        each.desired.live.key: each.desired
        for each in sorted(going, key=lambda each: each.desired.key)
        if each.renamed and each.desired.live is not None
    }
    last: list[Step] = []
    while waiting:
        key = next((key for key, each in waiting.items() if each.key not in waiting), None)
        desired = waiting.pop(min(waiting) if key is None else key)
        assert desired.live is not None
        name, to = desired.live.name, desired.obj.name
        if key is None:
            between = f"{name}__r{desired.uuid.hex[:8]}"
            last.append(_rename(desired, between, to))
            to = between
        yield _rename(desired, name, to)
    yield from last


def _rename(desired: DesiredObject, name: str, to: str) -> Step:
    return Step(desired.uuid, name, desired.kind, Action.RENAME, (because(Why.DECLARED_NAME),), details={"to": to})
