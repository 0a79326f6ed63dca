"""What others see and do: readers during a publish, Spark SQL with Iceberg's own runtime, DuckDB."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_provider_rfr.lake.catalog import LakeSettings
from airflow_provider_rfr.lake.spark_sql import spark_sql_settings
from demo.sample_api.client import SampleApi
from tests.integration.conftest import ROOT, Lake, Runner, shop
from tests.integration.postgres import PostgresServer
from tests.integration.sources import checksum_of

STRANGER = -1


class PollingReader(threading.Thread):
    """Reads the whole table again and again, each time as somebody who opens it anew."""

    def __init__(self, lake: Lake, table: str) -> None:
        super().__init__(daemon=True)
        self._lake = lake
        self._table = table
        self._over = threading.Event()
        self.seen: list[str] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self.seen.append(checksum_of(self._lake.rows(self._table)))
        except Exception as error:
            self.error = error

    def finish(self) -> None:
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


def test_a_reader_who_polls_sees_all_old_or_all_new_rows_and_nothing_else(
    lake: Lake, runner: Runner, api: SampleApi
) -> None:
    config = runner.config(source=shop(api, page_size=25), streams=["orders"])
    runner.run(config)
    old = api.truth("/orders")["checksum"]
    # A scan that was planned before the publish and reads its files after it.
    plan = lake.table("raw.orders").scan()
    reader = PollingReader(lake, "raw.orders")
    reader.start()
    api.set_faults({"kind": "edit", "path": "/orders"})
    runner.run(config)
    reader.finish()
    new = api.truth("/orders")["checksum"]
    assert old != new
    assert checksum_of(lake.rows("raw.orders")) == new
    seen = Counter(reader.seen)
    assert set(seen) <= {old, new}, "a reader saw something that was neither the old table nor the new one"
    assert seen[old] > 20, "too few polls to mean anything"
    assert reader.seen == sorted(reader.seen, key=[old, new].index), "the old table came back"
    assert checksum_of(plan.to_arrow()) == old


SPARK_SQL = """
import json, sys
from pyspark.sql import SparkSession

settings, catalogs = json.loads(sys.stdin.read())
builder = SparkSession.builder.master("local[2]").appName("a user's notebook").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
found = {}
for catalog in catalogs:
    table = f"{catalog}.raw.orders"
    rows = spark.sql(f"select count(*), count(distinct id), sum(amount), max(ship_to.zip) from {table}").first()
    kinds = {field.name: field.dataType.simpleString() for field in spark.table(table).schema}
    spark.sql(f"insert into {table} (id, reference) values (-1, 'by Spark SQL')")
    spark.sql(f"alter table {table} set tblproperties ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"delete from {table} where id = 7")
    spark.sql(f"create view {catalog}.raw.large as select id from {table} where amount > 5000")
    left = spark.sql(f"select count(*) from {table}").first()[0]
    view = spark.sql(f"select count(*) from {catalog}.raw.large").first()[0]
    tables = [row.tableName for row in spark.sql(f"show tables in {catalog}.raw").collect()]
    found[catalog] = {"rows": list(rows), "kinds": kinds, "left": left, "view": view, "tables": tables}
print(json.dumps(found, default=str))
"""


def spark_sql(lakes: list[LakeSettings]) -> dict[str, Any]:
    """One session on the catalogs of all lakes, as a user would start it."""
    each = [spark_sql_settings(lake) for lake in lakes]
    packages = {name: None for settings in each for name in settings["spark.jars.packages"].split(",")}
    settings = {key: value for one in each for key, value in one.items()}
    settings["spark.jars.packages"] = ",".join(packages)
    ended = subprocess.run(
        [sys.executable, "-c", SPARK_SQL],
        input=json.dumps([settings, [lake.name for lake in lakes]]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    if "unresolved dependency" in ended.stderr + ended.stdout and not os.environ.get("CI"):
        pytest.skip("Iceberg's runtime can't be had from Maven here")
    assert ended.returncode == 0, ended.stderr[-5000:]
    return dict(json.loads(ended.stdout.strip().splitlines()[-1]))


def duckdb_ids(lake: Lake, table: str) -> list[int]:
    """The ids that DuckDB reads, without the network."""
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        assert spec.origin is not None
        extension = next(Path(spec.origin).parent.rglob(f"{name}.duckdb_extension"))
        connection.execute(f"INSTALL '{extension}'")
        connection.execute(f"LOAD {name}")
    metadata = lake.table(table).metadata_location
    found = connection.execute(f"SELECT id FROM iceberg_scan('{metadata}')").fetchall()
    connection.close()
    return sorted(number for (number,) in found)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


def test_spark_sql_and_duckdb_read_and_write_the_published_table_and_the_next_refresh_replaces_it(
    server: PostgresServer, tmp_path: Path, api: SampleApi
) -> None:
    lakes = [Lake(tmp_path / "on_sqlite", name="on_sqlite")]
    properties = {"type": "sql", "uri": server.new_database(), "warehouse": f"file://{tmp_path}/on_postgres/warehouse"}
    lakes.append(Lake(tmp_path / "on_postgres", properties, name="on_postgres"))
    configs = []
    for lake in lakes:
        lake.folder.mkdir()
        runner = Runner(lake, lake.folder)
        configs.append((runner, runner.config(source=shop(api, page_size=25), streams=["orders"])))
    for runner, config in configs:
        runner.run(config)
    truth = api.truth("/orders")
    amounts = sum(lakes[0].rows("raw.orders")["amount"].to_pylist())
    found = spark_sql([lake.settings for lake in lakes])
    for lake in lakes:
        told = found[lake.name]
        assert told["rows"][:2] == [truth["count"], truth["count"]]
        assert told["rows"][2] == pytest.approx(amounts)
        assert told["kinds"]["placed_at"] == "timestamp"
        assert told["kinds"]["ship_to"] == "struct<city:string,zip:string,express:boolean>"
        assert told["kinds"]["_rfr_generation"] == "bigint"
        assert told["left"] == truth["count"]
        assert told["view"] > 0
        assert "orders" in told["tables"]
        expected = sorted({STRANGER, *truth["ids"]} - {7})
        assert sorted(lake.rows("raw.orders")["id"].to_pylist()) == expected
        assert duckdb_ids(lake, "raw.orders") == expected
    for (runner, config), lake in zip(configs, lakes, strict=True):
        runner.run(config)
        assert checksum_of(lake.rows("raw.orders")) == truth["checksum"]
        assert duckdb_ids(lake, "raw.orders") == sorted(truth["ids"])
