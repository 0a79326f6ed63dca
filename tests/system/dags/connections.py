"""Refreshes whose connections are altered while they run, and the DAG that alters them."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_rfr.operators import AlterConnectionOperator, ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP

HOME = Path(os.environ["AIRFLOW_HOME"])
EVENTS = HOME / "events"
# What Spark shows and keeps of itself is searched for secrets, so it has to be readable.
SHOWN = {
    "spark.ui.enabled": "true",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.dir": EVENTS.as_uri(),
}

EVENTS.mkdir(exist_ok=True)

for name in ("moving", "staying", "rotating", "waiting"):
    with DAG(
        f"uses_{name}",
        schedule=None,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        render_template_as_native_obj=True,
        params={"config": {}, "options": {}},
    ) as dag:
        ResumableFullRefreshOperator(
            task_id="refresh",
            source={"file": str(SHOP), "config": "{{ params.config }}"},
            streams=["items"],
            target=f"raw.{name}",
            options="{{ params.options }}",
            api_conn_id=name,
            lake_conn_id="lake",
            retries=3,
            # Far longer than the test: only the alteration can start it again.
            retry_delay=timedelta(hours=1),
            poll_interval=1.0,
            conf=SHOWN,
        )
    globals()[dag.dag_id] = dag

with DAG(
    "alter",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    render_template_as_native_obj=True,
    params={"statement": "", "api": None},
):
    AlterConnectionOperator(
        task_id="alter", statement="{{ params.statement }}", airflow_api_conn_id="{{ params.api }}", retries=0
    )
