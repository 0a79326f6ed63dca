"""Refresh tables from an API: every page of every stream is read, and each table is replaced as a whole, in one commit.

A run that dies is resumed by its next try, and by the next run, at the page where it stopped. Readers see the old table
until the new one is complete.

**Trigger** opens a form: which source, which streams, into which table, and whether an unfinished refresh is resumed or
started again. Invalid values are refused there. While a run is under way, the button **Refresh progress** on the
task's tab *Details* leads to its progress, and afterwards to the figures of each table.

It needs three connections: `rfr_api_default` (the API), `rfr_lake_default` (the catalog) and `spark_default` (the
cluster, e.g. host `local[*]`). Copy the file or bundle it.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.arguments import TARGET_PATTERN, options_schema

with DAG(
    dag_id="resumable_full_refresh",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    render_template_as_native_obj=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={
        "source_file": Param(
            os.environ.get("RFR_SOURCE_FILE", "source.yaml"),
            type="string",
            minLength=1,
            section="Source",
            title="Source file",
            description="YAML file of the source; a relative one is looked up next to the DAG's file.",
        ),
        "source_config": Param(
            {},
            type="object",
            section="Source",
            title="Source settings",
            description='What the source\'s templates see as config, e.g. {"page_size": 500}. Secrets belong into the'
            " connection: everyone who can see the run can see these.",
        ),
        "streams": Param(
            ["orders"],
            type="array",
            items={"type": "string", "minLength": 1},
            minItems=1,
            uniqueItems=True,
            section="Source",
            title="Streams",
            description="Streams to refresh, one a line.",
        ),
        "target": Param(
            "raw.{stream}",
            type="string",
            pattern=TARGET_PATTERN,
            section="Target",
            title="Table",
            description="namespace.table; {stream} becomes the stream's name, and is needed for several streams.",
        ),
        "unfinished": Param(
            "resume",
            type="string",
            enum=["resume", "restart"],
            values_display={"resume": "Resume it where it stopped", "restart": "Restart: read everything again"},
            section="Refresh",
            title="An unfinished refresh of the table",
            description="A finished one is never resumed: the next run reads everything again.",
        ),
        "options": Param(
            {},
            **options_schema("force_restart"),
            section="Refresh",
            title="Options",
            description='How the refresh runs, e.g. {"concurrency": 32, "requests_per_second": 50}.',
        ),
    },
) as dag:
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": "{{ params.source_file }}", "config": "{{ params.source_config }}"},
        api_conn_id="rfr_api_default",
        streams="{{ params.streams }}",
        target="{{ params.target }}",
        options="{{ dict(params.options, force_restart=params.unfinished == 'restart') }}",
        retries=5,
        retry_delay=timedelta(seconds=10),
    )
