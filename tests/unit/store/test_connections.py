"""Who uses which copy of which connection, and the lock and audit of alterations; on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading

from airflow_provider_rfr.store import connection_audit as audit
from airflow_provider_rfr.store.connections import (
    IDLE,
    RUNNING,
    STALLED,
    TaskRef,
    UsedConnection,
    beat,
    end_use,
    list_uses,
    load_use,
    note_copies,
    register_use,
    want,
)
from airflow_provider_rfr.store.engine import ControlStore
from tests.webhook_receiver import FakeClock

TASK = TaskRef("d", "r", "t")


def register(store: ControlStore, task: TaskRef = TASK, *names: str) -> int:
    conn_ids = names or ("api", "lake")
    return store.run(lambda connection: register_use(connection, 1, task, "refresh", conn_ids, {"a": 1})).token


def read(store: ControlStore, token: int, **hashes: str) -> None:
    copies = [UsedConnection(name, name, value) for name, value in hashes.items()]
    store.run(lambda connection: note_copies(connection, TASK, token, copies))


def is_stale(store: ControlStore, task: TaskRef = TASK) -> bool:
    with store.read() as connection:
        found = load_use(connection, task)
    assert found is not None
    return found.is_stale


def test_what_is_wanted_while_the_task_reads_is_not_forgotten(store: ControlStore) -> None:
    token = register(store)
    store.run(lambda connection: want(connection, [TASK], "api", "new"))
    read(store, token, api="old", lake="same", tunnel="t")
    assert is_stale(store)
    read(store, token, api="new", lake="same", tunnel="t")
    assert not is_stale(store)


def test_a_later_start_takes_the_row_and_the_former_one_can_neither_end_nor_beat_it(store: ControlStore) -> None:
    first, second = register(store), register(store)
    assert (first, second) == (1, 2)
    store.run(lambda connection: end_use(connection, 5, TASK, first, STALLED, "late"))
    assert store.run(lambda connection: beat(connection, 5, TASK, first)) is None
    read(store, first, api="of the former")
    with store.read() as connection:
        found = load_use(connection, TASK)
    assert found is not None
    assert (found.state, found.error, found.seen_at) == (RUNNING, None, 1)
    assert {each.running for each in found.connections} == {"unread"}


def test_uses_are_found_by_any_connection_and_those_of_ended_runs_make_place(store: ControlStore) -> None:
    register(store)
    other = TaskRef("d", "r2", "other", 3)
    register(store, other, "shop")
    with store.read() as connection:
        assert [use.task for use in list_uses(connection, conn_ids=["lake"])] == [TASK]
        assert [use.task for use in list_uses(connection)] == [other, TASK]
    store.run(lambda connection: end_use(connection, 5, TASK, None, IDLE))
    later = TaskRef("d", "later", "t")
    register(store, later)
    with store.read() as connection:
        assert [use.task for use in list_uses(connection)] == [other, later]


def test_a_run_that_ended_well_takes_the_place_of_earlier_ones_that_failed(store: ControlStore) -> None:
    failed, dead, later, newest = (TaskRef("d", run, "t") for run in ("failed", "dead", "later", "newest"))
    minute = 60_000

    def begin(task: TaskRef, at: int) -> None:
        store.run(lambda connection: register_use(connection, at, task, "refresh", ["api"], {}))

    for task, at in ((failed, 1), (dead, 2), (later, 30 * minute), (newest, 31 * minute)):
        begin(task, at)
    store.run(lambda connection: end_use(connection, 5, failed, None, STALLED, "401"))
    store.run(lambda connection: end_use(connection, 32 * minute, newest, None, STALLED, "401"))
    store.run(lambda connection: end_use(connection, 33 * minute, later, None, IDLE))
    with store.read() as connection:
        assert [use.task for use in list_uses(connection)] == [later, newest]


def test_of_many_at_once_one_gets_the_lock(store: ControlStore) -> None:
    won: list[int | None] = []

    def begin(name: str) -> None:
        won.append(
            store.run(lambda connection: audit.begin_alteration(connection, 1_000, "api", name, "ALTER CONNECTION api"))
        )

    threads = [threading.Thread(target=begin, args=(str(number),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([each for each in won if each is not None]) == 1
    assert store.run(lambda connection: audit.begin_alteration(connection, 1_000, "other", "who", "")) is not None


def test_a_dead_ones_lock_ends_with_its_lease_and_its_row_is_found(store: ControlStore, clock: FakeClock) -> None:
    first = store.run(lambda connection: audit.begin_alteration(connection, 0, "api", "who", "text"))
    assert first is not None
    late = audit.LEASE_SECONDS * 1000 + 1
    assert store.run(lambda connection: audit.holds(connection, late - 1, first))
    assert store.run(lambda connection: audit.begin_alteration(connection, late, "api", "next", "text")) is None
    later = 2 * late
    assert not store.run(lambda connection: audit.holds(connection, later, first))
    assert store.run(lambda connection: audit.begin_alteration(connection, later, "api", "next", "text")) is not None
    with store.read() as connection:
        assert [row.id for row in audit.interrupted(connection, later, "api")] == [first]


def test_notes_of_a_connection_follow_it(store: ControlStore) -> None:
    def note(connection: object) -> None:
        audit.note_secret_references(connection, "api", {"password": "env:A"})  # type: ignore[arg-type]
        audit.note_identity(connection, 1, "api", "hash")  # type: ignore[arg-type]
        audit.note_move(connection, "api", "new", [{"host": "one"}])  # type: ignore[arg-type]
        audit.note_move(connection, "api", "other", [{"host": "two"}])  # type: ignore[arg-type]
        audit.keep_move(connection, "api", "new")  # type: ignore[arg-type]
        audit.rename_notes(connection, "api", "shop")  # type: ignore[arg-type]

    store.run(note)
    with store.read() as connection:
        assert audit.secret_references(connection, "shop") == {"password": "env:A"}
        assert audit.identity_of(connection, "shop") == "hash"
        assert audit.moves_of(connection, "shop", "new") == [{"host": "one"}]
        assert audit.moves_of(connection, "shop", "other") == []


def test_what_a_former_connection_of_that_name_left_behind_goes(store: ControlStore) -> None:
    def note(connection: object) -> None:
        for name in ("shop", "api"):
            audit.note_secret_references(connection, name, {"password": f"env:{name}"})  # type: ignore[arg-type]
            audit.note_identity(connection, 1, name, name)  # type: ignore[arg-type]
            audit.note_move(connection, name, "hash", [{"host": name}])  # type: ignore[arg-type]
        audit.rename_notes(connection, "api", "shop")  # type: ignore[arg-type]

    store.run(note)
    with store.read() as connection:
        assert audit.secret_references(connection, "shop") == {"password": "env:api"}
        assert audit.identity_of(connection, "shop") == "api"


def test_the_installations_salt_is_made_once(store: ControlStore) -> None:
    assert store.run(audit.installation_salt) == store.run(audit.installation_salt)
