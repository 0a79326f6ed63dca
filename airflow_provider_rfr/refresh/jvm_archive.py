"""Write the class archive: ``python -m airflow_provider_rfr.refresh.jvm_archive``.

Runs one small Spark job whose JVM writes the archive as it exits (about ten seconds and 150 MB, once a machine).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow_provider_rfr.refresh.jvm import FAST_START, archive_path


def write_archive() -> Path | None:
    """Write it where it is missing; returns its path, or None where Java or Spark is missing."""
    archive = archive_path()
    if archive is None or archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_suffix(f".{os.getpid()}")
    _run_small_job([*FAST_START, f"-XX:ArchiveClassesAtExit={draft}"])
    if not draft.is_file():
        return None
    draft.replace(archive)
    return archive


def _run_small_job(options: list[str]) -> None:
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setMaster("local[2]").setAppName("rfr class archive")
    conf.set("spark.driver.extraJavaOptions", " ".join(options)).set("spark.ui.enabled", "false")
    context = SparkContext(conf=conf)
    context.parallelize(range(4), 2).map(lambda number: (number % 2, number)).groupByKey().collect()
    gateway = context._gateway
    context.stop()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.wait(timeout=120)


if __name__ == "__main__":
    path = write_archive()
    print(f"class archive: {path}" if path else "no class archive: Java or Spark was not found")
    sys.exit(0)
