"""Connections of HTTP endpoints: webhooks, HTTP sinks and Airflow's own API use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_rfr.connections.airflow.lookup import masked
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.api import HttpHook, http_settings
from tests.unit.messages import raises
from tests.webhook_receiver import Receiver, receiver


def connect(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))


@pytest.fixture
def endpoint() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "https://hooks.example.com/x"}, "https://hooks.example.com/x"),
        ({"host": "hooks.example.com"}, "http://hooks.example.com"),
        ({"host": "hooks.example.com", "schema": "https", "port": 8443}, "https://hooks.example.com:8443"),
        ({"host": "https://hooks.example.com:8443", "port": 8443}, "https://hooks.example.com:8443"),
        ({"host": "https://hooks.example.com/services/x", "port": 8443}, "https://hooks.example.com:8443/services/x"),
        ({"host": "https://hooks.example.com/x/?sig=a:b", "port": 443}, "https://hooks.example.com:443/x/?sig=a:b"),
        ({"host": "https://[2001:db8::1]/x", "port": 8443}, "https://[2001:db8::1]:8443/x"),
        ({"host": "2001:db8::1", "port": 8443}, "http://[2001:db8::1]:8443"),
    ],
)
@pytest.mark.parametrize("conn_type", ["http", "generic"])
def test_an_http_connection_gives_the_address_as_airflow_s_own_hook_reads_it(
    monkeypatch: pytest.MonkeyPatch, conn_type: str, fields: dict[str, Any], url: str
) -> None:
    connect(monkeypatch, "hooks", conn_type=conn_type, **fields)
    assert http_settings("hooks").base_url == url


@pytest.mark.parametrize("conn_type", ["rfr_http", "rfr-http"])
def test_a_connection_of_our_own_type_uses_https_where_its_host_names_no_scheme(
    monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    connect(monkeypatch, "hooks", conn_type=conn_type, host="hooks.example.com/x")
    assert http_settings("hooks").base_url == "https://hooks.example.com/x"
    connect(monkeypatch, "hooks", conn_type=conn_type, host="http://hooks.example.com/x")
    assert http_settings("hooks").base_url == "http://hooks.example.com/x"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"host": "https://h:9000/canary", "port": 8443}, "host: names port 9000, and the field port is 8443"),
        ({"host": "javascript:alert('canary')"}, "host: is not a web address"),
        ({"host": "ftp://h/canary"}, "host: is not a web address"),
        ({"host": "https://me:canary@h"}, "host: holds credentials"),
    ],
)
@pytest.mark.parametrize("conn_type", ["http", "rfr_http"])
def test_what_is_no_address_is_refused_without_its_text(
    monkeypatch: pytest.MonkeyPatch, conn_type: str, fields: dict[str, Any], problem: str
) -> None:
    connect(monkeypatch, "hooks", conn_type=conn_type, **fields)
    with pytest.raises(ConfigurationError, match=problem) as refused:
        http_settings("hooks")
    assert "canary" not in str(refused.value)


def test_a_missing_connection_is_named_with_the_command_that_makes_it() -> None:
    with raises(ConfigurationError):
        http_settings("nobodys")


@pytest.mark.parametrize("conn_type", ["http", "rfr_http", "generic"])
def test_an_error_names_neither_the_path_of_an_address_nor_a_header(conn_type: str) -> None:
    hook = Definition("hook", conn_type, host="https://h/services/canary-31aa?sig=canary-31ab", extra={"jwt": "canary"})
    error = "Max retries exceeded with url: /services/canary-31aa?sig=canary-31ab (jwt: canary) at https://h"
    assert masked(error, hook) == "Max retries exceeded with url: ***?*** (jwt: ***) at https://h"


def test_a_short_header_spoils_no_error() -> None:
    hook = Definition("hook", "http", host="https://h/a", extra={"X-Version": "1", "X-Level": 2})
    assert masked("HTTP 412 after 1 of 2 attempts: /a", hook) == "HTTP 412 after 1 of 2 attempts: /a"


@pytest.mark.parametrize(
    ("status", "works"), [(204, True), (405, True), (501, True), (401, False), (403, False), (503, False)]
)
def test_the_test_button_sends_what_a_delivery_would(
    monkeypatch: pytest.MonkeyPatch, endpoint: Receiver, status: int, works: bool
) -> None:
    endpoint.answers(status)
    connect(
        monkeypatch, "hooks", conn_type="rfr_http", host=endpoint.url, password="canary-31aa", extra={"X-Team": "data"}
    )
    tested, message = HttpHook("hooks").test_connection()
    assert (tested, f"The endpoint answered {status} " in message) == (works, True), message
    assert "canary" not in message
    (request,) = endpoint.received
    assert (request.headers["authorization"], request.headers["x-team"]) == ("Bearer canary-31aa", "data")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"host": "http://127.0.0.1:1/canary-31aa"}, "no complete answer from http://127.0.0.1:1: Connection refused"),
        (
            {"host": "https://a", "extra": {"verify": "/no/such.pem"}},
            "connection: verify: '/no/such.pem' can't be read",
        ),
    ],
)
def test_the_test_button_says_why_nothing_was_answered(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], problem: str
) -> None:
    connect(monkeypatch, "hooks", conn_type="rfr_http", **fields)
    works, message = HttpHook("hooks").test_connection()
    assert not works
    assert problem in message
    assert "canary" not in message


def test_extra_fields_are_headers_but_for_the_options_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"X-Key": "canary-31aa", "verify": False, "timeout": 3, "X-Empty": ""}
    connect(monkeypatch, "hooks", conn_type="http", host="a", login="me", password="canary-31aa", extra=extra)
    settings = http_settings("hooks")
    assert dict(settings.headers) == {"X-Key": "canary-31aa"}
    assert (settings.login, settings.password) == ("me", "canary-31aa")
    assert "canary" not in repr(settings)


@pytest.mark.parametrize(
    ("extra", "verify"),
    [
        ({}, True),
        ({"verify": False}, False),
        ({"verify": "false"}, False),
        ({"verify": "/etc/ssl/company.pem"}, "/etc/ssl/company.pem"),
        ({"verify_ssl": False}, False),
    ],
)
def test_verify_is_read_as_airflow_s_own_hook_reads_it(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], verify: bool | str
) -> None:
    connect(monkeypatch, "hooks", conn_type="http", host="a", extra=extra)
    assert http_settings("hooks").verify == verify


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"extra": {"Transfer-Encoding": "chunked"}}, "header Transfer-Encoding: is set by the delivery itself"),
        ({"extra": {"Host": "evil"}}, "header Host: is set by the delivery itself"),
        ({"extra": {"webhook-signature": "v1,canary"}}, "header webhook-signature: is set by the delivery itself"),
        ({"extra": {"X-A": "1", "x-a": "2"}}, "header x-a: duplicate header"),
        ({"extra": {"X-A": "canary\r\nX-B: 1"}}, "header X-A: has a line break"),
        ({"extra": {"X A": "canary"}}, "is not a header name"),
        ({"password": "canary\n"}, "password: begins or ends|password: has a line break"),
        ({"extra": {"verify": 3}}, "verify: is neither true, false nor text"),
    ],
)
def test_headers_of_a_connection_are_checked_as_those_of_a_block(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], told: str
) -> None:
    connect(monkeypatch, "hooks", conn_type="http", host="a", **fields)
    with pytest.raises(ConfigurationError, match=told) as refused:
        http_settings("hooks")
    assert str(refused.value).startswith("connection hooks: ")
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"conn_type": "postgres", "host": "db"}, "is of type 'postgres'; make one of type 'rfr_http'"),
        ({"conn_type": "rfr_http"}, "host: is empty"),
    ],
)
def test_a_connection_without_an_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], problem: str
) -> None:
    connect(monkeypatch, "hooks", **fields)
    with pytest.raises(ConfigurationError, match=problem):
        http_settings("hooks")
