"""Endpoints behind a company's own certificate authority, by everything that calls them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_rfr.operators import CommitWebhookOperator, WebhookOperationOperator
from tests.unit.cli.calls import rfr
from tests.unit.messages import raises
from tests.unit.triggers.lake import Lake
from tests.webhook_receiver import Receiver, Reply, receiver, serve_tls, write_certificates

BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def trusts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "localhost")
    for name in BUNDLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(certificates: Path) -> Iterator[Receiver]:
    with receiver() as server:
        serve_tls(server, certificates)
        yield server


def connect(monkeypatch: pytest.MonkeyPatch, server: Receiver, **fields: Any) -> dict[str, Any]:
    """A block whose endpoint is the connection ``hooks``."""
    connection = {"conn_type": "http", "host": f"https://localhost:{server.port}", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_HOOKS", json.dumps(connection))
    return {"config": {"hook": {"connection": "hooks", "payload": {"n": 1}, "maxAttempts": 1}}}


def deliver(triggers: Any) -> dict[str, int]:
    task = CommitWebhookOperator(task_id="deliver", triggers=triggers, lake_conn_id="lake", target="raw.orders")
    return task.execute({})


def test_the_extra_field_verify_of_a_connection_names_the_authority(
    lake: Lake, secure: Receiver, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish("raw.orders")
    unknown = deliver(connect(monkeypatch, secure))
    assert (unknown["dead"], secure.received) == (1, [])
    lake.publish("raw.orders")
    block = connect(monkeypatch, secure, extra={"verify": str(certificates / "ca.pem")})
    assert deliver(block)["delivered"] == 1
    assert "verify" not in secure.received[0].headers
    lake.publish("raw.orders")
    assert deliver(connect(monkeypatch, secure, extra={"verify": False}))["delivered"] == 1


@pytest.mark.parametrize("variable", BUNDLES[:3])
def test_the_environment_names_the_authority_for_an_endpoint_with_an_address(
    lake: Lake, secure: Receiver, certificates: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    lake.publish("raw.orders")
    monkeypatch.setenv(variable, str(certificates / "ca.pem"))
    block = {"config": {"hook": {"url": f"https://localhost:{secure.port}/", "payload": {"n": 1}}}}
    assert deliver(block)["delivered"] == 1


def test_a_token_is_fetched_from_the_same_authority_s_server(
    lake: Lake, secure: Receiver, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish("raw.orders")
    secure.answers(Reply(201, b'{"access_token": "t-1234"}'), 200)
    block = connect(monkeypatch, secure, login="me", password="p", extra={"verify": str(certificates / "ca.pem")})
    block["config"]["hook"] = {"connection": "hooks", "preset": "airflow-dag-run", "with": {"dagId": "d"}}
    assert deliver(block)["delivered"] == 1
    assert [request.path for request in secure.received] == ["/auth/token", "/api/v2/dags/d/dagRuns"]


def test_the_command_line_and_the_form_call_it_too(
    lake: Lake, secure: Receiver, certificates: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    block = connect(monkeypatch, secure, extra={"verify": str(certificates / "ca.pem")})
    (tmp_path / "triggers.json").write_text(json.dumps(block))
    assert rfr("triggers", "test-fire", tmp_path / "triggers.json", "hook") == 0
    tried = WebhookOperationOperator(task_id="try", action="test_fire", endpoint=block["config"]["hook"])
    assert tried.execute({})["delivered"]
    assert len(secure.received) == 2


def test_a_bundle_that_is_not_there_is_named(
    lake: Lake, secure: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lake.publish("raw.orders")
    block = connect(monkeypatch, secure)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    with raises(AirflowFailException):
        deliver(block)
