"""Views that stay readable while what they read gets wider, and those that can't."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.builtins.model import Dependency
from airflow_provider_rfr.builtins.plan import Plan
from tests.unit.builtins.catalogs import Catalog, made, mview, spec, table, view
from tests.unit.messages import check_messages

T, WIDER = table("ops.t", "id int", "n int", "note string"), table("ops.t", "id int", "n bigint", "note string")
VIEWS = (
    view("ops.v", "SELECT n FROM ops.t"),
    view("ops.w", "SELECT n FROM ops.v"),
    view("ops.other", "SELECT note FROM ops.t"),
)


def deployed(*more: object) -> Catalog:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T, *VIEWS, *more))
    catalog.user_view("bob.u", "SELECT n FROM ops.w", Dependency("ops.w", None, ("n",)))
    catalog.user_view("bob.x", "SELECT u.n FROM bob.u AS u", Dependency("bob.u", None, ("n",)))
    catalog.user_view("bob.note", "SELECT note FROM ops.t", Dependency("ops.t", None, ("note",)))
    return catalog


def did(found: Plan) -> list[str]:
    return [f"{step.how.value} {step.name}" for step in found.steps]


def test_readers_of_a_wider_column_are_bridged_before_it_readers_first_and_get_their_text_again() -> None:
    catalog = deployed()
    found = catalog.plan(spec("1.1", WIDER, *VIEWS))
    assert did(found) == [
        *("bridge bob.x", "bridge bob.u", "bridge ops.w", "bridge ops.v"),
        "evolve ops.t",
        *("rebind ops.v", "rebind ops.w", "rebind bob.u", "rebind bob.x"),
    ]
    assert found.warnings == () and found.to_json()["summary"]["change"] == 1
    catalog.apply(found)
    catalog.check()
    assert catalog.plan(spec("1.1", WIDER, *VIEWS)).steps == ()


@pytest.mark.parametrize("until", range(1, 9))
def test_a_view_that_was_left_bridged_gets_its_text_again(until: int) -> None:
    catalog, wanted = deployed(), spec("1.1", WIDER, *VIEWS)
    catalog.apply(catalog.plan(wanted), until=until)
    found = catalog.plan(wanted)
    assert found.applicable and found.drift == ()
    catalog.apply(found)
    assert not any(user_view.bridged for user_view in catalog.user_views.values())
    assert "FROM (" not in "".join(thing.query or "" for thing in catalog.things.values())
    assert catalog.plan(wanted).steps == ()


@pytest.mark.parametrize("until", range(1, 5))
def test_a_users_view_that_was_left_bridged_by_a_deploy_that_is_given_up_gets_its_text_again(until: int) -> None:
    catalog = deployed()
    catalog.apply(catalog.plan(spec("1.1", WIDER, *VIEWS)), until=until)
    found = catalog.plan(spec("1.0", T, *VIEWS))
    assert found.applicable
    catalog.apply(found)
    assert not any(user_view.bridged for user_view in catalog.user_views.values())
    assert catalog.plan(spec("1.0", T, *VIEWS)).steps == ()


@pytest.mark.parametrize(
    "table_after",
    [
        table("ops.t", "id int", "n int", "note string", "more int"),
        table("ops.t", "id int", "n int", "note string", comment="what it is", properties={"a": "1"}),
        table("ops.t", "id bigint", "n int", "note string"),
    ],
)
def test_what_no_view_feels_needs_no_bridge(table_after: object) -> None:
    assert [item for item in did(deployed().plan(spec("1.1", table_after, *VIEWS))) if "bridge" in item] == []


def test_a_column_that_views_read_under_its_old_name_can_not_be_seamless_and_the_plan_says_so() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T, VIEWS[0]))
    renamed = table("ops.t", "id int", "m int < n", "note string")
    found = catalog.plan(spec("1.1", renamed, view("ops.v", "SELECT m AS n FROM ops.t")))
    assert did(found) == ["evolve ops.t", "replace ops.v"]
    check_messages(found.warnings)


def test_a_view_has_its_text_right_after_its_table_and_before_what_takes_long() -> None:
    catalog = Catalog()
    sums = mview("ops.sums", "SELECT n FROM ops.t", "n int")
    text = table("ops.text", "a string")
    catalog.deploy(spec("1.0", T, VIEWS[0], sums, text, view("ops.late", "SELECT a FROM ops.text")))
    renamed = table("ops.t", "id int", "m int < n", "note string")
    number = table("ops.text", made("a int", "CAST(a AS int)"))
    wanted = (view("ops.v", "SELECT m AS n FROM ops.t"), mview("ops.sums", "SELECT m AS n FROM ops.t", "n int"))
    found = catalog.plan(spec("1.1", renamed, *wanted, number, view("ops.late", "SELECT a FROM ops.text")))
    order = [item.removeprefix("rewrite ").removeprefix("evolve ") for item in did(found)]
    assert order.index("ops.t") < order.index("replace ops.v") < order.index("recompute ops.sums"), did(found)
