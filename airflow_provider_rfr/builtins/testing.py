"""Checks of your own objects across deploys: conditions that must hold after upgrades, crashes and repeated deploys.

A check prepares data, changes it twice, and validates a condition. Scenarios run deploys in between. Each scenario ends
with one more deploy of the newest version, which must have nothing to do, and one more validation. The design follows
Materialize's Platform Checks (``misc/python/materialize/checks``)::

    from airflow_provider_rfr.builtins.testing import SCENARIOS, Check, World, run_scenario

    class RunsAreKept(Check):
        def initialize(self, world): world.append("ops.runs", [{"id": "a"}])
        def manipulate(self, world, number): world.append("ops.runs", [{"id": f"m{number}"}])
        def validate(self, world): assert len(world.rows("ops.runs")) == 1 + world.manipulated

    versions = [load_objects(folder, version=folder.name, entry_points=False) for folder in sorted(releases)]
    for scenario in SCENARIOS:
        run_scenario(scenario, [RunsAreKept()], versions, World(lake, store_url))
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection

from airflow_provider_rfr.builtins.deploy import Applied, apply
from airflow_provider_rfr.builtins.maintenance import entry_of, observe
from airflow_provider_rfr.builtins.model import CatalogSpec
from airflow_provider_rfr.builtins.plan import Plan, Policies, exit_code
from airflow_provider_rfr.builtins.planner import plan as make_plan
from airflow_provider_rfr.exceptions import BlockedPlanError, StalePlanError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.rows import append_rows
from airflow_provider_rfr.store.deploys import read_registry, write_registry
from airflow_provider_rfr.store.engine import ControlStore, open_store

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine

_T = TypeVar("_T")


class World:
    """A lake and a control store, empty at first.

    :param store_url: SQLAlchemy address of the control store
    :param engine: runs SQL; needed for views, rewrites and materialized views
    :ivar manipulated: number of manipulations so far
    """

    def __init__(self, lake: LakeSettings, store_url: str, engine: SparkSqlEngine | None = None) -> None:
        self.catalog = open_catalog(lake)
        self.store = open_store(store_url)
        self.manipulated = 0
        self._engine = engine

    def plan(self, spec: CatalogSpec, policies: Policies | None = None) -> Plan:
        states = observe(self.catalog, self.store, project=spec.project, spec=spec)
        return make_plan(spec, *states, policies=policies)

    def deploy(self, spec: CatalogSpec, policies: Policies | None = None) -> Applied:
        """Plan and apply.

        :raises BlockedPlanError: something stops the plan
        """
        return self.apply(self.plan(spec, policies), spec)

    def apply(self, plan: Plan, spec: CatalogSpec, store: ControlStore | None = None) -> Applied:
        where: dict[str, Any] = {"catalog": self.catalog, "store": store or self.store, "sql": self._engine}
        # A deploy that died blocks the next one until its lease ends, so the lease is short.
        return apply(plan, spec=spec, actor="checks", lease_seconds=2.0, patience=60.0, **where)

    def append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to a table; their keys are present names of its columns."""
        append_rows(self.catalog, table, rows)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table."""
        rows: list[dict[str, Any]] = self.catalog.load_table(table).scan().to_arrow().to_pylist()
        return rows


class Check:
    """A condition that must hold. Each method sees the objects of the version that is deployed at that moment."""

    def initialize(self, world: World) -> None:
        """Prepare data; called once, after the first deploy."""

    def manipulate(self, world: World, number: int) -> None:
        """Change data; called twice, with 1 and 2; deploys may come before and after each call."""

    def validate(self, world: World) -> None:
        """Raise if the condition does not hold, and change nothing; called any number of times."""


def upgrade(world: World, spec: CatalogSpec, chance: random.Random) -> None:
    """Deploy the version without disturbance."""
    world.deploy(spec)


class _Death(BaseException):
    """The death of a process. It is no ``Exception``, so that no error handler of the deploy catches it."""


def crash(world: World, spec: CatalogSpec, chance: random.Random) -> None:
    """Run a deploy that dies at one of its writes and writes nothing more, or just succeeds."""
    plan = world.plan(spec)
    # Several threads write, and next() of an iterator is atomic.
    writes, dies_at = itertools.count(1), chance.randrange(1, 4 + 3 * len(plan.steps))

    def run(work: Callable[[Connection], _T], *, patience: float = 60.0) -> _T:
        if next(writes) >= dies_at:
            raise _Death
        return world.store.run(work, patience=patience)

    mortal = copy(world.store)
    mortal.run = run  # type: ignore[method-assign]
    with suppress(_Death):
        world.apply(plan, spec, mortal)


def look(world: World, spec: CatalogSpec, chance: random.Random) -> None:
    """Plan the version, and deploy nothing."""
    world.plan(spec)


def back(world: World, spec: CatalogSpec, chance: random.Random) -> None:
    """Deploy an older version; it may be refused, because a newer one was deployed or data would be lost."""
    with suppress(BlockedPlanError):
        world.deploy(spec)


def force(world: World, spec: CatalogSpec, chance: random.Random) -> None:
    """Deploy as if everything had been different before: every object has a step; ids, rows and users' objects stay."""
    recorded, _ = observe(world.catalog, world.store, project=spec.project)
    changed = [
        replace(obj, definition="another way", raw_sql=obj.raw_sql and f"{obj.raw_sql} LIMIT 0")
        for obj in recorded.objects
    ]

    def write(connection: Connection) -> None:
        base = (recorded.revision, recorded.version, read_registry(connection, spec.project).deploy_id)
        write_registry(connection, spec.project, *base, world.store.now(connection), entries=map(entry_of, changed))

    world.store.run(write)
    plan = world.plan(spec)
    declared = {obj.key for obj in spec.objects if obj.per_instance is None}
    if left := declared - {step.name.casefold() for step in plan.steps}:
        raise AssertionError(f"no step was forced for {', '.join(sorted(left))}")
    world.apply(plan, spec)
    after, _ = observe(world.catalog, world.store, project=spec.project)
    if recorded.by_uuid.keys() != after.by_uuid.keys():
        raise AssertionError("a forced migration gave an object another id")


def together(world: World, spec: CatalogSpec, chance: random.Random) -> None:
    """Run two deploys of the version at once; the slower one may find its plan stale."""

    def run(plan: Plan) -> None:
        with suppress(StalePlanError):
            world.apply(plan, spec)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, [world.plan(spec) for _ in range(2)]))


Deploys = tuple[tuple[Callable[[World, CatalogSpec, random.Random], None], int], ...]
"""Deploys in order: the function that runs one, and the version's distance from the newest version."""


@dataclass(frozen=True)
class Scenario:
    """A sequence of deploys around the calls of checks.

    :ivar begins: distance of the first deployed version from the newest version
    :ivar between: deploys between the two manipulations
    """

    name: str
    begins: int = 0
    between: Deploys = ()


_NEWEST = (upgrade, 0)
SCENARIOS: tuple[Scenario, ...] = (
    Scenario("no restart"),
    Scenario("redeploy", 0, (_NEWEST, _NEWEST)),
    *(Scenario(f"upgrade over {count}", count, (_NEWEST,)) for count in (1, 2, 4)),
    Scenario("upgrade over 2, one by one", 2, ((upgrade, 1), _NEWEST)),
    Scenario("upgrade over 4, one by one", 4, ((upgrade, 3), (upgrade, 2), (upgrade, 1), _NEWEST)),
    Scenario("abandoned deploy, then another version", 2, ((crash, 1), _NEWEST)),
    Scenario("planned, then the old version", 1, ((look, 0), (upgrade, 1), _NEWEST)),
    Scenario("crash, then back to the old version", 1, ((crash, 0), (back, 1), _NEWEST)),
    Scenario("crashes at random steps", 1, (*[(crash, 0)] * 3, _NEWEST)),
    Scenario("everything by force", 0, ((force, 0),)),
    Scenario("two deploys at once", 1, ((together, 0),)),
)


def run_scenario(
    scenario: Scenario, checks: Sequence[Check], versions: Sequence[CatalogSpec], world: World, *, seed: int = 0
) -> None:
    """Play a scenario in an empty world, and deploy and validate once more.

    :param versions: the oldest first
    :param seed: seed of the random steps at which deploys crash
    :raises AssertionError: a check does not hold, or the last deploy had something to do
    """
    try:
        _play(scenario, checks, versions, world, random.Random(f"{seed}/{scenario.name}"))
    except Exception as error:
        error.add_note(f"scenario {scenario.name}, seed {seed}")
        raise


def _play(
    scenario: Scenario, checks: Sequence[Check], versions: Sequence[CatalogSpec], world: World, chance: random.Random
) -> None:
    newest_first = [*reversed(versions), *[versions[0]] * scenario.begins]

    def validate() -> None:
        for check in (*checks, *checks):
            check.validate(world)

    world.deploy(newest_first[scenario.begins])
    for check in checks:
        check.initialize(world)
    for number, deploys in enumerate(((), scenario.between), 1):
        for deploy, left in deploys:
            deploy(world, newest_first[left], chance)
            # A deploy that died or was refused may leave the objects between two versions.
            if deploy not in (crash, back) or exit_code(world.plan(newest_first[left])) == 0:
                validate()
        world.manipulated = number
        for check in checks:
            check.manipulate(world, number)
    validate()
    world.deploy(versions[-1])
    again = world.plan(versions[-1])
    if again.steps or again.drift or again.blocked:
        raise AssertionError(f"the deploy after the last one has something to do: {again.steps or again.blocked}")
    world.deploy(versions[-1])
    validate()
