"""A plan for people, for scripts, and in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_rfr.builtins.model import CatalogSpec, DeclarationPlace, Dependency, Instance, Kind, Was
from airflow_provider_rfr.builtins.plan import Plan, ensure_current, exit_code, load_plan, render, save_plan, summary
from airflow_provider_rfr.builtins.planner import plan as make_plan
from airflow_provider_rfr.exceptions import PlanError, StalePlanError
from tests.unit.builtins.catalogs import Catalog, column, deployed, made, mview, obj, sink, spec, table, view
from tests.unit.messages import raises


def versions() -> tuple[CatalogSpec, CatalogSpec]:
    """Everything that a plan can show."""
    common = (
        view("ops.v_recent", "SELECT rows FROM ops.ingest_runs"),
        mview("ops.m", "SELECT sum(rows) AS total FROM ops.ingest_runs", "total bigint"),
        sink("ops.audit_to_s3", "ops.audit"),
        table("ops.locks", "name string"),
    )
    before = spec(
        "1.6.2",
        *common,
        table("ops.ingest_runs", "rows int", "finished_at timestamp", "note string"),
        table("ops.audit", "actor string", exportable=True),
        table("ops.tmp_probe", "x int", keep=False),
        table("ops.old", "x int"),
        table("ops.emptied", "x string", keep=False),
        table("ops.usage", "bytes int", keep="billing"),
    )
    after = spec(
        "1.7.0",
        *common,
        table("ops.emptied", "x int", keep=False),
        table("ops.ingest_runs", "rows bigint", "ended_at timestamp < finished_at", "attempts int"),
        table("ops.audit", made("actor struct<name:string>", "named_struct('name', actor)"), exportable=True),
        view("ops.v_failures", "SELECT rows FROM ops.ingest_runs WHERE attempts > 1"),
        table("ops.usage", "bytes string", keep="billing", place=DeclarationPlace("objects/usage.yaml", 3)),
        removed=["ops.old", "ops.older"],
    )
    return before, after


def planned(**policies: object) -> Plan:
    before, after = versions()
    catalog = Catalog()
    catalog.deploy(before)
    catalog.user_view("bob.daily", "SELECT rows FROM ops.v_recent", Dependency("ops.v_recent", None, ("rows",)))
    catalog.attach("bob.export", {obj.name: obj.uuid for obj in catalog.recorded.objects}["ops.audit"], cursor=8843)
    catalog.edit("ops.locks", columns=(column("name string"), column("x int")))
    return catalog.plan(after, **{"accept_data_loss": {"ops.ingest_runs.note"}, **policies})


EXPECTED = """\
Catalog "ops" recorded at rev 1 (1.6.2), wanted 1.7.0    plan HASH  base rev 1
  ~ table  ops.ingest_runs          evolve          ^ rows: int -> bigint (widen)
                                                    > column finished_at -> ended_at (rename)
                                                    + column attempts int
                                                    - column note string (its values stay in older snapshots until \
those expire)
                                                    LOST: column note
      -> view  ops.v_recent         rebind          reads ops.ingest_runs.rows
      -> view  bob.daily  (user)    rebind          reads ops.v_recent
      -> mview ops.m                recompute       reads ops.ingest_runs.rows
  + view   ops.v_failures           create          new
  ± table  ops.audit                rewrite         ! actor: string -> struct<name:string> (incompatible)
                                                    = actor: named_struct('name', actor)
                                                    in place, history kept   ~10 rows
      -> sink  bob.export  (user)   continue        cursor 8843 kept, nothing is sent again
      -> sink  ops.audit_to_s3      continue        cursor kept, nothing is sent again
  ∅ table  ops.emptied              replace_empty   ! x: string -> int (incompatible)
                                                    emptied: its rows may be made again   ~10 rows
  ± mview  ops.m                    recompute       reads ops.ingest_runs.rows
                                                    from its query, in place   ~10 rows
  - table  ops.tmp_probe            remove          no longer declared; physical kept 7 days   ~10 rows
  - table  ops.old                  remove          no longer declared; physical kept 7 days   ~10 rows
                                                    LOST: all rows
  ! table  ops.usage                BLOCKED         bytes: int -> string needs values: write in its `was` how they are \
made
                                                    ! bytes: int -> string (incompatible)
        write:  - {name: bytes, type: string, was: {type: int, using: CAST(bytes AS string)}}\
    # objects/usage.yaml:3
  # drift  ops.locks: column x: nothing -> int  (policy: fail)
  # note   `was` and `removed` no longer needed here: ops.older; delete them once no lake needs them
Plan: 1 to add, 4 to change, 2 to remove, 2 rebinds, 1 blocked, 1 drifted, 2 data loss. Nothing is done until what is \
blocked is decided.
"""


def test_one_line_an_object_with_its_reason_what_is_lost_and_who_depends_on_it() -> None:
    found = planned()
    assert render(found).splitlines() == EXPECTED.replace("HASH", found.plan_hash[:12]).splitlines()


def test_nothing_to_do_is_one_line_more_than_the_headline_and_each_outcome_has_an_exit_code() -> None:
    before, after = versions()
    catalog = Catalog()
    plan = catalog.deploy(before)
    assert render(plan).startswith('Catalog "ops" new, wanted 1.6.2    plan ') and exit_code(plan) == 2
    plan = catalog.plan(before)
    assert render(plan).splitlines()[1:] == ["No changes: 10 objects as declared."] and exit_code(plan) == 0
    assert exit_code(catalog.plan(after)) == exit_code(planned()) == 1


def test_counts_are_those_of_the_last_line() -> None:
    assert summary(planned()) == {
        "add": 1, "change": 4, "remove": 2, "rebind": 2, "blocked": 1, "drift": 1, "unchanged": 2, "data_loss": 2,
    }  # fmt: skip


def test_the_json_is_as_its_schema_says_and_comes_back_as_the_same_plan() -> None:
    schema = json.loads(
        resources.files("airflow_provider_rfr.builtins").joinpath("plan_schema.json").read_text("utf-8")
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    log = obj(Kind.LOG, "ops.log", "line string", per_instance="lake")
    for plan in (
        *(planned(), planned(drift="repair"), Catalog().plan(versions()[0]), *unusual()),
        Catalog().plan(spec("1.0", log), instances={"lake": (Instance("l1", "main"),)}),
    ):
        document = json.loads(json.dumps(plan.to_json()))
        jsonschema.validate(document, schema)
        assert (document["format"], document["exit_code"]) == (1, exit_code(plan))
        again = Plan.from_json(document)
        assert again == plan and again.plan_hash == plan.plan_hash
        assert again.to_json() == plan.to_json()


def unusual() -> Iterator[Plan]:
    """Plans with details that few plans have."""
    index, old, new = (
        table("rfr_system.builtin_objects", "name string"),
        table("ops.a", "x int", "y int"),
        table("ops.b", "x int"),
    )
    catalog = deployed(index, old, new, sink("ops.k", "ops.a"))
    catalog.user_view("bob.y", "SELECT y FROM ops.a", Dependency("ops.a", None, ("y",)))
    dropped = table("ops.a", "x int", keep="billing", comment="a")
    yield catalog.plan(spec("1.1", index, dropped, new, sink("ops.k", "ops.b")))
    wanted = spec("1.1", index, replace(dropped, keep=True), new, sink("ops.k", "ops.b"), table("ops.c", "x int!"))
    found = catalog.plan(wanted, accept_data_loss={"ops.a.y"}, break_views={"bob.y"}, sinks={"ops.k": "resend"})
    details = {key for step in found.steps for key in step.details}
    assert found.applicable and {"since", "broken", "lists_objects"} <= details
    yield found
    yield catalog.plan(spec("1.1", obj(Kind.SOURCE, "ops.s", "x int", source={"a": 1})), adopt={"ops.s"})
    renamed = table("ops.a", column("s struct<z:int>", Was(fields={"z": "x"})))
    nested = deployed(table("ops.a", "s struct<x:int,y:int>"))
    found = nested.plan(spec("1.1", renamed), accept_data_loss={"ops.a.s.y"})
    operations = [one["op"] for step in found.steps for batch in step.details["updates"] for one in batch]
    assert found.applicable and operations == ["rename", "narrow"]
    yield found


def test_the_hash_holds_what_is_done_and_where_it_starts_and_not_what_is_only_shown() -> None:
    found = planned()
    assert replace(found, warnings=(), stale=(), unchanged=0).digest() == found.digest()
    shown = tuple(replace(step, rows=11, bytes=5) for step in found.steps)
    assert replace(found, steps=shown).digest() == found.digest()
    for other in (
        replace(found, base_revision=2),
        replace(found, steps=found.steps[1:]),
        replace(found, steps=(replace(found.steps[0], details={}), *found.steps[1:])),
        replace(found, records=found.records[1:]),
        replace(found, policies=replace(found.policies, break_views=frozenset({"bob.daily"}))),
    ):
        assert other.digest() != found.digest()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "this is not a plan of format 1: format is 2"),
        ({"base_revision": 7}, "was changed after it was made"),
        ({"steps": [{"seq": 1}]}, "the plan can't be read"),
        ({"policies": {"drift": "maybe"}}, "maybe"),
        ({"version": None}, "the plan can't be read"),
        ({"steps": 5}, "the plan can't be read"),
    ],
)
def test_a_document_that_is_no_plan_or_was_changed_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        Plan.from_json({**planned().to_json(), **change})


def test_columns_stand_below_each_other_whatever_the_names_are() -> None:
    found = Catalog().plan(spec("1.0", table("ops.a", "id int"), table(f"ops.{'long' * 12}", "id int")))
    assert len({line.index("create") for line in render(found).splitlines() if "create" in line}) == 1


def test_a_view_that_is_let_break_has_one_line_below_what_breaks_it() -> None:
    catalog = deployed(table("ops.t", "x int", "y int"))
    catalog.user_view("bob.y", "SELECT y FROM ops.t", Dependency("ops.t", None, ("y",)))
    found = catalog.plan(spec("1.1", table("ops.t", "x int"), removed=["ops.t.y"]), break_views={"bob.y"})
    assert [line.split() for line in render(found).splitlines() if "bob.y" in line] == [
        ["->", "view", "bob.y", "(user)", "break", "reads", "ops.t.y,", "which", "is", "removed"],
        ["#", "note", "view", "bob.y", "(user)", "breaks:", "reads", "ops.t.y,", "which", "is", "removed"],
    ]


# A saved plan is applied only to what it was made from

ONE = spec("1.0", table("ops.t", "x int"))
TWO = spec("1.1", table("ops.t", "x bigint"), view("ops.v", "SELECT x FROM ops.t"))


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    found = Catalog().plan(TWO)
    path = save_plan(found, tmp_path / "plan.json")
    assert load_plan(path) == found
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


def test_it_is_applied_while_nothing_has_changed_though_rows_came_in(tmp_path: Path) -> None:
    catalog = deployed(*ONE.objects)
    saved = load_plan(save_plan(catalog.plan(TWO), tmp_path / "plan.json"))
    live = catalog.live()
    more = replace(live, objects={key: replace(obj, rows=1_000, bytes=9) for key, obj in live.objects.items()})
    assert ensure_current(saved, make_plan(TWO, catalog.recorded, more, policies=saved.policies)) is saved


def test_it_is_stale_after_another_deploy() -> None:
    """The base has changed, and what differs is told."""
    catalog = deployed(*ONE.objects)
    saved = catalog.plan(TWO)
    catalog.deploy(TWO)
    with raises(StalePlanError):
        ensure_current(saved, catalog.plan(TWO))


OTHERS: dict[str, tuple[CatalogSpec, dict[str, Any]]] = {
    "other code": (spec("1.2", *TWO.objects, table("ops.w", "x int")), {}),
    "other policies": (TWO, {"break_views": {"bob.v"}}),
    "another query": (spec("1.1", TWO.objects[0], view("ops.v", "SELECT x FROM ops.t WHERE x > 0")), {}),
    "another project": (replace(TWO, project="other"), {}),
}


@pytest.mark.parametrize(("wanted", "policies"), OTHERS.values(), ids=OTHERS)
def test_it_is_stale_for_anything_else(wanted: CatalogSpec, policies: dict[str, Any]) -> None:
    catalog = deployed(*ONE.objects)
    with raises(StalePlanError):
        ensure_current(catalog.plan(TWO), catalog.plan(wanted, **policies))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '"plan"'])
def test_a_file_that_holds_no_plan_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError):
        load_plan(path)
    with raises(PlanError):
        load_plan(tmp_path / "absent.json")


def test_a_plan_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = save_plan(Catalog().plan(TWO), tmp_path / "plan.json")
    document = json.loads(path.read_text())
    document["steps"][0]["how"] = "replace_empty"
    path.write_text(json.dumps(document))
    with raises(PlanError):
        load_plan(path)
