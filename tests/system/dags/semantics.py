"""The DAGs of the tests on a running Airflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP
from tests.profile import share

MAPPED = [f"mapped.stream_{number:02}" for number in range(share(20, least=6))]
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


EVERY_MINUTE = {
    "table": "every_minute",
    "config": {"partitions": 8, "page_size": 25},
    "options": {"round_seconds": 1, "concurrency": 4, "requests_per_second": 10},
}

with dag("on_demand"):
    refresh()

with dag("in_time"):
    # On a busy machine most of a try is the start of Spark.
    refresh(execution_timeout=timedelta(seconds=40), retries=15)

# The next run waits for the one before it, as a production DAG's would.
with dag("every_minute", schedule="* * * * *", max_active_runs=1, is_paused_upon_creation=True, params=EVERY_MINUTE):
    refresh(retries=0)

with enable_lineage(dag("deferred")):
    refresh(conn_id="yarn", deploy_mode="cluster", deferrable=True, pool="narrow")

with enable_lineage(dag("shown")):
    refresh(conf={"spark.ui.enabled": "true"})

with dag("beside"):
    BashOperator(task_id="refresh", bash_command="true", pool="narrow")

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
