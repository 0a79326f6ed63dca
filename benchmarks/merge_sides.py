"""The sides of the merge benchmark, each a process of its own that prints a line of JSON for each case.

The CPU of a merge is that of the whole process tree. Measuring begins when the changes are read, typed or not, and
Spark is up.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

_ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    sys.path[0] = str(_ROOT)

from benchmarks.merge_lake import NAMESPACE, TABLE, Case, MergeLake, in_shape, rows_of  # noqa: E402
from benchmarks.processes import cpu_of, members_of  # noqa: E402

SIDES = ("merge_into", "upsert", "dlt")


@contextmanager
def measured(figures: dict[str, float]) -> Iterator[None]:
    """Add the seconds and the CPU seconds of this process's session to the figures."""
    before, began = _cpu(), time.perf_counter()
    yield
    figures["wall_s"] = round(time.perf_counter() - began, 3)
    after = _cpu()
    figures["cpu_s"] = round(sum(used - before.get(pid, 0.0) for pid, used in after.items()), 3)


def _cpu() -> dict[int, float]:
    return {pid: cpu_of(pid) for pid in members_of(os.getsid(0))}


def sync(config: str) -> int:
    """Run the application, and print the cost of its publish and of its merge before its last line.

    The publish first converts the records to typed rows in Parquet files, with which the other sides begin.
    """
    from airflow_provider_rfr.refresh.application import main as run
    from airflow_provider_rfr.refresh.publish_changes import ChangesPublisher

    for name in ("publish", "_merge_and_commit"):
        _measure(ChangesPublisher, name)
    return run(config, began=time.monotonic())


def _measure(owner: type, name: str) -> None:
    """Wrap a method so that it prints its cost."""
    method: Callable[..., Any] = getattr(owner, name)

    def measure(*arguments: Any) -> Any:
        figures: dict[str, float] = {}
        with measured(figures):
            outcome = method(*arguments)
        print(json.dumps({"cost_of": name, **figures}))
        return outcome

    setattr(owner, name, measure)


def merge_into(lake: MergeLake, cases: list[Case]) -> None:
    """Merge by Spark's ``MERGE INTO``, copy-on-write, in one session."""
    from pyspark.sql import SparkSession

    from airflow_provider_rfr.lake.catalog import LakeSettings, spark_sql_settings

    settings = spark_sql_settings(LakeSettings(name=NAMESPACE, properties=lake.properties))
    settings |= {"spark.driver.memory": "4g", "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    settings |= {"spark.sql.shuffle.partitions": "8", f"spark.sql.catalog.{NAMESPACE}.cache-enabled": "false"}
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    target = f"{NAMESPACE}.{TABLE}"
    # A warm-up, so that classes are loaded and code is compiled before the first case.
    spark.sql(f"SELECT sum(version) FROM {target}").collect()
    for case in cases:
        lake.reset()
        spark.read.parquet(str(changes_file(lake, case))).createOrReplaceTempView("changes")
        columns = [name for name in spark.table("changes").columns if name != "is_deleted"]
        assignments = ", ".join(f"t.{name} = c.{name}" for name in columns)
        figures: dict[str, Any] = {"case": case.name}
        with measured(figures):
            spark.sql(
                f"MERGE INTO {target} t USING changes c ON t.id = c.id"
                " WHEN MATCHED AND c.is_deleted THEN DELETE"
                f" WHEN MATCHED THEN UPDATE SET {assignments}"
                f" WHEN NOT MATCHED AND NOT c.is_deleted THEN INSERT ({', '.join(columns)})"
                f" VALUES ({', '.join(f'c.{name}' for name in columns)})"
            )
        print(json.dumps({**figures, "counts": lake.counts()}), flush=True)
    spark.stop()


def upsert(lake: MergeLake, cases: list[Case]) -> None:
    """Merge by PyIceberg's ``Table.upsert``, which deletes nothing."""
    for case in cases:
        lake.reset()
        table = lake.table
        changes = in_shape(pq.read_table(changes_file(lake, case)), table.schema().as_arrow())
        figures: dict[str, Any] = {"case": case.name}
        with measured(figures):
            table.upsert(changes, join_cols=["id"])
        print(json.dumps({**figures, "counts": lake.counts()}), flush=True)


def dlt(lake: MergeLake, cases: list[Case]) -> None:
    """Merge by dlt's strategy ``upsert`` into a table that dlt loaded itself; runs in `.venv/peers`."""
    import dlt

    os.environ |= {
        "RUNTIME__DLTHUB_TELEMETRY": "false",
        "DESTINATION__FILESYSTEM__BUCKET_URL": str(lake.folder / "dlt"),
    }
    for case in cases:
        place = lake.folder / f"dlt-{case.place}-{case.count}"
        destination = dlt.destinations.filesystem(bucket_url=place.as_uri())
        pipeline = dlt.pipeline("bench", str(place / "work"), destination=destination, dataset_name="bench")
        rows = rows_of(np.arange(lake.rows, dtype=np.int64), lake.keys, 0)
        changes = pq.read_table(changes_file(lake, case)).drop_columns("is_deleted")
        common: dict[str, Any] = {"name": "orders", "table_format": "iceberg", "primary_key": "id"}
        first = dlt.resource([rows], write_disposition="replace", **common)
        pipeline.run(first, loader_file_format="parquet")
        merge = {"disposition": "merge", "strategy": "upsert"}
        figures: dict[str, Any] = {"case": case.name}
        with measured(figures):
            pipeline.run(dlt.resource([changes], write_disposition=merge, **common), loader_file_format="parquet")
        print(json.dumps(figures), flush=True)


def changes_file(lake: MergeLake, case: Case) -> Path:
    """Return the file with the changes of a case, which is written where it is missing."""
    file = lake.folder / f"changes-{case.place}-{case.count}.parquet"
    if not file.exists():
        pq.write_table(case.changes(lake.rows, lake.keys), file)
    return file


def main() -> int:
    """Run one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("sync", *SIDES))
    parser.add_argument("--config")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keys")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--case", nargs="*", type=Case.of)
    options = parser.parse_args()
    if options.side == "sync":
        return sync(options.config)
    lake = MergeLake(options.folder, options.keys, options.rows, 1)
    {"merge_into": merge_into, "upsert": upsert, "dlt": dlt}[options.side](lake, options.case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
