"""Change a connection: the new settings are tested and stored as a whole, and every refresh that uses them continues
where it stopped.

**Trigger** opens a form. Either write a statement, or name the connection and what is to be set, dropped or reset.
What is entered is stored by Airflow in plain text: give secrets, and the addresses of webhooks, as `SECRET 'env:NAME'`
or `SECRET 'variable:NAME'`.
With **Only report what would be done** nothing changes, and the task's result is the plan.

The task edits connections by Airflow's own API: make a connection `airflow_api` of type `rfr_http`, with Airflow's
address as host, and login and password of a user who may edit connections. Users who may trigger this DAG can do what
that user may.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG, Param

from airflow_provider_rfr.operators import AlterConnectionOperator

NAMES: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}

with DAG(
    dag_id="alter_connection",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    render_template_as_native_obj=True,
    tags=["rfr"],
    doc_md=__doc__,
    params={
        "statement": Param(
            None,
            type=["null", "string"],
            title="Statement",
            description="ALTER CONNECTION name SET (host = '...'), RESET (...), or DROP CONNECTION name;"
            " leave the fields below empty then.",
        ),
        "connection": Param(
            None,
            type=["null", "string"],
            pattern=r"^[\w.-]+$",
            section="In fields",
            title="Connection",
            description="Its id.",
        ),
        "set": Param(
            {},
            type=["null", "object"],
            section="In fields",
            title="Set",
            description='E.g. {"host": "https://new.example.com", "password": "SECRET \'env:API_KEY\'"}.',
        ),
        "drop": Param([], **NAMES, section="In fields", title="Drop", description="Options that go."),
        "reset": Param([], **NAMES, section="In fields", title="Reset", description="Options back to their defaults."),
        "dry_run": Param(False, type="boolean", section="How", title="Only report what would be done"),
        "validate": Param(True, type="boolean", section="How", title="Try the new settings first"),
        "restart": Param(True, type="boolean", section="How", title="Restart what uses the connection"),
        "new_identity": Param(
            False,
            type="boolean",
            section="How",
            title="Another upstream",
            description="Everything is read from its beginning.",
        ),
        "drain_timeout": Param(
            "10m",
            type="string",
            pattern=r"^\d+(s|m|h)$",
            section="How",
            title="Time to stop",
            description="For which a running refresh may take to reach its next checkpoint.",
        ),
    },
) as dag:
    AlterConnectionOperator(
        task_id="alter",
        statement="{{ params.statement }}",
        connection="{{ params.connection }}",
        set="{{ params.set }}",
        drop="{{ params.drop }}",
        reset="{{ params.reset }}",
        dry_run="{{ params.dry_run }}",
        validate="{{ params.validate }}",
        restart="{{ params.restart }}",
        new_identity="{{ params.new_identity }}",
        drain_timeout="{{ params.drain_timeout }}",
    )
