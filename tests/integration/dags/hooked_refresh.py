"""A refresh that delivers its webhooks right after the publish."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP

TRIGGERS = Path(os.environ["AIRFLOW_HOME"]) / "triggers.json"

with DAG(
    "hooked_refresh",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    render_template_as_native_obj=True,
    params={"config": {}},
) as dag:
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": str(SHOP), "config": "{{ params.config }}"},
        streams=["items"],
        target="raw.hooked",
        api_conn_id="shop",
        lake_conn_id="lake",
        deliver_after=str(TRIGGERS),
    )
