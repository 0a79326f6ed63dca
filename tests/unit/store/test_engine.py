"""Opening the control store: by many at once, killed in between, in any state."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select, text

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.store.engine import find_store, open_store
from airflow_provider_rfr.store.tables import METADATA, SCHEMA_VERSION, SETTINGS
from tests.soon import SOON, soon
from tests.unit.messages import raises

OPENER = """
import sys, time
from airflow_provider_rfr.store.engine import open_store
print("ready", flush=True)
moment = float(sys.stdin.readline())
while time.time() < moment:
    pass
store = open_store(sys.argv[1])
with store.read() as connection:
    print(store.now(connection) > 0, flush=True)
"""
HALF_WAY = """
import os, signal, sys
from sqlalchemy import event
from airflow_provider_rfr.store import engine
make = engine._new_engine
def dying(address):
    made = make(address)
    seen = [0]
    def count(connection, cursor, statement, *rest):
        seen[0] += statement.lstrip().startswith("CREATE TABLE")
        if seen[0] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    event.listen(made, "before_cursor_execute", count)
    return made
engine._new_engine = dying
engine.open_store(sys.argv[1])
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/control.db"


def tables(folder: Path) -> set[str]:
    with sqlite3.connect(folder / "control.db") as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def set_version(folder: Path, version: object) -> None:
    with closing(sqlite3.connect(folder / "control.db")) as connection, connection:
        connection.execute(f"UPDATE rfr_settings SET value = '{version}' WHERE name = 'schema'")


def test_many_processes_open_a_new_store_at_the_same_moment(url: str, tmp_path: Path) -> None:
    openers = [
        subprocess.Popen([sys.executable, "-c", OPENER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    assert all(opener.stdout.readline() == "ready\n" for opener in openers)
    moment = time.time() + 0.3
    outputs = [opener.communicate(f"{moment}\n", timeout=60)[0] for opener in openers]
    assert outputs == ["True\n"] * 5
    assert tables(tmp_path) >= set(METADATA.tables)


def test_a_kill_half_way_through_leaves_a_store_that_the_next_one_makes_whole(url: str, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", HALF_WAY, url], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    assert not tables(tmp_path)
    open_store(url)
    assert tables(tmp_path) >= set(METADATA.tables)


def test_readers_never_wait_for_a_writer(url: str) -> None:
    store = open_store(url)
    writing, done = threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        connection.execute(insert(SETTINGS).values(name="half", value="way"))
        writing.set()
        assert done.wait(SOON)

    thread = threading.Thread(target=store.run, args=(work,))
    thread.start()
    assert writing.wait(SOON)
    with store.read() as connection:
        assert connection.execute(select(SETTINGS.c.name)).scalars().all() == ["schema"]
    assert thread.is_alive(), "it was read when the writer had ended"
    done.set()
    thread.join()
    with store.read() as connection:
        assert set(connection.execute(select(SETTINGS.c.name)).scalars()) == {"schema", "half"}


def test_a_store_that_somebody_locked_is_waited_for(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    other = sqlite3.connect(tmp_path / "control.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(1.0, lambda: other.execute("COMMIT")).start()
    began = time.monotonic()
    store.run(lambda connection: connection.execute(insert(SETTINGS).values(name="late", value="1")))
    assert time.monotonic() - began > 0.5
    other.close()


def test_a_forked_process_uses_a_connection_of_its_own(url: str) -> None:
    store = open_store(url)
    with store.read() as connection:
        connection.execute(text("SELECT 1"))
    pid = os.fork()
    if pid == 0:
        try:
            store.run(lambda connection: connection.execute(insert(SETTINGS).values(name="child", value="1")))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    with store.read() as connection:
        assert "child" in connection.execute(select(SETTINGS.c.name)).scalars().all()


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (99, f"it has version 99 of the tables, this package knows {SCHEMA_VERSION}; upgrade this package"),
        (1, f"it has version 1 of the tables, this package knows {SCHEMA_VERSION}; name a database without tables of"),
        ("x", "the version of its tables can't be read; name a database without tables of this package"),
    ],
)
@pytest.mark.parametrize("opened", [open_store, find_store])
def test_a_store_of_another_version_is_refused(
    url: str, tmp_path: Path, opened: Callable[[str], object], version: object, problem: str
) -> None:
    open_store(url).close()
    set_version(tmp_path, version)
    with pytest.raises(ConfigurationError, match=problem):
        opened(url)


def test_a_store_is_found_where_it_was_made_and_none_is_made_to_find_it(url: str, tmp_path: Path) -> None:
    assert find_store(url) is None
    assert not tables(tmp_path)
    open_store(url).close()
    found = find_store(url)
    assert found is not None
    found.close()


def test_a_store_that_is_refused_is_not_changed_and_finding_one_waits_for_no_writer(url: str, tmp_path: Path) -> None:
    open_store(url).close()
    file = tmp_path / "control.db"
    set_version(tmp_path, 1)
    with sqlite3.connect(file) as connection:
        # As a restored copy may be.
        connection.execute("PRAGMA journal_mode = DELETE")
    before = file.read_bytes()
    for opened in (find_store, open_store):
        with raises(ConfigurationError):
            opened(url)
    assert file.read_bytes() == before
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    # And not: the database is locked.
    with raises(ConfigurationError):
        find_store(url)
    writer.close()


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("mysql://u:hunter22@h/d", "mysql is not supported"),
        ("hunter22 is not a URL", "its URL can't be read"),
        ("sqlite://", "a store in memory"),
        ("sqlite:///:memory:", "a store in memory"),
        ("sqlite:////nowhere/at/all/hunter22.db", "unable to open database file"),
        ("postgresql+asyncpg2://u:hunter22@h/d", "the driver asyncpg2 is not installed"),
        ("sqlite://hunter22/rfr.db", "its URL can't be read"),
        ("sqlite:////data/rfr.db?timeout=hunter22", "its URL can't be read"),
        ("sqlite+aiosqlite:////data/hunter22.db", "the driver aiosqlite is for asynchronous programs"),
        ("postgresql+psycopg2://u@h:hunter22/d", "its URL can't be read"),
        ("postgresql+psycopg2://u:start@hunter22@h/d", "an @ in its user or password; write it as %40"),
        ("postgresql+psycopg2://u:hunter22@h\0/d", "its address holds a null character"),
        ("sqlite:////data/hunter22\0.db", "its address holds a null character"),
        ("postgresql+psycopg2://u:hunter22@127.0.0.1:1/d", "can't be opened"),
    ],
)
def test_an_address_that_can_t_work_is_refused_without_its_password(address: str, problem: str) -> None:
    with soon(), pytest.raises(ConfigurationError, match=problem) as caught:
        open_store(address)
    assert "hunter22" not in str(caught.value)
    assert caught.value.retryable == (":1/" in address)


def test_the_store_shows_no_address(url: str) -> None:
    assert repr(open_store(url)) == "ControlStore(sqlite)"


def test_two_threads_and_two_processes_write_without_an_error(url: str) -> None:
    open_store(url)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(url, number)) for number in range(2)]
    for process in processes:
        process.start()
    threads = [threading.Thread(target=write_many, args=(url, number)) for number in (2, 3)]
    for thread in threads:
        thread.start()
    for worker in (*threads, *processes):
        worker.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    with open_store(url).read() as connection:
        assert len(connection.execute(select(SETTINGS.c.name)).all()) == 1 + 4 * 25


def write_many(url: str, writer: int) -> None:
    store = open_store(url)
    for number in range(25):
        wanted = insert(SETTINGS).values(name=f"{writer}-{number}", value="")
        store.run(partial(Connection.execute, statement=wanted))
