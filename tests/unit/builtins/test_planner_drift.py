"""What was changed by hand is told apart from what the code changes, and what an unfinished deploy left from both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import CatalogSpec, Column
from airflow_provider_rfr.builtins.plan import Plan, exit_code
from tests.unit.builtins.catalogs import Catalog, column, deployed, did, problems, spec, steps, table, view
from tests.unit.messages import check_messages

T = table("ops.t", "id bigint", "rows int", properties={"owner": "ops"})
V = view("ops.v", "SELECT rows FROM ops.t")
WANTED = spec("1.0", T, V)
WITH_X = (*T.columns, column("x int"))


def drifted(plan: Plan) -> list[str]:
    return [str(problem) for item in plan.drift for problem in item.problems]


def edit(name: str, **changes: Any) -> Callable[[Catalog], None]:
    return lambda catalog: catalog.edit(name, **changes)


def drop(catalog: Catalog) -> None:
    del catalog.things["ops.v"]


def rename(catalog: Catalog) -> None:
    catalog.things["ops.mine"] = replace(catalog.things.pop("ops.t"), name="ops.mine")


EDITS: dict[str, tuple[Callable[[Catalog], None], bool, list[str] | None]] = {
    "column added": (edit("ops.t", columns=WITH_X), True, ["evolve ops.t"]),
    "column dropped": (edit("ops.t", columns=T.columns[:1]), False, ["evolve ops.t"]),
    "column widened": (edit("ops.t", columns=(T.columns[0], column("rows bigint"))), False, None),
    "column of another type": (edit("ops.t", columns=(T.columns[0], column("rows string"))), False, None),
    "column required": (edit("ops.t", columns=(column("id bigint!"), T.columns[1])), False, ["evolve ops.t"]),
    "columns moved": (edit("ops.t", columns=T.columns[::-1]), False, ["evolve ops.t"]),
    "partitioned": (edit("ops.t", partitioning=("days(x)",)), False, ["evolve ops.t"]),
    "keys": (edit("ops.t", keys=("id",)), False, ["evolve ops.t"]),
    "property": (edit("ops.t", properties={"owner": "bob"}), False, ["metadata ops.t"]),
    "property and partitioned": (
        edit("ops.t", properties={"owner": "bob"}, partitioning=("days(x)",)), False, ["evolve ops.t"],
    ),
    "text of a view": (edit("ops.v", query="SELECT 1 AS rows"), True, ["replace ops.v"]),
    "dropped": (drop, False, ["create ops.v"]),
    "renamed": (rename, False, ["rename ops.mine", "metadata ops.t"]),
    "replaced": (edit("ops.t", marker=None, columns=(column("other int"),)), False, None),
}  # fmt: skip


@pytest.mark.parametrize(("by_hand", "adopted", "repaired"), EDITS.values(), ids=EDITS)
def test_whatever_was_changed_by_hand_is_said_and_stops_the_deploy_until_somebody_decides(
    by_hand: Callable[[Catalog], None], adopted: bool, repaired: list[str] | None
) -> None:
    """To adopt is not to repair: what can't stay as it is has to be declared. To repair is not to make up values."""
    catalog = deployed(T, V)
    by_hand(catalog)
    plan, adopt = catalog.plan(WANTED), catalog.plan(WANTED, drift="adopt")
    repair = catalog.plan(WANTED, drift="repair", accept_data_loss={"ops.t.x"})
    assert not plan.applicable and exit_code(plan) == 1
    assert (adopt.applicable, drifted(adopt)) == (adopted, drifted(plan))
    assert not adopted or (adopt.steps, adopt.records) == ((), ())
    blocked = {"adopt": [*map(str, adopt.blocked)], "repair": [*map(str, repair.blocked)]}
    changes = [change for step in repair.steps for change in step.changes]
    check_messages({"drift": drifted(plan), "steps": did(plan), "changes": changes, **blocked})
    assert repair.applicable is (repaired is not None)
    if repair.applicable:
        assert did(repair) == repaired
        catalog.apply(repair)
        catalog.check()
        again = catalog.plan(WANTED)
        assert (again.steps, again.drift) == ((), ())


SAID = table("ops.t", Column("id", "bigint", comment="key"), comment="runs", owner="ann")
SHOWN = view("ops.v", "SELECT id FROM ops.t", comment="newest", owner="ann")
OF_T, OF_V = ({"comment": comment, "owner": "ann"} for comment in ("runs", "newest"))
SAYINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "comment": ("ops.t", {"properties": {**OF_T, "comment": "mine"}}, "comment: 'runs' -> 'mine'"),
    "no comment": ("ops.t", {"properties": {"owner": "ann"}}, "comment: 'runs' -> nothing"),
    "owner": ("ops.t", {"properties": {**OF_T, "owner": "bob"}}, "owner: 'ann' -> 'bob'"),
    "comment of a column": (
        "ops.t", {"columns": (replace(SAID.columns[0], comment="mine"),)}, "comment of id: 'key' -> 'mine'",
    ),
    "comment of a view": ("ops.v", {"properties": {**OF_V, "comment": "mine"}}, "comment: 'newest' -> 'mine'"),
    "owner of a view": ("ops.v", {"properties": {"comment": "newest"}}, "owner: 'ann' -> nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "by_hand", "difference"), SAYINGS.values(), ids=SAYINGS)
def test_comments_and_owners_that_are_declared_stay_as_they_are_declared(
    name: str, by_hand: dict[str, Any], difference: str
) -> None:
    catalog, wanted = deployed(SAID, SHOWN), spec("1.0", SAID, SHOWN)
    catalog.edit(name, **by_hand)
    plan, adopt = catalog.plan(wanted), catalog.plan(wanted, drift="adopt")
    assert drifted(plan) == drifted(adopt) == [difference] and not plan.applicable
    assert adopt.applicable is (name == "ops.v") and adopt.steps == ()
    repair = catalog.plan(wanted, drift="repair")
    assert did(repair) == [f"{'metadata' if name == 'ops.t' else 'replace'} {name}"]
    comments = [step["comment"] for batch in repair.steps[0].details.get("updates", ()) for step in batch]
    assert comments == (["key"] if "columns" in by_hand else [])
    catalog.apply(repair)
    again = catalog.plan(wanted)
    assert (again.steps, again.drift) == ((), ())


@pytest.mark.parametrize(
    "declared",
    [
        {"properties": {"owner": "bob"}},
        {"partitioning": ("days(x)",)},
        {"keys": ("id",)},
        {"columns": (column("id bigint!"), T.columns[1])},
        {"columns": T.columns[::-1]},
    ],
    ids=["property", "partitioned", "keys", "required", "order"],
)
def test_what_was_adopted_is_declared_and_then_nothing_is_left_to_do(declared: dict[str, Any]) -> None:
    catalog = deployed(T, V)
    catalog.edit("ops.t", **declared)
    plan = catalog.plan(spec("1.1", replace(T, **declared), V), drift="adopt")
    assert plan.applicable and not any("evolve" in step for step in did(plan))


def test_a_column_that_was_added_by_hand_is_dropped_with_permission_left_or_declared() -> None:
    catalog = deployed(T, V)
    catalog.edit("ops.t", columns=WITH_X)
    check_messages(problems(catalog.plan(WANTED, drift="repair")))
    late = spec("1.1", replace(T, columns=(*T.columns, column("late int"))), V)
    assert catalog.plan(late, drift="adopt").steps[0].changes == ("+ column late int",)
    for policy in ("adopt", "repair"):
        plan = catalog.plan(spec("1.1", replace(T, columns=(*T.columns, column("x bigint"))), V), drift=policy)
        assert plan.steps[0].changes == ("^ x: int -> bigint (widen)",) and plan.applicable


def test_code_changes_are_shown_beside_it_as_if_it_were_not_there() -> None:
    catalog = deployed(T, V)
    catalog.edit("ops.t", columns=WITH_X)
    plan = catalog.plan(spec("1.1", replace(T, columns=(T.columns[0], column("rows bigint"))), V))
    assert did(plan) == ["evolve ops.t", "rebind ops.v"]
    assert steps(plan)[0].changes == ("^ rows: int -> bigint (widen)",)
    assert drifted(plan) == ["column x: nothing -> int"] and exit_code(plan) == 1


def test_a_hand_that_follows_a_finished_deploy_is_drift_also_after_a_rename() -> None:
    catalog, renamed = (
        deployed(T, V),
        spec("1.1", replace(T, name="ops.runs"), view("ops.v", "SELECT rows FROM ops.runs")),
    )
    catalog.deploy(renamed)
    catalog.edit("ops.runs", columns=WITH_X)
    check_messages(drifted(catalog.plan(renamed)))


def test_a_copy_that_has_our_marker_does_not_take_the_place_of_what_was_dropped() -> None:
    """Spark copies a table's properties along with it; what the copy says of its deploy is of long ago."""
    catalog, wider = deployed(T, V), spec("1.1", replace(T, columns=(T.columns[0], column("rows bigint"))), V)
    copy = replace(catalog.things["ops.t"], name="ops.copy")
    catalog.deploy(wider)
    del catalog.things["ops.t"]
    catalog.things["ops.copy"] = copy
    plan = catalog.plan(wider)
    assert drifted(plan)[0] == "it is called ops.copy now" and (plan.steps, plan.applicable) == ((), False)


# What is no drift


def test_a_property_that_a_catalog_takes_and_does_not_show_is_no_drift() -> None:
    declared = replace(T, properties={"owner": "ops", "format-version": "2"})
    catalog = deployed(declared, V)
    catalog.edit("ops.t", properties={"owner": "ops"})
    assert drifted(catalog.plan(spec("1.0", declared, V))) == []


def test_comments_and_owners_that_nobody_declared_are_no_drift() -> None:
    catalog = deployed(T, V)
    columns = tuple(replace(column, comment="mine") for column in T.columns)
    catalog.edit("ops.t", properties={"owner": "ops", "comment": "mine"}, columns=columns)
    catalog.edit("ops.v", properties={"owner": "bob", "comment": "mine"})
    assert drifted(catalog.plan(WANTED)) == []


def test_a_property_that_is_called_like_a_field_is_what_is_declared() -> None:
    declared = replace(T, owner="ann")
    assert drifted(deployed(declared, V).plan(spec("1.0", declared, V))) == []


def test_layout_and_case_of_a_text_in_the_catalog_are_no_drift() -> None:
    catalog = deployed(T, V)
    catalog.edit("ops.v", query="SELECT rows\n  FROM ops.t")
    assert drifted(catalog.plan(WANTED)) == []


@pytest.mark.parametrize(
    "query",
    [
        "SELECT ROWS FROM ops.t",
        "SELECT rows FROM ops.T",
        "SELECT rows /* all */ FROM\n ops.t",
        "SELECT `rows` FROM `ops`.`t`",
    ],
)
def test_a_query_that_is_written_in_another_way_is_deployed_and_no_drift_afterwards(query: str) -> None:
    catalog = deployed(T, V)
    for _ in range(2):
        assert drifted(catalog.deploy(spec("1.0", T, view("ops.v", query)))) == []


def test_a_star_that_is_written_in_another_way_stands_for_the_same_columns() -> None:
    catalog = deployed(T, view("ops.v", "SELECT * FROM ops.t"))
    wider = replace(T, columns=(*T.columns, column("more int")))
    for objects in ((wider, view("ops.v", "select * from ops.t")), (T, view("ops.v", "SELECT * FROM ops.T"))):
        wanted = spec("1.1", *objects, removed=["ops.t.more"])
        assert did(catalog.deploy(wanted)) == ["evolve ops.t"]
        assert drifted(catalog.plan(wanted)) == [] and catalog.plan(wanted).steps == ()
    fewer = replace(T, columns=T.columns[:1]), view("ops.v", "SELECT *\nFROM ops.t")
    assert did(catalog.deploy(spec("1.2", *fewer, removed=["ops.t.rows"]))) == ["evolve ops.t", "replace ops.v"]
    assert drifted(catalog.plan(spec("1.2", *fewer))) == []


def test_tables_are_read_under_the_names_that_the_catalog_has_for_them() -> None:
    catalog = deployed(table("ops.Runs", "id bigint"))
    text = "SELECT r.id FROM `OPS`.RUNS AS r JOIN ops.runs ON r.ID = runs.id"
    wanted = spec("1.1", table("ops.runs", "id bigint"), view("ops.v", text), view("ops.w", "SELECT id FROM OPS.V"))
    plan = catalog.deploy(wanted)
    assert {record.name: record.sql for record in plan.records if record.sql} == {
        "ops.v": "SELECT r.id FROM ops.Runs AS r JOIN ops.Runs ON r.ID = runs.id",
        "ops.w": "SELECT id FROM ops.v",
    }
    assert catalog.plan(wanted).steps == ()


# Deploys that did not finish

V2 = spec("2.0", table("ops.t", "id bigint", "rows bigint", "x int"), view("ops.v", "SELECT rows, x FROM ops.t"))
LATER = spec("1.5", table("ops.t", "id bigint", "rows bigint"), V, removed=["ops.t.x"])


@pytest.mark.parametrize("until", range(4))
@pytest.mark.parametrize("then", [V2, LATER], ids=["the same version", "another version"])
def test_a_deploy_that_died_is_gone_on_with_from_where_it_ended_and_is_no_drift(then: CatalogSpec, until: int) -> None:
    """What it left says whose it is."""
    catalog = deployed(T, V)
    catalog.apply(catalog.plan(V2), until=until)
    plan = catalog.plan(then)
    assert plan.applicable and plan.drift == ()
    catalog.apply(plan)
    catalog.check()
    assert catalog.plan(then).steps == () and catalog.plan(then).drift == ()


def test_what_an_unfinished_deploy_left_is_not_undone_by_losing_something() -> None:
    catalog = deployed(T, V)
    begun = catalog.plan(V2)
    catalog.apply(begun, until=1 + begun.steps.index(steps(begun)[0]))
    plan = catalog.plan(replace(WANTED, version="1.1"))
    assert plan.drift == ()
    check_messages(problems(plan))


def test_what_an_unfinished_deploy_said_about_a_view_is_taken_back() -> None:
    before, after = (
        view("ops.v", "SELECT rows FROM ops.t", comment=text, properties={"a": text}) for text in ("old", "new")
    )
    catalog, wanted = deployed(T, before), spec("1.1", T, before)
    catalog.apply(catalog.plan(spec("2.0", T, after)), until=1)
    plan = catalog.plan(wanted)
    assert (did(plan), plan.drift) == (["metadata ops.v"], ())
    catalog.apply(plan)
    again = catalog.plan(wanted)
    assert (again.steps, again.drift) == ((), ())
