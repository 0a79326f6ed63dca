"""Registry, journal, lease and garbage: one transaction each, and a token that keeps out whoever lost the lease."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.exceptions import DeployBusyError, LeaseLostError, StalePlanError
from airflow_provider_rfr.store import deploys
from airflow_provider_rfr.store.deploys import (
    DeployState,
    Entry,
    Garbage,
    NewDeploy,
    StepState,
    read_registry,
    write_registry,
)
from airflow_provider_rfr.store.engine import ControlStore, open_store
from airflow_provider_rfr.store.leases import LeaseKind, acquire, force_unlock, lease_state
from tests.soon import wait_until
from tests.unit.messages import raises
from tests.unit.store.conftest import Call
from tests.webhook_receiver import FakeClock

P = "ops"


def entry(name: str, uuid: str = "u1") -> Entry:
    return Entry(uuid, name, "table", name, "{}")


def write(call: Call, base: int, *entries: Entry, forgotten: tuple[str, ...] = ()) -> int:
    return call(write_registry, P, base, "1.0", "d", now=1, entries=entries, forgotten=forgotten)


def test_a_registry_is_written_on_top_of_the_revision_that_was_read(call: Call) -> None:
    assert write(call, 0, entry("ops.a"), entry("ops.b", "u2")) == 1
    assert write(call, 1, entry("ops.c"), forgotten=("u2",)) == 2
    assert call(read_registry, P).entries == (entry("ops.c"),)
    for base in (0, 1, 3):
        with raises(StalePlanError):
            write(call, base, entry("ops.z"))
    assert call(read_registry, P).entries == (entry("ops.c"),)


def test_projects_do_not_see_each_other(store: ControlStore, call: Call) -> None:
    write(call, 0, entry("ops.a"))
    assert call(read_registry, "other").revision == 0
    with acquire(store, P), acquire(store, "other") as theirs:
        assert theirs.token == 1


def test_a_lease_is_held_by_one_and_its_token_goes_up(store: ControlStore) -> None:
    with acquire(store, P, holder="ann") as mine:
        with raises(DeployBusyError):
            acquire(store, P)
        mine.ensure()
    with acquire(store, P) as next_one:
        assert (mine.token, next_one.token) == (1, 2)


def test_a_lease_that_ran_out_is_taken_over_and_the_old_holder_writes_nothing(
    store: ControlStore, call: Call, clock: FakeClock
) -> None:
    with acquire(store, P, seconds=60) as old:
        clock.time += 61
        old.ensure()
        with acquire(store, P) as new:
            assert new.token == 2
            written: list[int] = []
            for attempt in (old.ensure, lambda: old.write(lambda connection, now: written.append(now))):
                with raises(LeaseLostError):
                    attempt()
            assert not written
            new.write(lambda connection, now: written.append(now))
            assert len(written) == 1
    assert call(lease_state, LeaseKind.DEPLOY, P).holder is None


def test_giving_back_a_lost_lease_does_not_end_the_new_holders(
    store: ControlStore, call: Call, clock: FakeClock
) -> None:
    old = acquire(store, P, seconds=60)
    old.__enter__()
    clock.time += 61
    with acquire(store, P, holder="new"):
        old.__exit__(None, None, None)
        assert call(lease_state, LeaseKind.DEPLOY, P).holder == "new"


def test_a_lease_is_prolonged_while_its_holder_lives(store_url: str) -> None:
    store = open_store(store_url)

    def until() -> int:
        with store.read() as connection:
            return lease_state(connection, LeaseKind.DEPLOY, P).until or 0

    with acquire(store, P, seconds=2.0) as lease:
        first = until()
        wait_until(lambda: until() > first)
        lease.ensure()


def test_a_lease_is_taken_away_by_its_token_alone(store: ControlStore) -> None:
    with acquire(store, P) as mine:
        with pytest.raises(LeaseLostError):
            force_unlock(store, P, 7)
        mine.ensure()
        force_unlock(store, P, mine.token)
        with pytest.raises(LeaseLostError):
            mine.ensure()
        with acquire(store, P) as other:
            assert other.token == 3
    with pytest.raises(LeaseLostError):
        force_unlock(store, "never", 1)


def begin(call: Call, deploy_id: str, *names: str) -> None:
    steps = [(number, f"u-{name}", name, "create") for number, name in enumerate(names, 1)]
    deploy = NewDeploy(deploy_id, P, 0, None, "1.0", "hash", "{}", "ann", steps)
    call(deploys.open_deploy, deploy, token=1, now=1)


def test_what_an_unfinished_deploy_began_is_known_until_another_one_finishes(call: Call) -> None:
    def unfinished() -> tuple[set[str], list[str]]:
        """Return the objects that unfinished deploys touched, and the open deploys."""
        return set(call(deploys.touched, P)), [deploy.deploy_id for deploy in call(deploys.open_deploys, P)]

    begin(call, "d1", "a", "b", "c")
    call(deploys.start_step, "d1", 1, token=1, now=2)
    call(deploys.end_step, "d1", 1, StepState.DONE, now=3, evidence="{}")
    call(deploys.start_step, "d1", 2, token=1, now=4)
    assert unfinished() == ({"u-a", "u-b"}, ["d1"])
    begin(call, "d2", "z")
    assert unfinished() == ({"u-a", "u-b"}, ["d2"])
    assert call(deploys.unfinished_ids, P) == {"d1", "d2"}
    call(deploys.end_deploy, "d2", DeployState.DONE, now=5, revision=1)
    call(deploys.end_deploy, "d2", DeployState.FAILED, now=6, error="the answer to the commit was lost")
    call(deploys.abandon_others, P, "d2")
    assert unfinished() == (set(), [])
    assert call(deploys.unfinished_ids, P) == frozenset()
    assert {deploy.deploy_id: deploy.state for deploy in call(deploys.history, P)} == {"d1": "abandoned", "d2": "done"}


def test_a_deploy_is_found_by_an_actor_with_a_long_name(call: Call) -> None:
    actors = [f"{'d' * 250} manual__{number} deploy" for number in (1, 2)]
    for actor in actors:
        deploy = NewDeploy(actor[-8:], P, 0, None, "1.0", "hash", "{}", actor, [])
        call(deploys.open_deploy, deploy, token=1, now=1)
        call(deploys.end_deploy, deploy.deploy_id, DeployState.DONE, now=2)
    own = [call(deploys.done_by, P, actor) for actor in actors]
    assert [[deploy.deploy_id for deploy in found] for found in own] == [["1 deploy"], ["2 deploy"]]


def test_garbage_is_queued_once_and_a_failure_leaves_it_there(call: Call) -> None:
    row = Garbage("ops.a__g12345678", "u1", "d1", "removed", 10)
    for moment in (1, 2):
        call(deploys.queue, P, row, now=moment)
    call(deploys.failed, P, row.physical, "no room")
    (queued,) = call(deploys.queued, P)
    assert (queued.queued_at, queued.attempts, queued.last_error) == (1, 1, "no room")
    call(deploys.dequeue, P, row.physical)
    assert call(deploys.queued, P) == ()
