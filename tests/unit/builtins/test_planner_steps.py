"""From one release to the next: who is included, what comes before what, and what stops the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid5

import pytest

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.builtins.model import BuiltinObject, Dependency, Instance, Kind, RegistryState, name_problem
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code
from airflow_provider_rfr.exceptions import DeclarationError, PlanError
from tests.unit.builtins.catalogs import (
    Catalog,
    column,
    deployed,
    did,
    made,
    mview,
    obj,
    problems,
    spec,
    steps,
    table,
    view,
)
from tests.unit.messages import check_messages, raises

T, WIDER = table("ops.t", "id bigint", "rows int"), table("ops.t", "id bigint", "rows bigint")
BASE = table("ops.base", "id bigint", "rows int")
V, W = view("ops.v", "SELECT rows FROM ops.t"), view("ops.w", "SELECT rows FROM ops.v")
COUNT, OF_COUNT = table("ops.t", "id bigint", "count int < rows"), view("ops.v", "SELECT count AS rows FROM ops.t")
M, OF_BASE = mview("ops.m", "SELECT rows FROM ops.t", "rows int"), "SELECT id, rows FROM ops.base"
T_VIEW, T_MVIEW = (kind("ops.t", OF_BASE, "id bigint", "rows int") for kind in (view, mview))
A, B, C, X, Z = (table(f"ops.{name}", f"{name} int") for name in "abcxz")
OF_X = view("ops.v", "SELECT x FROM ops.x"), mview("ops.m", "SELECT x FROM ops.x", "x bigint")
INDEX = table("rfr_system.builtin_objects", "name string")
COUNTED = mview("ops.counted", "SELECT count(name) AS n FROM rfr_system.builtin_objects", "n bigint")
STAR = view("ops.v", "SELECT * FROM ops.t")
OTHER = UUID("00000000-0000-0000-0000-000000000001")
BETWEEN = f"ops.a__r{A.id.hex[:8]}"


def loose(*objects: BuiltinObject) -> tuple[BuiltinObject, ...]:
    return tuple(replace(item, keep=False) for item in objects)


def passing(kind: str) -> tuple[BuiltinObject, ...]:
    """A view that declares its columns, and readers of one of them each."""
    declared = view("ops.v", "SELECT id, rows FROM ops.t", "id bigint", f"rows {kind}")
    return declared, W, view("ops.ids", "SELECT id FROM ops.v")


def diamond(kind: str) -> tuple[BuiltinObject, ...]:
    reads = {2: "ops.o1", 3: "ops.o1", 4: "ops.o2 JOIN ops.o3 USING (a)"}
    return table("ops.o1", f"a {kind}"), *(view(f"ops.o{at}", f"SELECT a FROM {name}") for at, name in reads.items())


def by_hand(name: str, **changes: Any) -> Callable[[Catalog], Any]:
    return lambda catalog: catalog.edit(name, **changes)


def put(name: str, *columns: str, **more: Any) -> Callable[[Catalog], Any]:
    return lambda catalog: catalog.put(name, *map(column, columns), **more)


def untouched(catalog: Catalog) -> None:
    """Nobody has changed the catalog by hand."""


@dataclass(frozen=True)
class Change:
    """A release, the next one, and the steps between them with their reasons.

    :ivar edit: what somebody does to the catalog in between
    """

    before: tuple[BuiltinObject, ...]
    after: tuple[BuiltinObject, ...]
    steps: list[str]
    edit: Callable[[Catalog], Any] = untouched


CHANGES = {
    "a new catalog is created at its present version": Change(
        (), (V, table("ops.t", "id bigint", made("rows int", "0"))), ["create ops.t: new", "create ops.v: new"]
    ),
    "no view is dropped to be replaced": Change(
        (T, V, W, view("ops.ids", "SELECT id FROM ops.t")),
        (WIDER, V, W, view("ops.ids", "SELECT id FROM ops.t")),
        ["evolve ops.t: columns changed", "rebind ops.v: reads ops.t.rows", "rebind ops.w: reads ops.v"],
    ),
    "a diamond is done once, and what is read comes first": Change(
        diamond("int"),
        diamond("bigint"),
        [
            *("evolve ops.o1: columns changed", "rebind ops.o2: reads ops.o1.a", "rebind ops.o3: reads ops.o1.a"),
            "rebind ops.o4: reads ops.o2; reads ops.o3",
        ],
    ),
    "a diamond is removed, and readers go first": Change(
        loose(*diamond("int")), (), [f"remove ops.o{node}: no longer declared" for node in (4, 3, 2, 1)]
    ),
    "a column that nobody selects touches no reader": Change(
        (T, V), (replace(T, columns=(*T.columns, column("more int"))), V), ["evolve ops.t: columns changed"]
    ),
    "columns that change places trouble nobody who names them": Change(
        (T, V), (replace(T, columns=T.columns[::-1]), V), ["evolve ops.t: columns changed"]
    ),
    "a view that declares its columns passes on only what they say": Change(
        (T, *passing("int")),
        (WIDER, *passing("bigint")),
        [
            *("evolve ops.t: columns changed", "replace ops.v: columns changed; reads ops.t.rows"),
            "rebind ops.w: reads ops.v.rows",
        ],
    ),
    "a column is renamed with its readers": Change(
        (T, V), (COUNT, OF_COUNT), ["evolve ops.t: columns changed", "replace ops.v: query changed; reads ops.t.count"]
    ),
    "a star follows a renamed column over versions that were skipped": Change(
        (table("ops.t", "id int", "a int"), STAR),
        (table("ops.t", "id int", "c int < b < a", "more int"), STAR),
        ["evolve ops.t: columns changed", "replace ops.v: star expanded again; reads ops.t.c"],
    ),
    "a view has its text right after its table and before what takes long": Change(
        (T, V, M, table("ops.text", "a string"), view("ops.late", "SELECT a FROM ops.text")),
        (
            *(COUNT, OF_COUNT, mview("ops.m", "SELECT count AS rows FROM ops.t", "rows int")),
            *(table("ops.text", made("a int", "CAST(a AS int)")), view("ops.late", "SELECT a FROM ops.text")),
        ),
        [
            *("evolve ops.t: columns changed", "replace ops.v: query changed; reads ops.t.count"),
            *("rewrite ops.text: columns changed", "rebind ops.late: reads ops.text.a"),
            "recompute ops.m: query changed; reads ops.t.count",
        ],
    ),
    "an edge turns round": Change(
        (BASE, view("ops.a", "SELECT id FROM ops.base"), view("ops.b", "SELECT id FROM ops.a")),
        (BASE, view("ops.a", "SELECT id FROM ops.b"), view("ops.b", "SELECT id FROM ops.base")),
        ["replace ops.b: query changed", "replace ops.a: query changed; reads ops.b"],
    ),
    "rows below a materialized view may be others, also through a view": Change(
        (T, M, view("ops.v", "SELECT rows FROM ops.m"), mview("ops.n", "SELECT rows FROM ops.v", "rows int")),
        (
            *(T, replace(M, query=f"{M.query} WHERE rows > 0"), view("ops.v", "SELECT rows FROM ops.m")),
            mview("ops.n", "SELECT rows FROM ops.v", "rows int"),
        ),
        ["recompute ops.m: query changed", "recompute ops.n: reads ops.v"],
    ),
    "a list of all objects is filled again when there is another one": Change(
        (T, INDEX, COUNTED),
        (T, INDEX, COUNTED, A),
        [
            "create ops.a: new",
            "recompute rfr_system.builtin_objects: lists the objects, and there are others: ops.a",
            "recompute ops.counted: reads rfr_system.builtin_objects",
        ],
    ),
    "another object has the name that is read": Change(
        (X, table("ops.z", "x bigint"), *OF_X),
        (replace(X, name="ops.old"), table("ops.x", "x bigint", id=Z.id), *OF_X),
        [
            *("rename ops.x to ops.old: declared name", "rename ops.z to ops.x: declared name"),
            *(f"{how}: reads ops.x, which is another object now" for how in ("rebind ops.v", "recompute ops.m")),
        ],
    ),
    "a new object has the name that is read": Change(
        (X, *OF_X),
        (replace(X, name="ops.old"), table("ops.x", "x int", id=OTHER), *OF_X),
        [
            *("rename ops.x to ops.old: declared name", "create ops.x: new"),
            *(f"{how}: reads ops.x, which is another object now" for how in ("rebind ops.v", "recompute ops.m")),
        ],
    ),
    "an object with another name is not made anew": Change(
        (T, V),
        (replace(T, name="ops.runs"), view("ops.v", "SELECT rows FROM ops.runs")),
        ["rename ops.t to ops.runs: declared name", "replace ops.v: query changed"],
    ),
    "objects that exchange their names go by a name in between": Change(
        (A, B, C),
        (replace(A, name="ops.b"), replace(B, name="ops.a"), replace(C, name="ops.d")),
        [
            *("rename ops.c to ops.d: declared name", f"rename ops.a to {BETWEEN}: declared name"),
            *("rename ops.b to ops.a: declared name", f"rename {BETWEEN} to ops.b: declared name"),
        ],
    ),
    "a table becomes a view, and whoever reads the same columns is not touched": Change(
        (T, BASE, view("ops.ids", "SELECT id FROM ops.t")),
        (T_VIEW, BASE, view("ops.ids", "SELECT id FROM ops.t")),
        [f"{how} ops.t: kind: table -> view; query changed" for how in ("drop", "create")],
        lambda catalog: catalog.user_view("bob.daily", "SELECT id FROM ops.t", Dependency("ops.t", None, ("id",))),
    ),
    "a table becomes a view with other types": Change(
        (table("ops.t", "id bigint", "rows string"), BASE, V),
        (T_VIEW, BASE, V),
        [
            *(f"{how} ops.t: kind: table -> view; columns changed; query changed" for how in ("drop", "create")),
            "rebind ops.v: reads ops.t.rows",
        ],
    ),
    "a view becomes a table": Change(
        (T_VIEW, BASE),
        (T, BASE),
        [f"{how} ops.t: kind: view -> table; query changed" for how in ("drop", "create")],
    ),
    "a table becomes a log": Change((A,), (obj(Kind.LOG, "ops.a", "a int"),), ["metadata ops.a: kind: table -> log"]),
    "a materialized view becomes a table": Change(
        (T_MVIEW, BASE), (*loose(T), BASE), ["metadata ops.t: kind: materialized_view -> table; query changed"]
    ),
    "what is removed goes last": Change(
        (BASE, *loose(T), V),
        (BASE, view("ops.v", "SELECT id AS rows FROM ops.base")),
        ["replace ops.v: query changed", "remove ops.t: no longer declared"],
    ),
    "what is removed goes first if its name is needed, and its readers before it": Change(
        loose(T, V),
        (replace(T, id=OTHER),),
        [*(f"remove ops.{name}: no longer declared" for name in "vt"), "create ops.t: new"],
    ),
    "what somebody dropped already is only forgotten": Change(
        (A, *loose(X)), (A,), [], lambda catalog: catalog.things.pop("ops.x")
    ),
    "what is as declared is adopted by name": Change(
        (), (T,), ["adopt ops.t: as declared; takes our marker"], put("ops.t", "id bigint", "rows int")
    ),
    "what is declared as it is written there is adopted": Change(
        (), (table("ops.T", "id int"),), ["adopt ops.T: as declared; takes our marker"], put("ops.T", "id int")
    ),
    "what carries our marker and is not recorded is ours again": Change(
        (T, V),
        (T, V),
        [f"{how}: it is there with our marker, though not recorded" for how in ("metadata ops.t", "replace ops.v")],
        lambda catalog: setattr(catalog, "recorded", RegistryState()),
    ),
}


def said(plan: Plan) -> list[str]:
    names = {step.seq: f" to {step.details['to']}" for step in plan.steps if step.how is StepAction.RENAME}
    return [f"{step.how.value} {step.name}{names.get(step.seq, '')}: {step.reason}" for step in steps(plan)]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_steps_can_be_done_in_their_order_and_leave_nothing_to_do(change: Change) -> None:
    catalog, wanted = deployed(*change.before), spec("2.0", *change.after)
    change.edit(catalog)
    gone = {known.uuid for known in catalog.recorded.objects} - {item.id for item in change.after}
    plan = catalog.deploy(wanted, accept_data_loss={"ops.t"}, adopt={"ops.t"})
    assert said(plan) == change.steps
    assert exit_code(plan) == 2, "the registry changes at least"
    catalog.check()
    assert set(plan.forgotten) == gone
    there = {thing.name: thing.marker for key, thing in catalog.things.items() if key not in catalog.garbage}
    assert there == {item.name: item.id for item in change.after}
    retired = [step.uuid for step in plan.steps if step.how in (StepAction.DROP, StepAction.REMOVE) and step.details]
    assert [catalog.things[key.casefold()].marker for key in catalog.garbage] == retired
    again = catalog.plan(wanted)
    assert (again.steps, again.records, again.warnings, again.drift, exit_code(again)) == ((), (), (), (), 0)
    assert again.unchanged == len(change.after)


ADOPT: dict[str, Any] = {"adopt": {"ops.t"}}
REPAIR: dict[str, Any] = {"drift": "repair"}
UNMARKED = by_hand("ops.t", marker=None)
OF_A = view("ops.v", "SELECT a FROM ops.a")
STOPPED: dict[str, tuple[tuple[BuiltinObject, ...], Callable[[Catalog], Any], tuple[BuiltinObject, ...], Any]] = {
    "a table of a user has the name": ((), put("Ops.T", "id bigint", "rows int"), (T,), {}),
    "a view of a user has the name": ((), lambda catalog: catalog.user_view("ops.T", "SELECT 1 AS id"), (T,), {}),
    "a table of a user has the new name": ((T,), put("ops.runs", "id bigint"), (replace(T, name="ops.runs"),), {}),
    "what is to be adopted has other columns": ((), put("ops.t", "id int", "more int"), (T,), ADOPT),
    "what is to be adopted is a view": ((), put("ops.t", kind=Kind.VIEW), (T,), ADOPT),
    "what is to be adopted is written otherwise": ((), put("ops.T", "id bigint", "rows int"), (T,), ADOPT),
    "what lacks our marker is removed": (loose(T), UNMARKED, (), {}),
    "what lacks our marker is changed": (loose(T), UNMARKED, loose(WIDER), REPAIR),
    "what lacks our marker becomes a view": ((*loose(T), BASE), UNMARKED, (T_VIEW, BASE), REPAIR),
    "what is removed is read by a view that stays": ((T, *loose(A), OF_A), untouched, (T, OF_A), {}),
    "a view reads a table by its old name": ((T, V), untouched, (replace(T, name="ops.runs"), V), {}),
    "a view reads a column by its old name": ((T, V), untouched, (COUNT, V), {}),
    "a query has no end": ((), untouched, (T, view("ops.v", "SELECT (")), {}),
    "a query is two statements": ((), untouched, (T, view("ops.v", "SELECT id FROM ops.t; SELECT 1")), {}),
    "a star is over what is not declared": ((), untouched, (T, view("ops.v", "SELECT * FROM elsewhere.u")), {}),
    "a join is a natural one": ((), untouched, (T, view("ops.v", "SELECT a.id FROM ops.t a NATURAL JOIN ops.t b")), {}),
    "a star does not stand for the declared columns": ((), untouched, (T, replace(STAR, columns=A.columns)), {}),
}


@pytest.mark.parametrize(("before", "edit", "after", "policies"), STOPPED.values(), ids=STOPPED)
def test_what_can_not_be_done_stops_the_plan(
    before: Any, edit: Callable[[Catalog], Any], after: Any, policies: Any
) -> None:
    catalog = deployed(*before)
    edit(catalog)
    plan = catalog.plan(spec("2.0", *after), **policies)
    check_messages(problems(plan))
    blocked = {item.uuid for item in plan.blocked}
    assert not blocked & {step.uuid for step in plan.steps} and not blocked & {record.uuid for record in plan.records}


def test_a_name_that_another_project_has_is_not_taken_and_both_markers_are_said() -> None:
    catalog = Catalog()
    catalog.put("ops.t", marker=OTHER)
    plan = catalog.plan(spec("1.0", T))
    assert plan.steps == ()
    check_messages(problems(plan), f"carries the marker of {OTHER}, not of {T.id}")


def test_objects_that_read_each_other_in_a_circle_make_no_plan() -> None:
    with raises(PlanError):
        Catalog().plan(spec("1.0", view("ops.a", "SELECT x FROM ops.b"), view("ops.b", "SELECT x FROM ops.a")))


def test_what_is_bound_again_is_recorded_with_what_it_reads_now() -> None:
    """Not only what changed by itself."""
    plan = deployed(T, V).plan(spec("2.0", WIDER, V))
    deps = {record.name: record.deps for record in plan.records}
    assert deps == {"ops.t": (), "ops.v": (Dependency("ops.t", T.id, ("rows",)),)}


# Stars


def texts(catalog: Catalog) -> dict[str, str | None]:
    return {known.name: known.sql for known in catalog.recorded.objects if known.sql}


def test_stars_are_written_out_once_and_a_later_column_changes_no_view() -> None:
    readers = (STAR, view("ops.w", "SELECT v.* FROM ops.v v"))
    catalog = deployed(T, *readers)
    first = {"ops.v": "SELECT id, `rows` FROM ops.t", "ops.w": "SELECT v.id, v.`rows` FROM ops.v v"}
    assert texts(catalog) == first and {known.raw_sql for known in catalog.recorded.objects} >= {STAR.query}
    plan = catalog.deploy(spec("1.1", table("ops.t", "id bigint", "rows int", "more string"), *readers))
    assert did(plan) == ["evolve ops.t"] and texts(catalog) == first
    # A column that is gone takes itself out of them, and brings in nothing that came since.
    plan = catalog.plan(spec("1.2", table("ops.t", "id bigint", "more string"), *readers))
    assert [item.name for item in plan.blocked] == ["ops.t"]
    assert [step.details["sql"] for step in plan.steps] == ["SELECT id FROM ops.t", "SELECT v.id FROM ops.v v"]


LATER = {
    "renamed": replace(STAR, name="ops.w"),
    "moved": replace(STAR, name="other.v"),
    "materialized": mview("ops.v", STAR.query, "id bigint", "rows int"),
    "read by another version": STAR,
}


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
def test_a_star_is_recorded_with_its_columns_whatever_becomes_of_the_view(later: BuiltinObject) -> None:
    """So that one of them may be dropped later."""
    catalog = deployed(T, STAR)
    before = {known.name: known.deps for known in catalog.recorded.objects}["ops.v"]
    if later is STAR:
        objects = tuple(replace(known, canonicalizer="older") for known in catalog.recorded.objects)
        catalog.recorded = replace(catalog.recorded, objects=objects)
    catalog.deploy(spec("1.1", T, later))
    assert {known.name: known.deps for known in catalog.recorded.objects}[later.name] == before
    narrow = (table("ops.t", "id bigint"), replace(later, columns=later.columns[:1]))
    plan = catalog.plan(spec("2.0", *narrow, removed=["ops.t.rows"]))
    assert {step.name: step.details.get("sql") for step in plan.steps}[later.name] == "SELECT id FROM ops.t"


OVER_STARS = {
    "SELECT * FROM ops.v": "SELECT id, b, a FROM ops.v",
    "SELECT v.* FROM ops.v": "SELECT v.id, v.b, v.a FROM ops.v",
    "SELECT * FROM ops.v UNION ALL SELECT * FROM ops.v": (
        "SELECT id, b, a FROM ops.v UNION ALL SELECT id, b, a FROM ops.v"
    ),
    "SELECT * FROM (SELECT * FROM ops.v)": "SELECT id, b, a FROM (SELECT id, a, b FROM ops.v)",
    "WITH w AS (SELECT * FROM ops.v) SELECT * FROM w": "WITH w AS (SELECT id, a, b FROM ops.v) SELECT id, b, a FROM w",
}


@pytest.mark.parametrize(("query", "text"), OVER_STARS.items())
def test_a_star_over_a_star_follows_the_order_that_is_declared(query: str, text: str) -> None:
    """The view keeps the order that it was registered with; its table's new one is what the loader asks for."""
    first, later = table("ops.t", "id int", "a int", "b int"), table("ops.t", "id int", "b int", "a int")
    catalog = deployed(first, STAR, mview("ops.m", query, *first.columns))
    objects = later, STAR, mview("ops.m", query, *later.columns)
    wanted = load_objects(objects, project="ops", version="2.0", entry_points=False)
    catalog.deploy(wanted)
    assert texts(catalog) == {"ops.v": "SELECT id, a, b FROM ops.t", "ops.m": text}
    assert catalog.plan(wanted).steps == ()
    Catalog().deploy(wanted)
    with raises(DeclarationError):
        load_objects(later, STAR, mview("ops.m", query, *first.columns), project="ops", entry_points=False)


@pytest.mark.parametrize("kind", [view, mview])
def test_declared_columns_say_what_a_star_stands_for(kind: Callable[..., BuiltinObject]) -> None:
    """A column that comes later changes nothing downstream, in an old catalog as in a new one."""
    wide, first = table("ops.t", "a int", "b int", "c int"), kind("ops.v", STAR.query, "a int", "b int")
    old, new = deployed(table("ops.t", "a int", "b int"), first), deployed(wide, first)
    assert did(old.deploy(spec("1.1", wide, first))) == ["evolve ops.t"]
    for catalog in (old, new):
        assert texts(catalog) == {"ops.v": "SELECT a, b FROM ops.t"}
        step = catalog.deploy(spec("1.2", wide, kind("ops.v", STAR.query, *wide.columns))).steps[0]
        assert step.details["sql"] == "SELECT a, b, c FROM ops.t"


# One object for each instance

LOG = obj(Kind.LOG, "ops.log", "line string", per_instance="lake", keep=False)


def lakes(**names: str) -> dict[str, tuple[Instance, ...]]:
    return {"lake": tuple(Instance(key, name) for key, name in names.items())}


def test_a_generated_name_takes_a_number_until_nobody_has_it_and_is_kept_whatever_the_instance_is_called() -> None:
    catalog, wanted = deployed(T), spec("1.1", T, LOG)
    for name in ("ops.log_main", "ops.log_main_1"):
        catalog.put(name)
    plan = catalog.plan(wanted, instances=lakes(l1="Main"))
    assert did(plan) == ["create ops.log_Main_2"] and [record.instance for record in plan.records] == ["l1"]
    catalog.apply(plan)
    plan = catalog.plan(wanted, instances=lakes(l1="renamed", l2="eu west"))
    assert did(plan) == ["create ops.log_eu_west"]
    catalog.apply(plan)
    assert {(known.name, known.instance, known.uuid) for known in catalog.recorded.objects} == {
        ("ops.t", None, T.id), ("ops.log_Main_2", "l1", uuid5(LOG.id, "l1")),
        ("ops.log_eu_west", "l2", uuid5(LOG.id, "l2")),
    }  # fmt: skip


@pytest.mark.parametrize("called", ["Zürich 東京", "x" * 300, "__", "a.b/c"])
def test_a_generated_name_is_one_that_could_have_been_declared(called: str) -> None:
    plan = Catalog().plan(spec("1.0", LOG), instances=lakes(l1=called, l2=called))
    names = {step.name for step in plan.steps}
    assert len(names) == 2 and [name_problem(name) for name in names] == [None, None]


def test_a_template_that_nobody_listed_instances_for_is_a_note() -> None:
    plan = Catalog().plan(spec("1.0", T, LOG))
    assert did(plan) == ["create ops.t"]
    check_messages(plan.warnings)
    assert Catalog().plan(spec("1.0", T, LOG), instances={"lake": ()}).warnings == ()


def test_a_generated_object_whose_deploy_died_before_it_was_recorded_keeps_the_name_that_it_has() -> None:
    catalog, wanted = deployed(T), spec("1.1", T, LOG)
    before = catalog.recorded
    catalog.apply(catalog.plan(wanted, instances=lakes(l1="main")))
    catalog.recorded = before
    assert did(catalog.plan(wanted, instances=lakes(l1="other"))) == ["metadata ops.log_main"]


def test_an_instance_that_is_gone_takes_its_object_along_and_one_that_nobody_listed_does_not() -> None:
    catalog, wanted, kept = deployed(T), spec("1.1", T, LOG), spec("1.2", T, replace(LOG, keep=True))
    catalog.apply(catalog.plan(wanted, instances=lakes(l1="main")))
    assert did(catalog.plan(wanted)) == []
    assert did(catalog.plan(wanted, instances=lakes())) == ["remove ops.log_main"]
    catalog.apply(catalog.plan(kept, instances=lakes(l1="main")))
    plan = catalog.plan(kept, instances=lakes())
    assert did(plan) == [] and problems(plan)[0].startswith("all rows of ops.log_main would be lost: accept that")
    plan = catalog.plan(replace(kept, removed=spec("", removed=["ops.log_main"]).removed), instances=lakes())
    assert said(plan) == ["remove ops.log_main: no longer declared"]


def test_the_object_of_each_instance_follows_its_template() -> None:
    catalog, two = deployed(T), lakes(l1="main", l2="eu")
    catalog.apply(catalog.plan(spec("1.1", T, LOG), instances=two))
    plan = catalog.plan(spec("1.2", T, replace(LOG, columns=(*LOG.columns, T.columns[0]))), instances=two)
    assert did(plan) == ["evolve ops.log_eu", "evolve ops.log_main"]
