"""What the changes mean for sinks: each goes on behind its cursor, or somebody decides about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, metadata_words
from airflow_provider_rfr.builtins.planning.columns import pending_renames
from airflow_provider_rfr.builtins.planning.plan import SINKS, Action, Blocked, Dependent, Policies, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import RegistryState
from airflow_provider_rfr.sinks.spec import SinkState

_CONTINUES = {
    Action.ADOPT: Why.CURSOR_KEPT,
    Action.METADATA: Why.CURSOR_KEPT,
    Action.EVOLVE: Why.CURSOR_KEPT,
    Action.REWRITE: Why.MIGRATION_SKIPPED,
    Action.RECOMPUTE: Why.EQUAL_CONTENTS,
    Action.RENAME: Why.SAME_OBJECT,
}
"""Why nothing is sent twice and nothing is left out."""
_CHOICES = {
    Action.HOLD: Why.SINK_STOPS,
    Action.RESUME_FROM_NEW: Why.SINK_FROM_NEW,
    Action.RESEND: Why.SINK_RESENDS,
}


def decide_sink(decision: Decision, source: Decision | None, *, unfinished: bool) -> None:
    """Decide about a declared sink by itself; what its source's change means for it follows in :func:`exports`.

    :param source: the decision about its source, if that is declared
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
    if known is None:
        decision.how = Action.CREATE
        decision.reasons.append(because(Why.NEW))
    elif known.kind is not Kind.SINK:
        decision.how = Action.CREATE
    elif decision.differences.keys() - {Why.RENAMED} or renamed:
        decision.how = Action.METADATA
        decision.words += metadata_words(desired.obj, known)
        name = desired.obj.sink.source
        decision.reasons += [because(Why.COLUMN_RENAMED, f"{name}.{old}", new) for old, new in renamed.items()]
    elif unfinished:
        decision.how = Action.METADATA
        decision.reasons.append(because(Why.UNFINISHED_SINK))


def _follow_columns(decision: Decision, source: Decision) -> dict[str, str]:
    """Bring what a sink reads to the names that its source's columns get, and return those that are new, by the old.

    A column that goes and is needed is a problem already; what can be pasted is the rest of the columns.
    """
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
        names = sink.columns or [spelled.get(each, each) for each in now]
        kept = [name for name, each in zip(names, now, strict=True) if gone.get(each) != ""]
        decision.paste += [f"columns: {json.dumps(kept, ensure_ascii=False)}"] if kept else []
        decision.problems.append(because(Why.SAY_COLUMNS))
    return {old: spelled[new.casefold()] for old in known if (new := called.get(old)) and new.casefold() in now}


class Exports:
    """The decisions about all sinks.

    :ivar dependents: every sink whose source changes, with what becomes of it
    :ivar steps: of sinks whose rows are gone, by id
    :ivar blocked: sinks without a decision, by id
    """

    def __init__(self, policies: Policies) -> None:
        self.dependents: list[Dependent] = []
        self.steps: dict[UUID, Step] = {}
        self.blocked: dict[UUID, Blocked] = {}
        self._policies = policies

    def note(self, state: SinkState, how: str, reason: Reason, user: bool) -> None:
        self.dependents.append(Dependent(state.source, state.name, Kind.SINK, how, reason, state.uuid, user))

    def choose(self, state: SinkState, why: Reason, user: bool, since: str | None = None) -> None:
        """Apply the policy to a sink whose rows are gone; without a policy, it stops the deploy.

        :param since: what it is decided about, if not this deploy's own doing: an unfinished deploy that emptied the
            source, or the id of the new source. A decision that was written down already is not taken once more
        """
        choice = self._policies.sinks.get(state.name.casefold()) or state.on_replace
        if choice not in SINKS:
            problem = because(Why.SINK_UNDECIDED, why, state.name)
            self.blocked[state.uuid] = Blocked(state.name, Kind.SINK, (problem,), state.uuid)
            self.note(state, "undecided", why, user)
            return
        action = Action(choice)
        details = {} if since is None else {"since": since}
        self.steps[state.uuid] = Step(0, state.uuid, state.name, Kind.SINK, action, (why,), (), details)
        self.note(state, choice, because(_CHOICES[action], why), user)


def exports(
    decisions: Decisions, recorded: RegistryState, policies: Policies, leftover_sinks: Iterable[SinkState] = ()
) -> Exports:
    """What the changes mean for every sink, declared or made by users.

    :param leftover_sinks: made by an unfinished deploy and not declared; they are removed
    """
    found, ours = Exports(policies), {}
    by_uuid = {each.uuid: each for each in recorded.sinks}
    for decision in decisions.values():
        desired = decision.desired
        if desired.obj.sink is not None and desired.reads[0].uuid is not None and decision.how is not Action.CREATE:
            ours[desired.uuid] = SinkState(
                desired.uuid, desired.obj.name, desired.reads[0].uuid, on_replace=desired.obj.sink.on_replace
            )
    left = {each.uuid for each in leftover_sinks}
    users = [each for identity, each in by_uuid.items() if identity not in decisions and identity not in left]
    for state in sorted((*ours.values(), *users), key=lambda each: (each.name.casefold(), str(each.uuid))):
        source = decisions.get(state.source)
        if source is None:
            continue
        name, live, user = source.desired.obj.name, source.desired.live, state.uuid not in ours
        emptied = live.emptied_by(recorded.revision) if live is not None else None
        how = source.how if source.how is not None else Action.RENAME if source.renamed else None
        if emptied is not None and how not in (Action.REPLACE_EMPTY, Action.CREATE) and not source.leaves:
            found.choose(state, because(Why.EMPTIED_UNFINISHED, name, emptied), user, emptied)
        elif how is not None and how in _CONTINUES and not source.leaves:
            cursor = by_uuid.get(state.uuid, state).cursor
            kept = "cursor" if cursor is None else f"cursor {cursor}"
            found.note(state, "continue", because(_CONTINUES[how], kept), user)
        elif how is not None:
            why = Why.EMPTIED if how is Action.REPLACE_EMPTY else Why.MADE_AGAIN
            found.choose(state, because(why, name), user)
    _other_sources(found, decisions, by_uuid)
    return found


def _other_sources(found: Exports, decisions: Decisions, states: Mapping[UUID, SinkState]) -> None:
    """A cursor is of no use in another source. The sink's row may have one that an unfinished deploy gave it."""
    for decision in decisions.values():
        desired, known = decision.desired, decision.desired.recorded
        if desired.obj.sink is None or known is None or known.kind is not Kind.SINK or desired.uuid in found.steps:
            continue
        before = {each.uuid for each in known.deps[:1]} | {each.source for each in (states.get(desired.uuid),) if each}
        now = desired.reads[0].uuid
        if now is not None and before - {None, now}:
            state = SinkState(desired.uuid, desired.obj.name, now, on_replace=desired.obj.sink.on_replace)
            found.choose(state, because(Why.EXPORTS_ANOTHER, desired.obj.sink.source), False, str(now))
