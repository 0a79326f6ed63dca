"""The loser of two deploys: it plans again where nobody approved its plan, and says that it waits."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_rfr.exceptions import BlockedPlanError, StalePlanError
from airflow_provider_rfr.store.leases import acquire
from tests.unit.builtins.catalogs import spec, table
from tests.unit.builtins.execution.places import Place
from tests.unit.messages import raises

ONE = spec("1.0", table("ops.t", "id int"))
TWO = spec("1.1", table("ops.t", "id int", "a string"))
THREE = spec("1.2", table("ops.t", "id int", "a string", "b string"))


def test_a_plan_that_nobody_approved_is_made_again_when_another_deploy_came_first(place: Place) -> None:
    place.deploy(ONE)
    slower = place.plan(THREE)
    place.deploy(TWO)
    done = place.apply(slower, THREE, replan=True)
    assert done.state == "done" and done.plan_hash != slower.plan_hash
    assert [step.how for step in done.steps] == ["evolve"]
    assert place.plan(THREE).steps == ()


def test_an_approved_plan_is_never_exchanged_for_another(place: Place) -> None:
    place.deploy(ONE)
    slower = place.plan(THREE)
    place.deploy(TWO)
    with raises(StalePlanError):
        place.apply(slower, THREE)
    assert [column.name for column in place.recorded("ops.t").columns] == ["id", "a"]


def test_a_plan_that_is_made_again_and_blocked_is_not_done(place: Place) -> None:
    place.deploy(ONE)
    older = place.plan(TWO)
    place.deploy(THREE)
    with raises(BlockedPlanError):
        place.apply(older, TWO, replan=True)


def test_a_deploy_that_waits_for_another_one_says_so_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.deploy(ONE)
    dead = acquire(place.store, ONE.project, holder="host:1", seconds=0.6)
    with caplog.at_level(logging.WARNING):
        place.apply(place.plan(TWO), TWO, patience=20.0, lease_seconds=0.6)
    said = [record.getMessage() for record in caplog.records if "waiting for it" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith(f"project {ONE.project} is being deployed by host:1: waiting for it")
    assert dead.token == 2
