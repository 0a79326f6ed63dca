"""Waiting for events and limits of growth, so that no test fails because the machine is busy.

Something that must not wait is tested against the one generous limit :data:`SOON`, with a fault that would wait far
longer. Growth is tested by comparing a large case with a small one of the same call.
"""

from __future__ import annotations

import gc
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

#: Seconds in which even a machine under load does what an idle one does at once.
SOON = 60.0
#: Seconds in which Java or Airflow starts and does its work, also where four others do so at once.
PATIENCE = 300.0
#: How far a growth may be from a proportional one: caches and allocations are in it, another square is not.
LEEWAY = 10


@contextmanager
def soon(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """The block ends within :data:`SOON` seconds of *clock*."""
    began = clock()
    yield
    assert clock() - began < SOON


def wait_until(
    condition: Callable[[], T],
    seconds: float = PATIENCE,
    *,
    every: float = 0.02,
    describe: Callable[[], object] = lambda: "it did not happen",
) -> T:
    """What *condition* returns, as soon as that is true.

    :param seconds: after which the test fails
    :param every: seconds between two looks
    :param describe: what the failure says
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"after {seconds:g} s: {describe()}"
        time.sleep(every)
    return found


def answers(url: str) -> bool:
    """Tell whether a server answers well."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def assert_grows_in_proportion(action: Callable[[int], object], *, small: int, large: int) -> None:
    """*action* takes at most :data:`LEEWAY` times as much per unit for *large* units as for *small* ones.

    :param action: called with the number of units, three times for each size; the best counts. Each time it is one
        unit more, so that no cache answers. The CPU of this thread is measured, without the garbage collector, which
        goes through what other tests have left.
    """
    cheap, dear = _cost(action, small), _cost(action, large)
    assert dear / large <= LEEWAY * cheap / small, (
        f"{small} units take {cheap * 1000:.2f} ms, {large} units take {dear * 1000:.2f} ms: "
        f"{dear / large * small / cheap:.1f} times as much a unit, {LEEWAY} are allowed"
    )


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
