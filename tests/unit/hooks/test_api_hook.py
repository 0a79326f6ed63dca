from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.api import ApiHook, source_settings
from airflow_provider_rfr.sample_api import SampleApi, Sizes
from tests.unit.messages import raises


def api(**fields: Any) -> Connection:
    extra = fields.pop("extra", None)
    return Connection(conn_id="shop", conn_type="rfr_api", extra=json.dumps(extra) if extra else None, **fields)


def test_the_password_is_a_secret_under_the_three_names_that_sources_use() -> None:
    settings = source_settings(api(host="https://api.example.com/v1", login="me", password="s3cret"))
    assert settings.secrets == {"password": "s3cret", "token": "s3cret", "api_key": "s3cret"}
    assert settings.config == {
        "base_url": "https://api.example.com/v1",
        "login": "me",
        "username": "me",
        "client_id": "me",
    }


def test_an_extra_is_secret_when_its_name_says_so() -> None:
    secret = {
        "client_secret": "a",
        "refresh_token": "b",
        "x-api-key": "c",
        "private_key_id": "d",
        "pat": "e",
        "key": "f",
    }
    settings = source_settings(api(extra={**secret, "page_size": 500}))
    assert settings.config == {"page_size": 500}
    assert settings.secrets == secret


def test_everything_below_secrets_is_secret_and_wins_over_a_shown_extra() -> None:
    settings = source_settings(api(extra={"tenant": "shown", "secrets": {"tenant": "hidden"}}))
    assert (settings.config, settings.secrets) == ({}, {"tenant": "hidden"})


def test_the_json_text_of_a_forms_field_is_read_like_an_object() -> None:
    assert source_settings(api(extra={"secrets": '{"pin": "1234"}'})).secrets == {"pin": "1234"}


def test_empty_fields_of_a_form_are_left_out() -> None:
    assert source_settings(api(extra={"client_secret": "", "region": None})).config == {}


def test_secrets_are_not_in_the_repr() -> None:
    assert "s3cret" not in repr(source_settings(api(password="s3cret")))


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


@pytest.mark.parametrize("host", ["ftp://api.example.com", "https://me:s3cret@api.example.com", "https://"])
def test_a_host_that_is_no_plain_web_address_is_refused_without_repeating_it(host: str) -> None:
    with raises(ConfigurationError) as caught:
        source_settings(api(host=host))
    assert "s3cret" not in str(caught.value)


def test_a_connection_of_another_type_is_refused() -> None:
    with raises(ConfigurationError):
        source_settings(Connection(conn_id="shop", conn_type="http"))


def test_an_extra_that_is_no_json_object_is_refused_without_repeating_it() -> None:
    with raises(ConfigurationError) as caught:
        source_settings(Connection(conn_id="shop", conn_type="rfr_api", extra="token=s3cret"))
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
