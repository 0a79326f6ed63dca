"""Refresh tables from an API: a ready DAG with a form for runs from Airflow's UI.

Copy it or bundle it. It needs three connections: ``rfr_api_default`` (the API), ``rfr_lake_default`` (the catalog) and
``spark_default`` (the cluster, e.g. host ``local[*]``).
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import ResumableFullRefreshOperator

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
            os.environ.get("RFR_SOURCE_FILE", "source.yaml"), type="string", description="YAML file of the source"
        ),
        "source_config": Param({}, type="object", description="Values that the source's templates see as config"),
        "streams": Param(["orders"], type="array", items={"type": "string"}, description="Streams to refresh"),
        "target": Param("raw.{stream}", type="string", description="Table to publish to"),
        "options": Param({}, type="object", description="Options of the refresh, e.g. concurrency"),
        "restart": Param(False, type="boolean", description="Begin anew although an unfinished refresh could go on"),
    },
) as dag:
    ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": "{{ params.source_file }}", "config": "{{ params.source_config }}"},
        api_conn_id="rfr_api_default",
        streams="{{ params.streams }}",
        target="{{ params.target }}",
        options="{{ dict(params.options, force_restart=params.restart) }}",
        retries=5,
        retry_delay=timedelta(seconds=10),
    )
