"""The planner: a pure function of declarations, registry and catalog that returns a plan with ordered steps.

Drops are ordered by the recorded dependencies, readers first. All other changes are ordered by the declared
dependencies, inputs first. One order for both is impossible, because the direction of a dependency may have changed.
Objects that are removed for good are dropped last, unless another object needs their name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final
from uuid import UUID

from airflow_provider_rfr.builtins.columns import EVERYTHING, Effects
from airflow_provider_rfr.builtins.decide import (
    Decision,
    Decisions,
    States,
    decide_table,
    find_origin,
    ownership_problem,
)
from airflow_provider_rfr.builtins.desired import (
    DesiredObject,
    DesiredState,
    Resolver,
    contract_of,
    definition_of,
    in_order,
    readers_of,
    relation,
    same_query,
)
from airflow_provider_rfr.builtins.impact import Views, decide_exports, decide_sink, decide_view
from airflow_provider_rfr.builtins.model import (
    DEPLOY,
    DONE,
    STEP,
    STORED,
    ActualState,
    CatalogSpec,
    Kind,
    LiveObject,
    RecordedObject,
    RegistryState,
    done_mark,
    retired_by,
)
from airflow_provider_rfr.builtins.plan import (
    Plan,
    PlanDependent,
    PlanFinding,
    PlanStep,
    Policies,
    Reason,
    StepAction,
    Why,
    because,
)
from airflow_provider_rfr.builtins.sql import CANONICALIZER

_SHOWN = frozenset({StepAction.REBIND, StepAction.REPLACE, StepAction.RECOMPUTE})


def plan(spec: CatalogSpec, recorded: RegistryState, live: ActualState, *, policies: Policies | None = None) -> Plan:
    """Plan a deploy; a pure function, whose result does not depend on the order of its inputs.

    :param policies: decisions for this deploy; by default the cautious ones of :class:`Policies`
    :raises PlanError: objects read each other in a cycle. All other problems are in the plan
    """
    spec, omitted = _fitted(spec, live)
    wanted = Resolver(spec, recorded, live).resolve()
    states = States(spec, wanted, recorded, live, policies or Policies())
    removed = Removals(states)
    decisions = _in_order(Decider(states, removed).decide(), wanted)
    passed = {uuid: decision for uuid, decision in decisions.items() if not decision.problems}
    views = Views(states, decisions, removed.forgotten.values())
    sinks, of_sinks, undecided = decide_exports(states, decisions, {sink.uuid for sink in removed.sinks})
    blocked = [decision.finding() for decision in decisions.values() if decision.problems]
    blocked += [*undecided, *removed.blocked, *views.blocked]
    untouched = [decision for decision in passed.values() if not decision.touched]
    unsigned = Plan(
        project=spec.project,
        version=spec.version,
        recorded_version=recorded.version,
        base_revision=recorded.revision,
        policies=states.policies,
        steps=_numbered_steps(passed, removed, views, of_sinks),
        dependents=(*_dependents(passed), *views.dependents, *sinks),
        drift=_drift(decisions),
        blocked=_by_name(blocked),
        warnings=tuple(dict.fromkeys([*omitted, *sorted(_warnings(wanted, recorded, live)), *views.warnings])),
        stale=tuple(sorted(set(_stale(spec, decisions, removed)))),
        records=tuple(_records(decisions, blocked, recorded.revision + 1)),
        forgotten=tuple(sorted(removed.forgotten)),
        unchanged=len(untouched),
        done=sum(decision.done for decision in untouched),
    )
    return replace(unsigned, plan_hash=unsigned.digest())


def _fitted(spec: CatalogSpec, live: ActualState) -> tuple[CatalogSpec, tuple[str, ...]]:
    """Return the declarations without this package's own views if the catalog can't hold views, and a warning.

    They are left out instead of refused, because no user can remove them from the declarations.
    """
    views = [obj for obj in spec.objects if obj.kind is Kind.VIEW and obj.key.startswith(_OWN)]
    if live.holds_views or not views:
        return spec, ()
    names = ", ".join(view.name for view in views)
    kept = tuple(obj for obj in spec.objects if obj not in views)
    return replace(spec, objects=kept), (f"{names}: not made, because the catalog can't hold views",)


def _drift(decisions: Mapping[UUID, Decision]) -> tuple[PlanFinding, ...]:
    """Return the objects that were changed by hand, sorted by name."""
    return _by_name(
        PlanFinding(decision.old_name, decision.desired.kind, decision.drift, uuid)
        for uuid, decision in decisions.items()
        if decision.drift
    )


_OWN = "rfr_system."
_LIST = f"{_OWN}builtin_objects"
"""The package's own table that lists the declared objects; it is filled again when these change."""


class Decider:
    """The decisions about all objects of a plan, each made after those about its inputs."""

    def __init__(self, states: States, removed: Removals) -> None:
        self._states, self._recorded, self._live, self._wanted = states, states.recorded, states.live, states.wanted
        held = ((desired, desired.live) for desired in states.wanted.objects.values() if desired.live is not None)
        moving = (desired.uuid for desired, live in held if live.marker == desired.uuid and live.key != desired.key)
        # Ids of the objects that give up their present names in this deploy.
        self._leaving = {*removed.forgotten, *(leftover.uuid for leftover in removed.leftovers), *moving}
        self._decisions: dict[UUID, Decision] = {}
        self._old_names = {obj.key: obj for obj in states.recorded.objects}
        self._user_views = {user_view.key: user_view for user_view in states.live.user_views}

    def decide(self) -> dict[UUID, Decision]:
        """Return all decisions, inputs before their readers."""
        for desired in self._wanted.objects.values():
            origin = find_origin(desired, self._states, self._leaving)
            problems = [*self._wanted.problems.get(desired.uuid, ()), *origin.conflicts]
            decision = Decision(desired, drift=origin.drift, problems=problems)
            decision.note_inputs(self._decisions)
            decision.note_differences()
            if desired.kind is Kind.SINK:
                source = self._decisions.get(desired.reads[0].uuid) if desired.reads[0].uuid is not None else None
                decide_sink(decision, source, unfinished=desired.uuid in self._live.unfinished)
            elif desired.kind in STORED:
                decide_table(decision, origin, self._states)
            else:
                decide_view(decision, origin)
            if "load_anew" not in decision.details and self._is_done(desired):
                decision.clear_action()
            if desired.key == _LIST and desired.kind in STORED:
                self._list_objects(decision)
            self._mark_leaving(decision)
            self._rename(decision)
            decision.problems += self._name_problems(decision)
            if self._states.downgrade is not None and decision.touched:
                decision.problems.insert(0, self._states.downgrade)
                decision.paste = []
            self._decisions[desired.uuid] = decision
        return self._decisions

    def _mark_leaving(self, decision: Decision) -> None:
        """Mark a table or view that is dropped before its object is created as another kind; its rows are lost.

        A view that an unfinished deploy has created already is replaced, not created again.
        """
        desired, record, live = decision.desired, decision.desired.recorded, decision.desired.live
        if record is None or live is None or live.marker != desired.uuid or decision.how is not StepAction.CREATE:
            return
        if live.kind is not relation(desired.kind):
            decision.leaves = live.key in (record.key, desired.key)
        elif live.key == desired.key:
            # Only a view gets here: for an existing table, the action is not CREATE.
            decision.how = StepAction.REPLACE
        if decision.leaves and record.kind in STORED and record.keep is not False:
            decision.lose({record.name: "all rows"}, self._states.accepted)

    def _is_done(self, desired: DesiredObject) -> bool:
        """Tell whether an unfinished deploy has brought the object to the desired state, from unchanged inputs."""
        live = desired.live
        if live is None or DONE not in live.properties or desired.uuid not in self._live.unfinished:
            return False
        read = [self._decisions[read.uuid] for read in desired.reads if read.uuid in self._decisions]
        if any(decision.touched for decision in read):
            return False
        inputs_live = {decision.desired.uuid: decision.desired.live for decision in read}
        inputs = [(uuid, there.properties.get(STEP, "") if there else "") for uuid, there in inputs_live.items()]
        return live.properties[DONE] == done_mark(self._recorded.revision, record_of(desired, 0), inputs)

    def _rename(self, decision: Decision) -> None:
        desired, record, live = decision.desired, decision.desired.recorded, decision.desired.live
        if record is not None and relation(desired.kind) is not None:
            if live is None or live.marker != desired.uuid or decision.how is StepAction.CREATE:
                return
            by_hand = live.key not in (record.key, desired.key) and decision.drift
            decision.renamed = live.key != desired.key and not (by_hand and self._states.policies.drift == "fail")
        if record is not None and record.key != desired.key and not decision.renamed and not decision.done:
            decision.how = decision.how or StepAction.METADATA

    def _name_problems(self, decision: Decision) -> Iterator[Reason]:
        """Yield problems: the object's own name is taken, or a name that it reads no longer exists."""
        desired, kind = decision.desired, decision.desired.kind.value
        if relation(desired.kind) is not None:
            holder = self._live.objects.get(desired.key)
            takes_name = desired.recorded is not None and (decision.renamed or decision.how is StepAction.CREATE)
            if (
                takes_name
                and holder is not None
                and holder.marker not in self._leaving
                and holder.marker != desired.uuid
            ):
                yield because(Why.NAME_TAKEN, kind, desired.obj.name, ownership_problem(holder, desired.uuid))
            if desired.key in self._user_views and desired.live is None:
                theirs = f"it is the user view {self._user_views[desired.key].name}"
                yield because(Why.NAME_TAKEN, kind, desired.obj.name, theirs)
        for read in desired.reads:
            old = self._old_names.get(read.name)
            if read.uuid is not None or old is None:
                continue
            now = self._wanted.objects.get(old.uuid)
            if now is not None:
                yield because(Why.READS_RENAMED, old.name, now.obj.name)
            elif old.uuid not in self._wanted.untouched:
                yield because(Why.READS_REMOVED, old.name)

    def _list_objects(self, decision: Decision) -> None:
        """Fill ``builtin_objects`` again if an object is added or removed, or changes its name or kind."""
        remaining = (obj for obj in self._recorded.objects if obj.uuid not in self._wanted.untouched)
        before = {(obj.uuid, obj.key, obj.kind) for obj in remaining}
        now = {(desired.uuid, desired.key, desired.kind) for desired in self._wanted.objects.values()}
        if before == now:
            return
        if decision.how in (None, StepAction.METADATA, StepAction.EVOLVE):
            decision.how = StepAction.RECOMPUTE
        decision.details = {**decision.details, "lists_objects": True}
        decision.reasons.append(because(Why.LISTS_OBJECTS, ", ".join(sorted({key for _, key, _ in before ^ now})[:3])))
        decision.effects |= Effects(contents=EVERYTHING)


def _numbered_steps(
    decisions: Decisions, removed: Removals, views: Views, of_sinks: list[PlanStep]
) -> tuple[PlanStep, ...]:
    """Return all steps, numbered in the order in which they are done."""
    first, last = removed.leaving(decisions)
    # Stars of users' views are expanded before columns move, and views are bridged before columns get wider. An object
    # that gives up its name is dropped before the rename or the creation that takes the name.
    # A sink is held before its source is emptied. Its cursor is moved, or reset to the beginning, afterwards.
    parts = (
        removed.sinks,
        (sink for sink in of_sinks if sink.how is StepAction.HOLD),
        views.expansions,
        views.bridges,
        first,
        renames(decisions.values()),
        (decision.step(decision.how) for decision in decisions.values() if decision.how is not None),
        (sink for sink in of_sinks if sink.how is not StepAction.HOLD),
        views.steps,
        last,
    )
    return tuple(replace(step, seq=seq) for seq, step in enumerate(chain.from_iterable(parts), 1))


def _by_name(findings: Iterable[PlanFinding]) -> tuple[PlanFinding, ...]:
    return tuple(sorted(findings, key=lambda finding: (finding.name.casefold(), str(finding.uuid))))


_COST: dict[StepAction | None, int] = {StepAction.REWRITE: 2, StepAction.REPLACE_EMPTY: 2, StepAction.RECOMPUTE: 3}


def _in_order(decisions: Decisions, wanted: DesiredState) -> dict[UUID, Decision]:
    """Return the decisions in an order in which inputs come before their readers.

    Among those that could come next, views come first and slow steps last, so that a view gets its text right after
    its table gets its columns.
    """

    def rank(identity: UUID) -> tuple[int, str]:
        decision = decisions[identity]
        computes = decision.how is StepAction.CREATE and "sql" in decision.details
        cost = 3 if computes else _COST.get(decision.how, 1)
        return {Kind.VIEW: 0, Kind.SINK: 4}.get(decision.desired.kind, cost), decision.desired.key

    reads = {identity: [read.uuid for read in obj.reads if read.uuid] for identity, obj in wanted.objects.items()}
    return {identity: decisions[identity] for identity in in_order(reads, rank)}


def _dependents(decisions: Decisions) -> Iterator[PlanDependent]:
    """Yield the declared views that are defined or computed again, once for each input that is a reason for it."""
    for uuid, decision in decisions.items():
        if decision.how is not None and decision.how in _SHOWN:
            for on, reason in decision.noticed.items():
                yield PlanDependent(
                    on, decision.desired.obj.name, decision.desired.kind, decision.how.value, reason, uuid
                )


def _records(decisions: Decisions, blocked: Iterable[PlanFinding], revision: int) -> Iterator[RecordedObject]:
    """Yield the records of the objects whose registry entries change."""
    stopped = {finding.uuid for finding in blocked}
    for decision in sorted(decisions.values(), key=lambda decision: decision.desired.key):
        desired, record = decision.desired, decision.desired.recorded
        fresh = record_of(desired, revision)
        if desired.uuid in stopped:
            continue
        if decision.done and desired.live is not None:
            yield replace(fresh, deploy_id=desired.live.properties.get(DEPLOY, ""))
        elif decision.touched or record is None or replace(fresh, revision=record.revision) != record:
            yield fresh


_AS_DECLARED: Final = ("name", "kind", "columns", "keep", "partitioning", "keys", "comment", "owner", "exportable")
"""Fields that a record takes from the declaration unchanged."""


def record_of(desired: DesiredObject, revision: int) -> RecordedObject:
    """Return the record that the registry will hold for an object; :func:`apply` adds the id of its deploy."""
    obj = desired.obj
    as_declared: dict[str, Any] = {name: getattr(obj, name) for name in _AS_DECLARED}
    return RecordedObject(
        uuid=obj.id,
        contract=contract_of(obj.columns),
        definition=definition_of(obj),
        canonicalizer=CANONICALIZER,
        raw_sql=obj.query,
        deps=desired.reads,
        revision=revision,
        deploy_id=desired.recorded.deploy_id if desired.recorded is not None else "",
        sql=desired.sql,
        properties=dict(obj.properties),
        instance=desired.instance,
        **as_declared,
    )


def _stale(spec: CatalogSpec, decisions: Decisions, removed: Removals) -> Iterator[str]:
    """Yield the columns whose ``was``, and the names whose ``removed`` document, match nothing in this lake."""
    sent = {
        (decision.desired.reads[0].uuid, name.casefold())
        for decision in decisions.values()
        if (sink := decision.desired.obj.sink) is not None
        for name in sink.columns
    }
    for identity, decision in decisions.items():
        obj = decision.desired.obj
        for column in obj.columns:
            # A sink may declare a column by a former name, for which the `was` is needed.
            is_sent = any(was.name and (identity, was.name.casefold()) in sent for was in column.was)
            if column.was and column.name not in decision.was_used and not is_sent:
                yield f"{obj.name}.{column.name}"
    lost = {name.casefold() for decision in decisions.values() for name in decision.losses}
    lost |= {obj.key for obj in removed.forgotten.values()} | {finding.name.casefold() for finding in removed.blocked}
    yield from (entry.name for entry in spec.removed if entry.key not in lost)


def _warnings(wanted: DesiredState, recorded: RegistryState, live: ActualState) -> Iterator[str]:
    """Yield warnings about users' readers of objects that are not kept or not exportable, and about templates."""
    mview = Kind.MATERIALIZED_VIEW
    soft = (desired for desired in wanted.objects.values() if desired.obj.keep is False and desired.kind is not mview)
    unstable = {desired.key: desired.obj.name for desired in soft}
    readers = [(f"view {view.name}", read.name) for view in live.user_views for read in view.reads or ()]
    for sink in recorded.sinks:
        source = wanted.objects.get(sink.source)
        if source is None or sink.uuid in wanted.objects:
            continue
        readers.append((f"sink {sink.name}", source.key))
        if not source.obj.exportable and source.key not in unstable:
            remedy = "make a materialized view over it and export that"
            yield f"sink {sink.name} (user): {source.obj.name} is not exportable; {remedy}"
    for reader, name in readers:
        if name in unstable:
            yield f"{reader} (user): {unstable[name]} is not kept: it may change or go at any time"
    for template in wanted.unlisted:
        problem = f"{template.name} is one object for each {template.per_instance}, and nothing says which there are"
        yield f"{problem}: none is made; declare a document of kind instances"


class Removals:
    """The objects that are removed for good, and the order of all steps that drop or remove objects.

    :ivar forgotten: records that leave the registry, by id, even if the catalog does not have the object
    :ivar steps: removal steps of the objects in the catalog, by id; ``sinks``: removal steps of sinks
    :ivar leftovers: removal steps of what an unfinished deploy created and nothing declares or records, views first
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
        self._known_ids = ours | live.unfinished
        self._exports = [sink for sink in recorded.sinks if sink.uuid in declared or sink.uuid not in self._known_ids]
        for known in sorted(recorded.objects, key=lambda obj: obj.key):
            if known.uuid not in declared and known.uuid not in states.wanted.untouched:
                self._decide(known)
        if not self.blocked:
            why = (because(Why.UNFINISHED),)
            unfinished = (sink for sink in recorded.sinks if sink.uuid in live.unfinished and sink.uuid not in ours)
            self.sinks += [PlanStep(sink.uuid, sink.name, Kind.SINK, StepAction.REMOVE, why) for sink in unfinished]
            for identity, leftover in self._left():
                step = PlanStep(identity, leftover.name, leftover.kind, StepAction.REMOVE, why)
                self.leftovers.append(self._with_removal_details(step, leftover, {}))

    def _decide(self, known: RecordedObject) -> None:
        """Decide about an object that is recorded and no longer declared."""
        relation_kind = relation(known.kind)
        live = self._states.live.objects.get(known.key) if relation_kind else None
        if live is None or (live.marker not in (None, known.uuid) and live.marker in self._known_ids):
            # An unfinished deploy may have given it a new name.
            ours = [obj for obj in self._states.live.by_marker.get(known.uuid, ()) if obj.kind is relation_kind]
            named = [obj for obj in ours if retired_by(obj.name) is None]
            live = named[0] if len(named) == 1 else None
        if self._states.downgrade is not None:
            problems, paste = [self._states.downgrade], tuple[str, ...]()
        else:
            problems, paste = _removal_obstacles(known, self._states)
            if live is not None and live.marker != known.uuid:
                problems.append(because(Why.NOT_REMOVED, ownership_problem(live, known.uuid), known.name))
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
            self.steps[known.uuid] = self._with_removal_details(step, live, losses)

    def _left(self) -> list[tuple[UUID, LiveObject]]:
        """Return the tables and views that an unfinished deploy created and that now belong to nothing.

        The journal has to name them: a table with a marker alone may belong to another registry.
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
        # Their dependencies are not recorded. Views may read tables, so views come first.
        return sorted(left, key=lambda pair: (pair[1].kind is Kind.TABLE, pair[1].key))

    def _with_removal_details(self, step: PlanStep, live: LiveObject, losses: Mapping[str, str]) -> PlanStep:
        """Return the step with its details: it retires a table, which is deleted later, or drops a view."""
        details = {"keep_days": self._states.policies.keep_days} if step.kind in STORED else {}
        return replace(step, details=details, losses=losses, rows=live.rows, bytes=live.bytes)

    def leaving(self, decisions: Decisions) -> tuple[list[PlanStep], list[PlanStep]]:
        """Return the steps that drop or remove objects: those before, and those after all other steps on objects."""
        needed = {
            decision.desired.key
            for decision in decisions.values()
            if decision.how is StepAction.CREATE or decision.renamed
        }
        drops = dict[UUID, PlanStep]()
        for identity, decision in decisions.items():
            record, live = decision.desired.recorded, decision.desired.live
            if decision.leaves and record is not None and live is not None:
                # An unfinished deploy may have created it as another kind than the recorded one.
                kind = record.kind if relation(record.kind) is live.kind else live.kind
                reasons = tuple(dict.fromkeys(decision.reasons)) or (because(Why.UNFINISHED),)
                step = PlanStep(identity, live.name, kind, StepAction.DROP, reasons)
                drops[identity] = self._with_removal_details(step, live, decision.losses)
        steps = drops | self.steps
        early = {identity for identity, step in steps.items() if identity in drops or step.name.casefold() in needed}
        recorded = self._states.recorded
        reads = {obj.uuid: [dep.uuid for dep in obj.deps if dep.uuid] for obj in recorded.objects}
        order = in_order(reads, lambda identity: (recorded.by_uuid[identity].key, identity))[::-1]
        # A removed reader of an object that is dropped early is dropped before that object.
        early |= steps.keys() & readers_of(early, reversed(order), reads)
        first = [leftover for leftover in self.leftovers if leftover.name.casefold() in needed]
        last = [leftover for leftover in self.leftovers if leftover not in first]
        first += [steps[identity] for identity in order if identity in early]
        return first, [*(steps[identity] for identity in order if identity in steps and identity not in early), *last]


def _removal_obstacles(known: RecordedObject, states: States) -> tuple[list[Reason], tuple[str, ...]]:
    """Return the reasons that stop a removal, and YAML to paste: the id for a new name, or a ``removed`` document."""
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
    """Tell whether the new object may be the known one under another name.

    At least half of the columns are the same; without columns, query and definition are.
    """
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
