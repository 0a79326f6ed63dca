from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from manifest_api import Api


@pytest.fixture(scope="session", autouse=True)
def _the_cdk_is_imported_as_in_production() -> None:
    """Before a test imports it itself."""
    if importlib.util.find_spec("airbyte_cdk") is not None:
        from airflow_provider_rfr.streams.airbyte._cdk import cdk_version

        cdk_version()


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    yield server
    server.close()
