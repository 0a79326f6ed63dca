"""Spark's settings for the catalogs that PyIceberg opened."""

from __future__ import annotations

import pytest

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.lake.catalog import _ICEBERG_PACKAGES, _JDBC_PACKAGES, LakeSettings, spark_sql_settings


def of_catalog(name: str = "rfr", **properties: str) -> dict[str, str]:
    settings = spark_sql_settings(LakeSettings(name, properties))
    prefix = f"spark.sql.catalog.{name}."
    return {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def test_sqlite_becomes_a_jdbc_catalog_of_the_same_name() -> None:
    lake = LakeSettings("raw_lake", {"uri": "sqlite:////lake/catalog.db", "warehouse": "file:///lake/warehouse"})
    settings = spark_sql_settings(lake)
    assert settings["spark.sql.catalog.raw_lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert settings["spark.sql.catalog.raw_lake.uri"] == "jdbc:sqlite:/lake/catalog.db"
    assert settings["spark.sql.catalog.raw_lake.warehouse"] == "file:///lake/warehouse"
    assert settings["spark.jars.packages"] == ",".join([*_ICEBERG_PACKAGES, _JDBC_PACKAGES["sqlite"]])


def test_credentials_of_postgresql_are_not_part_of_the_address() -> None:
    catalog = of_catalog(
        type="sql", uri="postgresql+psycopg2://me:p%40ss@db.example:5433/lake?sslmode=require", warehouse="file:///w"
    )
    assert catalog["uri"] == "jdbc:postgresql://db.example:5433/lake?sslmode=require"
    assert (catalog["jdbc.user"], catalog["jdbc.password"]) == ("me", "p@ss")


def test_the_driver_of_postgresql_waits_no_longer_than_pyiceberg_does() -> None:
    properties = {"type": "sql", "uri": "postgresql+psycopg2://db.example/lake", "warehouse": "file:///w"}
    catalog = of_catalog(**properties)
    assert (catalog["jdbc.connectTimeout"], catalog["jdbc.socketTimeout"]) == ("10", "60")
    assert of_catalog(**properties, **{"rfr.read-timeout": "300"})["jdbc.socketTimeout"] == "300"


def test_a_rest_catalog_keeps_its_properties() -> None:
    catalog = of_catalog(**{"uri": "https://lake.example", "credential": "id:secret", "py-io-impl": "x"})
    assert catalog == {"type": "rest", "uri": "https://lake.example", "credential": "id:secret"}


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"type": "glue"}, "lake.properties.type"),
        ({"type": "sql", "uri": "mysql://me:hidden@h/d"}, "lake.properties.uri"),
        ({"type": "sql", "uri": "me:hidden@h"}, "lake.properties.uri"),
    ],
)
def test_another_catalog_is_refused_without_showing_its_address(properties: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        spark_sql_settings(LakeSettings("rfr", properties))
    assert caught.value.field == field
    assert "hidden" not in str(caught.value)
