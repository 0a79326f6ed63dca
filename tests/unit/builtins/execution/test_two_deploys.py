"""Two deploys of one project: one after the other where both live; once the second took over, the first is out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import CatalogSpec
from airflow_provider_rfr.builtins.plan import Plan
from airflow_provider_rfr.exceptions import DeployBusyError, LeaseLostError, RfrError, StalePlanError
from airflow_provider_rfr.store.leases import acquire
from tests.unit.builtins.catalogs import PROJECT, made, spec, table
from tests.unit.builtins.execution.crashing import Worlds, before_each_effect
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises

TEXT = table("ops.text", made("id string", "CAST(id AS string)", type="int"))
NAMED, LOOSE = table("ops.named", "id int"), table("ops.gone", "id int", keep=False)
BEFORE = spec("1.0", table("ops.wide", "id int"), table("ops.text", "id int"), NAMED, LOOSE)
AFTER = spec(
    "2.0",
    table("ops.wide", "id bigint"),
    TEXT,
    replace(NAMED, name="ops.called"),
    table("ops.fresh", "id int", comment="new"),
)
LATER = replace(AFTER, version="3.0", objects=tuple(obj for obj in AFTER.objects if obj.name != "ops.fresh"))
OTHER = spec("3.0", table("ops.wide", "id bigint", "x int"), TEXT, NAMED, LOOSE)


@pytest.fixture(autouse=True)
def _without_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the rows of history, which a deploy writes after its lease has ended."""
    monkeypatch.setattr("airflow_provider_rfr.builtins.deploy.record_deploys", lambda *_: None)


def prepare(place: Place) -> None:
    place.deploy(BEFORE)
    for number, name in enumerate(("ops.wide", "ops.text", "ops.named", "ops.gone")):
        place.append(name, {"id": number})


def test_of_two_deploys_of_the_same_plan_one_works_and_both_end(tmp_path: Path) -> None:
    first, second = Place(tmp_path), Place(tmp_path)
    prepare(first)
    plan, start = first.plan(AFTER), threading.Barrier(2)

    def deploy(place: Place) -> Any:
        start.wait()
        return place.apply(plan, AFTER, patience=120.0)

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(deploy, (first, second)))
    assert [item.state for item in done] == ["done", "done"] and done[0].deploy_id == done[1].deploy_id
    assert len(first.catalog.load_table("ops.text").metadata.snapshots) == 2
    assert first.plan(AFTER).steps == ()
    second.close()
    first.close()


def test_of_two_plans_from_one_base_one_is_refused(place: Place) -> None:
    prepare(place)
    one, two = place.plan(AFTER), place.plan(OTHER)
    place.apply(one, AFTER)
    before = place.snapshots()
    with raises(StalePlanError):
        place.apply(two, OTHER)
    assert place.snapshots() == before


def test_who_does_not_wait_is_told_who_deploys(place: Place) -> None:
    with acquire(place.store, PROJECT, holder="deployer on host 7"):
        with raises(DeployBusyError):
            place.apply(place.plan(BEFORE), BEFORE, patience=0.0)
    assert not list(place.catalog.list_namespaces())


class Paused:
    """A deploy that is paused before one of its effects, for longer than its lease, while another one takes over."""

    def __init__(self, number: int, meanwhile: Callable[[], None]) -> None:
        self._left = number
        self._meanwhile = meanwhile

    def __call__(self, name: str) -> None:
        self._left -= 1
        if self._left == -1:
            self._meanwhile()


def recorded(folder: Path, *, looks: bool = False) -> tuple[Worlds, Plan]:
    """The world before each effect of a deploy, and its plan."""
    worlds = Worlds(folder)
    place = worlds.open()
    prepare(place)
    plan = place.plan(AFTER)
    worlds.record(place, lambda: place.apply(plan, AFTER), looks=looks)
    place.close()
    return worlds, plan


def paused(
    worlds: Worlds, number: int, plan: Plan, other: CatalogSpec, *, looks: bool = False
) -> tuple[Place, RfrError | None]:
    """The world after a deploy of ``other`` and the end of the one that it overtook; what that one was told."""
    old = worlds.restore(0)
    new = worlds.open()
    before: dict[str, list[int]] = {}

    def meanwhile() -> None:
        worlds.wait()
        new.deploy(other)
        before.update(new.snapshots())

    told = None
    with before_each_effect(old, Paused(number, meanwhile), looks=looks):
        try:
            old.apply(plan, AFTER)
        except RfrError as error:
            told = error
    assert new.snapshots() == before, (number, told)
    old.close()
    return new, told


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(AFTER, id="the same", marks=pytest.mark.full),
        pytest.param(LATER, id="a later one", marks=pytest.mark.full),
        pytest.param(OTHER, id="another one"),
    ],
)
def test_a_deploy_that_wakes_up_after_another_one_took_over_changes_nothing(tmp_path: Path, other: CatalogSpec) -> None:
    """Whatever it was about to do when it was paused."""
    worlds, plan = recorded(tmp_path)
    assert [step.how.value for step in plan.steps] == ["rename", "create", "evolve", "rewrite", "remove"]
    effects = [name for name in worlds.names if name != "the end"]
    for number, name in list(enumerate(effects))[1:-1]:
        new, told = paused(worlds, number, plan, other)
        assert isinstance(told, LeaseLostError), (number, name, told)
        again = new.plan(other)
        assert (again.steps, again.drift) == ((), ()), (number, name)
        new.close()


def test_a_deploy_that_was_paused_before_it_looked_at_a_table_finds_out_by_looking(tmp_path: Path) -> None:
    """It sees the table that the other deploy left, so the commit alone would not be refused."""
    worlds, plan = recorded(tmp_path, looks=True)
    looks = [number for number, name in enumerate(worlds.names) if name == "load_table"]
    begun = [number for number in looks if worlds.names[number - 1] == "run"]
    assert len(begun) > 4
    for number in begun:
        new, told = paused(worlds, number, plan, OTHER, looks=True)
        assert isinstance(told, LeaseLostError), (number, told)
        assert new.plan(OTHER).steps == ()
        new.close()
