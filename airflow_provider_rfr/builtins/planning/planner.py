"""From what is declared, what is recorded and what is there, to a plan: a pure function.

The same values give the same plan, whatever order they come in. Nothing is read or written here.

A plan's parts, written from what was decided.

What the registry holds after a deploy: it follows from what is wanted, whatever steps led there.

What is worth a look in a plan and stops nothing.

The planner's tools as this package has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins import fingerprint
from airflow_provider_rfr.builtins.planning import instructions
from airflow_provider_rfr.builtins.planning.decide import Decider, Exports, exports
from airflow_provider_rfr.builtins.planning.decision import Decision
from airflow_provider_rfr.builtins.planning.diff import short
from airflow_provider_rfr.builtins.planning.order import (
    Leaving,
    Removals,
    UserViews,
    leaving,
    removals,
    renames,
    user_views,
)
from airflow_provider_rfr.builtins.planning.plan import Blocked, Dependent, Drift, Plan, Policies, Step, Verb, sealed
from airflow_provider_rfr.builtins.planning.resolve import resolve
from airflow_provider_rfr.builtins.spec import (
    STORED,
    BuiltinObject,
    CatalogSpec,
    Contents,
    Kind,
    Stability,
    namespace_of,
)
from airflow_provider_rfr.builtins.sql import facts
from airflow_provider_rfr.builtins.sql.parse import CANONICALIZER
from airflow_provider_rfr.builtins.state import DEPLOY, Live, LiveKind, LiveObject, Recorded, RecordedObject
from airflow_provider_rfr.builtins.wanted import ColumnsOf, Tools, Want, Wanted, relation, release

_SHOWN = frozenset({Verb.REBIND, Verb.REPLACE, Verb.RECOMPUTE})


@dataclass(frozen=True)
class _Outcome:
    """Everything that was decided."""

    decisions: dict[UUID, Decision]
    removed: Removals
    leaving: Leaving
    user_views: UserViews
    exports: Exports
    policies: Policies


class _Writer:
    """Writes the parts of a plan."""

    def __init__(self, outcome: _Outcome) -> None:
        self._outcome = outcome
        self._decisions = outcome.decisions
        self._going = {uuid: each for uuid, each in outcome.decisions.items() if not each.problems}

    def steps(self) -> tuple[Step, ...]:
        """In the order in which they are done: sinks stop; what has to leave first leaves; names change; everything
        comes or changes; sinks and users' views follow; the rest leaves."""
        leaving = self._outcome.leaving
        parts = (
            self._removed_sinks(),
            self._sinks(held=True),
            self._leftovers(leaving.leftovers[0]),
            self._drops(leaving.early),
            self._renames(),
            self._changes(),
            self._sinks(held=False),
            self._rebinds(),
            self._drops(leaving.late),
            self._leftovers(leaving.leftovers[1]),
        )
        return tuple(replace(step, seq=seq) for seq, step in enumerate((each for part in parts for each in part), 1))

    def _changes(self) -> Iterator[Step]:
        for decision in self._going.values():
            if decision.how is None:
                continue
            obj, live = decision.want.obj, decision.want.live
            details = dict(decision.details)
            if decision.want.instance is not None and decision.how is Verb.CREATE:
                details["instance"] = decision.want.instance
            yield Step(
                0,
                obj.id,
                obj.name,
                obj.kind,
                decision.how,
                "; ".join(dict.fromkeys(decision.reasons)),
                tuple(decision.words),
                details,
                decision.loses,
                rows=live.rows if live is not None else None,
                bytes=live.bytes if live is not None else None,
            )

    def _drops(self, identities: tuple[UUID, ...]) -> Iterator[Step]:
        for identity in identities:
            decision = self._going.get(identity)
            if identity in self._outcome.removed.there:
                yield self._remove(identity)
            elif decision is not None and decision.want.live is not None:
                there = decision.want.live
                reason = "; ".join(dict.fromkeys(decision.reasons)) or "to be created again"
                yield self._gone(identity, _kind(decision, there), Verb.DROP, reason, there)

    def _remove(self, identity: UUID) -> Step:
        removed = self._outcome.removed
        known, there = removed.leaving[identity], removed.there[identity]
        return self._gone(identity, known.kind, Verb.REMOVE, removed.reasons[identity], there)

    def _removed_sinks(self) -> Iterator[Step]:
        """Nothing in the catalog, but a cursor that ends; before its source goes."""
        removed = self._outcome.removed
        for known in sorted(removed.leaving.values(), key=lambda each: each.key):
            if known.kind is Kind.SINK:
                yield Step(0, known.uuid, known.name, known.kind, Verb.REMOVE, removed.reasons[known.uuid])
        for left in removed.leftover_sinks:
            yield Step(0, left.uuid, left.name, Kind.SINK, Verb.REMOVE, "left by an unfinished deploy")

    def _leftovers(self, keys: tuple[str, ...]) -> Iterator[Step]:
        for key in keys:
            there = self._outcome.removed.leftovers[key]
            if there.marker is not None:
                yield self._gone(there.marker, _live_kind(there), Verb.REMOVE, "left by an unfinished deploy", there)

    def _gone(self, identity: UUID, kind: Kind, how: Verb, reason: str, live: LiveObject) -> Step:
        """A table is put aside, out of the way of its name, and collected later; a view is dropped."""
        details: dict[str, Any] = {"physical": live.name}
        if kind in STORED:
            details["keep_days"] = self._outcome.policies.keep_days
        return Step(0, identity, live.name, kind, how, reason, (), details, rows=live.rows, bytes=live.bytes)

    def _renames(self) -> Iterator[Step]:
        staying = (each for uuid, each in self._going.items() if uuid not in self._outcome.leaving.early)
        for each in renames(staying):
            want = self._going[each.uuid].want
            yield Step(0, each.uuid, each.name, want.kind, Verb.RENAME, "declared name", (), {"to": each.to})

    def _rebinds(self) -> Iterator[Step]:
        for view, why in self._outcome.user_views.rebound:
            yield Step(0, None, view.name, Kind.VIEW, Verb.REBIND, why, (), {"sql": view.query}, user=True)

    def _sinks(self, *, held: bool) -> Iterator[Step]:
        """A sink stops before its source is emptied; it is put behind it, or to its beginning, afterwards."""
        choices = self._outcome.exports.choices
        for identity in sorted(choices, key=lambda each: (choices[each].name, str(each))):
            chosen = choices[identity]
            verb = Verb(chosen.how)
            if (verb is Verb.HOLD) is held:
                details = {} if chosen.since is None else {"since": chosen.since}
                yield Step(0, identity, chosen.name, Kind.SINK, verb, chosen.why, (), details)

    def dependents(self) -> tuple[Dependent, ...]:
        """Views and sinks that the steps touch, in the order of what they depend on."""
        ours = (
            Dependent(on, decision.want.obj.name, decision.want.kind, decision.how.value, reason, decision.want.uuid)
            for decision in self._going.values()
            if decision.how in _SHOWN
            for on, reason in decision.input_reasons.items()
        )
        return (*ours, *self._outcome.user_views.dependents, *self._outcome.exports.dependents)

    def drift(self) -> tuple[Drift, ...]:
        """What was changed by hand."""
        policy = self._outcome.policies.drift
        found = (
            Drift(each.want.uuid, (each.want.recorded or each.want.obj).name, each.want.kind, each.drift, policy)
            for each in self._decisions.values()
            if each.drift
        )
        return tuple(sorted(found, key=lambda each: (each.name.casefold(), each.uuid)))

    def blocked(self) -> tuple[Blocked, ...]:
        """Everything that stops the deploy, by name."""
        found = [
            Blocked(
                each.want.obj.name,
                each.want.kind,
                tuple(dict.fromkeys(each.problems)),
                each.want.uuid,
                tuple(each.words),
                each.paste,
                str(each.want.obj.place),
            )
            for each in self._decisions.values()
            if each.problems
        ]
        sinks = (
            Blocked(name, Kind.SINK, (problem,), identity)
            for identity, (name, problem) in self._outcome.exports.blocked.items()
        )
        every = (*found, *sinks, *self._outcome.removed.blocked, *self._outcome.user_views.blocked)
        return tuple(sorted(every, key=lambda each: (each.name.casefold(), str(each.uuid))))

    def drop_order(self) -> tuple[UUID, ...]:
        """What leaves, readers first."""
        leaving = self._outcome.leaving
        return tuple(
            each
            for each in (*leaving.early, *leaving.late)
            if each in self._outcome.removed.there or each in self._going
        )

    def create_order(self) -> tuple[UUID, ...]:
        """What comes or changes, what is read first."""
        return tuple(identity for identity, each in self._going.items() if each.how is not None)


def _kind(decision: Decision, there: LiveObject) -> Kind:
    """What leaves: what is recorded, unless a deploy that did not finish made something else of it."""
    known = decision.want.recorded
    if known is not None and relation(known.kind) is there.kind:
        return known.kind
    return _live_kind(there)


def _live_kind(there: LiveObject) -> Kind:
    return Kind.TABLE if there.kind is LiveKind.TABLE else Kind.VIEW


def record(decision: Decision, canonicalizer: str, revision: int) -> RecordedObject | None:
    """The object's entry, if it is another one afterwards; who applies the plan puts its deploy's id into it."""
    want, known = decision.want, decision.want.recorded
    if known is not None and not decision.touched and not decision.done and _same(want, known, canonicalizer):
        return None
    fresh = _entry(want, canonicalizer, revision)
    if decision.done and want.live is not None:
        fresh = replace(fresh, deploy_id=want.live.properties.get(DEPLOY, ""))
    elif known is not None:
        fresh = replace(fresh, deploy_id=known.deploy_id)
    if known is None:
        return fresh
    made_anew = decision.leaves or decision.how is Verb.CREATE
    under_its_name = known.physical.casefold() == known.key
    if not made_anew and not (decision.renamed and under_its_name):
        fresh = replace(fresh, physical=known.physical)
    return fresh


def _entry(want: Want, canonicalizer: str, revision: int) -> RecordedObject:
    """What is wanted, as it is recorded."""
    obj = want.obj
    return RecordedObject(
        uuid=obj.id,
        name=obj.name,
        kind=obj.kind,
        physical=obj.name,
        fingerprints=want.fingerprints,
        canonicalizer=canonicalizer,
        raw_sql=obj.query,
        columns=obj.columns,
        deps=want.reads,
        stability=obj.stability,
        revision=revision,
        sql=want.sql,
        contents=obj.contents,
        protect=obj.protect,
        partitioning=obj.partitioning,
        keys=obj.keys,
        properties=dict(obj.properties),
        comment=obj.comment,
        owner=obj.owner,
        instance=want.instance,
    )


def _same(want: Want, known: RecordedObject, canonicalizer: str) -> bool:
    obj = want.obj
    return (
        known.fingerprints == want.fingerprints
        and known.canonicalizer == canonicalizer
        and known.name == obj.name
        and known.kind is obj.kind
        and known.raw_sql == obj.query
        and known.sql == want.sql
        and known.deps == want.reads
        and known.columns == obj.columns
        and known.instance == want.instance
        and (known.partitioning, known.keys) == (obj.partitioning, obj.keys)
    )


def _lints(outcome: _Outcome, wanted: Wanted, recorded: Recorded, live: Live, tools: Tools) -> tuple[str, ...]:
    """All of them, in words."""
    found = [
        *_instructions(wanted),
        *_policies(outcome),
        *_empties(outcome),
        *_user_sinks(wanted, recorded),
        *_user_views(wanted, live),
        *_restamped(wanted, recorded, tools),
        *_unlisted(wanted),
        *_put_aside(outcome),
    ]
    return tuple(dict.fromkeys((*sorted(found), *outcome.removed.warnings, *outcome.user_views.warnings)))


def _sink_problem(obj: BuiltinObject) -> str | None:
    """Why a user may not attach a sink to the object; None: they may."""
    if obj.stability is Stability.UNSTABLE:
        return f"{obj.name} is unstable: it may change or go at any time"
    if not obj.exportable:
        return f"{obj.name} is not exportable; make a materialized view over it and export that"
    return None


def _view_problem(obj: BuiltinObject) -> str | None:
    """Why a user may not keep a view over the object; None: they may."""
    if obj.stability is Stability.UNSTABLE:
        return f"{obj.name} is unstable: it may change or go at any time"
    return None


def _instructions(wanted: Wanted) -> Iterator[str]:
    for want in wanted.wants.values():
        for each in instructions.unused(want.obj.migrations, want.fingerprints.contract.digest):
            yield (
                f"{want.obj.name}: the instruction from {short(each.before)} to {short(each.after)} is unused: it does "
                f"not lead to {short(want.fingerprints.contract.digest)}"
            )


def _policies(outcome: _Outcome) -> Iterator[str]:
    """Permissions that nobody needs are not kept for another day."""
    lossy, adopted = set[str](), set[str]()
    for decision in outcome.decisions.values():
        names = {decision.want.key, str(decision.want.uuid)}
        if decision.loses:
            lossy |= names
        if decision.how is Verb.ADOPT:
            adopted.add(decision.want.key)
    for name in sorted(outcome.policies.accept_data_loss - lossy):
        yield f"accept_data_loss names {name}, which loses nothing"
    for name in sorted(outcome.policies.adopt - adopted):
        yield f"adopt names {name}, which is not there to be adopted"


def _empties(outcome: _Outcome) -> Iterator[str]:
    for decision in outcome.decisions.values():
        updates = decision.details.get("updates")
        if decision.how is Verb.REPLACE_EMPTY and not _incompatible(decision.words):
            yield f"{decision.want.obj.name} is emptied, though {'evolve' if updates else 'nothing'} would do"


def _incompatible(words: list[str]) -> bool:
    return any(each.startswith("!") or each.endswith(", required") for each in words)


def _user_sinks(wanted: Wanted, recorded: Recorded) -> Iterator[str]:
    for state in recorded.sinks:
        source = wanted.wants.get(state.source)
        if source is not None and state.uuid not in wanted.wants and (problem := _sink_problem(source.obj)):
            yield f"sink {state.name} (user): {problem}"


def _user_views(wanted: Wanted, live: Live) -> Iterator[str]:
    by_key: dict[str, Want] = {each.key: each for each in wanted.wants.values()}
    for view in live.user_views:
        for each in view.reads or ():
            if each.name in by_key and (problem := _view_problem(by_key[each.name].obj)):
                yield f"view {view.name} (user): {problem}"


def _put_aside(outcome: _Outcome) -> Iterator[str]:
    """Nothing is lost by the deploy, but by the collection that comes after it."""
    for each in outcome.decisions.values():
        known, there = each.want.recorded, each.want.live
        if not each.leaves or known is None or known.kind not in STORED or known.contents is Contents.DERIVABLE:
            continue
        if there is not None and there.snapshot_id is not None and there.rows != 0:
            days = outcome.policies.keep_days
            yield f"{known.name}: its rows ({known.contents.value}) are put aside, and deleted by gc after {days} days"


def _unlisted(wanted: Wanted) -> Iterator[str]:
    for each in wanted.unlisted:
        said = f"{each.name} is one object for each {each.per_instance}, and nothing says which there are"
        yield f"{said}: none is made; declare a document of kind instances"


def _restamped(wanted: Wanted, recorded: Recorded, tools: Tools) -> Iterator[str]:
    known: dict[UUID, str] = {
        each.uuid: each.canonicalizer
        for each in recorded.objects
        if each.kind in (Kind.VIEW, Kind.MATERIALIZED_VIEW) and each.uuid in wanted.wants
    }
    others = sorted({each for each in known.values() if each and each != tools.canonicalizer})
    if others:
        count = sum(each in others for each in known.values())
        yield f"{count} queries are written down anew by {tools.canonicalizer}, before by {', '.join(others)}"


def _expand(obj: BuiltinObject, columns_of: ColumnsOf) -> str:
    return facts.expand_stars(obj.query or "", columns_of, namespace=namespace_of(obj.name))


def _outputs(obj: BuiltinObject, columns_of: ColumnsOf) -> tuple[str, ...]:
    return facts.output_columns(obj.query or "", columns_of, namespace=namespace_of(obj.name))


@cache
def default_tools() -> Tools:
    """Fingerprints and SQL by sqlglot."""
    return Tools(
        canonicalizer=CANONICALIZER,
        fingerprints=fingerprint.fingerprints,
        reads=lambda obj, known: facts.object_reads(obj, known=known),
        expand=_expand,
        outputs=_outputs,
        same_logic=fingerprint.same_logic,
    )


def plan(
    spec: CatalogSpec,
    recorded: Recorded,
    live: Live,
    *,
    policies: Policies | None = None,
    tools: Tools | None = None,
) -> Plan:
    """What a deploy would do.

    :param tools: what reads fingerprints and SQL; by default this package's own
    :raises PlanError: objects read each other in a circle. All other problems are in the plan
    """
    policies, tools = policies or Policies(), tools or default_tools()
    wanted = resolve(spec, recorded, live, tools)
    outcome = _decided(spec, wanted, recorded, live, policies, tools)
    written = Plan(
        project=spec.project,
        version=spec.version,
        recorded_version=recorded.version,
        base_revision=recorded.revision,
        policies=policies,
        canonicalizer=tools.canonicalizer,
        warnings=_lints(outcome, wanted, recorded, live, tools),
        forgotten=tuple(sorted(outcome.removed.leaving)),
    )
    return sealed(_filled(written, outcome))


def _decided(
    spec: CatalogSpec, wanted: Wanted, recorded: Recorded, live: Live, policies: Policies, tools: Tools
) -> _Outcome:
    """What becomes of everything."""
    downgrade = _downgrade(spec, recorded)
    removed = removals(wanted, recorded, live, spec.version, None if policies.allow_downgrade else downgrade)
    names = _give_up_names(wanted, removed)
    decider = Decider(wanted, recorded, live, policies, tools, leaving=names, downgrade=downgrade)
    decisions = decider.decide()
    for each in decisions.values():
        # What an unfinished deploy built for the same change is used, and not left over.
        removed.leftovers.pop(str(each.details.get("shadow", "")).casefold(), None)
    return _Outcome(
        decisions,
        removed,
        leaving(decisions, removed, recorded, policies),
        user_views(decisions, removed.leaving, live, policies),
        exports(decisions, recorded, policies, removed.leftover_sinks),
        policies,
    )


def _filled(plan: Plan, outcome: _Outcome) -> Plan:
    """With its steps, and with what is written down about what is not blocked."""
    writer, decisions = _Writer(outcome), outcome.decisions.values()
    blocked = writer.blocked()
    stopped = {each.uuid for each in blocked}
    records = (
        record(each, plan.canonicalizer, plan.base_revision + 1)
        for each in sorted(decisions, key=lambda each: each.want.key)
        if each.want.uuid not in stopped
    )
    return replace(
        plan,
        steps=writer.steps(),
        dependents=writer.dependents(),
        drift=writer.drift(),
        blocked=blocked,
        drop_order=writer.drop_order(),
        create_order=writer.create_order(),
        records=tuple(each for each in records if each is not None),
        unchanged=sum(not each.touched and not each.problems for each in decisions),
        done=sum(each.done and not each.touched and not each.problems for each in decisions),
    )


def _downgrade(spec: CatalogSpec, recorded: Recorded) -> str | None:
    if recorded.version is None or release(spec.version) >= release(recorded.version):
        return None
    return f"downgrade not supported: recorded by {recorded.version}, this is {spec.version}"


def _give_up_names(wanted: Wanted, removed: Removals) -> frozenset[UUID]:
    """Objects that are called something else afterwards, or nothing."""
    renamed = {
        each.uuid
        for each in wanted.wants.values()
        if each.live is not None and each.live.name != each.obj.name
        if each.live.marker == each.uuid and each.live.key != each.key
    }
    left = {each.marker for each in removed.leftovers.values() if each.marker is not None}
    return frozenset(renamed | left | removed.leaving.keys())
