from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from jsonschema import Draft7Validator
from manifest_api import Api


@pytest.fixture(scope="session", autouse=True)
def _the_cdk_is_imported_as_in_production() -> None:
    """Before a test imports it itself."""
    if importlib.util.find_spec("airbyte_cdk") is not None:
        from airflow_provider_rfr.streams.airbyte._installed import cdk_version

        cdk_version()


@pytest.fixture(scope="session", autouse=True)
def _the_schema_of_the_cdk_is_not_checked_for_each_source() -> Iterator[None]:
    """Older CDKs check their own schema of manifests with each manifest: half of the time of these tests."""
    with patch.object(Draft7Validator, "check_schema"):
        yield


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    yield server
    server.close()
