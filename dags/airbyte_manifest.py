"""Refresh tables by an Airbyte manifest: each stream is read page by page, and its table is replaced in one commit.

A run that dies is resumed by its next try, and by the next run, at the page where it stopped. `airflow rfr source
check FILE --offline` says beforehand which streams can be resumed by page, and `airflow rfr source connection FILE`
which connection to make: secrets are there, never in the form.

It needs the extra `airbyte` on Airflow's workers and on Spark's executors, and three connections: `rfr_api_default`
(secrets of the API), `rfr_lake_default` (the catalog) and `spark_default` (the cluster, e.g. host `local[*]`).
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.operators.arguments import stream_fields

with DAG(
    dag_id="airbyte_manifest",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    render_template_as_native_obj=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={
        "manifest": Param(
            os.environ.get("RFR_MANIFEST", "manifest.yaml"),
            type="string",
            minLength=1,
            title="Manifest",
            description="A connector's manifest.yaml; a relative path is looked up next to the DAG's file.",
        ),
        "config": Param(
            {},
            type="object",
            title="Configuration",
            description="Fields of the manifest's spec that are no secrets, e.g."
            ' {"start_date": "2024-01-01T00:00:00Z"}. Everyone who can see the run can see these.',
        ),
        **stream_fields("customers", "By the manifest's names, one a line."),
    },
) as dag:
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"manifest": "{{ params.manifest }}", "config": "{{ params.config }}"},
        api_conn_id="rfr_api_default",
        streams="{{ params.streams }}",
        target="{{ params.target }}",
        retries=5,
        retry_delay=timedelta(seconds=10),
    )
