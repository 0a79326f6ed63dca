"""Chains of migration instructions, from the recorded contract to the declared one.

The keys are contract fingerprints and not versions: backports, development versions and skipped versions have the
same fingerprints as any other."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from airflow_provider_rfr.builtins.spec import Migration, Strategy
from airflow_provider_rfr.builtins.sql.parse import compose

_SHORTEST_PREFIX = 8
"""Digits of a fingerprint that an instruction has to name."""
_ORDER = tuple(Strategy)


@dataclass(frozen=True, slots=True)
class Chained:
    """Several instructions as one.

    :ivar how: the strongest of them
    :ivar expressions: SQL by column, over the columns at the chain's start
    """

    how: Strategy
    expressions: Mapping[str, str] = field(default_factory=dict)
    length: int = 1


def names(one: str, other: str) -> bool:
    """Whether two fingerprints, one of them perhaps in its first digits alone, are the same."""
    short, long = sorted((each.casefold().rstrip("…. ") for each in (one, other)), key=len)
    return len(short.rpartition(":")[2]) >= _SHORTEST_PREFIX and long.startswith(short)


def path(migrations: Sequence[Migration], before: str, after: str) -> tuple[Migration, ...] | None:
    """The instructions that lead from one fingerprint to another: those that lose nothing before any that do, then the
    fewest, then the gentlest, then those declared first. None: they do not lead there."""
    waiting: list[tuple[int, int, int, tuple[int, ...], str]] = [(0, 0, 0, (), before)]
    done: set[str] = set()
    while waiting:
        lossy, length, weight, taken, here = heapq.heappop(waiting)
        if taken and names(here, after):
            return tuple(migrations[number] for number in taken)
        if here in done:
            continue
        done.add(here)
        for number, each in enumerate(migrations):
            if number not in taken and names(each.before, here):
                loses = lossy + (each.how is Strategy.REPLACE_EMPTY)
                step = (loses, length + 1, weight + _ORDER.index(each.how), (*taken, number), each.after)
                heapq.heappush(waiting, step)
    return None


def merge(steps: Sequence[Migration]) -> Chained:
    """One instruction for all of them. Evolving twice is evolving once; anything stronger takes in what is gentler;
    expressions are put into each other; emptying anywhere empties the whole."""
    return reduce(_both, (Chained(each.how, dict(each.expressions)) for each in steps))


def _both(first: Chained, then: Chained) -> Chained:
    """Two instructions as one. It makes no difference which two of three are taken first."""
    how = max(first.how, then.how, key=_ORDER.index)
    rewritten = {column: compose(text, first.expressions) for column, text in then.expressions.items()}
    return Chained(how, {**first.expressions, **rewritten}, first.length + then.length)


def unused(migrations: Iterable[Migration], wanted: str) -> list[Migration]:
    """Instructions that can never lead to the wanted contract: left over from something that was never released, or
    copied with a mistake. Those that lead there from contracts of the past are not among them."""
    left, reached = list(migrations), [wanted]
    while reached:
        here = reached.pop()
        for each in [each for each in left if names(each.after, here) and not names(each.before, wanted)]:
            left.remove(each)
            reached.append(each.before)
    return left
