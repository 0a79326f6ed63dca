"""The gentlest action that loses nothing, values made by a `was` where they are needed, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.builtins.desired import contract_of
from airflow_provider_rfr.builtins.model import Column, Kind, Removed, Was
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code, render
from tests.unit.builtins.catalogs import Catalog, column, made, mview, obj, problems, spec, table, view
from tests.unit.messages import check_messages

ONE, TWO = ["rows int"], ["rows string"]
Columns = list[str | Column]


def from_to(before: Columns, after: Columns, **more: Any) -> tuple[Catalog, Plan]:
    """The plan from one version of a table to the next.

    :param old: what of ``more`` was something else before
    """
    policies, old = more.pop("policies", {}), more.pop("old", {})
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", *before, **{**more, **old})))
    return catalog, catalog.plan(spec("2.0", table("ops.t", *after, **more)), **policies)


def only(found: Plan) -> tuple[StepAction, tuple[str, ...]]:
    assert found.applicable, found.blocked
    (done,) = found.steps
    return done.how, tuple(done.losses)


def shape(catalog: Catalog) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in catalog.things["ops.t"].columns]


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        (["a int"], ["a int", "b string"], StepAction.EVOLVE),
        (["a int"], ["a bigint"], StepAction.EVOLVE),
        (["a decimal(10,2)"], ["a decimal(20,2)"], StepAction.EVOLVE),
        (["a int", "b int"], ["b int", "a int"], StepAction.EVOLVE),
        (["a int"], ["b int < a"], StepAction.EVOLVE),
        (["a int"], ["b int < a", "a int"], StepAction.EVOLVE),
        (["a int", "b int"], ["b int < a", "a int < b"], StepAction.EVOLVE),
        (["a int!"], ["a int"], StepAction.EVOLVE),
        (["a int"], ["a int!"], StepAction.EVOLVE),
        (["a string"], [made("a int", "CAST(a AS int)")], StepAction.REWRITE),
        (["a string"], [made("b int", "CAST(a AS int)", name="a", type="string")], StepAction.REWRITE),
        (["a int"], ["a int", made("b string!", "CAST(a AS string)")], StepAction.REWRITE),
        (["a int"], ["a int", made("b string", "CAST(a AS string)")], StepAction.REWRITE),
    ],
)
def test_what_loses_nothing_is_done_by_the_gentlest_action_and_done_once(
    before: Columns, after: Columns, how: StepAction
) -> None:
    catalog, found = from_to(before, after)
    assert only(found) == (how, ())
    catalog.apply(found)
    assert catalog.plan(spec("2.0", table("ops.t", *after))).steps == ()


@pytest.mark.parametrize(
    ("before", "after", "was"),
    [
        (["a string"], "a int", {"type": "string", "using": "CAST(a AS int)"}),
        (["a decimal(10,2)"], "a decimal(20,4)", {"type": "decimal(10,2)", "using": "CAST(a AS decimal(20,4))"}),
        (["a date"], "a timestamp", {"type": "date", "using": "CAST(a AS timestamp)"}),
        (["b string"], "a int < b", {"name": "b", "type": "string", "using": "CAST(b AS int)"}),
        (["from string"], "from int", {"type": "string", "using": "CAST(`from` AS int)"}),
        (["a string"], "a int!", {"type": "string", "using": "CAST(a AS int)"}),
        (["Null string"], "Null int", {"type": "string", "using": "CAST(`Null` AS int)"}),
        ([], "b string!", {"using": "CAST('' AS string)"}),
    ],
)
def test_a_column_that_needs_values_stops_with_an_entry_to_paste_and_goes_on_with_it(
    before: list[str], after: str, was: dict[str, str]
) -> None:
    """Row 18: the object, what differs field by field, the entry; and pasted, it is what was missing."""
    before = [*before, "other int"]
    catalog, found = from_to(before, [after, "other int"])
    assert exit_code(found) == 1 and found.steps == () and found.records == ()
    (blocked,) = found.blocked
    wanted = column(after)
    assert blocked.name == "ops.t" and blocked.changes
    check_messages(problems(found))
    assert "c1:" not in render(found)
    ((entry,),) = map(yaml.safe_load, blocked.paste)
    required = {"required": True} if wanted.required else {}
    assert entry == {"name": wanted.name, "type": wanted.type, **required, "was": was}
    pasted = replace(wanted, was=(Was(**entry["was"]),))
    found = catalog.plan(spec("2.0", table("ops.t", pasted, "other int")))
    assert only(found) == (StepAction.REWRITE, ())
    catalog.apply(found)
    assert catalog.plan(spec("2.0", table("ops.t", pasted, "other int"))).steps == ()


def test_an_entry_to_paste_keeps_the_comment() -> None:
    wanted = replace(column("a int"), comment="what it is: a number")
    _, found = from_to(["a string"], [wanted])
    ((entry,),) = map(yaml.safe_load, found.blocked[0].paste)
    assert (entry["comment"], entry["was"]["type"]) == (wanted.comment, "string")


def test_only_the_object_that_changed_is_migrated_and_its_id_stays() -> None:
    """Row 2."""
    catalog = Catalog()
    others = (table("ops.u", "x int"), view("ops.v", "SELECT x FROM ops.u"))
    catalog.deploy(spec("1.0", table("ops.t", *ONE), *others))
    before = {obj.name: obj.uuid for obj in catalog.recorded.objects}
    changed = table("ops.t", made("rows string", "CAST(rows AS STRING)"))
    found = catalog.deploy(spec("2.0", changed, *others))
    assert [(step.name, step.how, step.uuid) for step in found.steps] == [
        ("ops.t", StepAction.REWRITE, before["ops.t"])
    ]
    assert found.steps[0].details["expressions"] == {"rows": "CAST(rows AS STRING)"}
    assert {obj.name: obj.uuid for obj in catalog.recorded.objects} == before


@pytest.mark.parametrize(
    ("using", "problem"),
    [
        ("CAST(numbers AS STRING)", "the `using` of rows: it reads numbers, and the table has rows"),
        ("CAST(rows AS", "the `using` of rows: line 2, column 2: Expected TYPE after CAST"),
    ],
)
def test_a_using_that_can_not_be_had_stops_the_plan(using: str, problem: str) -> None:
    _, found = from_to(ONE, [made("rows string", using)])
    assert problems(found) == [problem] and found.steps == ()


def test_a_using_for_another_type_or_name_than_the_live_one_is_not_used() -> None:
    _, found = from_to(["rows date"], [made("rows string", "CAST(rows AS string)", type="int")])
    check_messages(problems(found))


def test_a_using_that_nothing_needs_touches_no_row() -> None:
    """The gentler of two ways is taken."""
    _, found = from_to(["a int"], [made("a bigint", "a * 2")])
    assert only(found) == (StepAction.EVOLVE, ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["euros int"], made("cents bigint", "euros * 100", name="euros", type="int")),
        (["euros int"], made("cents int", "euros * 100", name="euros")),
        (["cents int"], made("cents bigint", "cents * 100", type="int")),
    ],
)
def test_a_using_makes_the_values_also_where_they_could_be_taken_as_they_are(before: Columns, after: Column) -> None:
    """Its author says how; they are made once, for the table then is not what the column was."""
    catalog, found = from_to(before, [after])
    assert only(found) == (StepAction.REWRITE, ()) and found.stale == ()
    assert found.steps[0].details["expressions"] == {"cents": after.was[0].using}
    catalog.apply(found)
    again = catalog.plan(spec("2.0", table("ops.t", after)))
    assert (again.steps, again.stale) == ((), ("ops.t.cents",))


def test_a_was_is_met_by_what_is_live_not_by_what_the_version_before_said() -> None:
    """Declaration, registry and catalog are compared: a deploy that died after the table did is not repeated."""
    catalog, found = from_to(["a string"], wanted := [made("b int", "CAST(a AS int)", name="a")])
    assert only(found)[0] is StepAction.REWRITE
    catalog.apply(found, until=1)
    assert catalog.recorded.objects[0].columns == (column("a string"),)
    again = catalog.plan(spec("2.0", table("ops.t", *wanted)))
    assert again.applicable and [step.how for step in again.steps if step.how is not StepAction.METADATA] == []


def test_the_contract_stays_inside_with_the_columns_that_it_is_of() -> None:
    catalog, _ = from_to(["id bigint", "rows int"], ["id bigint", "rows int"])
    (recorded,) = catalog.recorded.objects
    assert recorded.contract == contract_of(recorded.columns)
    assert recorded.contract.startswith("c1:")


# Versions that are skipped


VERSIONS: list[Columns] = [
    ["rows int"],
    [made("rows string", "CAST(rows AS STRING)")],
    [made("rows string", "CAST(rows AS STRING)"), "more int"],
    [
        column("size int", Was("rows", "string", "length(rows)"), Was("rows", "int", "length(CAST(rows AS STRING))")),
        "more int",
    ],
]


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("stepwise", [False, True])
def test_a_list_of_was_leads_from_every_version_to_the_newest(first: int, stepwise: bool) -> None:
    """Row 22: the one that meets the live table counts."""
    catalog = Catalog()
    for number, item in enumerate(VERSIONS):
        if number == first or (number > first and (stepwise or number == len(VERSIONS) - 1)):
            found = catalog.deploy(spec(f"{number}.0", table("ops.t", *item)))
    assert shape(catalog) == [("size", "int"), ("more", "int")]
    assert only(found) == (StepAction.REWRITE, ())
    from_int = first == 0 and not stepwise
    text = "length(CAST(rows AS STRING))" if from_int else "length(rows)"
    assert found.steps[0].details["expressions"] == {"size": text}


def test_two_versions_that_evolve_are_one_step_with_the_same_result_as_one_after_the_other() -> None:
    """Row 23."""
    v1, v2, v3 = ["a int"], ["b int < a"], ["c int < b < a", "d string"]
    straight, found = from_to(v1, v3)
    assert only(found) == (StepAction.EVOLVE, ())
    assert found.steps[0].changes == ("> column a -> c (rename)", "+ column d string")
    straight.apply(found)
    stepwise = Catalog()
    for number, item in enumerate((v1, v2, v3), 1):
        stepwise.deploy(spec(f"{number}.0", table("ops.t", *item)))
    assert shape(straight) == shape(stepwise)


def test_a_was_that_meets_nothing_any_more_is_a_note_and_is_never_done_again() -> None:
    """Row 19."""
    catalog, found = from_to(ONE, wanted := [made("rows string", "CAST(rows AS STRING)"), "n int"])
    assert found.stale == ()
    catalog.apply(found)
    again = catalog.plan(spec("2.0", table("ops.t", *wanted)))
    assert (again.steps, again.warnings, again.stale, exit_code(again)) == ((), (), ("ops.t.rows",), 0)
    assert "no longer needed here: ops.t.rows; delete them" in render(again)
    renamed, found = from_to(["a int"], ["b int < a"])
    assert found.stale == ()
    renamed.apply(found)
    assert renamed.plan(spec("2.0", table("ops.t", "b int < a"))).stale == ("ops.t.b",)
    fresh = Catalog().plan(spec("2.0", table("ops.t", *wanted)))
    assert [step.how for step in fresh.steps] == [StepAction.CREATE] and fresh.stale == ("ops.t.rows",)


# Rows that may be made again


def test_a_table_is_emptied_only_where_its_rows_may_be_made_again_and_nothing_says_how() -> None:
    """Row 22."""
    _, found = from_to(ONE, TWO, keep=False)
    assert only(found) == (StepAction.REPLACE_EMPTY, ())
    assert "emptied: its rows may be made again" in render(found)
    _, found = from_to(ONE, [made("rows string", "CAST(rows AS STRING)")], keep=False)
    assert only(found) == (StepAction.REWRITE, ())
    _, found = from_to(ONE, ["rows bigint"], keep=False)
    assert only(found) == (StepAction.EVOLVE, ())
    for old, new in ((True, False), (False, True), (True, True)):
        _, found = from_to(ONE, TWO, keep=new, old={"keep": old}, policies={"accept_data_loss": {"ops.t"}})
        check_messages(problems(found))


def test_rows_that_are_kept_for_a_reason_are_evolved_and_rewritten_all_the_same() -> None:
    """Row 26."""
    _, found = from_to(ONE, ["rows int", "more int"], keep="billing")
    assert only(found) == (StepAction.EVOLVE, ())
    _, found = from_to(ONE, [made("rows string", "CAST(rows AS STRING)")], keep="billing")
    assert only(found) == (StepAction.REWRITE, ())


# Older code


def test_older_code_changes_nothing_and_says_who_recorded_what_it_finds() -> None:
    """Row 27."""
    catalog = Catalog()
    newer = spec("2.0", table("ops.t", "a int", "b int"), view("ops.v", "SELECT b FROM ops.t"), table("ops.u", "x int"))
    catalog.deploy(newer)
    older = spec("1.9", table("ops.t", "a int"), view("ops.v", "SELECT a FROM ops.t"))
    found = catalog.plan(older)
    assert exit_code(found) == 1 and found.steps == () and found.records == ()
    assert {item.name for item in found.blocked} == {"ops.t", "ops.u", "ops.v"}
    assert all(
        str(item.problems[0]) == "downgrade not supported: recorded by 2.0, this is 1.9" for item in found.blocked
    )
    assert [item.paste for item in found.blocked] == [(), (), ()]
    assert exit_code(catalog.plan(replace(newer, version="1.9"))) == 0
    assert exit_code(catalog.plan(replace(newer, version="2.0.0.dev3"))) == 0
    found = catalog.plan(replace(older, removed=(Removed("ops.t.b"), Removed("ops.u"))), accept_data_loss={"ops.t.b"})
    assert {item.name for item in found.blocked} == {"ops.t", "ops.u", "ops.v"} and found.steps == ()


def test_older_code_does_not_bring_back_what_newer_code_removed() -> None:
    """Row 27."""
    catalog = Catalog()
    catalog.deploy(spec("2.0", table("ops.t", "a int")))
    found = catalog.plan(spec("1.9", table("ops.t", "a int"), table("ops.old", "x int")))
    check_messages(problems(found))
    assert found.steps == ()


# Other kinds of change


def test_metadata_is_written_in_place_and_asks_for_no_values() -> None:
    _, found = from_to(
        ONE,
        ONE,
        comment="Runs.",
        properties={"a": "2", "c": "3"},
        old={"comment": None, "properties": {"a": "1", "b": "1"}},
    )
    (done,) = found.steps
    assert (done.how, tuple(done.losses)) == (StepAction.METADATA, ())
    assert done.changes == (
        "~ comment: nothing -> 'Runs.'", "~ property a: '1' -> '2'", "~ property b: '1' -> nothing",
        "~ property c: nothing -> '3'",
    )  # fmt: skip
    assert done.details["unset"] == ["b"]


def test_a_partitioning_holds_for_new_rows_and_touches_no_row() -> None:
    _, found = from_to(
        ONE, ONE, partitioning=("bucket(4, rows)",), keys=("rows",), old={"partitioning": (), "keys": ()}
    )
    (done,) = found.steps
    assert (done.how, done.details["partitioning"], done.details["keys"]) == (
        StepAction.EVOLVE, ["bucket(4, rows)"], ["rows"],
    )  # fmt: skip


def test_whitespace_comments_and_case_of_a_query_are_no_change_but_are_kept() -> None:
    """Row 39."""
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", *ONE), view("ops.v", "SELECT rows FROM ops.t")))
    found = catalog.plan(spec("1.1", table("ops.t", *ONE), view("ops.v", "select rows\nfrom OPS.T -- all of them\n")))
    assert found.steps == ()
    assert [record.raw_sql for record in found.records] == ["select rows\nfrom OPS.T -- all of them\n"]


def test_queries_that_another_reader_recorded_are_compared_as_they_were_written() -> None:
    catalog = Catalog()
    wanted = spec("1.0", table("ops.t", *ONE), view("ops.v", "SELECT rows FROM ops.t"))
    catalog.deploy(wanted)
    objects = tuple(replace(obj, canonicalizer="sqlglot/1.0 rules/0") for obj in catalog.recorded.objects)
    catalog.recorded = replace(catalog.recorded, objects=objects)
    found = catalog.plan(wanted)
    assert found.steps == () and exit_code(found) == 0 and len(found.records) == 2
    reformatted = spec("1.0", table("ops.t", *ONE), view("ops.v", "select rows from ops.t"))
    assert catalog.plan(reformatted).steps == ()
    other = spec("1.0", table("ops.t", *ONE), view("ops.v", "SELECT rows FROM ops.t WHERE rows > 0"))
    assert [step.how for step in catalog.plan(other).steps] == [StepAction.REPLACE]


def test_a_materialized_view_is_computed_again_where_a_table_would_need_values() -> None:
    catalog = Catalog()
    base = table("ops.t", *ONE)
    catalog.deploy(spec("1.0", base, mview("ops.m", "SELECT rows FROM ops.t", "rows int")))
    found = catalog.plan(
        spec("2.0", base, mview("ops.m", "SELECT CAST(rows AS STRING) AS rows FROM ops.t", "rows string"))
    )
    (done,) = found.steps
    assert (done.how, tuple(done.losses)) == (StepAction.RECOMPUTE, ())
    assert done.details["sql"].startswith("SELECT CAST") and done.details["updates"]


def test_a_sources_new_definition_is_noted_and_its_rows_stay() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", obj(Kind.SOURCE, "ops.s", *ONE, source={"path": "/v1"})))
    found = catalog.plan(spec("1.1", obj(Kind.SOURCE, "ops.s", *ONE, source={"path": "/v2"})))
    (done,) = found.steps
    assert (done.how, done.changes) == (
        StepAction.METADATA,
        ("~ definition: the next refresh starts a new generation",),
    )
