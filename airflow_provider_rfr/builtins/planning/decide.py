"""What becomes of each object: table, view or sink, changed by itself or by what it reads.

Objects are taken in the order of their reads. A sink goes on from its cursor unless the rows that it is at are gone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from uuid import UUID

from airflow_provider_rfr.builtins.planning import instructions
from airflow_provider_rfr.builtins.planning.decision import (
    CONSTRAINTS,
    CONTRACT,
    DEFINITION,
    LOGIC,
    METADATA,
    STAR,
    Decision,
    Decisions,
    Inputs,
    becomes,
    inputs_of,
    metadata_details,
    metadata_words,
    own_reasons,
)
from airflow_provider_rfr.builtins.planning.diff import (
    EVERYTHING,
    NO_EFFECTS,
    NOTHING,
    Effects,
    Touched,
    gone_of,
    shape_of,
)
from airflow_provider_rfr.builtins.planning.drift import Found, Origin, find, is_unfinished, whose
from airflow_provider_rfr.builtins.planning.mechanisms import Choice, choose
from airflow_provider_rfr.builtins.planning.plan import SINKS, VERB_OF, Dependent, Load, Policies, Verb
from airflow_provider_rfr.builtins.spec import QUERIED, STORED, Contents, How, Kind
from airflow_provider_rfr.builtins.state import (
    DONE,
    STEP,
    Live,
    LiveKind,
    Recorded,
    RecordedObject,
    SinkState,
    done_mark,
)
from airflow_provider_rfr.builtins.wanted import Tools, Want, Wanted, relation

_ORDER = tuple(How)
_LOSES_ROWS = "all rows (they were history, and become a query's result)"


def _decide_stored(decision: Decision, found: Found, decisions: Decisions, policies: Policies, tools: Tools) -> None:
    """Fill the decision of an object with a table behind it."""
    want, known = decision.want, decision.want.recorded
    inputs = inputs_of(want, decisions)
    decision.problems += inputs.gone
    if known is not None:
        decision.reasons += own_reasons(want, known, tools)
    if known is not None and relation(known.kind) is not LiveKind.TABLE and not _is_table_already(want):
        _comes_as_table(decision, known)
    elif found.origin is None:
        _comes(decision, found, known)
    else:
        _changes(decision, found, found.origin, inputs, policies)
    if want.kind is Kind.SOURCE:
        _source(decision)


def _source(decision: Decision) -> None:
    """Its rows come from a refresh: the plan says why one has to run."""
    if DEFINITION in decision.reasons:
        decision.words.append("~ definition: the next refresh starts a new generation")
    why = _why_loaded(decision, decision.want.recorded)
    if why is None or (decision.how is None and decision.problems):
        return
    decision.details["load_anew"] = why.value
    if decision.how is None:
        decision.how = Verb.METADATA


def _why_loaded(decision: Decision, known: RecordedObject | None) -> Load | None:
    if known is None or known.kind is not Kind.SOURCE or decision.how is Verb.CREATE:
        return Load.CREATED
    if DEFINITION in decision.reasons:
        return Load.REDEFINED
    live = decision.want.live
    # A deploy before this one may have done it, and died before it could say so.
    was_emptied = live is not None and not live.rows and is_unfinished(known, live)
    return Load.EMPTIED if decision.how is Verb.REPLACE_EMPTY or was_emptied else None


def _is_table_already(want: Want) -> bool:
    """A deploy that did not finish has made it one."""
    return want.live is not None and want.live.kind is LiveKind.TABLE and want.live.marker == want.uuid


def _comes_as_table(decision: Decision, known: RecordedObject) -> None:
    _create(decision)
    decision.effects = becomes(decision.want, known)


def _create(decision: Decision) -> None:
    decision.how = Verb.CREATE
    if decision.want.sql is not None:
        decision.details["sql"] = decision.want.sql


def _comes(decision: Decision, found: Found, known: RecordedObject | None) -> None:
    _create(decision)
    if known is None:
        decision.reasons.append("new")
        return
    decision.reasons += [each for each in found.drift if each not in decision.reasons]
    decision.effects = becomes(decision.want, known)


def _changes(decision: Decision, found: Found, origin: Origin, inputs: Inputs, policies: Policies) -> None:
    want = decision.want
    choice = choose(want, origin, policies)
    how = choice.how
    if want.recorded is not None:
        how = _kept(decision, choice, want.recorded, policies)
    if want.kind is Kind.MATERIALIZED_VIEW and how is not How.REPLACE_EMPTY:
        how = _recomputed(decision, how, inputs)
    # What was changed by hand and is adopted stays as it is: to write all that is declared would be to repair it.
    if how is None and (policies.drift == "repair" if found.drift else origin.note is not None):
        how = How.METADATA
    if found.adopted:
        how = How.ADOPT
    _take(decision, choice, how)
    if want.recorded is not None and origin.note is not None and CONTRACT in decision.reasons:
        # The table may be as wanted already; those who read it saw the recorded one, and the deploy died before them.
        decision.effects |= becomes(want, want.recorded)
    _say(decision, found, origin, how, policies)


def _kept(decision: Decision, choice: Choice, known: RecordedObject, policies: Policies) -> How | None:
    """The same table, and perhaps more to do than its columns ask for."""
    want, how = decision.want, choice.how
    differs = {METADATA, CONSTRAINTS, CONTRACT, DEFINITION} & {*decision.reasons}
    if how is None and (differs or want.kind is not known.kind):
        how = How.METADATA
    if METADATA in decision.reasons:
        decision.words += metadata_words(want, known)
        decision.details |= metadata_details(want, known)
    if want.kind is Kind.MATERIALIZED_VIEW and known.kind is not Kind.MATERIALIZED_VIEW:
        _becomes_query(decision, known, policies)
        how = How.RECOMPUTE
    return how


def _becomes_query(decision: Decision, known: RecordedObject, policies: Policies) -> None:
    """Rows that nothing can make again would be overwritten by a query's result."""
    want = decision.want
    if known.contents is Contents.DERIVABLE:
        return
    decision.loses = (_LOSES_ROWS,)
    if want.protect is not None:
        decision.problems.append(f"protected: {want.protect}; refused, since {_LOSES_ROWS} would be lost")
    elif not policies.accepts_loss(want.obj.name, want.uuid):
        name = want.obj.name
        decision.problems.append(f"{_LOSES_ROWS} would be lost; say accept_data_loss: {name} if that is meant")


def _recomputed(decision: Decision, how: How | None, inputs: Inputs) -> How | None:
    causes = {**inputs.contents, **inputs.shape}
    decision.input_reasons = causes
    decision.reasons += causes.values()
    if causes or {LOGIC, STAR} & {*decision.reasons} or how is How.REWRITE:
        return How.RECOMPUTE
    return how


def _take(decision: Decision, choice: Choice, how: How | None) -> None:
    want = decision.want
    decision.how = None if how is None else VERB_OF[how]
    decision.words = [*choice.words, *decision.words]
    decision.details |= choice.details if how is not None else {}
    if how is How.RECOMPUTE and want.obj.query is not None:
        decision.details["sql"] = want.sql
    decision.loses = (*decision.loses, *choice.loses)
    decision.problems += choice.problems
    decision.paste = choice.paste
    decision.instructed = choice.instructed
    if how is None and not choice.changes:
        return
    contents = NOTHING
    if how in (How.RECOMPUTE, How.REPLACE_EMPTY):
        contents = EVERYTHING
    elif choice.rewritten:
        contents = Touched(choice.rewritten)
    gone = gone_of(choice.before, want.obj.columns, choice.changes) if choice.changes else ()
    decision.effects = Effects(shape_of(choice.changes), contents, gone)


def _say(decision: Decision, found: Found, origin: Origin, how: How | None, policies: Policies) -> None:
    if how is not None and origin.note is not None:
        decision.reasons.append(origin.note)
    if found.adopted:
        decision.reasons.append("as declared; takes our marker")
    if policies.force is not None and decision.want.protect is None:
        decision.reasons.append(f"forced to {policies.force}")


_EVERY = Effects(EVERYTHING, EVERYTHING)
_NEW_TEXT = frozenset({LOGIC, STAR, CONTRACT, CONSTRAINTS, DEFINITION})


def _decide_view(decision: Decision, found: Found, decisions: Decisions, policies: Policies, tools: Tools) -> None:
    """Fill the decision of a view."""
    want, known = decision.want, decision.want.recorded
    inputs = inputs_of(want, decisions)
    decision.problems += inputs.gone
    decision.details = {"sql": want.sql}
    if known is None:
        _view_comes(decision, found)
        return
    decision.reasons += own_reasons(want, known, tools)
    if relation(known.kind) is not LiveKind.VIEW:
        decision.how = Verb.CREATE
        decision.effects = becomes(want, known)
    elif found.origin is None:
        decision.how = Verb.CREATE
        decision.reasons += found.drift
        decision.effects = becomes(want, known)
    else:
        decision.how = _how(decision, found, known, inputs, policies)
        decision.effects = _EVERY if found.rewrite_text else _effects(decision, known, inputs)


def _view_comes(decision: Decision, found: Found) -> None:
    if found.adopted:
        decision.how = Verb.ADOPT
        decision.reasons.append("as declared; takes our marker")
    elif found.origin is not None:
        decision.how = Verb.REPLACE
        decision.reasons.append(found.origin.note or "")
    else:
        decision.how = Verb.CREATE
        decision.reasons.append("new")


def _how(decision: Decision, found: Found, known: RecordedObject, inputs: Inputs, policies: Policies) -> Verb | None:
    said = {*decision.reasons}
    if found.adopted:
        decision.reasons.append("takes our marker")
        return Verb.ADOPT
    if METADATA in said:
        decision.words += metadata_words(decision.want, known)
        decision.details |= metadata_details(decision.want, known)
    decision.input_reasons = inputs.shape
    decision.reasons += inputs.shape.values()
    if found.rewrite_text and found.origin is not None:
        decision.reasons.append(found.origin.note or "")
        return Verb.REPLACE
    if said & _NEW_TEXT:
        return Verb.REPLACE
    if policies.force is not None and decision.want.protect is None:
        decision.reasons.append("forced")
        return Verb.REBIND
    if inputs.shape:
        return Verb.REBIND
    return Verb.METADATA if METADATA in said else None


def _effects(decision: Decision, known: RecordedObject, inputs: Inputs) -> Effects:
    """A view passes on what it notices; where its columns' types are declared, it passes on what they say."""
    changed = bool({LOGIC, STAR} & {*decision.reasons})
    contents = EVERYTHING if changed or inputs.contents else NOTHING
    if not changed and CONTRACT not in decision.reasons and not inputs.shape:
        return Effects(contents=contents) if contents else NO_EFFECTS
    effects = becomes(decision.want, known, contents)
    if inputs.shape and not effects.shape:
        return Effects(EVERYTHING, contents)
    return effects


_CONTINUES = {
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
class _Chosen:
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
    choices: dict[UUID, _Chosen] = field(default_factory=dict)
    blocked: dict[UUID, tuple[str, str]] = field(default_factory=dict)


def _decide_sink(decision: Decision, decisions: Decisions, tools: Tools, *, unfinished: bool) -> None:
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
    decision.reasons += own_reasons(want, known, tools)
    if known.kind is not Kind.SINK:
        decision.how = Verb.CREATE
    elif [each for each in decision.reasons if not each.startswith("renamed from")]:
        decision.how = Verb.METADATA
        decision.words += metadata_words(want, known)
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
    if how in _CONTINUES and not source.leaves:
        reason = _CONTINUES[how].replace("cursor", f"cursor {cursor}" if cursor is not None else "cursor", 1)
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
    found.choices[state.uuid] = _Chosen(state.name, choice, why, since)
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


_GENERATED = "rfr.generated"
"""Property of a table whose rows list the declared ``objects``: it is filled anew when those become others."""


class Decider:
    """Decides about every object, one after the other.

    :param leaving: ids of objects that give up their names
    :param removed: what is removed, by its compared name
    :param downgrade: why an older version may not change anything; None: it is no older one
    """

    def __init__(
        self,
        wanted: Wanted,
        recorded: Recorded,
        live: Live,
        policies: Policies,
        tools: Tools,
        *,
        leaving: Container[UUID],
        downgrade: str | None,
    ) -> None:
        self._wanted = wanted
        self._live = live
        self._policies = policies
        self._tools = tools
        self._leaving = leaving
        self._downgrade = downgrade
        self._old_names = {each.key: each for each in recorded.objects}
        self._user_views = {each.key: each for each in live.user_views}
        self._recorded = recorded
        self._decisions: dict[UUID, Decision] = {}

    def decide(self) -> dict[UUID, Decision]:
        """All decisions, what is read before its readers."""
        for want in self._wanted.wants.values():
            self._decisions[want.uuid] = self._one(want)
        return self._decisions

    def _one(self, want: Want) -> Decision:
        decision = Decision(want, problems=list(self._wanted.problems.get(want.uuid, ())))
        found = find(want, self._policies, self._leaving, self._live.unfinished)
        decision.drift = found.drift
        decision.problems += found.conflicts
        if want.kind is Kind.SINK:
            _decide_sink(decision, self._decisions, self._tools, unfinished=want.uuid in self._live.unfinished)
        elif want.kind in STORED:
            _decide_stored(decision, found, self._decisions, self._policies, self._tools)
        else:
            _decide_view(decision, found, self._decisions, self._policies, self._tools)
        if "load_anew" not in decision.details and self._is_done(want):
            decision.nothing_left()
        if want.kind in STORED:
            self._generate(decision)
        self._leave(decision, want)
        self._rename(decision, want, found)
        self._check_name(decision, want)
        decision.problems += self._lost_names(want)
        self._refuse_downgrade(decision, want)
        return decision

    def _leave(self, decision: Decision, want: Want) -> None:
        """What holds an object of another kind leaves its name before the object comes; it has to be unprotected."""
        known, there = want.recorded, want.live
        decision.leaves = False
        if known is None or there is None or there.marker != want.uuid or decision.how is not Verb.CREATE:
            return
        if there.kind is not relation(want.kind):
            decision.leaves = there.key in (known.key, want.key)
        elif there.key == want.key:
            decision.how = Verb.REPLACE if there.kind is LiveKind.VIEW else Verb.METADATA
        if decision.leaves and want.protect is not None and known.kind in STORED:
            decision.problems.append(f"protected: {want.protect}; it can't become a {want.kind.value}")

    def _is_done(self, want: Want) -> bool:
        """Whether a deploy that did not finish has brought it to what is wanted, of inputs as they are and stay."""
        live = want.live
        if live is None or DONE not in live.properties or want.uuid not in self._live.unfinished:
            return False
        read = {each.uuid: self._decisions[each.uuid] for each in want.reads if each.uuid in self._decisions}
        if any(each.touched for each in read.values()):
            return False
        steps = ("" if each.want.live is None else each.want.live.properties.get(STEP, "") for each in read.values())
        inputs = zip(read, steps, strict=True)
        return live.properties[DONE] == done_mark(self._recorded.revision, want.fingerprints, want.sql, inputs)

    def _rename(self, decision: Decision, want: Want, found: Found) -> None:
        known, live = want.recorded, want.live
        if known is None or relation(want.kind) is None:
            if known is not None and known.key != want.key:
                decision.how = decision.how or Verb.METADATA
            return
        if live is None or live.marker != want.uuid or decision.how is Verb.CREATE:
            return
        by_hand = live.key not in (known.key, want.key) and found.drift and self._policies.drift == "fail"
        decision.renamed = live.key != want.key and not by_hand
        if not decision.renamed:
            decision.how = decision.how or (Verb.METADATA if known.key != want.key and not decision.done else None)

    def _check_name(self, decision: Decision, want: Want) -> None:
        if want.recorded is None or not (decision.renamed or decision.how is Verb.CREATE):
            return
        there = self._live.objects.get(want.key) if relation(want.kind) is not None else None
        if there is None or there.marker == want.uuid:
            return
        if there.marker is None or there.marker not in self._leaving:
            decision.problems.append(f"the name of {want.obj.name} is taken: {whose(there, want.uuid)}")

    def _lost_names(self, want: Want) -> Iterable[str]:
        if relation(want.kind) is not None and want.key in self._user_views and want.live is None:
            view = self._user_views[want.key]
            yield f"the name of the {want.kind.value} {want.obj.name} is taken by the view {view.name} of somebody else"
        for each in want.reads:
            old = self._old_names.get(each.name)
            if each.uuid is not None or old is None:
                continue
            now = self._wanted.wants.get(old.uuid)
            if now is not None:
                yield f"reads {old.name}, which is called {now.obj.name} now"
            elif old.uuid not in self._wanted.kept:
                yield f"reads {old.name}, which is no longer declared"

    def _generate(self, decision: Decision) -> None:
        """A list of the declared objects is filled anew when there are others; nobody has to think of it."""
        if decision.want.obj.properties.get(_GENERATED) != "objects" or not self._listed:
            return
        if decision.how in (None, Verb.METADATA, Verb.EVOLVE):
            decision.how = Verb.RECOMPUTE
        decision.details = {**decision.details, "generated": "objects"}
        more = f" and {len(self._listed) - 3} more" if len(self._listed) > 3 else ""
        decision.reasons.append(f"lists the objects: {', '.join(self._listed[:3])}{more}")
        decision.effects = Effects(decision.effects.shape, EVERYTHING, decision.effects.gone)

    @cached_property
    def _listed(self) -> list[str]:
        return list(_listed(self._wanted, self._recorded))

    def _refuse_downgrade(self, decision: Decision, want: Want) -> None:
        known = want.recorded
        if decision.instructed or not decision.touched:
            return
        if self._downgrade is not None:
            if (CONTRACT in decision.reasons and want.kind not in QUERIED) or not self._policies.allow_downgrade:
                decision.problems.insert(0, self._downgrade)
                decision.paste = None
        elif known is not None and CONTRACT in decision.reasons and want.kind in STORED and decision.paste is not None:
            ours, theirs = want.fingerprints.contract.digest, known.fingerprints.contract.digest
            if instructions.lead_back(want.obj.migrations, theirs, ours):
                decision.problems.append("downgrade not supported: what is recorded comes after what is declared")


def _listed(wanted: Wanted, recorded: Recorded) -> Iterable[str]:
    """Objects that come, go, or are called something else."""
    known: dict[UUID, RecordedObject] = recorded.by_uuid
    for want in sorted(wanted.wants.values(), key=lambda each: each.key):
        before = known.get(want.uuid)
        if before is None:
            yield f"+ {want.obj.name}"
        elif before.key != want.key or before.kind is not want.kind:
            yield f"~ {want.obj.name}"
    for each in sorted(recorded.objects, key=lambda each: each.key):
        if each.uuid not in wanted.wants and each.uuid not in wanted.kept:
            yield f"- {each.name}"
