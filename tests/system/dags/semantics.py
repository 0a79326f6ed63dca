"""The DAGs of the tests on a running Airflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset

from airflow_provider_rfr.operators import ResumableFullRefreshOperator

SHOP = Path(__file__).resolve().parents[3] / "demo" / "shop.yaml"
MAPPED = [f"mapped.stream_{number:02}" for number in range(20)]
DAILY: dict[str, Any] = {
    "version": 1,
    "base_url": "{{ config.base_url }}",
    "authenticator": {"type": "api_key", "value": "{{ config.api_key }}", "send_as": {"header": "X-Api-Key"}},
    "streams": {
        "daily": {
            "request": {"path": "/partitions/{{ config.part }}/items"},
            "records": {"path": "data"},
            "paginator": {"type": "page_number", "page_size": 25, "size_as": {"query": "page_size"}},
            "transformations": [{"type": "add", "fields": {"day": "{{ config.day }}"}}],
        }
    },
}
CONNECTIONS: dict[str, Any] = {"api_conn_id": "shop", "lake_conn_id": "lake"}


def refresh(**arguments: Any) -> Any:
    """The operator as most DAGs here have it."""
    defaults: dict[str, Any] = {
        "task_id": "refresh",
        "source": {"file": str(SHOP), "config": "{{ params.config }}"},
        "streams": ["items"],
        "target": "raw.{{ params.table }}",
        "options": "{{ params.options }}",
        "retries": 4,
        "retry_delay": timedelta(seconds=1),
        "poll_interval": 1.0,
    }
    return ResumableFullRefreshOperator(**{**defaults, **CONNECTIONS, **arguments})


def dag(dag_id: str, **arguments: Any) -> DAG:
    """A DAG whose runs say what to refresh and how."""
    defaults: dict[str, Any] = {
        "schedule": None,
        "start_date": datetime(2026, 1, 1),
        "catchup": False,
        "render_template_as_native_obj": True,
        "params": {"table": "items", "config": {}, "options": {}},
    }
    return DAG(dag_id, **{**defaults, **arguments})


with dag("on_demand"):
    refresh()

with dag("in_time"):
    refresh(execution_timeout=timedelta(seconds=12))

ARRIVED = {"table": "on_asset", "config": {"partitions": 8, "page_size": 25}, "options": {}}

with dag("on_asset", schedule=[Asset("orders_arrived")], params=ARRIVED):
    refresh()

with dag("mapped", max_active_tasks=2):
    ResumableFullRefreshOperator.partial(
        task_id="refresh",
        source={"file": str(SHOP), "config": {"partitions": 1}},
        streams=["items"],
        retries=2,
        retry_delay=timedelta(seconds=1),
        **CONNECTIONS,
    ).expand(target=MAPPED)

with dag("by_day", schedule="@daily", is_paused_upon_creation=True):
    refresh(
        source={"definition": DAILY, "config": {"part": "{{ logical_date.day % 4 }}", "day": "{{ ds }}"}},
        streams=["daily"],
        target="raw.by_day",
        options={"replace_where": "day = '{{ ds }}'", "head_start": True},
    )
