"""The gentlest action that loses nothing, values made by a `was` where they are needed, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.builtins.model import BuiltinObject, Column, Dependency, Kind, Removed, Was
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code, render
from tests.unit.builtins.catalogs import (
    Catalog,
    column,
    deployed,
    did,
    made,
    mview,
    obj,
    problems,
    sink,
    spec,
    table,
    view,
)
from tests.unit.messages import check_messages

Columns = list[str | Column]
TO_TEXT = made("rows string", "CAST(rows AS STRING)")
T = table("ops.t", "rows int")


def from_to(before: Columns, after: Columns, **more: Any) -> tuple[Catalog, Plan]:
    """The plan from one version of a table to the next.

    :param old: what of ``more`` was something else before
    """
    policies, old = more.pop("policies", {}), more.pop("old", {})
    catalog = deployed(table("ops.t", *before, **{**more, **old}))
    return catalog, catalog.plan(spec("2.0", table("ops.t", *after, **more)), **policies)


def only(plan: Plan) -> tuple[str, tuple[str, ...]]:
    assert plan.applicable, plan.blocked
    (step,) = plan.steps
    return step.how.value, tuple(step.losses)


def shape(catalog: Catalog) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in catalog.things["ops.t"].columns]


ACTIONS: dict[str, tuple[Columns, Columns, str, dict[str, str]]] = {
    "added": (["a int"], ["a int", "b string"], "evolve", {}),
    "widened": (["a decimal(10,2)"], ["a decimal(20,2)"], "evolve", {}),
    "moved": (["a int", "b int"], ["b int", "a int"], "evolve", {}),
    "renamed, and its name given to another one": (["a int"], ["b int < a", "a int"], "evolve", {}),
    "names exchanged": (["a int", "b int"], ["b int < a", "a int < b"], "evolve", {}),
    "optional": (["a int!"], ["a int"], "evolve", {}),
    "required": (["a int"], ["a int!"], "evolve", {}),
    "another type": (["a string"], [made("a int", "CAST(a AS int)")], "rewrite", {"a": "CAST(a AS int)"}),
    "another name and type": (
        ["a string"], [made("b int", "CAST(a AS int)", name="a", type="string")], "rewrite", {"b": "CAST(a AS int)"},
    ),
    "new and required": (["a int"], ["a int", made("b string!", "'x'")], "rewrite", {"b": "'x'"}),
    "new with values": (["a int"], ["a int", made("b string", "'x'")], "rewrite", {"b": "'x'"}),
    "values for a wider type, by its author": (
        ["cents int"], [made("cents bigint", "cents * 100", type="int")], "rewrite", {"cents": "cents * 100"},
    ),
    "values for another name, by its author": (
        ["euros int"], [made("cents int", "euros * 100", name="euros")], "rewrite", {"cents": "euros * 100"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "how", "expressions"), ACTIONS.values(), ids=ACTIONS)
def test_what_loses_nothing_is_done_by_the_gentlest_action_and_done_once(
    before: Columns, after: Columns, how: str, expressions: dict[str, str]
) -> None:
    catalog, plan = from_to(before, after)
    assert only(plan) == (how, ()) and plan.steps[0].details.get("expressions", {}) == expressions
    assert plan.stale == ()
    catalog.apply(plan)
    again = catalog.plan(spec("2.0", table("ops.t", *after)))
    declared = table("ops.t", *after).columns
    assert (again.steps, set(again.stale)) == ((), {f"ops.t.{column.name}" for column in declared if column.was})


NEED_VALUES: dict[str, tuple[list[str], str, dict[str, str]]] = {
    "another type": (["a string"], "a int", {"type": "string", "using": "CAST(a AS int)"}),
    "another scale": (
        ["a decimal(10,2)"], "a decimal(20,4)", {"type": "decimal(10,2)", "using": "CAST(a AS decimal(20,4))"},
    ),
    "another name": (["b string"], "a int < b", {"name": "b", "type": "string", "using": "CAST(b AS int)"}),
    "a word of SQL": (["from string"], "from int", {"type": "string", "using": "CAST(`from` AS int)"}),
    "a word of YAML": (["Null string"], "Null int", {"type": "string", "using": "CAST(`Null` AS int)"}),
    "required with another type": (["a string"], "a int!", {"type": "string", "using": "CAST(a AS int)"}),
    "new and required": ([], "b string!", {"using": "CAST('' AS string)"}),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "was"), NEED_VALUES.values(), ids=NEED_VALUES)
def test_a_column_that_needs_values_stops_with_an_entry_to_paste_and_goes_on_with_it(
    before: list[str], after: str, was: dict[str, str]
) -> None:
    """The object, what differs field by field, the entry; and pasted, it is what was missing."""
    wanted = replace(column(after), comment="a: number")
    catalog, plan = from_to([*before, "other int"], [wanted, "other int"])
    assert exit_code(plan) == 1 and plan.steps == () and plan.records == ()
    (blocked,) = plan.blocked
    assert blocked.name == "ops.t" and blocked.changes
    check_messages(problems(plan))
    assert "c1:" not in render(plan)
    ((entry,),) = map(yaml.safe_load, blocked.paste)
    required = {"required": True} if wanted.required else {}
    assert entry == {"name": wanted.name, "type": wanted.type, **required, "comment": "a: number", "was": was}
    pasted = spec("2.0", table("ops.t", replace(wanted, was=(Was(**entry["was"]),)), "other int"))
    plan = catalog.plan(pasted)
    assert only(plan) == ("rewrite", ())
    catalog.apply(plan)
    assert catalog.plan(pasted).steps == ()


@pytest.mark.parametrize(
    ("before", "using", "kind"),
    [("int", "CAST(numbers AS STRING)", None), ("int", "CAST(rows AS", None), ("date", "CAST(rows AS string)", "int")],
    ids=["another column", "no expression", "another type"],
)
def test_a_using_that_can_not_be_had_or_is_for_another_type_stops_the_plan(
    before: str, using: str, kind: str | None
) -> None:
    _, plan = from_to([f"rows {before}"], [made("rows string", using, type=kind)])
    assert plan.steps == ()
    check_messages(problems(plan))


def test_a_was_is_met_by_what_is_live_not_by_what_the_version_before_said() -> None:
    """Declaration, registry and catalog are compared: a deploy that died after the table did is not repeated."""
    catalog, plan = from_to(["a string"], wanted := [made("b int", "CAST(a AS int)", name="a")])
    catalog.apply(plan, until=1)
    assert catalog.recorded.objects[0].columns == (column("a string"),)
    again = catalog.plan(spec("2.0", table("ops.t", *wanted)))
    assert again.applicable and {step.how for step in again.steps} <= {StepAction.METADATA}


# Versions that are skipped


VERSIONS: list[Columns] = [
    ["rows int"],
    [TO_TEXT],
    [TO_TEXT, "more int"],
    [
        column("size int", Was("rows", "string", "length(rows)"), Was("rows", "int", "length(CAST(rows AS STRING))")),
        "more int",
    ],
]


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("stepwise", [False, True])
def test_a_list_of_was_leads_from_every_version_to_the_newest(first: int, stepwise: bool) -> None:
    """The one that meets the live table counts."""
    catalog = Catalog()
    for number, item in enumerate(VERSIONS):
        if number == first or (number > first and (stepwise or number == len(VERSIONS) - 1)):
            plan = catalog.deploy(spec(f"{number}.0", table("ops.t", *item)))
    assert shape(catalog) == [("size", "int"), ("more", "int")]
    assert only(plan) == ("rewrite", ())
    text = "length(CAST(rows AS STRING))" if first == 0 and not stepwise else "length(rows)"
    assert plan.steps[0].details["expressions"] == {"size": text}


def test_two_versions_that_evolve_are_one_step_with_the_same_result_as_one_after_the_other() -> None:
    versions: list[Columns] = [["a int"], ["b int < a"], ["c int < b < a", "d string"]]
    straight, plan = from_to(versions[0], versions[2])
    assert only(plan) == ("evolve", ())
    assert plan.steps[0].changes == ("> column a -> c (rename)", "+ column d string")
    straight.apply(plan)
    stepwise = Catalog()
    for number, item in enumerate(versions):
        stepwise.deploy(spec(f"1.{number}", table("ops.t", *item)))
    assert shape(straight) == shape(stepwise)


def test_a_was_that_meets_nothing_any_more_is_a_note_and_is_never_done_again() -> None:
    catalog, plan = from_to(["rows int"], wanted := [TO_TEXT, "n int"])
    assert plan.stale == ()
    catalog.apply(plan)
    again = catalog.plan(spec("2.0", table("ops.t", *wanted)))
    assert (again.steps, again.warnings, again.stale, exit_code(again)) == ((), (), ("ops.t.rows",), 0)
    assert "no longer needed here: ops.t.rows; delete them" in render(again)
    fresh = Catalog().plan(spec("2.0", table("ops.t", *wanted)))
    assert did(fresh) == ["create ops.t"] and fresh.stale == ("ops.t.rows",)


# Rows that may be made again, and rows that are kept


@pytest.mark.parametrize(
    ("keep", "after", "how"),
    [
        (False, "rows string", "replace_empty"),
        (False, TO_TEXT, "rewrite"),
        (False, "rows bigint", "evolve"),
        ("billing", "rows bigint", "evolve"),
        ("billing", TO_TEXT, "rewrite"),
    ],
)
def test_a_table_is_emptied_only_where_its_rows_may_be_made_again_and_nothing_says_how(
    keep: bool | str, after: str | Column, how: str
) -> None:
    _, plan = from_to(["rows int"], [after], keep=keep)
    assert only(plan) == (how, ())
    assert ("emptied: its rows may be made again" in render(plan)) is (how == "replace_empty")


@pytest.mark.parametrize(("old", "new"), [(True, False), (False, True), (True, True)])
def test_a_table_whose_rows_are_or_were_kept_is_not_emptied(old: bool, new: bool) -> None:
    accepted = {"accept_data_loss": {"ops.t"}}
    _, plan = from_to(["rows int"], ["rows string"], keep=new, old={"keep": old}, policies=accepted)
    check_messages(problems(plan))


def every_kind(n: str, keep: bool | str = False) -> list[BuiltinObject]:
    """An object of each kind, with a column of this type."""
    return [
        table("ops.t", n, keep=keep, exportable=True),
        obj(Kind.LOG, "ops.log", n, keep=keep),
        obj(Kind.SOURCE, "ops.raw", n, keep=keep, source={"stream": "orders"}),
        mview("ops.m", "SELECT n FROM ops.t", n),
        view("ops.v", "SELECT n FROM ops.t"),
        sink("ops.k", "ops.t", on_replace="resend"),
    ]


def in_use(*objects: BuiltinObject) -> Catalog:
    """A catalog with a user's view."""
    catalog = deployed(*objects)
    catalog.user_view("bob.v", "SELECT n FROM ops.v", Dependency("ops.v", None, ("n",)))
    return catalog


def test_everything_is_replaced_at_once_with_a_step_for_each_object_which_stays_the_same_one() -> None:
    """Row 59."""
    before, wanted = every_kind("n int"), spec("2.0", *every_kind("n string"))
    assert {declared.kind for declared in before} == set(Kind)
    catalog = in_use(*before)
    ids, theirs = catalog.recorded.by_uuid.keys(), catalog.user_views["bob.v"]
    plan = catalog.deploy(wanted)
    assert sorted(did(plan)) == [
        *("rebind bob.v", "rebind ops.v", "recompute ops.m"),
        *("replace_empty ops.log", "replace_empty ops.raw", "replace_empty ops.t", "resend ops.k"),
    ]
    catalog.check()
    assert catalog.recorded.by_uuid.keys() == ids == {declared.id for declared in before}
    assert catalog.user_views == {"bob.v": theirs} and catalog.garbage == []
    assert catalog.plan(wanted).steps == ()


def test_of_everything_that_is_to_be_replaced_what_is_kept_stops_the_plan() -> None:
    kept, catalog = {"ops.t", "ops.log", "ops.raw"}, in_use(*every_kind("n int", keep="billing"))
    plan = catalog.plan(spec("2.0", *every_kind("n string", keep="billing")), accept_data_loss=kept)
    assert {finding.name for finding in plan.blocked} >= kept
    assert StepAction.REPLACE_EMPTY not in {step.how for step in plan.steps}


# Older code


def test_older_code_changes_nothing_and_says_who_recorded_what_it_finds() -> None:
    newer = spec("2.0", table("ops.t", "a int", "b int"), view("ops.v", "SELECT b FROM ops.t"), table("ops.u", "x int"))
    catalog = Catalog()
    catalog.deploy(newer)
    older = spec("1.9", table("ops.t", "a int"), view("ops.v", "SELECT a FROM ops.t"), table("ops.old", "x int"))
    removing = replace(older, removed=(Removed("ops.t.b"), Removed("ops.u")))
    for wanted, policies in ((older, {}), (removing, {"accept_data_loss": {"ops.t.b"}})):
        plan = catalog.plan(wanted, **policies)
        assert exit_code(plan) == 1 and plan.steps == () and plan.records == ()
        assert {item.name for item in plan.blocked} == {"ops.t", "ops.u", "ops.v", "ops.old"}
        firsts = {str(item.problems[0]) for item in plan.blocked}
        assert firsts == {"downgrade not supported: recorded by 2.0, this is 1.9"}
        assert [item.paste for item in plan.blocked] == [()] * 4
    for version in ("1.9", "2.0.0.dev3"):
        assert exit_code(catalog.plan(replace(newer, version=version))) == 0


# Other kinds of change


def test_metadata_is_written_in_place_and_asks_for_no_values() -> None:
    more = {"comment": "Runs.", "properties": {"a": "2", "c": "3"}}
    _, plan = from_to(["a int"], ["a int"], **more, old={"comment": None, "properties": {"a": "1", "b": "1"}})
    assert only(plan) == ("metadata", ()) and plan.steps[0].details["unset"] == ["b"]
    assert plan.steps[0].changes == (
        "~ comment: nothing -> 'Runs.'", "~ property a: '1' -> '2'", "~ property b: '1' -> nothing",
        "~ property c: nothing -> '3'",
    )  # fmt: skip


def test_a_partitioning_holds_for_new_rows_and_touches_no_row() -> None:
    layout = {"partitioning": ("bucket(4, a)",), "keys": ("a",)}
    _, plan = from_to(["a int"], ["a int"], **layout, old={"partitioning": (), "keys": ()})
    assert only(plan) == ("evolve", ())
    assert (plan.steps[0].details["partitioning"], plan.steps[0].details["keys"]) == (["bucket(4, a)"], ["a"])


def test_whitespace_comments_and_case_of_a_query_are_no_change_but_are_kept() -> None:
    plan = deployed(T, view("ops.v", "SELECT rows FROM ops.t")).plan(
        spec("1.1", T, view("ops.v", "select rows\nfrom OPS.T -- all of them\n"))
    )
    assert plan.steps == ()
    assert [record.raw_sql for record in plan.records] == ["select rows\nfrom OPS.T -- all of them\n"]


def test_queries_that_another_reader_recorded_are_compared_as_they_were_written() -> None:
    catalog = deployed(T, view("ops.v", "SELECT rows FROM ops.t"))
    objects = tuple(replace(known, canonicalizer="sqlglot/1.0 rules/0") for known in catalog.recorded.objects)
    catalog.recorded = replace(catalog.recorded, objects=objects)
    for query in ("SELECT rows FROM ops.t", "select rows from ops.t"):
        plan = catalog.plan(spec("1.0", T, view("ops.v", query)))
        assert plan.steps == () and exit_code(plan) == 0 and len(plan.records) == 2
    assert did(catalog.plan(spec("1.0", T, view("ops.v", "SELECT rows FROM ops.t WHERE rows > 0")))) == [
        "replace ops.v"
    ]


def test_a_materialized_view_is_computed_again_where_a_table_would_need_values() -> None:
    catalog = deployed(T, mview("ops.m", "SELECT rows FROM ops.t", "rows int"))
    plan = catalog.plan(spec("2.0", T, mview("ops.m", "SELECT CAST(rows AS STRING) AS rows FROM ops.t", "rows string")))
    assert only(plan) == ("recompute", ())
    assert plan.steps[0].details["sql"].startswith("SELECT CAST") and plan.steps[0].details["updates"]
