"""Registry, journal, lease and garbage: one transaction each, and a token that keeps out whoever lost the lease."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

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
from tests.webhook_receiver import FakeClock

P = "ops"


def entry(name: str, uuid: str = "u1") -> Entry:
    return Entry(uuid, name, "table", name, "{}")


def write(store: ControlStore, base: int, *entries: Entry, forgotten: tuple[str, ...] = ()) -> int:
    def work(connection: Connection) -> int:
        return write_registry(connection, P, base, "1.0", "d", now=1, entries=entries, forgotten=forgotten)

    return store.run(work)


def recorded(store: ControlStore) -> list[tuple[str, str]]:
    with store.read() as connection:
        return [(stored.uuid, stored.name) for stored in read_registry(connection, P).entries]


def test_a_registry_is_written_on_top_of_the_revision_that_was_read(store: ControlStore) -> None:
    assert write(store, 0, entry("ops.a"), entry("ops.b", "u2")) == 1
    assert write(store, 1, entry("ops.c"), forgotten=("u2",)) == 2
    assert recorded(store) == [("u1", "ops.c")]
    for base in (0, 1, 3):
        with raises(StalePlanError):
            write(store, base, entry("ops.z"))
    assert recorded(store) == [("u1", "ops.c")]


def test_projects_do_not_see_each_other(store: ControlStore) -> None:
    write(store, 0, entry("ops.a"))
    with store.read() as connection:
        assert read_registry(connection, "other").revision == 0
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
    store: ControlStore, clock: FakeClock
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
    with store.read() as connection:
        assert lease_state(connection, LeaseKind.DEPLOY, P).holder is None


def test_giving_back_a_lost_lease_does_not_end_the_new_holders(store: ControlStore, clock: FakeClock) -> None:
    old = acquire(store, P, seconds=60)
    old.__enter__()
    clock.time += 61
    with acquire(store, P, holder="new"):
        old.__exit__(None, None, None)
        with store.read() as connection:
            assert lease_state(connection, LeaseKind.DEPLOY, P).holder == "new"


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


def opening(deploy_id: str, *names: str) -> NewDeploy:
    steps = [(number, f"u-{name}", name, "create") for number, name in enumerate(names, 1)]
    return NewDeploy(deploy_id, P, 0, None, "1.0", "hash", "{}", "ann", steps)


def begin(store: ControlStore, deploy_id: str, *names: str) -> None:
    store.run(lambda connection: deploys.open_deploy(connection, opening(deploy_id, *names), token=1, now=1))


def test_what_an_unfinished_deploy_began_is_known_until_another_one_finishes(store: ControlStore) -> None:
    begin(store, "d1", "a", "b", "c")
    store.run(lambda connection: deploys.start_step(connection, "d1", 1, token=1, now=2))
    store.run(lambda connection: deploys.end_step(connection, "d1", 1, StepState.DONE, now=3, evidence="{}"))
    store.run(lambda connection: deploys.start_step(connection, "d1", 2, token=1, now=4))
    with store.read() as connection:
        assert deploys.touched(connection, P) == {"u-a", "u-b"}
        assert [deploy.deploy_id for deploy in deploys.open_deploys(connection, P)] == ["d1"]
    begin(store, "d2", "z")
    with store.read() as connection:
        assert deploys.touched(connection, P) == {"u-a", "u-b"}
        assert [deploy.deploy_id for deploy in deploys.open_deploys(connection, P)] == ["d2"]
        assert deploys.unfinished_ids(connection, P) == {"d1", "d2"}

    def finish(connection: Connection) -> None:
        deploys.end_deploy(connection, "d2", DeployState.DONE, now=5, revision=1)
        deploys.abandon_others(connection, P, "d2")

    store.run(finish)
    with store.read() as connection:
        assert deploys.touched(connection, P) == frozenset() == deploys.unfinished_ids(connection, P)
        states = {deploy.deploy_id: deploy.state.value for deploy in deploys.history(connection, P)}
        assert states == {"d1": "abandoned", "d2": "done"}


def test_garbage_is_queued_once_and_a_failure_leaves_it_there(store: ControlStore) -> None:
    row = Garbage("ops.a__g12345678", "u1", "d1", "removed", 10)
    for moment in (1, 2):
        store.run(lambda connection, now=moment: deploys.queue(connection, P, row, now=now))  # type: ignore[misc]
    store.run(lambda connection: deploys.failed(connection, P, row.physical, "no room"))
    with store.read() as connection:
        found = deploys.queued(connection, P)
    assert [(table.queued_at, table.attempts, table.last_error) for table in found] == [(1, 1, "no room")]
    store.run(lambda connection: deploys.retract(connection, P, row.physical))
    with store.read() as connection:
        assert deploys.queued(connection, P) == ()
