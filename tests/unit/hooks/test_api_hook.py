"""Connections of APIs, and of HTTP endpoints: webhooks, HTTP sinks and Airflow's own API use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_rfr.connections.airflow.lookup import masked
from airflow_provider_rfr.connections.types import Definition
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.api import ApiHook, HttpHook, http_settings, source_settings
from airflow_provider_rfr.sample_api import SampleApi, Sizes
from tests.unit.messages import raises
from tests.webhook_receiver import Receiver, receiver


def api(**fields: Any) -> Connection:
    extra = fields.pop("extra", None)
    return Connection(conn_id="shop", conn_type="rfr_api", extra=json.dumps(extra) if extra else None, **fields)


SECRET = {"client_secret": "a", "refresh_token": "b", "x-api-key": "c", "private_key_id": "d", "pat": "e", "key": "f"}


@pytest.mark.parametrize(
    ("fields", "config", "secrets"),
    [
        (
            {"host": "https://api.example.com/v1", "login": "me", "password": "s3cret"},
            {"base_url": "https://api.example.com/v1", "login": "me", "username": "me", "client_id": "me"},
            {"password": "s3cret", "token": "s3cret", "api_key": "s3cret"},
        ),
        # An extra field is secret if its name says so, or if it is below the field secrets.
        ({"extra": {**SECRET, "page_size": 500}}, {"page_size": 500}, SECRET),
        ({"extra": {"tenant": "shown", "secrets": {"tenant": "hidden"}}}, {}, {"tenant": "hidden"}),
        # A form's field gives text, and null or empty text where it is empty.
        ({"extra": {"secrets": '{"pin": "1234"}'}}, {}, {"pin": "1234"}),
        ({"extra": {"client_secret": "", "region": None}}, {}, {}),
    ],
)
def test_fields_of_a_connection_are_settings_of_a_source(
    fields: dict[str, Any], config: dict[str, Any], secrets: dict[str, Any]
) -> None:
    settings = source_settings(api(**fields))
    assert (settings.config, settings.secrets) == (config, secrets)
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "api.example.com"}, "https://api.example.com"),
        ({"host": "api.example.com", "schema": "http", "port": 8080}, "http://api.example.com:8080"),
        ({"host": "http://127.0.0.1:9/v1/"}, "http://127.0.0.1:9/v1"),
        ({"host": "https://api.example.com/v1", "port": 8443}, "https://api.example.com:8443/v1"),
    ],
)
def test_the_base_url_is_made_of_host_schema_and_port(fields: dict[str, Any], url: str) -> None:
    assert source_settings(api(**fields)).config["base_url"] == url


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "ftp://api.example.com"},
        {"host": "https://me:s3cret@api.example.com"},
        {"host": "https://"},
        {"conn_type": "http"},
        {"extra": "token=s3cret"},
    ],
)
def test_a_connection_that_is_wrong_is_refused_without_repeating_it(fields: dict[str, Any]) -> None:
    with raises(ConfigurationError) as caught:
        source_settings(Connection(conn_id="shop", **{"conn_type": "rfr_api", **fields}))
    assert "s3cret" not in str(caught.value)


@pytest.mark.test
def test_the_test_button_asks_the_api_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with SampleApi(Sizes(records=10), api_key="right-key") as running:
        for password, passed in (("right-key", True), ("wrong-key", False)):
            connection = {"conn_type": "rfr_api", "host": running.base_url, "password": password}
            connection["extra"] = json.dumps({"test_path": "/orders"})
            monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
            assert ApiHook("shop").test_connection() == (
                passed,
                "The API answered 200 OK" if passed else "The API answered 401 Unauthorized",
            )


def test_the_test_button_says_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = {"conn_type": "rfr_api", "host": "http://127.0.0.1:1/v1", "extra": json.dumps({"test_path": "/a?api_key=b"})}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(shop))
    passed, message = ApiHook("shop").test_connection()
    assert not passed
    assert message == "the API did not answer at http://127.0.0.1:1/v1/a?api_key=*** (Connection refused)"


Connect = Callable[..., None]


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
    connect: Connect, conn_type: str, fields: dict[str, Any], url: str
) -> None:
    connect("hooks", conn_type=conn_type, **fields)
    assert http_settings("hooks").base_url == url


@pytest.mark.parametrize("conn_type", ["rfr_http", "rfr-http"])
def test_a_connection_of_our_own_type_uses_https_where_its_host_names_no_scheme(
    connect: Connect, conn_type: str
) -> None:
    connect("hooks", conn_type=conn_type, host="hooks.example.com/x")
    assert http_settings("hooks").base_url == "https://hooks.example.com/x"
    connect("hooks", conn_type=conn_type, host="http://hooks.example.com/x")
    assert http_settings("hooks").base_url == "http://hooks.example.com/x"


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
    connect: Connect, endpoint: Receiver, status: int, works: bool
) -> None:
    endpoint.answers(status)
    connect("hooks", conn_type="rfr_http", host=endpoint.url, password="canary-31aa", extra={"X-Team": "data"})
    tested, message = HttpHook("hooks").test_connection()
    assert (tested, f"The endpoint answered {status} " in message) == (works, True), message
    assert "canary" not in message
    (request,) = endpoint.received
    assert (request.headers["authorization"], request.headers["x-team"]) == ("Bearer canary-31aa", "data")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"host": "http://127.0.0.1:1/canary-31aa"}, "no complete answer from http://127.0.0.1:1: Connection refused"),
        ({"host": "a", "extra": {"verify": "/no/such.pem"}}, "connection: verify: '/no/such.pem' can't be read"),
        (None, "connection: there is no connection 'hooks'; run: airflow connections add hooks --conn-type rfr_http"),
    ],
)
def test_the_test_button_says_why_nothing_was_answered(
    connect: Connect, fields: dict[str, Any] | None, problem: str
) -> None:
    if fields is not None:
        connect("hooks", conn_type="rfr_http", **fields)
    works, message = HttpHook("hooks").test_connection()
    assert not works
    assert problem in message
    assert "canary" not in message


def test_extra_fields_are_headers_but_for_the_options_of_requests(connect: Connect) -> None:
    extra = {"X-Key": "canary-31aa", "verify": False, "timeout": 3, "X-Empty": ""}
    connect("hooks", conn_type="http", host="a", login="me", password="canary-31aa", extra=extra)
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
    connect: Connect, extra: dict[str, Any], verify: bool | str
) -> None:
    connect("hooks", conn_type="http", host="a", extra=extra)
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
        ({"host": "https://h:9000/canary", "port": 8443}, "host: names port 9000, and the field port is 8443"),
        ({"host": "javascript:alert('canary')"}, "host: is not a web address"),
        ({"host": "https://me:canary@h"}, "host: holds credentials"),
        ({"host": ""}, "host: is empty"),
        ({"conn_type": "rfr_http", "host": "ftp://h/canary"}, "host: is not a web address"),
        ({"conn_type": "postgres"}, "is of type 'postgres'; make one of type 'rfr_http'"),
    ],
)
def test_a_connection_that_no_request_can_be_made_of_is_refused_without_its_text(
    connect: Connect, fields: dict[str, Any], told: str
) -> None:
    connect("hooks", **{"conn_type": "http", "host": "a", **fields})
    with pytest.raises(ConfigurationError, match=told) as refused:
        http_settings("hooks")
    assert str(refused.value).startswith("connection hooks")
    assert "canary" not in str(refused.value)
