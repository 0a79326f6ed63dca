"""Checks of your own objects across deploys: what must hold after upgrades, crashes and repeated deploys.

A check initializes, manipulates twice and validates; scenarios put deploys between these, and each ends with one more
deploy of the newest version, which must have nothing to do, and one more validation. After Materialize's Platform
Checks (``misc/python/materialize/checks``)::

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

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_provider_rfr.builtins.execution.deploy import apply
from airflow_provider_rfr.builtins.execution.observe import ViewsOf, catalog_views, entry_of, observe
from airflow_provider_rfr.builtins.execution.work import Applied, SqlEngine
from airflow_provider_rfr.builtins.planning.plan import Plan, Policies
from airflow_provider_rfr.builtins.planning.planner import plan as make_plan
from airflow_provider_rfr.builtins.spec import CatalogSpec
from airflow_provider_rfr.builtins.state import RegistryState
from airflow_provider_rfr.exceptions import StalePlanError
from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.target import append_rows
from airflow_provider_rfr.store.deploys import read_registry, write_registry
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.leases import acquire

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")

_LEASE_SECONDS = 2.0
"""A deploy that died holds its lease for so long."""
_PATIENCE = 60.0


class World:
    """A lake and a control store, empty at first.

    :param store_url: SQLAlchemy address of the control store
    :param engine: runs SQL; needed for views, rewrites and materialized views
    :ivar manipulated: how many manipulations there were
    """

    def __init__(
        self, lake: LakeSettings, store_url: str, engine: SqlEngine | None = None, views: ViewsOf = catalog_views
    ) -> None:
        self.catalog = open_catalog(lake)
        self.store = open_store(store_url)
        self.manipulated = 0
        self._engine = engine
        self._views = views

    def plan(self, spec: CatalogSpec, policies: Policies | None = None) -> Plan:
        """What a deploy would do now."""
        recorded, live = observe(self.catalog, self.store, project=spec.project, views=self._views)
        return make_plan(spec, recorded, live, policies=policies)

    def recorded(self, spec: CatalogSpec) -> RegistryState:
        """What the last deploy left."""
        return observe(self.catalog, self.store, project=spec.project, views=self._views)[0]

    def deploy(self, spec: CatalogSpec, policies: Policies | None = None) -> Applied:
        """Plan and apply.

        :raises BlockedPlanError: something stops the plan
        """
        return self.apply(self.plan(spec, policies), spec, self.store)

    def apply(self, plan: Plan, spec: CatalogSpec, store: ControlStore) -> Applied:
        return apply(
            plan,
            catalog=self.catalog,
            store=store,
            spec=spec,
            sql=self._engine,
            actor="checks",
            views=self._views,
            patience=_PATIENCE,
            lease_seconds=_LEASE_SECONDS,
        )

    def force(self, spec: CatalogSpec) -> Applied:
        """Deploy as if everything had been another way before: every object has a step."""
        recorded = self.recorded(spec)
        objects = [
            replace(each, definition="another way", raw_sql=each.raw_sql and f"{each.raw_sql} LIMIT 0")
            for each in recorded.objects
        ]
        with acquire(self.store, spec.project, seconds=_LEASE_SECONDS, patience=_PATIENCE) as lease:
            lease.write(
                lambda connection, now: write_registry(
                    connection,
                    spec.project,
                    base_revision=recorded.revision,
                    version=recorded.version,
                    deploy_id=read_registry(connection, spec.project).deploy_id,
                    entries=list(map(entry_of, objects)),
                    forgotten=(),
                    now=now,
                )
            )
        plan = self.plan(spec)
        declared = {each.key for each in spec.objects if each.per_instance is None}
        if left := declared - {each.name.casefold() for each in plan.steps}:
            raise AssertionError(f"no step was forced for {', '.join(sorted(left))}")
        return self.apply(plan, spec, self.store)

    def append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows, by the names of the columns as they are now."""
        append_rows(self.catalog, table, rows)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Everything in a table."""
        found: list[dict[str, Any]] = self.catalog.load_table(table).scan().to_arrow().to_pylist()
        return found


class Check:
    """What must be so. Each method meets the objects of whatever version is deployed at that moment."""

    def initialize(self, world: World) -> None:
        """Once, after the first deploy."""

    def manipulate(self, world: World, number: int) -> None:
        """Twice, with 1 and 2; deploys may come before and after each."""

    def validate(self, world: World) -> None:
        """Any number of times; changes nothing, and raises if anything is not as it must be."""


@dataclass
class _Stage:
    """A scenario under way.

    :ivar versions: the oldest first
    """

    world: World
    versions: Sequence[CatalogSpec]
    checks: Sequence[Check]
    random: random.Random

    def begin(self, spec: CatalogSpec) -> None:
        self.world.deploy(spec)
        for check in self.checks:
            check.initialize(self.world)

    def manipulate(self, number: int) -> None:
        self.world.manipulated = number
        for check in self.checks:
            check.manipulate(self.world, number)

    def validate(self) -> None:
        for check in (*self.checks, *self.checks):
            check.validate(self.world)

    def back(self, count: int) -> CatalogSpec:
        """The version so many before the newest."""
        return self.versions[max(0, len(self.versions) - 1 - count)]

    def crash(self, spec: CatalogSpec) -> None:
        """A deploy that dies at one of its writes, or just gets through."""
        plan = self.world.plan(spec)
        mortal = _Mortal(self.world.store, self.random.randrange(1, 4 + 3 * len(plan.steps)))
        try:
            self.world.apply(plan, spec, cast(ControlStore, mortal))
        except _Death:
            return

    def force(self) -> None:
        """Every object is migrated though nothing changed; ids, rows and what users made stay."""
        before = {each.uuid for each in self.world.recorded(self.versions[-1]).objects}
        self.world.force(self.versions[-1])
        if before != {each.uuid for each in self.world.recorded(self.versions[-1]).objects}:
            raise AssertionError("a forced migration gave an object another id")
        self.validate()

    def together(self, spec: CatalogSpec) -> None:
        """Two deploys of the same version at once; one of them may find that the other was faster."""
        plans = [self.world.plan(spec) for _ in range(2)]
        errors: list[BaseException] = []

        def run(plan: Plan) -> None:
            try:
                self.world.apply(plan, spec, self.world.store)
            except StalePlanError:
                return
            except BaseException as error:  # noqa: BLE001 - raised by the thread that started this one
                errors.append(error)

        threads = [threading.Thread(target=run, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


@dataclass(frozen=True)
class Scenario:
    """Deploys between the phases of the checks."""

    name: str
    play: Callable[[_Stage], None]


def run_scenario(
    scenario: Scenario, checks: Sequence[Check], versions: Sequence[CatalogSpec], world: World, *, seed: int = 0
) -> None:
    """Play a scenario in an empty world, and deploy and validate once more.

    :param seed: of where crashes happen; say it when a scenario fails
    :raises AssertionError: a check does not hold, or the last deploy had something to do
    """
    stage = _Stage(world, versions, checks, random.Random(f"{seed}/{scenario.name}"))
    try:
        scenario.play(stage)
        stage.validate()
        newest = versions[-1]
        world.deploy(newest)
        again = world.plan(newest)
        if again.steps or again.drift or again.blocked:
            raise AssertionError(f"the deploy after the last one has something to do: {again.steps or again.blocked}")
        world.deploy(newest)
        stage.validate()
    except Exception as error:
        error.add_note(f"scenario {scenario.name}, seed {seed}")
        raise


def _between(count: int, *deploys: Callable[[_Stage], None]) -> Callable[[_Stage], None]:
    """Begin so many versions before the newest, and deploy between the two manipulations."""

    def play(stage: _Stage) -> None:
        stage.begin(stage.back(count))
        stage.manipulate(1)
        for deploy in deploys:
            deploy(stage)
        stage.manipulate(2)

    return play


def _upgraded(left: int = 0) -> Callable[[_Stage], None]:
    """A deploy of the version so many before the newest, and a validation."""

    def deploy(stage: _Stage) -> None:
        stage.world.deploy(stage.back(left))
        stage.validate()

    return deploy


def _crashed(left: int = 0) -> Callable[[_Stage], None]:
    return lambda stage: stage.crash(stage.back(left))


def _redeployed(stage: _Stage) -> None:
    stage.begin(stage.back(0))
    for number in (1, 2):
        _upgraded()(stage)
        stage.manipulate(number)
    stage.world.deploy(stage.back(0))


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("no restart", _between(0)),
    Scenario("redeploy", _redeployed),
    *(Scenario(f"upgrade over {count}", _between(count, _upgraded())) for count in (1, 2, 4)),
    *(
        Scenario(f"upgrade over {count}, one by one", _between(count, *map(_upgraded, reversed(range(count)))))
        for count in (2, 4)
    ),
    Scenario("abandoned deploy, then another version", _between(2, _crashed(1), _upgraded())),
    Scenario("crashes at random steps", _between(1, *[_crashed()] * 3, _upgraded())),
    Scenario("everything by force", _between(0, lambda stage: stage.force())),
    Scenario("two deploys at once", _between(1, lambda stage: stage.together(stage.back(0)))),
)


class _Death(BaseException):
    """No error handling may keep a dead process alive."""


class _Mortal:
    """A control store whose process dies at one of its writes, and writes nothing more."""

    def __init__(self, store: ControlStore, dies_at: int) -> None:
        self._store = store
        self._left = dies_at
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def run(self, work: Callable[[Connection], T], *, patience: float = 60.0) -> T:
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                raise _Death
        return self._store.run(work, patience=patience)
