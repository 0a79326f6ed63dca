"""The decision about each object: what a deploy does to it, from its own changes and those of what it reads."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredObject, relation
from airflow_provider_rfr.builtins.planning._decision import Decision, Inputs, States, inputs_of, record_of
from airflow_provider_rfr.builtins.planning._exports import decide_sink
from airflow_provider_rfr.builtins.planning._origin import Origin, find, whose
from airflow_provider_rfr.builtins.planning._table import decide_table
from airflow_provider_rfr.builtins.planning.columns import EVERYTHING, NO_EFFECTS, NOTHING, Effects
from airflow_provider_rfr.builtins.planning.plan import Action
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, Kind
from airflow_provider_rfr.builtins.state import DONE, STEP, LiveKind, done_mark

_OLD_TEXT = frozenset({Why.KIND_CHANGED, Why.RENAMED, Why.METADATA_CHANGED})
"""Differences after which a view keeps its text."""


def _decide_view(decision: Decision, origin: Origin, inputs: Inputs) -> None:
    desired, known = decision.desired, decision.desired.recorded
    decision.details = {"sql": desired.sql}
    was_view = known is None or relation(known.kind) is LiveKind.VIEW
    if not origin.there or not was_view:
        decision.how = Action.CREATE
        decision.reasons += (because(Why.NEW),) if known is None else origin.drift if was_view else ()
        decision.effects = decision.becomes() if known is not None else decision.effects
        return
    if known is not None:
        decision.effects = _view_effects(decision, origin, inputs)
    if origin.adopted:
        decision.how = Action.ADOPT
        decision.reasons.append(because(Why.ADOPTED if known is None else Why.MARKED))
        return
    if known is not None:
        decision.note_metadata()
        decision.input_reasons = inputs.shape
        decision.reasons += inputs.shape.values()
    if known is None or origin.rewrite_text:
        decision.how = Action.REPLACE
        decision.reasons += [origin.note] if origin.note is not None else []
    elif decision.differences.keys() - _OLD_TEXT:
        decision.how = Action.REPLACE
    elif inputs.shape:
        decision.how = Action.REBIND
    elif Why.METADATA_CHANGED in decision.differences:
        decision.how = Action.METADATA


def _view_effects(decision: Decision, origin: Origin, inputs: Inputs) -> Effects:
    """A view passes on the changes of its inputs; where it declares its columns, it passes on their changes."""
    changed = bool({Why.QUERY_CHANGED, Why.STAR_CHANGED} & decision.differences.keys())
    contents = EVERYTHING if changed or inputs.contents else NOTHING
    if origin.rewrite_text:
        return replace(decision.becomes(EVERYTHING), shape=EVERYTHING)
    if not changed and Why.COLUMNS_CHANGED not in decision.differences and not inputs.shape:
        return Effects(contents=contents) if contents else NO_EFFECTS
    effects = decision.becomes(contents)
    return Effects(EVERYTHING, contents) if inputs.shape and not effects.shape else effects


_LIST = "rfr_system.builtin_objects"
"""The package's own table whose rows list the declared objects; it is filled again when these change."""


class Decider:
    """Decides about every object, one after the other.

    :param leaving: ids of objects that give up their names
    """

    def __init__(self, states: States, leaving: Container[UUID | None]) -> None:
        self._states, self._leaving = states, leaving
        self._recorded, self._live, self._wanted = states.recorded, states.live, states.wanted
        self._decisions: dict[UUID, Decision] = {}
        self._old_names = {each.key: each for each in states.recorded.objects}
        self._user_views = {each.key: each for each in states.live.user_views}

    def decide(self) -> dict[UUID, Decision]:
        """All decisions, what is read before its readers."""
        for desired in self._wanted.objects.values():
            self._decisions[desired.uuid] = self._decided(desired)
        return self._decisions

    def _decided(self, desired: DesiredObject) -> Decision:
        origin = find(desired, self._states, self._leaving)
        inputs = inputs_of(desired, self._decisions)
        problems = [*self._wanted.problems.get(desired.uuid, ()), *origin.conflicts, *inputs.gone]
        decision = Decision(desired, drift=origin.drift, problems=problems)
        decision.note_differences()
        if desired.kind is Kind.SINK:
            source = self._decisions.get(desired.reads[0].uuid) if desired.reads[0].uuid is not None else None
            decide_sink(decision, source, unfinished=desired.uuid in self._live.unfinished)
        elif desired.kind in STORED:
            decide_table(decision, origin, inputs, self._states)
        else:
            _decide_view(decision, origin, inputs)
        if "load_anew" not in decision.details and self._is_done(desired):
            decision.nothing_left()
        if desired.key == _LIST and desired.kind in STORED:
            self._list_objects(decision)
        self._leave(decision)
        self._rename(decision)
        decision.problems += self._name_problems(decision)
        if self._states.downgrade is not None and decision.touched:
            decision.problems.insert(0, self._states.downgrade)
            decision.paste = []
        return decision

    def _leave(self, decision: Decision) -> None:
        """What holds an object of another kind leaves its name before the object comes; its rows go with it."""
        desired, known, there = decision.desired, decision.desired.recorded, decision.desired.live
        if known is None or there is None or there.marker != desired.uuid or decision.how is not Action.CREATE:
            return
        if there.kind is not relation(desired.kind):
            decision.leaves = there.key in (known.key, desired.key)
        elif there.key == desired.key:
            decision.how = Action.REPLACE if there.kind is LiveKind.VIEW else Action.METADATA
        if decision.leaves and known.kind in STORED and known.keep is not False:
            decision.lose({known.name: "all rows"}, self._states.accepted)

    def _is_done(self, desired: DesiredObject) -> bool:
        """Whether an unfinished deploy has brought it to the desired state, from inputs that do not change."""
        live = desired.live
        if live is None or DONE not in live.properties or desired.uuid not in self._live.unfinished:
            return False
        read = [self._decisions[each.uuid] for each in desired.reads if each.uuid in self._decisions]
        if any(each.touched for each in read):
            return False
        held = ((each.desired.uuid, each.desired.live) for each in read)
        inputs = [(identity, there.properties.get(STEP, "") if there is not None else "") for identity, there in held]
        return live.properties[DONE] == done_mark(self._recorded.revision, record_of(desired, 0), inputs)

    def _rename(self, decision: Decision) -> None:
        desired, known, live = decision.desired, decision.desired.recorded, decision.desired.live
        if known is not None and relation(desired.kind) is not None:
            if live is None or live.marker != desired.uuid or decision.how is Action.CREATE:
                return
            by_hand = live.key not in (known.key, desired.key) and decision.drift
            decision.renamed = live.key != desired.key and not (by_hand and self._states.policies.drift == "fail")
        if known is not None and known.key != desired.key and not decision.renamed and not decision.done:
            decision.how = decision.how or Action.METADATA

    def _name_problems(self, decision: Decision) -> Iterator[Reason]:
        """Its own name is taken, or a name that it reads is not there any more."""
        desired, kind = decision.desired, decision.desired.kind.value
        if relation(desired.kind) is not None:
            there = self._live.objects.get(desired.key)
            takes_name = desired.recorded is not None and (decision.renamed or decision.how is Action.CREATE)
            if takes_name and there is not None and there.marker not in self._leaving and there.marker != desired.uuid:
                yield because(Why.NAME_TAKEN, kind, desired.obj.name, whose(there, desired.uuid))
            if desired.key in self._user_views and desired.live is None:
                yield because(Why.NAME_OF_USER_VIEW, kind, desired.obj.name, self._user_views[desired.key].name)
        for each in desired.reads:
            old = self._old_names.get(each.name)
            if each.uuid is not None or old is None:
                continue
            now = self._wanted.objects.get(old.uuid)
            if now is not None:
                yield because(Why.READS_RENAMED, old.name, now.obj.name)
            elif old.uuid not in self._wanted.kept:
                yield because(Why.READS_NOT_DECLARED, old.name)

    def _list_objects(self, decision: Decision) -> None:
        """Fill the list of the declared objects again when one comes, goes, or is called something else."""
        known = [each for each in self._recorded.objects if each.uuid not in self._wanted.kept]
        before = {(each.uuid, each.key, each.kind): f"- {each.name}" for each in known}
        now = {(each.uuid, each.key, each.kind): f"+ {each.obj.name}" for each in self._wanted.objects.values()}
        found = sorted({**now, **before}[each] for each in now.keys() ^ before.keys())
        if not found:
            return
        if decision.how in (None, Action.METADATA, Action.EVOLVE):
            decision.how = Action.RECOMPUTE
        decision.details = {**decision.details, "lists_objects": True}
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        decision.reasons.append(because(Why.LISTS_OBJECTS, f"{', '.join(found[:3])}{more}"))
        decision.effects |= Effects(contents=EVERYTHING)
