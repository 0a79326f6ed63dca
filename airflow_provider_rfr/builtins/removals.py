"""Removals and drops and their order; and renames.

Objects that leave are ordered by the reads in the registry, readers first. Objects that come are ordered by the present
reads, inputs first, because the direction of a dependency may have changed. Objects that are removed for good wait
until the end, unless another object needs their name.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from airflow_provider_rfr.builtins.decide import Decision, Decisions
from airflow_provider_rfr.builtins.desired import (
    DesiredObject,
    definition_of,
    in_order,
    readers_of,
    relation,
    same_query,
)
from airflow_provider_rfr.builtins.drift import States, whose
from airflow_provider_rfr.builtins.model import STORED, ActualState, Kind, LiveObject, RecordedObject, retired_by
from airflow_provider_rfr.builtins.plan import PlanFinding, PlanStep, Reason, StepAction, Why, because


class Removals:
    """The objects that are removed for good, and the order of the steps by which objects leave.

    :ivar forgotten: by id, whether it is in the catalog or not
    :ivar steps: of what is in the catalog, by id; ``sinks`` are not in it
    :ivar leftovers: what an unfinished deploy left in the catalog that belongs to nothing, views first
    """

    def __init__(self, states: States) -> None:
        self._states, recorded, live = states, states.recorded, states.live
        self.forgotten: dict[UUID, RecordedObject] = {}
        self.steps: dict[UUID, PlanStep] = {}
        self.sinks: list[PlanStep] = []
        self.leftovers: list[PlanStep] = []
        self.blocked: list[PlanFinding] = []
        declared = states.wanted.objects
        ours = recorded.by_uuid.keys() | declared.keys()
        known_ids = ours | live.unfinished
        self._exports = [sink for sink in recorded.sinks if sink.uuid in declared or sink.uuid not in known_ids]
        for known in sorted(recorded.objects, key=lambda obj: obj.key):
            if known.uuid not in declared and known.uuid not in states.wanted.untouched:
                self._decide(known, _there(known, live, known_ids))
        if not self.blocked:
            why = (because(Why.UNFINISHED),)
            begun = (sink for sink in recorded.sinks if sink.uuid in live.unfinished and sink.uuid not in ours)
            self.sinks += [PlanStep(sink.uuid, sink.name, Kind.SINK, StepAction.REMOVE, why) for sink in begun]
            for identity, leftover in self._left():
                step = PlanStep(identity, leftover.name, leftover.kind, StepAction.REMOVE, why)
                self.leftovers.append(self._gone(step, leftover, {}))

    def _decide(self, known: RecordedObject, live: LiveObject | None) -> None:
        """Decide about an object that is recorded and no longer declared."""
        if self._states.downgrade is not None:
            problems, paste = [self._states.downgrade], tuple[str, ...]()
        else:
            problems, paste = _against(known, self._states)
            if live is not None and live.marker != known.uuid:
                problems.append(because(Why.NOT_REMOVED, whose(live, known.uuid), known.name))
            problems += [because(Why.EXPORTED, export.name) for export in self._exports if export.source == known.uuid]
        if problems:
            self.blocked.append(PlanFinding(known.name, known.kind, tuple(problems), known.uuid, paste=paste))
            return
        self.forgotten[known.uuid] = known
        name, why = known.name if live is None else live.name, (because(Why.REMOVED),)
        step = PlanStep(known.uuid, name, known.kind, StepAction.REMOVE, why)
        if known.kind is Kind.SINK:
            self.sinks.append(step)
        elif live is not None:
            losses = {known.name: "all rows"} if known.kind in STORED and known.keep is not False else {}
            self.steps[known.uuid] = self._gone(step, live, losses)

    def _left(self) -> list[tuple[UUID, LiveObject]]:
        """Return the objects that an unfinished deploy created and that now belong to nothing.

        Only the journal counts: an object with nothing but a marker may belong to another registry.
        """
        live, wanted = self._states.live, self._states.wanted.objects.values()
        used = {(desired.uuid, desired.live.key) for desired in wanted if desired.live is not None}
        used |= {(identity, step.name.casefold()) for identity, step in self.steps.items()}
        created = ((identity, obj) for identity in live.unfinished for obj in live.by_marker.get(identity, ()))
        left = [
            (identity, obj)
            for identity, obj in created
            if retired_by(obj.name) is None and (identity, obj.key) not in used
        ]
        # What leftovers read is not recorded; views may read tables.
        return sorted(left, key=lambda pair: (pair[1].kind is Kind.TABLE, pair[1].key))

    def _gone(self, step: PlanStep, live: LiveObject, losses: Mapping[str, str]) -> PlanStep:
        """Return the step with its details: it retires a table, which is collected later, or drops a view."""
        details = {"keep_days": self._states.policies.keep_days} if step.kind in STORED else {}
        return replace(step, details=details, losses=losses, rows=live.rows, bytes=live.bytes)

    def leaving(self, decisions: Decisions) -> tuple[list[PlanStep], list[PlanStep]]:
        """Return the steps by which objects leave: first those before, then those after all other steps on objects."""
        needed = {
            decision.desired.key
            for decision in decisions.values()
            if decision.how is StepAction.CREATE or decision.renamed
        }
        drops = {identity: self._drop(decision) for identity, decision in decisions.items() if decision.leaves}
        steps = drops | self.steps
        early = {identity for identity, step in steps.items() if identity in drops or step.name.casefold() in needed}
        recorded = self._states.recorded
        reads = {obj.uuid: [dep.uuid for dep in obj.deps if dep.uuid] for obj in recorded.objects}
        order = in_order(reads, lambda identity: (recorded.by_uuid[identity].key, identity))[::-1]
        # A removed reader of something that leaves early leaves before it.
        early |= steps.keys() & readers_of(early, reversed(order), reads)
        first = [leftover for leftover in self.leftovers if leftover.name.casefold() in needed]
        last = [leftover for leftover in self.leftovers if leftover not in first]
        first += [steps[identity] for identity in order if identity in early]
        return first, [*(steps[identity] for identity in order if identity in steps and identity not in early), *last]

    def _drop(self, decision: Decision) -> PlanStep:
        """Return the step that drops an object's table or view, before the object is created as another kind."""
        record, live = decision.desired.recorded, decision.desired.live
        assert record is not None
        assert live is not None
        # An unfinished deploy may have made something else of it than what is recorded.
        kind = record.kind if relation(record.kind) is live.kind else live.kind
        reasons = tuple(dict.fromkeys(decision.reasons)) or (because(Why.UNFINISHED),)
        return self._gone(PlanStep(record.uuid, live.name, kind, StepAction.DROP, reasons), live, decision.losses)


def _there(known: RecordedObject, live: ActualState, known_ids: Container[UUID]) -> LiveObject | None:
    """Return the table or view that holds the object, also under the new name that an unfinished deploy gave it."""
    was, named = relation(known.kind), live.objects.get(known.key)
    if was and named and (named.marker in (None, known.uuid) or named.marker not in known_ids):
        return named
    ours = [obj for obj in live.by_marker.get(known.uuid, ()) if obj.kind is was and retired_by(obj.name) is None]
    return ours[0] if len(ours) == 1 else None


def _against(known: RecordedObject, states: States) -> tuple[list[Reason], tuple[str, ...]]:
    """Return the reasons that stop the removal, and YAML that resolves them.

    The YAML is the object's id where there may be a new name, else the document that permits the removal.
    """
    if known.keep is False or (known.keep is True and known.key in states.accepted):
        return [], ()
    lost = f"all rows of {known.name}" if known.kind in STORED else f"the {known.kind.value} {known.name}"
    kept = isinstance(known.keep, str)
    why = because(Why.KEPT, lost, known.keep) if kept else because(Why.WOULD_LOSE, lost, known.name, known.name)
    coming = (desired for desired in states.wanted.objects.values() if desired.recorded is None)
    like = [desired.obj.name for desired in coming if _is_like(known, desired)]
    ids = tuple(f"id: {known.uuid}  # in {name}, if that is its new name" for name in like)
    document = () if kept else (f"{{kind: removed, name: {known.name}}}",)
    return [why, *(because(Why.MAYBE_RENAMED_OBJECT, name, known.uuid) for name in like)], ids or document


def _is_like(known: RecordedObject, desired: DesiredObject) -> bool:
    """Tell whether the new object may be the known one under another name: half of the columns are the same."""
    if known.kind is not desired.kind:
        return False
    before, now = (
        {(column.name.casefold(), column.type) for column in columns}
        for columns in (known.columns, desired.obj.columns)
    )
    if before or now:
        return 2 * len(before & now) >= max(len(before), len(now))
    return same_query(known.raw_sql, desired.obj.query) and known.definition == definition_of(desired.obj)


def renames(decisions: Iterable[Decision]) -> Iterator[PlanStep]:
    """Yield renames in an order in which each new name is free; a cycle of names uses an intermediate name."""
    waiting = {
        decision.desired.live.key: (decision.desired, decision.desired.live.name)
        for decision in sorted(decisions, key=lambda decision: decision.desired.key)
        if decision.renamed and decision.desired.live is not None
    }
    while waiting:
        key = next((key for key, (desired, _) in waiting.items() if desired.key not in waiting), None)
        desired, name = waiting.pop(min(waiting) if key is None else key)
        to = desired.obj.name
        if key is None:
            to = f"{name}__r{desired.uuid.hex[:8]}"
            waiting[to.casefold()] = desired, to
        yield PlanStep(
            desired.uuid, name, desired.kind, StepAction.RENAME, (because(Why.DECLARED_NAME),), details={"to": to}
        )
