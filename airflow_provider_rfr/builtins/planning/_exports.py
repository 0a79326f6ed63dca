"""What the changes mean for sinks: each goes on behind its cursor, or somebody decides about it."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, States
from airflow_provider_rfr.builtins.planning.columns import pending_renames
from airflow_provider_rfr.builtins.planning.plan import SINKS, Action, Dependent, Finding, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import RegistryState
from airflow_provider_rfr.sinks.spec import SinkState

_CONTINUES = {
    Action.ADOPT: Why.CURSOR_KEPT,
    Action.METADATA: Why.CURSOR_KEPT,
    Action.EVOLVE: Why.CURSOR_KEPT,
    Action.REWRITE: Why.MIGRATION_SKIPPED,
    Action.RECOMPUTE: Why.MIGRATION_SKIPPED,
    Action.RENAME: Why.CURSOR_KEPT,
}
"""Why nothing is sent twice and nothing is left out."""
_CHOICES = {
    Action.HOLD: Why.SINK_STOPS,
    Action.RESUME_FROM_NEW: Why.SINK_FROM_NEW,
    Action.RESEND: Why.SINK_RESENDS,
}


def decide_sink(decision: Decision, source: Decision | None, *, unfinished: bool) -> None:
    """Decide about a declared sink by itself; what its source's change means for it follows in :class:`Exports`.

    :param unfinished: a deploy that did not finish began to change it, so its row may not be as recorded
    """
    renamed = _follow_columns(decision, source) if source is not None else {}
    desired, known = decision.desired, decision.desired.recorded
    assert desired.obj.sink is not None
    read = desired.reads[0]
    decision.details = {"source": str(read.uuid or ""), "columns": list(read.columns or ())}
    decision.details |= {"renamed": renamed} if renamed else {}
    if read.uuid is None:
        decision.problems.append(because(Why.NO_SUCH_SOURCE, desired.obj.sink.source))
    if known is None or known.kind is not Kind.SINK:
        decision.how = Action.CREATE
        decision.reasons += (because(Why.NEW),) if known is None else ()
    elif decision.differences.keys() - {Why.RENAMED} or renamed:
        decision.how = Action.METADATA
        decision.note_metadata()
        name = desired.obj.sink.source
        decision.reasons += [because(Why.COLUMN_RENAMED, f"{name}.{old}", new) for old, new in renamed.items()]
    elif unfinished:
        decision.how = Action.METADATA
        decision.reasons.append(because(Why.UNFINISHED_SINK))


def _follow_columns(decision: Decision, source: Decision) -> dict[str, str]:
    """Bring what a sink reads to the names that its source's columns get, and return those that are new, by the old."""
    desired, theirs = decision.desired, source.desired
    sink, read = desired.obj.sink, desired.reads[0]
    if sink is None or read.columns is None:
        return {}
    gone, before = dict(source.effects.gone), theirs.recorded.columns if theirs.recorded is not None else ()
    called = gone | {old: new for new, old in pending_renames(before, theirs.obj.columns).items()}
    deps = desired.recorded.deps if desired.recorded is not None else ()
    known = next((each.columns for each in deps if each.uuid == read.uuid), None) or ()
    # Declared names, and those of a new sink, are those of now already.
    is_recorded = bool(known) and not sink.columns
    now = tuple((called.get(each) or each).casefold() if is_recorded else each for each in read.columns)
    decision.desired = replace(desired, reads=(replace(read, columns=now),))
    spelled = {each.name.casefold(): each.name for each in theirs.obj.columns}
    if any(gone.get(each) == "" for each in now):
        # That it goes is a problem already; what can be pasted is the rest of the columns.
        names = sink.columns or [spelled.get(each, each) for each in now]
        kept = [name for name, each in zip(names, now, strict=True) if gone.get(each) != ""]
        decision.paste += [f"columns: {json.dumps(kept, ensure_ascii=False)}"] if kept else []
        decision.problems.append(because(Why.SAY_COLUMNS))
    return {old: spelled[new.casefold()] for old in known if (new := called.get(old)) and new.casefold() in now}


class Exports:
    """What the changes mean for every sink, declared or made by users.

    :ivar dependents: every sink whose source changes, with what becomes of it
    :ivar steps: of sinks whose rows are gone
    :ivar blocked: sinks that nobody decided about
    """

    def __init__(self, states: States, decisions: Decisions, removed: Container[UUID | None]) -> None:
        self.dependents: list[Dependent] = []
        self.steps: list[Step] = []
        self.blocked: list[Finding] = []
        self._policies = states.policies
        found = _sinks(decisions, states.recorded, removed)
        for state, moved in sorted(found, key=lambda each: (each[0].name.casefold(), str(each[0].uuid))):
            source = decisions.get(state.source)
            if source is None:
                continue
            how = source.how or (Action.RENAME if source.renamed else None)
            why, since = _replaced(source, how, states.recorded.revision)
            if why is None and moved:
                # A cursor is of no use in another source.
                why, since = because(Why.EXPORTS_ANOTHER, source.desired.obj.name), str(state.source)
            if why is not None:
                said, reason = self._choose(state, why, since)
            elif how is not None:
                kept = "cursor" if state.cursor is None else f"cursor {state.cursor}"
                said, reason = "continue", because(_CONTINUES[how], kept)
            else:
                continue
            user = state.uuid not in decisions
            self.dependents.append(Dependent(state.source, state.name, Kind.SINK, said, reason, state.uuid, user))

    def _choose(self, state: SinkState, why: Reason, since: str | None) -> tuple[str, Reason]:
        """Apply the policy to a sink whose rows are gone; without a policy, it stops the deploy.

        :param since: what it is decided about, so that a decision which was written down already is not taken once more
        """
        choice = self._policies.sinks.get(state.name.casefold()) or state.on_replace
        if choice not in SINKS:
            problem = because(Why.SINK_UNDECIDED, why, state.name)
            self.blocked.append(Finding(state.name, Kind.SINK, (problem,), state.uuid))
            return "undecided", why
        action, details = Action(choice), {} if since is None else {"since": since}
        self.steps.append(Step(state.uuid, state.name, Kind.SINK, action, (why,), details=details))
        return choice, because(_CHOICES[action], why)


def _sinks(
    decisions: Decisions, recorded: RegistryState, removed: Container[UUID | None]
) -> Iterator[tuple[SinkState, bool]]:
    """All sinks that stay, and whether they export another source now."""
    rows = {each.uuid: each for each in recorded.sinks}
    yield from ((row, False) for row in rows.values() if row.uuid not in decisions and row.uuid not in removed)
    for decision in decisions.values():
        desired, sink, known = decision.desired, decision.desired.obj.sink, decision.desired.recorded
        if sink is None or known is None or decision.how is Action.CREATE or (now := desired.reads[0].uuid) is None:
            continue
        row = rows.get(desired.uuid, SinkState(desired.uuid, desired.obj.name, now))
        # An unfinished deploy may have written another source into its row.
        moved = bool({row.source, *(each.uuid for each in known.deps[:1])} - {None, now})
        yield replace(row, name=desired.obj.name, source=now, on_replace=sink.on_replace), moved


def _replaced(source: Decision, how: Action | None, revision: int) -> tuple[Reason | None, str | None]:
    """Why a cursor in the source holds no longer, if it does not, and the unfinished deploy that emptied it, if one
    did."""
    name, live = source.desired.obj.name, source.desired.live
    emptied = live.emptied_by(revision) if live is not None else None
    if emptied is not None and how not in (Action.REPLACE_EMPTY, Action.CREATE):
        return because(Why.EMPTIED_UNFINISHED, name, emptied), emptied
    if how is None or how in _CONTINUES:
        return None, None
    return because(Why.EMPTIED if how is Action.REPLACE_EMPTY else Why.MADE_AGAIN, name), None
