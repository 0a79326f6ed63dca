"""The gentlest mechanism that loses nothing, instructions where one is needed, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.builtins.planning.plan import Action, Plan, exit_code
from airflow_provider_rfr.builtins.spec import Contents, Kind, Migration, Strategy
from airflow_provider_rfr.exceptions import ConfigurationError
from tests.unit.builtins.catalogs import Catalog, contract, migration, mview, obj, spec, table, view

ONE, TWO, THREE, FOUR = ["rows int"], ["rows string"], ["rows string", "more int"], ["rows int", "more int"]


def from_to(before: list[str], after: list[str], **more: Any) -> tuple[Catalog, Plan]:
    policies = more.pop("policies", {})
    old = more.pop("old", {})
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", *before, **{**more, "migrations": (), **old})))
    return catalog, catalog.plan(spec("2.0", table("ops.t", *after, **more)), **policies)


def step(before: list[str], after: list[str], how: Strategy, **expressions: str) -> Migration:
    return migration(contract(*before), contract(*after), how, **expressions)


def only(found: Plan) -> tuple[Action, tuple[str, ...]]:
    assert found.applicable, found.blocked
    (done,) = found.steps
    return done.how, done.loses


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        (["a int"], ["a int", "b string"], Action.EVOLVE),
        (["a int"], ["a bigint"], Action.EVOLVE),
        (["a decimal(10,2)"], ["a decimal(20,2)"], Action.EVOLVE),
        (["a int", "b int"], ["b int", "a int"], Action.EVOLVE),
        (["a int"], ["b int < a"], Action.EVOLVE),
        (["a int"], ["b int < a", "a int"], Action.EVOLVE),
        (["a int", "b int"], ["b int < a", "a int < b"], Action.EVOLVE),
        (["a int!"], ["a int"], Action.EVOLVE),
        (["a int"], ["a int!"], Action.EVOLVE),
    ],
)
def test_what_loses_nothing_needs_no_instruction(before: list[str], after: list[str], how: Action) -> None:
    catalog, found = from_to(before, after)
    assert only(found) == (how, ())
    catalog.apply(found)
    assert catalog.plan(spec("2.0", table("ops.t", *after))).steps == ()


@pytest.mark.parametrize(
    ("before", "after", "paste"),
    [
        (["a string"], ["a int"], {"how": "rewrite", "expressions": {"a": "CAST(a AS int)"}}),
        (
            ["a decimal(10,2)"],
            ["a decimal(20,4)"],
            {"how": "rewrite", "expressions": {"a": "CAST(a AS decimal(20,4))"}},
        ),
        (["a int"], ["a int", "b string!"], {"how": "rewrite", "expressions": {"b": "''"}}),
        (["a int", "b int"], ["a int"], {"how": "evolve"}),
        (["a date"], ["a timestamp"], {"how": "rewrite", "expressions": {"a": "CAST(a AS timestamp)"}}),
    ],
)
def test_what_needs_an_instruction_stops_with_the_instruction_to_paste_and_goes_on_with_it(
    before: list[str], after: list[str], paste: dict[str, Any]
) -> None:
    """Row 18: the object, what differs field by field, the template; and pasted, it is what was missing."""
    catalog, found = from_to(before, after)
    assert exit_code(found) == 1 and found.steps == () and found.records == ()
    (blocked,) = found.blocked
    assert blocked.name == "ops.t" and blocked.changes
    assert blocked.problems[0] == f"contract changed, no migration from {contract(*before)[:15]}"
    (entry,) = yaml.safe_load(blocked.instruction)
    assert entry == {"from": contract(*before)[:15], "to": contract(*after)[:15], **paste}
    pasted = Migration(entry["from"], entry["to"], Strategy(entry["how"]), entry.get("expressions", {}))
    found = catalog.plan(spec("2.0", table("ops.t", *after, migrations=(pasted,))))
    assert only(found)[0] is Action(paste["how"])
    catalog.apply(found)
    assert catalog.plan(spec("2.0", table("ops.t", *after, migrations=(pasted,)))).steps == ()


def test_only_the_object_that_changed_is_migrated_and_its_id_stays() -> None:
    """Row 2."""
    catalog = Catalog()
    others = (table("ops.u", "x int"), view("ops.v", "SELECT x FROM ops.u"))
    catalog.deploy(spec("1.0", table("ops.t", *ONE), *others))
    before = {each.name: each.uuid for each in catalog.recorded.objects}
    changed = table("ops.t", *TWO, migrations=(step(ONE, TWO, Strategy.REWRITE, rows="CAST(rows AS STRING)"),))
    found = catalog.deploy(spec("2.0", changed, *others))
    assert [(each.name, each.how, each.uuid) for each in found.steps] == [("ops.t", Action.REWRITE, before["ops.t"])]
    assert found.steps[0].details["expressions"] == {"rows": "CAST(rows AS STRING)"}
    assert {each.name: each.uuid for each in catalog.recorded.objects} == before


def test_a_column_that_seems_to_have_another_name_is_asked_about() -> None:
    _, found = from_to(["finished_at timestamp"], ["ended_at timestamp"])
    assert found.blocked[0].problems[1:] == (
        "if ended_at is finished_at under a new name, declare it with renamed_from: finished_at",
    )


def test_a_dropped_column_is_told_as_lost_and_a_protected_object_keeps_it() -> None:
    drop = (step(["a int", "b int"], ["a int"], Strategy.EVOLVE),)
    _, found = from_to(["a int", "b int"], ["a int"], migrations=drop)
    assert only(found) == (Action.EVOLVE, ("column b",))
    _, found = from_to(["a int", "b int"], ["a int"], migrations=drop, protect="billing")
    assert found.blocked[0].problems == ("protected: billing; refused, since column b would be lost",)


def test_an_instruction_that_cannot_do_the_change_is_told_with_one_that_can() -> None:
    _, found = from_to(ONE, TWO, migrations=(step(ONE, TWO, Strategy.EVOLVE),))
    assert found.blocked[0].problems == (
        "the instruction says evolve, which can't do: ! rows: int -> string (incompatible)",
    )
    assert 'how: rewrite, expressions: {rows: "CAST(rows AS string)"}' in found.blocked[0].instruction


@pytest.mark.parametrize(
    ("expressions", "problem"),
    [
        ({}, "the instruction has no expression for rows"),
        ({"rows": "CAST(numbers AS STRING)"}, "the expression for rows reads numbers, unknown at c1:"),
        ({"rows": "CAST(rows AS"}, "the expression for rows: 'CAST(rows AS' can't be read as an expression"),
    ],
)
def test_an_instruction_to_rewrite_needs_expressions_that_can_be_had(expressions: dict[str, str], problem: str) -> None:
    _, found = from_to(ONE, TWO, migrations=(step(ONE, TWO, Strategy.REWRITE, **expressions),))
    assert found.blocked[0].problems[0].startswith(problem)


def test_a_rewrite_whose_change_needs_none_is_done_in_place_without_touching_a_row() -> None:
    """The lossless one is chosen, and of two the gentler one."""
    _, found = from_to(["a int"], ["a bigint"], migrations=(step(["a int"], ["a bigint"], Strategy.REWRITE),))
    assert only(found) == (Action.EVOLVE, ())


# Chains


def test_two_versions_that_evolve_are_one_step_with_the_same_result_as_one_after_the_other() -> None:
    """Row 23."""
    v1, v2, v3 = ["a int"], ["b int < a"], ["c int", "d string"]
    chain = (step(v1, ["b int"], Strategy.EVOLVE), step(["b int"], v3, Strategy.EVOLVE, c="b"))
    straight, found = from_to(v1, v3, migrations=chain)
    assert found.blocked[0].problems[0].startswith("versions are skipped, and the instructions from c1:")
    assert found.blocked[0].problems[1] == ("if c is a under a new name, say so: how: rewrite, expressions: {c: a}")
    # b was never there: the second instruction says what c was, and the first one has to say what b was.
    for how in (Strategy.EVOLVE, Strategy.REWRITE):
        chain = (step(v1, ["b int"], how, b="a"), step(["b int"], v3, how, c="b"))
        straight, found = from_to(v1, v3, migrations=chain)
        assert only(found) == (Action.EVOLVE, ())
    assert found.steps[0].changes == ("> column a -> c (rename)", "+ column d string")
    stepwise = Catalog()
    stepwise.deploy(spec("1.0", table("ops.t", *v1)))
    stepwise.deploy(spec("2.0", table("ops.t", *v2)))
    stepwise.deploy(spec("3.0", table("ops.t", "c int < b", "d string", migrations=chain)))
    straight.apply(found)
    shape = [(each.name, each.type) for each in straight.things["ops.t"].columns]
    assert shape == [(each.name, each.type) for each in stepwise.things["ops.t"].columns]


def test_evolve_rewrite_evolve_is_one_rewrite_with_its_expressions_put_into_each_other() -> None:
    """Row 22, where nothing is lost."""
    chain = (
        step(ONE, TWO, Strategy.REWRITE, rows="CAST(rows AS STRING)"),
        step(TWO, THREE, Strategy.EVOLVE),
        step(THREE, FOUR, Strategy.REWRITE, rows="length(rows)", more="coalesce(more, 0)"),
    )
    catalog, found = from_to(ONE, FOUR, migrations=chain)
    assert found.blocked[0].problems == (f"the expression for more reads more, unknown at {contract(*ONE)[:15]}",)
    chain = (*chain[:2], step(THREE, FOUR, Strategy.REWRITE, rows="length(rows)"))
    catalog, found = from_to(ONE, FOUR, migrations=chain)
    assert only(found) == (Action.REWRITE, ())
    assert found.steps[0].details["expressions"] == {"rows": "length((CAST(rows AS STRING)))"}
    assert catalog.deploy(spec("4.0", table("ops.t", *FOUR, migrations=chain))).steps[0].how is Action.REWRITE


def test_emptying_anywhere_in_a_chain_empties_the_whole_and_is_told_so() -> None:
    """Row 22."""
    chain = (
        step(ONE, TWO, Strategy.EVOLVE),
        step(TWO, THREE, Strategy.REPLACE_EMPTY),
        step(THREE, FOUR, Strategy.EVOLVE),
    )
    _, found = from_to(ONE, FOUR, migrations=chain)
    assert found.blocked[0].problems == ("all rows would be lost; say accept_data_loss: ops.t if that is meant",)
    _, found = from_to(ONE, FOUR, migrations=chain, policies={"accept_data_loss": {"OPS.T"}})
    assert only(found) == (Action.REPLACE_EMPTY, ("all rows",))
    _, found = from_to(ONE, FOUR, migrations=chain, policies={"accept_data_loss": {"ops.other"}})
    assert exit_code(found) == 1


def test_protected_objects_are_not_emptied_whatever_is_accepted_and_are_evolved_all_the_same() -> None:
    """Rows 25 and 26."""
    empty = (step(ONE, TWO, Strategy.REPLACE_EMPTY),)
    accepted = {"accept_data_loss": {"ops.t"}}
    _, found = from_to(ONE, TWO, migrations=empty, protect="billing is computed from it", policies=accepted)
    assert found.blocked[0].problems == (
        "protected: billing is computed from it; refused, since all rows would be lost",
    )
    _, found = from_to(ONE, ["rows int", "more int"], protect="billing")
    assert only(found) == (Action.EVOLVE, ())


def test_protection_is_lifted_by_a_deploy_of_its_own() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", *ONE, protect="billing")))
    emptied = spec("1.1", table("ops.t", *TWO, migrations=(step(ONE, TWO, Strategy.REPLACE_EMPTY),)))
    assert "protected: billing" in catalog.plan(emptied, accept_data_loss={"ops.t"}).blocked[0].problems[0]
    catalog.deploy(spec("1.1", table("ops.t", *ONE)))
    assert catalog.plan(emptied, accept_data_loss={"ops.t"}).applicable


def test_there_is_no_word_for_all_objects() -> None:
    for word in ("*", "all", "ALL"):
        with pytest.raises(ConfigurationError, match="must name each object"):
            from_to(ONE, ONE, policies={"accept_data_loss": {word}})
    with pytest.raises(ConfigurationError, match="give a list of names"):
        from_to(ONE, ONE, policies={"accept_data_loss": "ops.t"})


def test_a_permission_that_nobody_needs_is_told() -> None:
    _, found = from_to(ONE, ONE, policies={"accept_data_loss": {"ops.t"}, "adopt": {"ops.u"}})
    assert found.warnings == (
        "accept_data_loss names ops.t, which loses nothing",
        "adopt names ops.u, which is not there to be adopted",
    )


def test_an_instruction_that_is_not_used_is_a_note_and_never_done_again() -> None:
    """Row 19."""
    done = (step(["a int"], ONE, Strategy.EVOLVE),)
    _, found = from_to(ONE, ONE, migrations=done)
    assert (found.steps, found.warnings) == ((), ())
    onwards = (step(ONE, TWO, Strategy.REPLACE_EMPTY),)
    _, found = from_to(ONE, ONE, migrations=onwards)
    assert found.steps == () and exit_code(found) == 0
    assert "ops.t: the instruction from c1:" in found.warnings[0] and "is unused" in found.warnings[0]


def test_older_code_changes_nothing_and_says_who_recorded_what_it_finds() -> None:
    """Row 27."""
    catalog = Catalog()
    newer = spec("2.0", table("ops.t", "a int", "b int"), view("ops.v", "SELECT b FROM ops.t"), table("ops.u", "x int"))
    catalog.deploy(newer)
    older = spec("1.9", table("ops.t", "a int"), view("ops.v", "SELECT a FROM ops.t"))
    found = catalog.plan(older)
    assert exit_code(found) == 1 and found.steps == () and found.records == ()
    assert {each.name for each in found.blocked} == {"ops.t", "ops.u", "ops.v"}
    assert all("downgrade not supported: recorded by 2.0, this is 1.9" in each.problems for each in found.blocked)
    assert exit_code(catalog.plan(replace(newer, version="1.9"))) == 0
    assert exit_code(catalog.plan(replace(newer, version="2.0.0.dev3"))) == 0
    back = (step(["a int", "b int"], ["a int"], Strategy.EVOLVE),)
    found = catalog.plan(spec("1.9", table("ops.t", "a int", migrations=back), *newer.objects[1:]))
    assert [each.name for each in found.steps] == ["ops.t"] and found.applicable is False  # the view reads b


def test_older_code_does_not_bring_back_what_newer_code_removed() -> None:
    """Row 27."""
    catalog = Catalog()
    catalog.deploy(spec("2.0", table("ops.t", "a int")))
    found = catalog.plan(spec("1.9", table("ops.t", "a int"), table("ops.old", "x int")))
    assert found.blocked[0].problems == ("downgrade not supported: recorded by 2.0, this is 1.9",)
    assert found.steps == ()


def test_code_of_the_same_version_whose_instructions_lead_back_is_told_so() -> None:
    catalog = Catalog()
    chain = (step(TWO, ONE, Strategy.REWRITE, rows="CAST(rows AS INT)"),)
    catalog.deploy(spec("1.0", table("ops.t", *ONE)))
    found = catalog.plan(spec("1.0", table("ops.t", *TWO, migrations=chain)))
    assert "downgrade not supported: what is recorded comes after what is declared" in found.blocked[0].problems


# Other kinds of change


def test_metadata_is_written_in_place_and_asks_for_nothing() -> None:
    _, found = from_to(
        ONE,
        ONE,
        comment="Runs.",
        properties={"a": "2", "c": "3"},
        old={"comment": None, "properties": {"a": "1", "b": "1"}},
    )
    (done,) = found.steps
    assert (done.how, done.loses) == (Action.METADATA, ())
    assert done.changes == (
        "~ comment: nothing -> 'Runs.'", "~ property a: '1' -> '2'", "~ property b: '1' -> nothing",
        "~ property c: nothing -> '3'",
    )  # fmt: skip
    assert done.details["unset"] == ["b"]


def test_a_partitioning_holds_for_new_rows_and_needs_no_instruction() -> None:
    _, found = from_to(
        ONE, ONE, partitioning=("bucket(4, rows)",), keys=("rows",), old={"partitioning": (), "keys": ()}
    )
    (done,) = found.steps
    assert (done.how, done.details["partitioning"], done.details["keys"]) == (
        Action.EVOLVE, ["bucket(4, rows)"], ["rows"],
    )  # fmt: skip


def test_whitespace_comments_and_case_of_a_query_are_no_change_but_are_kept() -> None:
    """Row 39."""
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", *ONE), view("ops.v", "SELECT rows FROM ops.t")))
    found = catalog.plan(spec("1.1", table("ops.t", *ONE), view("ops.v", "select rows\nfrom OPS.T -- all of them\n")))
    assert found.steps == ()
    assert [each.raw_sql for each in found.records] == ["select rows\nfrom OPS.T -- all of them\n"]


def test_texts_of_another_canonicalizer_are_not_compared() -> None:
    catalog = Catalog()
    wanted = spec("1.0", table("ops.t", *ONE), view("ops.v", "SELECT rows FROM ops.t"))
    catalog.deploy(wanted)
    objects = tuple(
        replace(
            each,
            canonicalizer="sqlglot/1.0 rules/0",
            fingerprints=replace(
                each.fingerprints, logic=replace(each.fingerprints.logic, text=each.fingerprints.logic.text.upper())
            ),
        )
        for each in catalog.recorded.objects
    )
    catalog.recorded = replace(catalog.recorded, objects=objects)
    found = catalog.plan(wanted)
    assert found.steps == () and exit_code(found) == 0 and len(found.records) == 2
    assert found.warnings[0].startswith("1 queries are recorded again by sqlglot/")
    reformatted = spec("1.0", table("ops.t", *ONE), view("ops.v", "select rows from ops.t"))
    assert catalog.plan(reformatted).steps == ()
    other = spec("1.0", table("ops.t", *ONE), view("ops.v", "SELECT rows FROM ops.t WHERE rows > 0"))
    assert [each.how for each in catalog.plan(other).steps] == [Action.REPLACE]


def test_a_materialized_view_is_computed_anew_where_a_table_would_need_an_instruction() -> None:
    catalog = Catalog()
    base = table("ops.t", *ONE)
    catalog.deploy(spec("1.0", base, mview("ops.m", "SELECT rows FROM ops.t", "rows int")))
    found = catalog.plan(
        spec("2.0", base, mview("ops.m", "SELECT CAST(rows AS STRING) AS rows FROM ops.t", "rows string"))
    )
    (done,) = found.steps
    assert (done.how, done.loses) == (Action.RECOMPUTE, ())
    assert done.details["sql"].startswith("SELECT CAST") and done.details["updates"]


def test_a_sources_new_definition_is_noted_and_its_rows_stay() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", obj(Kind.SOURCE, "ops.s", *ONE, source={"path": "/v1"})))
    found = catalog.plan(spec("1.1", obj(Kind.SOURCE, "ops.s", *ONE, source={"path": "/v2"})))
    (done,) = found.steps
    assert (done.how, done.changes) == (Action.METADATA, ("~ definition: the next refresh starts a new generation",))


def test_emptying_what_would_evolve_is_noted() -> None:
    empty = (step(["a int"], ["a bigint"], Strategy.REPLACE_EMPTY),)
    _, found = from_to(["a int"], ["a bigint"], migrations=empty, policies={"accept_data_loss": {"ops.t"}})
    assert found.warnings == ("ops.t is emptied, though evolve would do",)


def test_contents_that_can_be_made_again_may_lose_a_column_without_words() -> None:
    _, found = from_to(["a int", "b int"], ["a int"], contents=Contents.DERIVABLE)
    assert only(found) == (Action.EVOLVE, ())
