"""Marks objects while they are loaded in order: changed by themselves, or by what they read and use."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import cached_property
from uuid import UUID

from airflow_provider_rfr.builtins.planning import chain
from airflow_provider_rfr.builtins.planning.decide_sink import decide_sink
from airflow_provider_rfr.builtins.planning.decide_stored import decide_stored
from airflow_provider_rfr.builtins.planning.decide_view import decide_view
from airflow_provider_rfr.builtins.planning.decision import Decision
from airflow_provider_rfr.builtins.planning.drift import Found, find, whose
from airflow_provider_rfr.builtins.planning.effects import EVERYTHING, Effects
from airflow_provider_rfr.builtins.planning.plans import Verb
from airflow_provider_rfr.builtins.planning.policies import Policies
from airflow_provider_rfr.builtins.planning.reasons import CONTRACT
from airflow_provider_rfr.builtins.spec import QUERIED, STORED, Kind
from airflow_provider_rfr.builtins.state import DONE, STEP, Live, LiveKind, Recorded, RecordedObject, done_mark
from airflow_provider_rfr.builtins.wanted import Tools, Want, Wanted, relation

GENERATED = "rfr.generated"
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
            decide_sink(decision, self._decisions, self._tools, unfinished=want.uuid in self._live.unfinished)
        elif want.kind in STORED:
            decide_stored(decision, found, self._decisions, self._policies, self._tools)
        else:
            decide_view(decision, found, self._decisions, self._policies, self._tools)
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
        if decision.want.obj.properties.get(GENERATED) != "objects" or not self._listed:
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
            if chain.lead_back(want.obj.migrations, theirs, ours):
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
