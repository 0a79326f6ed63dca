"""A catalog on SQLite for each test, faults of its commits, and a server for a REST catalog."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from tests.loopback import LoopbackServer


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    return LakeSettings("rfr", properties)


@pytest.fixture
def catalog(settings: LakeSettings) -> SqlCatalog:
    catalog = open_catalog(settings)
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace("raw")
    return catalog


def once(monkeypatch: pytest.MonkeyPatch, catalog: Catalog, fault: Callable[..., Any]) -> None:
    """Send the next commit through ``fault``, which gets the catalog's own method before its arguments."""
    method = type(catalog).commit_table

    def faulty(*arguments: Any) -> Any:
        monkeypatch.setattr(type(catalog), "commit_table", method)
        return fault(method, *arguments)

    monkeypatch.setattr(type(catalog), "commit_table", faulty)


def repeated(method: Callable[..., Any], *arguments: Any) -> Any:
    """Do the commit, and return the answer to its repeat."""
    method(*arguments)
    return method(*arguments)


@contextmanager
def rest_server(answer: Callable[[str], Any]) -> Iterator[str]:
    """Serve what the function returns for a path, as JSON; yield the server's address."""

    class Server(LoopbackServer):
        def respond(self, method: str, target: str, headers: object, body: bytes) -> tuple[int, bytes, dict[str, str]]:
            return 200, json.dumps(answer(target)).encode(), {}

    server = Server()
    yield server.url
    server.close()
