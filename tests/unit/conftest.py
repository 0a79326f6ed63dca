"""What tests of operators, commands and triggers stand on: a real lake and a real control store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from airflow_provider_rfr.streams.tokens import keep_refresh_tokens
from tests.unit.messages import messages_of
from tests.unit.triggers.lake import Lake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The connection ``lake``, and one to a control store beside it."""
    connection = {"conn_type": "sqlite", "host": f"{tmp_path}/control.db"}
    monkeypatch.setenv("AIRFLOW_CONN_RFR_CONTROL_STORE", json.dumps(connection))
    return Lake(tmp_path, monkeypatch)


@pytest.fixture
def airflow_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives every task this state in Airflow, and the time at which its last try started."""
    from airflow_provider_rfr.hooks import task_states

    def say(state: str | None, started_at: datetime | None = None) -> None:
        monkeypatch.setattr(
            task_states, "_states", lambda wanted: dict.fromkeys(wanted, task_states._TaskState(state, started_at))
        )

    return say


@pytest.fixture
def webhooks_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Webhooks go to no private address unless it is allowed, and tests have no other."""
    monkeypatch.setenv("AIRFLOW__RFR__WEBHOOK_ALLOWED_HOSTS", "127.0.0.1")


@pytest.fixture(autouse=True)
def messages(snapshot: SnapshotAssertion) -> Iterator[None]:
    """Snapshots of messages, for ``raises`` and ``check_messages`` of ``tests/unit/messages.py``."""
    with messages_of(snapshot):
        yield


@pytest.fixture(autouse=True)
def refresh_tokens_in_memory() -> None:
    """Forget the token store of an earlier test: a refresh or the doctor sets it for the whole process."""
    keep_refresh_tokens(None)
