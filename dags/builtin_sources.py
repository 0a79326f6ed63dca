"""Refresh the declared sources: a ready file with a DAG for each, named `refresh_` and the table's name.

A source is an object of kind `source` in the folders that `RFR_BUILTIN_OBJECTS` names (paths separated by `:`). Its
`source` and `refresh` hold the arguments of `ResumableFullRefreshOperator`; `refresh.schedule` is a cron expression, in
UTC, and without one the source is refreshed once. Besides, a run begins by itself when the DAG `builtin_migration` has
created or emptied the table, or deployed another definition. A run waits for the one before it, and until the
declaration is deployed.

It needs the connections that `builtin_migration` needs, and those that the sources name.
"""

from __future__ import annotations

import logging
import os
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG, chain

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators.builtins import declared_sources

OBJECTS = [path for path in os.environ.get("RFR_BUILTIN_OBJECTS", "").split(os.pathsep) if path]
RETRIES: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=10)}


def fail(problem: str) -> None:
    """Fail the task of a source whose declaration is wrong."""
    raise AirflowFailException(problem)


for source in declared_sources(OBJECTS):
    about = f"Refreshes `{source.name}`: {source.declared.comment or source.declared.place}"
    tasks: list[Any]
    try:
        schedule: Any = source.schedule
        tasks = [
            PythonSensor(
                task_id="deployed", python_callable=source.is_deployed, mode="reschedule", poke_interval=30, **RETRIES
            ),
            ShortCircuitOperator(task_id="needed", python_callable=source.is_needed, **RETRIES),
            source.refresh(**RETRIES),
        ]
    except ConfigurationError as error:
        # A failure of this file would remove the DAGs of the other sources, too.
        about = str(error)
        logging.getLogger(__name__).error("%s", about)
        schedule = [source.asset]
        tasks = [PythonOperator(task_id="refresh", python_callable=fail, op_args=[about])]
    with DAG(
        dag_id=f"refresh_{source.name}",
        schedule=schedule,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        tags=["rfr"],
        doc_md=about,
    ) as dag:
        dag.add_tasks(tasks)
        chain(*tasks)
