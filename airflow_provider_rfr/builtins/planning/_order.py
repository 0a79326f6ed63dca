"""The order of a plan's steps: removals, renames, and what happens to users' views.

What leaves goes readers first, by the reads in the registry. What is created or changed goes inputs first, by the
reads of now. A deploy needs both orders, because an edge may have turned round. What leaves for good waits until the
end, so that nothing loses an input too early, unless something else needs its name."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from airflow_provider_rfr.builtins.desired import CycleError, DesiredObject, DesiredState, Graph, relation
from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, reads
from airflow_provider_rfr.builtins.planning._drift import whose
from airflow_provider_rfr.builtins.planning.plan import Action, Blocked, Dependent, Policies, Step
from airflow_provider_rfr.builtins.spec import BuiltinObject, Contents, Kind, Stability, is_retired
from airflow_provider_rfr.builtins.state import (
    ActualState,
    LiveKind,
    LiveObject,
    RecordedObject,
    RegistryState,
    SinkState,
    UserView,
)
from airflow_provider_rfr.exceptions import PlanError


@dataclass
class Removals:
    """What leaves for good.

    :ivar leaving: by id; all of them are forgotten
    :ivar there: what of these is in the catalog, so that there is something to do
    :ivar leftovers: by name, what an unfinished deploy left that belongs to nothing; ``leftover_sinks`` likewise
    """

    leaving: dict[UUID, RecordedObject] = field(default_factory=dict)
    reasons: dict[UUID, str] = field(default_factory=dict)
    there: dict[UUID, LiveObject] = field(default_factory=dict)
    leftovers: dict[str, LiveObject] = field(default_factory=dict)
    leftover_sinks: tuple[SinkState, ...] = ()
    blocked: list[Blocked] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def removals(
    desired_state: DesiredState, recorded: RegistryState, live: ActualState, version: str, downgrade: str | None
) -> Removals:
    """What leaves for good.

    :param downgrade: why nothing may be removed
    """
    found = Removals()
    known_ids = recorded.by_uuid.keys() | desired_state.objects.keys() | live.unfinished
    sinks = [each for each in recorded.sinks if each.uuid in desired_state.objects or each.uuid not in known_ids]
    for known in sorted(recorded.objects, key=lambda each: each.key):
        if known.uuid in desired_state.objects or known.uuid in desired_state.kept:
            continue
        worthless = known.stability is Stability.UNSTABLE or known.contents is Contents.DERIVABLE
        if known.instance is not None and (known.protect is not None or not worthless):
            found.warnings.append(f"{known.name}: its instance is gone; it stays, for its rows are history")
            continue
        there = _there(known, live, known_ids)
        exported = [each.name for each in sinks if each.source == known.uuid]
        tombstone = desired_state.removed.get(known.uuid)
        blocked = Blocked(known.name, known.kind, (downgrade,), known.uuid) if downgrade is not None else None
        if blocked is None:
            blocked = _blocked(known, tombstone, there, exported, version)
        if blocked is not None:
            found.blocked.append(blocked)
            continue
        found.leaving[known.uuid] = known
        found.reasons[known.uuid] = _reason(known, tombstone)
        if there is not None:
            found.there[known.uuid] = there
    if not found.blocked:
        found.leftovers = _leftovers(found, desired_state, live)
        ours = recorded.by_uuid.keys() | desired_state.objects.keys()
        found.leftover_sinks = tuple(
            each for each in recorded.sinks if each.uuid in live.unfinished and each.uuid not in ours
        )
    return found


def _leftovers(found: Removals, desired_state: DesiredState, live: ActualState) -> dict[str, LiveObject]:
    """What an unfinished deploy made, and what belongs to nothing now. Only the journal counts: a marker alone may be
    that of another registry."""
    used = {(each.uuid, each.live.key) for each in desired_state.objects.values() if each.live is not None}
    used |= {(identity, each.key) for identity, each in found.there.items()}
    return {
        each.key: each
        for identity in sorted(live.unfinished)
        for each in live.by_marker.get(identity, ())
        if not is_retired(each.name) and (identity, each.key) not in used
    }


def _there(known: RecordedObject, live: ActualState, known_ids: Container[UUID]) -> LiveObject | None:
    """What holds the object; under another name, if a deploy that did not finish renamed it. What has its name is no
    trace of it, if it is another object of ours."""
    if relation(known.kind) is None:
        return None
    held = live.by_marker.get(known.uuid, ())
    ours = [each for each in held if not is_retired(each.name) and each.kind is relation(known.kind)]
    named = live.objects.get(known.key)
    if named is not None and (named.marker == known.uuid or named.marker is None or named.marker not in known_ids):
        return named
    return ours[0] if len(ours) == 1 else None


def _blocked(
    known: RecordedObject, tombstone: BuiltinObject | None, there: LiveObject | None, exported: list[str], version: str
) -> Blocked | None:
    """What stops the removal of an object; None: nothing does."""
    problems, instruction = [], None
    if known.stability is Stability.STABLE and tombstone is None and known.instance is None:
        why = "it is stable, and users may build on it"
        problems.append(f"removal must be declared (deprecated_since, removed_in): {why}")
        instruction = f'removed: {{deprecated_since: "{version}", removed_in: "{version}"}}'
    protect = known.protect or (tombstone.protect if tombstone is not None else None)
    if protect is not None:
        problems.append(f"protected: {protect}; it is not removed. Forget it, and its rows stay where they are")
    if there is not None and there.marker != known.uuid:
        problems.append(f"it is not dropped: {whose(there, known.uuid)}. Forget {known.name} ({known.uuid}) instead")
    problems += [f"the sink {name} exports it" for name in exported]
    if not problems:
        return None
    return Blocked(known.name, known.kind, tuple(problems), known.uuid, instruction=instruction)


def _reason(known: RecordedObject, tombstone: BuiltinObject | None) -> str:
    if tombstone is not None and tombstone.removed is not None:
        return f"deprecated since {tombstone.removed.deprecated_since}, removed in {tombstone.removed.removed_in}"
    return f"{known.stability.value}, no longer declared" if known.instance is None else "its instance is gone"


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
    graph = Graph({each.uuid: [dep.uuid for dep in each.deps if dep.uuid] for each in recorded.objects})
    # A removed reader of something that leaves early leaves before it.
    early |= gone.keys() & graph.readers_of(early)
    keys = {each.uuid: each.key for each in recorded.objects}
    try:
        order = graph.order(lambda identity: (keys[identity], str(identity)))[::-1]
    except CycleError as error:
        names = CycleError(keys[each] for each in error.cycle)
        raise PlanError(f"the registry is damaged, objects read each other in a circle: {names}") from None
    return Leaving(
        tuple(each for each in order if each in early),
        tuple(each for each in order if each in gone and each not in early),
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
        return Step(0, desired.uuid, name, desired.kind, Action.RENAME, "declared name", (), {"to": to})

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


_Reasons = dict[UUID, str]
"""By the id of what is read."""


class UserViews:
    """What the changes mean for users' views, those over other users' views too.

    :ivar steps: rebinds, in the order in which to do them
    """

    def __init__(
        self, decisions: Decisions, removed: Mapping[UUID, RecordedObject], live: ActualState, policies: Policies
    ) -> None:
        self.steps: list[Step] = []
        self.dependents: list[Dependent] = []
        self.blocked: list[Blocked] = []
        self.warnings: list[str] = []
        self._decisions = decisions
        self._removed = removed
        self._policies = policies
        self._views = {each.key: each for each in live.user_views}
        self._ours = {each.key: identity for identity, each in removed.items()}
        for identity, decision in decisions.items():
            self._ours[(decision.desired.recorded or decision.desired).key] = identity
        self._noticed: dict[str, tuple[_Reasons, _Reasons]] = {}

    def decide(self) -> UserViews:
        """Decide about each view, after those that it reads."""
        graph = Graph({key: {each.name for each in view.reads or ()} for key, view in self._views.items()})
        try:
            order = graph.order(lambda key: key)
        except CycleError:
            order = tuple(sorted(self._views))
        policy = self._policies.user_views
        for key in order:
            view = self._views[key]
            broken, changed = self._noticed[key] = self._notice(view)
            why = [*broken.values(), *changed.values()]
            if not why:
                continue
            how = "warn" if policy == "warn" else "blocked" if broken or policy == "fail" else "rebind"
            words = "; ".join(why)
            for identity, reason in {**changed, **broken}.items():
                self.dependents.append(Dependent(identity, view.name, Kind.VIEW, how, reason, user=True))
            if how == "warn":
                self.warnings.append(f"view {view.name} (user) {words}: it may fail from now on")
            elif how == "blocked":
                remedy = f"user_views: {policy}; change the view, or let it break with user_views: warn"
                self.blocked.append(Blocked(view.name, Kind.VIEW, (*why, remedy)))
            else:
                details = {"sql": view.query}
                self.steps.append(Step(0, None, view.name, Kind.VIEW, Action.REBIND, words, (), details, user=True))
        return self

    def _notice(self, view: UserView) -> tuple[_Reasons, _Reasons]:
        """Reads of the view that break, and reads whose columns change."""
        broken, changed = _Reasons(), _Reasons()
        if view.reads is None:
            # A view that can't be read may read anything.
            for identity, gone in self._removed.items():
                broken[identity] = f"can't be read, so it may read {gone.name}, which is removed"
            for identity, decision in self._decisions.items():
                if decision.effects.gone or decision.renamed:
                    name = (decision.desired.recorded or decision.desired.obj).name
                    broken[identity] = f"can't be read, so it may read {name} as it was"
                elif decision.effects.shape:
                    changed[identity] = f"can't be read, so it may read {decision.desired.obj.name}"
        for each in view.reads or ():
            if each.name in self._noticed:
                theirs_broken, theirs_changed = self._noticed[each.name]
                reason = f"reads {self._views[each.name].name}"
                broken.update(dict.fromkeys(theirs_broken, reason))
                changed.update({on: reason for on in theirs_changed if not theirs_broken})
            ours = self._ours.get(each.name)
            if ours is not None and ours in self._removed:
                broken[ours] = f"reads {self._removed[ours].name}, which is removed"
            elif ours is not None:
                _notice_change(self._decisions[ours], each.columns, broken, changed)
        return broken, changed


def _notice_change(decision: Decision, columns: tuple[str, ...] | None, broken: _Reasons, changed: _Reasons) -> None:
    identity, name = decision.desired.uuid, (decision.desired.recorded or decision.desired.obj).name
    if decision.renamed:
        broken[identity] = f"reads {name}, which is called {decision.desired.obj.name} now"
    for old, now in decision.effects.gone:
        if columns is None or old in columns:
            may = "may read" if columns is None else "reads"
            broken[identity] = f"{may} {name}.{old}, which is {f'called {now}' if now else 'gone'} now"
    if identity not in broken and (met := decision.effects.shape.intersection(columns)):
        changed[identity] = reads(name, met)
