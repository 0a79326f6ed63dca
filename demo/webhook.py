"""The last part of the demo: the ready DAG notifies a receiver on loopback of the commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from demo.airflow_stack import AirflowStack
from demo.webhook_receiver import Receiver

DAG, RUN = "deliver_webhooks", "demo"
SECRET = "whsec_ZGVtby1zaWduaW5nLWtleS05YzQxZTctYWJjZGVm"
PATIENCE = 90.0


def write_triggers(path: Path, receiver: Receiver) -> None:
    """Write a triggers file with one endpoint, as a user does."""
    endpoint = {
        "url": f"{receiver.url}/commits",
        "payload": {
            "event": "table.published",
            "table": "{{target_name}}",
            "rows": "{{totals.documents}}",
            "generation": "{{generation}}",
            "published": "{{committed_at}}",
            "run": "{{dag_run_id}}",
        },
        "signing": {"secrets": [SECRET]},
    }
    path.write_text(yaml.safe_dump({"triggers": {"config": {"onCommit": endpoint}}}, sort_keys=False))


def deliver(airflow: AirflowStack, triggers: Path, table: str) -> str:
    """Trigger the DAG, wait for its end, and return the run's state."""
    airflow.wait_for_dag(DAG)
    conf = {"triggers_file": str(triggers), "target": [table]}
    airflow.call("POST", f"/dags/{DAG}/dagRuns", {"dag_run_id": RUN, "logical_date": None, "conf": conf})
    try:
        return airflow.wait_for_run(DAG, RUN, seconds=PATIENCE)
    except TimeoutError:
        return "running"


def received(receiver: Receiver) -> dict[str, Any]:
    """Return figures of the requests that arrived."""
    return {
        "webhooks_received": len(receiver.requests),
        "webhook_ids": len({request.delivery_id for request in receiver.requests}),
        "webhook": receiver.requests[0].json if receiver.requests else None,
    }
