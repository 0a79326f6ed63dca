from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.control_store import ControlStoreHook
from airflow_provider_rfr.store.engine import address_of
from tests.unit.messages import raises


def test_without_anything_it_is_a_file_beside_airflow_s_own_for_its_owner_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    assert ControlStoreHook().url.database == str(tmp_path / "rfr_control_store.db")
    before = os.umask(0o022)
    try:
        store = ControlStoreHook().get_conn()
        store.check_writable()
        rights = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("rfr_control_store.db*")}
        store.close()
    finally:
        os.umask(before)
    assert len(rights) >= 2
    assert set(rights.values()) == {0o600}


def test_the_option_goes_before_the_file_and_the_connection_before_both(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[..., None]
) -> None:
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", "canary-77b2 is no url")
    with raises(ConfigurationError) as refused:
        _ = ControlStoreHook().url
    assert "canary" not in str(refused.value)
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", "sqlite:////data/option.db")
    assert ControlStoreHook().url.database == "/data/option.db"
    connect("rfr_control_store", conn_type="sqlite", host="/data/connection.db")
    assert ControlStoreHook().url.database == "/data/connection.db"


def test_a_postgres_connection_gives_every_part(connect: Callable[..., None]) -> None:
    connect("store", conn_type="postgres", host="db", port=5433, schema="rfr", login="me", password="p@ss/w")
    url = ControlStoreHook("store").url
    assert url.render_as_string(hide_password=False) == "postgresql+psycopg2://me:p%40ss%2Fw@db:5433/rfr"
    assert "p@ss" not in repr(url)


def test_what_the_driver_needs_for_tls_is_in_the_address(connect: Callable[..., None]) -> None:
    extra = {"sslmode": "verify-full", "sslrootcert": "/tls/a b&c.pem", "sslcert": "", "connect_timeout": 5}
    connect("store", conn_type="postgres", host="db", extra=extra)
    hook = ControlStoreHook("store")
    assert hook.url.query == {"sslmode": "verify-full", "sslrootcert": "/tls/a b&c.pem", "connect_timeout": "5"}
    assert address_of(hook.url_for_driver) == hook.url
    _, arguments = hook.url.get_dialect()().create_connect_args(hook.url)
    assert arguments["sslmode"] == "verify-full"


def test_a_service_stands_for_the_host(connect: Callable[..., None]) -> None:
    connect("store", conn_type="postgres", extra={"service": "rfr"})
    assert address_of(ControlStoreHook("store").url_for_driver).query == {"service": "rfr"}


@pytest.mark.parametrize("fields", [{"conn_type": "postgres", "host": "db"}, {"conn_type": "sqlite", "host": "/a.db"}])
@pytest.mark.parametrize("option", ["ssh_conn_id", "sslpassword"])
def test_an_extra_field_that_is_not_read_is_refused_by_its_name(
    connect: Callable[..., None], fields: dict[str, Any], option: str
) -> None:
    connect("store", **fields, extra={option: "canary-0e4a"})
    with raises(ConfigurationError) as refused:
        _ = ControlStoreHook("store").url
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ['{"conn_type": "postgres", "password": "canary-4f"', "postgres://me:canary-4f@h:port/x"]
)
@pytest.mark.parametrize("name", [None, "store"])
def test_no_file_takes_the_place_of_a_connection_that_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch, text: str, name: str | None
) -> None:
    variable = f"AIRFLOW_CONN_{(name or 'rfr_control_store').upper()}"
    monkeypatch.setenv(variable, text)
    with raises(ConfigurationError) as told:
        _ = ControlStoreHook(name).url
    assert "canary" not in str(told.value)


@pytest.mark.parametrize("fields", [None, {"conn_type": "mysql", "host": "db"}, {"conn_type": "sqlite"}])
def test_a_connection_that_was_named_has_to_be_there_and_to_name_a_store(
    connect: Callable[..., None], fields: dict[str, Any] | None
) -> None:
    if fields is not None:
        connect("store", **fields)
    with raises(ConfigurationError):
        _ = ControlStoreHook("store").url
