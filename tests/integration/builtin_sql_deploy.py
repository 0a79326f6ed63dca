"""A lake, the SQL engine of a deploy on it, and one rewrite, for tests and for the program that one of them kills."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_rfr.builtins.model import Column
from airflow_provider_rfr.builtins.spark_sql import SparkSqlEngine, open_session
from airflow_provider_rfr.lake.catalog import open_catalog
from airflow_provider_rfr.lake.migrated_table import MigratedTable, TableChange, table_definition
from tests.integration.conftest import Lake

SPARK = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    # As many clusters have it; a deploy must not lose a value by it.
    "spark.sql.ansi.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
MADE_BY_US = {"rfr.object-id": "1"}
RUNS = [Column("id", "bigint"), Column("state", "string"), Column("rows", "string"), Column("region", "string")]
AS_NUMBER = TableChange(
    updates=[
        [{"op": "drop", "column": "rows"}],
        [{"op": "add", "column": "rows", "type": "bigint"}],
        [{"op": "move", "column": "rows", "after": "state"}],
    ],
    properties={"rfr.step": "d/1"},
)
REWRITE = "SELECT id, state, CAST(rows AS BIGINT) AS rows, region FROM ops.runs"
HELD = "SELECT id, state, CAST(hold(rows) AS BIGINT) AS rows, region FROM ops.runs"


def holding(value: str) -> str:
    """The value; for the rows of the last file, not before somebody ends the process."""
    if int(value) >= 150:
        time.sleep(600)
    return value


class Deploy:
    """A lake of the test's own, and the engine of a deploy on it."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder).settings
        self.catalog = open_catalog(self.lake)
        self.session = open_session(self.lake, SPARK)
        self.engine = self.engine_of(SparkSqlEngine)

    def engine_of(self, kind: type[SparkSqlEngine]) -> Any:
        """An engine on this session."""
        project = kind(self.lake)
        project.__dict__["_session"] = self.session
        return project

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(text).collect()]

    def runs(self, *batches: range, partitioning: tuple[str, ...] = ()) -> None:
        """The table ``ops.runs`` with a data file for each batch of ids."""
        MigratedTable.create(self.catalog, "ops.runs", table_definition(RUNS, partitioning, properties={"a": "b"}))
        for batch in batches:
            self.append(batch)

    def add(self, *ids: int) -> None:
        """Append rows of two columns to ``ops.runs``."""
        table = self.catalog.load_table("ops.runs")
        table.append(pa.Table.from_pylist([{"id": n, "rows": str(n * 10)} for n in ids], table.schema().as_arrow()))

    def append(self, ids: range) -> None:
        table = self.catalog.load_table("ops.runs")
        if not table.spec().is_unpartitioned():
            values = ", ".join(f"({n}, 'done', '{n * 10}', 'r{n % 3}')" for n in ids)
            self.sql(f"INSERT INTO ops.runs VALUES {values}")
            return
        rows = [{"id": n, "state": "done", "rows": str(n * 10), "region": f"r{n % 3}"} for n in ids]
        table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))

    def delete_by_equality(self, path: Path, ids: list[int]) -> None:
        """As Flink deletes: a file of values of ``id``, whose rows are gone. Only Iceberg's own runtime can add one."""
        number = {b"PARQUET:field_id": b"1"}
        pq.write_table(pa.table([ids], pa.schema([pa.field("id", pa.int64(), metadata=number)])), path)
        jvm = self.session._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.session._jsparkSession, "rfr.ops.runs")
        columns = self.session.sparkContext._gateway.new_array(jvm.int, 1)
        columns[0] = 1
        builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(columns)
        builder = builder.withPath(f"file:{path}").withFormat("parquet").withRecordCount(len(ids))
        table.newRowDelta().addDeletes(builder.withFileSizeInBytes(path.stat().st_size).build()).commit()

    def view(self, name: str, sql: str, *columns: Column, properties: Any = MADE_BY_US) -> None:
        self.engine.create_view(name, sql, properties, columns)

    def start(self, family: str = "d-1-", change: TableChange = AS_NUMBER, **options: Any) -> tuple[Any, Any, Any]:
        """Compute the rewrite over the table as it is now."""
        table = MigratedTable.load(self.catalog, "ops.runs")
        target = table.coming(change, family)
        request = {"query": REWRITE, "snapshot": table.snapshot_id, **options}
        return table, target, self.engine.compute(table="ops.runs", target=target, **request)

    def rewrite(self) -> Any:
        table, target, computed = self.start()
        table.replace_rows(AS_NUMBER, computed, target, {"rfr.migration": "d/1"})
        return computed

    def rows(self, name: str = "ops.runs", **options: Any) -> list[dict[str, Any]]:
        rows = self.catalog.load_table(name).scan(**options).to_arrow().to_pylist()
        return sorted(rows, key=lambda row: row["id"])
