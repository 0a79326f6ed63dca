"""A plan's parts, written from what was decided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from airflow_provider_rfr.builtins.planning.decide_sink import Exports
from airflow_provider_rfr.builtins.planning.decision import Decision
from airflow_provider_rfr.builtins.planning.ordering import Leaving, renames
from airflow_provider_rfr.builtins.planning.plans import Blocked, Dependent, Drift, Step, Verb
from airflow_provider_rfr.builtins.planning.policies import Policies
from airflow_provider_rfr.builtins.planning.removals import Removals
from airflow_provider_rfr.builtins.planning.user_views import UserViews
from airflow_provider_rfr.builtins.spec import STORED, Kind
from airflow_provider_rfr.builtins.state import LiveKind, LiveObject
from airflow_provider_rfr.builtins.wanted import relation

_SHOWN = frozenset({Verb.REBIND, Verb.REPLACE, Verb.RECOMPUTE})


@dataclass(frozen=True)
class Outcome:
    """Everything that was decided."""

    decisions: dict[UUID, Decision]
    removed: Removals
    leaving: Leaving
    user_views: UserViews
    exports: Exports
    policies: Policies


class Writer:
    """Writes the parts of a plan."""

    def __init__(self, outcome: Outcome) -> None:
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
