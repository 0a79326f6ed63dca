"""Connections for the tests of hooks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a connection of these fields in the environment."""

    def make(name: str, **fields: object) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))

    return make
