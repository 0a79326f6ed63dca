"""The parent of Spark's Python workers on this machine, with the tasks' modules loaded before it forks.

Spark starts it by ``spark.python.daemon.module``. Each worker would otherwise import the same modules again, a second
of processor time each, on cores that should read pages.
"""

from __future__ import annotations

from airflow_provider_rfr.refresh.cluster import freeze_modules, read_archives_once, without_pandas

if __name__ == "__main__":
    read_archives_once()
    # What the publish's tasks need: a short refresh, read while Spark started, has no others.
    with without_pandas():
        import pyarrow.dataset  # noqa: F401
    from pyspark.daemon import manager

    from airflow_provider_rfr.refresh import publish_task  # noqa: F401

    # Spark collects garbage after each task. The modules' objects, some 90,000, live as long as the workers: they
    # are taken out of what the collector goes through.
    freeze_modules()
    manager()
