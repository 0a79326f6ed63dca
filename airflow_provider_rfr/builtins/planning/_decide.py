"""The decision about each object: what a deploy does to it, from its own changes and those of what it reads.

Objects are decided in the order of their reads, so that every input is decided before its readers.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from uuid import UUID

from airflow_provider_rfr.builtins.desired import DesiredObject, DesiredState, relation
from airflow_provider_rfr.builtins.planning._decision import (
    Accepted,
    Decision,
    Difference,
    Inputs,
    becomes,
    inputs_of,
)
from airflow_provider_rfr.builtins.planning._exports import decide_sink
from airflow_provider_rfr.builtins.planning._origin import Found, find, whose
from airflow_provider_rfr.builtins.planning._table import decide_table
from airflow_provider_rfr.builtins.planning.columns import EVERYTHING, NO_EFFECTS, NOTHING, Effects
from airflow_provider_rfr.builtins.planning.plan import Action, Policies
from airflow_provider_rfr.builtins.reasons import Reason, Why, because
from airflow_provider_rfr.builtins.spec import STORED, Kind
from airflow_provider_rfr.builtins.state import (
    DONE,
    STEP,
    ActualState,
    LiveKind,
    RecordedObject,
    RegistryState,
    done_mark,
)

_NEW_TEXT = frozenset(Difference) - {Difference.KIND, Difference.NAME, Difference.METADATA}
"""Differences after which a view is defined again."""


def _decide_view(decision: Decision, found: Found, inputs: Inputs) -> None:
    """Decide about a view. Views hold no rows, so they need no instruction; what counts is what they read."""
    desired, known, origin = decision.desired, decision.desired.recorded, found.origin
    decision.details = {"sql": desired.sql}
    was_view = known is not None and relation(known.kind) is LiveKind.VIEW
    if origin is None or (known is not None and not was_view):
        decision.how = Action.CREATE
        decision.reasons += (because(Why.NEW),) if known is None else found.drift if was_view else ()
        if known is not None:
            decision.effects = becomes(desired, known)
        return
    if found.adopted:
        decision.how = Action.ADOPT
        decision.reasons.append(because(Why.ADOPTED if known is None else Why.MARKED))
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
    if origin.note is not None and not found.adopted and (known is None or found.rewrite_text):
        decision.reasons.append(origin.note)
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
        accepted: Accepted,
        leaving: Container[UUID],
        downgrade: Reason | None,
    ) -> None:
        self._desired_state = desired_state
        self._live = live
        self._policies = policies
        self._accepted = accepted
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
                source = self._decisions.get(desired.reads[0].uuid) if desired.reads[0].uuid is not None else None
                decide_sink(decision, source, unfinished=desired.uuid in self._live.unfinished)
            elif desired.kind in STORED:
                decide_table(decision, found, inputs, self._policies, self._accepted)
            else:
                _decide_view(decision, found, inputs)
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
        """What holds an object of another kind leaves its name before the object comes; its rows go with it."""
        desired, known, there = decision.desired, decision.desired.recorded, decision.desired.live
        if known is None or there is None or there.marker != desired.uuid or decision.how is not Action.CREATE:
            return
        if there.kind is not relation(desired.kind):
            decision.leaves = there.key in (known.key, desired.key)
        elif there.key == desired.key:
            decision.how = Action.REPLACE if there.kind is LiveKind.VIEW else Action.METADATA
        if decision.leaves and known.kind in STORED and known.keep is not False:
            decision.lose({known.name: "all rows"}, self._accepted)

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

    def _name_problems(self, decision: Decision) -> Iterator[Reason]:
        """Its own name is taken, or a name that it reads is not there any more."""
        desired = decision.desired
        there = self._live.objects.get(desired.key) if relation(desired.kind) is not None else None
        takes_name = desired.recorded is not None and (decision.renamed or decision.how is Action.CREATE)
        stays = there is not None and (there.marker is None or there.marker not in self._leaving)
        if takes_name and there is not None and stays and there.marker != desired.uuid:
            yield because(Why.NAME_TAKEN, desired.kind.value, desired.obj.name, whose(there, desired.uuid))
        if relation(desired.kind) is not None and desired.key in self._user_views and desired.live is None:
            view = self._user_views[desired.key]
            yield because(Why.NAME_OF_USER_VIEW, desired.kind.value, desired.obj.name, view.name)
        for each in desired.reads:
            old = self._old_names.get(each.name)
            if each.uuid is not None or old is None:
                continue
            now = self._desired_state.objects.get(old.uuid)
            if now is not None:
                yield because(Why.READS_RENAMED, old.name, now.obj.name)
            elif old.uuid not in self._desired_state.kept:
                yield because(Why.READS_NOT_DECLARED, old.name)

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
        decision.reasons.append(because(Why.LISTS_OBJECTS, f"{', '.join(found[:3])}{more}"))
        decision.effects = Effects(decision.effects.shape, EVERYTHING, decision.effects.gone)

    def _refuse_downgrade(self, decision: Decision) -> None:
        if self._downgrade is not None and decision.touched:
            decision.problems.insert(0, self._downgrade)
            decision.paste = []
