"""The same tests on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.store.engine import ControlStore, open_store
from tests.integration.postgres import PostgresServer
from tests.webhook_receiver import FakeClock


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/control.db"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def store(store_url: str, clock: FakeClock) -> Iterator[ControlStore]:
    opened = open_store(store_url, clock=clock)
    yield opened
    opened.close()


Call = Callable[..., Any]


@pytest.fixture
def call(store: ControlStore) -> Call:
    """Call a function of the store's modules in a transaction of its own, with these arguments."""

    def call(work: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        return store.run(lambda connection: work(connection, *arguments, **more))

    return call
