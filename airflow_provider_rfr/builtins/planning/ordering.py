"""The order of a plan's steps.

What leaves goes readers first, by what was read when it was recorded. What comes or changes goes what is read first, by
what is read now. Both at once, for edges may turn round. What leaves for good waits until the end, so that nothing that
still reads it is left alone, unless something else needs its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from airflow_provider_rfr.builtins.graph import CycleError, Graph
from airflow_provider_rfr.builtins.planning.decision import Decision, Decisions
from airflow_provider_rfr.builtins.planning.plans import Verb
from airflow_provider_rfr.builtins.planning.policies import Policies
from airflow_provider_rfr.builtins.planning.removals import Removals
from airflow_provider_rfr.builtins.spec import Kind
from airflow_provider_rfr.builtins.state import LiveKind, Recorded
from airflow_provider_rfr.exceptions import PlanError


@dataclass(frozen=True)
class Rename:
    """One object's way to another name; ``to`` may be a name in between."""

    uuid: UUID
    name: str
    to: str


@dataclass(frozen=True)
class Leaving:
    """What leaves, readers first.

    :ivar early: before anything comes
    :ivar late: after everything came
    :ivar leftovers: names of what leaves at once, for it has a name that is needed, and of what leaves at the end
    """

    early: tuple[UUID, ...] = ()
    late: tuple[UUID, ...] = ()
    leftovers: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def leaving(decisions: Decisions, removed: Removals, recorded: Recorded, policies: Policies) -> Leaving:
    """What leaves.

    :raises PlanError: the registry says that objects read each other in a circle
    """
    needed = {each.want.key for each in decisions.values() if each.how is Verb.CREATE or each.renamed}
    gone = {identity: there.key for identity, there in removed.there.items()}
    early = {identity for identity, each in decisions.items() if each.leaves}
    early |= {identity for identity, key in gone.items() if key in needed}
    if not policies.replace_views:
        early |= {identity for identity, each in decisions.items() if _is_replaced(each)}
    # Nobody wrote down what leftovers read; views may read tables.
    left = sorted(removed.leftovers, key=lambda key: (removed.leftovers[key].kind is LiveKind.TABLE, key))
    leftovers = tuple(key for key in left if key in needed), tuple(key for key in left if key not in needed)
    if not early and not gone:
        return Leaving(leftovers=leftovers)
    graph = Graph({each.uuid: [dep.uuid for dep in each.deps if dep.uuid] for each in recorded.objects})
    # A removed reader of something that leaves early leaves before it.
    early |= gone.keys() & graph.readers_of(early)
    order = _readers_first(graph, recorded)
    return Leaving(
        tuple(each for each in order if each in early),
        tuple(each for each in order if each in gone and each not in early),
        leftovers,
    )


def _readers_first(graph: Graph[UUID], recorded: Recorded) -> tuple[UUID, ...]:
    keys = {each.uuid: each.key for each in recorded.objects}
    try:
        return graph.order(lambda identity: (keys[identity], str(identity)))[::-1]
    except CycleError as error:
        names = CycleError(keys[each] for each in error.cycle)
        raise PlanError(f"the registry is damaged, objects read each other in a circle: {names}") from None


def _is_replaced(decision: Decision) -> bool:
    return decision.want.kind is Kind.VIEW and decision.how in (Verb.REPLACE, Verb.REBIND)


def renames(decisions: Iterable[Decision]) -> list[Rename]:
    """Renames in an order in which each new name is free; those that go round in a circle go by a name in between."""
    waiting = {
        each.want.live.key: each
        for each in sorted(decisions, key=lambda each: each.want.key)
        if each.renamed and each.want.live is not None
    }
    found: list[Rename] = []
    last: list[Rename] = []
    while waiting:
        free = [key for key, each in waiting.items() if each.want.key not in waiting]
        if free:
            found += [_rename(waiting.pop(key)) for key in free]
            continue
        each = waiting.pop(min(waiting))
        whole = _rename(each)
        between = f"{whole.name}__r{whole.uuid.hex[:8]}"
        found.append(Rename(whole.uuid, whole.name, between))
        last.append(Rename(whole.uuid, between, whole.to))
    return found + last


def _rename(decision: Decision) -> Rename:
    assert decision.want.live is not None
    return Rename(decision.want.uuid, decision.want.live.name, decision.want.obj.name)
