"""What was changed by hand is told apart from what the code changes, and what an unfinished deploy left from both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code
from tests.unit.builtins.catalogs import Catalog, column, did, problems, spec, steps, table, view
from tests.unit.messages import check_messages

T = table("ops.t", "id bigint", "rows int", properties={"owner": "ops"})
V = view("ops.v", "SELECT rows FROM ops.t")
WANTED = spec("1.0", T, V)


def deployed() -> Catalog:
    catalog = Catalog()
    catalog.deploy(WANTED)
    return catalog


def told(found: Plan) -> list[str]:
    return [str(problem) for item in found.drift for problem in item.problems]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("ops.t", {"columns": (*T.columns, column("x int"))}, "column x: nothing -> int"),
        ("ops.t", {"columns": T.columns[:1]}, "column rows: int -> nothing"),
        ("ops.t", {"columns": (T.columns[0], column("rows bigint"))}, "column rows: int -> bigint"),
        ("ops.t", {"columns": T.columns[::-1]}, "column order: id, rows -> rows, id"),
        ("ops.t", {"columns": (column("id bigint!"), T.columns[1])}, "column id: optional -> required"),
        ("ops.t", {"partitioning": ("days(x)",)}, "partitioned by: nothing -> days(x)"),
        ("ops.t", {"keys": ("id",)}, "keys: nothing -> id"),
        ("ops.t", {"properties": {"owner": "bob"}}, "property owner: 'ops' -> 'bob'"),
        ("ops.v", {"query": "SELECT 1 AS rows"}, "its text was changed by hand"),
    ],
)
def test_whatever_was_changed_by_hand_is_told_and_stops_the_deploy_until_somebody_decides(
    name: str, change: dict[str, object], words: str
) -> None:
    """Row 65."""
    catalog = deployed()
    catalog.edit(name, **change)
    found = catalog.plan(WANTED)
    assert told(found) == [words]
    assert (found.steps, found.blocked, found.applicable, exit_code(found)) == ((), (), False, 1)


def test_a_property_that_a_catalog_takes_and_does_not_show_is_no_drift() -> None:
    catalog, wanted = Catalog(), spec("1.0", replace(T, properties={"owner": "ops", "format-version": "2"}), V)
    catalog.deploy(wanted)
    catalog.edit("ops.t", properties={"owner": "ops"})
    assert told(catalog.plan(wanted)) == []


def test_code_changes_are_shown_beside_it_as_if_it_were_not_there() -> None:
    """Row 65: drift apart from code changes."""
    catalog = deployed()
    catalog.edit("ops.t", columns=(*T.columns, column("x int")))
    found = catalog.plan(spec("1.1", table("ops.t", "id bigint", "rows bigint", properties=T.properties), V))
    assert did(found) == ["evolve ops.t", "rebind ops.v"]
    assert steps(found)[0].changes == ("^ rows: int -> bigint (widen)",)
    assert told(found) == ["column x: nothing -> int"] and exit_code(found) == 1


def test_layout_and_case_of_a_text_in_the_catalog_are_no_drift() -> None:
    catalog = deployed()
    catalog.edit("ops.v", query="SELECT rows\n  FROM ops.t")
    assert told(catalog.plan(WANTED)) == []


@pytest.mark.parametrize(
    "query",
    [
        "select rows from ops.t",
        "SELECT ROWS FROM ops.t",
        "SELECT rows FROM ops.T",
        "SELECT rows /* all */ FROM\n ops.t -- why",
        "SELECT `rows` FROM `ops`.`t`",
    ],
)
def test_a_query_that_is_written_in_another_way_is_deployed_and_no_drift_afterwards(query: str) -> None:
    catalog = deployed()
    wanted = replace(WANTED, objects=(WANTED.objects[0], view("ops.v", query)))
    for _ in range(2):
        found = catalog.deploy(wanted)
        assert told(found) == []


def test_a_star_that_is_written_in_another_way_stands_for_the_same_columns() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T, view("ops.v", "SELECT * FROM ops.t")))
    wider = table("ops.t", "id bigint", "rows int", "more int", properties=T.properties)
    for objects in ((wider, view("ops.v", "select * from ops.t")), (T, view("ops.v", "SELECT * FROM ops.T"))):
        wanted = spec("1.1", *objects, removed=["ops.t.more"])
        assert did(catalog.deploy(wanted)) == ["evolve ops.t"]
        assert told(catalog.plan(wanted)) == [] and catalog.plan(wanted).steps == ()
    fewer = spec("1.2", table("ops.t", "id bigint", properties=T.properties), view("ops.v", "SELECT *\nFROM ops.t"))
    found = catalog.deploy(replace(fewer, removed=spec("", removed=["ops.t.rows"]).removed))
    assert did(found) == ["evolve ops.t", "replace ops.v"]
    assert told(catalog.plan(fewer)) == []


def test_tables_are_read_under_the_names_that_the_catalog_has_for_them() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.Runs", "id bigint")))
    text = "SELECT r.id FROM `OPS`.RUNS AS r JOIN ops.runs ON r.ID = runs.id"
    wanted = spec("1.1", table("ops.runs", "id bigint"), view("ops.v", text), view("ops.w", "SELECT id FROM OPS.V"))
    found = catalog.deploy(wanted)
    assert {record.name: record.sql for record in found.records if record.sql} == {
        "ops.v": "SELECT r.id FROM ops.Runs AS r JOIN ops.Runs ON r.ID = runs.id",
        "ops.w": "SELECT id FROM ops.v",
    }
    assert catalog.plan(wanted).steps == ()


def test_a_view_is_put_back_or_left_alone() -> None:
    catalog = deployed()
    catalog.edit("ops.v", query="SELECT 1 AS rows")
    repair = catalog.plan(WANTED, drift="repair")
    assert [(step.how, step.reason) for step in repair.steps] == [(StepAction.REPLACE, "changed by hand")]
    adopt = catalog.plan(WANTED, drift="adopt")
    assert (adopt.steps, exit_code(adopt)) == ((), 0) and told(adopt) == ["its text was changed by hand"]
    catalog.apply(repair)
    assert catalog.plan(WANTED).drift == ()


def test_a_dropped_object_is_made_again_or_has_to_be_forgotten() -> None:
    """Row 65."""
    catalog = deployed()
    del catalog.things["ops.v"]
    assert told(catalog.plan(WANTED)) == ["it is gone from the catalog"] and exit_code(catalog.plan(WANTED)) == 1
    adopt = catalog.plan(WANTED, drift="adopt")
    check_messages(problems(adopt))
    repair = catalog.deploy(WANTED, drift="repair")
    assert [(step.how, step.name) for step in repair.steps] == [(StepAction.CREATE, "ops.v")]
    catalog.check()
    assert catalog.plan(WANTED).steps == ()


def test_a_column_that_was_added_by_hand_is_left_or_dropped_with_permission() -> None:
    catalog = deployed()
    catalog.edit("ops.t", columns=(*T.columns, column("x int")))
    adopt = catalog.plan(WANTED, drift="adopt")
    assert adopt.applicable and (adopt.steps, adopt.records) == ((), ())
    more = spec("1.1", table("ops.t", "id bigint", "rows int", "late int", properties=T.properties), V)
    assert catalog.plan(more, drift="adopt").steps[0].changes == ("+ column late int",)
    repair = catalog.plan(WANTED, drift="repair")
    check_messages(problems(repair))
    repair = catalog.plan(WANTED, drift="repair", accept_data_loss={"ops.t.x"})
    assert [(step.how, tuple(step.losses)) for step in repair.steps] == [(StepAction.EVOLVE, ("ops.t.x",))]
    catalog.apply(repair)
    assert catalog.plan(WANTED).drift == ()


def test_a_column_that_was_added_by_hand_and_is_declared_later_is_that_column() -> None:
    catalog = deployed()
    catalog.edit("ops.t", columns=(*T.columns, column("x int")))
    declared = spec("1.1", table("ops.t", "id bigint", "rows int", "x bigint", properties=T.properties), V)
    for policy in ("adopt", "repair"):
        found = catalog.plan(declared, drift=policy)
        assert found.steps[0].changes == ("^ x: int -> bigint (widen)",) and found.applicable


def test_a_column_that_was_dropped_or_changed_by_hand_is_put_back_as_far_as_nothing_is_made_up() -> None:
    catalog = deployed()
    catalog.edit("ops.t", columns=T.columns[:1])
    check_messages(problems(catalog.plan(WANTED, drift="adopt")))
    assert catalog.plan(WANTED, drift="repair").steps[0].changes == ("+ column rows int",)
    catalog.edit("ops.t", columns=(T.columns[0], column("rows string")))
    repair = catalog.plan(WANTED, drift="repair")
    check_messages(problems(repair))


def test_properties_and_partitionings_are_put_back() -> None:
    catalog = deployed()
    catalog.edit("ops.t", properties={"owner": "bob"}, partitioning=("days(x)",))
    repair = catalog.deploy(WANTED, drift="repair")
    assert [(step.how, step.changes) for step in repair.steps] == [
        (StepAction.EVOLVE, ("~ partitioned by: days(x) -> nothing",))
    ]
    assert catalog.plan(WANTED).drift == ()
    catalog.edit("ops.t", properties={"owner": "bob"})
    assert [step.how for step in catalog.deploy(WANTED, drift="repair").steps] == [StepAction.METADATA]
    assert catalog.plan(WANTED).drift == ()


@pytest.mark.parametrize(
    ("change", "declared"),
    [
        ({"properties": {"owner": "bob"}}, {"properties": {"owner": "bob"}}),
        ({"partitioning": ("days(x)",)}, {"partitioning": ("days(x)",)}),
        ({"keys": ("id",)}, {"keys": ("id",)}),
        ({"columns": (column("id bigint!"), T.columns[1])}, {"columns": (column("id bigint!"), T.columns[1])}),
        ({"columns": T.columns[::-1]}, {"columns": T.columns[::-1]}),
    ],
)
def test_what_is_adopted_is_not_put_back_and_has_to_be_declared(
    change: dict[str, object], declared: dict[str, Any]
) -> None:
    """Row 65: to adopt is not to repair."""
    catalog = deployed()
    catalog.edit("ops.t", **change)
    blocked = problems(catalog.plan(WANTED, drift="adopt"))
    assert blocked == [f"{told(catalog.plan(WANTED))[0]}, and adopting that means to declare it so"]
    found = catalog.plan(spec("1.1", replace(T, **declared), V), drift="adopt")
    assert found.applicable and not [
        step.changes for step in found.steps if step.changes and step.how is StepAction.EVOLVE
    ]


def test_a_copy_that_has_our_marker_does_not_take_the_place_of_what_was_dropped() -> None:
    """Spark copies a table's properties along with it; what the copy says of its deploy is of long ago."""
    catalog = deployed()
    copy = replace(catalog.things["ops.t"], name="ops.copy")
    wider = spec("1.1", table("ops.t", "id bigint", "rows bigint", properties=T.properties), V)
    catalog.deploy(wider)
    del catalog.things["ops.t"]
    catalog.things["ops.copy"] = copy
    found = catalog.plan(wider)
    assert told(found)[0] == "it is called ops.copy now" and (found.steps, found.applicable) == ((), False)


def test_what_is_another_thing_altogether_is_not_touched() -> None:
    catalog = deployed()
    catalog.edit("ops.t", marker=None, columns=(column("other int"),))
    found = catalog.plan(WANTED, drift="repair")
    check_messages(problems(found))


def test_what_was_renamed_by_hand_is_found_by_its_marker_and_called_back() -> None:
    catalog = deployed()
    catalog.things["ops.mine"] = replace(catalog.things.pop("ops.t"), name="ops.mine")
    found = catalog.plan(WANTED)
    assert told(found) == ["it is called ops.mine now"] and found.steps == ()
    adopt = catalog.plan(WANTED, drift="adopt")
    check_messages(problems(adopt))
    repair = catalog.plan(WANTED, drift="repair")
    assert repair.steps[0].details == {"to": "ops.t"} and repair.applicable
    catalog.apply(repair)
    assert catalog.plan(WANTED).drift == ()


# Deploys that did not finish

V2 = spec("2.0", table("ops.t", "id bigint", "rows bigint", "x int"), view("ops.v", "SELECT rows, x FROM ops.t"))


@pytest.mark.parametrize("until", range(4))
def test_a_deploy_that_died_is_gone_on_with_and_is_no_drift(until: int) -> None:
    """Rows 29 and 58, at the level of a plan."""
    catalog = deployed()
    catalog.apply(catalog.plan(V2), until=until)
    found = catalog.plan(V2)
    assert found.applicable and found.drift == ()
    catalog.apply(found)
    catalog.check()
    assert catalog.plan(V2).steps == () and catalog.plan(V2).drift == ()


@pytest.mark.parametrize("until", range(4))
def test_a_deploy_that_was_given_up_half_way_is_no_obstacle_to_another_version(until: int) -> None:
    """Rows 30 and 31: what it left says whose it is, and the next version starts from there."""
    full, reader = table("ops.t", "id bigint", "rows bigint"), view("ops.v", "SELECT rows FROM ops.t")
    third = spec("1.5", full, reader, removed=["ops.t.x"])
    catalog = deployed()
    catalog.apply(catalog.plan(V2), until=until)
    found = catalog.plan(third)
    assert found.applicable and found.drift == ()
    catalog.apply(found)
    catalog.check()
    assert catalog.plan(third).steps == ()


def test_what_an_unfinished_deploy_left_is_not_undone_by_losing_something() -> None:
    catalog = deployed()
    begun = catalog.plan(V2)
    catalog.apply(begun, until=1 + begun.steps.index(steps(begun)[0]))
    found = catalog.plan(replace(WANTED, version="1.1"))
    assert problems(found)[0].startswith("rows: bigint -> int needs values") and found.drift == ()
    check_messages(problems(found))


def test_a_hand_that_follows_a_finished_deploy_is_drift_also_after_a_rename() -> None:
    catalog = deployed()
    renamed = spec("1.1", replace(T, name="ops.runs"), view("ops.v", "SELECT rows FROM ops.runs"))
    catalog.deploy(renamed)
    catalog.edit("ops.runs", columns=(*T.columns, column("x int")))
    check_messages(told(catalog.plan(renamed)))
