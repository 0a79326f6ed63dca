"""Retired tables are deleted when their time has come, if they are ours and nothing needs them."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.builtins.maintenance import forget_objects, gc
from airflow_provider_rfr.builtins.model import MARKER
from airflow_provider_rfr.exceptions import BlockedPlanError
from airflow_provider_rfr.store.deploys import Garbage, queued
from tests.unit.builtins.catalogs import PROJECT, spec, table, view
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises

T = table("ops.t", "id bigint")


def waiting(place: Place) -> dict[str, Garbage]:
    with place.store.read() as connection:
        return {item.physical: item for item in queued(connection, PROJECT)}


def test_garbage_goes_when_its_time_has_come_and_only_if_it_is_ours(place: Place) -> None:
    loose = [table(f"ops.{name}", "id int", keep=False) for name in ("x", "y")]
    place.deploy(spec("1.0", T, *loose))
    place.append("ops.x", {"id": 1})
    done = place.deploy(spec("1.1", T))
    asides = [f"ops.{name}__g{done.deploy_id[:8]}" for name in ("x", "y")]
    early = gc(project=PROJECT, catalog=place.catalog, store=place.store)
    assert set(early.kept) == set(asides) and not early.deleted
    place.deploy(spec("1.2", T, *loose, view("ops.z", "SELECT 1 AS one")))
    done = place.deploy(spec("1.3", T, view("ops.z", "SELECT 1 AS one")), keep_days=0)
    asides = [f"ops.{name}__g{done.deploy_id[:8]}" for name in ("x", "y")]
    with place.catalog.load_table(asides[1]).transaction() as transaction:
        transaction.remove_properties(MARKER)
    found = gc(project=PROJECT, catalog=place.catalog, store=place.store)
    assert found.deleted == (asides[0],) and asides[0] not in place.tables()
    assert found.kept[asides[1]] == "it does not carry our marker" and asides[1] in place.tables()
    assert not gc(project=PROJECT, catalog=place.catalog, store=place.store).deleted
    assert place.plan(spec("1.3", T, view("ops.z", "SELECT 1 AS one"))).steps == ()


def test_garbage_that_can_not_be_deleted_stays_in_the_queue_and_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.deploy(spec("1.0", T, table("ops.x", "id int", keep=False)))
    done = place.deploy(spec("1.1", T), keep_days=0)
    aside = f"ops.x__g{done.deploy_id[:8]}"

    def refuse(name: str) -> None:
        raise OSError("no route to the store")

    with monkeypatch.context() as patch:
        patch.setattr(place.catalog, "purge_table", refuse)
        assert gc(project=PROJECT, catalog=place.catalog, store=place.store).failed == {aside: "OSError"}
    assert done.state == "done" and aside in place.tables()
    row = waiting(place)[aside]
    assert (row.attempts, row.last_error) == (1, "OSError")
    assert gc(project=PROJECT, catalog=place.catalog, store=place.store).deleted == (aside,)
    assert waiting(place) == {} and aside not in place.tables()


def test_a_view_that_somebody_dropped_can_be_forgotten(place: Place) -> None:
    place.deploy(spec("1.0", T, view("ops.v", "SELECT id FROM ops.t")))
    place.engine.drop_view("ops.v")
    forget_objects(["ops.v"], project=PROJECT, catalog=place.catalog, store=place.store, sql=place.engine)  # type: ignore[arg-type]
    assert place.plan(spec("1.0", T)).steps == ()


def test_garbage_is_what_somebody_accepted_to_lose(place: Place) -> None:
    """Nothing goes to where garbage is collected from before its loss is accepted."""
    place.deploy(spec("1.0", T, table("ops.x", "id int"), table("ops.y", "id int")))
    place.append("ops.x", {"id": 1})
    wanted = spec("1.1", T, view("ops.x", "SELECT 1 AS id"), removed=("ops.y",))
    with raises(BlockedPlanError):
        place.apply(place.plan(wanted, keep_days=0), wanted)
    assert not gc(project=PROJECT, catalog=place.catalog, store=place.store).deleted
    assert place.tables() == ["ops.t", "ops.x", "ops.y"] and place.rows("ops.x") == [{"id": 1}]
    done = place.deploy(wanted, keep_days=0, accept_data_loss=frozenset({"ops.x"}))
    deleted = gc(project=PROJECT, catalog=place.catalog, store=place.store).deleted
    assert sorted(deleted) == [f"ops.{name}__g{done.deploy_id[:8]}" for name in ("x", "y")]
