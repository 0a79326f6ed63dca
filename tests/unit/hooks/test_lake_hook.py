from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.lake import LakeHook, _try_warehouse, lake_settings, secrets_of

UNREADABLE = "its host can't be read; write an address"


def lake(**fields: Any) -> Connection:
    extra = fields.pop("extra", None)
    return Connection(conn_id="lake", conn_type="rfr_lake", extra=json.dumps(extra) if extra else None, **fields)


def test_a_sqlite_catalog_needs_its_address_and_the_warehouse() -> None:
    settings = lake_settings(lake(host="sqlite:////data/c.db", extra={"warehouse": "file:///data/w"}))
    assert settings.name == "rfr"
    assert settings.properties == {"type": "sql", "uri": "sqlite:////data/c.db", "warehouse": "file:///data/w"}


@pytest.mark.parametrize(
    ("host", "uri"),
    [
        ("postgresql+psycopg2://db:5432/lake", "postgresql+psycopg2://me:p%40ss%2Fword@db:5432/lake"),
        *[
            (f"postgresql+psycopg2://own:{word}@db/lake", f"postgresql+psycopg2://own:{word}@db/lake")
            for word in ("pw", "p/w", "p#w", "p?w")
        ],
    ],
)
def test_login_and_password_go_into_a_databases_address_that_names_none(host: str, uri: str) -> None:
    settings = lake_settings(lake(host=host, login="me", password="p@ss/word", extra={"warehouse": "s3://b/w"}))
    assert settings.properties["uri"] == uri
    assert uri.partition("@")[0].rpartition(":")[2] in secrets_of(settings)


def test_a_rest_catalog_gets_a_credential_or_a_token() -> None:
    rest = {"host": "https://catalog.example.com", "extra": {"catalog_type": "rest"}}
    assert lake_settings(lake(login="id", password="secret", **rest)).properties["credential"] == "id:secret"
    assert lake_settings(lake(password="tok", **rest)).properties["token"] == "tok"


def test_the_stores_fields_become_pyicebergs_properties() -> None:
    extra = {
        "catalog_type": "glue",
        "catalog_name": "prod",
        "warehouse": "s3://bucket/w",
        "s3_endpoint": "http://127.0.0.1:9000",
        "s3_region": "eu-west-1",
        "s3_access_key_id": "AK",
        "s3_secret_access_key": "SK",
        "properties": '{"s3.connect-timeout": 5, "py-io-impl": "x", "s3.force-virtual-addressing": true}',
    }
    settings = lake_settings(lake(extra=extra))
    assert settings.name == "prod"
    assert settings.properties == {
        "type": "glue",
        "warehouse": "s3://bucket/w",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.region": "eu-west-1",
        "s3.access-key-id": "AK",
        "s3.secret-access-key": "SK",
        "s3.connect-timeout": "5",
        "py-io-impl": "x",
        "s3.force-virtual-addressing": "true",
    }
    assert secrets_of(settings) == ["AK", "SK"]
    assert "SK" not in repr(settings)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "host: is empty; write the catalog's URI"),
        ({"host": "x", "port": 5433}, "port: is not read by connections of this type; write it into the host"),
        ({"host": "x", "schema": "public"}, "schema: is not read by connections of this type"),
        ({"host": "x"}, "warehouse: is empty; write the folder of the tables"),
        ({"host": "x", "extra": {"warehouse": "data/wh"}}, "warehouse: 'data/wh' is relative; write the folder"),
        ({"host": "x", "extra": {"catalog_type": "sqll"}}, "'sqll' is unknown; one of sql, rest, hive, glue, dynamodb"),
        ({"host": "http://[hunter22", "extra": {"catalog_type": "rest"}}, f"host: {UNREADABLE}"),
        ({"host": "postgresql+psycopg2://[hunter22/l", "login": "me"}, f"host: {UNREADABLE}"),
        ({"host": "x", "extra": {"warehouse": "s3://[hunter22"}}, f"warehouse: {UNREADABLE}"),
        ({"host": "x", "extra": {"properties": {"uri": "http://[hunter22"}}}, "host: its host can't be read"),
        ({"host": "x", "extra": {"properties": "a=b"}}, "extra.properties: is not a JSON object"),
    ],
)
def test_a_connection_that_says_too_little_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as told:
        lake_settings(lake(**fields))
    assert "hunter22" not in str(told.value)


def ask_button(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> tuple[bool, str]:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "rfr_lake", **connection}))
    return LakeHook("lake").test_connection()


def test_the_test_button_opens_the_catalog_and_writes_below_the_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = tmp_path / "warehouse"
    extra = {"warehouse": f"file://{warehouse}"}
    said = ask_button(monkeypatch, host=f"sqlite:///{tmp_path}/c.db", extra=extra)
    assert said == (True, "The catalog has 0 namespaces, and the warehouse can be written")
    assert warehouse.is_dir()
    assert not list(warehouse.iterdir())


@pytest.mark.parametrize("password", ["s3cret-31f0", "p@ss/31f0", "p#ss?31f0"])
def test_a_reason_names_no_secret(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    from airflow_provider_rfr.lake import catalog

    def refuse(name: str, properties: Mapping[str, str]) -> None:
        raise OSError(f"no route to {properties['uri']} for {password}\nwith a trace")

    monkeypatch.setattr(catalog, "_load_limited", refuse)
    host, extra = "postgresql+psycopg2://db/lake", {"warehouse": "/data/w"}
    passed, message = ask_button(monkeypatch, host=host, login="me", password=password, extra=extra)
    assert not passed
    assert message.startswith("The catalog can't be opened: no route to postgresql+psycopg2://me:")
    assert "31f0" not in message
    assert "trace" not in message


UNANSWERED = {"s3_endpoint": "http://127.0.0.1:9", "s3_access_key_id": "AK", "s3_secret_access_key": "canary-5c0e"}


@pytest.mark.parametrize(
    ("catalog", "extra", "problem"),
    [
        ("missing/c.db", {"warehouse": "/data/w"}, "The catalog can't be opened: lake.properties.uri: the folder "),
        ("c.db", {"warehouse": "{}/file/w"}, "Nothing can be written below the warehouse: .*Not a directory"),
        (
            "c.db",
            {"warehouse": "s3://nobucket/w", "s3_region": "eu-west-1", **UNANSWERED},
            "Nothing can be written below the warehouse: ",
        ),
    ],
)
def test_the_test_button_says_what_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalog: str, extra: dict[str, str], problem: str
) -> None:
    (tmp_path / "file").touch()
    extra = {**extra, "warehouse": extra["warehouse"].format(tmp_path)}
    passed, message = ask_button(monkeypatch, host=f"sqlite:///{tmp_path}/{catalog}", extra=extra)
    assert not passed
    assert re.match(problem, message, re.DOTALL)
    assert "canary" not in message


@pytest.mark.parametrize("warehouse", ["prod", "s3://prod", "/prod"])
def test_the_warehouse_of_a_rest_catalog_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warehouse: str
) -> None:
    """Only the catalog knows where it is, and who may write there."""
    settings = lake_settings(lake(host="https://c.example.com", extra={"catalog_type": "rest", "warehouse": warehouse}))
    monkeypatch.chdir(tmp_path)
    assert _try_warehouse(settings.properties) is False
    assert not list(tmp_path.iterdir())
