"""Secrets that a refresh's document refers to, and errors without them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError, SourceError
from airflow_provider_rfr.http.redaction import redact
from airflow_provider_rfr.refresh.application import Application
from airflow_provider_rfr.refresh.cluster import portable_error
from airflow_provider_rfr.refresh.config import parse_config
from airflow_provider_rfr.refresh.page_rows import encode_records
from airflow_provider_rfr.streams.loader import load_stream
from tests.unit.messages import raises

CANARY = "canary-77d0e1"
OTHER = "canary-file-90ab"
SOURCE = {
    "base_url": "https://api.example.com",
    "authenticator": {"type": "bearer", "token": "{{ config.key }}"},
    "streams": {"orders": {"request": {"path": "/orders"}}},
}


def document(secrets: Any, properties: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "source": {"definition": SOURCE, "secrets": secrets},
        "streams": ["orders"],
        "target": "raw.orders",
        "lake": {"properties": {"type": "sql", **(properties or {})}},
        **more,
    }


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOP_KEY", CANARY)
    path = tmp_path / "password"
    path.write_text(f"{OTHER}\n")
    return path


def test_a_secret_is_taken_from_the_environment_or_from_a_file(file: Path) -> None:
    secrets = {"key": {"env": "SHOP_KEY"}, "oauth": {"id": "me", "secrets": [{"file": str(file)}]}}
    config = parse_config(document(secrets, {"uri": {"file": str(file)}, "token": {"env": "SHOP_KEY"}}))
    assert config.source.secrets == {"key": CANARY, "oauth": {"id": "me", "secrets": [OTHER]}}
    assert config.lake.plain_properties() == {"type": "sql", "uri": OTHER, "token": CANARY}
    assert CANARY not in repr(config) and OTHER not in repr(config)


def test_the_control_store_may_be_a_reference_too(file: Path) -> None:
    config = parse_config(document({}, store={"file": str(file)}))
    assert config.store is not None and config.store.get_secret_value() == OTHER
    with pytest.raises(ConfigurationError, match="store: the environment variable NOBODY_SET_THIS is not set"):
        parse_config(document({}, store={"env": "NOBODY_SET_THIS"}))


def test_what_the_document_refers_to_is_redacted_whatever_its_name(file: Path) -> None:
    config = parse_config(document({"key": {"env": "SHOP_KEY"}}, {"header.X-Team": {"file": str(file)}}))
    assert {CANARY, OTHER} <= set(Application(config, began=0.0)._secrets)


def test_the_fingerprint_holds_no_secret_and_outlives_its_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint() -> str:
        config = parse_config(document({"key": {"env": "SHOP_KEY"}}))
        return json.dumps(load_stream(config.source.as_source(), "orders").fingerprint(), sort_keys=True)

    before = fingerprint()
    assert CANARY not in before
    monkeypatch.setenv("SHOP_KEY", "canary-another")
    assert fingerprint() == before


def test_what_is_missing_is_named_with_its_place_and_all_at_once(file: Path, tmp_path: Path) -> None:
    binary, empty = tmp_path / "binary", tmp_path / "empty"
    binary.write_bytes(b"canary-\xff")
    empty.write_text("\n")
    secrets = {"key": {"env": "NOBODY_SET_THIS"}, "other": {"file": str(tmp_path / "none")}}
    with pytest.raises(ConfigurationError) as error:
        parse_config(document(secrets, {"uri": {"file": str(binary)}, "token": {"file": str(empty)}}))
    for message in (
        "source.secrets.key: the environment variable NOBODY_SET_THIS is not set, or empty",
        f"source.secrets.other: the file {tmp_path / 'none'} can't be read: No such file or directory",
        f"lake.properties.uri: the file {binary} can't be read: it is not UTF-8 text",
        f"lake.properties.token: the file {empty} is empty",
    ):
        assert message in str(error.value)
    assert "canary" not in str(error.value).replace(str(tmp_path), "")


def test_a_catalog_property_that_is_no_text_says_what_to_write(file: Path) -> None:
    with raises(ConfigurationError):
        parse_config(document({}, {"uri": {"host": "db", "port": 5432}}))


def test_where_airflow_runs_the_refresh_nothing_is_referred_to(file: Path) -> None:
    run = {"airflow": {"dag_id": "d", "dag_run_id": "r", "task_id": "t"}}
    config = parse_config(document({"key": {"env": "SHOP_KEY"}}, run=run))
    assert config.source.secrets == {"key": {"env": "SHOP_KEY"}}


SECRET = 'p@ss/word+1"x'


@pytest.mark.parametrize("form", [SECRET, "p%40ss%2Fword%2B1%22x", "p%40ss/word%2B1%22x", 'p@ss/word+1\\"x'])
def test_a_secret_is_taken_out_in_every_form_it_has_in_addresses_and_json(form: str) -> None:
    error = portable_error(OSError(f"no answer: /x?api_key={form}&page=2"), [SECRET])
    assert str(error) == "OSError: no answer: /x?api_key=***&page=2"
    assert base64.b64encode(b"short").decode() in redact(base64.b64encode(b"short").decode(), [SECRET])


def test_a_record_that_cant_be_written_is_named() -> None:
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(400):
        inner["a"] = inner = {}  # type: ignore[assignment]
    with raises(SourceError):
        encode_records([{"id": 1}, deep])
