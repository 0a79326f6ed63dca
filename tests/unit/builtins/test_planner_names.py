"""Names, kinds, removals, and what somebody else made."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid5

import pytest

from airflow_provider_rfr.builtins.model import (
    ActualState,
    Dependency,
    Instance,
    Kind,
    LiveObject,
    RegistryState,
    UserView,
    name_problem,
)
from airflow_provider_rfr.builtins.plan import Policies, exit_code
from airflow_provider_rfr.builtins.planner import plan
from tests.unit.builtins.catalogs import Catalog, Thing, column, did, mview, obj, problems, spec, stable_id, table, view
from tests.unit.messages import check_messages

T = table("ops.t", "id bigint")
OTHER = UUID("00000000-0000-0000-0000-000000000001")


def deployed(*objects: object) -> Catalog:
    catalog = Catalog()
    catalog.deploy(spec("1.0", *objects))
    return catalog


def _live(found: LiveObject) -> ActualState:
    return ActualState({found.key: found})


# Names that are taken


def test_a_name_that_a_user_has_is_not_taken_from_them_and_both_are_named() -> None:
    """Row 11."""
    live = _live(LiveObject("Ops.T", Kind.TABLE, None, T.columns))
    found = plan(spec("1.0", T), RegistryState(), live)
    assert found.steps == () and found.records == ()
    check_messages(problems(found))


def test_a_name_that_a_view_of_a_user_has_is_taken_too() -> None:
    found = plan(spec("1.0", T), RegistryState(), ActualState(user_views=(UserView("ops.T", "SELECT 1 AS id"),)))
    check_messages(problems(found))


def test_what_carries_the_marker_of_another_project_is_not_taken_either() -> None:
    found = plan(spec("1.0", T), RegistryState(), _live(LiveObject("ops.t", Kind.TABLE, OTHER)))
    check_messages(problems(found), f"carries the marker of {OTHER}, not of {T.id}")


def test_what_is_as_declared_can_be_adopted_by_name() -> None:
    live = _live(LiveObject("ops.t", Kind.TABLE, None, T.columns))
    found = plan(spec("1.0", T), RegistryState(), live, policies=_adopt())
    assert did(found) == ["adopt ops.t"] and found.applicable
    live = _live(LiveObject("ops.t", Kind.TABLE, None, table("ops.t", "id int", "more int").columns))
    found = plan(spec("1.0", T), RegistryState(), live, policies=_adopt())
    check_messages(problems(found))
    live = _live(LiveObject("ops.t", Kind.VIEW))
    found = plan(spec("1.0", T), RegistryState(), live, policies=_adopt())
    check_messages(problems(found))


def _adopt() -> object:
    return Policies(adopt=frozenset({"ops.t"}))


def test_what_is_written_otherwise_is_not_adopted_for_most_catalogs_would_not_find_it() -> None:
    catalog = Catalog()
    catalog.things["ops.t"] = Thing("ops.T", Kind.TABLE, None, (column("id int"),))
    found = catalog.plan(spec("1.0", table("ops.t", "id int")), adopt={"ops.t"})
    check_messages(problems(found))
    assert catalog.plan(spec("1.0", table("ops.T", "id int")), adopt={"ops.t"}).applicable


def test_what_carries_our_marker_and_is_not_recorded_is_ours_again() -> None:
    """A deploy died between its last step and the registry, or the registry was lost."""
    catalog = deployed(T, view("ops.v", "SELECT id FROM ops.t"))
    catalog.recorded = RegistryState()
    found = catalog.plan(spec("1.0", T, view("ops.v", "SELECT id FROM ops.t")))
    assert did(found) == ["metadata ops.t", "replace ops.v"] and found.applicable
    assert len(found.records) == 2


def test_nothing_that_lacks_our_marker_is_dropped_or_changed_though_it_has_our_name() -> None:
    catalog = deployed(replace(T, keep=False))
    catalog.edit("ops.t", marker=None)
    found = catalog.plan(spec("2.0"))
    assert did(found) == []
    check_messages(problems(found))
    found = catalog.plan(spec("2.0", table("ops.t", "id bigint", "more int", keep=False)))
    assert exit_code(found) == 1 and found.records == ()
    found = catalog.plan(spec("2.0", view("ops.t", "SELECT 1 AS id")), drift="repair")
    assert exit_code(found) == 1


# Renamed objects


def test_a_renamed_object_is_not_made_anew() -> None:
    catalog = deployed(T, view("ops.v", "SELECT id FROM ops.t"))
    renamed = table("ops.runs", "id bigint", id=T.id)
    found = catalog.plan(spec("1.1", renamed, view("ops.v", "SELECT id FROM ops.t")))
    check_messages(problems(found))
    found = catalog.deploy(spec("1.1", renamed, view("ops.v", "SELECT id FROM ops.runs")))
    assert did(found) == ["rename ops.t", "replace ops.v"]
    assert found.steps[0].details == {"to": "ops.runs"}
    catalog.check()
    assert catalog.garbage == []
    recorded = {obj.uuid: obj for obj in catalog.recorded.objects}
    assert recorded[T.id].name == "ops.runs"


def test_objects_that_exchange_their_names_go_by_a_name_in_between() -> None:
    a, b, c = (table(f"ops.{name}", f"{name} int") for name in "abc")
    catalog = deployed(a, b, c)
    found = catalog.deploy(spec("1.1", replace(a, name="ops.b"), replace(b, name="ops.a"), replace(c, name="ops.d")))
    between = f"ops.a__r{a.id.hex[:8]}"
    assert [(step.name, step.details["to"]) for step in found.steps] == [
        ("ops.c", "ops.d"), ("ops.a", between), ("ops.b", "ops.a"), (between, "ops.b"),
    ]  # fmt: skip
    assert {key: thing.marker for key, thing in catalog.things.items()} == {"ops.b": a.id, "ops.a": b.id, "ops.d": c.id}


def test_a_new_object_gets_the_name_that_another_one_gives_up() -> None:
    catalog = deployed(T)
    fresh = table("ops.t", "x int", id=OTHER)
    found = catalog.deploy(spec("1.1", fresh, replace(T, name="ops.old")))
    assert did(found) == ["rename ops.t", "create ops.t"]
    assert catalog.things["ops.old"].marker == T.id and catalog.things["ops.t"].marker == OTHER


def test_a_new_name_that_a_user_has_stops_the_plan() -> None:
    catalog = deployed(T)
    catalog.things["ops.runs"] = replace(catalog.things["ops.t"], name="ops.runs", marker=None)
    found = catalog.plan(spec("1.1", replace(T, name="ops.runs")))
    check_messages(problems(found))


# Another kind


def test_a_table_becomes_a_view_under_its_name_and_its_id_and_its_rows_are_kept_aside() -> None:
    """Row 9."""
    base = table("ops.base", "id bigint")
    catalog = deployed(T, base, view("ops.reader", "SELECT id FROM ops.t"))
    catalog.user_view("bob.daily", "SELECT id FROM ops.t", Dependency("ops.t", None, ("id",)))
    now = view("ops.t", "SELECT id FROM ops.base", "id bigint")
    accepted = {"accept_data_loss": {"ops.t"}}
    found = catalog.deploy(spec("2.0", now, base, view("ops.reader", "SELECT id FROM ops.t")), **accepted)
    assert did(found) == ["drop ops.t", "create ops.t"]
    assert found.dependents == () and found.steps[1].uuid == T.id
    assert found.steps[0].details == {"keep_days": 7}
    assert [catalog.things[item].marker for item in catalog.garbage] == [T.id]
    check_messages(found.steps[0].reason)
    catalog.check()
    back = catalog.deploy(spec("3.0", T, base, view("ops.reader", "SELECT id FROM ops.t")))
    assert did(back) == ["drop ops.t", "create ops.t"]


def test_a_table_that_is_kept_for_a_reason_becomes_no_view() -> None:
    catalog = deployed(replace(T, keep="billing"))
    found = catalog.plan(spec("2.0", view("ops.t", "SELECT 1 AS id", "id bigint")), accept_data_loss={"ops.t"})
    check_messages(problems(found))


def test_kinds_that_are_both_tables_keep_the_table() -> None:
    catalog = deployed(T)
    found = catalog.deploy(spec("2.0", obj(Kind.LOG, "ops.t", "id bigint")))
    assert did(found) == ["metadata ops.t"] and found.steps[0].reason == "kind: table -> log"


def test_a_table_becomes_a_materialized_view_only_if_its_rows_may_go() -> None:
    base = table("ops.base", "id bigint")
    now = mview("ops.t", "SELECT id FROM ops.base", "id bigint")
    catalog = deployed(T, base)
    assert "accept_data_loss: ops.t" in problems(catalog.plan(spec("2.0", now, base)))[0]
    found = catalog.plan(spec("2.0", now, base), accept_data_loss={"ops.t"})
    assert did(found) == ["recompute ops.t"] and tuple(found.steps[0].losses) == ("ops.t",)
    catalog = deployed(replace(T, keep="billing"), base)
    found = catalog.plan(spec("2.0", now, base), accept_data_loss={"ops.t"})
    check_messages(problems(found))
    catalog = deployed(replace(T, keep=False), base)
    found = catalog.deploy(spec("2.0", now, base))
    assert did(found) == ["recompute ops.t"] and tuple(found.steps[0].losses) == ()
    assert did(catalog.deploy(spec("3.0", replace(T, keep=False), base))) == ["metadata ops.t"]


# Removed objects


def test_an_object_that_is_not_kept_is_removed_when_it_is_no_longer_declared() -> None:
    """Row 14."""
    catalog = deployed(T, table("ops.tmp", "x int", keep=False))
    found = catalog.deploy(spec("2.0", T))
    assert did(found) == ["remove ops.tmp"]
    assert found.steps[0].reason == "no longer declared" and tuple(found.steps[0].losses) == ()
    assert found.forgotten == (stable_id("ops", "ops.tmp"),)
    assert [obj.name for obj in catalog.recorded.objects] == ["ops.t"]
    assert [item[:7] for item in catalog.garbage] == ["ops.tmp"]


def test_an_object_is_removed_only_with_acceptance() -> None:
    """Row 15."""
    catalog = deployed(T, table("ops.u", "x int"))
    found = catalog.plan(spec("2.0", T))
    check_messages(problems(found))
    assert found.blocked[0].paste == ("{kind: removed, name: ops.u}",)
    found = catalog.plan(spec("2.0", T, removed=["ops.u"]))
    assert did(found) == ["remove ops.u"] and found.steps[0].reason == "no longer declared"


def test_an_object_that_is_kept_for_a_reason_is_not_removed() -> None:
    catalog = deployed(T, table("ops.u", "x int", keep="billing"))
    check_messages(problems(catalog.plan(spec("2.0", T, removed=["ops.u"]))))


def test_what_is_removed_goes_last_and_readers_first() -> None:
    soft = {"keep": False}
    catalog = deployed(
        T, table("ops.tmp", "x int", **soft), view("ops.a", "SELECT x FROM ops.tmp", **soft),
        view("ops.b", "SELECT x FROM ops.a", **soft), view("ops.kept", "SELECT x FROM ops.tmp"),
    )  # fmt: skip
    found = catalog.deploy(spec("2.0", T, view("ops.kept", "SELECT id AS x FROM ops.t")))
    assert did(found) == ["replace ops.kept", "remove ops.b", "remove ops.a", "remove ops.tmp"]
    catalog.check()


def test_what_is_removed_goes_first_if_its_name_is_needed_and_takes_its_removed_readers_along() -> None:
    soft = {"keep": False}
    catalog = deployed(table("ops.x", "a int", **soft), view("ops.y", "SELECT a FROM ops.x", **soft))
    found = catalog.deploy(spec("2.0", table("ops.x", "a string", id=OTHER)))
    assert did(found) == ["remove ops.y", "remove ops.x", "create ops.x"]


def test_an_object_that_came_back_after_it_was_removed_has_none_of_its_old_rows() -> None:
    """Row 17, over v2; straight from v1 to v3 it is a change of the same object."""
    soft = {"keep": False}
    v1, v3 = table("ops.x", "a int", **soft), table("ops.x", "a bigint", "b int", **soft)
    catalog = deployed(v1)
    assert did(catalog.plan(spec("3.0", v3))) == ["evolve ops.x"]
    catalog.deploy(spec("2.0"))
    assert did(catalog.deploy(spec("3.0", v3))) == ["create ops.x"]


def test_what_somebody_dropped_already_is_only_forgotten() -> None:
    catalog = deployed(T, table("ops.tmp", "x int", keep=False))
    del catalog.things["ops.tmp"]
    found = catalog.plan(spec("2.0", T))
    assert found.steps == () and found.forgotten == (stable_id("ops", "ops.tmp"),) and found.applicable


def test_what_is_removed_is_read_by_nobody_that_stays() -> None:
    catalog = deployed(T, table("ops.tmp", "x int", keep=False), view("ops.v", "SELECT x FROM ops.tmp"))
    found = catalog.plan(spec("2.0", T, view("ops.v", "SELECT x FROM ops.tmp")))
    check_messages(problems(found))


# One object for each instance

LOG = obj(Kind.LOG, "ops.log", "line string", per_instance="lake", keep=False)


def test_a_generated_name_takes_a_number_until_nobody_has_it_and_is_kept_whatever_the_instance_is_called() -> None:
    """Row 13."""
    catalog = deployed(T)
    for name in ("ops.log_main", "ops.log_main_1"):
        catalog.things[name] = replace(catalog.things["ops.t"], name=name, marker=None)
    wanted = spec("1.1", T, LOG)
    found = catalog.plan(wanted, instances={"lake": (Instance("l1", "Main"),)})
    assert did(found) == ["create ops.log_Main_2"]
    assert [record.instance for record in found.records] == ["l1"]
    catalog.apply(found)
    found = catalog.plan(wanted, instances={"lake": (Instance("l1", "renamed"), Instance("l2", "eu west"))})
    assert did(found) == ["create ops.log_eu_west"]
    catalog.apply(found)
    assert {obj.name: obj.instance for obj in catalog.recorded.objects} == {
        "ops.t": None, "ops.log_Main_2": "l1", "ops.log_eu_west": "l2",
    }  # fmt: skip
    assert {obj.uuid for obj in catalog.recorded.objects} == {T.id, uuid5(LOG.id, "l1"), uuid5(LOG.id, "l2")}


@pytest.mark.parametrize("called", ["Zürich 東京", "x" * 300, "__", "a.b/c"])
def test_a_generated_name_is_one_that_could_have_been_declared(called: str) -> None:
    wanted = spec("1.0", T, LOG)
    instances = {"lake": (Instance("l1", called), Instance("l2", called))}
    names = {step.name for step in Catalog().plan(wanted, instances=instances).steps} - {"ops.t"}
    assert len(names) == 2 and [name_problem(name) for name in names] == [None, None]


def test_a_template_that_nobody_listed_instances_for_is_a_note() -> None:
    found = Catalog().plan(spec("1.0", T, LOG))
    assert did(found) == ["create ops.t"]
    check_messages(found.warnings)
    assert Catalog().plan(spec("1.0", T, LOG), instances={"lake": ()}).warnings == ()


def test_a_generated_object_whose_deploy_died_before_it_was_recorded_keeps_the_name_that_it_has() -> None:
    catalog = deployed(T)
    found = catalog.plan(spec("1.1", T, LOG), instances={"lake": (Instance("l1", "main"),)})
    before = catalog.recorded
    catalog.apply(found)
    catalog.recorded = before
    found = catalog.plan(spec("1.1", T, LOG), instances={"lake": (Instance("l1", "other"),)})
    assert did(found) == ["metadata ops.log_main"]


def test_an_instance_that_is_gone_takes_its_object_along_and_one_that_nobody_listed_does_not() -> None:
    catalog = deployed(T)
    wanted = spec("1.1", T, LOG)
    catalog.apply(catalog.plan(wanted, instances={"lake": (Instance("l1", "main"),)}))
    assert did(catalog.plan(wanted)) == []
    assert did(catalog.plan(wanted, instances={"lake": ()})) == ["remove ops.log_main"]
    kept = replace(LOG, keep=True)
    catalog.apply(catalog.plan(spec("1.2", T, kept), instances={"lake": (Instance("l1", "main"),)}))
    found = catalog.plan(spec("1.2", T, kept), instances={"lake": ()})
    assert did(found) == [] and problems(found)[0].startswith("all rows of ops.log_main would be lost: accept that")
    found = catalog.plan(spec("1.2", T, kept, removed=["ops.log_main"]), instances={"lake": ()})
    assert did(found) == ["remove ops.log_main"] and found.steps[0].reason == "no longer declared"


def test_each_instances_object_follows_its_template_though_nobody_lists_it() -> None:
    """Row 6: children that the system made."""
    catalog = deployed(T)
    lakes = {"lake": (Instance("l1", "main"), Instance("l2", "eu"))}
    catalog.apply(catalog.plan(spec("1.1", T, LOG), instances=lakes))
    wider = replace(LOG, columns=(*LOG.columns, T.columns[0]))
    found = catalog.plan(spec("1.2", T, wider), instances=lakes)
    assert did(found) == ["evolve ops.log_eu", "evolve ops.log_main"]


@pytest.mark.parametrize("query", ["SELECT (", "SELECT id FROM ops.t; SELECT 1"])
def test_a_query_that_cannot_be_read_says_so(query: str) -> None:
    found = plan(spec("1.0", T, view("ops.v", query)), RegistryState(), ActualState())
    assert any("its query can't be read" in problem for problem in problems(found))
