"""A PostgreSQL behind a proxy that stops forwarding: the network still acknowledges, and no answer ever comes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, create_engine, func, insert, make_url, select, text
from sqlalchemy.exc import OperationalError

from airflow_provider_rfr.exceptions import CatalogError
from airflow_provider_rfr.lake.catalog import Catalog, LakeSettings, open_catalog
from airflow_provider_rfr.lake.ledger_table import LedgerTable
from airflow_provider_rfr.refresh.ledger import Ledger
from airflow_provider_rfr.store.engine import _is_committed, _may_help, open_store
from airflow_provider_rfr.store.tables import SETTINGS
from airflow_provider_rfr.timeouts import limit_waits
from tests.integration.postgres import PostgresServer
from tests.soon import soon
from tests.unit.messages import raises


class Proxy:
    """Forwards to a port of this machine until it is silenced.

    :ivar forwards: False: nothing is forwarded, on any connection
    :ivar last: the connection that sends this next is silent from then on; what it sent is forwarded
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.forwards = True
        self.last: bytes | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._server.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            silent = threading.Event()
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, target, silent), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
        try:
            while data := source.recv(65536):
                was_silent = silent.is_set()
                if self.last is not None and self.last in data:
                    self.last = None
                    silent.set()
                if self.forwards and not was_silent:
                    target.sendall(data)
            target.close()
        except OSError:
            return


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(postgres.port)
    yield proxy
    proxy.close()


def through(proxy: Proxy, database: str, **query: str) -> str:
    address = make_url(database).set(port=proxy.port).update_query_dict({"connect_timeout": "2", **query})
    return address.render_as_string(hide_password=False)


def catalog_through(proxy: Proxy, postgres: PostgresServer, folder: Path, seconds: str) -> Catalog:
    properties = {"type": "sql", "uri": through(proxy, postgres.new_database()), "warehouse": f"file://{folder}"}
    return open_catalog(LakeSettings("rfr", {**properties, "rfr.read-timeout": seconds}))


def test_a_catalog_whose_database_falls_silent_is_named(postgres: PostgresServer, proxy: Proxy, tmp_path: Path) -> None:
    catalog = catalog_through(proxy, postgres, tmp_path, "0.5")
    catalog.create_namespace("raw")
    proxy.forwards = False
    with soon(), raises(CatalogError):
        catalog.list_tables("raw")
    proxy.forwards = True
    assert catalog.list_tables("raw") == []


def test_a_commit_of_the_ledger_that_gets_no_answer_is_found_when_the_table_is_loaded_again(
    postgres: PostgresServer, proxy: Proxy, tmp_path: Path
) -> None:
    catalog = catalog_through(proxy, postgres, tmp_path, "2")
    ledger = Ledger(LedgerTable.load_or_create(catalog, "raw.t"))
    ledger.open_generation([("{}", {})], read_fingerprint="r", publish_fingerprint="p", run_key=None)
    proxy.last = b"COMMIT"
    with soon():
        ledger.commit([], rounds=1)
    assert proxy.last is None, "no answer was lost"
    again = Ledger(LedgerTable.load_or_create(catalog, "raw.t"))
    assert (again.held.rounds, again.held.epoch) == (1, 1)


def test_a_commit_that_gets_no_answer_ends(postgres: PostgresServer, proxy: Proxy) -> None:
    engine = create_engine(through(proxy, postgres.new_database(), tcp_user_timeout="500"))
    limit_waits(engine)

    def commit() -> None:
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE committed (number int)"))
            proxy.forwards = False

    with soon(), raises(OperationalError):
        commit()
    proxy.forwards = True
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_whose_commit_gets_no_answer_is_committed_once(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    store = open_store(postgres.new_database())
    dialect: Any = store._engine.dialect
    commit, lost = dialect.do_commit, [dialect.dbapi.OperationalError("server closed the connection unexpectedly")]

    def lose_answer(connection: Any) -> None:
        if lost and not is_committed:
            connection.rollback()
            raise lost.pop()
        commit(connection)
        if lost:
            raise lost.pop()

    def count(connection: Connection) -> int:
        connection.execute(insert(SETTINGS).values(name=f"row {uuid4()}", value=""))
        return connection.execute(select(func.count()).select_from(SETTINGS)).scalar_one()

    before = store.run(count)
    monkeypatch.setattr(dialect, "do_commit", lose_answer)
    assert store.run(count) == before + 1 and not lost
    assert store.run(count) == before + 2
    store.close()


def test_a_commit_that_is_still_in_progress_is_waited_for(postgres: PostgresServer) -> None:
    store = open_store(postgres.new_database())
    with store._engine.connect() as other, store.read() as connection:
        number = other.execute(text("SELECT txid_current()")).scalar_one()
        with pytest.raises(OperationalError) as caught:
            _is_committed(connection, number)
        assert _may_help(caught.value)
        other.commit()
        assert _is_committed(connection, number)
        assert not _is_committed(connection, number + 1_000_000), "of a server that crashed and lost it"
    store.close()


def test_a_control_store_whose_database_falls_silent_raises_an_error(postgres: PostgresServer, proxy: Proxy) -> None:
    store = open_store(through(proxy, postgres.new_database(), tcp_user_timeout="500"))
    proxy.forwards = False
    with soon(), pytest.raises(OperationalError), store.read() as connection:
        connection.execute(text("SELECT 1"))
    proxy.forwards = True
    with store.read() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    store.close()


def test_what_the_network_shows_is_limited_by_default_and_the_address_takes_precedence(
    postgres: PostgresServer,
) -> None:
    def options(**query: str) -> tuple[int, int]:
        address = make_url(postgres.url()).update_query_dict(query)
        engine = create_engine(address)
        limit_waits(engine)
        with engine.connect() as connection, socket.socket(fileno=os.dup(connection.connection.fileno())) as connected:
            found = (
                connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            )
        engine.dispose()
        return found

    assert options() == (60_000, 30)
    assert options(tcp_user_timeout="7000", keepalives_idle="5") == (7_000, 5)
