"""Who uses which copy of which connection, and the lock and audit of alterations; on SQLite and on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Connection

from airflow_provider_rfr.store import connections as audit
from airflow_provider_rfr.store.connections import (
    FAILED,
    IDLE,
    RUNNING,
    AlterationState,
    ConnectionNotes,
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
from airflow_provider_rfr.store.leases import Grant, LeaseKind, take_lease

TASK = TaskRef("d", "r", "t")


def register(store: ControlStore, task: TaskRef = TASK, *names: str) -> int:
    conn_ids = names or ("api", "lake")
    return store.run(lambda connection: register_use(connection, 1, task, "refresh", conn_ids, {"a": 1}))


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
    store.run(lambda connection: end_use(connection, 5, TASK, first, FAILED, "late"))
    assert store.run(lambda connection: beat(connection, 5, TASK, first)) is None
    read(store, first, api="of the former")
    with store.read() as connection:
        found = load_use(connection, TASK)
    assert found is not None
    assert (found.state, found.error, found.seen_at) == (RUNNING, None, 1)
    assert {copy.running for copy in found.connections} == {"unread"}


def test_uses_are_found_by_any_connection_and_those_of_ended_runs_make_place(store: ControlStore) -> None:
    register(store)
    other = TaskRef("d", "r2", "other", 3)
    register(store, other, "shop")
    with store.read() as connection:
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
    store.run(lambda connection: end_use(connection, 5, failed, None, FAILED, "401"))
    store.run(lambda connection: end_use(connection, 32 * minute, newest, None, FAILED, "401"))
    store.run(lambda connection: end_use(connection, 33 * minute, later, None, IDLE))
    with store.read() as connection:
        assert [use.task for use in list_uses(connection)] == [later, newest]


def lease(store: ControlStore, now: int, holder: str, name: str = "api") -> Grant | None:
    return store.run(lambda connection: take_lease(connection, now, LeaseKind.CONNECTION, name, holder, 30_000))


def test_of_many_at_once_one_gets_the_lease(store: ControlStore) -> None:
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda number: lease(store, 1_000, str(number)), range(6)))
    assert len([grant for grant in won if grant is not None]) == 1
    assert lease(store, 1_000, "who", "other") is not None


def test_a_dead_ones_lease_ends_by_itself_and_its_row_is_found(store: ControlStore) -> None:
    first = lease(store, 0, "who")
    assert first is not None
    row = store.run(lambda connection: audit.begin_alteration(connection, 0, "api", "who", "text"))
    late = 30_001
    assert store.run(lambda connection: first.renew(connection, late - 1))
    assert lease(store, late, "next") is None
    later = 2 * late
    assert lease(store, later, "next") is not None
    assert not store.run(lambda connection: first.renew(connection, later))
    store.run(lambda connection: audit.begin_alteration(connection, later, "other", "next", "text"))
    with store.read() as connection:
        assert [alteration.id for alteration in audit.open_alterations(connection, "api")] == [row]


def test_the_last_change_of_an_option_is_one_that_was_stored(store: ControlStore) -> None:
    def note(connection: Connection) -> None:
        for now, state in ((10, AlterationState.APPLIED), (20, AlterationState.STORED), (30, AlterationState.REFUSED)):
            row = audit.begin_alteration(connection, now, "api", "who", "text")
            audit.note_alteration(connection, now, row, state, options={"host": {}})

    store.run(note)
    with store.read() as connection:
        found = [audit.last_change(connection, "api", "host", 0, until) for until in (5, 15, 40)]
        assert found == [None, 10, 20]
        assert audit.last_change(connection, "api", "port", 0, 40) is None
        assert audit.last_change(connection, "api", "host", 21, 40) is None


def test_notes_of_a_connection_follow_it_and_replace_those_of_a_former_one(store: ControlStore) -> None:
    def note(connection: Connection) -> None:
        former = ConnectionNotes(connection, "shop")
        former.set_secret_references({"password": "env:B"})
        former.set_identity(1, "former")
        former.set_former_places("new", [{"host": "former"}])
        notes = ConnectionNotes(connection, "api")
        notes.set_secret_references({"password": "env:A"})
        notes.set_identity(1, "hash")
        notes.set_former_places("new", [{"host": "one"}])
        notes.set_former_places("other", [{"host": "two"}])
        notes.keep_former_places("new")
        notes.rename("shop")

    store.run(note)
    with store.read() as connection:
        shop = ConnectionNotes(connection, "shop")
        assert shop.secret_references() == {"password": "env:A"}
        assert shop.identity() == "hash"
        assert shop.former_places("new") == [{"host": "one"}]
        assert shop.former_places("other") == []


def test_the_installations_salt_is_made_once(store: ControlStore) -> None:
    assert store.run(audit.installation_salt) == store.run(audit.installation_salt)
