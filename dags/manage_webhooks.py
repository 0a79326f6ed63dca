"""Manage webhooks: send dead letters again, cancel them, and pause or resume an endpoint, from a form.

The buttons of the page *Deliveries* start it, with the rights of the user who presses them. It sends nothing itself:
the task that has the endpoint's triggers file does, such as that of `deliver_webhooks`. It needs the connections that
`deliver_webhooks` needs.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import WebhookOperationOperator

with DAG(
    dag_id="manage_webhooks",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["rfr"],
    doc_md=__doc__,
    params={
        "action": Param(
            "replay",
            enum=["replay", "cancel", "pause", "resume"],
            title="Action",
            description="On dead letters: replay or cancel; on the endpoint: pause or resume",
        ),
        "target": Param("raw.orders", type="string", minLength=1, title="Table", description="namespace.table"),
        "trigger": Param(
            "",
            type="string",
            title="Trigger",
            description="Name of the endpoint, or block/trigger; for replay and cancel empty for all of the table",
        ),
        "lake_conn_id": Param(
            "rfr_lake_default",
            type="string",
            minLength=1,
            title="Connection of the lake",
            description="Its id, of type rfr_lake: the catalog with the table",
        ),
    },
) as dag:
    WebhookOperationOperator(
        task_id="manage",
        action="{{ params.action }}",
        target="{{ params.target }}",
        trigger="{{ params.trigger }}",
        lake_conn_id="{{ params.lake_conn_id }}",
    )
