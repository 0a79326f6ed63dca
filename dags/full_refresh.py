"""Refresh tables from an API: every page of every stream is read, and each table is replaced as a whole, in one commit.

A run that dies is resumed by its next try, and by the next run, at the page where it stopped. Readers see the old table
until the new one is complete.

**Trigger** opens a form: which source, which streams, into which table, with which connections, whether an unfinished
refresh is resumed or started again, and below *Options* how the refresh runs. Invalid values are refused there. The
task's tab **Refresh** shows its progress.

It needs three connections: `rfr_api_default` (the API), `rfr_lake_default` (the catalog) and `spark_default` (the
cluster, e.g. host `local[*]`); the form takes others.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.arguments import form_fields, option_fields, options_in

FIELDS = form_fields(
    "orders",
    unfinished=Param(
        "resume",
        type="string",
        enum=["resume", "restart"],
        values_display={"resume": "Resume it where it stopped", "restart": "Restart: read everything again"},
        title="An unfinished refresh of the table",
        description="A finished one is never resumed: the next run reads everything again.",
    ),
)


def options_of(params: dict[str, Any]) -> dict[str, Any]:
    """Return the options among the params, with the choice for an unfinished refresh."""
    return {"force_restart": params["unfinished"] == "restart", **options_in(params, FIELDS)}


with DAG(
    dag_id="resumable_full_refresh",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    render_template_as_native_obj=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={**FIELDS, **option_fields("force_restart")},
    user_defined_macros={"options_of": options_of},
) as dag:
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": "{{ params.source_file }}", "config": "{{ params.source_config }}"},
        streams="{{ params.streams }}",
        target="{{ params.target }}",
        api_conn_id="{{ params.api_conn_id }}",
        lake_conn_id="{{ params.lake_conn_id }}",
        conn_id="{{ params.conn_id }}",
        options="{{ options_of(params) }}",
        retries=5,
        retry_delay=timedelta(seconds=10),
    )
