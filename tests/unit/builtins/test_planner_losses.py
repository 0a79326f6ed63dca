"""One rule of loss: whatever makes rows unreachable is counted, and has to be accepted by its exact name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import yaml

from airflow_provider_rfr.builtins.model import BuiltinObject, Kind
from airflow_provider_rfr.builtins.plan import Plan, StepAction, exit_code, render, summary
from airflow_provider_rfr.exceptions import ConfigurationError
from tests.unit.builtins.catalogs import Catalog, column, did, made, mview, obj, problems, sink, spec, table, view
from tests.unit.messages import check_messages, raises

T = table("ops.t", "id bigint", "note string")
BASE = table("ops.base", "id bigint")
REASON = "billing, seven years"


@dataclass(frozen=True)
class Loss:
    """A change that loses something.

    :ivar name: that has to be accepted; ``what`` it stands for
    :ivar step: that loses it
    :ivar rest: objects that are declared before and afterwards
    """

    before: BuiltinObject
    after: BuiltinObject | None
    name: str
    what: str
    step: StepAction
    rest: tuple[BuiltinObject, ...] = (BASE,)

    def plan(self, *removed: str, before: bool | str = True, after: bool | str = True, **policies: Any) -> Plan:
        return self.catalog(before).plan(self.wanted(*removed, keep=after), **policies)

    def catalog(self, keep: bool | str = True) -> Catalog:
        catalog = Catalog()
        catalog.deploy(spec("1.0", replace(self.before, keep=keep), *self.rest))
        return catalog

    def wanted(self, *removed: str, keep: bool | str = True) -> Any:
        after: tuple[BuiltinObject, ...] = () if self.after is None else (self.after,)
        after = tuple(replace(item, keep=keep) if item.kind is self.before.kind else item for item in after)
        return spec("2.0", *after, *self.rest, removed=removed)


SAME_KIND = {
    "dropped column": Loss(T, table("ops.t", "id bigint"), "ops.t.note", "column note", StepAction.EVOLVE),
    "values that may be turned down": Loss(
        T,
        table("ops.t", "id bigint", made("note int", "try_cast(note AS int)")),
        "ops.t.note",
        "values of note that are no int",
        StepAction.REWRITE,
    ),
    "renamed values that may be turned down": Loss(
        T,
        table("ops.t", "id bigint", made("remark string", "try_to_date(note)", name="note")),
        "ops.t.remark",
        "values of remark that are no string",
        StepAction.REWRITE,
    ),
    "dropped field": Loss(
        table("ops.t", "id bigint", "s struct<a:int,b:int>"),
        table("ops.t", "id bigint", "s struct<b:int,c:string>"),
        "ops.t.s.a",
        "field s.a",
        StepAction.EVOLVE,
    ),
    "field of an array that a rewrite drops": Loss(
        table("ops.t", "s array<struct<a:int,b:string>>"),
        table("ops.t", made("s array<struct<b:int>>", "transform(s, x -> named_struct('b', int(x.b)))")),
        "ops.t.s.a",
        "field s.a",
        StepAction.REWRITE,
    ),
    "narrower type": Loss(
        T,
        table("ops.t", made("id int", "CAST(id AS int)"), "note string"),
        "ops.t.id",
        "values of id that are no int",
        StepAction.REWRITE,
    ),
}
LOSSES = {
    **SAME_KIND,
    "removed table": Loss(T, None, "ops.t", "all rows", StepAction.REMOVE),
    "removed log": Loss(obj(Kind.LOG, "ops.t", "id bigint"), None, "ops.t", "all rows", StepAction.REMOVE),
    "removed source": Loss(
        obj(Kind.SOURCE, "ops.t", "id bigint", source={"a": 1}), None, "ops.t", "all rows", StepAction.REMOVE
    ),
    "table becomes a view": Loss(T, view("ops.t", "SELECT id FROM ops.base"), "ops.t", "all rows", StepAction.DROP),
    "table becomes a materialized view": Loss(
        T, mview("ops.t", "SELECT id FROM ops.base", "id bigint"), "ops.t", "all rows", StepAction.RECOMPUTE
    ),
}
every = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def lossy(found: Plan) -> list[tuple[StepAction, tuple[str, ...], tuple[str, ...]]]:
    return [(step.how, tuple(step.losses), tuple(step.losses.values())) for step in found.steps if step.losses]


@every
def test_nothing_is_done_before_the_loss_is_accepted_and_both_ways_are_said(loss: Loss) -> None:
    found = loss.plan()
    assert exit_code(found) == 1 and found.steps == ()
    assert [item.name for item in found.blocked] == ["ops.t"]
    (problem,) = problems(found)
    assert problem.partition(" would be lost")[0] in (loss.what, f"{loss.what} of {loss.name}")
    assert problem.endswith(
        f"accept that by a document {{kind: removed, name: {loss.name}}}, or for one deploy by accept_data_loss: "
        f"{loss.name}"
    )
    assert problem in render(found)
    assert summary(found)["data_loss"] == 1, "what nobody has accepted yet counts, too"


@every
def test_a_reviewed_document_or_the_name_on_the_command_line_accepts_it_and_the_last_line_counts_it(loss: Loss) -> None:
    catalog = loss.catalog()
    by_document = catalog.plan(loss.wanted(loss.name.upper()))
    by_name = catalog.plan(loss.wanted(), accept_data_loss={loss.name.upper()})
    for found in (by_document, by_name):
        assert lossy(found) == [(loss.step, (loss.name,), (loss.what,))]
        assert summary(found)["data_loss"] == 1 and render(found).endswith(" 1 data loss.")
        assert found.applicable and found.stale == found.warnings == ()
    catalog.apply(by_document)
    catalog.check()
    again = catalog.plan(loss.wanted(loss.name))
    assert (again.steps, set(again.stale) >= {loss.name}) == ((), True)


@every
def test_no_other_name_accepts_it(loss: Loss) -> None:
    other = "ops.t.note" if loss.name != "ops.t.note" else "ops.t"
    for name in (other, "ops.base", "t", f"{loss.name}s"):
        assert len(problems(loss.plan(accept_data_loss={name}))) == 1
        assert len(problems(loss.plan(name))) == 1


@every
def test_a_reason_is_overruled_by_no_acceptance_and_has_to_go_in_an_earlier_deploy(loss: Loss) -> None:
    """Rows 25 and 26."""
    for after in (REASON, True, False):
        found = loss.plan(loss.name, before=REASON, after=after, accept_data_loss={loss.name})
        (problem,) = problems(found)
        assert found.steps == () and f"would be lost, and it is kept: {REASON}. To lose it, deploy" in problem
    catalog = loss.catalog(REASON)
    catalog.deploy(spec("1.1", loss.before, *loss.rest))
    assert lossy(catalog.plan(loss.wanted(loss.name))) == [(loss.step, (loss.name,), (loss.what,))]


@every
def test_rows_that_may_be_made_again_need_no_acceptance_and_are_no_loss(loss: Loss) -> None:
    """Row 14, and its like for every change."""
    found = loss.plan(before=False, after=False)
    assert found.applicable and lossy(found) == [] and loss.step in {step.how for step in found.steps}
    assert render(found).endswith(" 0 data loss.")


@every
def test_that_rows_may_be_made_again_is_said_by_the_deploy_before(loss: Loss) -> None:
    assert "would be lost" in problems(loss.plan(before=True, after=False))[0]
    if loss in SAME_KIND.values():
        assert "would be lost" in problems(loss.plan(before=False, after=True))[0]


def test_a_reason_that_is_new_counts_at_once() -> None:
    drop = LOSSES["dropped column"]
    (problem,) = problems(drop.plan(after=REASON, accept_data_loss={drop.name}))
    assert problem.startswith(f"column note would be lost, and it is kept: {REASON}")


def test_each_loss_of_one_object_is_accepted_for_itself() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", "a bigint", "b string", "c string")))
    wanted = spec("2.0", table("ops.t", made("a int", "CAST(a AS int)")), removed=["ops.t.b"])
    found = catalog.plan(wanted, accept_data_loss={"ops.t.c"})
    assert [problem.split(" would")[0] for problem in problems(found)] == ["values of a that are no int"]
    found = catalog.plan(wanted, accept_data_loss={"ops.t.a", "ops.t.c"})
    assert tuple(found.steps[0].losses) == ("ops.t.b", "ops.t.c", "ops.t.a") and summary(found)["data_loss"] == 3
    assert "LOST: column b" in render(found)


def test_a_kept_column_is_no_loss_whatever_becomes_of_its_name_and_order() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", "a int", "b string", keep=REASON)))
    found = catalog.plan(spec("2.0", table("ops.t", "x string < b", "a bigint", "c int", keep=REASON)))
    assert found.applicable and lossy(found) == []


def test_a_column_that_goes_while_one_of_its_type_comes_is_asked_about_until_it_is_let_go() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", "finished_at timestamp")))
    wanted = spec("2.0", table("ops.t", "ended_at timestamp"))
    check_messages(problems(catalog.plan(wanted)))
    found = catalog.plan(wanted, accept_data_loss={"ops.t.finished_at"})
    assert did(found) == ["evolve ops.t"] and found.applicable


# Objects that go


def test_a_column_that_is_made_by_an_expression_is_no_other_one_under_a_new_name() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", table("ops.t", "id bigint", "a int", "b int")))
    wanted = table("ops.t", "id bigint", made("ab int!", "a + b"))
    assert not any("under a new name" in problem for problem in problems(catalog.plan(spec("2.0", wanted))))


def test_a_table_that_goes_while_one_like_it_comes_is_asked_about_with_its_id_to_paste() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T, table("ops.u", "x int")))
    came = table("ops.runs", "id bigint", "note string", "more int")
    found = catalog.plan(spec("2.0", came, table("ops.u", "x int")))
    check_messages(problems(found), f"write id: {T.id} there")
    (paste,) = found.blocked[0].paste
    assert paste in render(found)
    assert yaml.safe_load(paste) == {"id": str(T.id)} and "in ops.runs" in paste
    found = catalog.plan(spec("2.0", replace(came, id=T.id), table("ops.u", "x int")))
    assert did(found) == ["rename ops.t", "evolve ops.runs"] and found.applicable
    found = catalog.plan(spec("2.0", came, table("ops.u", "x int"), removed=["ops.t"]))
    assert did(found) == ["create ops.runs", "remove ops.t"] and found.applicable


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
    catalog = Catalog()
    catalog.deploy(spec("1.0", before, BASE))
    found = catalog.plan(spec("2.0", came, BASE))
    assert found.applicable is (asked is None)
    if asked is not None:
        hints = [problem for problem in problems(found) if "comes and is like it" in problem]
        assert len(hints) == asked
        assert any(item.startswith(f"id: {before.id}") for item in found.blocked[0].paste) is asked


def test_what_goes_and_is_like_nothing_comes_with_the_document_to_paste() -> None:
    """Row 15."""
    catalog = Catalog()
    objects = (T, BASE, view("ops.v", "SELECT id FROM ops.base"), sink("ops.k", "ops.base"))
    catalog.deploy(spec("1.0", *objects))
    found = catalog.plan(spec("2.0", BASE))
    pasted = [yaml.safe_load(line) for item in found.blocked for line in item.paste]
    assert pasted == [{"kind": "removed", "name": name} for name in ("ops.k", "ops.t", "ops.v")]
    found = catalog.plan(spec("2.0", BASE, removed=[item["name"] for item in pasted]))
    assert did(found) == ["remove ops.k", "remove ops.v", "remove ops.t"] and found.applicable
    assert [step.reason for step in found.steps] == ["no longer declared"] * 3
    # A view and a sink hold no rows: they may not go by accident, and nothing is lost with them.
    assert [tuple(step.losses) for step in found.steps] == [(), (), ("ops.t",)] and summary(found)["data_loss"] == 1
    said = {item.name: str(item.problems[0]) for item in catalog.plan(spec("2.0", BASE)).blocked}
    assert said["ops.v"] == said["ops.k"].replace("sink ops.k", "view ops.v").replace("ops.k", "ops.v")
    assert said["ops.v"] == (
        "the view ops.v would be lost: accept that by a document {kind: removed, name: ops.v}, "
        "or for one deploy by accept_data_loss: ops.v"
    )


def test_a_document_that_meets_nothing_is_a_note_and_no_permission_for_another_object() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T))
    found = catalog.plan(spec("1.0", T, removed=["ops.t.gone", "ops.old"]))
    assert found.stale == ("ops.old", "ops.t.gone") and exit_code(found) == 0
    assert "`was` and `removed` no longer needed here: ops.old, ops.t.gone; delete them" in render(found)


def test_a_removal_that_something_else_stops_is_neither_stale_nor_unneeded() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T))
    catalog.attach("bob.k", T.id)
    found = catalog.plan(spec("1.1", removed=["ops.t"]), accept_data_loss={"ops.t"})
    check_messages(problems(found))
    assert (found.stale, found.warnings, found.blocked[0].paste) == ((), (), ())


def test_a_column_that_a_hand_added_is_dropped_only_with_acceptance() -> None:
    catalog = Catalog()
    catalog.deploy(spec("1.0", T))
    catalog.edit("ops.t", columns=(*T.columns, column("x int")))
    found = catalog.plan(spec("1.0", T), drift="repair")
    check_messages(problems(found))
    found = catalog.plan(spec("1.0", T, removed=["ops.t.x"]), drift="repair")
    assert lossy(found) == [(StepAction.EVOLVE, ("ops.t.x",), ("column x",))]


def test_a_loss_that_an_unfinished_deploy_has_done_is_not_asked_about_again() -> None:
    catalog = LOSSES["dropped column"].catalog()
    wanted = LOSSES["dropped column"].wanted()
    catalog.apply(catalog.plan(wanted, accept_data_loss={"ops.t.note"}), until=1)
    assert catalog.plan(wanted).applicable


# Permissions


def test_there_is_no_word_for_all_objects() -> None:
    for name in ("accept_data_loss", "break_views", "adopt"):
        for word in ("*", "all", "ALL"):
            with raises(ConfigurationError):
                Catalog().plan(spec("1.0", T), **{name: {word}})
        with raises(ConfigurationError):
            Catalog().plan(spec("1.0", T), **{name: "ops.t"})
