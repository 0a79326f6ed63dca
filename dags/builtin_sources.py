"""Refresh the declared sources: a ready file with a DAG for each, named `refresh_` and the table's name.

A source is an object of kind `source` in the folders that `RFR_BUILTIN_OBJECTS` names (paths separated by `:`). Its
`source` and `refresh` hold the arguments of `ResumableFullRefreshOperator`; `refresh.schedule` is a cron expression, in
UTC, and without one the source is refreshed once. Besides, a run begins by itself when the DAG `builtin_migration` has
emptied the table or deployed another definition; while a refresh of it is under way, that run waits for its end.

Copy it or bundle it beside `builtin_migration.py`. It needs the same connections, and those that the sources name.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG

from airflow_provider_rfr.operators.declared_sources import declared_sources

OBJECTS = [path for path in os.environ.get("RFR_BUILTIN_OBJECTS", "").split(os.pathsep) if path]
RETRIES: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=10)}

for source in declared_sources(OBJECTS):
    with DAG(
        dag_id=f"refresh_{source.name}",
        schedule=source.schedule,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        tags=["rfr"],
        doc_md=f"Refreshes `{source.name}`: {source.declared.comment or source.declared.place}",
    ):
        deployed = PythonSensor(
            task_id="deployed", python_callable=source.is_deployed, mode="reschedule", poke_interval=30, **RETRIES
        )
        deployed >> source.refresh(**RETRIES)
