"""Which object reads which, and the orders that follow: what is read comes before its readers.

Orders are the same for the same edges whatever order they were given in; ties are broken by a rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

Node = TypeVar("Node", bound=Hashable)


class CycleError(ValueError):
    """The objects read each other in a circle.

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
        """The roots, whoever reads them, whoever reads those, and so on."""
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
