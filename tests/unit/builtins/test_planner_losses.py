"""One rule of loss: whatever makes rows unreachable is counted, and has to be accepted by its exact name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.builtins.model import BuiltinObject, CatalogSpec, Kind
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code, render, summary
from airflow_provider_rfr.exceptions import ConfigurationError
from tests.unit.builtins.catalogs import (
    Catalog,
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
from tests.unit.messages import check_messages, raises

T = table("ops.t", "id bigint", "note string")
BASE = table("ops.base", "id bigint")
REASON = "billing, seven years"
EVOLVE, REWRITE, REMOVE = StepAction.EVOLVE, StepAction.REWRITE, StepAction.REMOVE


@dataclass(frozen=True)
class Loss:
    """A change that loses something, beside an object that stays.

    :ivar name: that has to be accepted; ``what`` it stands for
    :ivar step: that loses it
    """

    before: BuiltinObject
    after: BuiltinObject | None
    name: str
    what: str
    step: StepAction

    def plan(self, *removed: str, before: bool | str = True, after: bool | str = True, **policies: Any) -> Plan:
        return self.catalog(before).plan(self.wanted(*removed, keep=after), **policies)

    def catalog(self, keep: bool | str = True) -> Catalog:
        return deployed(replace(self.before, keep=keep), BASE)

    def wanted(self, *removed: str, keep: bool | str = True) -> CatalogSpec:
        after = [] if self.after is None else [self.after]
        after = [replace(item, keep=keep) if item.kind is self.before.kind else item for item in after]
        return spec("2.0", *after, BASE, removed=removed)


def changed(*columns: Any) -> BuiltinObject:
    return table("ops.t", *columns)


SOURCE = obj(Kind.SOURCE, "ops.t", "id bigint", source={"a": 1})
SAME_KIND = {
    "dropped column": Loss(T, changed("id bigint"), "ops.t.note", "column note", EVOLVE),
    "values that may be turned down": Loss(
        T, changed("id bigint", made("note int", "try_cast(note AS int)")), "ops.t.note",
        "values of note that are no int", REWRITE,
    ),
    "renamed values that may be turned down": Loss(
        T, changed("id bigint", made("remark string", "try_to_date(note)", name="note")), "ops.t.remark",
        "values of remark that are no string", REWRITE,
    ),
    "dropped field": Loss(
        changed("id bigint", "s struct<a:int,b:int>"), changed("id bigint", "s struct<b:int,c:string>"), "ops.t.s.a",
        "field s.a", EVOLVE,
    ),
    "field of an array that a rewrite drops": Loss(
        changed("s array<struct<a:int,b:string>>"),
        changed(made("s array<struct<b:int>>", "transform(s, x -> named_struct('b', int(x.b)))")),
        "ops.t.s.a", "field s.a", REWRITE,
    ),
    "narrower type": Loss(
        T, changed(made("id int", "CAST(id AS int)"), "note string"), "ops.t.id",
        "values of id that are no int", REWRITE,
    ),
}  # fmt: skip
LOSSES = {
    **SAME_KIND,
    "removed table": Loss(T, None, "ops.t", "all rows", REMOVE),
    "removed log": Loss(obj(Kind.LOG, "ops.t", "id bigint"), None, "ops.t", "all rows", REMOVE),
    "removed source": Loss(SOURCE, None, "ops.t", "all rows", REMOVE),
    "table becomes a view": Loss(T, view("ops.t", "SELECT id FROM ops.base"), "ops.t", "all rows", StepAction.DROP),
    "table becomes a materialized view": Loss(
        T, mview("ops.t", "SELECT id FROM ops.base", "id bigint"), "ops.t", "all rows", StepAction.RECOMPUTE
    ),
}
every = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def lossy(plan: Plan) -> list[tuple[StepAction, tuple[str, ...], tuple[str, ...]]]:
    return [(step.how, tuple(step.losses), tuple(step.losses.values())) for step in plan.steps if step.losses]


@every
def test_nothing_is_done_before_the_loss_is_accepted_by_its_own_name_and_both_ways_are_said(loss: Loss) -> None:
    plan = loss.plan()
    assert exit_code(plan) == 1 and plan.steps == ()
    assert [item.name for item in plan.blocked] == ["ops.t"]
    (problem,) = problems(plan)
    assert problem.partition(" would be lost")[0] in (loss.what, f"{loss.what} of {loss.name}")
    assert problem.endswith(
        f"accept that by a document {{kind: removed, name: {loss.name}}}, or for one deploy by accept_data_loss: "
        f"{loss.name}"
    )
    assert problem in render(plan)
    assert summary(plan)["data_loss"] == 1, "what nobody has accepted yet counts, too"
    other = "ops.t.note" if loss.name != "ops.t.note" else "ops.t"
    for name in (other, "ops.base", "t", f"{loss.name}s"):
        assert problems(loss.plan(accept_data_loss={name})) == problems(loss.plan(name)) == [problem]


@every
def test_a_reviewed_document_or_the_name_on_the_command_line_accepts_it_and_the_last_line_counts_it(loss: Loss) -> None:
    catalog = loss.catalog()
    by_document = catalog.plan(loss.wanted(loss.name.upper()))
    by_name = catalog.plan(loss.wanted(), accept_data_loss={loss.name.upper()})
    for plan in (by_document, by_name):
        assert lossy(plan) == [(loss.step, (loss.name,), (loss.what,))]
        assert summary(plan)["data_loss"] == 1 and render(plan).endswith(" 1 data loss.")
        assert plan.applicable and plan.stale == plan.warnings == ()
    catalog.apply(by_document)
    catalog.check()
    again = catalog.plan(loss.wanted(loss.name))
    assert (again.steps, set(again.stale) >= {loss.name}) == ((), True)


@every
def test_a_reason_is_overruled_by_no_acceptance_and_has_to_go_in_an_earlier_deploy(loss: Loss) -> None:
    for after in (REASON, True, False):
        plan = loss.plan(loss.name, before=REASON, after=after, accept_data_loss={loss.name})
        (problem,) = problems(plan)
        assert plan.steps == () and f"would be lost, and it is kept: {REASON}. To lose it, deploy" in problem
    catalog = loss.catalog(REASON)
    catalog.deploy(spec("1.1", loss.before, BASE))
    assert lossy(catalog.plan(loss.wanted(loss.name))) == [(loss.step, (loss.name,), (loss.what,))]


@every
def test_rows_that_may_be_made_again_are_no_loss_if_the_deploy_before_said_so(loss: Loss) -> None:
    plan = loss.plan(before=False, after=False)
    assert plan.applicable and lossy(plan) == [] and loss.step in {step.how for step in plan.steps}
    assert render(plan).endswith(" 0 data loss.")
    assert "would be lost" in problems(loss.plan(before=True, after=False))[0]
    if loss in SAME_KIND.values():
        assert "would be lost" in problems(loss.plan(before=False, after=True))[0]


def test_a_reason_that_is_new_counts_at_once() -> None:
    drop = LOSSES["dropped column"]
    (problem,) = problems(drop.plan(after=REASON, accept_data_loss={drop.name}))
    assert problem.startswith(f"column note would be lost, and it is kept: {REASON}")


def test_each_loss_of_one_object_is_accepted_for_itself() -> None:
    catalog = deployed(changed("a bigint", "b string", "c string"))
    wanted = spec("2.0", changed(made("a int", "CAST(a AS int)")), removed=["ops.t.b"])
    plan = catalog.plan(wanted, accept_data_loss={"ops.t.c"})
    assert [problem.split(" would")[0] for problem in problems(plan)] == ["values of a that are no int"]
    plan = catalog.plan(wanted, accept_data_loss={"ops.t.a", "ops.t.c"})
    assert tuple(plan.steps[0].losses) == ("ops.t.b", "ops.t.c", "ops.t.a") and summary(plan)["data_loss"] == 3
    assert "LOST: column b" in render(plan)


def test_a_kept_column_is_no_loss_whatever_becomes_of_its_name_and_order() -> None:
    catalog = deployed(table("ops.t", "a int", "b string", keep=REASON))
    plan = catalog.plan(spec("2.0", table("ops.t", "x string < b", "a bigint", "c int", keep=REASON)))
    assert plan.applicable and lossy(plan) == []


def test_a_column_that_goes_while_one_of_its_type_comes_is_asked_about_until_it_is_let_go() -> None:
    catalog, wanted = deployed(changed("finished_at timestamp")), spec("2.0", changed("ended_at timestamp"))
    check_messages(problems(catalog.plan(wanted)))
    plan = catalog.plan(wanted, accept_data_loss={"ops.t.finished_at"})
    assert did(plan) == ["evolve ops.t"] and plan.applicable
    # One that an expression makes is no other one under a new name.
    computed = deployed(changed("id bigint", "a int", "b int")).plan(
        spec("2.0", changed("id bigint", made("ab int!", "a + b")))
    )
    assert not any("under a new name" in problem for problem in problems(computed))


# Objects that go


def test_a_table_that_goes_while_one_like_it_comes_is_asked_about_with_its_id_to_paste() -> None:
    catalog = deployed(T, table("ops.u", "x int"))
    came = table("ops.runs", "id bigint", "note string", "more int")
    plan = catalog.plan(spec("2.0", came, table("ops.u", "x int")))
    check_messages(problems(plan), f"write id: {T.id} there")
    (paste,) = plan.blocked[0].paste
    assert paste in render(plan)
    assert yaml.safe_load(paste) == {"id": str(T.id)} and "in ops.runs" in paste
    plan = catalog.plan(spec("2.0", replace(came, id=T.id), table("ops.u", "x int")))
    assert did(plan) == ["rename ops.t", "evolve ops.runs"] and plan.applicable
    plan = catalog.plan(spec("2.0", came, table("ops.u", "x int"), removed=["ops.t"]))
    assert did(plan) == ["create ops.runs", "remove ops.t"] and plan.applicable


@pytest.mark.parametrize(
    ("before", "came", "asked"),
    [
        (T, table("ops.new", "id bigint", "note string"), True),
        (T, table("ops.new", "ID bigint", "x string"), True),
        (T, table("ops.new", "x bigint", "note int"), False),
        (T, obj(Kind.LOG, "ops.new", "id bigint", "note string"), False),
        (replace(T, keep=REASON), table("ops.new", "id bigint", "note string"), True),
        (replace(T, keep=False), table("ops.new", "id bigint", "note string"), None),
        (view("ops.t", "SELECT id FROM ops.base"), view("ops.new", "SELECT id FROM ops.base"), True),
        (view("ops.t", "SELECT id FROM ops.base"), view("ops.new", "SELECT id + 1 AS id FROM ops.base"), False),
    ],
)
def test_what_is_like_it_has_its_kind_and_half_of_its_columns_or_its_query(
    before: BuiltinObject, came: BuiltinObject, asked: bool | None
) -> None:
    catalog = deployed(before, BASE)
    plan = catalog.plan(spec("2.0", came, BASE))
    assert plan.applicable is (asked is None)
    if asked is not None:
        hints = [problem for problem in problems(plan) if "comes and is like it" in problem]
        assert len(hints) == asked
        assert any(item.startswith(f"id: {before.id}") for item in plan.blocked[0].paste) is asked


def test_what_goes_and_is_like_nothing_comes_with_the_document_to_paste() -> None:
    catalog = deployed(T, BASE, view("ops.v", "SELECT id FROM ops.base"), sink("ops.k", "ops.base"))
    plan = catalog.plan(spec("2.0", BASE))
    check_messages(problems(plan))
    pasted = [yaml.safe_load(line) for item in plan.blocked for line in item.paste]
    assert pasted == [{"kind": "removed", "name": name} for name in ("ops.k", "ops.t", "ops.v")]
    plan = catalog.plan(spec("2.0", BASE, removed=[item["name"] for item in pasted]))
    assert did(plan) == ["remove ops.k", "remove ops.v", "remove ops.t"] and plan.applicable
    assert [step.reason for step in plan.steps] == ["no longer declared"] * 3
    # A view and a sink hold no rows: they may not go by accident, and nothing is lost with them.
    assert [tuple(step.losses) for step in plan.steps] == [(), (), ("ops.t",)] and summary(plan)["data_loss"] == 1


def test_a_document_that_meets_nothing_is_a_note_and_no_permission_for_another_object() -> None:
    catalog = deployed(T)
    plan = catalog.plan(spec("1.0", T, removed=["ops.t.gone", "ops.old"]))
    assert plan.stale == ("ops.old", "ops.t.gone") and exit_code(plan) == 0
    assert "`was` and `removed` no longer needed here: ops.old, ops.t.gone; delete them" in render(plan)


def test_a_removal_that_something_else_stops_is_neither_stale_nor_unneeded() -> None:
    catalog = deployed(T)
    catalog.attach("bob.k", T.id)
    plan = catalog.plan(spec("1.1", removed=["ops.t"]), accept_data_loss={"ops.t"})
    check_messages(problems(plan))
    assert (plan.stale, plan.warnings, plan.blocked[0].paste) == ((), (), ())


def test_a_loss_that_an_unfinished_deploy_has_done_is_not_asked_about_again() -> None:
    catalog = LOSSES["dropped column"].catalog()
    wanted = LOSSES["dropped column"].wanted()
    catalog.apply(catalog.plan(wanted, accept_data_loss={"ops.t.note"}), until=1)
    assert catalog.plan(wanted).applicable


@pytest.mark.parametrize("name", ["accept_data_loss", "break_views", "adopt"])
def test_there_is_no_word_for_all_objects(name: str) -> None:
    for value in ({"*"}, {"all"}, {"ALL"}, "ops.t"):
        with raises(ConfigurationError):
            Catalog().plan(spec("1.0", T), **{name: value})
