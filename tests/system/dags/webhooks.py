"""The DAGs of the tests of webhooks on a running Airflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_rfr.operators import CommitWebhookOperator, table_asset
from airflow_provider_rfr.sensors import CommitSensor
from airflow_provider_rfr.triggers import CommitTrigger

DEFAULTS: dict[str, Any] = {"start_date": datetime(2026, 1, 1), "catchup": False}
TRIGGER = CommitTrigger("raw.watched", asset="watched_commits", lake_conn_id="lake", poll_interval=1)
COMMITS = Asset("watched_commits", watchers=[AssetWatcher(name="watch", trigger=TRIGGER)])

with DAG(
    "deliver", schedule=None, render_template_as_native_obj=True, params={"triggers_file": "", "target": ""}, **DEFAULTS
):
    CommitWebhookOperator(
        task_id="deliver",
        triggers="{{ params.triggers_file }}",
        target="{{ params.target }}",
        lake_conn_id="lake",
        deferrable=True,
        slot_seconds=0.2,
    )

with DAG("sense", schedule=None, **DEFAULTS):
    CommitSensor(
        task_id="wait",
        target="raw.sensed",
        after="{{ dag_run.run_after }}",
        lake_conn_id="lake",
        poke_interval=1,
        pool="narrow",
        # Airflow may fail a task that resumes before its scheduler knew that it was deferred (apache/airflow#67287).
        retries=2,
        retry_delay=timedelta(seconds=1),
    )

with DAG("after_refresh", schedule=[table_asset("raw.after_refresh", lake_conn_id="lake")], **DEFAULTS):
    CommitSensor(task_id="wait", target="raw.after_refresh", lake_conn_id="lake", poke_interval=1)

with DAG("on_commit", schedule=[COMMITS], **DEFAULTS):
    EmptyOperator(task_id="done")

with DAG("started", schedule=None, **DEFAULTS):
    EmptyOperator(task_id="done")
