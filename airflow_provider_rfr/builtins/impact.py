"""The consequences of changes for readers: declared views, users' views, and sinks.

Views are defined again, marked as broken, or bridged by a temporary text. Spark matches a view's columns with the
output of its text by position. So a user's star is expanded before the columns that it stands for change their
positions. Spark also refuses a column that is wider than it was when the view was created. So before a column is
widened, each view over it is bridged: it gets its own text, with the outputs cast to their future types. For a renamed,
dropped or incompatible column, no text is valid both before and after.

A sink continues after its cursor, or a policy has to say what it does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from uuid import UUID

from airflow_provider_rfr.builtins.columns import ALL, EVERYTHING, Effects, affected
from airflow_provider_rfr.builtins.decide import ChangeOrigin, Decision, Decisions, States, lost_column, reads
from airflow_provider_rfr.builtins.desired import CycleError, in_order, relation
from airflow_provider_rfr.builtins.model import (
    STORED,
    ActualState,
    Dependency,
    Kind,
    RecordedObject,
    RegistryState,
    UserView,
)
from airflow_provider_rfr.builtins.plan import PlanDependent, PlanFinding, PlanStep, Reason, StepAction, Why, because
from airflow_provider_rfr.sinks import CHOICES, SinkState

_OLD_TEXT = frozenset({Why.KIND_CHANGED, Why.RENAMED, Why.METADATA_CHANGED})
"""Differences after which a view keeps its text."""


def decide_view(decision: Decision, origin: ChangeOrigin) -> None:
    """Decide about a declared view by itself; :class:`Views` decides about the consequences for its readers."""
    desired, record = decision.desired, decision.desired.recorded
    decision.details = {"sql": desired.sql}
    was_view = record is None or relation(record.kind) is Kind.VIEW
    if not origin.there or not was_view:
        decision.how = StepAction.CREATE
        decision.reasons += (because(Why.NEW),) if record is None else origin.drift if was_view else ()
        decision.effects = decision.becomes() if record is not None else decision.effects
        return
    if record is not None:
        decision.effects = _view_effects(decision, origin)
    if origin.adopted:
        decision.how = StepAction.ADOPT
        decision.reasons.append(because(Why.ADOPTED))
        return
    if record is not None:
        decision.note_metadata()
        decision.reasons += decision.noticed.values()
    if record is None or origin.rewrite_text:
        decision.how = StepAction.REPLACE
        decision.reasons += [origin.note] if origin.note is not None else []
    elif decision.differences.keys() - _OLD_TEXT:
        decision.how = StepAction.REPLACE
    elif decision.shape:
        decision.how = StepAction.REBIND
    elif Why.METADATA_CHANGED in decision.differences:
        decision.how = StepAction.METADATA
    elif origin.note is not None and origin.note.why is Why.UNFINISHED:
        # Its text is as declared, but its properties may not be.
        decision.how = StepAction.METADATA
        decision.reasons.append(origin.note)


def _view_effects(decision: Decision, origin: ChangeOrigin) -> Effects:
    """Return the effects of a view on its readers: the changes of its inputs, or those of its declared columns."""
    changed = bool({Why.QUERY_CHANGED, Why.STAR_CHANGED} & decision.differences.keys())
    contents = EVERYTHING if changed or decision.contents else frozenset()
    if origin.rewrite_text:
        return replace(decision.becomes(EVERYTHING), shape=EVERYTHING)
    if not changed and Why.COLUMNS_CHANGED not in decision.differences and not decision.shape:
        return Effects(contents=contents)
    effects = decision.becomes(contents)
    return Effects(EVERYTHING, contents) if decision.shape and not effects.shape else effects


class _ViewImpact(IntEnum):
    """The effect on a view while its inputs change."""

    NONE = 0
    WIDENED = 1
    BROKEN = 2


class Views:
    """The consequences of the changes for declared views and users' views, including users' views over users' views.

    :ivar expansions: steps that expand stars of users' views, before anything changes
    :ivar bridges: steps that bridge views, before anything changes, readers first
    :ivar steps: steps of users' views after all changes, in order
    :ivar warnings: notes about views that break, are broken already, or can't be read for a moment
    """

    def __init__(self, states: States, decisions: Decisions, removed: Iterable[RecordedObject]) -> None:
        self.expansions: list[PlanStep] = []
        self.bridges: list[PlanStep] = []
        self.steps: list[PlanStep] = []
        self.dependents: list[PlanDependent] = []
        self.blocked: list[PlanFinding] = []
        self.warnings: list[str] = []
        self._break_views = states.policies.break_views
        # Keyed by the old names, which readers use. A new object does not hide the one that gives up its name: recorded
        # objects come last, and win.
        known_last = sorted(decisions.values(), key=lambda decision: decision.desired.recorded is not None)
        self._decisions = {decision.old_name.casefold(): decision for decision in known_last}
        self._removed = {obj.key: obj for obj in removed}
        self._noticed: dict[str, tuple[str, dict[UUID, Reason], bool]] = {}
        self._impacts: dict[str, _ViewImpact] = {}
        for decision in decisions.values():
            record, live = decision.desired.recorded, decision.desired.live
            if record is None or live is None or record.kind is not Kind.VIEW or decision.leaves or record.sql is None:
                continue
            impact, goes = self._note_impact(record.key, record.name, record.deps), not decision.problems
            if impact is _ViewImpact.WIDENED and goes and decision.how in (StepAction.REBIND, StepAction.REPLACE):
                self.bridges.append(_bridge(record.uuid, live.name, record.sql))
        for view in _in_order(states.live):
            self._decide(view)
        # Readers first: a reader that is not bridged yet can't be read once the view below it shows wider columns.
        self.bridges.reverse()

    def _note_impact(self, key: str, name: str, deps: Iterable[Dependency]) -> _ViewImpact:
        """Record and return the worst impact on a view while its inputs change; add a warning if it breaks."""
        impacts = [self._impact_of(dep) for dep in deps]
        impact = self._impacts[key] = max((part for part, _ in impacts), default=_ViewImpact.NONE)
        if impact is _ViewImpact.BROKEN:
            reasons = "; ".join(dict.fromkeys(str(why) for part, why in impacts if part is _ViewImpact.BROKEN))
            self.warnings.append(f"view {name} can't be read for a moment: it {reasons}")
        return impact

    def _impact_of(self, read: Dependency) -> tuple[_ViewImpact, Reason | None]:
        """Return the effect on a reader of these columns while they change, and the reason."""
        decision, impact = self._decisions.get(read.name), self._impacts.get(read.name, _ViewImpact.NONE)
        if impact and read.name in self._noticed:
            return impact, because(Why.READS, self._noticed[read.name][0])
        if decision is None or not (impact or decision.renamed or decision.effects.shape):
            return impact, None
        name, effects = decision.old_name, decision.effects
        if decision.renamed:
            return _ViewImpact.BROKEN, because(Why.READS_RENAMED, name, decision.desired.obj.name)
        if decision.desired.kind not in STORED:
            return impact, because(Why.READS, name)
        if seen := affected(effects.shape, read.columns):
            changed = effects.shape if seen == [ALL] else {*seen}
            impact = _ViewImpact.WIDENED if changed <= effects.widened else _ViewImpact.BROKEN
        return impact, reads(name, seen)

    def _decide(self, view: UserView) -> None:
        """Decide about a user's view, after those that it reads."""
        broken, changed = dict[UUID, Reason](), dict[UUID, Reason]()
        for on, reason, breaks in self._notice(view):
            shown = reason if view.reads is not None else because(Why.READS_UNKNOWN, reason)
            (broken if breaks else changed)[on] = shown
        self._noticed[view.key] = view.name, broken or changed, bool(broken) or view.broken is not None
        if view.broken is not None:
            # It can't be defined again before somebody mends it, and its break was accepted. Its readers are still
            # decided about: the deploy that broke it may have died before it marked them.
            self.warnings.append(f"view {view.name} (user) is broken: {view.broken}")
            return
        if not broken:
            self._expand_star(view, changed)
        why = (*broken.values(), *changed.values()) or ((because(Why.BRIDGED),) if view.bridged else ())
        if not why:
            return
        how = "rebind" if not broken else "break" if view.key in self._break_views else "blocked"
        for on, reason in {**changed, **broken}.items():
            self.dependents.append(PlanDependent(on, view.name, Kind.VIEW, how, reason, user=True))
        if how == "blocked":
            self.blocked.append(PlanFinding(view.name, Kind.VIEW, (*why, because(Why.USER_VIEW_BREAKS, view.name))))
        elif how == "break":
            self.warnings.append(f"view {view.name} (user) breaks: {'; '.join(map(str, why))}")
            mark = {"broken": "; ".join(map(str, broken.values()))}
            self.steps.append(PlanStep(None, view.name, Kind.VIEW, StepAction.MARK_BROKEN, why, details=mark))
        else:
            text = view.pinned or view.query
            if self._note_impact(view.key, view.name, view.reads or ()) is _ViewImpact.WIDENED:
                self.bridges.append(_bridge(None, view.name, text))
            self.steps.append(PlanStep(None, view.name, Kind.VIEW, StepAction.REBIND, why, details={"sql": text}))

    def _expand_star(self, view: UserView, changed: Mapping[UUID, Reason]) -> None:
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
                self.dependents.append(PlanDependent(on, view.name, Kind.VIEW, "rebind", reason, user=True))
        details = {"sql": view.pinned}
        self.expansions.append(
            PlanStep(None, view.name, Kind.VIEW, StepAction.REBIND, tuple(why.values()), details=details)
        )

    def _by_old_name(self, name: str) -> Decision | RecordedObject | None:
        """Return the decision about the object that had the name before the deploy, or the record of a removed one."""
        return self._removed.get(name) or self._decisions.get(name)

    def _notice(self, view: UserView) -> Iterator[tuple[UUID, Reason, bool]]:
        """Yield the changed objects that the view reads, each with the reason and whether it breaks the view."""
        # A view that can't be parsed may read anything.
        everything = map(Dependency, {**self._decisions, **self._removed})
        for read in view.reads if view.reads is not None else everything:
            if read.name in self._noticed:
                name, sources, breaks = self._noticed[read.name]
                yield from ((on, because(Why.READS, name), breaks) for on in sources)
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


def _bridge(uuid: UUID | None, name: str, sql: str) -> PlanStep:
    return PlanStep(uuid, name, Kind.VIEW, StepAction.BRIDGE, (because(Why.STAYS_READABLE),), details={"sql": sql})


def _lost_field(decision: Decision, columns: tuple[str, ...] | None, query: str) -> tuple[str, str] | None:
    """Return the path and new name of a removed or renamed field that the query reads; the name is empty if removed.

    Only fields of these columns count. A query is taken to read a field if its name follows a dot in the text.
    """
    for path, now in (*decision.diff.fields_with_new_names, *((path, "") for path in decision.diff.lost_fields)):
        name = re.escape(path.rpartition(".")[2])
        is_read = columns is None or path.partition(".")[0].casefold() in columns
        if is_read and re.search(rf"\.\s*`?{name}\b", query, re.IGNORECASE):
            return path, now
    return None


def _of_change(decision: Decision, columns: tuple[str, ...] | None) -> tuple[Reason, bool] | None:
    """Return the reason that a reader of these columns notices, if any, and whether the change breaks it."""
    record, effects, name = decision.desired.recorded, decision.effects, decision.old_name
    # A renamed column is lost for its readers, also if another column takes its old name.
    gone = {**effects.gone, **decision.diff.called}
    if lost := [(old, now) for old, now in gone.items() if columns is None or old in columns]:
        return lost_column(name, *lost[-1]), True
    # Not only `decision.renamed`: an unfinished deploy may have renamed it already.
    if record is not None and record.key != decision.desired.key and record.kind is not Kind.SINK:
        return because(Why.READS_RENAMED, name, decision.desired.obj.name), True
    seen = affected(effects.shape, columns)
    return (reads(name, seen), False) if seen else None


def _moves(decision: Decision, star_last: bool) -> bool:
    """Tell whether columns of a star over the object move; a new last column moves none if the star is last."""
    before, now = decision.outputs()
    return bool(before) and (now[: len(before)] != before or (now != before and not star_last))


_KEEP_ROWS = {
    StepAction.ADOPT,
    StepAction.METADATA,
    StepAction.EVOLVE,
    StepAction.REWRITE,
    StepAction.RECOMPUTE,
    StepAction.RENAME,
}
"""Actions on a source after which a sink's cursor is still valid."""


def decide_sink(decision: Decision, source: Decision | None, *, unfinished: bool) -> None:
    """Decide about a declared sink by itself; :func:`decide_exports` decides about changes of its source.

    After an unfinished deploy, the sink's row in the store may differ from the record.
    """
    renamed = _follow_columns(decision, source) if source is not None else {}
    desired, record = decision.desired, decision.desired.recorded
    assert desired.obj.sink is not None
    read = desired.reads[0]
    decision.details = {"source": str(read.uuid or ""), "columns": list(read.columns or ())}
    decision.details |= {"renamed": renamed} if renamed else {}
    if read.uuid is None:
        decision.problems.append(because(Why.NO_SUCH_SOURCE, desired.obj.sink.source))
    if record is None or record.kind is not Kind.SINK:
        decision.how = StepAction.CREATE
        decision.reasons += (because(Why.NEW),) if record is None else ()
    elif decision.differences.keys() - {Why.RENAMED} or renamed:
        decision.how = StepAction.METADATA
        decision.note_metadata()
        name = desired.obj.sink.source
        decision.reasons += [because(Why.COLUMN_RENAMED, f"{name}.{old}", new) for old, new in renamed.items()]
    elif unfinished:
        decision.how = StepAction.METADATA
        decision.reasons.append(because(Why.UNFINISHED))


def _follow_columns(decision: Decision, source: Decision) -> dict[str, str]:
    """Update the columns that a sink reads to their new names in its source, and return the new names by the old."""
    desired, theirs = decision.desired, source.desired
    sink, read = desired.obj.sink, desired.reads[0]
    if sink is None or read.columns is None:
        return {}
    gone = source.effects.gone
    called = {**gone, **source.diff.called}
    deps = desired.recorded.deps if desired.recorded is not None else ()
    sent = next((dep.columns for dep in deps if dep.uuid == read.uuid), None) or ()
    # Names that the sink declares, and those of a new sink, are present names already.
    is_recorded = bool(sent) and not sink.columns
    now = tuple((called.get(column) or column).casefold() if is_recorded else column for column in read.columns)
    decision.desired = replace(desired, reads=(replace(read, columns=now),))
    spelled = {column.name.casefold(): column.name for column in theirs.obj.columns}
    if any(gone.get(column) == "" for column in now):
        # The dropped column is a problem of its own; suggest the remaining columns.
        names = sink.columns or [spelled.get(column, column) for column in now]
        kept = [name for name, column in zip(names, now, strict=True) if gone.get(column) != ""]
        decision.paste += [f"columns: {json.dumps(kept, ensure_ascii=False)}"] if kept else []
        decision.problems.append(because(Why.SAY_COLUMNS))
    return {old: spelled[new.casefold()] for old in sent if (new := called.get(old)) and new.casefold() in now}


def decide_exports(
    states: States, decisions: Decisions, removed: Container[UUID | None]
) -> tuple[list[PlanDependent], list[PlanStep], list[PlanFinding]]:
    """Decide about each sink, declared or made by users, whose source changes.

    :returns: the sinks as dependents; a step for each sink whose source was emptied or is another one, by its policy;
        a finding for each of these sinks without a policy
    """
    dependents, steps, blocked = list[PlanDependent](), list[PlanStep](), list[PlanFinding]()
    sinks = _sinks(decisions, states.recorded, removed)
    for state, moved in sorted(sinks, key=lambda pair: (pair[0].name.casefold(), str(pair[0].uuid))):
        if (source := decisions.get(state.source)) is None:
            continue
        how = source.how or (StepAction.RENAME if source.renamed else None)
        why, since = _replaced(source, how, states.recorded.revision)
        if why is None and moved:
            # A cursor is not valid in another source.
            why, since = because(Why.EXPORTS_ANOTHER, source.desired.obj.name), str(state.source)
        choice = states.policies.sinks.get(state.name.casefold()) or state.on_replace
        if why is None and how is None:
            continue
        if why is None:
            choice = "continue"
            why = because(Why.CURSOR_KEPT, "cursor" if state.cursor is None else f"cursor {state.cursor}")
        elif choice in CHOICES:
            # Stored with the decision, so that a repetition about the same event changes nothing.
            details = {} if since is None else {"since": since}
            steps.append(PlanStep(state.uuid, state.name, Kind.SINK, StepAction(choice), (why,), details=details))
        else:
            choice, problem = "undecided", because(Why.SINK_UNDECIDED, why, state.name)
            blocked.append(PlanFinding(state.name, Kind.SINK, (problem,), state.uuid))
        user = state.uuid not in decisions
        dependents.append(PlanDependent(state.source, state.name, Kind.SINK, choice, why, state.uuid, user))
    return dependents, steps, blocked


def _sinks(
    decisions: Decisions, recorded: RegistryState, removed: Container[UUID | None]
) -> Iterator[tuple[SinkState, bool]]:
    """Yield all sinks that stay, and for each whether its source is another one than before."""
    rows = {sink.uuid: sink for sink in recorded.sinks}
    yield from ((row, False) for row in rows.values() if row.uuid not in decisions and row.uuid not in removed)
    for decision in decisions.values():
        desired, sink, record = decision.desired, decision.desired.obj.sink, decision.desired.recorded
        if (
            sink is None
            or record is None
            or decision.how is StepAction.CREATE
            or (now := desired.reads[0].uuid) is None
        ):
            continue
        row = rows.get(desired.uuid, SinkState(desired.uuid, desired.obj.name, now))
        # An unfinished deploy may have written another source into its row.
        moved = bool({row.source, *(dep.uuid for dep in record.deps[:1])} - {None, now})
        yield replace(row, name=desired.obj.name, source=now, on_replace=sink.on_replace), moved


def _replaced(source: Decision, how: StepAction | None, revision: int) -> tuple[Reason | None, str | None]:
    """Return why a cursor in the source is invalid, if it is, and the unfinished deploy that emptied it, if one did."""
    name, live = source.desired.obj.name, source.desired.live
    emptied = live.emptied_by(revision) if live is not None else None
    if emptied is not None and how not in (StepAction.REPLACE_EMPTY, StepAction.CREATE):
        return because(Why.EMPTIED_UNFINISHED, name, emptied), emptied
    return (None if how is None or how in _KEEP_ROWS else because(Why.EMPTIED, name)), None
