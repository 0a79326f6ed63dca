from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.hooks.lake import LakeHook, lake_document


def lake(**fields: Any) -> Connection:
    extra = fields.pop("extra", None)
    return Connection(conn_id="lake", conn_type="rfr_lake", extra=json.dumps(extra) if extra else None, **fields)


def test_a_sqlite_catalog_needs_its_address_and_the_warehouse() -> None:
    document = lake_document(lake(host="sqlite:////data/c.db", extra={"warehouse": "file:///data/w"}))
    assert document.name == "rfr"
    assert document.properties == {"type": "sql", "uri": "sqlite:////data/c.db", "warehouse": "file:///data/w"}


def test_login_and_password_go_into_a_databases_address() -> None:
    connection = lake(host="postgresql+psycopg2://db:5432/lake", login="me", password="p@ss/word")
    document = lake_document(connection)
    assert document.properties["uri"] == "postgresql+psycopg2://me:p%40ss%2Fword@db:5432/lake"
    assert "p%40ss%2Fword" in document.secrets()


def test_a_login_that_the_address_names_itself_stays() -> None:
    connection = lake(host="postgresql+psycopg2://own:pw@db/lake", login="me", password="other")
    assert lake_document(connection).properties["uri"] == "postgresql+psycopg2://own:pw@db/lake"


def test_a_rest_catalog_gets_a_credential_or_a_token() -> None:
    rest = {"host": "https://catalog.example.com", "extra": {"catalog_type": "rest"}}
    assert lake_document(lake(login="id", password="secret", **rest)).properties["credential"] == "id:secret"
    assert lake_document(lake(password="tok", **rest)).properties["token"] == "tok"


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
    document = lake_document(lake(extra=extra))
    assert document.name == "prod"
    assert document.properties == {
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
    assert document.secrets() == ["SK"]
    assert "SK" not in repr(document)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "host: is empty; write the catalog's URI"),
        ({"host": "x", "extra": {"catalog_type": "sqll"}}, "'sqll' is unknown; one of sql, rest, hive, glue, dynamodb"),
        ({"host": "x", "extra": {"properties": "a=b"}}, "extra.properties: is no JSON object"),
    ],
)
def test_a_connection_that_says_too_little_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        lake_document(lake(**fields))


def test_the_test_button_opens_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {
        "conn_type": "rfr_lake",
        "host": f"sqlite:///{tmp_path}/c.db",
        "extra": json.dumps({"warehouse": "w"}),
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    assert LakeHook("lake").test_connection() == (True, "The catalog has 0 namespaces")


def test_the_test_button_names_an_error_by_its_kind_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = f"sqlite:///{tmp_path}/missing/s3cret.db"
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "rfr_lake", "host": host}))
    passed, message = LakeHook("lake").test_connection()
    assert not passed
    assert "s3cret" not in message
