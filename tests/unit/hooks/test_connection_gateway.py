"""Connections written through Airflow's API, as far as that goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.connections.airflow import gateways
from airflow_provider_rfr.connections.airflow.gateways import ApiGateway, DatabaseGateway
from airflow_provider_rfr.connections.airflow.lookup import as_connection
from airflow_provider_rfr.connections.types import ContentHash, Definition
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    ConnectionConflictError,
    ConnectionRightsError,
    ConnectionShadowedError,
    ConnectionValidationError,
)
from tests.unit.messages import raises

CANARY = "canary-0f77a1"
HASHES = ContentHash(b"key", "salt")
STORED = Definition("shop", "http", host="h", password=CANARY)


class MetastoreBackend:
    """Airflow's database, with one connection."""

    def get_connection(self, conn_id: str) -> Any:
        return as_connection(STORED)


class Vault(MetastoreBackend):
    """A secrets backend that can be written."""

    def set_conn_value(self, conn_id: str, value: str) -> None:
        raise AssertionError("nothing is written")


@dataclass
class Api:
    """Answers each call with the next answer, and remembers the calls."""

    answers: list[Any]
    calls: list[str] = field(default_factory=list)
    status: int = 200

    def call(self, method: str, path: list[str], *args: Any, **kwargs: Any) -> Any:
        self.calls.append(f"{method} {'/'.join(path)}")
        return SimpleNamespace(status_code=self.status, json=lambda: self.answers.pop(0))


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "worker_backends", lambda: [MetastoreBackend()])


def test_a_password_that_the_api_would_leave_there_refuses_the_whole() -> None:
    api = Api([])
    gateway = ApiGateway(api)  # type: ignore[arg-type]
    without = Definition("shop", "http", host="elsewhere")
    for commit in (gateway.commit, gateway.commit_tested):
        with raises(AlterationRefusedError):
            commit(HASHES.of(STORED), HASHES, without)
    assert api.calls == []


def test_a_connection_is_deleted_where_it_is_what_was_read() -> None:
    api = Api([], status=204)
    ApiGateway(api).drop(HASHES.of(STORED), HASHES, STORED)  # type: ignore[arg-type]
    assert api.calls == ["DELETE connections/shop"]
    with pytest.raises(ConnectionConflictError):
        ApiGateway(api).drop("another hash", HASHES, STORED)  # type: ignore[arg-type]
    assert len(api.calls) == 1


@pytest.mark.parametrize(("status", "error"), [(403, ConnectionRightsError), (404, ConnectionConflictError)])
def test_airflow_may_refuse_to_delete_a_connection(status: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        ApiGateway(Api([], status=status)).drop(HASHES.of(STORED), HASHES, STORED)  # type: ignore[arg-type]


@pytest.mark.parametrize("gateway", [ApiGateway(Api([])), DatabaseGateway()])  # type: ignore[arg-type]
def test_a_connection_of_a_secrets_backend_is_neither_renamed_nor_dropped(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "worker_backends", lambda: [Vault()])
    monkeypatch.setattr(gateways, "server_backends", lambda: [Vault()])
    with raises(ConnectionShadowedError):
        gateway.drop(HASHES.of(STORED), HASHES, STORED)
    with raises(ConnectionShadowedError):
        gateway.rename(HASHES.of(STORED), HASHES, STORED, "new")


def test_what_airflows_own_test_says_is_told_without_secrets() -> None:
    api = Api([{"token": "t"}, {"state": "failed", "result_message": f"GET /?key={CANARY} refused"}])
    gateway = ApiGateway(api)  # type: ignore[arg-type]
    with raises(ConnectionValidationError):
        gateway.commit_tested(HASHES.of(STORED), HASHES, STORED)
