"""Who uses which copy of which connection, and the lock and audit of alterations; on SQLite and on PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import Connection, event

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
    set_wanted_hash,
)
from airflow_provider_rfr.store.engine import ControlStore
from airflow_provider_rfr.store.leases import LeaseKind, take_lease
from tests.unit.store.conftest import Call

TASK = TaskRef("d", "r", "t")
MINUTE = 60_000


def register(call: Call, task: TaskRef = TASK, *names: str, at: int = 1) -> int:
    return call(register_use, at, task, "refresh", names or ("api", "lake"), {"a": 1})


def read(call: Call, token: int, **hashes: str) -> None:
    call(note_copies, TASK, token, [UsedConnection(name, name, value) for name, value in hashes.items()])


def test_what_is_wanted_while_the_task_reads_is_not_forgotten(call: Call) -> None:
    token = register(call)
    call(set_wanted_hash, [TASK], "api", "new")
    read(call, token, api="old", lake="same", tunnel="t")
    assert call(load_use, TASK).is_stale
    read(call, token, api="new", lake="same", tunnel="t")
    assert not call(load_use, TASK).is_stale


def test_a_later_start_takes_the_row_and_the_former_one_can_neither_end_nor_beat_it(call: Call) -> None:
    first, second = register(call), register(call)
    assert (first, second) == (1, 2)
    call(end_use, 5, TASK, first, FAILED, "late")
    assert call(beat, 5, TASK, first) is None
    read(call, first, api="of the former")
    use = call(load_use, TASK)
    assert (use.state, use.error, use.seen_at) == (RUNNING, None, 1)
    assert {copy.running for copy in use.connections} == {"unread"}


def test_any_number_of_uses_is_listed_with_few_parameters_a_statement(call: Call, store: ControlStore) -> None:
    most, uses = 0, [TaskRef("d", f"r{number:04}", "t") for number in range(600)]

    def count(_connection: Any, _cursor: Any, _statement: str, parameters: Any, *_more: Any) -> None:
        nonlocal most
        most = max(most, len(parameters))

    def fill(connection: Connection) -> None:
        for use in uses:
            register_use(connection, 1, use, "refresh", ["api"], {})

    call(fill)
    event.listen(store._engine, "before_cursor_execute", count)
    assert tasks(call) == uses
    found = call(list_uses, consumers=[use.consumer for use in reversed(uses)])
    assert [use.task for use in found] == uses
    assert {len(use.connections) for use in found} == {1}
    assert 0 < most <= 500, "SQLite takes no more than 32,766"


def tasks(call: Call) -> list[TaskRef]:
    return [use.task for use in call(list_uses)]


def test_uses_are_found_by_any_connection_and_those_of_ended_runs_make_place(call: Call) -> None:
    register(call)
    other, later = TaskRef("d", "r2", "other", 3), TaskRef("d", "later", "t")
    register(call, other, "shop")
    assert tasks(call) == [other, TASK]
    call(end_use, 5, TASK, None, IDLE)
    register(call, later)
    assert tasks(call) == [other, later]


def test_a_run_that_ended_well_takes_the_place_of_earlier_ones_that_failed(call: Call) -> None:
    failed, dead, later, newest = (TaskRef("d", run, "t") for run in ("failed", "dead", "later", "newest"))
    for task, at in ((failed, 1), (dead, 2), (later, 30 * MINUTE), (newest, 31 * MINUTE)):
        register(call, task, at=at)
    call(end_use, 5, failed, None, FAILED, "401")
    call(end_use, 32 * MINUTE, newest, None, FAILED, "401")
    call(end_use, 33 * MINUTE, later, None, IDLE)
    assert tasks(call) == [later, newest]


def test_of_many_at_once_one_gets_the_lease(call: Call) -> None:
    lease = (LeaseKind.CONNECTION, "api")
    with ThreadPoolExecutor(6) as pool:
        grants = list(pool.map(lambda number: call(take_lease, 1_000, *lease, str(number), 30_000), range(6)))
    assert len([grant for grant in grants if grant is not None]) == 1
    assert call(take_lease, 1_000, LeaseKind.CONNECTION, "other", "who", 30_000) is not None


def test_a_dead_ones_lease_ends_by_itself_and_its_row_is_found(call: Call) -> None:
    lease, late, later = (LeaseKind.CONNECTION, "api"), 30_001, 60_002
    first = call(take_lease, 0, *lease, "who", 30_000)
    row = call(audit.begin_alteration, 0, "api", "who", "text")
    assert call(first.renew, late - 1)
    assert call(take_lease, late, *lease, "next", 30_000) is None
    assert call(take_lease, later, *lease, "next", 30_000) is not None
    assert not call(first.renew, later)
    call(audit.begin_alteration, later, "other", "next", "text")
    assert [alteration.id for alteration in call(audit.open_alterations, "api")] == [row]


def test_the_last_change_of_an_option_is_one_that_was_stored(call: Call) -> None:
    for now, state in ((10, AlterationState.APPLIED), (20, AlterationState.STORED), (30, AlterationState.REFUSED)):
        row = call(audit.begin_alteration, now, "api", "who", "text")
        call(audit.note_alteration, now, row, state, options={"host": {}})
    assert [call(audit.last_change, "api", "host", 0, until) for until in (5, 15, 40)] == [None, 10, 20]
    assert call(audit.last_change, "api", "port", 0, 40) is None
    assert call(audit.last_change, "api", "host", 21, 40) is None


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


def test_the_installations_salt_is_made_once(call: Call) -> None:
    assert call(audit.installation_salt) == call(audit.installation_salt)
