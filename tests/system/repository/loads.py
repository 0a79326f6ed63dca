"""The DAG of the tests on an Airflow that takes its DAGs from a git repository; its source file lies next to it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_rfr.operators import ResumableFullRefreshOperator


@task
def report(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the refresh returned."""
    return result


with DAG(
    "from_git",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    render_template_as_native_obj=True,
    params={"table": "items", "config": {}, "options": {}},
):
    refresh = ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": "shop.yaml", "config": "{{ params.config }}"},
        streams=["items"],
        target="raw.{{ params.table }}",
        options="{{ params.options }}",
        api_conn_id="shop",
        lake_conn_id="lake",
        checkpoint_store="xcom",
        conf={"spark.ui.enabled": "true"},
        retries=4,
        retry_delay=timedelta(seconds=1),
        poll_interval=1.0,
    )
    report(refresh.output)
