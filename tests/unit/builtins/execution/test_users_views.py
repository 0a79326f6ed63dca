"""What a deploy does to views of users: they get their own text again, and do not become ours."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from airflow_provider_rfr.builtins.model import BROKEN
from airflow_provider_rfr.exceptions import BlockedPlanError, StepError
from airflow_provider_rfr.lake.tables import LiveColumn, find_view
from tests.kill_points import meanwhile
from tests.unit.builtins.catalogs import spec, table
from tests.unit.builtins.execution.places import Place, told
from tests.unit.messages import check_messages, raises


def test_a_users_view_is_rebound_and_does_not_become_ours(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id int")))
    place.engine.create_view("bob.daily", "SELECT id FROM ops.t", {"team": "b", "comment": "mine"})
    place.engine.calls.clear()
    done = place.settle(spec("1.1", table("ops.t", "id bigint")))
    assert told(done) == [("bridge", "bob.daily"), ("evolve", "ops.t"), ("rebind", "bob.daily")]
    found = next(view for view in place.engine.views(place.catalog))
    assert dict(found.properties) == {"team": "b", "comment": "mine"}
    assert found.query == "SELECT id FROM ops.t"
    assert place.engine.calls == [*["create_view bob.daily"] * 2, "set_view_properties bob.daily"]


@pytest.mark.parametrize(("owner", "moment"), [("engine", "analyse"), ("catalog", "commit_table")])
def test_a_users_view_that_is_edited_or_dropped_during_a_deploy_stays_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, owner: str, moment: str
) -> None:
    place.deploy(spec("1.0", table("ops.t", "id int")))
    for name in ("bob.daily", "bob.gone"):
        place.engine.create_view(name, "SELECT id FROM ops.t", {"team": "b"})
    edited, wanted = "SELECT id FROM ops.t LIMIT 1", spec("1.1", table("ops.t", "id bigint"))

    def edit() -> None:
        place.engine.drop_view("bob.gone")
        view = find_view(place.catalog, "bob.daily")
        assert view is not None
        # Some catalogs keep the properties of a view that is replaced, those of a bridge too.
        place.engine.create_view("bob.daily", edited, view.properties)

    plan = place.plan(wanted)
    meanwhile(monkeypatch, getattr(place, owner), moment, edit)
    with raises(StepError):
        place.apply(plan, wanted)
    assert [(view.name, view.query) for view in place.engine.views(place.catalog)] == [("bob.daily", edited)]
    place.settle(wanted)
    [view] = place.engine.views(place.catalog)
    assert (view.query, dict(view.properties)) == (edited, {"team": "b"})


def test_a_users_view_that_is_mended_during_the_deploy_that_breaks_it_is_not_marked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy(spec("1.0", table("ops.t", "id int", "n int")))
    place.engine.create_view("bob.daily", "SELECT n FROM ops.t", {})
    wanted, mended = spec("1.1", table("ops.t", "id int", "number int < n")), "SELECT number AS n FROM ops.t"
    plan = place.plan(wanted, break_views=frozenset({"bob.daily"}))
    mend = partial(place.engine.create_view, "bob.daily", mended, {})
    meanwhile(monkeypatch, place.catalog, "commit_table", mend)
    with raises(StepError):
        place.apply(plan, wanted)
    place.settle(wanted)
    assert [(view.query, view.properties) for view in place.engine.views(place.catalog)] == [(mended, {})]


def test_a_users_star_is_written_out_with_what_it_shows_before_its_columns_move(place: Place) -> None:
    place.deploy(spec("1.0", table("ops.t", "id int", "n int"), table("ops.u", "id int", "k int")))
    place.engine.create_view("bob.star", "SELECT t.* FROM lake.ops.t t", {})
    place.engine.create_view("bob.more", "SELECT *, 1 AS one FROM ops.t", {})
    place.engine.create_view("bob.both", "SELECT * FROM ops.t JOIN ops.u USING (id)", {})
    place.engine.create_view("bob.unlike", "SELECT DISTINCT * FROM ops.t", {})
    place.engine.create_view("bob.count", "SELECT count(*) AS n FROM ops.t", {})
    place.catalog.create_namespace("mine")
    place.catalog.create_table("mine.u", pa.schema([("id", pa.int32())]))
    place.engine.create_view("bob.own", "SELECT * FROM mine.u", {})
    wider = table("ops.u", "id int", "k int")
    done = place.settle(spec("1.1", table("ops.t", "id int", "n int", "m string"), wider))
    assert told(done) == [*(("rebind", f"bob.{item}") for item in ("both", "more", "unlike")), ("evolve", "ops.t")]
    done = place.settle(spec("1.2", table("ops.t", "m string", "id int", "n int"), wider))
    assert told(done) == [("rebind", "bob.star"), ("evolve", "ops.t")]
    assert {view.name: view.query for view in place.engine.views(place.catalog)} == {
        "bob.both": "SELECT id, t.n, u.k FROM ops.t JOIN ops.u USING (id)",
        "bob.count": "SELECT count(*) AS n FROM ops.t",
        "bob.more": "SELECT id, n, 1 AS one FROM ops.t",
        "bob.own": "SELECT * FROM mine.u",
        "bob.star": "SELECT t.id, t.n, t.m FROM lake.ops.t t",
        "bob.unlike": "SELECT DISTINCT id, n FROM ops.t",
    }


def test_a_star_is_written_out_without_what_came_since_its_view_was_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy(spec("1.0", table("ops.t", "id int", "n int")))
    shown = (LiveColumn("id", "int"), LiveColumn("n", "int"))
    monkeypatch.setattr(place.engine, "shown", lambda sql, columns: shown)
    place.engine.create_view("bob.star", "SELECT * FROM ops.t", {})
    assert told(place.settle(spec("1.1", table("ops.t", "id int", "n int", "m string")))) == [("evolve", "ops.t")]
    place.settle(spec("1.2", table("ops.t", "n int", "m string", "id int")))
    assert [view.query for view in place.engine.views(place.catalog)] == ["SELECT id, n FROM ops.t"]


def test_a_users_view_that_is_let_break_says_so_until_somebody_mends_it(place: Place) -> None:
    """Nothing else of it is touched, and another one that breaks still stops the deploy."""
    place.deploy(spec("1.0", table("ops.t", "id int", "n int")))
    for name in ("bob.daily", "bob.other"):
        place.engine.create_view(name, "SELECT n FROM ops.t", {"team": "b", "comment": "mine"})
    wanted = spec("1.1", table("ops.t", "id int", "number int < n"))
    with raises(BlockedPlanError):
        place.apply(place.plan(wanted, break_views=frozenset({"bob.daily"})), wanted)
    place.engine.drop_view("bob.other")
    done = place.settle(wanted, break_views=frozenset({"bob.daily"}))
    assert told(done) == [("evolve", "ops.t"), ("mark_broken", "bob.daily")]
    [broken] = place.engine.views(place.catalog)
    properties, why = dict(broken.properties), "reads ops.t.n, which is called number now"
    assert properties.pop(BROKEN).endswith(why)
    assert (broken.query, properties) == ("SELECT n FROM ops.t", {"team": "b", "comment": "mine"})
    check_messages(place.plan(wanted).warnings)
    place.engine.create_view("bob.daily", "SELECT number AS n FROM ops.t", broken.properties)
    assert place.plan(wanted).warnings == (), "though the catalog keeps properties of a view that is replaced"
