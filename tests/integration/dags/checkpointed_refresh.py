"""The same refresh with each of the checkpoint stores, and a task after it that reads what XCom has."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.retry_policies import RefreshRetryPolicy
from airflow_provider_rfr.sample_api import SHOP


def pages_of(ti: object) -> dict[str, int] | None:
    """Pages by table, as the checkpoint tells them."""
    checkpoint = ti.xcom_pull(task_ids="refresh", key="rfr_checkpoint")  # type: ignore[attr-defined]
    return None if checkpoint is None else {table: counts["pages"] for table, counts in checkpoint["tables"].items()}


for store in ("task_state", "variable", "xcom"):
    with DAG(
        f"checkpointed_{store}",
        schedule=None,
        start_date=datetime(2026, 1, 1),
        render_template_as_native_obj=True,
        params={"config": {}},
    ) as dag:
        ResumableFullRefreshOperator(
            task_id="refresh",
            source={"file": str(SHOP), "config": "{{ params.config }}"},
            streams="items",
            target="raw.items",
            api_conn_id="shop",
            lake_conn_id="lake",
            retries=4,
            retry_delay=timedelta(seconds=1),
            retry_policy=RefreshRetryPolicy(),
            poll_interval=1.0,
            checkpoint_store=store,
        ) >> PythonOperator(task_id="report", python_callable=pages_of)
    globals()[dag.dag_id] = dag
