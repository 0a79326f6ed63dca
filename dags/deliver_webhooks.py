"""Deliver commit webhooks: a ready DAG for the commits of refreshes and of any other writer.

Each run enqueues the commits that are new, sends what is due, waits half a minute for quick retries, and leaves what is
still pending to the next run. Any number of runs may overlap: each delivery is sent by one of them at a time. A run in
which a delivery is given up fails, so that Airflow's alerts are sent; the data is published all the same.

It needs a triggers file (`RFR_TRIGGERS_FILE`, the form, or else `triggers.yaml` next to the DAG's file), the connection
`rfr_lake_default`, and in production a connection `rfr_control_store` to PostgreSQL. While there is no `triggers.yaml`,
and no other file is named, the task is skipped. A short interval costs little: a run with nothing to do looks at the
tables and ends.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG, Context, Param

from airflow_provider_rfr.operators import CommitWebhookOperator

USUAL_FILE = "triggers.yaml"


def skip_without_triggers(context: Context) -> None:
    """Skip the task while no webhooks are set up; if a file was named, it is an error that it is missing."""
    usual = Path(context["dag"].fileloc).parent / USUAL_FILE
    if context["params"]["triggers_file"] == USUAL_FILE and not usual.is_file():
        raise AirflowSkipException(
            f"Nothing to deliver: {usual} does not exist, and RFR_TRIGGERS_FILE names no other file"
        )


with DAG(
    dag_id="deliver_webhooks",
    schedule=timedelta(minutes=5),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=2,
    render_template_as_native_obj=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={
        "triggers_file": Param(
            os.environ.get("RFR_TRIGGERS_FILE", USUAL_FILE),
            type="string",
            minLength=1,
            title="Triggers file",
            description="YAML or JSON file with the triggers block, as workers see it; sealed or with connections",
        ),
        "target": Param(
            None,
            type=["null", "array"],
            items={"type": "string"},
            title="Tables",
            description="namespace.table each; empty for every table that a refresh has published to",
        ),
        "start_from": Param(
            "latest",
            enum=["latest", "earliest"],
            title="Start from",
            description="For an endpoint that is new to a table: its newest commit, or the oldest that there is",
        ),
    },
) as dag:
    CommitWebhookOperator(
        task_id="deliver",
        triggers="{{ params.triggers_file }}",
        target="{{ params.target }}",
        start_from="{{ params.start_from }}",
        wait=False,
        fail_on_dead=True,
        pre_execute=skip_without_triggers,
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
