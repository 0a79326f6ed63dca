"""What is said of a catalog that can't be opened, does not answer, or refuses."""

from __future__ import annotations

import gc
import sqlite3
from pathlib import Path

import pytest

from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError, SparkJobError
from airflow_provider_rfr.lake.catalog import LakeSettings, _catalog_error, load_table, open_catalog

PASSWORD = "hunter2/hunter2"
POSTGRES = "postgresql+psycopg2://me:hunter2%2Fhunter2@127.0.0.1:1/lake"


def sqlite(folder: Path, **more: str) -> LakeSettings:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/w", **more}
    return LakeSettings("rfr", properties)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (
            {"type": "sqll", "uri": "sqlite:////tmp/c.db", "warehouse": "/w"},
            "lake.properties.type: 'sqll' is not a type of catalog; did you mean sql? known: rest, ",
        ),
        (
            {"type": "sql", "uri": "sqlite:////tmp/c.db"},
            "lake.properties.warehouse: is missing, and the catalog 'rfr' is a database",
        ),
        (
            {"uri": POSTGRES},
            "lake.properties.warehouse: is missing",
        ),
        (
            {"type": "sql", "uri": "sqlite:////no/such/folder/c.db", "warehouse": "/w"},
            "lake.properties.uri: the folder /no/such/folder of the catalog's SQLite file does not exist",
        ),
        ({"type": "sql", "uri": "nonsense", "warehouse": "/w", "s3.secret": "canary-77"}, "can't be opened"),
    ],
)
def test_settings_that_no_retry_helps_are_named(properties: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_catalog(LakeSettings("rfr", properties))
    assert told in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert (refused.value.retryable, refused.value.exit_code) == (False, 2)


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    settings = LakeSettings("rfr", {"type": "sql", "uri": POSTGRES, "warehouse": "/w"})
    with pytest.raises(CatalogError) as refused:
        open_catalog(settings)
    told = str(refused.value)
    assert told.startswith("the catalog 'rfr' (postgresql+psycopg2://127.0.0.1:1/lake) failed: ")
    assert "Connection refused" in told
    assert told.endswith("; check that it runs and can be reached from here")
    assert "\n" not in told and "hunter2" not in told and "sqlalche.me" not in told
    assert refused.value.retryable and not refused.value.refuses_generation


def test_a_rest_catalog_that_does_not_answer_is_told_in_one_sentence() -> None:
    with pytest.raises(CatalogError) as refused:
        open_catalog(LakeSettings("rfr", {"type": "rest", "uri": "http://127.0.0.1:1", "token": PASSWORD}))
    assert "the catalog 'rfr' (http://127.0.0.1:1) failed: [Errno 111] Connection refused" in str(refused.value)
    assert "HTTPConnectionPool" not in str(refused.value)


def test_a_catalog_that_is_lost_or_locked_later_is_told_by_each_of_its_methods(tmp_path: Path) -> None:
    catalog = open_catalog(sqlite(tmp_path))
    catalog.create_namespace("raw")
    assert load_table(catalog, "raw.none") is None
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CatalogError, match="is locked by another process: database is locked; wait for that"):
        load_table(open_catalog(sqlite(tmp_path, connect_timeout="0")), "raw.none")
    other.close()
    catalog.engine.dispose()  # type: ignore[attr-defined]
    (tmp_path / "catalog.db").unlink()
    (tmp_path / "catalog.db").mkdir()
    with pytest.raises(CatalogError, match=rf"\(sqlite:///{tmp_path}/catalog.db\).*unable to open database file"):
        load_table(catalog, "raw.none")


def test_a_catalog_that_nobody_holds_has_no_connection_left(tmp_path: Path) -> None:
    open_catalog(sqlite(tmp_path))  # the first one has errors to remember: it finds no tables, and makes them
    gc.disable()
    try:
        catalog = open_catalog(sqlite(tmp_path))
        assert load_table(catalog, "raw.none") is None
        engine = catalog.engine  # type: ignore[attr-defined]
        assert engine.pool.checkedin() == 1
        del catalog
        assert engine.pool.checkedin() == 0
    finally:
        gc.enable()


def test_what_is_not_the_catalogs_client_stays_what_it_is(tmp_path: Path) -> None:
    assert _catalog_error(OSError(28, "No space left on device"), sqlite(tmp_path)) is None
    assert _catalog_error(SparkJobError("Spark"), sqlite(tmp_path)) is None
    catalog = open_catalog(sqlite(tmp_path))
    catalog.create_namespace("raw")
    with pytest.raises(FileNotFoundError):
        catalog.register_table("raw.t", f"{tmp_path}/none.json")
