from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from airflow._shared.secrets_masker.secrets_masker import SecretsMasker as ServerMasker
from airflow.sdk import BaseHook
from airflow.sdk._shared.secrets_masker.secrets_masker import SecretsMasker

from airflow_provider_rfr.connections.airflow.lookup import mask_secrets, quiet_masking, read_connection
from airflow_provider_rfr.hooks.connections import ConnectionsHook

WARNED = "too short"


@pytest.fixture(autouse=True)
def lake(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A connection with an extra field of three letters, and a process in which nothing was warned of yet."""
    extra = {"type": "sql", "uri": "sqlite:////nowhere.db"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "rfr_lake", "extra": extra}))
    for masker in (SecretsMasker, ServerMasker):
        monkeypatch.setattr(masker, "_has_warned_short_secret", False)
    caplog.set_level(logging.WARNING)


def test_a_connection_with_a_short_extra_field_is_read_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert json.loads(read_connection("lake").extra or "")["type"] == "sql"
    mask_secrets(["abc", "", None])
    assert WARNED not in caplog.text


def test_whoever_alters_connections_is_not_warned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Airflow warns of a short password as soon as its own object for the connection is made."""
    monkeypatch.setenv("AIRFLOW__RFR__CONTROL_STORE", f"sqlite:///{tmp_path}/control.db")
    monkeypatch.setenv("AIRFLOW_CONN_SHORT", json.dumps({"conn_type": "http", "password": "abc"}))
    with ConnectionsHook(at_database=True)._services() as services:
        found = services.gateway.find("short")
    assert found is not None and found.password == "abc"
    assert WARNED not in caplog.text


def test_others_are_warned_as_before(caplog: pytest.LogCaptureFixture) -> None:
    with quiet_masking():
        pass
    BaseHook.get_connection("lake")
    assert WARNED in caplog.text
