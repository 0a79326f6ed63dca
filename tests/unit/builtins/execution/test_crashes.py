"""A deploy may die before any of its effects: whoever deploys next brings it to the same end, doing nothing twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_provider_rfr.builtins.planning.plans import Plan
from airflow_provider_rfr.builtins.spec import CatalogSpec
from tests.unit.builtins.catalogs import spec, table
from tests.unit.builtins.execution.crashing import Worlds
from tests.unit.builtins.execution.everything import AFTER, POLICIES, check, prepare
from tests.unit.builtins.execution.places import Place

LATER = replace(AFTER, version="3.0")
MECHANISMS = {
    *("create", "adopt", "metadata", "evolve", "rewrite", "shadow", "recompute", "replace_empty"),
    *("replace", "rebind", "rename", "drop", "remove", "hold", "resume_from_new"),
}


def again(place: Place, number: int, plan: Plan) -> CatalogSpec:
    """Who comes next: the same plan, a plan of what is there now, or a later version of the code."""
    if number % 3 == 0:
        place.apply(plan, AFTER)
        return AFTER
    wanted = AFTER if number % 3 == 1 else LATER
    fresh = place.plan(wanted, **POLICIES)
    assert fresh.applicable, (number, fresh.blocked, fresh.drift)
    place.apply(fresh, wanted)
    return wanted


def test_a_deploy_with_every_mechanism_converges_after_a_crash_before_any_of_its_effects(tmp_path: Path) -> None:
    worlds = Worlds(tmp_path)
    place = worlds.open()
    prepare(place)
    plan = place.plan(AFTER, **POLICIES)
    assert {each.how.value for each in plan.steps} == MECHANISMS
    worlds.record(place, lambda: place.apply(plan, AFTER))
    check(place)
    place.close()
    for number, name in enumerate(worlds.names):
        place = worlds.restore(number)
        try:
            check(place, again(place, number, plan))
        except BaseException as error:
            error.add_note(f"died before effect {number} of {len(worlds.names)}, {name}")
            raise
        place.close()


def test_names_that_go_round_in_a_circle_converge_after_any_crash(tmp_path: Path) -> None:
    worlds = Worlds(tmp_path)
    place = worlds.open()
    one, two = table("ops.a", "id int"), table("ops.b", "id int")
    place.deploy(spec("1.0", one, two))
    place.append("ops.a", {"id": 1})
    place.append("ops.b", {"id": 2})
    wanted = spec("2.0", replace(one, name="ops.b"), replace(two, name="ops.a"))
    plan = place.plan(wanted)
    worlds.record(place, lambda: place.apply(plan, wanted))
    place.close()
    for number in range(len(worlds.names)):
        place = worlds.restore(number)
        place.apply(plan if number % 2 else place.plan(wanted), wanted)
        assert (place.rows("ops.a"), place.rows("ops.b")) == ([{"id": 2}], [{"id": 1}]), number
        assert place.plan(wanted).steps == () and place.tables() == ["ops.a", "ops.b"]
        place.close()
