"""The decision about each object: what a deploy does to it, from its own changes and those of what it reads.

Objects are decided in the order of their reads, so that every input is decided before its readers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredObject, DesiredState, relation
from airflow_provider_rfr.builtins.planning import instructions
from airflow_provider_rfr.builtins.planning._decision import (
    Decision,
    Decisions,
    Difference,
    Inputs,
    becomes,
    inputs_of,
    metadata_words,
)
from airflow_provider_rfr.builtins.planning._drift import Found, Origin, find, is_unfinished, whose
from airflow_provider_rfr.builtins.planning._mechanisms import Choice, Chooser
from airflow_provider_rfr.builtins.planning.diff import (
    EVERYTHING,
    NEEDS_VALUES,
    NO_EFFECTS,
    NOTHING,
    ColumnSet,
    Effects,
    gone_of,
    shape_of,
)
from airflow_provider_rfr.builtins.planning.plan import SINKS, Action, Blocked, Dependent, Load, Policies, Step
from airflow_provider_rfr.builtins.spec import STORED, Contents, Kind, Strategy
from airflow_provider_rfr.builtins.state import (
    DONE,
    STEP,
    ActualState,
    LiveKind,
    RecordedObject,
    RegistryState,
    SinkState,
    done_mark,
)

_LOSES_ROWS = "all rows (they were history, and become a query's result)"
_ADOPTED = "as declared; takes our marker"


def _decide_stored(decision: Decision, found: Found, inputs: Inputs, policies: Policies) -> None:
    """Decide about an object with a table behind it."""
    desired, known = decision.desired, decision.desired.recorded
    # A deploy that did not finish may have made the table already.
    is_table = desired.live is not None and desired.live.kind is LiveKind.TABLE and desired.live.marker == desired.uuid
    was_no_table = known is not None and relation(known.kind) is not LiveKind.TABLE and not is_table
    if found.origin is not None and not was_no_table:
        _decide_table_change(decision, found, found.origin, inputs, policies)
        return
    decision.how = Action.CREATE
    if desired.sql is not None:
        decision.details["sql"] = desired.sql
    if known is None:
        decision.reasons.append("new")
        return
    if not was_no_table:
        decision.reasons += [each for each in found.drift if each not in decision.reasons]
    decision.effects = becomes(desired, known)


def _decide_load(decision: Decision) -> None:
    """Rows of a source come from a refresh: note why one has to run after the deploy."""
    known, live = decision.desired.recorded, decision.desired.live
    redefined = Difference.DEFINITION in decision.differences
    if redefined:
        decision.words.append("~ definition: the next refresh starts a new generation")
    if known is None or known.kind is not Kind.SOURCE or decision.how is Action.CREATE:
        why = Load.CREATED
    elif redefined:
        why = Load.REDEFINED
    elif decision.how is Action.REPLACE_EMPTY or (live is not None and not live.rows and is_unfinished(known, live)):
        # An earlier deploy may have emptied it, and died before it could ask for the refresh.
        why = Load.EMPTIED
    else:
        return
    if decision.how is None and decision.problems:
        return
    decision.details["load_anew"] = why.value
    if decision.how is None:
        decision.how = Action.METADATA


def _decide_table_change(decision: Decision, found: Found, origin: Origin, inputs: Inputs, policies: Policies) -> None:
    desired = decision.desired
    choice = Chooser(desired, origin, policies).choose()
    how = choice.how
    if desired.recorded is not None:
        how = _strategy(decision, choice, desired.recorded, policies)
    if desired.kind is Kind.MATERIALIZED_VIEW and how is not Strategy.REPLACE_EMPTY:
        decision.input_reasons = {**inputs.contents, **inputs.shape}
        decision.reasons += decision.input_reasons.values()
        new_query = {Difference.LOGIC, Difference.STAR} & decision.differences.keys()
        if decision.input_reasons or new_query or how is Strategy.REWRITE:
            how = Strategy.RECOMPUTE
    # An adopted manual change is kept: writing everything that is declared would revert it.
    if how is None and (policies.drift == "repair" if found.drift else origin.note is not None):
        how = Strategy.METADATA
    if found.adopted:
        how = Strategy.ADOPT
    _take(decision, choice, how, origin)
    if desired.recorded is not None and origin.note is not None and Difference.CONTRACT in decision.differences:
        # The table may be as declared already; its readers saw the recorded one, and the deploy died before them.
        decision.effects |= becomes(desired, desired.recorded)
    if how is not None and origin.note is not None:
        decision.reasons.append(origin.note)
    if found.adopted:
        decision.reasons.append(_ADOPTED)


def _strategy(decision: Decision, choice: Choice, known: RecordedObject, policies: Policies) -> Strategy | None:
    """The strategy for a recorded table: there may be more to do than its columns ask for."""
    desired = decision.desired
    beside_rows = {Difference.METADATA, Difference.CONSTRAINTS, Difference.CONTRACT, Difference.DEFINITION}
    decision.note_metadata()
    if desired.kind is Kind.MATERIALIZED_VIEW and known.kind is not Kind.MATERIALIZED_VIEW:
        if known.contents is not Contents.DERIVABLE:
            # Rows that nothing can make again would be overwritten by a query's result.
            decision.loses = (_LOSES_ROWS,)
            if desired.protect is not None:
                decision.problems.append(f"protected: {desired.protect}; refused, since {_LOSES_ROWS} would be lost")
            elif not policies.accepts_loss(desired.obj.name, desired.uuid):
                remedy = f"say accept_data_loss: {desired.obj.name} if that is meant"
                decision.problems.append(f"{_LOSES_ROWS} would be lost; {remedy}")
        return Strategy.RECOMPUTE
    if choice.how is None and (beside_rows & decision.differences.keys() or desired.kind is not known.kind):
        return Strategy.METADATA
    return choice.how


def _take(decision: Decision, choice: Choice, how: Strategy | None, origin: Origin) -> None:
    """Put the chosen strategy into the decision, with its effects on readers."""
    desired = decision.desired
    decision.how = None if how is None else Action(how.value)
    decision.words = [*choice.words, *decision.words]
    decision.details |= choice.details if how is not None else {}
    if how is Strategy.RECOMPUTE and desired.obj.query is not None:
        decision.details["sql"] = desired.sql
    decision.loses = (*decision.loses, *choice.loses)
    decision.problems += choice.problems
    decision.paste = choice.paste
    decision.instructed = choice.instructed
    decision.invents_values = any(each.what in NEEDS_VALUES for each in choice.changes)
    if how is None and not choice.changes:
        return
    contents = NOTHING
    if how in (Strategy.RECOMPUTE, Strategy.REPLACE_EMPTY):
        contents = EVERYTHING
    elif "expressions" in choice.details:
        contents = ColumnSet(frozenset(name.casefold() for name in choice.details["expressions"]))
    gone = gone_of(origin.columns, desired.obj.columns, choice.changes) if choice.changes else ()
    decision.effects = Effects(shape_of(choice.changes), contents, gone)


_NEW_TEXT = frozenset(Difference) - {Difference.KIND, Difference.NAME, Difference.METADATA}
"""Differences after which a view is defined again."""


def _decide_view(decision: Decision, found: Found, inputs: Inputs) -> None:
    """Decide about a view. Views hold no rows, so they need no instruction; what counts is what they read."""
    desired, known, origin = decision.desired, decision.desired.recorded, found.origin
    decision.details = {"sql": desired.sql}
    was_view = known is not None and relation(known.kind) is LiveKind.VIEW
    if origin is None or (known is not None and not was_view):
        decision.how = Action.CREATE
        decision.reasons += ("new",) if known is None else found.drift if was_view else ()
        if known is not None:
            decision.effects = becomes(desired, known)
        return
    if found.adopted:
        decision.how = Action.ADOPT
        decision.reasons.append(_ADOPTED if known is None else "takes our marker")
    elif known is not None:
        decision.note_metadata()
        decision.input_reasons = inputs.shape
        decision.reasons += inputs.shape.values()
        if found.rewrite_text or _NEW_TEXT & decision.differences.keys():
            decision.how = Action.REPLACE
        elif inputs.shape:
            decision.how = Action.REBIND
        elif Difference.METADATA in decision.differences:
            decision.how = Action.METADATA
    else:
        decision.how = Action.REPLACE
    if not found.adopted and (known is None or found.rewrite_text):
        decision.reasons.append(origin.note or "")
    if known is not None:
        every = Effects(EVERYTHING, EVERYTHING)
        decision.effects = every if found.rewrite_text else _view_effects(decision, known, inputs)


def _view_effects(decision: Decision, known: RecordedObject, inputs: Inputs) -> Effects:
    """A view passes on the changes of its inputs; where it declares its columns, it passes on their changes."""
    changed = bool({Difference.LOGIC, Difference.STAR} & decision.differences.keys())
    contents = EVERYTHING if changed or inputs.contents else NOTHING
    if not changed and Difference.CONTRACT not in decision.differences and not inputs.shape:
        return Effects(contents=contents) if contents else NO_EFFECTS
    effects = becomes(decision.desired, known, contents)
    if inputs.shape and not effects.shape:
        return Effects(EVERYTHING, contents)
    return effects


_CONTINUES = {
    Action.ADOPT: "cursor kept, no snapshot is made",
    Action.METADATA: "cursor kept, no snapshot is made",
    Action.EVOLVE: "cursor kept, no snapshot is made",
    Action.REWRITE: "cursor kept, migration snapshots skipped",
    Action.RECOMPUTE: "cursor kept, migration snapshots skipped; equal contents send nothing",
    Action.RENAME: "cursor kept, the object is the same one",
}
"""Why nothing is sent twice and nothing is left out."""
_WHAT = {
    "hold": "stops until it is released",
    "resume_from_new": "continues with rows that come from now on",
    "resend": "sends everything again, declared as duplicates",
}


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

    def note(self, state: SinkState, how: str, reason: str, user: bool) -> None:
        self.dependents.append(Dependent(state.source, state.name, Kind.SINK, how, reason, state.uuid, user))

    def choose(self, state: SinkState, why: str, user: bool, since: str | None = None) -> None:
        """Apply the policy to a sink whose rows are gone; without a policy, it stops the deploy.

        :param since: what it is decided about, if not this deploy's own doing: an unfinished deploy that emptied the
            source, or the id of the new source. A decision that was written down already is not taken once more
        """
        choice = self._policies.sinks.get(state.name.casefold()) or state.on_replace
        if choice not in SINKS:
            problem = f"{why}: say what becomes of the sink, by sinks: {{{state.name}: {' | '.join(SINKS)}}}"
            self.blocked[state.uuid] = Blocked(state.name, Kind.SINK, (problem,), state.uuid)
            self.note(state, "undecided", why, user)
            return
        details = {} if since is None else {"since": since}
        self.steps[state.uuid] = Step(0, state.uuid, state.name, Kind.SINK, Action(choice), why, (), details)
        self.note(state, choice, f"{_WHAT[choice]}, since {why}", user)


def _decide_sink(decision: Decision, *, unfinished: bool) -> None:
    """Decide about a declared sink by itself; what its source's change means for it follows in :func:`exports`.

    :param unfinished: a deploy that did not finish began to change it, so its row may not be as recorded
    """
    desired, known = decision.desired, decision.desired.recorded
    assert desired.obj.sink is not None
    decision.details = {"source": str(desired.reads[0].uuid or ""), "columns": list(desired.reads[0].columns or ())}
    if desired.reads[0].uuid is None:
        decision.problems.append(f"its source {desired.obj.sink.source} is not declared")
    if known is None:
        decision.how = Action.CREATE
        decision.reasons.append("new")
    elif known.kind is not Kind.SINK:
        decision.how = Action.CREATE
    elif decision.differences.keys() - {Difference.NAME}:
        decision.how = Action.METADATA
        decision.words += metadata_words(desired, known)
    elif unfinished:
        decision.how = Action.METADATA
        decision.reasons.append("a deploy that did not finish began to change it")


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
            found.choose(state, f"{name} was emptied by deploy {emptied}, which did not finish", user, emptied)
        elif how is not None and how in _CONTINUES and not source.leaves:
            cursor = by_uuid.get(state.uuid, state).cursor
            reason = _CONTINUES[how].replace("cursor", f"cursor {cursor}" if cursor is not None else "cursor", 1)
            found.note(state, "continue", reason, user)
        elif how is not None:
            found.choose(state, f"{name} is {'emptied' if how is Action.REPLACE_EMPTY else 'created again'}", user)
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
            found.choose(state, f"it exports {desired.obj.sink.source} now", False, str(now))


_LIST = "rfr_system.builtin_objects"
"""The package's own table whose rows list the declared objects; it is filled again when these change."""


class Decider:
    """Decides about every object, one after the other.

    :param leaving: ids of objects that give up their names
    :param downgrade: why an older version may not change anything; None: it is not older
    """

    def __init__(
        self,
        desired_state: DesiredState,
        recorded: RegistryState,
        live: ActualState,
        policies: Policies,
        *,
        leaving: Container[UUID],
        downgrade: str | None,
    ) -> None:
        self._desired_state = desired_state
        self._live = live
        self._policies = policies
        self._leaving = leaving
        self._downgrade = downgrade
        self._old_names = {each.key: each for each in recorded.objects}
        self._user_views = {each.key: each for each in live.user_views}
        self._recorded = recorded
        self._decisions: dict[UUID, Decision] = {}

    def decide(self) -> dict[UUID, Decision]:
        """All decisions, what is read before its readers."""
        for desired in self._desired_state.objects.values():
            decision = Decision(desired, problems=list(self._desired_state.problems.get(desired.uuid, ())))
            found = find(desired, self._policies, self._leaving, self._live.unfinished)
            decision.drift = found.drift
            decision.problems += found.conflicts
            inputs = inputs_of(desired, self._decisions)
            decision.problems += inputs.gone
            decision.note_differences()
            if desired.kind is Kind.SINK:
                _decide_sink(decision, unfinished=desired.uuid in self._live.unfinished)
            elif desired.kind in STORED:
                _decide_stored(decision, found, inputs, self._policies)
            else:
                _decide_view(decision, found, inputs)
            if desired.kind is Kind.SOURCE:
                _decide_load(decision)
            if "load_anew" not in decision.details and self._is_done(desired):
                decision.nothing_left()
            if desired.key == _LIST and desired.kind in STORED:
                self._list_objects(decision)
            self._leave(decision)
            self._rename(decision, found)
            decision.problems += self._name_problems(decision)
            self._refuse_downgrade(decision)
            self._decisions[desired.uuid] = decision
        return self._decisions

    def _leave(self, decision: Decision) -> None:
        """What holds an object of another kind leaves its name before the object comes; it has to be unprotected."""
        desired, known, there = decision.desired, decision.desired.recorded, decision.desired.live
        if known is None or there is None or there.marker != desired.uuid or decision.how is not Action.CREATE:
            return
        if there.kind is not relation(desired.kind):
            decision.leaves = there.key in (known.key, desired.key)
        elif there.key == desired.key:
            decision.how = Action.REPLACE if there.kind is LiveKind.VIEW else Action.METADATA
        if decision.leaves and desired.protect is not None and known.kind in STORED:
            decision.problems.append(f"protected: {desired.protect}; it can't become a {desired.kind.value}")

    def _is_done(self, desired: DesiredObject) -> bool:
        """Whether an unfinished deploy has brought it to the desired state, from inputs that do not change."""
        live = desired.live
        if live is None or DONE not in live.properties or desired.uuid not in self._live.unfinished:
            return False
        read = {each.uuid: self._decisions[each.uuid] for each in desired.reads if each.uuid in self._decisions}
        if any(each.touched for each in read.values()):
            return False
        steps = (
            "" if each.desired.live is None else each.desired.live.properties.get(STEP, "") for each in read.values()
        )
        inputs = zip(read, steps, strict=True)
        return live.properties[DONE] == done_mark(self._recorded.revision, desired.fingerprints, desired.sql, inputs)

    def _rename(self, decision: Decision, found: Found) -> None:
        desired, known, live = decision.desired, decision.desired.recorded, decision.desired.live
        if known is None or relation(desired.kind) is None:
            if known is not None and known.key != desired.key:
                decision.how = decision.how or Action.METADATA
            return
        if live is None or live.marker != desired.uuid or decision.how is Action.CREATE:
            return
        by_hand = live.key not in (known.key, desired.key) and found.drift and self._policies.drift == "fail"
        decision.renamed = live.key != desired.key and not by_hand
        if not decision.renamed:
            decision.how = decision.how or (Action.METADATA if known.key != desired.key and not decision.done else None)

    def _name_problems(self, decision: Decision) -> Iterable[str]:
        """Its own name is taken, or a name that it reads is not there any more."""
        desired = decision.desired
        there = self._live.objects.get(desired.key) if relation(desired.kind) is not None else None
        takes_name = desired.recorded is not None and (decision.renamed or decision.how is Action.CREATE)
        stays = there is not None and (there.marker is None or there.marker not in self._leaving)
        if takes_name and there is not None and stays and there.marker != desired.uuid:
            yield f"the name of {desired.obj.name} is taken: {whose(there, desired.uuid)}"
        if relation(desired.kind) is not None and desired.key in self._user_views and desired.live is None:
            view = self._user_views[desired.key]
            yield f"the name of the {desired.kind.value} {desired.obj.name} is taken by the user view {view.name}"
        for each in desired.reads:
            old = self._old_names.get(each.name)
            if each.uuid is not None or old is None:
                continue
            now = self._desired_state.objects.get(old.uuid)
            if now is not None:
                yield f"reads {old.name}, which is called {now.obj.name} now"
            elif old.uuid not in self._desired_state.kept:
                yield f"reads {old.name}, which is no longer declared"

    def _list_objects(self, decision: Decision) -> None:
        """Fill the list of the declared objects again when one comes, goes, or is called something else."""
        found = []
        known, declared = self._recorded.by_uuid, self._desired_state
        for desired in sorted(declared.objects.values(), key=lambda each: each.key):
            before = known.get(desired.uuid)
            if before is None:
                found.append(f"+ {desired.obj.name}")
            elif before.key != desired.key or before.kind is not desired.kind:
                found.append(f"~ {desired.obj.name}")
        for each in sorted(self._recorded.objects, key=lambda each: each.key):
            if each.uuid not in declared.objects and each.uuid not in declared.kept:
                found.append(f"- {each.name}")
        if not found:
            return
        if decision.how in (None, Action.METADATA, Action.EVOLVE):
            decision.how = Action.RECOMPUTE
        decision.details = {**decision.details, "lists_objects": True}
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        decision.reasons.append(f"lists the objects: {', '.join(found[:3])}{more}")
        decision.effects = Effects(decision.effects.shape, EVERYTHING, decision.effects.gone)

    def _refuse_downgrade(self, decision: Decision) -> None:
        desired, known = decision.desired, decision.desired.recorded
        new_contract = Difference.CONTRACT in decision.differences
        if decision.instructed or not decision.touched:
            return
        if self._downgrade is not None:
            decision.problems.insert(0, self._downgrade)
            decision.paste = None
        elif known is not None and new_contract and desired.kind in STORED and decision.paste is not None:
            ours, theirs = desired.fingerprints.contract.digest, known.fingerprints.contract.digest
            # Instructions that lead from what is declared to what is recorded: older code is being deployed.
            if instructions.path(desired.obj.migrations, ours, theirs) is not None:
                decision.problems.append("downgrade not supported: what is recorded comes after what is declared")
