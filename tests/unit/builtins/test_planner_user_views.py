"""Views that others made over our objects are found and bound again, or the deploy stops, as was decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.planning.plan import Action, Plan, exit_code
from airflow_provider_rfr.builtins.spec import Dependency, Stability, Strategy
from airflow_provider_rfr.builtins.state import UserView
from tests.unit.builtins.catalogs import Catalog, contract, migration, spec, table, view

OLD = ["id bigint", "rows int"]
T = table("ops.t", *OLD)
WIDER = table("ops.t", "id bigint", "rows bigint")
LESS = table("ops.t", "id bigint", migrations=(migration(contract(*OLD), contract("id bigint"), Strategy.EVOLVE),))


def reading(name: str, *columns: str) -> Dependency:
    return Dependency(name, None, columns or None)


def deployed(*objects: Any) -> Catalog:
    """With views of bob's: over the table, over that one, over another column."""
    catalog = Catalog()
    catalog.deploy(spec("1.0", *(objects or (T,))))
    catalog.user_view("bob.weekly", "SELECT * FROM bob.daily", reading("bob.daily", "rows"))
    catalog.user_view("bob.daily", "SELECT rows FROM ops.t", reading("ops.t", "rows"))
    catalog.user_view("bob.ids", "SELECT id FROM ops.t", reading("ops.t", "id"))
    return catalog


def told(found: Plan) -> dict[str, str]:
    return {each.name: each.how for each in found.dependents if each.user}


def test_those_who_read_a_wider_column_are_bound_again_in_order_and_after_ours() -> None:
    catalog = deployed(T, view("ops.v", "SELECT rows FROM ops.t"))
    catalog.user_view("bob.over", "SELECT rows FROM ops.v", reading("ops.v", "rows"))
    found = catalog.plan(spec("1.1", WIDER, view("ops.v", "SELECT rows FROM ops.t")))
    assert [(each.how.value, each.name, each.user) for each in found.steps] == [
        ("evolve", "ops.t", False),
        ("rebind", "ops.v", False),
        ("rebind", "bob.daily", True),
        ("rebind", "bob.over", True),
        ("rebind", "bob.weekly", True),
    ]
    assert found.steps[2].details == {"sql": "SELECT rows FROM ops.t"} and found.steps[2].uuid is None
    assert told(found) == dict.fromkeys(("bob.daily", "bob.over", "bob.weekly"), "rebind")
    catalog.apply(found)
    catalog.check()


def test_the_deploy_stops_or_goes_on_with_a_warning_if_that_was_decided() -> None:
    catalog = deployed()
    found = catalog.plan(spec("1.1", WIDER), user_views="fail")
    assert exit_code(found) == 1 and {each.name for each in found.blocked} == {"bob.daily", "bob.weekly"}
    assert found.blocked[0].problems == (
        "reads ops.t.rows", "user_views: fail; change the view, or let it break with user_views: warn",
    )  # fmt: skip
    found = catalog.plan(spec("1.1", WIDER), user_views="warn")
    assert [each.name for each in found.steps] == ["ops.t"] and found.applicable
    assert found.warnings[0] == "view bob.daily (user) reads ops.t.rows: it may fail from now on"


@pytest.mark.parametrize("policy", ["rebind", "fail"])
def test_a_view_that_reads_what_goes_can_not_be_bound_again_and_stops_the_deploy(policy: str) -> None:
    catalog = deployed()
    found = catalog.plan(spec("1.1", LESS), user_views=policy)
    assert found.blocked[0].problems[0] == "reads ops.t.rows, which is gone now"
    assert told(found)["bob.daily"] == "blocked" and "bob.ids" not in told(found)
    found = catalog.plan(spec("1.1", table("ops.t", "id bigint", "count int < rows")), user_views=policy)
    assert found.blocked[0].problems[0] == "reads ops.t.rows, which is called count now"


def test_a_column_that_comes_troubles_nobody_not_even_who_reads_all() -> None:
    """Row 47."""
    catalog = deployed()
    catalog.user_view("bob.all", "SELECT * FROM ops.t", reading("ops.t"))
    found = catalog.plan(spec("1.1", table("ops.t", *OLD, "more int")), user_views="fail")
    assert found.applicable and told(found) == {}


def test_who_may_read_any_column_may_read_the_one_that_goes() -> None:
    catalog = deployed()
    catalog.user_views.clear()
    catalog.user_view("bob.all", "SELECT * FROM ops.t", reading("ops.t"))
    found = catalog.plan(spec("1.1", LESS))
    assert found.blocked[0].problems[0] == "may read ops.t.rows, which is gone now"


def test_an_object_that_somebody_reads_is_neither_removed_nor_renamed_under_them() -> None:
    """Spark would not mind; we do."""
    catalog = deployed(replace(T, stability=Stability.UNSTABLE))
    found = catalog.plan(spec("2.0"))
    assert {each.name: each.problems[0] for each in found.blocked} == {
        "bob.daily": "reads ops.t, which is removed",
        "bob.ids": "reads ops.t, which is removed",
        "bob.weekly": "reads bob.daily",
    }
    assert catalog.plan(spec("2.0"), user_views="warn").applicable
    found = catalog.plan(spec("2.0", replace(T, name="ops.runs", stability=Stability.UNSTABLE)))
    assert found.blocked[0].problems[0] == "reads ops.t, which is called ops.runs now"


def test_a_view_that_can_not_be_read_may_read_anything() -> None:
    catalog = deployed()
    catalog.user_views.clear()
    catalog.user_views["bob.x"] = UserView("bob.x", "SELECT weird", None)
    assert catalog.plan(spec("1.1", table("ops.t", *OLD, "more int"))).applicable
    found = catalog.plan(spec("1.1", WIDER))
    assert [(each.how, each.name) for each in found.steps if each.user] == [(Action.REBIND, "bob.x")]
    assert catalog.plan(spec("1.1", LESS)).blocked[0].problems[0] == "can't be read, so it may read ops.t as it was"


def test_views_of_users_that_read_each_other_in_a_circle_are_no_reason_to_fail() -> None:
    catalog = deployed()
    catalog.user_view("bob.a", "SELECT 1", reading("bob.b", "x"), reading("ops.t", "rows"))
    catalog.user_view("bob.b", "SELECT 1", reading("bob.a", "x"))
    assert told(catalog.plan(spec("1.1", WIDER)))["bob.a"] == "rebind"
