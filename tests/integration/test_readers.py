"""What others see and do: readers during a publish, Spark SQL with Iceberg's own runtime, DuckDB."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.target import TargetTable
from airflow_provider_rfr.sample_api import SampleApi
from airflow_provider_rfr.sample_api.dataset import Sizes
from tests.integration.conftest import Lake, Runner, shop
from tests.integration.postgres import PostgresServer
from tests.integration.sources import checksum_of
from tests.integration.users_spark import run_on_spark

STRANGER, DELETED = -1, 7  # rows that Spark SQL adds and deletes


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


SPARK_SQL = """
catalog, first = argument
table = f"{catalog}.raw.orders"
rows = spark.sql(f"select count(*), count(distinct id) from {table} where ship_to.zip is not null").first()
kinds = {field.name: field.dataType.simpleString() for field in spark.table(table).schema}
spark.sql(f"insert into {table} (id, reference) values (-1, 'by Spark SQL')")
spark.sql(f"alter table {table} set tblproperties ('write.delete.mode' = 'merge-on-read')")
spark.sql(f"delete from {table} where id = 7")
spark.sql(f"create view {catalog}.raw.large as select id from {table} where amount > 5000")
left = spark.sql(f"select count(*) from {table}").first()[0]
view = spark.sql(f"select count(*) from {catalog}.raw.large").first()[0]
retyped = spark.table(f"{catalog}.raw.retyped")
old = spark.sql(f"select id, a from {catalog}.raw.retyped version as of {first}")
types = {
    "kinds": dict(retyped.dtypes),
    "rows": [list(row) for row in retyped.select("id", "a").orderBy("id").collect()],
    "old_kinds": dict(old.dtypes),
    "old_rows": [list(row) for row in old.orderBy("id").collect()],
}
tables = [row.tableName for row in spark.sql(f"show tables in {catalog}.raw").collect()]
found = {"rows": list(rows), "kinds": kinds, "left": left, "view": view, "tables": tables, "types": types}
print(json.dumps(found, default=str))
"""


def duckdb_rows(lake: Lake, table: str, columns: str) -> list[tuple[Any, ...]]:
    """What DuckDB reads, without the network."""
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        extension = next(Path(spec.origin).parent.rglob(f"{name}.duckdb_extension"))
        connection.execute(f"INSTALL '{extension}'")
        connection.execute(f"LOAD {name}")
    metadata = lake.table(table).metadata_location
    rows = connection.execute(f"SELECT {columns} FROM iceberg_scan('{metadata}')").fetchall()
    connection.close()
    return sorted(rows)


def duckdb_ids(lake: Lake, table: str) -> list[int]:
    return [number for (number,) in duckdb_rows(lake, table, "id")]


def publish_retyped(lake: Lake) -> int:
    """Publish integers, then decimals and other types, into one table; returns the first snapshot's id."""
    generations = [
        pa.table({"id": [1, 2], "a": [1, 2], "s": [{"x": 1}, {"x": 2}]}),
        pa.table({"id": [1, 2], "a": [1.5, 2.0], "s": [{"x": "one"}, {"x": "two"}]}),
    ]
    snapshots = []
    for generation, rows in enumerate(generations, start=1):
        target = TargetTable(open_catalog(lake.settings), "raw.retyped")
        files = target.prepare(rows.schema, "evolve", inferred=True, rows_stay=False)
        described = [stored.describe(files.layout) for stored, _ in files.write(rows)]
        publication = ("ledger", generation)
        published = target.commit(described, publication, mode="replace", replace_where=None, summary={})
        snapshots.append(published.snapshot_id)
    return snapshots[0]


@dataclass
class Story:
    """One table's life in one lake: published, changed by Spark SQL, and published again while somebody polls.

    :ivar first: checksum of the rows as published first
    :ivar found: what Spark SQL told
    :ivar changed: checksum after Spark SQL
    :ivar polls: checksums that the poller saw during the second publish
    """

    lake: Lake
    ids: list[int]
    first: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    changed: str = ""
    ids_after_spark: dict[str, list[int]] = field(default_factory=dict)
    polls: list[str] = field(default_factory=list)
    read_late: str = ""
    ids_at_the_end: dict[str, list[int]] = field(default_factory=dict)

    def ids_by_reader(self) -> dict[str, list[int]]:
        pyiceberg = sorted(self.lake.rows("raw.orders")["id"].to_pylist())
        return {"PyIceberg": pyiceberg, "DuckDB": duckdb_ids(self.lake, "raw.orders")}

    def change(self, found: dict[str, Any]) -> None:
        self.found = found
        self.changed = checksum_of(self.lake.rows("raw.orders"))
        self.ids_after_spark = self.ids_by_reader()

    def publish_again(self, runner: Runner, config: Path) -> None:
        # Opened before the publish, and read after it.
        opened = self.lake.table("raw.orders")
        reader = PollingReader(self.lake, "raw.orders")
        reader.start()
        runner.run(config)
        reader.finish()
        self.polls = reader.seen
        self.read_late = checksum_of(opened.scan().to_arrow())
        self.ids_at_the_end = self.ids_by_reader()


@pytest.fixture(scope="module")
def api() -> Iterator[SampleApi]:
    with SampleApi(Sizes(records=400), latency_ms=10) as running:
        yield running


@pytest.fixture(scope="module", params=[pytest.param("on_sqlite", marks=pytest.mark.gate), "on_postgres"])
def story(request: pytest.FixtureRequest, api: SampleApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with ExitStack() as stack:
        lake = Lake(tmp_path_factory.mktemp(request.param), name=request.param)
        if request.param == "on_postgres":
            lake.properties["uri"] = stack.enter_context(PostgresServer()).new_database()
        api.set_faults()
        runner = Runner(lake, lake.folder)
        config = runner.config(source=shop(api, page_size=25), streams=["orders"])
        story = Story(lake, api.truth("/orders")["ids"])
        runner.run(config)
        story.first = checksum_of(lake.rows("raw.orders"))
        story.change(run_on_spark(lake.settings, SPARK_SQL, [lake.name, publish_retyped(lake)]))
        api.set_faults({"kind": "edit", "path": "/orders"})
        story.publish_again(runner, config)
        yield story


def test_spark_sql_reads_the_published_table_with_its_types(story: Story, api: SampleApi) -> None:
    results = story.found
    assert results["rows"] == [len(story.ids), len(story.ids)]
    assert results["kinds"]["amount"] == "double"
    assert results["kinds"]["placed_at"] == "timestamp"
    assert results["kinds"]["ship_to"] == "struct<city:string,zip:string,express:boolean>"
    assert results["kinds"]["_rfr_generation"] == "bigint"
    assert results["view"] > 0
    assert "orders" in results["tables"]


def test_spark_sql_and_duckdb_read_a_table_whose_column_types_were_replaced(story: Story) -> None:
    types = story.found["types"]
    assert (types["kinds"]["a"], types["kinds"]["s"], types["old_kinds"]["a"]) == (
        "double",
        "struct<x:string>",
        "bigint",
    )
    assert types["rows"] == [[1, 1.5], [2, 2.0]]
    assert types["old_rows"] == [[1, 1], [2, 2]]
    assert duckdb_rows(story.lake, "raw.retyped", "id, a, s.x") == [(1, 1.5, "one"), (2, 2.0, "two")]


def test_a_row_added_and_a_row_deleted_by_spark_sql_are_seen_by_every_reader(story: Story) -> None:
    expected = sorted({STRANGER, *story.ids} - {DELETED})
    assert story.found["left"] == len(expected)
    assert story.ids_after_spark == {"PyIceberg": expected, "DuckDB": expected}


def test_the_next_refresh_replaces_what_spark_sql_did(story: Story, api: SampleApi) -> None:
    assert story.ids_at_the_end == {"PyIceberg": sorted(story.ids), "DuckDB": sorted(story.ids)}
    assert checksum_of(story.lake.rows("raw.orders")) == api.truth("/orders")["checksum"] != story.first


def test_a_reader_who_polls_during_a_publish_sees_all_old_or_all_new_rows_and_nothing_else(
    story: Story, api: SampleApi
) -> None:
    old, new = story.changed, api.truth("/orders")["checksum"]
    assert set(story.polls) <= {old, new}, "a reader saw something that was neither the old table nor the new one"
    assert story.polls.count(old) > 20, "too few polls to mean anything"
    assert story.polls == sorted(story.polls, key=[old, new].index), "the old table came back"
    assert story.read_late == old, "files of the old table went before its readers"
