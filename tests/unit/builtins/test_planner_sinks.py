"""Sinks go on: what was sent is not sent again, and what came in between is sent once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, Dependency, stable_id
from airflow_provider_rfr.builtins.plan import Plan, exit_code
from tests.unit.builtins.catalogs import deployed, did, made, mview, problems, sink, spec, table, view
from tests.unit.messages import check_messages

T = table("ops.t", "id bigint", "rows int", exportable=True)
LOOSE, EMPTIED = replace(T, keep=False), table("ops.t", "id bigint", "rows string", exportable=True, keep=False)
"""Rows that may be made again, and a version of the table that can't keep them."""
MORE = table("ops.t", "id bigint", "n int", "rows int", exportable=True)
K, KEPT = sink("ops.k", "ops.t"), "cursor kept, nothing is sent again"


def sinks(plan: Plan) -> list[tuple[str, str, str]]:
    found = [dependent for dependent in plan.dependents if dependent.kind.value == "sink"]
    return [(dependent.name, dependent.how, str(dependent.reason)) for dependent in found]


def exported(*columns: Any, **more: Any) -> BuiltinObject:
    return table("ops.t", *columns, exportable=True, **more)


KEEPS_ROWS = {
    "column added": exported(*T.columns, "more int"),
    "rewritten": exported("id bigint", made("rows string", "CAST(rows AS STRING)")),
    "described": replace(T, comment="more"),
    "renamed": replace(T, name="ops.runs"),
}


@pytest.mark.parametrize("wanted", KEEPS_ROWS.values(), ids=KEEPS_ROWS)
def test_a_sink_goes_on_from_its_cursor(wanted: BuiltinObject) -> None:
    plan = deployed(T, K).plan(spec("1.1", wanted, sink("ops.k", wanted.name)))
    assert sinks(plan) == [("ops.k", "continue", KEPT)] and plan.applicable
    assert [step.kind.value for step in plan.steps] == ["table"]


def test_the_cursor_is_shown() -> None:
    catalog = deployed(T)
    catalog.attach("bob.k", T.id, cursor=8843)
    plan = catalog.plan(spec("1.1", exported(*T.columns, "more int")))
    assert sinks(plan) == [("bob.k", "continue", "cursor 8843 kept, nothing is sent again")]
    assert plan.dependents[0].user


def test_a_materialized_view_that_is_computed_again_sends_nothing_if_nothing_is_other() -> None:
    before, after = "SELECT CAST(rows AS BIGINT) AS rows FROM ops.t", "SELECT rows FROM ops.t"
    catalog = deployed(T, mview("ops.m", before, "rows bigint"), sink("ops.k", "ops.m"))
    plan = catalog.plan(
        spec("1.1", exported("id bigint", "rows bigint"), mview("ops.m", after, "rows bigint"), sink("ops.k", "ops.m"))
    )
    assert did(plan) == ["evolve ops.t", "recompute ops.m"] and sinks(plan) == [("ops.k", "continue", KEPT)]


ORDERS = {
    "hold": ["hold ops.k", "replace_empty ops.t"],
    "resume_from_new": ["replace_empty ops.t", "resume_from_new ops.k"],
    "resend": ["replace_empty ops.t", "resend ops.k"],
}


@pytest.mark.parametrize(("choice", "order"), ORDERS.items())
def test_where_the_rows_are_gone_the_declared_choice_is_made_and_a_sink_stops_before_they_go(
    choice: str, order: list[str]
) -> None:
    declared = sink("ops.k", "ops.t", on_replace=choice)
    catalog, wanted = deployed(LOOSE, declared), spec("1.1", EMPTIED, declared)
    plan = catalog.plan(wanted)
    assert plan.applicable and did(plan) == order and sinks(plan) == [("ops.k", choice, "ops.t is emptied")]
    assert sinks(catalog.plan(wanted, sinks={"OPS.K": "resend"}))[0][1] == "resend"


def test_where_nobody_chose_for_the_sink_of_a_user_nothing_is_emptied() -> None:
    catalog, wanted = deployed(LOOSE), spec("1.1", EMPTIED)
    catalog.attach("bob.k", T.id)
    check_messages(problems(catalog.plan(wanted)))
    plan = catalog.plan(wanted, sinks={"bob.k": "hold"})
    assert plan.applicable and did(plan)[0] == "hold bob.k"


OTHER, BASE = table("ops.u", "id bigint", "rows int"), table("ops.base", "id bigint", "rows int")
STEPS: dict[str, tuple[tuple[BuiltinObject, ...], tuple[BuiltinObject, ...], list[str]]] = {
    "a table that is made again as a view is a case for a choice, too": (
        (T, BASE, K),
        (view("ops.t", "SELECT id, rows FROM ops.base", *T.columns), BASE, K),
        ["hold ops.k", "drop ops.t", "create ops.t"],
    ),
    "a sink that exports another object has no use for its cursor": (
        (T, OTHER, K), (T, OTHER, sink("ops.k", "ops.u")), ["hold ops.k", "metadata ops.k"],
    ),
    "new settings are no reason to send anything": (
        (T, K), (T, sink("ops.k", "ops.t", settings={"path": "s3://elsewhere"})), ["metadata ops.k"],
    ),
    "a sink that is no longer declared ends before its source goes": (
        (LOOSE, sink("ops.k", "ops.t", keep=False)), (), ["remove ops.k", "remove ops.t"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "steps"), STEPS.values(), ids=STEPS)
def test_a_sink_changes_with_and_apart_from_its_source(before: Any, after: Any, steps: list[str]) -> None:
    catalog = deployed(*before)
    plan = catalog.deploy(spec("1.1", *after), accept_data_loss={"ops.t"})
    assert did(plan) == steps
    assert {known.name for known in catalog.recorded.objects} == {item.name for item in after}


NARROW, ACCEPTED = exported("id bigint"), {"accept_data_loss": {"ops.t.rows"}}


@pytest.mark.parametrize(("sent", "paste"), [((), ('columns: ["id"]',)), (("rows",), ())])
def test_a_sink_that_sends_a_column_which_goes_stops_the_plan(sent: tuple[str, ...], paste: tuple[str, ...]) -> None:
    declared = sink("ops.k", "ops.t", *sent)
    plan = deployed(T, declared).plan(spec("1.1", NARROW, declared), **ACCEPTED)
    check_messages(problems(plan))
    assert plan.blocked[0].paste == paste


@pytest.mark.parametrize("declared", [sink("ops.k", "ops.t", follow_schema=True), sink("ops.k", "ops.t", "id")])
def test_a_sink_that_follows_or_sends_other_columns_stops_nothing(declared: BuiltinObject) -> None:
    assert deployed(T, declared).plan(spec("1.1", NARROW, declared), **ACCEPTED).applicable


@pytest.mark.parametrize(
    ("before", "after"), [((), ()), (("id", "n"), ("id", "n")), (("id", "n"), ("id", "Comment"))], ids=str
)
def test_a_column_that_is_renamed_stops_no_sink(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Its row is told of the new name, so that a table that was never sent, or is made anew, is understood as well."""
    catalog = deployed(MORE, sink("ops.k", "ops.t", *before))
    wanted = spec("1.1", exported("id bigint", "Comment int < n", "rows int"), sink("ops.k", "ops.t", *after))
    plan = catalog.deploy(wanted)
    assert did(plan) == ["evolve ops.t", "metadata ops.k"]
    assert plan.steps[1].details["columns"] == ["id", "comment", *([] if before else ["rows"])]
    check_messages(plan.steps[1].reason)
    assert sinks(plan) == [("ops.k", "continue", KEPT)]
    again = catalog.plan(wanted)
    # The old name is needed as long as a sink sends it.
    assert (again.steps, again.stale) == ((), () if "n" in after else ("ops.t.Comment",))


def test_a_sink_knows_its_columns_over_several_releases() -> None:
    catalog = deployed(MORE, K)
    catalog.deploy(spec("1.1", exported("id bigint", "m int < n", "rows int", "more int"), K))
    dropped, accepted = exported("id bigint", "rows int", "more int"), {"accept_data_loss": {"ops.t.m"}}
    plan = catalog.plan(spec("1.2", dropped, K), **accepted)
    check_messages(problems(plan))
    assert plan.blocked[0].paste == ('columns: ["id", "rows"]',)
    assert catalog.plan(spec("1.2", dropped, sink("ops.k", "ops.t", "id", "rows")), **accepted).applicable


@pytest.mark.parametrize("now", [("c", "a"), ("b", "a")])
def test_columns_that_swap_their_names_or_hand_them_on_are_followed(now: tuple[str, str]) -> None:
    catalog = deployed(exported("a int", "b int"), K)
    plan = catalog.deploy(spec("1.1", exported(f"{now[0]} int < a", f"{now[1]} int < b"), K))
    assert plan.steps[1].details["columns"] == list(now)


def test_the_source_of_a_sink_is_not_removed_below_it() -> None:
    check_messages(problems(deployed(LOOSE, K).plan(spec("1.1", K))))


def test_sinks_and_views_of_users_that_should_not_be_there_are_noted() -> None:
    kept, loose = table("ops.s", "x int"), table("ops.u", "x int", keep=False)
    catalog = deployed(kept, loose)
    for name, source in {"bob.k": "ops.s", "bob.l": "ops.u"}.items():
        catalog.attach(name, stable_id("ops", source))
    catalog.user_view("bob.v", "SELECT x FROM ops.u", Dependency("ops.u", None, ("x",)))
    plan = catalog.plan(spec("1.0", kept, loose))
    check_messages(plan.warnings)
    assert exit_code(plan) == 0
