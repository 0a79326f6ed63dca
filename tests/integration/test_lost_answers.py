"""Every kind of commit on catalogs behind proxies that forward it and lose its answer, or send it twice.

Rows are there once, every table can be read, the commit returns, and the next commit works.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from moto.server import ThreadedMotoServer
from sqlalchemy.engine import make_url

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from tests.integration.lossy_proxy import (
    FAULTS,
    LOST_THEN_REFUSED,
    LossyProxy,
    commits_to_glue,
    commits_to_rest,
    lossy_postgres,
)
from tests.integration.postgres import PostgresServer
from tests.integration.rest_catalog import RestCatalogServer
from tests.strict_commits import KINDS, CommitKind

SHORT_WAIT = {"rfr.read-timeout": "5"}
IN_GATE = ("ledger: round", "target: replace", "history: append")


def marks_of(name: str, fault: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.gate] if fault in ("500", "twice") or name in IN_GATE else []


CASES = [
    pytest.param(kind, fault, id=f"{name}: {fault}", marks=marks_of(name, fault))
    for name, kind in KINDS.items()
    for fault in FAULTS
]


@pytest.fixture
def name() -> str:
    return f"raw.t{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LossyProxy]:
    with RestCatalogServer(tmp_path_factory.mktemp("rest")) as server:
        port = urlsplit(server.properties["uri"]).port
        assert port is not None
        with LossyProxy(port, commits_to_rest) as proxy:
            yield proxy


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_a_commit_to_a_rest_catalog(rest: LossyProxy, name: str, kind: CommitKind, fault: str) -> None:
    settings = LakeSettings("rfr", {"type": "rest", "uri": f"http://127.0.0.1:{rest.port}", **SHORT_WAIT})
    commit = kind.prepare(open_catalog(settings), name)
    rest.fault = fault
    commit()
    assert rest.fault is None
    kind.check(open_catalog(settings), name)


@pytest.fixture(scope="module")
def glue() -> Iterator[LossyProxy]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        with LossyProxy(port, commits_to_glue) as proxy:
            yield proxy
    finally:
        server.stop()


@pytest.mark.parametrize("fault", [pytest.param(LOST_THEN_REFUSED, marks=pytest.mark.gate), "reset", "half", "silent"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_commit_to_glue(glue: LossyProxy, tmp_path: Path, name: str, kind: CommitKind, fault: str) -> None:
    keys = {"glue.endpoint": f"http://127.0.0.1:{glue.port}", "glue.region": "us-east-1"}
    keys |= {"glue.access-key-id": "key", "glue.secret-access-key": "secret"}
    settings = LakeSettings("rfr", {"type": "glue", "warehouse": f"file://{tmp_path}/warehouse", **keys, **SHORT_WAIT})
    commit = kind.prepare(open_catalog(settings), name)
    before, glue.fault = glue.commits, fault
    commit()
    assert glue.fault is None
    assert glue.commits > before
    kind.check(open_catalog(settings), name)


@pytest.mark.gate
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_commit_to_postgresql(postgres: PostgresServer, tmp_path: Path, name: str, kind: CommitKind) -> None:
    uri = make_url(postgres.new_database())
    assert uri.port is not None
    with lossy_postgres(uri.port) as proxy:
        address = uri.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        settings = LakeSettings("rfr", {"type": "sql", "uri": address, "warehouse": f"file://{tmp_path}/warehouse"})
        commit = kind.prepare(open_catalog(settings), name)
        proxy.armed = True
        commit()
        assert proxy.lost == 1
        kind.check(open_catalog(settings), name)
