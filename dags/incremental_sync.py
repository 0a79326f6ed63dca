"""Sync tables each hour with the records of an API that changed, and once a week with all of them.

`incremental_sync` merges changes into the tables, by primary key. Its first run reads everything. **Trigger** opens its
form: *Full refresh* reads everything again and replaces the tables, which also removes rows whose deletion the API did
not report. The task's tab **Refresh** shows what changed, and how far the table is synced.

`incremental_sync_in_full` does that each week, by a run of the other DAG. One DAG has at most one run at a time, so the
two never read at once: the weekly run waits for the hourly one, and the next hourly one for the weekly one.

Both are paused at first. A scheduled run takes the defaults of the form, so copy this file if they do not fit: the
source in `source.yaml` next to your file (or `RFR_SOURCE_FILE`) and its streams, which have to declare `incremental`.
It needs three connections: `rfr_api_default` (the API), `rfr_lake_default` (the catalog) and `spark_default` (the
cluster, e.g. host `local[*]`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import IncrementalSyncOperator
from airflow_provider_rfr.operators.arguments import form_fields, option_fields, options_in

FIELDS = form_fields(
    "shipments",
    full_refresh=Param(
        False,
        type="boolean",
        title="Full refresh",
        description="Read everything and replace the table, instead of the changes since the last sync: after a change"
        " of the cursor or the key, or to remove rows that the API deleted without a trace.",
    ),
)


def options_of(params: dict[str, Any]) -> dict[str, Any]:
    """Return the options among the params."""
    return options_in(params, FIELDS)


with DAG(
    dag_id="incremental_sync",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    render_template_as_native_obj=True,
    is_paused_upon_creation=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={**FIELDS, **option_fields(incremental=True)},
    user_defined_macros={"options_of": options_of},
) as dag:
    IncrementalSyncOperator(
        task_id="refresh",
        source={"file": "{{ params.source_file }}", "config": "{{ params.source_config }}"},
        streams="{{ params.streams }}",
        target="{{ params.target }}",
        write="merge",
        full_refresh="{{ params.full_refresh }}",
        api_conn_id="{{ params.api_conn_id }}",
        lake_conn_id="{{ params.lake_conn_id }}",
        conn_id="{{ params.conn_id }}",
        options="{{ options_of(params) }}",
        retries=5,
        retry_delay=timedelta(seconds=10),
    )

with DAG(
    dag_id="incremental_sync_in_full",
    schedule="@weekly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    is_paused_upon_creation=True,
    tags=["rfr"],
    doc_md=__doc__,
) as in_full:
    TriggerDagRunOperator(
        task_id="trigger",
        trigger_dag_id=dag.dag_id,
        # The same id for each try, so the retry of a try that died after it triggered the run triggers no other one.
        trigger_run_id="full_refresh_of_{{ run_id }}",
        skip_when_already_exists=True,
        conf={"full_refresh": True},
        retries=3,
        retry_delay=timedelta(seconds=10),
    )
