"""The order of a plan's steps.

What leaves goes readers first, by what was read when it was recorded. What comes or changes goes what is read first, by
what is read now. Both at once, for edges may turn round. What leaves for good waits until the end, so that nothing that
still reads it is left alone, unless something else needs its name.

Objects that are recorded and no longer wanted, and what a deploy made that was then given up.

Views that others made over our objects: found, and rebound, or the deploy stops, or they are warned of.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from airflow_provider_rfr.builtins.planning.decision import Decision, Decisions, reads
from airflow_provider_rfr.builtins.planning.drift import whose
from airflow_provider_rfr.builtins.planning.plan import Blocked, Dependent, Policies, Verb
from airflow_provider_rfr.builtins.spec import Contents, Kind, Stability
from airflow_provider_rfr.builtins.state import (
    Live,
    LiveKind,
    LiveObject,
    Recorded,
    RecordedObject,
    SinkState,
    UserView,
)
from airflow_provider_rfr.builtins.wanted import CycleError, Graph, Wanted, relation
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


def removals(wanted: Wanted, recorded: Recorded, live: Live, version: str, downgrade: str | None) -> Removals:
    """What leaves for good.

    :param downgrade: why nothing may be removed
    """
    found = Removals()
    known_ids = recorded.by_uuid.keys() | wanted.wants.keys() | live.unfinished
    sinks = [each for each in recorded.sinks if each.uuid in wanted.wants or each.uuid not in known_ids]
    for known in sorted(recorded.objects, key=lambda each: each.key):
        if known.uuid in wanted.wants or known.uuid in wanted.kept:
            continue
        if known.instance is not None and not _may_go(known):
            found.warnings.append(f"{known.name}: its instance is gone; it stays, for its rows are history")
            continue
        there = _there(known, live, known_ids)
        exported = [each.name for each in sinks if each.source == known.uuid]
        problems = list(_problems(wanted, known, there, exported))
        if downgrade is not None:
            problems = [downgrade]
        if problems:
            paste = _tombstone(version) if problems[0].startswith("removal must") else None
            found.blocked.append(Blocked(known.name, known.kind, tuple(problems), known.uuid, instruction=paste))
            continue
        found.leaving[known.uuid] = known
        found.reasons[known.uuid] = _reason(wanted, known)
        if there is not None:
            found.there[known.uuid] = there
    if not found.blocked:
        found.leftovers = _leftovers(found, wanted, live)
        ours = recorded.by_uuid.keys() | wanted.wants.keys()
        found.leftover_sinks = tuple(
            each for each in recorded.sinks if each.uuid in live.unfinished and each.uuid not in ours
        )
    return found


def _leftovers(found: Removals, wanted: Wanted, live: Live) -> dict[str, LiveObject]:
    """What a deploy made that did not finish, and that is no part of anything now. Only its journal says so: a marker
    alone may be another registry's."""
    used = {(each.uuid, each.live.key) for each in wanted.wants.values() if each.live is not None}
    used |= {(identity, each.key) for identity, each in found.there.items()}
    return {
        each.key: each
        for identity in sorted(live.unfinished)
        for each in live.by_marker.get(identity, ())
        if not each.aside and (identity, each.key) not in used
    }


def _there(known: RecordedObject, live: Live, known_ids: Container[UUID]) -> LiveObject | None:
    """What holds the object; under another name, if a deploy that did not finish renamed it. What has its name is no
    trace of it, if it is another object of ours."""
    if relation(known.kind) is None:
        return None
    ours = [each for each in live.by_marker.get(known.uuid, ()) if not each.aside and each.kind is relation(known.kind)]
    named = live.objects.get(known.key)
    if named is not None and (named.marker == known.uuid or named.marker is None or named.marker not in known_ids):
        return named
    return ours[0] if len(ours) == 1 else None


def _may_go(known: RecordedObject) -> bool:
    return known.protect is None and (known.stability is Stability.UNSTABLE or known.contents is Contents.DERIVABLE)


def _problems(wanted: Wanted, known: RecordedObject, there: LiveObject | None, exported: list[str]) -> Iterable[str]:
    tombstone = wanted.removed.get(known.uuid)
    if known.stability is Stability.STABLE and tombstone is None and known.instance is None:
        yield "removal must be declared (deprecated_since, removed_in): it is stable, and users may build on it"
    protect = known.protect or (tombstone.protect if tombstone is not None else None)
    if protect is not None:
        yield f"protected: {protect}; it is not removed. Forget it, and its rows stay where they are"
    if there is not None and there.marker != known.uuid:
        yield f"it is not dropped: {whose(there, known.uuid)}. Forget {known.name} ({known.uuid}) instead"
    for name in exported:
        yield f"the sink {name} exports it"


def _reason(wanted: Wanted, known: RecordedObject) -> str:
    tombstone = wanted.removed.get(known.uuid)
    if tombstone is not None and tombstone.removed is not None:
        return f"deprecated since {tombstone.removed.deprecated_since}, removed in {tombstone.removed.removed_in}"
    if known.instance is not None:
        return "its instance is gone"
    return f"{known.stability.value}, no longer declared"


def _tombstone(version: str) -> str:
    return f'removed: {{deprecated_since: "{version}", removed_in: "{version}"}}'


@dataclass(frozen=True)
class _Rename:
    """One object's way to another name; ``to`` may be a name in between."""

    uuid: UUID
    name: str
    to: str


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


def leaving(decisions: Decisions, removed: Removals, recorded: Recorded, policies: Policies) -> Leaving:
    """What leaves.

    :raises PlanError: the registry says that objects read each other in a circle
    """
    needed = {each.want.key for each in decisions.values() if each.how is Verb.CREATE or each.renamed}
    gone = {identity: there.key for identity, there in removed.there.items()}
    early = {identity for identity, each in decisions.items() if each.leaves}
    early |= {identity for identity, key in gone.items() if key in needed}
    if not policies.replace_views:
        early |= {identity for identity, each in decisions.items() if _is_replaced(each)}
    # Nobody wrote down what leftovers read; views may read tables.
    left = sorted(removed.leftovers, key=lambda key: (removed.leftovers[key].kind is LiveKind.TABLE, key))
    leftovers = tuple(key for key in left if key in needed), tuple(key for key in left if key not in needed)
    if not early and not gone:
        return Leaving(leftovers=leftovers)
    graph = Graph({each.uuid: [dep.uuid for dep in each.deps if dep.uuid] for each in recorded.objects})
    # A removed reader of something that leaves early leaves before it.
    early |= gone.keys() & graph.readers_of(early)
    order = _readers_first(graph, recorded)
    return Leaving(
        tuple(each for each in order if each in early),
        tuple(each for each in order if each in gone and each not in early),
        leftovers,
    )


def _readers_first(graph: Graph[UUID], recorded: Recorded) -> tuple[UUID, ...]:
    keys = {each.uuid: each.key for each in recorded.objects}
    try:
        return graph.order(lambda identity: (keys[identity], str(identity)))[::-1]
    except CycleError as error:
        names = CycleError(keys[each] for each in error.cycle)
        raise PlanError(f"the registry is damaged, objects read each other in a circle: {names}") from None


def _is_replaced(decision: Decision) -> bool:
    return decision.want.kind is Kind.VIEW and decision.how in (Verb.REPLACE, Verb.REBIND)


def renames(decisions: Iterable[Decision]) -> list[_Rename]:
    """Renames in an order in which each new name is free; those that go round in a circle go by a name in between."""
    waiting = {
        each.want.live.key: each
        for each in sorted(decisions, key=lambda each: each.want.key)
        if each.renamed and each.want.live is not None
    }
    found: list[_Rename] = []
    last: list[_Rename] = []
    while waiting:
        free = [key for key, each in waiting.items() if each.want.key not in waiting]
        if free:
            found += [_rename(waiting.pop(key)) for key in free]
            continue
        each = waiting.pop(min(waiting))
        whole = _rename(each)
        between = f"{whole.name}__r{whole.uuid.hex[:8]}"
        found.append(_Rename(whole.uuid, whole.name, between))
        last.append(_Rename(whole.uuid, between, whole.to))
    return found + last


def _rename(decision: Decision) -> _Rename:
    assert decision.want.live is not None
    return _Rename(decision.want.uuid, decision.want.live.name, decision.want.obj.name)


_REMEDY = "change the view, or let it break with user_views: warn"


@dataclass
class UserViews:
    """What the changes mean for users' views.

    :ivar rebound: in the order in which to do it, with why
    """

    rebound: list[tuple[UserView, str]] = field(default_factory=list)
    dependents: list[Dependent] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Noticed:
    """By one view: what it can't do without, and what it has to see anew; by id of the object."""

    broken: dict[UUID, str] = field(default_factory=dict)
    changed: dict[UUID, str] = field(default_factory=dict)


def user_views(
    decisions: Decisions, removed: Mapping[UUID, RecordedObject], live: Live, policies: Policies
) -> UserViews:
    """What the changes mean for users' views, those over other users' views too."""
    return _Finder(decisions, removed, live, policies).find()


class _Finder:
    def __init__(
        self, decisions: Decisions, removed: Mapping[UUID, RecordedObject], live: Live, policies: Policies
    ) -> None:
        self._decisions = decisions
        self._removed = removed
        self._policies = policies
        self._views = {each.key: each for each in live.user_views}
        self._ours = {each.key: identity for identity, each in removed.items()}
        for identity, decision in decisions.items():
            self._ours[(decision.want.recorded or decision.want).key] = identity
        self._changed: dict[str, _Noticed] = {}
        self._found = UserViews()

    def find(self) -> UserViews:
        graph = Graph({key: {each.name for each in view.reads or ()} for key, view in self._views.items()})
        try:
            order = graph.order(lambda key: key)
        except CycleError:
            order = tuple(sorted(self._views))
        for key in order:
            noticed = self._noticed(self._views[key])
            if noticed.broken or noticed.changed:
                self._changed[key] = noticed
                self._decide(self._views[key], noticed)
        return self._found

    def _noticed(self, view: UserView) -> _Noticed:
        found = _Noticed()
        if view.reads is None:
            self._assume(found)
            return found
        for each in view.reads:
            if (read := self._changed.get(each.name)) is not None:
                reason = f"reads {self._views[each.name].name}"
                found.broken.update(dict.fromkeys(read.broken, reason))
                found.changed.update({on: reason for on in read.changed if not read.broken})
            identity = self._ours.get(each.name)
            if identity is None:
                continue
            if identity in self._removed:
                found.broken[identity] = f"reads {self._removed[identity].name}, which is removed"
            else:
                self._notice(found, self._decisions[identity], each.columns)
        return found

    def _assume(self, found: _Noticed) -> None:
        """A view that can't be read may read anything."""
        for identity, each in self._removed.items():
            found.broken[identity] = f"can't be read, so it may read {each.name}, which is removed"
        for identity, decision in self._decisions.items():
            if decision.effects.gone or decision.renamed:
                found.broken[identity] = f"can't be read, so it may read {self._old_name(decision)} as it was"
            elif decision.effects.shape:
                found.changed[identity] = f"can't be read, so it may read {decision.want.obj.name}"

    def _notice(self, found: _Noticed, decision: Decision, columns: tuple[str, ...] | None) -> None:
        identity, name = decision.want.uuid, self._old_name(decision)
        if decision.renamed:
            found.broken[identity] = f"reads {name}, which is called {decision.want.obj.name} now"
        for old, now in decision.effects.gone:
            if columns is None or old in columns:
                may = "may read" if columns is None else "reads"
                found.broken[identity] = f"{may} {name}.{old}, which is {f'called {now}' if now else 'gone'} now"
        if identity not in found.broken and (met := decision.effects.shape.met(columns)):
            found.changed[identity] = reads(name, met)

    @staticmethod
    def _old_name(decision: Decision) -> str:
        known = decision.want.recorded
        return known.name if known is not None else decision.want.obj.name

    def _decide(self, view: UserView, noticed: _Noticed) -> None:
        policy = self._policies.user_views
        why = [*noticed.broken.values(), *noticed.changed.values()]
        how = "warn" if policy == "warn" else "blocked" if noticed.broken or policy == "fail" else "rebind"
        words = "; ".join(why)
        for identity, reason in {**noticed.changed, **noticed.broken}.items():
            self._found.dependents.append(Dependent(identity, view.name, Kind.VIEW, how, reason, user=True))
        if how == "warn":
            self._found.warnings.append(f"view {view.name} (user) {words}: it may fail from now on")
        elif how == "blocked":
            self._found.blocked.append(Blocked(view.name, Kind.VIEW, (*why, f"user_views: {policy}; {_REMEDY}")))
        else:
            self._found.rebound.append((view, words))
