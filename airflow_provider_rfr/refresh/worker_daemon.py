"""The daemon that forks Spark's Python workers on this machine, with the modules of tasks loaded before.

Spark starts it by ``spark.python.daemon.module``. Otherwise each worker would import the same modules again, a second
of processor time each, on cores that should read pages.
"""

from __future__ import annotations

from airflow_provider_rfr.refresh.cluster import freeze_modules, read_archives_once, without_pandas

if __name__ == "__main__":
    read_archives_once()
    # For tasks of the publish: a short refresh is read by the driver while Spark starts, and has no other tasks.
    with without_pandas():
        import pyarrow.dataset  # noqa: F401
    from pyspark.daemon import manager

    from airflow_provider_rfr.refresh import publish_task  # noqa: F401

    # Spark collects garbage after each task. The modules' objects, some 90,000, live as long as the workers, so they
    # are hidden from the collector.
    freeze_modules()
    manager()
