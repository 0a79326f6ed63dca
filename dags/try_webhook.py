"""Try a webhook: call one endpoint with an invented event, from a form.

Airflow stores the values of the form in plain text, so it has no field for an address or a header. Make a connection of
type `rfr_http` with them and name it. The answer is in the task's return value, masked.
"""

from __future__ import annotations

import json
from datetime import datetime
from importlib.resources import files
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import WebhookOperationOperator

FIELDS = {
    "connection": "string",
    "preset": "string",
    "with": "object",
    "method": "string",
    "payload": "object",
    "payloadTemplate": "string",
    "timeout": "string",
}
"""Fields of an endpoint that hold no secret, with their types in the form. The JSON schema gives everything else."""
SCHEMA = json.loads(files("airflow_provider_rfr.webhooks").joinpath("trigger_schema.json").read_text(encoding="utf-8"))
ENDPOINT = SCHEMA["$defs"]["Endpoint"]["properties"]


def form_field(name: str, kind: str) -> Param:
    """Return an optional field of the form."""
    schema: dict[str, Any] = ENDPOINT[name]
    bounds: dict[str, Any] = {key: schema[key] for key in ("pattern", "minLength", "maxLength") if key in schema}
    if "enum" in schema:
        bounds["enum"] = [None, *schema["enum"]]
    return Param(
        schema.get("default"), type=["null", kind], title=name, description=schema.get("description", ""), **bounds
    )


with DAG(
    dag_id="try_webhook",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    render_template_as_native_obj=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={name: form_field(name, kind) for name, kind in FIELDS.items()},
) as dag:
    WebhookOperationOperator(task_id="call", action="test_fire", endpoint="{{ params }}")
