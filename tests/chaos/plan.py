"""What a campaign will do, drawn from its seed alone.

Invariant: scenario ``n`` of seed ``s`` is the same for ever, on every machine; nothing that happens while a campaign
runs is asked. What a strike then hits depends on the machine's timing, as it does in life.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_provider_rfr.sample_api.dataset import Sizes

SIZES = Sizes(records=480, customers=12, partitions=6, pages=8, page_records=20)
ITEMS, CHILDREN, PARENTS = "items", "customer_orders", "customers"
COLLECTIONS = {ITEMS: "/partitions/items", CHILDREN: "/customers/orders", PARENTS: "/customers"}


class Victim(str, Enum):
    DRIVER = "driver"
    JVM = "jvm"
    WORKER = "worker"
    SUPERVISOR = "supervisor"
    API = "api"


class Blow(str, Enum):
    """KILL is SIGKILL; PAUSE is SIGSTOP and SIGCONT; OVERTAKE leaves the driver stopped until its successor runs."""

    KILL = "kill"
    PAUSE = "pause"
    OVERTAKE = "overtake"


class When(str, Enum):
    """What a moment is counted from: the attempt's start, a share of the open pages, its first committed round,
    or the round that completed the last partition, after which only the publish is left."""

    SECONDS = "seconds"
    PAGES = "pages"
    ROUND = "round"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Moment:
    """:ivar share: of the pages that were not given yet when the attempt began
    :ivar delay: seconds after that
    """

    when: When
    share: float
    delay: float


@dataclass(frozen=True, slots=True)
class Strike:
    """:ivar seconds: that the victim sleeps, or that the API stays away
    :ivar pick: which of several processes, from 0 to 1
    """

    blow: Blow
    victim: Victim
    moment: Moment
    seconds: float
    pick: float


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """:ivar change: of the source, before this attempt"""

    strikes: tuple[Strike, ...]
    faults: tuple[dict[str, Any], ...]
    change: dict[str, Any] | None
    supervised: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """One refresh, until it is published.

    :ivar streams: refreshed side by side; the first one is that whose answers fail and whose source changes
    :ivar keyed: whether the streams have primary keys, by which a publish could hide a doubled row
    :ivar named: whether the attempts are one run with a key, as in Airflow
    """

    number: int
    streams: tuple[str, ...]
    keyed: bool
    named: bool
    latency: float
    page_size: int
    options: dict[str, Any]
    attempts: tuple[AttemptPlan, ...]


def scenarios(seed: int) -> Iterator[Scenario]:
    """All scenarios of a seed, without end."""
    return (_scenario(random.Random(f"{seed}/{number}"), number) for number in itertools.count())


def _scenario(chance: random.Random, number: int) -> Scenario:
    stream = chance.choices([ITEMS, CHILDREN], [7, 3])[0]
    options = {
        "concurrency": chance.choice([2, 4, 8]),
        "round_seconds": chance.choice([0.5, 1, 3]),
        "head_start": chance.random() < 0.5,
    }
    attempts = chance.choice([3, 4, 5, 6, 7, 8])
    others = tuple(other for other in (PARENTS, CHILDREN, ITEMS) if other != stream) if number % 2 else ()
    return Scenario(
        number,
        (stream, *others),
        chance.random() < 0.5,
        chance.random() < 0.8,
        chance.choice([0.005, 0.03, 0.08]),
        chance.choice([10, 20]),
        options,
        tuple(attempt_of(chance, stream, first=index == 0) for index in range(attempts)),
    )


def attempt_of(chance: random.Random, stream: str, *, first: bool) -> AttemptPlan:
    """Draw an attempt.

    :param first: of its refresh, before which the source does not change
    """
    supervised = chance.random() < 0.4
    strikes = tuple(_strike(chance, supervised) for _ in range(chance.choice([1, 2, 2, 3])))
    faults = tuple(_fault(chance, stream) for _ in range(chance.choice([0, 1, 1, 2])))
    change = None if first or chance.random() < 0.8 else _change(chance, stream)
    return AttemptPlan(strikes, faults, change, supervised)


def _strike(chance: random.Random, supervised: bool) -> Strike:
    blow = chance.choices([Blow.KILL, Blow.PAUSE, Blow.OVERTAKE], [86, 7, 7])[0]
    victim = chance.choices(list(Victim), [36, 20, 22, 12 if supervised else 0, 10])[0]
    if blow is Blow.OVERTAKE:
        victim = Victim.DRIVER
    return Strike(blow, victim, _moment(chance), round(chance.uniform(0.1, 4.0), 3), chance.random())


def _moment(chance: random.Random) -> Moment:
    when = chance.choices(list(When), [4, 4, 2, 3])[0]
    delay = {When.SECONDS: 5.0, When.PAGES: 0.3, When.ROUND: 1.2, When.COMPLETE: 0.8}[when]
    return Moment(when, round(chance.uniform(0.02, 0.9), 3), round(chance.uniform(0.0, delay), 3))


def _change(chance: random.Random, stream: str) -> dict[str, Any]:
    if chance.random() < 0.5:
        return {"kind": "edit", "collection": COLLECTIONS[stream]}
    return {"kind": "shrink", "collection": COLLECTIONS[stream], "records": chance.randint(1, 7)}


def _fault(chance: random.Random, stream: str) -> dict[str, Any]:
    common = [
        {"kind": "rate_limit", "retry_after": 1, "times": chance.randint(1, 4)},
        {"kind": "error", "status": chance.choice([500, 502, 503]), "times": chance.randint(1, 4)},
        {"kind": "error", "status": 500, "times": 12},
        {"kind": "latency", "seconds": 2.0, "times": chance.randint(1, 2)},
        {"kind": "hang", "seconds": 1.5, "times": chance.randint(1, 2)},
        {"kind": "truncate", "keep": round(chance.random(), 2), "times": chance.randint(1, 4)},
        {"kind": "malformed", "times": chance.randint(1, 3)},
        {"kind": "disconnect", "times": chance.randint(1, 4)},
        {"kind": "drip", "seconds": 0.02, "chunk": 256, "times": chance.randint(1, 5)},
        {"kind": "repeat_page", "times": chance.randint(1, 2)},
    ]
    tokens = [{"kind": "repeat_cursor", "times": 1}, {"kind": "expire_token", "times": chance.randint(1, 2)}]
    fault = chance.choice(common + tokens * 2 if stream == CHILDREN else common)
    path = {CHILDREN: "/customers/*/orders", ITEMS: "/partitions/*/items"}.get(stream, f"/{stream}")
    return {**fault, "path": path, "after": chance.randint(0, 40)}
