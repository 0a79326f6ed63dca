"""Where connections come from, and how they are written through Airflow's API, as far as that goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_rfr.connections.airflow import gateways
from airflow_provider_rfr.connections.airflow.gateways import AirflowApi, ApiGateway, DatabaseGateway
from airflow_provider_rfr.connections.airflow.lookup import as_connection, origin_of
from airflow_provider_rfr.connections.types import ContentHash, Definition
from airflow_provider_rfr.exceptions import (
    AlterationRefusedError,
    ConfigurationError,
    ConnectionConflictError,
    ConnectionRightsError,
    ConnectionShadowedError,
    ConnectionValidationError,
)
from airflow_provider_rfr.hooks.api import http_settings
from tests.loopback import LoopbackServer
from tests.unit.messages import raises
from tests.webhook_receiver import receiver, serve_tls, write_certificates

CANARY = "canary-0f77a1"
HASHES = ContentHash(b"key", "salt")
STORED = Definition("shop", "http", host="h", password=CANARY)
MOVED = replace(STORED, host="elsewhere")
TESTED = ["POST connections/enqueue-test", "GET connections/enqueue-test"]


class MetastoreBackend:
    """Airflow's database, with one connection."""

    stored = STORED

    def get_connection(self, conn_id: str) -> Any:
        return as_connection(self.stored)


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
    bodies: list[Any] = field(default_factory=list)
    meanwhile: Callable[[str], None] = lambda method: None

    def call(self, method: str, path: list[str], body: Any = None, **kwargs: Any) -> Any:
        self.calls.append(f"{method} {'/'.join(path)}")
        self.bodies.append(body)
        self.meanwhile(method)
        return SimpleNamespace(status_code=self.status, json=lambda: self.answers.pop(0))


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> MetastoreBackend:
    backend = MetastoreBackend()
    monkeypatch.setattr(gateways, "worker_backends", lambda: [backend])
    return backend


def test_a_password_that_the_api_would_leave_there_refuses_the_whole() -> None:
    api = Api([])
    gateway = ApiGateway(api, HASHES)  # type: ignore[arg-type]
    without = Definition("shop", "http", host="elsewhere")
    for commit in (gateway.commit, gateway.commit_tested):
        with raises(AlterationRefusedError):
            commit(HASHES.of(STORED), without)
    assert api.calls == []


@pytest.mark.parametrize("commit", [ApiGateway.commit, ApiGateway.commit_tested])
def test_nothing_is_sent_where_the_connection_is_not_what_was_read(commit: Callable[..., object]) -> None:
    api = Api([{}])
    with raises(ConnectionConflictError):
        commit(ApiGateway(api, HASHES), "another hash", MOVED)  # type: ignore[arg-type]
    assert api.calls == []


def test_settings_that_pass_airflows_own_test_are_stored_by_a_call_of_their_own(database: MetastoreBackend) -> None:
    def store(method: str) -> None:
        database.stored = MOVED if method == "PATCH" else STORED

    api = Api([{"token": "t"}, {"state": "success"}], meanwhile=store)
    assert ApiGateway(api, HASHES).commit_tested(HASHES.of(STORED), MOVED)  # type: ignore[arg-type]
    assert api.calls == [*TESTED, "PATCH connections/shop"]
    # Airflow would store them after a test of any length, over what somebody changed meanwhile.
    assert "commit_on_success" not in api.bodies[0]


@pytest.mark.parametrize(
    ("commit", "calls"), [(ApiGateway.commit, ["PATCH connections/shop"]), (ApiGateway.commit_tested, TESTED)]
)
def test_what_somebody_stores_meanwhile_is_a_conflict(
    database: MetastoreBackend, commit: Callable[..., object], calls: list[str]
) -> None:
    def edit(method: str) -> None:
        database.stored = replace(STORED, login="by-hand")

    api = Api([{"token": "t"}, {"state": "success"}], meanwhile=edit)
    with raises(ConnectionConflictError):
        commit(ApiGateway(api, HASHES), HASHES.of(STORED), MOVED)  # type: ignore[arg-type]
    assert api.calls == calls


def test_a_connection_is_deleted_where_it_is_what_was_read() -> None:
    api = Api([], status=204)
    ApiGateway(api, HASHES).drop(HASHES.of(STORED), STORED)  # type: ignore[arg-type]
    assert api.calls == ["DELETE connections/shop"]
    with pytest.raises(ConnectionConflictError):
        ApiGateway(api, HASHES).drop("another hash", STORED)  # type: ignore[arg-type]
    assert len(api.calls) == 1


@pytest.mark.parametrize(("status", "error"), [(403, ConnectionRightsError), (404, ConnectionConflictError)])
def test_airflow_may_refuse_to_delete_a_connection(status: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        ApiGateway(Api([], status=status), HASHES).drop(HASHES.of(STORED), STORED)  # type: ignore[arg-type]


@pytest.mark.parametrize("gateway", [ApiGateway(Api([]), HASHES), DatabaseGateway(HASHES)])  # type: ignore[arg-type]
def test_a_connection_of_a_secrets_backend_is_neither_renamed_nor_dropped(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "worker_backends", lambda: [Vault()])
    monkeypatch.setattr(gateways, "server_backends", lambda: [Vault()])
    with raises(ConnectionShadowedError):
        gateway.drop(HASHES.of(STORED), STORED)
    with raises(ConnectionShadowedError):
        gateway.rename(HASHES.of(STORED), STORED, "new")


def test_what_airflows_own_test_says_is_told_without_secrets() -> None:
    api = Api([{"token": "t"}, {"state": "failed", "result_message": f"GET /?key={CANARY} refused"}])
    gateway = ApiGateway(api, HASHES)  # type: ignore[arg-type]
    with raises(ConnectionValidationError):
        gateway.commit_tested(HASHES.of(STORED), STORED)


class Away:
    """A secrets backend that does not answer."""

    def get_connection(self, conn_id: str) -> None:
        raise TimeoutError(f"canary asked for {conn_id}")


class Empty:
    """One that has nothing."""

    def get_connection(self, conn_id: str) -> None:
        return None


def test_a_backend_that_cant_be_asked_leaves_it_open_which_connection_counts() -> None:
    assert origin_of("shop", [Empty()]) is None
    with raises(ConfigurationError) as caught:
        origin_of("shop", [Empty(), Away(), Empty()])
    assert "canary" not in str(caught.value)


Answer = tuple[int, dict[str, str], str]
TOKEN: Answer = (201, {}, json.dumps({"access_token": "t"}))


class Server(LoopbackServer):
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        super().__init__()

    def respond(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        self.asked.append(target)
        self.headers.append(headers)
        status, more, text = self.answers.get(target, (404, {}, ""))
        return status, text.encode(), more


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    made = Server()
    settings = {"conn_type": "rfr_http", "host": made.url, "login": "me", "password": "canary"}
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps(settings))

    def answering(**answers: Answer) -> Server:
        made.answers = {"/" + name.replace("__", "/"): answer for name, answer in answers.items()}
        return made

    yield answering
    made.close()


def test_what_is_sent_to_airflow_goes_nowhere_else(server: Callable[..., Server]) -> None:
    made = server(auth__token=TOKEN, api__v2__connections=(307, {"Location": "/elsewhere"}, ""))
    with raises(ConfigurationError):
        AirflowApi(None, http_settings).call("PATCH", ["connections"], {"password": "canary"})
    assert made.asked == ["/auth/token", "/api/v2/connections"]


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", "null"])
def test_what_is_not_airflow_is_told_in_a_line(server: Callable[..., Server], body: str) -> None:
    server(auth__token=(200, {}, body))
    assert not AirflowApi(None, http_settings).is_there()
    with raises(ConfigurationError):
        AirflowApi(None, http_settings).call("PATCH", ["connections"])


@pytest.mark.parametrize("conn_type", ["http", "generic"])
def test_other_types_that_name_an_address_serve_too(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    address = server(auth__token=TOKEN).url
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": conn_type, "host": address, "login": "me"}))
    assert AirflowApi("other", http_settings).is_there()


def test_headers_of_the_connection_are_sent_with_every_request(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server(auth__token=TOKEN, api__v2__connections=(200, {}, "{}"))
    settings = {"conn_type": "rfr_http", "host": made.url, "login": "me", "extra": {"X-Gateway": "key"}}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(settings))
    AirflowApi("other", http_settings).call("GET", ["connections"])
    assert [headers["X-Gateway"] for headers in made.headers] == ["key", "key"]
    assert made.headers[1]["Authorization"] == "Bearer t"


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_the_connection_names_the_certificates_to_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = write_certificates(tmp_path)
    with receiver() as api:
        serve_tls(api, certificates)
        settings = {"conn_type": "rfr_http", "host": f"https://localhost:{api.port}", "password": "canary"}
        for verify, code in ((True, None), (str(certificates / "ca.pem"), 200), ("false", 200)):
            monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({**settings, "extra": {"verify": verify}}))
            with raises(ConfigurationError) if code is None else nullcontext():
                assert AirflowApi("other", http_settings).call("GET", ["connections"]).status_code == code


def test_a_connection_that_names_no_address_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "postgres", "host": "db", "password": "canary"}))
    with raises(ConfigurationError):
        AirflowApi("other", http_settings).call("GET", ["connections"])
