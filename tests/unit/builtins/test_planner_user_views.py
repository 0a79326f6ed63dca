"""Views that others made over our objects are bound again; where one would break, somebody has to name it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import Dependency, UserView, Was, stable_id
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code, render
from tests.unit.builtins.catalogs import Catalog, column, did, problems, spec, steps, table, view
from tests.unit.messages import check_messages

OLD = ["id bigint", "rows int"]
T = table("ops.t", *OLD)
WIDER = table("ops.t", "id bigint", "rows bigint")
U = stable_id("ops", "ops.u")
LESS = spec("1.1", table("ops.t", "id bigint"))


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


def less(catalog: Catalog, **policies: Any) -> Plan:
    """The plan that drops the column, which is accepted."""
    there = {column.name for column in catalog.things["ops.t"].columns}
    return catalog.plan(LESS, **policies, accept_data_loss={"ops.t.rows"} if "rows" in there else ())


def told(found: Plan) -> dict[str, str]:
    return {dependent.name: dependent.how for dependent in found.dependents if dependent.user}


def test_those_who_read_a_wider_column_are_bound_again_in_order_and_after_ours() -> None:
    catalog = deployed(T, view("ops.v", "SELECT rows FROM ops.t"))
    catalog.user_view("bob.over", "SELECT rows FROM ops.v", reading("ops.v", "rows"))
    found = catalog.plan(spec("1.1", WIDER, view("ops.v", "SELECT rows FROM ops.t")))
    assert [(step.how.value, step.name, step.user) for step in steps(found)] == [
        ("evolve", "ops.t", False),
        ("rebind", "ops.v", False),
        ("rebind", "bob.daily", True),
        ("rebind", "bob.over", True),
        ("rebind", "bob.weekly", True),
    ]
    daily = steps(found)[2]
    assert daily.details == {"sql": "SELECT rows FROM ops.t"} and daily.uuid is None
    assert told(found) == dict.fromkeys(("bob.daily", "bob.over", "bob.weekly"), "rebind")
    catalog.apply(found)
    catalog.check()


def test_a_view_breaks_if_it_reads_a_field_that_goes_from_a_struct() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", "id bigint", "s struct<a:int,b:struct<c:int,d:int>>")))
    for name, text in {"a": "S.A", "b": "s.b", "c": "s.b.`c`", "all": "s"}.items():
        catalog.user_view(f"bob.{name}", f"SELECT {text} AS x FROM ops.t", reading("ops.t", "s"))
    catalog.user_view("bob.ids", "SELECT t.id AS a FROM ops.t", reading("ops.t", "id"))
    lost = {"ops.t.s.a", "ops.t.s.b.c"}
    found = catalog.plan(spec("1.1", table("ops.t", "id bigint", "s struct<b:struct<d:int>>")), accept_data_loss=lost)
    assert told(found) == {"bob.a": "blocked", "bob.all": "rebind", "bob.b": "rebind", "bob.c": "blocked"}
    assert {item.name: str(item.problems[0]) for item in found.blocked} == {
        "bob.a": "reads ops.t.s.a, which is removed",
        "bob.c": "reads ops.t.s.b.c, which is removed",
    }


def test_a_view_breaks_if_it_reads_a_field_that_gets_another_name() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", "l array<struct<a:int,b:int>>")))
    for name in "ab":
        catalog.user_view(f"bob.{name}", f"SELECT l.{name} FROM ops.t", reading("ops.t", "l"))
    found = catalog.plan(spec("1.1", table("ops.t", column("l array<struct<c:int,b:int>>", Was(fields={"c": "a"})))))
    assert told(found) == {"bob.a": "blocked", "bob.b": "rebind"}
    check_messages(problems(found))


def test_a_view_that_would_break_stops_the_deploy_until_it_is_named() -> None:
    catalog = deployed()
    found = less(catalog)
    assert {item.name: [str(problem) for problem in item.problems] for item in found.blocked} == {
        "bob.daily": [
            "reads ops.t.rows, which is removed", "change the view, or let it break with break_views: bob.daily",
        ],
        "bob.weekly": ["reads bob.daily", "change the view, or let it break with break_views: bob.weekly"],
    }  # fmt: skip
    assert told(found) == {"bob.daily": "blocked", "bob.weekly": "blocked"}
    found = less(catalog, break_views={"BOB.Daily"})
    assert [item.name for item in found.blocked] == ["bob.weekly"] and told(found)["bob.daily"] == "break"
    found = catalog.plan(spec("1.1", table("ops.t", "id bigint", "count int < rows")))
    check_messages(problems(found))


def test_one_view_may_break_while_the_others_are_bound_again() -> None:
    catalog = deployed(table("ops.t", "id int", "rows int"))
    del catalog.user_views["bob.weekly"]
    wanted = spec("1.1", table("ops.t", "id bigint"), removed=["ops.t.rows"])
    found = catalog.plan(wanted, break_views={"bob.daily"})
    assert told(found) == {"bob.daily": "break", "bob.ids": "rebind"} and found.applicable
    assert did(found) == ["evolve ops.t", "mark_broken bob.daily", "rebind bob.ids"]
    catalog.apply(found)
    catalog.check()


def test_a_view_that_was_let_break_is_marked_and_shown_until_it_is_mended() -> None:
    catalog = deployed()
    both = {"break_views": {"bob.daily", "bob.weekly"}}
    found = less(catalog, **both)
    assert did(found) == ["evolve ops.t", "mark_broken bob.daily", "mark_broken bob.weekly"] and found.applicable
    assert [step.details for step in found.steps[1:]] == [
        {"broken": "reads ops.t.rows, which is removed"}, {"broken": "reads bob.daily"},
    ]  # fmt: skip
    check_messages(found.warnings)
    catalog.apply(found)
    catalog.check()
    shown = (
        "view bob.daily (user) is broken: reads ops.t.rows, which is removed",
        "view bob.weekly (user) is broken: reads bob.daily",
    )
    found = less(catalog)
    assert (found.steps, found.warnings, exit_code(found)) == ((), shown, 0)
    assert all(item in render(found) for item in shown)
    catalog.user_view("bob.daily", "SELECT id AS rows FROM ops.t", reading("ops.t", "id"))
    assert less(catalog).warnings == shown[1:]


def test_a_broken_view_is_not_defined_again_before_somebody_mends_it() -> None:
    catalog = deployed(table("ops.t", "id int", "rows int"))
    catalog.user_view("bob.both", "SELECT id, rows FROM ops.t", reading("ops.t", "id", "rows"))
    named = {"bob.daily", "bob.weekly", "bob.both"}
    catalog.deploy(spec("1.1", table("ops.t", "id int"), removed=["ops.t.rows"]), break_views=named)
    found = catalog.deploy(spec("1.2", table("ops.t", "id bigint")))
    assert did(found) == ["evolve ops.t", "rebind bob.ids"]
    catalog.check()


def test_a_column_that_comes_troubles_nobody_not_even_who_reads_all() -> None:
    """Row 47."""
    catalog = deployed()
    catalog.user_view("bob.all", "SELECT * FROM ops.t", reading("ops.t"))
    found = catalog.plan(spec("1.1", table("ops.t", *OLD, "more int")))
    assert found.applicable and told(found) == {}


def test_who_may_read_any_column_may_read_the_one_that_goes() -> None:
    catalog = deployed()
    catalog.user_views.clear()
    catalog.user_view("bob.all", "SELECT * FROM ops.t", reading("ops.t"))
    check_messages(problems(less(catalog)))


def test_an_object_that_somebody_reads_is_neither_removed_nor_renamed_under_them() -> None:
    """Spark would not mind; we do."""
    catalog = deployed(replace(T, keep=False))
    found = catalog.plan(spec("2.0"))
    assert {item.name: str(item.problems[0]) for item in found.blocked} == {
        "bob.daily": "reads ops.t, which is removed",
        "bob.ids": "reads ops.t, which is removed",
        "bob.weekly": "reads bob.daily",
    }
    named = {"break_views": {"bob.daily", "bob.ids", "bob.weekly"}}
    found = catalog.plan(spec("2.0"), **named)
    assert did(found) == ["mark_broken bob.daily", "mark_broken bob.ids", "mark_broken bob.weekly", "remove ops.t"]
    assert found.applicable
    found = catalog.plan(spec("2.0", replace(T, name="ops.runs", keep=False)))
    check_messages(problems(found))


@pytest.mark.parametrize("other", ["ops.runs", "ops.u"])
def test_a_deploy_that_died_after_a_rename_is_no_reason_to_ask_nobody(other: str) -> None:
    """Where two tables exchange their names, the views can still be read, and read the other table."""
    catalog = deployed(T, table("ops.u", *OLD))
    wanted = spec("2.0", replace(T, name=other), table("ops.t" if other == "ops.u" else "ops.u", *OLD, id=U))
    named = {"break_views": {"bob.daily", "bob.ids", "bob.weekly"}}
    begun = catalog.plan(wanted, **named)
    catalog.apply(begun, until=sum(not step.user for step in begun.steps))
    check_messages(problems(catalog.plan(wanted)))
    catalog.deploy(wanted, **named)
    assert all(user_view.broken for user_view in catalog.user_views.values())
    assert catalog.plan(wanted).steps == ()


def test_a_view_over_one_that_a_deploy_marked_before_it_died_is_marked_too() -> None:
    catalog = deployed()
    both = {"break_views": {"bob.daily", "bob.weekly"}}
    catalog.apply(less(catalog, **both), until=2)
    assert catalog.user_views["bob.daily"].broken and not catalog.user_views["bob.weekly"].broken
    assert problems(less(catalog))[0] == "reads bob.daily"
    found = less(catalog, **both)
    assert [step.name for step in found.steps if step.user] == ["bob.weekly"]
    catalog.apply(found)
    catalog.check()
    assert less(catalog).steps == ()


def test_a_view_that_can_not_be_read_may_read_anything() -> None:
    catalog = deployed()
    catalog.user_views.clear()
    catalog.user_views["bob.x"] = UserView("bob.x", "SELECT weird", None)
    assert catalog.plan(spec("1.1", table("ops.t", *OLD, "more int"))).applicable
    found = catalog.plan(spec("1.1", WIDER))
    assert [(step.how, step.name) for step in found.steps if step.user] == [(StepAction.REBIND, "bob.x")]
    check_messages(problems(less(catalog)))
    assert less(catalog, break_views={"bob.x"}).applicable


def test_views_of_users_that_read_each_other_in_a_circle_are_no_reason_to_fail() -> None:
    catalog = deployed()
    catalog.user_view("bob.a", "SELECT 1", reading("bob.b", "x"), reading("ops.t", "rows"))
    catalog.user_view("bob.b", "SELECT 1", reading("bob.a", "x"))
    assert told(catalog.plan(spec("1.1", WIDER)))["bob.a"] == "rebind"


def test_an_output_of_a_view_of_ours_that_goes_breaks_who_reads_it() -> None:
    narrow = spec("1.1", T, view("ops.v", "SELECT id FROM ops.t"))
    catalog = deployed(T, view("ops.v", "SELECT id, rows FROM ops.t"))
    catalog.user_views.clear()
    catalog.user_view("bob.rows", "SELECT rows FROM ops.v", reading("ops.v", "rows"))
    catalog.user_view("bob.id", "SELECT id FROM ops.v", reading("ops.v", "id"))
    assert told(catalog.plan(narrow)) == {"bob.rows": "blocked", "bob.id": "rebind"}
    check_messages(problems(catalog.plan(narrow)))
    found = catalog.deploy(narrow, break_views={"bob.rows"})
    assert did(found) == ["replace ops.v", "rebind bob.id", "mark_broken bob.rows"]


def test_what_a_star_of_ours_gave_under_another_name_breaks_who_reads_it() -> None:
    catalog = deployed(T, view("ops.v", "SELECT * FROM ops.t"))
    catalog.user_views.clear()
    catalog.user_view("bob.rows", "SELECT rows FROM ops.v", reading("ops.v", "rows"))
    renamed = table("ops.t", "id bigint", "count int < rows")
    check_messages(problems(catalog.plan(spec("1.1", renamed, view("ops.v", "SELECT * FROM ops.t")))))  # fmt: skip


def test_a_table_that_becomes_a_view_breaks_who_reads_a_column_that_it_does_not_give() -> None:
    catalog = deployed(T, table("ops.u", *OLD))
    found = catalog.plan(spec("1.1", table("ops.u", *OLD), view("ops.t", "SELECT id FROM ops.u")))
    assert told(found) == {"bob.daily": "blocked", "bob.ids": "rebind", "bob.weekly": "blocked"}


@pytest.mark.parametrize("kind", ["table", "view"])
def test_a_new_object_does_not_hide_the_new_name_of_the_one_that_is_read(kind: str) -> None:
    a = view("ops.a", "SELECT id, rows FROM ops.t") if kind == "view" else table("ops.a", *OLD)
    catalog = deployed(T, a)
    catalog.user_views.clear()
    catalog.user_view("bob.x", "SELECT rows FROM ops.a", reading("ops.a", "rows"))
    over = view("ops.a", "SELECT id FROM ops.b", id=stable_id("ops", "another"))
    found = catalog.plan(spec("1.1", T, replace(a, name="ops.b"), over))
    check_messages(problems(found))


def starred(catalog: Catalog, *, star_last: bool = True, pinned: str | None = "SELECT id, rows FROM ops.t") -> None:
    catalog.user_views.clear()
    star = UserView("bob.all", "SELECT * FROM ops.t", (reading("ops.t"),), pinned=pinned, star_last=star_last)
    catalog.user_views["bob.all"] = star


@pytest.mark.parametrize("columns", [["id bigint", "more int", "rows int"], ["rows int", "id bigint"]])
def test_a_star_is_written_out_before_what_it_stands_for_changes_its_places(columns: list[str]) -> None:
    catalog, wanted = deployed(), spec("1.1", table("ops.t", *columns))
    starred(catalog)
    found = catalog.plan(wanted)
    assert did(found) == ["rebind bob.all", "evolve ops.t"] and told(found) == {"bob.all": "rebind"}
    assert found.steps[0].details == {"sql": "SELECT id, rows FROM ops.t"}
    why = "its star is written out, for the columns of ops.t change their places"
    assert found.steps[0].reason == why
    starred(catalog, pinned=None)
    found = catalog.plan(wanted)
    assert did(found) == ["evolve ops.t"] and found.warnings == (
        "view bob.all (user) may show others' values: its star can't be written out, "
        "and the columns of ops.t change their places",
    )


def test_a_column_that_comes_last_moves_what_stands_behind_a_star() -> None:
    catalog, wanted = deployed(), spec("1.1", table("ops.t", *OLD, "more int"))
    starred(catalog)
    assert did(catalog.plan(wanted)) == ["evolve ops.t"]
    starred(catalog, star_last=False)
    assert did(catalog.plan(wanted)) == ["rebind bob.all", "evolve ops.t"]


@pytest.mark.parametrize("columns", [["id int", "count int < rows", "rows int"], ["id int < rows", "rows int < id"]])
@pytest.mark.parametrize("query", ["SELECT * FROM ops.t", "SELECT rows FROM ops.t"])
def test_a_column_that_takes_the_name_of_another_one_is_not_what_is_read(columns: list[str], query: str) -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", "id int", "rows int")))
    reads = reading("ops.t") if "*" in query else reading("ops.t", "rows")
    catalog.user_views["bob.x"] = UserView("bob.x", query, (reads,), pinned="SELECT id, rows FROM ops.t")
    [why, _] = problems(catalog.plan(spec("1.1", table("ops.t", *columns))))
    assert why in [
        f"reads ops.t.{old}, which is called {now} now"
        for old, now in (("rows", "count"), ("rows", "id"), ("id", "rows"))
    ]
