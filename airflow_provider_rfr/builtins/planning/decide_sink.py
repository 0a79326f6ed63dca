"""What is to become of a sink: it goes on from its cursor unless the rows that it is at are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from airflow_provider_rfr.builtins.planning import reasons
from airflow_provider_rfr.builtins.planning.decision import Decision, Decisions, inputs_of
from airflow_provider_rfr.builtins.planning.plans import Dependent, Verb
from airflow_provider_rfr.builtins.planning.policies import SINKS, Policies
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import Recorded, SinkState
from airflow_provider_rfr.builtins.wanted import Tools

CONTINUES = {
    Verb.ADOPT: "cursor kept, no snapshot is made",
    Verb.METADATA: "cursor kept, no snapshot is made",
    Verb.EVOLVE: "cursor kept, no snapshot is made",
    Verb.REWRITE: "cursor kept, migration snapshots skipped",
    Verb.SHADOW: "cursor mapped to the new table at the switch",
    Verb.RECOMPUTE: "cursor kept, migration snapshots skipped; equal contents send nothing",
    Verb.RENAME: "cursor kept, the object is the same one",
}
"""Why nothing is sent twice and nothing is left out."""
_WHAT = {
    "hold": "stops until somebody decides",
    "resume_from_new": "goes on with rows that come from now on",
    "resend": "sends everything again, declared as duplicates",
}


@dataclass(frozen=True)
class Chosen:
    """What becomes of one sink.

    :ivar how: the policy
    :ivar since: what it is decided about, if not this deploy's own doing: an unfinished deploy that emptied the source,
        or the id of the new source. A decision that was written down already is not taken once more
    """

    name: str
    how: str
    why: str
    since: str | None = None


@dataclass
class Exports:
    """What becomes of all sinks.

    :ivar choices: of sinks whose rows are gone: id -> what was chosen
    :ivar blocked: of sinks for which nobody decided: name -> problem
    """

    dependents: list[Dependent] = field(default_factory=list)
    choices: dict[UUID, Chosen] = field(default_factory=dict)
    blocked: dict[UUID, tuple[str, str]] = field(default_factory=dict)


def decide_sink(decision: Decision, decisions: Decisions, tools: Tools, *, unfinished: bool) -> None:
    """Fill the decision of a declared sink; what its source's change means for it comes later.

    :param unfinished: a deploy that did not finish began to change it, so its row may not be as recorded
    """
    want, known = decision.want, decision.want.recorded
    assert want.obj.sink is not None
    decision.problems += inputs_of(want, decisions).gone
    decision.details = {"source": str(want.reads[0].uuid or ""), "columns": list(want.reads[0].columns or ())}
    if want.reads[0].uuid is None:
        decision.problems.append(f"its source {want.obj.sink.source} is not declared")
    if known is None:
        decision.how = Verb.CREATE
        decision.reasons.append("new")
        return
    decision.reasons += reasons.own_reasons(want, known, tools)
    if known.kind is not Kind.SINK:
        decision.how = Verb.CREATE
    elif [each for each in decision.reasons if not each.startswith("renamed from")]:
        decision.how = Verb.METADATA
        decision.words += reasons.metadata_words(want, known)
    elif unfinished:
        decision.how = Verb.METADATA
        decision.reasons.append("a deploy that did not finish began to change it")


def exports(
    decisions: Decisions, recorded: Recorded, policies: Policies, leftover_sinks: Iterable[SinkState] = ()
) -> Exports:
    """What the changes mean for every sink, declared or made by users.

    :param leftover_sinks: that an unfinished deploy made and nobody declares; they are removed
    """
    found, ours = Exports(), {}
    by_uuid = {each.uuid: each for each in recorded.sinks}
    for decision in decisions.values():
        want = decision.want
        if want.obj.sink is not None and want.reads[0].uuid is not None and decision.how is not Verb.CREATE:
            ours[want.uuid] = SinkState(
                want.uuid, want.obj.name, want.reads[0].uuid, on_replace=want.obj.sink.on_replace
            )
    left = {each.uuid for each in leftover_sinks}
    users = [each for identity, each in by_uuid.items() if identity not in decisions and identity not in left]
    for state in sorted((*ours.values(), *users), key=lambda each: (each.name.casefold(), str(each.uuid))):
        source = decisions.get(state.source)
        if source is not None:
            live = source.want.live
            emptied = live.emptied_by(recorded.revision) if live is not None else None
            _export(found, state, source, policies, state.uuid not in ours, by_uuid, emptied)
    _other_sources(found, decisions, by_uuid, policies)
    return found


def _export(
    found: Exports,
    state: SinkState,
    source: Decision,
    policies: Policies,
    user: bool,
    states: Mapping[UUID, SinkState],
    emptied: str | None,
) -> None:
    how = source.how if source.how is not None else Verb.RENAME if source.renamed else None
    name, cursor = source.want.obj.name, states.get(state.uuid, state).cursor
    if emptied is not None and how not in (Verb.REPLACE_EMPTY, Verb.CREATE) and not source.leaves:
        _choose(found, state, f"{name} was emptied by deploy {emptied}, which did not finish", policies, user, emptied)
        return
    if how is None:
        return
    if how in CONTINUES and not source.leaves:
        reason = CONTINUES[how].replace("cursor", f"cursor {cursor}" if cursor is not None else "cursor", 1)
        found.dependents.append(_dependent(state, "continue", reason, user))
        return
    why = f"{name} is {'emptied' if how is Verb.REPLACE_EMPTY else 'made anew'}"
    _choose(found, state, why, policies, user)


def _choose(
    found: Exports, state: SinkState, why: str, policies: Policies, user: bool, since: str | None = None
) -> None:
    choice = policies.sinks.get(state.name.casefold()) or state.on_replace
    if choice not in SINKS:
        problem = f"{why}: say what becomes of the sink, by sinks: {{{state.name}: {' | '.join(SINKS)}}}"
        found.blocked[state.uuid] = (state.name, problem)
        found.dependents.append(_dependent(state, "undecided", why, user))
        return
    found.choices[state.uuid] = Chosen(state.name, choice, why, since)
    found.dependents.append(_dependent(state, choice, f"{_WHAT[choice]}, since {why}", user))


def _other_sources(found: Exports, decisions: Decisions, states: Mapping[UUID, SinkState], policies: Policies) -> None:
    """A cursor is of no use in another source. The sink's row may have one that an unfinished deploy gave it."""
    for decision in decisions.values():
        want, known = decision.want, decision.want.recorded
        if want.obj.sink is None or known is None or known.kind is not Kind.SINK or want.uuid in found.choices:
            continue
        before = {each.uuid for each in known.deps[:1]} | {each.source for each in (states.get(want.uuid),) if each}
        now = want.reads[0].uuid
        if now is not None and before - {None, now}:
            state = SinkState(want.uuid, want.obj.name, now, on_replace=want.obj.sink.on_replace)
            _choose(found, state, f"it exports {want.obj.sink.source} now", policies, False, str(now))


def _dependent(state: SinkState, how: str, reason: str, user: bool) -> Dependent:
    return Dependent(state.source, state.name, Kind.SINK, how, reason, state.uuid, user)
