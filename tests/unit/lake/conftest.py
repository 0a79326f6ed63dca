"""A catalog on SQLite for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    return LakeSettings("rfr", properties)


@pytest.fixture
def catalog(settings: LakeSettings) -> SqlCatalog:
    catalog = open_catalog(settings)
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace("raw")
    return catalog
