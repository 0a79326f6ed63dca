"""Every kind of commit on catalogs behind proxies that forward it and lose its answer, or send it twice.

Rows are there once, every table can be read, the commit returns, and the next commit works.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from tests.integration.lossy_proxy import (
    FAULTS,
    LOST_THEN_REFUSED,
    LossyProxy,
    PostgresProxy,
    commits_to_glue,
    commits_to_rest,
)
from tests.integration.object_store import moto_server
from tests.integration.postgres import PostgresServer
from tests.integration.rest_catalog import rest_catalog
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
    folder = tmp_path_factory.mktemp("rest")
    with rest_catalog(folder) as server, LossyProxy(server.port, commits_to_rest) as proxy:
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
    with moto_server() as (_, port), LossyProxy(port, commits_to_glue) as proxy:
        yield proxy


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
    with closing(PostgresProxy(uri.port)) as proxy:
        address = uri.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        settings = LakeSettings("rfr", {"type": "sql", "uri": address, "warehouse": f"file://{tmp_path}/warehouse"})
        commit = kind.prepare(open_catalog(settings), name)
        proxy.armed = True
        commit()
        assert proxy.lost == 1
        kind.check(open_catalog(settings), name)
