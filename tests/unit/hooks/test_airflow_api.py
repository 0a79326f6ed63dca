"""Airflow's own API, as a task that alters connections calls it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_provider_rfr.connections.airflow.gateways import AirflowApi
from airflow_provider_rfr.exceptions import ConfigurationError
from tests.unit.messages import raises

Answer = tuple[int, dict[str, str], str]
TOKEN: Answer = (201, {}, json.dumps({"access_token": "t"}))


class Server(ThreadingHTTPServer):
    """Answers as it is told, and remembers what it was asked."""

    answers: dict[str, Answer]
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self.path)
        status, headers, body = self.server.answers.get(self.path, (404, {}, ""))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    do_PATCH = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    made = Server(("127.0.0.1", 0), Handler)
    made.asked = []
    threading.Thread(target=made.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{made.server_port}"
    settings = {"conn_type": "rfr_http", "host": address, "login": "me", "password": "canary"}
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps(settings))

    def answering(**answers: Answer) -> Server:
        made.answers = {"/" + name.replace("__", "/"): answer for name, answer in answers.items()}
        return made

    yield answering
    made.shutdown()
    made.server_close()


def test_what_is_sent_to_airflow_goes_nowhere_else(server: Callable[..., Server]) -> None:
    made = server(auth__token=TOKEN, api__v2__connections=(307, {"Location": "/elsewhere"}, ""))
    with raises(ConfigurationError):
        AirflowApi().call("PATCH", ["connections"], {"password": "canary"})
    assert made.asked == ["/auth/token", "/api/v2/connections"]


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", "null"])
def test_what_is_not_airflow_is_told_in_a_line(server: Callable[..., Server], body: str) -> None:
    server(auth__token=(200, {}, body))
    assert not AirflowApi().is_there()
    with raises(ConfigurationError):
        AirflowApi().call("PATCH", ["connections"])


@pytest.mark.parametrize("conn_type", ["http", "generic"])
def test_other_types_that_name_an_address_serve_too(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    address = f"http://127.0.0.1:{server(auth__token=TOKEN).server_port}"
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": conn_type, "host": address, "login": "me"}))
    assert AirflowApi("other").is_there()


def test_a_connection_that_names_no_address_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "postgres", "host": "db", "password": "canary"}))
    with raises(ConfigurationError):
        AirflowApi("other").call("GET", ["connections"])
