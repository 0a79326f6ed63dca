"""The consequences of changes for sinks: a sink continues behind its cursor, or somebody has to decide about it."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.planning._decision import Decision, Decisions, States
from airflow_provider_rfr.builtins.planning.plan import Action, Dependent, Finding, Step
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import RegistryState
from airflow_provider_rfr.sinks.spec import CHOICES, SinkState

_KEEP_ROWS = {Action.ADOPT, Action.METADATA, Action.EVOLVE, Action.REWRITE, Action.RECOMPUTE, Action.RENAME}
"""After these, nothing is sent twice and nothing is left out."""


def decide_sink(decision: Decision, source: Decision | None, *, unfinished: bool) -> None:
    """Decide about a declared sink by itself; :func:`decide_exports` decides about changes of its source.

    After an unfinished deploy, the sink's row in the store may differ from the record.
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
    known = next((dep.columns for dep in deps if dep.uuid == read.uuid), None) or ()
    # Declared names, and those of a new sink, are those of now already.
    is_recorded = bool(known) and not sink.columns
    now = tuple((called.get(column) or column).casefold() if is_recorded else column for column in read.columns)
    decision.desired = replace(desired, reads=(replace(read, columns=now),))
    spelled = {column.name.casefold(): column.name for column in theirs.obj.columns}
    if any(gone.get(column) == "" for column in now):
        # That it goes is a problem already; what can be pasted is the rest of the columns.
        names = sink.columns or [spelled.get(column, column) for column in now]
        kept = [name for name, column in zip(names, now, strict=True) if gone.get(column) != ""]
        decision.paste += [f"columns: {json.dumps(kept, ensure_ascii=False)}"] if kept else []
        decision.problems.append(because(Why.SAY_COLUMNS))
    return {old: spelled[new.casefold()] for old in known if (new := called.get(old)) and new.casefold() in now}


def decide_exports(
    states: States, decisions: Decisions, removed: Container[UUID | None]
) -> tuple[list[Dependent], list[Step], list[Finding]]:
    """Decide about each sink, declared or made by users, whose source changes.

    :returns: the sinks as dependents; the steps, by their policies, of the sinks whose rows are gone or whose source is
        another one; findings for those of these sinks about which nobody decided
    """
    dependents, steps, blocked = list[Dependent](), list[Step](), list[Finding]()
    found = _sinks(decisions, states.recorded, removed)
    for state, moved in sorted(found, key=lambda each: (each[0].name.casefold(), str(each[0].uuid))):
        if (source := decisions.get(state.source)) is None:
            continue
        how = source.how or (Action.RENAME if source.renamed else None)
        why, since = _replaced(source, how, states.recorded.revision)
        if why is None and moved:
            # A cursor is of no use in another source.
            why, since = because(Why.EXPORTS_ANOTHER, source.desired.obj.name), str(state.source)
        choice = states.policies.sinks.get(state.name.casefold()) or state.on_replace
        if why is None and how is None:
            continue
        if why is None:
            choice = "continue"
            why = because(Why.CURSOR_KEPT, "cursor" if state.cursor is None else f"cursor {state.cursor}")
        elif choice in CHOICES:
            # Written down with it, so that a decision about the same is not taken once more.
            details = {} if since is None else {"since": since}
            steps.append(Step(state.uuid, state.name, Kind.SINK, Action(choice), (why,), details=details))
        else:
            choice, problem = "undecided", because(Why.SINK_UNDECIDED, why, state.name)
            blocked.append(Finding(state.name, Kind.SINK, (problem,), state.uuid))
        user = state.uuid not in decisions
        dependents.append(Dependent(state.source, state.name, Kind.SINK, choice, why, state.uuid, user))
    return dependents, steps, blocked


def _sinks(
    decisions: Decisions, recorded: RegistryState, removed: Container[UUID | None]
) -> Iterator[tuple[SinkState, bool]]:
    """Yield all sinks that stay, each with whether it exports another source than before."""
    rows = {sink.uuid: sink for sink in recorded.sinks}
    yield from ((row, False) for row in rows.values() if row.uuid not in decisions and row.uuid not in removed)
    for decision in decisions.values():
        desired, sink, known = decision.desired, decision.desired.obj.sink, decision.desired.recorded
        if sink is None or known is None or decision.how is Action.CREATE or (now := desired.reads[0].uuid) is None:
            continue
        row = rows.get(desired.uuid, SinkState(desired.uuid, desired.obj.name, now))
        # An unfinished deploy may have written another source into its row.
        moved = bool({row.source, *(dep.uuid for dep in known.deps[:1])} - {None, now})
        yield replace(row, name=desired.obj.name, source=now, on_replace=sink.on_replace), moved


def _replaced(source: Decision, how: Action | None, revision: int) -> tuple[Reason | None, str | None]:
    """Return the reason why a cursor in the source is invalid, and the unfinished deploy that emptied the source.

    The reason is None if the cursor is still valid; the deploy is None if no unfinished one emptied the source.
    """
    name, live = source.desired.obj.name, source.desired.live
    emptied = live.emptied_by(revision) if live is not None else None
    if emptied is not None and how not in (Action.REPLACE_EMPTY, Action.CREATE):
        return because(Why.EMPTIED_UNFINISHED, name, emptied), emptied
    return (None if how is None or how in _KEEP_ROWS else because(Why.EMPTIED, name)), None
