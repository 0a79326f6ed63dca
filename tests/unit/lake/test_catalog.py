"""Errors of a catalog that can't be opened, does not answer, or refuses; and Spark's settings for the same catalogs."""

from __future__ import annotations

import gc
import re
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from pyiceberg.schema import Schema

from airflow_provider_rfr.exceptions import CatalogError, ConfigurationError, SparkJobError
from airflow_provider_rfr.lake.catalog import (
    _JDBC_PACKAGES,
    LakeSettings,
    _translated,
    _without_secrets,
    create_table,
    load_table,
    open_catalog,
    spark_sql_settings,
)
from airflow_provider_rfr.lake.tables import list_views, view_names
from airflow_provider_rfr.preflight import iceberg_runtime
from tests.loopback import LoopbackServer
from tests.soon import SOON, soon
from tests.unit.lake.conftest import rest_server
from tests.unit.messages import check_messages, raises

PASSWORD = "hunter2/hunter2"
POSTGRES = "postgresql+psycopg2://me:hunter2%2Fhunter2@127.0.0.1:1/lake"


def sqlite(folder: Path, **more: str) -> LakeSettings:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/w", **more}
    return LakeSettings("rfr", properties)


@pytest.mark.parametrize(
    ("properties", "field", "problem"),
    [
        ({"type": "sqll", "uri": "sqlite:////c.db", "warehouse": "/w"}, ".type", "did you mean sql? allowed: "),
        ({"type": "sql", "uri": "sqlite:////c.db"}, ".warehouse", "is missing, and the catalog 'rfr' is a database"),
        ({"uri": POSTGRES}, ".warehouse", "is missing"),
        ({"type": "sql", "uri": "sqlite:////no/such/c.db", "warehouse": "/w"}, ".uri", "the folder /no/such of the"),
        ({"type": "sql", "uri": "nonsense", "warehouse": "/w", "s3.secret": "canary-77"}, "", "can't be opened"),
    ],
)
def test_settings_that_no_retry_helps_are_named(properties: dict[str, str], field: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)) as refused:
        open_catalog(LakeSettings("rfr", properties))
    assert refused.value.field == f"lake.properties{field}"
    assert "hunter2" not in str(refused.value) and "canary" not in str(refused.value)
    assert (refused.value.retryable, refused.value.exit_code) == (False, 2)


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(CatalogError) as refused:
        open_catalog(LakeSettings("rfr", {"type": "sql", "uri": POSTGRES, "warehouse": "/w"}))
    message = str(refused.value)
    assert message.startswith("the catalog 'rfr' (postgresql+psycopg2://127.0.0.1:1/lake) failed: ")
    assert "Connection refused" in message
    assert message.endswith("; check that it runs and can be reached from here")
    assert "\n" not in message and "hunter2" not in message and "sqlalche.me" not in message
    assert refused.value.retryable and not refused.value.refuses_generation


@pytest.mark.parametrize("mark", ["/", "?", "#"])
def test_a_reason_of_a_database_holds_no_password_however_it_is_written(mark: str) -> None:
    uri = f"postgresql+psycopg2://me:hunter2{mark}hunter2@db/lake"
    assert _without_secrets(f"no login with hunter2{mark}hunter2 at {uri}", {"uri": uri}).startswith(
        "no login with *** at postgresql+psycopg2://"
    )


def test_a_rest_catalog_that_does_not_answer_is_told_in_one_sentence() -> None:
    with raises(CatalogError) as refused:
        open_catalog(LakeSettings("rfr", {"type": "rest", "uri": "http://127.0.0.1:1", "token": PASSWORD}))
    assert "HTTPConnectionPool" not in str(refused.value)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("more", [{}, {"credential": "me:hunter2"}, {"rest.sigv4-enabled": "true"}])
def test_a_silent_rest_catalog_is_named_after_the_read_timeout(
    silent: int, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    properties = {"type": "rest", "uri": f"http://127.0.0.1:{silent}", "rfr.read-timeout": "0.3", **more}
    with soon(), pytest.raises(CatalogError) as refused:
        open_catalog(LakeSettings("rfr", properties))
    check_messages(str(refused.value), f"127.0.0.1:{silent})")
    assert "timed out" in str(refused.value)
    assert refused.value.retryable and "hunter2" not in str(refused.value)


def test_a_rest_catalog_that_falls_silent_later_is_named_by_the_method() -> None:
    ended = threading.Event()

    def only_config(path: str) -> dict[str, Any]:
        if path != "/v1/config":
            ended.wait(SOON)
        return {"defaults": {}, "overrides": {}}

    with rest_server(only_config) as uri:
        catalog = open_catalog(LakeSettings("rfr", {"type": "rest", "uri": uri, "rfr.read-timeout": "0.3"}))
        with soon(), raises(CatalogError):
            load_table(catalog, "raw.none")
        ended.set()


@pytest.mark.parametrize(
    ("body", "is_own"),
    [
        (b"default backend", False),
        (b"", False),
        (b'{"error": {"message": "none", "type": "x", "code": 404}}', True),
    ],
)
def test_a_proxys_404_does_not_say_that_a_table_does_not_exist(body: bytes, is_own: bool) -> None:
    class Gateway(LoopbackServer):
        def respond(
            self, method: str, target: str, headers: Mapping[str, str], content: bytes
        ) -> tuple[int, bytes, dict[str, str]]:
            return (
                (200, b'{"defaults": {}, "overrides": {}}', {}) if target.startswith("/v1/config") else (404, body, {})
            )

    gateway = Gateway()
    try:
        catalog = open_catalog(LakeSettings("rfr", {"type": "rest", "uri": gateway.url}))
        if is_own:
            assert load_table(catalog, "raw.none") is None
        else:
            with raises(CatalogError):
                load_table(catalog, "raw.none")
    finally:
        gateway.close()


def test_an_answer_that_is_not_a_catalogs_is_told_in_one_sentence() -> None:
    with rest_server(lambda path: {"defaults": {}, "overrides": {}} if path == "/v1/config" else {"ok": True}) as uri:
        catalog = open_catalog(LakeSettings("rfr", {"type": "rest", "uri": uri}))
        with pytest.raises(CatalogError, match="the catalog 'rfr'"):
            load_table(catalog, "raw.none")


def test_a_silent_postgresql_is_named_after_its_connect_timeout(silent: int) -> None:
    uri = f"postgresql+psycopg2://me:hunter2@127.0.0.1:{silent}/lake?connect_timeout=2"
    with soon(), pytest.raises(CatalogError) as refused:
        open_catalog(LakeSettings("rfr", {"type": "sql", "uri": uri, "warehouse": "/w"}))
    assert "timeout expired" in str(refused.value) and "hunter2" not in str(refused.value)


def test_a_silent_glue_catalog_gets_the_limits_and_its_tables_do_not_get_the_client(silent: int) -> None:
    properties = {"type": "glue", "glue.endpoint": f"http://127.0.0.1:{silent}", "rfr.read-timeout": "0.3"}
    properties |= {"client.region": "us-east-1", "client.access-key-id": "k", "client.secret-access-key": "s"}
    catalog: Any = open_catalog(LakeSettings("rfr", {**properties, "rfr.connect-timeout": "4"}))
    assert (catalog.glue.meta.config.connect_timeout, catalog.glue.meta.config.read_timeout) == (4.0, 0.3)
    assert all(isinstance(value, str) for value in catalog.properties.values())


@pytest.mark.parametrize(
    ("kind", "wrong"), [*(("sql", wrong) for wrong in ("soon", "0", "-1", "nan", "inf")), ("rest", "soon")]
)
def test_a_timeout_that_is_no_number_of_seconds_is_refused(kind: str, wrong: str, tmp_path: Path) -> None:
    with raises(ConfigurationError):
        open_catalog(sqlite(tmp_path, **{"type": kind, "rfr.read-timeout": wrong}))


def test_a_catalog_that_is_lost_or_locked_later_is_told_by_each_of_its_methods(tmp_path: Path) -> None:
    catalog = open_catalog(sqlite(tmp_path))
    catalog.create_namespace("raw")
    assert load_table(catalog, "raw.none") is None
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with raises(CatalogError):
        load_table(open_catalog(sqlite(tmp_path, connect_timeout="0")), "raw.none")
    other.close()
    catalog.engine.dispose()  # type: ignore[attr-defined]
    (tmp_path / "catalog.db").unlink()
    (tmp_path / "catalog.db").mkdir()
    with raises(CatalogError, tmp_path / "catalog.db"):
        load_table(catalog, "raw.none")


def test_a_catalog_that_nobody_holds_has_no_connection_left(tmp_path: Path) -> None:
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


def test_a_catalog_without_its_own_tables_reads_as_empty_until_something_is_created(tmp_path: Path) -> None:
    reader, creators = open_catalog(sqlite(tmp_path)), [open_catalog(sqlite(tmp_path)) for _ in range(4)]
    assert (reader.list_namespaces(), load_table(reader, "raw.none"), list_views(reader)) == ([], None, ())
    assert (reader.namespace_exists("raw"), view_names(reader)) == (False, frozenset())
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        assert not database.execute("SELECT name FROM sqlite_master").fetchall()
    with ThreadPoolExecutor(len(creators)) as pool:
        list(pool.map(lambda catalog: create_table(catalog, "raw.orders", Schema()), creators))
    assert load_table(reader, "raw.orders") is not None


@pytest.mark.parametrize("first", sorted(SqlCatalogBaseTable.metadata.tables))
def test_a_catalog_of_which_one_table_is_created_yet_reads_as_empty(tmp_path: Path, first: str) -> None:
    catalog = open_catalog(sqlite(tmp_path))
    SqlCatalogBaseTable.metadata.tables[first].create(catalog.engine)  # type: ignore[attr-defined]
    assert (catalog.namespace_exists("raw"), catalog.list_namespaces()) == (False, [])
    assert load_table(catalog, "raw.none") is None
    with sqlite3.connect(tmp_path / "catalog.db") as database:
        assert len(database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()) == 1
    create_table(catalog, "raw.orders", Schema())
    assert load_table(catalog, "raw.orders") is not None


def test_what_is_not_the_catalogs_client_stays_what_it_is(tmp_path: Path) -> None:
    for error in (OSError(28, "No space left on device"), SparkJobError("Spark")):
        with pytest.raises(type(error)), _translated(sqlite(tmp_path)):
            raise error
    catalog = open_catalog(sqlite(tmp_path))
    catalog.create_namespace("raw")
    with pytest.raises(FileNotFoundError):
        catalog.register_table("raw.t", f"{tmp_path}/none.json")


SparkJar = Callable[[str], None]


@pytest.fixture
def spark_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkJar:
    """Makes a Spark with a main jar of that name this machine's Spark."""

    def make(name: str) -> None:
        (tmp_path / "jars").mkdir()
        (tmp_path / "jars" / name).touch()
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    return make


def of_catalog(**properties: str) -> dict[str, str]:
    settings = spark_sql_settings(LakeSettings("rfr", properties))
    prefix = "spark.sql.catalog.rfr."
    return {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def test_sqlite_becomes_a_jdbc_catalog_of_the_same_name() -> None:
    lake = LakeSettings("raw_lake", {"uri": "sqlite:////lake/catalog.db", "warehouse": "file:///lake/warehouse"})
    settings = spark_sql_settings(lake)
    assert settings["spark.sql.catalog.raw_lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert settings["spark.sql.catalog.raw_lake.uri"] == "jdbc:sqlite:/lake/catalog.db"
    assert settings["spark.sql.catalog.raw_lake.warehouse"] == "file:///lake/warehouse"
    assert settings["spark.jars.packages"] == ",".join([iceberg_runtime(), _JDBC_PACKAGES["sqlite"]])


@pytest.mark.parametrize(
    ("jar", "package"),
    [
        ("spark-core_2.12-3.5.9.jar", "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0"),
        ("spark-core_2.13-4.0.4.jar", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0"),
        ("spark-core_2.13-4.1.3-amzn-0.jar", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
    ],
)
def test_the_runtime_is_that_of_the_spark_of_this_machine(spark_jar: SparkJar, jar: str, package: str) -> None:
    spark_jar(jar)
    assert spark_sql_settings(sqlite(Path("/lake")))["spark.jars.packages"].split(",")[0] == package


@pytest.mark.parametrize("jar", ["spark-core_2.13-4.2.0.jar", "spark-core_2.12-4.1.3.jar", "spark-core.jar"])
def test_a_spark_without_a_runtime_of_iceberg_is_refused_unless_its_jars_are_given(
    spark_jar: SparkJar, jar: str
) -> None:
    spark_jar(jar)
    with pytest.raises(ConfigurationError) as caught:
        spark_sql_settings(sqlite(Path("/lake")))
    assert caught.value.field == "spark"
    check_messages(str(caught.value))
    assert "spark.jars.packages" not in spark_sql_settings(sqlite(Path("/lake")), with_packages=False)


def test_postgresql_has_its_credentials_beside_the_address_and_waits_no_longer_than_pyiceberg() -> None:
    uri = "postgresql+psycopg2://me:p%40ss@db.example:5433/lake?sslmode=require"
    properties = {"type": "sql", "uri": uri, "warehouse": "file:///w"}
    catalog = of_catalog(**properties)
    assert catalog["uri"] == "jdbc:postgresql://db.example:5433/lake?sslmode=require"
    assert (catalog["jdbc.user"], catalog["jdbc.password"]) == ("me", "p@ss")
    assert (catalog["jdbc.connectTimeout"], catalog["jdbc.socketTimeout"]) == ("10", "60")
    assert of_catalog(**properties, **{"rfr.read-timeout": "300"})["jdbc.socketTimeout"] == "300"


def test_a_rest_catalog_keeps_its_properties() -> None:
    catalog = of_catalog(**{"uri": "https://lake.example", "credential": "id:secret", "py-io-impl": "x"})
    vended = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}
    assert catalog == {"type": "rest", "uri": "https://lake.example", "credential": "id:secret", **vended}


@pytest.mark.parametrize(
    "catalog",
    [{"uri": "https://lake.example", "warehouse": "sales"}, {"uri": "sqlite:////c.db", "warehouse": "s3://w"}],
)
def test_a_warehouse_in_s3_is_read_by_icebergs_own_client_with_the_same_key(catalog: dict[str, str]) -> None:
    store = {"s3.region": "r", "s3.access-key-id": "id", "s3.secret-access-key": "secret"}
    settings = of_catalog(**catalog, **store)
    assert settings["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert (settings["client.region"], settings["s3.access-key-id"]) == ("r", "id")
    assert settings["s3.secret-access-key"] == "secret"
    assert "s3.path-style-access" not in settings
    other = {**catalog, **store, "s3.endpoint": "http://store"}
    assert of_catalog(**other)["s3.path-style-access"] == "true"
    assert "s3.path-style-access" not in of_catalog(**other, **{"s3.force-virtual-addressing": "true"})
    packages = spark_sql_settings(LakeSettings("rfr", other))["spark.jars.packages"]
    runtime = iceberg_runtime()
    assert packages.split(",")[:2] == [runtime, f"org.apache.iceberg:iceberg-aws-bundle:{runtime.rpartition(':')[2]}"]


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


@pytest.mark.parametrize("kind", ["hive", "glue", "dynamodb"])
def test_a_client_that_is_not_installed_is_named_by_the_extra_that_brings_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("thrift", "hive_metastore", "boto3"):
        monkeypatch.setitem(sys.modules, name, None)
    catalogs = [f"pyiceberg.catalog.{name}" for name in ("hive", "glue", "dynamodb")]
    for name in (*catalogs, "airflow_provider_rfr.lake.hive"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with raises(ConfigurationError) as refused:
        open_catalog(LakeSettings("rfr", {"type": kind, "uri": "thrift://127.0.0.1:1", "warehouse": "s3://b/w"}))
    assert refused.value.field == "lake.properties.type"


@pytest.mark.parametrize(
    "properties",
    [
        {"adls.connection-string": "AccountName=a;AccountKey=canary-1"},
        {"adls.credential": "canary-1"},
        {"adls.token": "canary-1"},
        {"adls.account-host": "127.0.0.1:1"},
        {"gcs.oauth2.token": "canary-1"},
    ],
)
def test_a_property_that_the_stores_client_would_not_read_is_refused(
    properties: dict[str, str], tmp_path: Path
) -> None:
    with raises(ConfigurationError) as refused:
        open_catalog(sqlite(tmp_path, **properties))
    assert refused.value.field == f"lake.properties.{next(iter(properties))}"
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("answer", [pytest.param(True, id="refuses"), pytest.param(False, id="is silent")])
def test_a_metastore_that_does_not_answer_is_named_after_the_limit(answer: bool, silent: int) -> None:
    pytest.importorskip("thrift")
    port = 1 if answer else silent
    properties = {"type": "hive", "uri": f"thrift://127.0.0.1:{port}", "rfr.read-timeout": "0.3"}
    catalog = open_catalog(LakeSettings("rfr", properties))
    with soon(), pytest.raises(CatalogError, match=f"127.0.0.1:{port}"):
        catalog.list_namespaces()
