"""DAGs that refresh the sample API's items; their runs give its configuration."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.retry_policies import RefreshRetryPolicy
from airflow_provider_rfr.sample_api import SHOP


def refresh(**arguments: Any) -> ResumableFullRefreshOperator:
    return ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": str(SHOP), "config": "{{ params.config }}"},
        streams="items",
        target="raw.items",
        api_conn_id="shop",
        lake_conn_id="lake",
        retry_delay=timedelta(seconds=1),
        poll_interval=1.0,
        **arguments,
    )


def pages_of(ti: Any) -> dict[str, int] | None:
    """Pages by table, as the checkpoint tells them."""
    checkpoint = ti.xcom_pull(task_ids="refresh", key="rfr_checkpoint")
    return None if checkpoint is None else {table: counts["pages"] for table, counts in checkpoint["tables"].items()}


DEFAULTS: dict[str, Any] = {"schedule": None, "start_date": datetime(2026, 1, 1), "params": {"config": {}}}

with DAG("shop_refresh", render_template_as_native_obj=True, **DEFAULTS) as shop_refresh:
    refresh(retries=2, keep_checkpoint=True)

for store in ("task_state", "variable", "xcom"):
    with DAG(f"checkpointed_{store}", render_template_as_native_obj=True, **DEFAULTS) as dag:
        tried = refresh(retries=4, retry_policy=RefreshRetryPolicy(), checkpoint_store=store)
        # It reads what XCom has.
        tried >> PythonOperator(task_id="report", python_callable=pages_of)
    globals()[dag.dag_id] = dag
