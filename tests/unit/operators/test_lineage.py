"""What OpenLineage is told of a refresh, with its own classes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attr
import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.catalog import LakeSettings, open_catalog
from airflow_provider_rfr.operators._outcome import Lineage, _lake_name, facets_of, source_name

ROOT = Path(__file__).resolve().parents[3]
FIGURES = {"raw.orders": {"rows": 3, "snapshot_id": 41}}


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    properties["s3.secret-access-key"] = "canary-77a0"
    settings = LakeSettings("rfr", properties)
    catalog = open_catalog(settings)
    catalog.create_namespace("raw")
    catalog.create_table("raw.orders", pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    return settings


def told(lineage: Lineage) -> dict[str, Any]:
    found = facets_of(lineage)
    return {
        side: [
            attr.asdict(item, value_serializer=lambda *field: getattr(field[2], "value", field[2])) for item in items
        ]
        for side, items in {"inputs": found.inputs, "outputs": found.outputs}.items()
    }


def test_a_published_table_has_rows_columns_snapshot_and_place(lake: LakeSettings, tmp_path: Path) -> None:
    lineage = Lineage("https://api.example.com", {"orders": "raw.orders"}, "replace", lake, FIGURES)
    whole = told(lineage)
    [source], [table] = whole["inputs"], whole["outputs"]
    assert (source["namespace"], source["name"]) == ("https://api.example.com", "orders")
    assert (table["namespace"], table["name"]) == (f"sqlite:///{tmp_path}/c.db", "raw.orders")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 3
    facets = table["facets"]
    assert facets["version"]["datasetVersion"] == "41"
    assert facets["lifecycleStateChange"]["lifecycleStateChange"] == "OVERWRITE"
    columns = [(field["name"], field["type"]) for field in facets["schema"]["fields"]]
    assert columns == [("id", "long"), ("at", "timestamptz")]
    [place] = facets["symlinks"]["identifiers"]
    assert (place["namespace"], place["type"]) == ("file", "LOCATION")
    assert place["name"].startswith(f"{tmp_path}/w/")
    assert "canary-77a0" not in json.dumps(whole)


def test_an_append_overwrites_nothing_and_what_was_not_published_is_named_and_no_more(lake: LakeSettings) -> None:
    [table] = told(Lineage("x", {"orders": "raw.orders"}, "append", lake, FIGURES))["outputs"]
    assert "lifecycleStateChange" not in table["facets"]
    [table] = told(Lineage("x", {"orders": "raw.orders"}, "replace", lake))["outputs"]
    assert (table["facets"], table["outputFacets"]) == ({}, {})


def test_a_catalog_that_fails_costs_the_columns_alone(caplog: pytest.LogCaptureFixture) -> None:
    gone = LakeSettings("rfr", {"type": "sql", "uri": "sqlite:////nowhere/canary-77a0/c.db"})
    [table] = told(Lineage("x", {"orders": "raw.orders"}, "replace", gone, FIGURES))["outputs"]
    assert set(table["facets"]) == {"version", "lifecycleStateChange"}
    assert "the columns of raw.orders are left out of the lineage (ConfigurationError)" in caplog.text
    assert "canary-77a0" not in caplog.text


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        (
            {"uri": "postgresql+psycopg2://me:word@db.example.com:5432/lake?sslmode=require"},
            "postgresql://db.example.com:5432/lake",
        ),
        *[
            ({"uri": f"postgresql+psycopg2://me:wo{mark}rd@db.example.com/lake"}, "postgresql://db.example.com/lake")
            for mark in "/#?"
        ],
        ({"uri": "http://rest.example.com:8181/v1/a@b"}, "http://rest.example.com:8181/v1/a@b"),
        ({"uri": "https://me:word@catalog.example.com/v1/"}, "https://catalog.example.com/v1"),
        ({"uri": "thrift://hive.example.com:9083"}, "thrift://hive.example.com:9083"),
        ({"type": "glue", "warehouse": "s3://bucket/warehouse/"}, "s3://bucket/warehouse"),
        ({}, "iceberg"),
    ],
)
def test_a_lake_is_named_without_whoever_logs_in(properties: dict[str, str], name: str) -> None:
    assert _lake_name(properties) == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"config": {"base_url": "https://me:word@api.example.com:8443/v1?key=1"}}, "https://api.example.com:8443"),
        ({"definition": {"base_url": "https://api.example.com/v1"}, "config": {}}, "https://api.example.com"),
        ({"definition": {"base_url": "{{ config.base_url }}"}, "config": {}}, "source:unknown"),
        ({"class": "shop.sources:Orders"}, "source:shop.sources:Orders"),
    ],
)
def test_a_source_is_named_by_its_api_or_by_the_class_that_reads_it(source: dict[str, Any], name: str) -> None:
    assert source_name(source) == name


def test_the_operator_needs_no_openlineage() -> None:
    program = (
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'openlineage': raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "from airflow_provider_rfr.operators import ResumableFullRefreshOperator\n"
        "operator = ResumableFullRefreshOperator(task_id='t', source={'class': 'a:B'}, streams='s', target='raw.s')\n"
        "assert operator.get_openlineage_facets_on_complete(None) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
