"""Views of a catalog, read without Spark: as Iceberg's JDBC catalog keeps them, and as a REST catalog tells them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.lake.tables import LiveColumn, ViewEntry, find_view, holds_views, list_views, view_names
from tests.unit.lake.conftest import rest_server

FIELDS = [
    {"id": 0, "name": "id", "required": False, "type": "long", "doc": "first"},
    {"id": 1, "name": "at", "required": False, "type": "timestamptz"},
]
ENTRY = ViewEntry(
    "ops.v",
    "SELECT id, at FROM t",
    {"rfr.object-id": "7", "comment": "c"},
    (LiveColumn("id", "bigint", comment="first"), LiveColumn("at", "timestamp")),
    "ops",
)


def version(number: int, sql: str, *more: dict[str, str]) -> dict[str, Any]:
    texts = [*more, {"type": "sql", "sql": sql, "dialect": "spark"}]
    return {
        "version-id": number,
        "timestamp-ms": number,
        "schema-id": 1,
        "summary": {},
        "default-namespace": ["ops"],
        "representations": texts,
    }


METADATA: dict[str, Any] = {
    "view-uuid": "0259f112-efd3-4043-a3bd-4a8b0fae4cd2",
    "format-version": 1,
    "location": "file:///nowhere",
    "properties": {"rfr.object-id": "7", "comment": "c", "spark.query-column-names": "id,at", "engine_version": "4"},
    "schemas": [{"type": "struct", "schema-id": 0, "fields": []}, {"type": "struct", "schema-id": 1, "fields": FIELDS}],
    "current-version-id": 2,
    "versions": [
        version(1, "SELECT 1"),
        version(2, "SELECT id, at FROM t", {"type": "sql", "sql": "SELECT 'trino'", "dialect": "trino"}),
    ],
    "version-log": [],
}


class SqlLake:
    """A catalog of PyIceberg's, into whose tables views are put as Java puts them there."""

    def __init__(self, folder: Path, catalog: SqlCatalog) -> None:
        self.folder = folder
        self.catalog = catalog
        catalog.create_namespace("ops")

    def put(self, name: str, data: bytes | None, catalog: str = "rfr") -> None:
        path = self.folder / f"{name}.metadata.json"
        if data is not None:
            path.write_bytes(data)
        row = {"catalog_name": catalog, "table_namespace": "ops", "table_name": name, "iceberg_type": "VIEW"}
        with self.catalog.engine.begin() as connection:
            connection.execute(sa.insert(IcebergTables).values(metadata_location=f"file:{path}", **row))


@pytest.fixture
def lake(tmp_path: Path, catalog: SqlCatalog) -> SqlLake:
    return SqlLake(tmp_path, catalog)


def test_a_view_of_a_sql_catalog_shows_its_present_version_in_sparks_words(lake: SqlLake) -> None:
    lake.put("v", gzip.compress(json.dumps(METADATA).encode()))
    lake.put("w", json.dumps(METADATA).encode(), catalog="another")
    assert list_views(lake.catalog) == (ENTRY,)
    assert ENTRY.comment == "c"
    assert view_names(lake.catalog) == {"ops.v"}
    assert find_view(lake.catalog, "OPS.V") == ENTRY
    assert find_view(lake.catalog, "ops.w") is None


def test_a_view_that_can_not_be_read_is_there_and_shows_nothing(lake: SqlLake) -> None:
    lake.put("torn", gzip.compress(json.dumps(METADATA).encode())[:20])
    lake.put("gone", None)
    lake.put("other", json.dumps({**METADATA, "current-version-id": 9}).encode())
    lake.put("whole", json.dumps(METADATA).encode())
    found = {view.name: view for view in list_views(lake.catalog)}
    assert sorted(found) == ["ops.gone", "ops.other", "ops.torn", "ops.whole"]
    assert {name for name, view in found.items() if view == ViewEntry(name)} == {"ops.gone", "ops.other", "ops.torn"}


@pytest.mark.parametrize(("kept", "query"), [("SELECT id, at FROM t -- why", None), ("SELECT 2 -- why", ENTRY.query)])
def test_the_whole_text_is_shown_unless_the_view_was_given_another_one(lake: SqlLake, kept: str, query: Any) -> None:
    said = {**METADATA, "properties": {**METADATA["properties"], "rfr.text": kept}}
    lake.put("v", json.dumps(said).encode())
    (found,) = list_views(lake.catalog)
    assert found.query == (query or kept)
    assert dict(found.properties) == dict(ENTRY.properties)


def test_a_table_is_no_view(lake: SqlLake) -> None:
    lake.catalog.create_table("ops.t", pa.schema([("id", pa.int64())]))
    assert list_views(lake.catalog) == ()


def test_a_catalog_whose_own_tables_are_of_the_version_before_views_has_none(lake: SqlLake) -> None:
    with lake.catalog.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type"))
    assert list_views(lake.catalog) == ()


@pytest.mark.parametrize("has_views", [True, False], ids=["with views", "of an older version"])
def test_a_rest_catalog_is_asked_for_its_views_if_it_has_them(has_views: bool) -> None:
    namespaces = "GET /v1/{prefix}/namespaces"
    views = [f"{namespaces}/{{namespace}}/views", f"{namespaces}/{{namespace}}/views/{{view}}"]

    def answer(path: str) -> Any:
        path, _, query = path.partition("?")
        return {
            "/v1/config": {"defaults": {}, "overrides": {}, "endpoints": [namespaces, *(views if has_views else [])]},
            "/v1/namespaces": {"namespaces": [] if "parent" in query else [["ops"]]},
            "/v1/namespaces/ops/views": {"identifiers": [{"namespace": ["ops"], "name": "v"}]},
            "/v1/namespaces/ops/views/v": {"metadata-location": "file:///x", "metadata": METADATA},
        }[path]

    with rest_server(answer) as uri:
        catalog = open_catalog(LakeSettings("rfr", {"type": "rest", "uri": uri}))
        assert holds_views(catalog) is has_views
        assert list_views(catalog) == ((ENTRY,) if has_views else ())
        assert view_names(catalog) == ({"ops.v"} if has_views else frozenset())
        assert find_view(catalog, "OPS.v") == (ENTRY if has_views else None)
