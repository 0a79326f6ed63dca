"""A catalog on SQLite for each test, faults of its commits, and a server for a REST catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog


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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
