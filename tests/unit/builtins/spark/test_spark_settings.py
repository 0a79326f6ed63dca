"""Settings of a session that this package starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_provider_rfr.builtins.engine import _of_application
from airflow_provider_rfr.lake.catalog import _ICEBERG_PACKAGES, LakeSettings, spark_sql_settings

LAKE = LakeSettings("lake", {"type": "sql", "uri": "postgresql://me:hidden@db/lake", "warehouse": "file:///w"})


def settings(settings: Mapping[str, str] | None = None, jars: tuple[str, ...] = ()) -> dict[str, str]:
    return _of_application(settings or {}, jars, spark_sql_settings(LAKE))


@pytest.fixture(autouse=True)
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_nothing_of_the_catalog_is_a_setting_of_the_application() -> None:
    found = settings()
    assert not [name for name in found if name.startswith("spark.sql.catalog.")]
    assert "hidden" not in str(found)


def test_packages_and_extensions_of_the_user_stay_beside_ours() -> None:
    found = settings(settings={"spark.jars.packages": "a:b:1", "spark.sql.extensions": "x.Y"})
    assert found["spark.jars.packages"].split(",")[:2] == ["a:b:1", *_ICEBERG_PACKAGES]
    assert found["spark.sql.extensions"].startswith("x.Y,org.apache.iceberg.")


def test_with_jars_nothing_is_fetched_from_maven() -> None:
    found = settings(jars=("/jars/iceberg.jar", "/jars/sqlite.jar"), settings={"spark.jars": "/jars/mine.jar"})
    assert found["spark.jars"] == "/jars/mine.jar,/jars/iceberg.jar,/jars/sqlite.jar"
    assert "spark.jars.packages" not in found


def test_spark_is_started_here_only_where_nobody_else_did(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings()["spark.master"] == "local[*,4]"
    assert settings(settings={"spark.master": "spark://h:7077"})["spark.master"] == "spark://h:7077"
    assert "spark.driver.host" not in settings(settings={"spark.master": "spark://h:7077"})
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.master" not in settings()
