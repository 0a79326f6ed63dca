"""Sinks go on: what was sent is not sent again, and what came in between is sent once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_rfr.builtins.model import BuiltinObject, Dependency, stable_id
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code
from tests.unit.builtins.catalogs import Catalog, made, mview, problems, sink, spec, table, view
from tests.unit.messages import check_messages

OLD, NEW = ["id bigint", "rows int"], ["id bigint", "rows string"]
T = table("ops.t", *OLD, exportable=True)


def deployed(*objects: BuiltinObject) -> Catalog:
    catalog = Catalog()
    catalog.deploy(spec("1.0", *objects))
    return catalog


def sinks(found: Plan) -> list[tuple[str, str, str]]:
    return [
        (dependent.name, dependent.how, str(dependent.reason))
        for dependent in found.dependents
        if dependent.kind.value == "sink"
    ]


SOFT = replace(T, keep=False)
"""With rows that may be made again, so that it can be emptied."""
EMPTIED = table("ops.t", *NEW, exportable=True, keep=False)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (table("ops.t", *OLD, "more int", exportable=True), "cursor kept, nothing is sent again"),
        (
            table("ops.t", "id bigint", made("rows string", "CAST(rows AS STRING)"), exportable=True),
            "cursor kept, nothing is sent again",
        ),
        (table("ops.t", *OLD, exportable=True, comment="more"), "cursor kept, nothing is sent again"),
        (table("ops.runs", *OLD, exportable=True, id=T.id), "cursor kept, nothing is sent again"),
    ],
)
def test_a_sink_goes_on_from_its_cursor(wanted: Any, why: str) -> None:
    """Row 51, and its like for every mechanism that keeps the rows."""
    catalog = deployed(T, sink("ops.k", "ops.t"))
    found = catalog.plan(spec("1.1", wanted, sink("ops.k", wanted.name)))
    assert sinks(found) == [("ops.k", "continue", why)] and found.applicable
    assert [step.kind.value for step in found.steps] == ["table"]


def test_the_cursor_is_shown() -> None:
    catalog = deployed(T)
    catalog.attach("bob.k", T.id, cursor=8843)
    found = catalog.plan(spec("1.1", table("ops.t", *OLD, "more int", exportable=True)))
    assert sinks(found) == [("bob.k", "continue", "cursor 8843 kept, nothing is sent again")]
    assert found.dependents[0].user


def test_a_materialized_view_that_is_computed_again_sends_nothing_if_nothing_is_other() -> None:
    """Row 54."""

    def version(number: str, kind: str, query: str) -> Any:
        base = table("ops.t", "id bigint", f"rows {kind}")
        return spec(number, base, mview("ops.m", query, "rows bigint"), sink("ops.k", "ops.m"))

    catalog = Catalog()
    catalog.deploy(version("1.0", "int", "SELECT CAST(rows AS BIGINT) AS rows FROM ops.t"))
    found = catalog.plan(version("1.1", "bigint", "SELECT rows FROM ops.t"))
    assert [(step.name, step.how) for step in found.steps] == [
        ("ops.t", StepAction.EVOLVE),
        ("ops.m", StepAction.RECOMPUTE),
    ]
    assert sinks(found) == [("ops.k", "continue", "cursor kept, nothing is sent again")]


@pytest.mark.parametrize(
    ("choice", "order"),
    [
        ("hold", [("hold", "ops.k"), ("replace_empty", "ops.t")]),
        ("resume_from_new", [("replace_empty", "ops.t"), ("resume_from_new", "ops.k")]),
        ("resend", [("replace_empty", "ops.t"), ("resend", "ops.k")]),
    ],
)
def test_where_the_rows_are_gone_the_declared_choice_is_made_and_a_sink_stops_before_they_go(
    choice: str, order: list[tuple[str, str]]
) -> None:
    """Row 53."""
    declared = sink("ops.k", "ops.t", on_replace=choice)
    catalog = deployed(SOFT, declared)
    found = catalog.plan(spec("1.1", EMPTIED, declared))
    assert found.applicable
    assert [(step.how.value, step.name) for step in found.steps] == order
    assert sinks(found)[0][1] == choice and sinks(found)[0][2] == "ops.t is emptied"
    found = catalog.plan(spec("1.1", EMPTIED, declared), sinks={"OPS.K": "resend"})
    assert sinks(found)[0][1] == "resend"


def test_where_nobody_chose_nothing_is_emptied_and_nothing_is_sent_again() -> None:
    """Row 53: a sink of a user."""
    catalog = deployed(SOFT)
    catalog.attach("bob.k", T.id)
    wanted = spec("1.1", EMPTIED)
    check_messages(problems(catalog.plan(wanted)))
    found = catalog.plan(wanted, sinks={"bob.k": "hold"})
    assert found.applicable and found.steps[0].how is StepAction.HOLD


def test_a_table_that_is_made_again_as_a_view_is_a_case_for_a_choice_too() -> None:
    base = table("ops.base", *OLD)
    declared = sink("ops.k", "ops.t")
    catalog = deployed(T, base, declared)
    wanted = spec("2.0", view("ops.t", "SELECT id, rows FROM ops.base", *OLD), base, declared, removed=["ops.t"])
    found = catalog.plan(wanted)
    assert [(step.how.value, step.name) for step in found.steps] == [
        ("hold", "ops.k"), ("drop", "ops.t"), ("create", "ops.t"),
    ]  # fmt: skip


def test_a_sink_that_sends_a_column_which_goes_stops_the_plan_unless_it_follows() -> None:
    less, accepted = table("ops.t", "id bigint", exportable=True), {"accept_data_loss": {"ops.t.rows"}}
    for declared in (sink("ops.k", "ops.t"), sink("ops.k", "ops.t", "rows")):
        catalog = deployed(T, declared)
        found = catalog.plan(spec("1.1", less, declared), **accepted)
        check_messages(problems(found))
        assert found.blocked[0].paste == (() if declared.sink.columns else ('columns: ["id"]',))
    for declared in (sink("ops.k", "ops.t", follow_schema=True), sink("ops.k", "ops.t", "id")):
        catalog = deployed(T, declared)
        assert catalog.plan(spec("1.1", less, declared), **accepted).applicable


MORE = ["id bigint", "n int", "rows int"]


def renamed(*columns: str) -> Any:
    return table("ops.t", *columns, exportable=True)


@pytest.mark.parametrize(
    ("before", "after", "reads"),
    [((), (), "comment"), (("id", "n"), ("id", "n"), "comment"), (("id", "n"), ("id", "Comment"), "comment")],
)
def test_a_column_that_is_renamed_stops_no_sink(before: tuple[str, ...], after: tuple[str, ...], reads: str) -> None:
    """Its row is told of the new name, so that a table that was never sent, or is made anew, is understood as well."""
    catalog = deployed(table("ops.t", *MORE, exportable=True), sink("ops.k", "ops.t", *before))
    wanted = spec("1.1", renamed("id bigint", "Comment int < n", "rows int"), sink("ops.k", "ops.t", *after))
    found = catalog.deploy(wanted)
    assert [(step.how.value, step.name) for step in found.steps] == [("evolve", "ops.t"), ("metadata", "ops.k")]
    assert found.steps[1].details["columns"] == ["id", reads, *([] if before else ["rows"])]
    check_messages(found.steps[1].reason)
    assert sinks(found) == [("ops.k", "continue", "cursor kept, nothing is sent again")]
    assert not catalog.plan(wanted).steps


@pytest.mark.parametrize(("sent", "stale"), [(("id", "N"), ()), (("id", "Comment"), ("ops.t.Comment",))])
def test_an_old_name_is_needed_as_long_as_a_sink_sends_it(sent: tuple[str, ...], stale: tuple[str, ...]) -> None:
    catalog = deployed(table("ops.t", *MORE, exportable=True), sink("ops.k", "ops.t", "id", "n"))
    wanted = spec("1.1", renamed("id bigint", "Comment int < n", "rows int"), sink("ops.k", "ops.t", *sent))
    catalog.deploy(wanted)
    again = catalog.plan(wanted)
    assert (again.steps, again.stale) == ((), stale)


def test_a_sink_knows_its_columns_over_several_releases() -> None:
    catalog = deployed(table("ops.t", *MORE, exportable=True), sink("ops.k", "ops.t"))
    catalog.deploy(spec("1.1", renamed("id bigint", "m int < n", "rows int", "more int"), sink("ops.k", "ops.t")))
    less = ("id bigint", "rows int", "more int")
    dropped, accepted = table("ops.t", *less, exportable=True), {"accept_data_loss": {"ops.t.m"}}
    found = catalog.plan(spec("1.2", dropped, sink("ops.k", "ops.t")), **accepted)
    check_messages(problems(found))
    assert found.blocked[0].paste == ('columns: ["id", "rows"]',)
    assert catalog.plan(spec("1.2", dropped, sink("ops.k", "ops.t", "id", "rows")), **accepted).applicable


@pytest.mark.parametrize("now", [("c", "a"), ("b", "a")])
def test_columns_that_swap_their_names_or_hand_them_on_are_followed(now: tuple[str, str]) -> None:
    catalog = deployed(table("ops.t", "a int", "b int", exportable=True), sink("ops.k", "ops.t"))
    wanted = renamed(f"{now[0]} int < a", f"{now[1]} int < b")
    found = catalog.deploy(spec("1.1", wanted, sink("ops.k", "ops.t")))
    assert found.steps[1].details["columns"] == list(now)


def test_a_sink_that_exports_another_object_has_no_use_for_its_cursor() -> None:
    other = table("ops.u", *OLD)
    catalog = deployed(T, other, sink("ops.k", "ops.t"))
    found = catalog.plan(spec("1.1", T, other, sink("ops.k", "ops.u")))
    assert [(step.how.value, step.name) for step in found.steps] == [("hold", "ops.k"), ("metadata", "ops.k")]


def test_a_sinks_new_settings_are_no_reason_to_send_anything() -> None:
    catalog = deployed(T, sink("ops.k", "ops.t"))
    found = catalog.plan(spec("1.1", T, sink("ops.k", "ops.t", settings={"path": "s3://elsewhere"})))
    assert [(step.how.value, step.reason) for step in found.steps] == [("metadata", "definition changed")]


def test_a_sink_is_created_after_its_source_and_its_source_is_not_removed_below_it() -> None:
    catalog = deployed(SOFT, sink("ops.k", "ops.t"))
    assert [obj.name for obj in catalog.recorded.objects] == ["ops.k", "ops.t"]
    found = catalog.plan(spec("1.1", sink("ops.k", "ops.t")))
    check_messages(problems(found))
    catalog = deployed(SOFT)
    catalog.attach("bob.k", SOFT.id)
    check_messages(problems(catalog.plan(spec("1.1"))))


def test_a_sink_that_is_no_longer_declared_ends_before_its_source_goes() -> None:
    soft = {"keep": False}
    catalog = deployed(table("ops.t", *OLD, **soft), sink("ops.k", "ops.t", **soft))
    found = catalog.deploy(spec("1.1"))
    assert [(step.how.value, step.name) for step in found.steps] == [("remove", "ops.k"), ("remove", "ops.t")]
    assert catalog.recorded.objects == ()


def test_sinks_and_views_of_users_that_should_not_be_there_are_noted() -> None:
    kept, soft = table("ops.s", "x int"), table("ops.u", "x int", keep=False)
    catalog = deployed(kept, soft)
    catalog.attach("bob.k", stable_id("ops", "ops.s"))
    catalog.attach("bob.l", stable_id("ops", "ops.u"))
    catalog.user_view("bob.v", "SELECT x FROM ops.u", Dependency("ops.u", None, ("x",)))
    found = catalog.plan(spec("1.0", kept, soft))
    check_messages(found.warnings)
    assert exit_code(found) == 0
