"""The DAGs of the tests on a running Airflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, task

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.sensors import CommitSensor

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

with dag("hurried", dagrun_timeout=timedelta(seconds=60)):
    refresh()

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


@task
def tables(params: dict[str, Any] | None = None) -> list[str]:
    """Return the tables of the run's form."""
    return list((params or {})["tables"])


with dag("mapped", params={"tables": []}):
    ResumableFullRefreshOperator.partial(
        task_id="refresh",
        source={"file": str(SHOP), "config": {"partitions": 1, "page_size": 25}},
        streams=["items"],
        retries=2,
        retry_delay=timedelta(seconds=1),
        max_active_tis_per_dag=2,
        **CONNECTIONS,
    ).expand(target=tables())

with dag("by_day", schedule="@daily", is_paused_upon_creation=True):
    refresh(
        source={"definition": DAILY, "config": {"part": "{{ logical_date.day % 4 }}", "day": "{{ ds }}"}},
        streams=["daily"],
        target="raw.by_day",
        options={"replace_where": "day = '{{ ds }}'", "head_start": True},
    )

WAYS_TO_WAIT: dict[str, dict[str, Any]] = {
    "deferred": {},
    "poked": {"deferrable": False},
    # Airflow may fail a sensor that is rescheduled before its scheduler has taken note of the time before.
    "rescheduled": {"deferrable": False, "mode": "reschedule", "poke_interval": 20},
}

with dag("impatient"):
    for name, arguments in WAYS_TO_WAIT.items():
        for outcome, is_soft in {"fails": False, "is_skipped": True}.items():
            CommitSensor(
                task_id=f"{name}_{outcome}",
                target="raw.never",
                after="{{ dag_run.run_after }}",
                lake_conn_id="lake",
                timeout=3,
                soft_fail=is_soft,
                **{"poke_interval": 1, **arguments},
            )
