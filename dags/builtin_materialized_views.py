"""Refresh the declared materialized views: a ready file with a DAG for each, named `refresh_` and the table's name.

A materialized view is an object of kind `materialized_view` in the folders that `RFR_BUILTIN_OBJECTS` names (paths
separated by `:`). `refresh.schedule` is a cron expression, in UTC; without one, a run begins when a table that the
query reads is committed to, also through views, by whatever program. The other fields of `refresh` are arguments of
`RefreshMaterializedViewOperator`. A run waits for the one before it, and until the view is deployed; it does nothing
if the tables have no new data.

It needs the connections that `builtin_migration` needs; without a schedule, the triggerer needs `rfr_lake_default`,
too.
"""

from __future__ import annotations

import logging
import os
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG, chain

from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.operators.builtins import declared_materialized_views

OBJECTS = [path for path in os.environ.get("RFR_BUILTIN_OBJECTS", "").split(os.pathsep) if path]
RETRIES: dict[str, Any] = {"retries": 5, "retry_delay": timedelta(seconds=30)}


def fail(problem: str) -> None:
    """Fail the task of a materialized view whose `refresh` is wrong."""
    raise AirflowFailException(problem)


for view in declared_materialized_views(OBJECTS):
    about = f"Refreshes `{view.name}`: {view.declared.comment or view.declared.place}"
    tasks: list[Any]
    try:
        schedule: Any = view.schedule
        tasks = [
            PythonSensor(
                task_id="deployed", python_callable=view.is_deployed, mode="reschedule", poke_interval=30, **RETRIES
            ),
            view.refresh(**RETRIES),
        ]
    except ConfigurationError as error:
        # A failure of this file would remove the DAGs of the other views, too.
        about = str(error)
        logging.getLogger(__name__).error("%s", about)
        schedule = "@once"
        tasks = [PythonOperator(task_id="refresh", python_callable=fail, op_args=[about])]
    with DAG(
        dag_id=f"refresh_{view.name}",
        schedule=schedule,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        tags=["rfr"],
        doc_md=about,
    ) as dag:
        dag.add_tasks(tasks)
        chain(*tasks)
