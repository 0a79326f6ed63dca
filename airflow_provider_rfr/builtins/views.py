"""The consequences of changes for views: they are created again, marked as broken, or get another text for a while.

Spark finds a view's columns by their positions in the output of its text: a user's star is expanded before the columns
that it stands for change their positions. Spark refuses columns that are wider than those that a view had when it was
created: before a column is widened, views over it get their own texts with the outputs cast to their future types. For
a renamed, dropped or incompatible column, no text is valid both before and after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from uuid import UUID

from airflow_provider_rfr.builtins.columns import ALL, EVERYTHING, Effects, met
from airflow_provider_rfr.builtins.decide import Decision, Decisions, lost_column, reads
from airflow_provider_rfr.builtins.desired import CycleError, in_order, relation
from airflow_provider_rfr.builtins.drift import Origin, States
from airflow_provider_rfr.builtins.model import STORED, Dependency, Kind, Reason, Why, because
from airflow_provider_rfr.builtins.plan import Action, Dependent, Finding, Step
from airflow_provider_rfr.builtins.state import ActualState, RecordedObject, UserView

_OLD_TEXT = frozenset({Why.KIND_CHANGED, Why.RENAMED, Why.METADATA_CHANGED})
"""Differences after which a view keeps its text."""


def decide_view(decision: Decision, origin: Origin) -> None:
    """Decide about one of our views by itself; :class:`Views` decides about the consequences for its readers."""
    desired, known = decision.desired, decision.desired.recorded
    decision.details = {"sql": desired.sql}
    was_view = known is None or relation(known.kind) is Kind.VIEW
    if not origin.there or not was_view:
        decision.how = Action.CREATE
        decision.reasons += (because(Why.NEW),) if known is None else origin.drift if was_view else ()
        decision.effects = decision.becomes() if known is not None else decision.effects
        return
    if known is not None:
        decision.effects = _view_effects(decision, origin)
    if origin.adopted:
        decision.how = Action.ADOPT
        decision.reasons.append(because(Why.ADOPTED))
        return
    if known is not None:
        decision.note_metadata()
        decision.reasons += decision.noticed.values()
    if known is None or origin.rewrite_text:
        decision.how = Action.REPLACE
        decision.reasons += [origin.note] if origin.note is not None else []
    elif decision.differences.keys() - _OLD_TEXT:
        decision.how = Action.REPLACE
    elif decision.shape:
        decision.how = Action.REBIND
    elif Why.METADATA_CHANGED in decision.differences:
        decision.how = Action.METADATA


def _view_effects(decision: Decision, origin: Origin) -> Effects:
    """Return the effects of a view on its readers: the changes of its inputs, or those of its declared columns."""
    changed = bool({Why.QUERY_CHANGED, Why.STAR_CHANGED} & decision.differences.keys())
    contents = EVERYTHING if changed or decision.contents else frozenset()
    if origin.rewrite_text:
        return replace(decision.becomes(EVERYTHING), shape=EVERYTHING)
    if not changed and Why.COLUMNS_CHANGED not in decision.differences and not decision.shape:
        return Effects(contents=contents)
    effects = decision.becomes(contents)
    return Effects(EVERYTHING, contents) if decision.shape and not effects.shape else effects


class _Felt(IntEnum):
    """The effect on a view while its inputs change."""

    NOTHING = 0
    WIDER = 1
    BROKEN = 2


class Views:
    """The consequences of the changes for our views and users' views, including users' views over other users' views.

    :ivar pins: to be done before anything changes, as ``bridges`` are, readers first
    :ivar steps: in the order in which to do them, after everything changed
    :ivar warnings: views that break, or broke earlier; and, behind them, those that can't be read for a moment
    """

    def __init__(self, states: States, decisions: Decisions, removed: Iterable[RecordedObject]) -> None:
        self.pins: list[Step] = []
        self.bridges: list[Step] = []
        self.steps: list[Step] = []
        self.dependents: list[Dependent] = []
        self.blocked: list[Finding] = []
        self.warnings: list[str] = []
        self._break_views = states.policies.break_views
        # By the names that readers of before know: a new object does not hide the one that gives its name up.
        known_last = sorted(decisions.values(), key=lambda each: each.desired.recorded is not None)
        self._decisions = {decision.old_name.casefold(): decision for decision in known_last}
        self._removed = {obj.key: obj for obj in removed}
        self._noticed: dict[str, tuple[str, dict[UUID, Reason], bool]] = {}
        self._felt: dict[str, _Felt] = {}
        for decision in decisions.values():
            self._bridge_ours(decision)
        for view in _in_order(states.live):
            self._decide(view)
        self.bridges.reverse()

    def _bridge_ours(self, decision: Decision) -> None:
        known, there = decision.desired.recorded, decision.desired.live
        if known is None or there is None or known.kind is not Kind.VIEW or decision.leaves or known.sql is None:
            return
        felt, goes = self._feels(known.key, known.name, known.deps), not decision.problems
        if felt is _Felt.WIDER and goes and decision.how in (Action.REBIND, Action.REPLACE):
            self.bridges.append(_bridge(known.uuid, there.name, known.sql))

    def _feels(self, key: str, name: str, deps: Iterable[Dependency]) -> _Felt:
        found = [self._of(dep) for dep in deps]
        felt = self._felt[key] = max((impact for impact, _ in found), default=_Felt.NOTHING)
        if felt is _Felt.BROKEN:
            reasons = "; ".join(dict.fromkeys(str(why) for impact, why in found if impact is _Felt.BROKEN))
            self.warnings.append(f"view {name} can't be read for a moment: it {reasons}")
        return felt

    def _of(self, read: Dependency) -> tuple[_Felt, Reason | None]:
        """Return the effect on a reader of these columns while they change, and the reason."""
        decision, felt = self._decisions.get(read.name), self._felt.get(read.name, _Felt.NOTHING)
        if felt and read.name in self._noticed:
            return felt, because(Why.READS, self._noticed[read.name][0])
        if decision is None or not (felt or decision.renamed or decision.effects.shape):
            return felt, None
        name, effects = decision.old_name, decision.effects
        if decision.renamed:
            return _Felt.BROKEN, because(Why.READS_RENAMED, name, decision.desired.obj.name)
        if decision.desired.kind not in STORED:
            return felt, because(Why.READS, name)
        if seen := met(effects.shape, read.columns):
            changed = effects.shape if seen == [ALL] else {*seen}
            felt = _Felt.WIDER if changed <= effects.widened else _Felt.BROKEN
        return felt, reads(name, seen)

    def _decide(self, view: UserView) -> None:
        """Decide about a user's view, after those that it reads."""
        broken, changed = dict[UUID, Reason](), dict[UUID, Reason]()
        for on, reason, breaks in self._notice(view):
            said = reason if view.reads is not None else because(Why.READS_UNKNOWN, reason)
            (broken if breaks else changed)[on] = said
        self._noticed[view.key] = view.name, broken or changed, bool(broken) or view.broken is not None
        if view.broken is not None:
            # It can't be defined again before somebody mends it, and whoever let it break knows. Those who read it may
            # not be marked yet: the deploy that broke it may have died before.
            self.warnings.append(f"view {view.name} (user) is broken: {view.broken}")
            return
        if not broken:
            self._pin(view, changed)
        why = (*broken.values(), *changed.values()) or ((because(Why.BRIDGED),) if view.bridged else ())
        if not why:
            return
        how = "rebind" if not broken else "break" if view.key in self._break_views else "blocked"
        for on, reason in {**changed, **broken}.items():
            self.dependents.append(Dependent(on, view.name, Kind.VIEW, how, reason, user=True))
        if how == "blocked":
            self.blocked.append(Finding(view.name, Kind.VIEW, (*why, because(Why.USER_VIEW_BREAKS, view.name))))
        elif how == "break":
            self.warnings.append(f"view {view.name} (user) breaks: {'; '.join(map(str, why))}")
            mark = {"broken": "; ".join(map(str, broken.values()))}
            self.steps.append(Step(None, view.name, Kind.VIEW, Action.MARK_BROKEN, why, details=mark))
        else:
            text = view.pinned or view.query
            if self._feels(view.key, view.name, view.reads or ()) is _Felt.WIDER:
                self.bridges.append(_bridge(None, view.name, text))
            self.steps.append(Step(None, view.name, Kind.VIEW, Action.REBIND, why, details={"sql": text}))

    def _pin(self, view: UserView, changed: Mapping[UUID, Reason]) -> None:
        """Plan a step that expands the view's stars, if the columns that they stand for will change their positions."""
        starred = (self._by_old_name(read.name) for read in view.reads or () if read.columns is None)
        moved = [source for source in starred if isinstance(source, Decision) and _moves(source, view.star_last)]
        if not moved or "*" not in view.query or view.bridged or view.pinned == view.query:
            return
        if view.pinned is None:
            names = ", ".join(decision.old_name for decision in moved)
            problem = f"its star can't be written out, and the columns of {names} change their places"
            self.warnings.append(f"view {view.name} (user) may show others' values: {problem}")
            return
        why = {decision.desired.uuid: because(Why.STAR_MOVES, decision.old_name) for decision in moved}
        for on, reason in why.items():
            if on not in changed:
                self.dependents.append(Dependent(on, view.name, Kind.VIEW, "rebind", reason, user=True))
        details = {"sql": view.pinned}
        self.pins.append(Step(None, view.name, Kind.VIEW, Action.REBIND, tuple(why.values()), details=details))

    def _by_old_name(self, name: str) -> Decision | RecordedObject | None:
        """Return the decision or the removed record for a name as users' views know it.

        They read the recorded object, and not a new one under its name.
        """
        return self._removed.get(name) or self._decisions.get(name)

    def _notice(self, view: UserView) -> Iterator[tuple[UUID, Reason, bool]]:
        """Yield the changed objects that the view reads, each with the reason and whether it breaks the view."""
        # A view that can't be read may read anything.
        everything = map(Dependency, {**self._decisions, **self._removed})
        for read in view.reads if view.reads is not None else everything:
            if read.name in self._noticed:
                name, found, breaks = self._noticed[read.name]
                yield from ((on, because(Why.READS, name), breaks) for on in found)
            ours = self._by_old_name(read.name)
            if isinstance(ours, RecordedObject):
                yield ours.uuid, because(Why.READS_REMOVED, ours.name), True
            elif ours is not None and (lost := _lost_field(ours, read.columns, view.query)) is not None:
                yield ours.desired.uuid, lost_column(ours.old_name, *lost), True
            elif ours is not None and (noticed := _of_change(ours, read.columns)) is not None:
                yield ours.desired.uuid, *noticed


def _in_order(live: ActualState) -> tuple[UserView, ...]:
    """Return users' views, each after those that it reads; sorted by name, if some read each other in a cycle."""
    views = {user_view.key: user_view for user_view in live.user_views}
    try:
        order = in_order({key: [read.name for read in view.reads or ()] for key, view in views.items()}, str)
    except CycleError:
        order = tuple(sorted(views))
    return tuple(views[key] for key in order)


def _bridge(uuid: UUID | None, name: str, sql: str) -> Step:
    return Step(uuid, name, Kind.VIEW, Action.BRIDGE, (because(Why.STAYS_READABLE),), details={"sql": sql})


def _lost_field(decision: Decision, columns: tuple[str, ...] | None, query: str) -> tuple[str, str] | None:
    """Return the path and new name of a removed or renamed field that the query reads; the name is empty if removed.

    Only structs among these columns count, and the query reads a field if it has its name behind a dot.
    """
    for path, now in (*decision.diff.called_fields, *((path, "") for path in decision.diff.lost_fields)):
        name = re.escape(path.rpartition(".")[2])
        is_read = columns is None or path.partition(".")[0].casefold() in columns
        if is_read and re.search(rf"\.\s*`?{name}\b", query, re.IGNORECASE):
            return path, now
    return None


def _of_change(decision: Decision, columns: tuple[str, ...] | None) -> tuple[Reason, bool] | None:
    """Return the reason that a reader of these columns notices, if any, and whether the change breaks it."""
    known, effects, name = decision.desired.recorded, decision.effects, decision.old_name
    # Another column under an old name is not the one that is read.
    gone = {**effects.gone, **decision.diff.called}
    if lost := [(old, now) for old, now in gone.items() if columns is None or old in columns]:
        return lost_column(name, *lost[-1]), True
    # A deploy that died may have renamed it already.
    if known is not None and known.key != decision.desired.key and known.kind is not Kind.SINK:
        return because(Why.READS_RENAMED, name, decision.desired.obj.name), True
    seen = met(effects.shape, columns)
    return (reads(name, seen), False) if seen else None


def _moves(decision: Decision, star_last: bool) -> bool:
    """Tell whether the columns that a star over the object stands for change their positions.

    New columns at the end count only if the star is not the last item.
    """
    before, now = decision.outputs()
    return bool(before) and (now[: len(before)] != before or (now != before and not star_last))
