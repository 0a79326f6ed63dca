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

import os
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.arguments import TARGET_PATTERN, option_fields

FIELDS = {
    "source_file": Param(
        os.environ.get("RFR_SOURCE_FILE", "source.yaml"),
        type="string",
        minLength=1,
        title="Source file",
        description="YAML file of the source; a relative one is looked up next to the DAG's file.",
    ),
    "streams": Param(
        ["orders"],
        type="array",
        items={"type": "string", "minLength": 1},
        minItems=1,
        uniqueItems=True,
        title="Streams",
        description="Streams to refresh, one a line.",
    ),
    "target": Param(
        "raw.{stream}",
        type="string",
        pattern=TARGET_PATTERN,
        title="Table",
        description="namespace.table; {stream} becomes the stream's name, and is needed for several streams.",
    ),
    "unfinished": Param(
        "resume",
        type="string",
        enum=["resume", "restart"],
        values_display={"resume": "Resume it where it stopped", "restart": "Restart: read everything again"},
        title="An unfinished refresh of the table",
        description="A finished one is never resumed: the next run reads everything again.",
    ),
    "api_conn_id": Param(
        "rfr_api_default",
        type=["string", "null"],
        minLength=1,
        title="Connection of the API",
        description="Its id, of type rfr_api; none for an API that needs neither an address nor a secret from it.",
    ),
    "lake_conn_id": Param(
        "rfr_lake_default",
        type="string",
        minLength=1,
        title="Connection of the lake",
        description="Its id, of type rfr_lake: the catalog with the table.",
    ),
    "conn_id": Param(
        "spark_default",
        type="string",
        minLength=1,
        title="Connection of Spark",
        description="Its id, of type spark: the cluster, or local[*].",
    ),
    "source_config": Param(
        {},
        type="object",
        title="Source settings",
        description='What the source\'s templates see as config, e.g. {"page_size": 500}. Secrets belong into the'
        " connection: everyone who can see the run can see these.",
    ),
}


def options_of(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params without a field above; the operator refuses a name that it does not know."""
    options = {name: value for name, value in params.items() if name not in FIELDS}
    return {"force_restart": params["unfinished"] == "restart", **options}


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
