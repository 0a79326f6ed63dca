"""Who is included, and what comes before what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from airflow_provider_rfr.builtins import load_objects
from airflow_provider_rfr.builtins.model import ActualState, Dependency, RegistryState
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code
from airflow_provider_rfr.builtins.planner import plan
from airflow_provider_rfr.exceptions import DeclarationError, PlanError
from tests.unit.builtins.catalogs import Catalog, create_order, did, drop_order, mview, problems, spec, table, view
from tests.unit.messages import check_messages, raises

T = table("ops.t", "id bigint", "rows int")


def names(found: Plan, order: list[UUID | None]) -> list[str]:
    known = {step.uuid: step.name for step in found.steps}
    return [known[item] for item in order]


def test_the_same_version_again_is_nothing() -> None:
    """Row 1."""
    catalog, wanted = Catalog(), spec("1.0", T, view("ops.v", "SELECT rows FROM ops.t"))
    catalog.deploy(wanted)
    again = catalog.plan(wanted)
    assert (again.steps, again.records, again.warnings, exit_code(again)) == ((), (), (), 0)
    assert again.unchanged == 2


def test_a_new_catalog_is_created_at_its_present_version_and_makes_no_values() -> None:
    """Rows 10, 21 and 35."""
    wanted = spec("3.0", T, view("ops.v", "SELECT rows FROM ops.t"))
    found = plan(wanted, RegistryState(), ActualState())
    assert did(found) == ["create ops.t", "create ops.v"]
    assert {step.reason for step in found.steps} == {"new"}
    assert exit_code(found) == 2


def test_a_table_that_becomes_a_view_leaves_before_it_comes_and_comes_before_its_readers() -> None:
    """Row 3."""
    catalog = Catalog()
    catalog.deploy(
        spec("1.0", T, view("ops.v1", "SELECT rows FROM ops.t"), table("ops.base", "id bigint", "rows bigint"))
    )
    base = table("ops.base", "id bigint", "rows bigint")
    wanted = spec(
        "2.0",
        base,
        view("ops.t", "SELECT id, rows FROM ops.base", "id bigint", "rows bigint"),
        view("ops.v1", "SELECT rows FROM ops.t"),
    )
    found = catalog.plan(wanted, accept_data_loss={"ops.t"})
    assert did(found) == ["drop ops.t", "create ops.t", "rebind ops.v1"]
    assert names(found, drop_order(found)) == ["ops.t"]
    assert names(found, create_order(found)) == ["ops.t", "ops.v1"]
    before = {obj.name: obj.uuid for obj in catalog.recorded.objects}
    catalog.apply(found)
    catalog.check()
    assert {obj.name: obj.uuid for obj in catalog.recorded.objects} == before
    assert did(catalog.plan(wanted)) == []


def test_no_view_is_dropped_to_be_replaced() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T, view("ops.v1", "SELECT rows FROM ops.t")))
    found = catalog.plan(
        spec("2.0", table("ops.t", "id bigint", "rows bigint"), view("ops.v1", "SELECT rows FROM ops.t"))
    )
    assert did(found) == ["evolve ops.t", "rebind ops.v1"]
    assert drop_order(found) == []


def test_a_diamond_twice_with_changed_roots_below_each_other() -> None:
    """Row 5: 18 objects, 10 of them changed."""
    reads = {
        1: [], 2: [], 3: [1], 4: [1], 5: [3, 4], 6: [5], 7: [2], 8: [2], 9: [7, 8], 10: [9],
        11: [6, 10], 12: [11], 13: [], 14: [13, 12], 15: [14], 16: [], 17: [16], 18: [17, 15],
    }  # fmt: skip
    changed = {1, 3, 5, 2, 7, 9, 11, 14, 16, 17}

    def version(number: str, kind: str) -> object:
        def made(node: int) -> object:
            columns = f"c{node} {kind if node in changed else 'int'}"
            if not reads[node]:
                return table(f"ops.o{node:02}", columns)
            inputs = ", ".join(f"t{read}.c{read}" for read in reads[node])
            tables = " CROSS JOIN ".join(f"ops.o{read:02} t{read}" for read in reads[node])
            return view(f"ops.o{node:02}", f"SELECT 1 AS c{node}, {inputs} FROM {tables}")

        return spec(number, *(made(read) for read in reads))

    catalog = Catalog()
    catalog.deploy(version("1.0", "int"))
    found = catalog.plan(version("2.0", "bigint"))
    # Tables 1, 2 and 16 are wider; 13 is not, and everything but that reads one of them.
    assert {step.name for step in found.steps} == {f"ops.o{read:02}" for read in reads if read != 13}
    created = names(found, create_order(found))
    removed = catalog.plan(spec("2.0", removed=[f"ops.o{read:02}" for read in reads]))
    dropped = names(removed, drop_order(removed))
    assert len(set(created)) == len(created) == 17 and len(set(dropped)) == len(dropped) == 18
    for item, inputs in reads.items():
        for read in inputs:
            if f"ops.o{read:02}" in created and f"ops.o{item:02}" in created:
                assert created.index(f"ops.o{read:02}") < created.index(f"ops.o{item:02}")
            if f"ops.o{read:02}" in dropped:
                assert dropped.index(f"ops.o{item:02}") < dropped.index(f"ops.o{read:02}")
    assert catalog.plan(version("2.0", "bigint")) == found
    catalog.apply(found)
    catalog.check()


def test_an_edge_that_turns_round() -> None:
    """Row 7: no one order is right, neither of the old graph nor of the new one."""
    catalog = Catalog()
    base = table("ops.base", "x int")
    catalog.deploy(spec("1.0", base, view("ops.a", "SELECT x FROM ops.base"), view("ops.b", "SELECT x FROM ops.a")))
    wanted = spec("2.0", base, view("ops.a", "SELECT x FROM ops.b"), view("ops.b", "SELECT x FROM ops.base"))
    assert did(catalog.plan(wanted)) == ["replace ops.b", "replace ops.a"]
    catalog.deploy(wanted)
    catalog.check()


def test_a_column_that_nobody_selects_touches_no_reader() -> None:
    catalog = Catalog()
    views = (view("ops.v", "SELECT rows FROM ops.t"), view("ops.w", "SELECT id FROM ops.t"))
    catalog.deploy(spec("1.0", T, *views))
    found = catalog.plan(spec("1.1", table("ops.t", "id bigint", "rows int", "more string"), *views))
    assert did(found) == ["evolve ops.t"] and found.dependents == ()


def test_a_wider_column_binds_again_those_who_read_it_and_who_reads_those() -> None:
    catalog = Catalog()
    views = (
        view("ops.a", "SELECT rows FROM ops.t"),
        view("ops.b", "SELECT rows FROM ops.a"),
        view("ops.other", "SELECT id FROM ops.t"),
    )
    catalog.deploy(spec("1.0", T, *views))
    found = catalog.plan(spec("1.1", table("ops.t", "id bigint", "rows bigint"), *views))
    assert did(found) == ["evolve ops.t", "rebind ops.a", "rebind ops.b"]
    assert [str(dependent.reason) for dependent in found.dependents] == ["reads ops.t.rows", "reads ops.a"]
    catalog.apply(found)
    catalog.check()


def test_a_view_that_declares_its_columns_passes_on_only_what_they_say() -> None:
    catalog = Catalog()

    def version(kind: str) -> tuple[object, ...]:
        return (
            table("ops.t", "id bigint", f"rows {kind}"),
            view("ops.a", "SELECT id, rows FROM ops.t", "id bigint", f"rows {kind}"),
            view("ops.b", "SELECT id FROM ops.a"),
            view("ops.c", "SELECT rows FROM ops.a"),
        )

    catalog.deploy(spec("1.0", *version("int")))
    assert did(catalog.plan(spec("1.1", *version("bigint")))) == ["evolve ops.t", "replace ops.a", "rebind ops.c"]


def test_a_view_whose_columns_changed_places_troubles_nobody_who_reads_it_by_name() -> None:
    """Row 42."""
    catalog = Catalog()
    reader = view("ops.v", "SELECT rows FROM ops.t")
    catalog.deploy(spec("1.0", T, reader))
    found = catalog.plan(spec("1.1", table("ops.t", "rows int", "id bigint"), reader))
    assert did(found) == ["evolve ops.t"]
    assert found.steps[0].changes == ("~ column order: rows, id",)


def test_a_renamed_column_is_seen_and_who_reads_it_by_its_old_name_stops_the_plan() -> None:
    """Row 41."""
    catalog = Catalog()
    catalog.deploy(spec("1.0", T, view("ops.v", "SELECT rows FROM ops.t")))
    renamed = table("ops.t", "id bigint", "count int < rows")
    found = catalog.plan(spec("1.1", renamed, view("ops.v", "SELECT rows FROM ops.t")))
    assert did(found) == ["evolve ops.t"] and exit_code(found) == 1
    check_messages(problems(found))
    found = catalog.deploy(spec("1.1", renamed, view("ops.v", "SELECT count AS rows FROM ops.t")))
    assert did(found) == ["evolve ops.t", "replace ops.v"]
    catalog.check()


def test_a_materialized_view_is_computed_again_when_rows_below_it_may_be_others_also_through_views() -> None:
    catalog = Catalog()

    def version(query: str) -> tuple[object, ...]:
        return (
            T,
            mview("ops.m", query, "rows int"),
            view("ops.v", "SELECT rows FROM ops.m"),
            mview("ops.n", "SELECT rows FROM ops.v", "rows int"),
        )

    catalog.deploy(spec("1.0", *version("SELECT rows FROM ops.t")))
    found = catalog.plan(spec("1.1", *version("SELECT rows FROM ops.t WHERE rows > 0")))
    assert did(found) == ["recompute ops.m", "recompute ops.n"]
    assert found.steps[1].reason == "reads ops.v"


def test_a_list_of_all_objects_is_filled_again_when_there_is_another_one_and_says_why() -> None:
    """Row 43."""
    catalog = Catalog()
    index = table("rfr_system.builtin_objects", "name string")
    counted = mview("ops.counted", "SELECT count(name) AS n FROM rfr_system.builtin_objects", "n bigint")
    catalog.deploy(spec("1.0", T, index, counted))
    found = catalog.plan(spec("1.1", T, index, counted, table("ops.unrelated", "x int")))
    assert did(found) == ["create ops.unrelated", "recompute rfr_system.builtin_objects", "recompute ops.counted"]
    check_messages(found.steps[1].reason)
    catalog.apply(found)
    assert did(catalog.plan(spec("1.1", T, index, counted, table("ops.unrelated", "x int")))) == []


def test_everything_that_was_bound_again_is_written_down_with_what_it_reads_now() -> None:
    """Rows 37 and 38: not only what changed by itself."""
    catalog = Catalog()
    reader = view("ops.v", "SELECT rows FROM ops.t")
    catalog.deploy(spec("1.0", T, reader))
    found = catalog.plan(spec("2.0", table("ops.t", "id bigint", "rows bigint"), reader))
    assert {record.name: record.deps for record in found.records} == {
        "ops.t": (),
        "ops.v": (Dependency("ops.t", T.id, ("rows",)),),
    }


def test_what_is_made_with_a_query_is_made_with_its_stars_written_out() -> None:
    found = plan(
        spec("1.0", T, mview("ops.m", "SELECT * FROM ops.t", "id bigint", "rows int")), RegistryState(), ActualState()
    )
    assert found.steps[1].details == {"sql": "SELECT id, `rows` FROM ops.t"}


def test_objects_that_read_each_other_in_a_circle_make_no_plan() -> None:
    wanted = spec("1.0", view("ops.a", "SELECT x FROM ops.b"), view("ops.b", "SELECT x FROM ops.a"))
    with raises(PlanError):
        plan(wanted, RegistryState(), ActualState())


def test_stars_are_written_out_once_and_a_later_column_changes_no_view() -> None:
    """Rows 45 and 47."""
    catalog = Catalog()
    readers = (view("ops.v", "SELECT * FROM ops.t"), view("ops.w", "SELECT v.* FROM ops.v v"))
    catalog.deploy(spec("1.0", T, *readers))
    recorded = {obj.name: obj for obj in catalog.recorded.objects}
    assert recorded["ops.v"].sql == "SELECT id, `rows` FROM ops.t"
    assert recorded["ops.v"].raw_sql == "SELECT * FROM ops.t"
    assert recorded["ops.w"].sql == "SELECT v.id, v.`rows` FROM ops.v v"
    found = catalog.deploy(spec("1.1", table("ops.t", "id bigint", "rows int", "more string"), *readers))
    assert did(found) == ["evolve ops.t"]
    assert {obj.name: obj.sql for obj in catalog.recorded.objects}["ops.v"] == "SELECT id, `rows` FROM ops.t"
    # A column that is gone takes itself out of them, and brings in nothing that came since.
    without = table("ops.t", "id bigint", "more string")
    found = catalog.plan(spec("1.2", without, *readers))
    assert [item.name for item in found.blocked] == ["ops.t"]
    assert [step.details["sql"] for step in found.steps] == ["SELECT id FROM ops.t", "SELECT v.id FROM ops.v v"]


def test_a_star_follows_a_renamed_column_over_versions_that_were_skipped() -> None:
    catalog, reader = Catalog(), view("ops.v", "SELECT * FROM ops.t")
    catalog.deploy(spec("1.0", table("ops.t", "id int", "a int"), reader))
    found = catalog.deploy(spec("3.0", table("ops.t", "id int", "c int < b < a", "more int"), reader))
    assert did(found) == ["evolve ops.t", "replace ops.v"]
    assert found.steps[1].details["sql"] == "SELECT id, c FROM ops.t"
    catalog.check()


@pytest.mark.parametrize("becomes", ["renamed", "moved", "materialized", "read by another version"])
def test_a_star_is_recorded_with_its_columns_whatever_becomes_of_the_view(becomes: str) -> None:
    """So that one of them may be dropped later."""
    wide, narrow, reader = (
        table("ops.t", "id int", "n int"),
        table("ops.t", "id int"),
        view("ops.v", "SELECT * FROM ops.t"),
    )
    catalog = Catalog()
    catalog.deploy(spec("1.0", wide, reader))
    before = {obj.name: obj.deps for obj in catalog.recorded.objects}["ops.v"]
    later = {
        "renamed": replace(reader, name="ops.w"),
        "moved": replace(reader, name="other.v"),
        "materialized": mview("ops.v", reader.query, "id int", "n int"),
        "read by another version": reader,
    }[becomes]
    if later is reader:
        objects = tuple(replace(obj, canonicalizer="older") for obj in catalog.recorded.objects)
        catalog.recorded = replace(catalog.recorded, objects=objects)
    catalog.deploy(spec("1.1", wide, later))
    assert {obj.name: obj.deps for obj in catalog.recorded.objects}[later.name] == before
    found = catalog.plan(spec("2.0", narrow, replace(later, columns=later.columns[:1]), removed=["ops.t.n"]))
    assert {step.name: step.details.get("sql") for step in found.steps}[later.name] == "SELECT id FROM ops.t"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SELECT * FROM ops.v", "SELECT id, b, a FROM ops.v"),
        ("SELECT v.* FROM ops.v", "SELECT v.id, v.b, v.a FROM ops.v"),
        (
            "SELECT * FROM ops.v UNION ALL SELECT * FROM ops.v",
            "SELECT id, b, a FROM ops.v UNION ALL SELECT id, b, a FROM ops.v",
        ),
        ("SELECT * FROM (SELECT * FROM ops.v)", "SELECT id, b, a FROM (SELECT id, a, b FROM ops.v)"),
        (
            "WITH w AS (SELECT * FROM ops.v) SELECT * FROM w",
            "WITH w AS (SELECT id, a, b FROM ops.v) SELECT id, b, a FROM w",
        ),
    ],
)
def test_a_star_over_a_star_follows_the_order_that_is_declared(query: str, text: str) -> None:
    """The view keeps the order that it was registered with; its table's new one is what the loader asks for."""
    first, later = table("ops.t", "id int", "a int", "b int"), table("ops.t", "id int", "b int", "a int")
    over, catalog, fresh = view("ops.v", "SELECT * FROM ops.t"), Catalog(), Catalog()
    catalog.deploy(spec("1.0", first, over, mview("ops.m", query, *first.columns)))
    wanted = load_objects(
        later, over, mview("ops.m", query, *later.columns), project="ops", version="2.0", entry_points=False
    )
    catalog.deploy(wanted)
    assert {obj.name: obj.sql for obj in catalog.recorded.objects}["ops.v"] == "SELECT id, a, b FROM ops.t"
    assert {obj.name: obj.sql for obj in catalog.recorded.objects}["ops.m"] == text
    assert catalog.plan(wanted).steps == ()
    fresh.deploy(wanted)
    with raises(DeclarationError):
        load_objects(later, over, mview("ops.m", query, *first.columns), project="ops", entry_points=False)


@pytest.mark.parametrize("kind", [view, mview])
def test_declared_columns_say_what_a_star_stands_for(kind: Any) -> None:
    """Row 45: a column that comes later changes nothing downstream, in an old catalog as in a new one."""
    narrow, wide = table("ops.t", "a int", "b int"), table("ops.t", "a int", "b int", "c int")
    first, later = kind("ops.v", "SELECT * FROM ops.t", "a int", "b int"), ("a int", "b int", "c int")
    catalog, fresh = Catalog(), Catalog()
    catalog.deploy(spec("1.0", narrow, first))
    assert [step.name for step in catalog.deploy(spec("1.1", wide, first)).steps] == ["ops.t"]
    fresh.deploy(spec("1.1", wide, first))
    for item in (catalog, fresh):
        assert [known.sql for known in item.recorded.objects if known.name == "ops.v"] == ["SELECT a, b FROM ops.t"]
        step = item.deploy(spec("1.2", wide, kind("ops.v", "SELECT * FROM ops.t", *later))).steps[0]
        assert step.details["sql"] == "SELECT a, b, c FROM ops.t"
    strange = kind("ops.v", "SELECT * FROM ops.t", "a int", "z int")
    problem = "its columns are a, z, and its query gives a, b, c; write them alike, in the same order"
    assert problems(Catalog().plan(spec("1.0", wide, strange))) == [problem]


@pytest.mark.parametrize("query", ["SELECT * FROM elsewhere.u", "SELECT a.id FROM ops.t a NATURAL JOIN ops.t b"])
def test_a_star_that_cannot_be_written_out_stops_the_plan(query: str) -> None:
    """Row 46."""
    found = plan(spec("1.0", T, view("ops.v", query)), RegistryState(), ActualState())
    assert [item.name for item in found.blocked] == ["ops.v"]
    assert "write" in problems(found)[0]


def test_whoever_reads_a_name_that_another_object_has_now_is_made_again() -> None:
    """Nothing about the other object need have changed, and its rows and types are others all the same."""
    old, other = table("ops.x", "a int"), table("ops.z", "a bigint")
    readers = view("ops.v", "SELECT a FROM ops.x"), mview("ops.m", "SELECT a FROM ops.x", "a bigint")
    for gone, came in ((old, other), (old, table("ops.new", "a int"))):
        catalog = Catalog()
        catalog.deploy(spec("1.0", old, other, *readers))
        rest = () if came is other else (other,)
        wanted = spec("1.1", replace(gone, name="ops.old"), replace(came, name="ops.x"), *rest, *readers)
        found = catalog.deploy(wanted)
        assert [(step.how, step.name, step.reason) for step in found.steps if step.name in ("ops.v", "ops.m")] == [
            (StepAction.REBIND, "ops.v", "reads ops.x, which is another object now"),
            (StepAction.RECOMPUTE, "ops.m", "reads ops.x, which is another object now"),
        ]
        catalog.check()
        assert catalog.plan(wanted).steps == ()
