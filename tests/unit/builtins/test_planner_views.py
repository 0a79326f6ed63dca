"""Views stay readable while what they read gets wider, ours and those of users; where one of a user would break,
somebody has to name it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, Dependency, UserView, Was
from airflow_provider_rfr.builtins.plan import Plan, exit_code, render
from tests.unit.builtins.catalogs import Catalog, column, deployed, did, problems, spec, table, view
from tests.unit.messages import check_messages

T, WIDER = table("ops.t", "id bigint", "rows int"), table("ops.t", "id bigint", "rows bigint")
NARROW, COUNT = table("ops.t", "id bigint"), table("ops.t", "id bigint", "count int < rows")
MORE, U = table("ops.t", "id bigint", "rows int", "more int"), table("ops.u", "id bigint", "rows int")
V, W = view("ops.v", "SELECT rows FROM ops.t"), view("ops.w", "SELECT rows FROM ops.v")
IDS = view("ops.ids", "SELECT id FROM ops.t")


def bob(name: str, query: str, *columns: str, **more: Any) -> UserView:
    """A view of a user over the last word of the query."""
    return UserView(f"bob.{name}", query, (Dependency(query.split()[-1], None, columns or None),), **more)


DAILY, ON_IDS = bob("daily", "SELECT rows FROM ops.t", "rows"), bob("ids", "SELECT id FROM ops.t", "id")
WEEKLY, ON_V = bob("weekly", "SELECT rows FROM bob.daily", "rows"), bob("over", "SELECT rows FROM ops.v", "rows")
ALL = bob("all", "SELECT * FROM ops.t")
THREE, BOTH = (WEEKLY, DAILY, ON_IDS), {"bob.daily", "bob.weekly"}


def used(*objects: BuiltinObject, by: tuple[UserView, ...] = THREE) -> Catalog:
    """A catalog with our objects and views of users."""
    catalog = deployed(*objects)
    catalog.user_views = {user_view.name: user_view for user_view in by}
    return catalog


def effects(plan: Plan) -> dict[str, str]:
    """What becomes of each view of a user."""
    return {dependent.name: dependent.how for dependent in plan.dependents if dependent.user}


def less(catalog: Catalog, **policies: Any) -> Plan:
    """The plan that drops the column, which is accepted."""
    there = {column.name for column in catalog.things["ops.t"].columns}
    return catalog.plan(spec("1.1", NARROW), **policies, accept_data_loss={"ops.t.rows"} if "rows" in there else ())


# Bridges


def every_step(plan: Plan) -> list[str]:
    return [f"{step.how.value} {step.name}" for step in plan.steps]


def chain() -> Catalog:
    by = bob("u", "SELECT rows FROM ops.w", "rows"), bob("x", "SELECT rows FROM bob.u", "rows")
    return used(T, V, W, IDS, by=by)


def test_readers_of_a_wider_column_are_bridged_before_it_readers_first_and_get_their_text_again() -> None:
    catalog, wanted = chain(), spec("1.1", WIDER, V, W, IDS)
    plan = catalog.plan(wanted)
    assert every_step(plan) == [
        *("bridge bob.x", "bridge bob.u", "bridge ops.w", "bridge ops.v", "evolve ops.t"),
        *("rebind ops.v", "rebind ops.w", "rebind bob.u", "rebind bob.x"),
    ]
    assert plan.warnings == () and plan.to_json()["summary"]["change"] == 1
    assert effects(plan) == {"bob.u": "rebind", "bob.x": "rebind"}
    last = plan.steps[-1]
    assert (last.user, last.uuid, last.details) == (True, None, {"sql": "SELECT rows FROM bob.u"})
    catalog.apply(plan)
    catalog.check()
    assert catalog.plan(wanted).steps == ()


@pytest.mark.parametrize(
    ("until", "then"), [*((until, WIDER) for until in range(1, 9)), *((until, T) for until in range(1, 5))]
)
def test_a_view_that_was_left_bridged_gets_its_text_again_also_if_the_deploy_is_given_up(
    until: int, then: BuiltinObject
) -> None:
    catalog, wanted = chain(), spec("1.1", then, V, W, IDS)
    catalog.apply(catalog.plan(spec("1.1", WIDER, V, W, IDS)), until=until)
    plan = catalog.plan(wanted)
    assert plan.applicable and plan.drift == ()
    catalog.apply(plan)
    assert not any(user_view.bridged for user_view in catalog.user_views.values())
    assert "FROM (" not in "".join(thing.query or "" for thing in catalog.things.values())
    assert catalog.plan(wanted).steps == ()


@pytest.mark.parametrize("after", [MORE, replace(T, comment="what it is", properties={"a": "1"}), WIDER])
def test_what_no_view_notices_needs_no_bridge(after: BuiltinObject) -> None:
    plan = used(T, IDS, by=(ON_IDS,)).plan(spec("1.1", after, IDS))
    assert len(plan.steps) == 1 and effects(plan) == {}


def test_a_column_that_views_read_under_its_old_name_can_not_be_seamless_and_the_plan_says_so() -> None:
    plan = deployed(T, V).plan(spec("1.1", COUNT, view("ops.v", "SELECT count AS rows FROM ops.t")))
    assert every_step(plan) == ["evolve ops.t", "replace ops.v"]
    check_messages(plan.warnings)


# Views of users that would break

FIELDS = {"a": "S.A", "b": "s.b", "c": "s.b.`c`", "all": "s"}
OF_FIELDS = tuple(bob(name, f"SELECT {text} AS x FROM ops.t", "s") for name, text in FIELDS.items())
NESTED = table("ops.t", "id bigint", "s struct<a:int,b:struct<c:int,d:int>>")
LIST, LIST_AFTER = (
    table("ops.t", "l array<struct<a:int,b:int>>"),
    table("ops.t", column("l array<struct<c:int,b:int>>", Was(fields={"c": "a"}))),
)
OF_LIST = bob("a", "SELECT l.a FROM ops.t", "l"), bob("b", "SELECT l.b FROM ops.t", "l")
CIRCLE = (
    UserView("bob.a", "SELECT 1", (Dependency("bob.b", None, ("x",)), Dependency("ops.t", None, ("rows",)))),
    bob("b", "SELECT 1 FROM bob.a", "x"),
)
STAR, OF_U = view("ops.v", "SELECT * FROM ops.t"), bob("x", "SELECT rows FROM ops.u", "rows")
OUTPUTS = view("ops.v", "SELECT id, rows FROM ops.t"), view("ops.v", "SELECT id FROM ops.t")
ON_OUTPUTS = ON_V, bob("id", "SELECT id FROM ops.v", "id")
U_VIEW, NEW_U = view("ops.u", "SELECT id, rows FROM ops.t"), view("ops.u", "SELECT id FROM ops.b", id=UUID(int=1))
INTS = table("ops.t", "id int", "rows int")
PINNED = replace(ALL, pinned="SELECT id, rows FROM ops.t"), DAILY
BLOCKED = dict.fromkeys(("bob.daily", "bob.weekly"), "blocked")
Objects = tuple[BuiltinObject, ...]
IMPACTS: dict[str, tuple[Objects, tuple[UserView, ...], Objects, dict[str, str]]] = {
    "a column comes": ((T,), (*THREE, ALL), (MORE,), {}),
    "a column goes": ((T,), THREE, (NARROW,), BLOCKED),
    "any column may be read": ((T,), (ALL,), (NARROW,), {"bob.all": "blocked"}),
    "a column gets another name": ((T,), THREE, (COUNT,), BLOCKED),
    "a column under a star of ours gets another name": ((T, STAR), (ON_V,), (COUNT, STAR), {"bob.over": "blocked"}),
    "a column takes the name of another one": (
        (INTS,), PINNED, (table("ops.t", "id int", "count int < rows", "rows int"),),
        {"bob.all": "blocked", "bob.daily": "blocked"},
    ),
    "columns exchange their names": (
        (INTS,), PINNED, (table("ops.t", "id int < rows", "rows int < id"),),
        {"bob.all": "blocked", "bob.daily": "blocked"},
    ),
    "fields go from a struct": (
        (NESTED,), OF_FIELDS, (table("ops.t", "id bigint", "s struct<b:struct<d:int>>"),),
        {"bob.a": "blocked", "bob.all": "rebind", "bob.b": "rebind", "bob.c": "blocked"},
    ),
    "a field gets another name": ((LIST,), OF_LIST, (LIST_AFTER,), {"bob.a": "blocked", "bob.b": "rebind"}),
    "a table goes": ((replace(T, keep=False),), THREE, (), {**BLOCKED, "bob.ids": "blocked"}),
    "a table gets another name": ((T,), THREE, (replace(T, name="ops.runs"),), {**BLOCKED, "bob.ids": "blocked"}),
    "an output of our view goes": (
        (T, OUTPUTS[0]), ON_OUTPUTS, (T, OUTPUTS[1]), {"bob.over": "blocked", "bob.id": "rebind"},
    ),
    "a table becomes a view without a column": (
        (T, U), THREE, (U, view("ops.t", "SELECT id FROM ops.u")), {**BLOCKED, "bob.ids": "rebind"},
    ),
    "a new view has the name of the table that is read": (
        (T, U), (OF_U,), (T, replace(U, name="ops.b"), NEW_U), {"bob.x": "blocked"},
    ),
    "a new view has the name of the view that is read": (
        (T, U_VIEW), (OF_U,), (T, replace(U_VIEW, name="ops.b"), NEW_U), {"bob.x": "blocked"},
    ),
    "views of users read each other in a circle": (
        (T,), CIRCLE, (WIDER,), {"bob.a": "rebind", "bob.b": "rebind"},
    ),
}  # fmt: skip
ACCEPTED = {"accept_data_loss": {"ops.t.rows", "ops.t.s.a", "ops.t.s.b.c", "ops.t"}}


@pytest.mark.parametrize(("before", "by", "after", "expected"), IMPACTS.values(), ids=IMPACTS)
def test_a_view_of_a_user_is_bound_again_unless_it_would_break(
    before: Any, by: tuple[UserView, ...], after: Any, expected: dict[str, str]
) -> None:
    plan = used(*before, by=by).plan(spec("1.1", *after), **ACCEPTED)
    assert effects(plan) == expected
    assert [item.name for item in plan.blocked] == sorted(name for name, how in expected.items() if how == "blocked")
    if plan.blocked:
        check_messages(problems(plan))


def test_a_view_that_would_break_stops_the_deploy_until_it_is_named() -> None:
    plan = less(used(T), break_views={"BOB.Daily"})
    assert effects(plan) == {"bob.daily": "break", "bob.weekly": "blocked"}
    assert [item.name for item in plan.blocked] == ["bob.weekly"]


@pytest.mark.parametrize(
    ("before", "by", "after", "broken", "expected"),
    [
        (
            (INTS,), (DAILY, ON_IDS), (NARROW,), {"bob.daily"},
            ["evolve ops.t", "mark_broken bob.daily", "rebind bob.ids"],
        ),
        (
            (T, OUTPUTS[0]), ON_OUTPUTS, (T, OUTPUTS[1]), {"bob.over"},
            ["replace ops.v", "rebind bob.id", "mark_broken bob.over"],
        ),
        (
            (replace(T, keep=False),), THREE, (), {*BOTH, "bob.ids"},
            ["mark_broken bob.daily", "mark_broken bob.ids", "mark_broken bob.weekly", "remove ops.t"],
        ),
    ],
    ids=["a column goes", "an output goes", "a table goes"],
)  # fmt: skip
def test_one_view_may_break_while_the_others_are_bound_again(
    before: Any, by: tuple[UserView, ...], after: Any, broken: set[str], expected: list[str]
) -> None:
    catalog = used(*before, by=by)
    plan = catalog.deploy(spec("1.1", *after), **ACCEPTED, break_views=broken)
    assert did(plan) == expected
    catalog.check()


def test_a_view_that_was_let_break_is_marked_and_shown_until_it_is_mended() -> None:
    catalog = used(T)
    plan = less(catalog, break_views=BOTH)
    assert did(plan) == ["evolve ops.t", "mark_broken bob.daily", "mark_broken bob.weekly"] and plan.applicable
    assert [step.details for step in plan.steps[1:]] == [
        {"broken": "reads ops.t.rows, which is removed"}, {"broken": "reads bob.daily"},
    ]  # fmt: skip
    check_messages(plan.warnings)
    catalog.apply(plan)
    catalog.check()
    plan = less(catalog)
    assert (plan.steps, exit_code(plan)) == ((), 0)
    check_messages(plan.warnings)
    assert all(warning in render(plan) for warning in plan.warnings)
    catalog.user_views["bob.daily"] = bob("daily", "SELECT id AS rows FROM ops.t", "id")
    assert less(catalog).warnings == plan.warnings[1:]


def test_a_broken_view_is_not_defined_again_before_somebody_mends_it() -> None:
    catalog = used(INTS, by=(*THREE, bob("both", "SELECT id, rows FROM ops.t", "id", "rows")))
    narrow = spec("1.1", table("ops.t", "id int"), removed=["ops.t.rows"])
    catalog.deploy(narrow, break_views={*BOTH, "bob.both"})
    assert did(catalog.deploy(spec("1.2", NARROW))) == ["evolve ops.t", "rebind bob.ids"]
    catalog.check()


@pytest.mark.parametrize("other", ["ops.runs", "ops.u"])
def test_a_deploy_that_died_after_a_rename_is_no_reason_to_ask_nobody(other: str) -> None:
    """Where two tables exchange their names, the views can still be read, and read the other table."""
    catalog, named = used(T, U), {"break_views": {*BOTH, "bob.ids"}}
    wanted = spec("2.0", replace(T, name=other), replace(U, name="ops.t" if other == "ops.u" else "ops.u"))
    begun = catalog.plan(wanted, **named)
    catalog.apply(begun, until=sum(not step.user for step in begun.steps))
    check_messages(problems(catalog.plan(wanted)))
    catalog.deploy(wanted, **named)
    assert all(user_view.broken for user_view in catalog.user_views.values())
    assert catalog.plan(wanted).steps == ()


def test_a_view_over_one_that_a_deploy_marked_before_it_died_is_marked_too() -> None:
    catalog = used(T)
    catalog.apply(less(catalog, break_views=BOTH), until=2)
    assert catalog.user_views["bob.daily"].broken and not catalog.user_views["bob.weekly"].broken
    assert problems(less(catalog))[0] == "reads bob.daily"
    plan = less(catalog, break_views=BOTH)
    assert [step.name for step in plan.steps if step.user] == ["bob.weekly"]
    catalog.apply(plan)
    catalog.check()
    assert less(catalog).steps == ()


def test_a_view_that_can_not_be_read_may_read_anything() -> None:
    catalog = used(T, by=(UserView("bob.x", "SELECT weird", None),))
    assert catalog.plan(spec("1.1", MORE)).applicable
    assert did(catalog.plan(spec("1.1", WIDER))) == ["evolve ops.t", "rebind bob.x"]
    check_messages(problems(less(catalog)))
    assert less(catalog, break_views={"bob.x"}).applicable


MOVED = table("ops.t", "id bigint", "more int", "rows int")
WRITTEN_OUT = replace(ALL, pinned="SELECT id, rows FROM ops.t", star_last=True)


@pytest.mark.parametrize(
    ("user_view", "after", "expected"),
    [
        (WRITTEN_OUT, MOVED, ["rebind bob.all", "evolve ops.t"]),
        (WRITTEN_OUT, replace(T, columns=T.columns[::-1]), ["rebind bob.all", "evolve ops.t"]),
        (WRITTEN_OUT, MORE, ["evolve ops.t"]),
        (replace(WRITTEN_OUT, star_last=False), MORE, ["rebind bob.all", "evolve ops.t"]),
        (replace(WRITTEN_OUT, pinned=None), MOVED, ["evolve ops.t"]),
    ],
    ids=["a column between", "another order", "a column at the end", "something behind the star", "not to be written"],
)
def test_a_star_is_written_out_before_what_it_stands_for_changes_its_places(
    user_view: UserView, after: BuiltinObject, expected: list[str]
) -> None:
    plan = used(T, by=(user_view,)).plan(spec("1.1", after))
    assert did(plan) == expected
    check_messages([plan.warnings, [step.reason for step in plan.steps if step.user]])
    if len(expected) == 2:
        assert effects(plan) == {"bob.all": "rebind"}
        assert plan.steps[0].details == {"sql": "SELECT id, rows FROM ops.t"}
