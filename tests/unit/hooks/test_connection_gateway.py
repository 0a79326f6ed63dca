"""Connections written through Airflow's API, as far as that goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.connections.types import ContentHash, Definition
from airflow_provider_rfr.exceptions import AlterationRefusedError, ConnectionValidationError
from airflow_provider_rfr.hooks import connection_gateways
from airflow_provider_rfr.hooks._connection_sources import as_connection
from airflow_provider_rfr.hooks.connection_gateways import ApiGateway

CANARY = "canary-0f77a1"
HASHES = ContentHash(b"key", "salt")
STORED = Definition("shop", "http", host="h", password=CANARY)


class MetastoreBackend:
    """Airflow's database, with one connection."""

    def get_connection(self, conn_id: str) -> Any:
        return as_connection(STORED)


@dataclass
class Api:
    """Answers each call with the next answer, and remembers the calls."""

    answers: list[Any]
    calls: list[str] = field(default_factory=list)

    def call(self, method: str, path: list[str], *args: Any, **kwargs: Any) -> Any:
        self.calls.append(method)
        return SimpleNamespace(status_code=200, json=lambda: self.answers.pop(0))


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_gateways, "worker_backends", lambda: [MetastoreBackend()])


def test_a_password_that_the_api_would_leave_there_refuses_the_whole() -> None:
    api = Api([])
    gateway = ApiGateway(api)  # type: ignore[arg-type]
    without = Definition("shop", "http", host="elsewhere")
    for commit in (gateway.commit, gateway.commit_tested):
        with pytest.raises(AlterationRefusedError, match="password: can't be removed through Airflow's API"):
            commit(HASHES.of(STORED), HASHES, without)
    assert api.calls == []


def test_what_airflows_own_test_says_is_told_without_secrets() -> None:
    api = Api([{"token": "t"}, {"state": "failed", "result_message": f"GET /?key={CANARY} refused"}])
    gateway = ApiGateway(api)  # type: ignore[arg-type]
    with pytest.raises(ConnectionValidationError, match=r"GET /\?key=\*\*\* refused"):
        gateway.commit_tested(HASHES.of(STORED), HASHES, STORED)
