"""The DAG of the operator's tests: refreshes the sample API; its runs say what and how."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP

with DAG(
    "shop_refresh",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    render_template_as_native_obj=True,
    params={"streams": ["items"], "config": {}, "options": {}},
) as dag:
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": str(SHOP), "config": "{{ params.config }}"},
        streams="{{ params.streams }}",
        target="raw.{stream}",
        options="{{ params.options }}",
        api_conn_id="shop",
        lake_conn_id="lake",
        retries=2,
        retry_delay=timedelta(seconds=1),
        poll_interval=1.0,
        keep_checkpoint=True,
    )
