"""The desired state: each declared object with its final name and its reads, and the graph of reads.

Objects with ``per_instance`` become one object for each instance. Their ids come from the instance's id. Their names
are generated once, made unique by a number, and kept in the registry from then on, even if the instance is renamed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid5

from airflow_provider_rfr.builtins.reasons import Reason
from airflow_provider_rfr.builtins.spec import (
    LONGEST_PART,
    STORED,
    BuiltinObject,
    CatalogSpec,
    Dependency,
    Kind,
    available_name,
    is_retired,
)
from airflow_provider_rfr.builtins.state import ActualState, LiveKind, LiveObject, RecordedObject, RegistryState

Node = TypeVar("Node", bound=Hashable)


class CycleError(ValueError):
    """The objects read each other in a cycle.

    :ivar cycle: each one is read by the one before it; the last reads the first
    """

    def __init__(self, cycle: Iterable[Any]) -> None:
        self.cycle = tuple(cycle)
        super().__init__(" reads ".join(map(str, (*self.cycle, *self.cycle[:1]))))


class Graph(Generic[Node]):
    """Edges from readers to what they read; what is read and has no entry of its own is outside, and left out.

    Inside, nodes are numbers: ids are slow to compare, and there may be tens of thousands.
    """

    def __init__(self, reads: Mapping[Node, Iterable[Node]]) -> None:
        self._nodes = tuple(reads)
        self._numbers = {node: number for number, node in enumerate(self._nodes)}
        known = self._numbers.get
        self._reads = [{read for each in edges if (read := known(each)) is not None} for edges in reads.values()]
        self._readers: list[list[int]] = [[] for _ in self._nodes]
        for number, edges in enumerate(self._reads):
            for read in edges:
                self._readers[read].append(number)

    def readers_of(self, roots: Iterable[Node]) -> frozenset[Node]:
        """The roots and all direct and indirect readers of them."""
        found = {number for root in roots if (number := self._numbers.get(root)) is not None}
        waiting = list(found)
        while waiting:
            for reader in self._readers[waiting.pop()]:
                if reader not in found:
                    found.add(reader)
                    waiting.append(reader)
        return frozenset(self._nodes[number] for number in found)

    def order(self, rank: Callable[[Node], Any]) -> tuple[Node, ...]:
        """Every node after everything that it reads; of those that could come next, the lowest rank first.

        :param rank: different for each node
        :raises CycleError: there is no such order
        """
        ranks = [rank(node) for node in self._nodes]
        missing = [len(edges) for edges in self._reads]
        ready = [(ranks[number], number) for number, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        found: list[Node] = []
        while ready:
            _, number = heapq.heappop(ready)
            found.append(self._nodes[number])
            for reader in self._readers[number]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, (ranks[reader], reader))
        if len(found) < len(self._nodes):
            raise CycleError(self._cycle({number for number, count in enumerate(missing) if count}, ranks))
        return tuple(found)

    def _cycle(self, stuck: set[int], ranks: list[Any]) -> list[Node]:
        """One circle among nodes of which each reads another one of them, from its lowest rank on."""
        here = min(stuck, key=ranks.__getitem__)
        seen: dict[int, int] = {}
        path: list[int] = []
        while here not in seen:
            seen[here] = len(path)
            path.append(here)
            here = min(self._reads[here] & stuck, key=ranks.__getitem__)
        circle = path[seen[here] :]
        first = circle.index(min(circle, key=ranks.__getitem__))
        return [self._nodes[number] for number in circle[first:] + circle[:first]]


@dataclass(frozen=True, slots=True)
class DesiredObject:
    """One object as it should be, with its recorded and its actual state.

    :ivar obj: with its final name and id
    :ivar sql: the query to execute
    :ivar instance: id of the instance that it is generated for
    """

    obj: BuiltinObject
    reads: tuple[Dependency, ...] = ()
    sql: str | None = None
    recorded: RecordedObject | None = None
    live: LiveObject | None = None
    instance: str | None = None

    @property
    def uuid(self) -> UUID:
        return self.obj.id

    @property
    def key(self) -> str:
        """The name as it is compared."""
        return self.obj.key

    @property
    def kind(self) -> Kind:
        return self.obj.kind

    @property
    def keeps_rows(self) -> bool:
        """Whether a loss has to be accepted. That its rows may be made again counts from the next deploy on."""
        return self.obj.keep is not False or (self.recorded is not None and self.recorded.keep is not False)

    @property
    def keep_reason(self) -> str | None:
        """Why no loss can be accepted. That it no longer says so counts from the next deploy on, too."""
        said = (self.obj.keep, self.recorded.keep if self.recorded is not None else None)
        return next((each for each in said if isinstance(each, str)), None)


@dataclass(frozen=True)
class DesiredState:
    """The desired state of all objects.

    :ivar objects: by id, what is read before its readers
    :ivar graph: of what is read now
    :ivar problems: by id
    :ivar kept: ids that are recorded and not declared, and not to be touched
    :ivar unlisted: templates whose instances are not listed
    """

    objects: Mapping[UUID, DesiredObject]
    graph: Graph[UUID]
    problems: Mapping[UUID, Sequence[Reason]] = field(default_factory=dict)
    kept: frozenset[UUID] = frozenset()
    unlisted: tuple[BuiltinObject, ...] = ()


def relation(kind: Kind) -> LiveKind | None:
    """What a catalog sees of it; of a sink, nothing."""
    if kind in STORED:
        return LiveKind.TABLE
    return LiveKind.VIEW if kind is Kind.VIEW else None


def rank(desired: DesiredObject) -> tuple[int, str]:
    """Among objects that could come next: tables before views before sinks, then by name."""
    return (2 if desired.kind is Kind.SINK else int(desired.kind is Kind.VIEW), desired.key)


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version. What follows them is left out: a development version is of the release it leads to."""
    found = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", version)
    numbers = [int(part) for part in found.group(1).split(".")] if found is not None else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


_NUMBER = 8
"""Characters that a number and the sign between may take."""


def instance_id(template: UUID, instance: str) -> UUID:
    """The same whatever the instance is called."""
    return uuid5(template, instance)


class Generator:
    """Makes the objects of one plan.

    :param declared: all objects
    """

    def __init__(
        self, spec: CatalogSpec, declared: Iterable[BuiltinObject], recorded: RegistryState, live: ActualState
    ) -> None:
        self._instances = spec.instances
        self._recorded = recorded
        self._made = {
            each.marker: each.name for each in live.objects.values() if each.marker and not is_retired(each.name)
        }
        self._taken = {*live.objects, *(each.key for each in declared), *(each.key for each in recorded.objects)}
        self._taken.update(each.key for each in live.user_views)

    def objects(self, template: BuiltinObject) -> Iterator[tuple[BuiltinObject, str]]:
        """The objects of a template, with the ids of their instances."""
        for instance in sorted(self._instances.get(template.per_instance or "", ()), key=lambda each: each.id):
            identity = instance_id(template.id, instance.id)
            known = self._recorded.by_uuid.get(identity)
            name = known.name if known is not None else self._made.get(identity)
            if name is None:
                room = LONGEST_PART - _NUMBER - len(template.name.rpartition(".")[2])
                ending = re.sub(r"\W+", "_", instance.name, flags=re.ASCII)[: max(room, 1)].strip("_") or "_"
                name = available_name(f"{template.name}_{ending}", self._taken)
                self._taken.add(name.casefold())
            yield replace(template, id=identity, name=name), instance.id

    def kept(self, unlisted: Iterable[BuiltinObject]) -> frozenset[UUID]:
        """Recorded objects of templates without a list of instances: an unknown instance is not a removed one."""
        unknown = [each.id for each in unlisted]
        return frozenset(
            each.uuid
            for each in self._recorded.objects
            if each.instance is not None
            and any(instance_id(template, each.instance) == each.uuid for template in unknown)
        )
