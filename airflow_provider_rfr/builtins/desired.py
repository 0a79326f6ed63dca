"""The desired state: each declared object with its final name and its reads, and orders of reads.

Objects with ``per_instance`` become one object for each instance. Their ids come from the instance's id. Their names
are generated once, made unique by a number, and kept in the registry from then on, even if the instance is renamed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
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
    """Some nodes read each other in a cycle.

    :ivar cycle: each one reads the next, the last reads the first
    """

    def __init__(self, cycle: Iterable[Any]) -> None:
        self.cycle = tuple(cycle)
        super().__init__(" reads ".join(map(str, (*self.cycle, *self.cycle[:1]))))


def in_order(reads: Mapping[Node, Iterable[Node]], rank: Callable[[Node], Any]) -> tuple[Node, ...]:
    """Every node after everything that it reads; of those that could come next, the lowest rank first.

    :param reads: what each node reads; what has no entry of its own is left out
    :param rank: different for each node
    :raises CycleError: there is no such order
    """
    # Numbers, because ids are slow to compare; no graphlib, whose many small objects cost a full garbage collection.
    nodes = sorted(reads, key=rank)
    numbers = {node: number for number, node in enumerate(nodes)}
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for node, number in numbers.items():
        for each in reads[node]:
            if (read := numbers.get(each)) is not None:
                readers[read].append(number)
                missing[number] += 1
    ready = [number for number, count in enumerate(missing) if not count]
    found: list[Node] = []
    while ready:
        read = heapq.heappop(ready)
        found.append(nodes[read])
        for number in readers[read]:
            missing[number] -= 1
            if not missing[number]:
                heapq.heappush(ready, number)
    if len(found) < len(nodes):
        raise CycleError(_cycle({node: reads[node] for node in nodes if missing[numbers[node]]}))
    return tuple(found)


def _cycle(left: Mapping[Node, Iterable[Node]]) -> list[Node]:
    """A cycle, from its first member on, among nodes of which each reads another one of them."""
    places = {node: place for place, node in enumerate(left)}
    here, path = next(iter(left)), dict[Node, None]()
    while here not in path:
        path[here] = None
        here = min((each for each in left[here] if each in places), key=places.__getitem__)
    cycle = list(path)[list(path).index(here) :]
    first = cycle.index(min(cycle, key=places.__getitem__))
    return cycle[first:] + cycle[:first]


def readers_of(roots: Iterable[Node], order: Iterable[Node], reads: Mapping[Node, Iterable[Node]]) -> set[Node]:
    """The roots, and everything that reads one of them, directly or not.

    :param order: as :func:`in_order` has it
    """
    found = set(roots)
    for node in order:
        if not found.isdisjoint(reads[node]):
            found.add(node)
    return found


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
    :ivar problems: by id
    :ivar kept: ids that are recorded and not declared, and not to be touched
    :ivar unlisted: templates whose instances are not listed
    """

    objects: Mapping[UUID, DesiredObject]
    problems: Mapping[UUID, Sequence[Reason]] = field(default_factory=dict)
    kept: frozenset[UUID] = frozenset()
    unlisted: tuple[BuiltinObject, ...] = ()


def relation(kind: Kind) -> LiveKind | None:
    """What a catalog sees of it; of a sink, nothing."""
    if kind in STORED:
        return LiveKind.TABLE
    return LiveKind.VIEW if kind is Kind.VIEW else None


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


def objects_of(
    spec: CatalogSpec, recorded: RegistryState, live: ActualState
) -> Iterator[tuple[BuiltinObject, str | None]]:
    """The declared objects; for each with ``per_instance`` those of its instances, with their instances' ids."""
    made = {each.marker: each.name for each in live.objects.values() if each.marker and not is_retired(each.name)}
    taken = {*live.objects, *(each.key for each in (*spec.objects, *recorded.objects, *live.user_views))}
    for obj in spec.objects:
        if obj.per_instance is None:
            yield obj, None
            continue
        for instance in sorted(spec.instances.get(obj.per_instance, ()), key=lambda each: each.id):
            identity = instance_id(obj.id, instance.id)
            known = recorded.by_uuid.get(identity)
            name = known.name if known is not None else made.get(identity)
            if name is None:
                room = LONGEST_PART - _NUMBER - len(obj.name.rpartition(".")[2])
                ending = re.sub(r"\W+", "_", instance.name, flags=re.ASCII)[: max(room, 1)].strip("_") or "_"
                name = available_name(f"{obj.name}_{ending}", taken)
                taken.add(name.casefold())
            yield replace(obj, id=identity, name=name), instance.id
