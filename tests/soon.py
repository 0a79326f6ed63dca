"""What must not take long, told apart from what does on every machine: no test fails for a busy one.

A test of patience makes the wrong thing wait for ever, and so for longer than :data:`SOON`. A test of growth compares
a large case with a small one of the same call.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds in which even a machine under load does what an idle one does at once.
SOON = 60.0
#: How far a growth may be from a proportional one: caches and allocations are in it, another square is not.
LEEWAY = 10


@contextmanager
def soon(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """The block ends within :data:`SOON` seconds of *clock*."""
    began = clock()
    yield
    assert clock() - began < SOON


def grows_in_proportion(action: Callable[[int], object], *, small: int, large: int) -> bool:
    """Whether *action* takes at most :data:`LEEWAY` times as much per unit for *large* units as for *small* ones.

    :param action: called with the number of units, three times for each size; the best counts. Each time it is one
        unit more, so that no cache answers. The CPU of this thread is measured, without the garbage collector, which
        goes through what other tests have left.
    """
    return _cost(action, large) / large <= LEEWAY * _cost(action, small) / small


def _cost(action: Callable[[int], object], units: int) -> float:
    costs = []
    for more in range(3):
        gc.disable()
        try:
            began = time.thread_time()
            action(units + more)
            costs.append(time.thread_time() - began)
        finally:
            gc.enable()
    return min(costs)
