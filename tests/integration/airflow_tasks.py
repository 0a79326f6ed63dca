"""Tries of the refresh operator without an Airflow around them: its connections, and its call."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP
from airflow_provider_rfr.sample_api.client import SampleApi
from tests.integration.conftest import Lake

LOCAL_SPARK = {"conn_type": "spark", "host": "local[2]"}


def set_connections(
    monkeypatch: pytest.MonkeyPatch,
    lake: Lake,
    api: SampleApi,
    spark: Mapping[str, Any] = LOCAL_SPARK,
    *,
    spark_conn_id: str = "spark_default",
    lake_extra: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Set connections to Spark, the API (`shop`) and the lake (`lake`) in the environment, and return them."""
    extra = {"catalog_type": "sql", "warehouse": lake.properties["warehouse"], **(lake_extra or {})}
    key = {"password": api.api_key} if api.api_key else {}
    connections = {
        spark_conn_id: spark,
        "shop": {"conn_type": "rfr_api", "host": api.base_url, **key},
        "lake": {"conn_type": "rfr_lake", "host": lake.properties["uri"], "extra": json.dumps(extra)},
    }
    variables = {f"AIRFLOW_CONN_{name.upper()}": json.dumps(connection) for name, connection in connections.items()}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def items_operator(config: Mapping[str, Any], options: Mapping[str, Any], **arguments: Any) -> Any:
    """Return an operator that refreshes the sample API's items into ``raw.items``."""
    return ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": str(SHOP), "config": dict(config)},
        streams=["items"],
        target="raw.items",
        api_conn_id="shop",
        lake_conn_id="lake",
        options=dict(options),
        **arguments,
    )


def execute(operator: Any, *, dag_run: Any = None, **task_instance: Any) -> dict[str, Any]:
    """Make one try of one run, as the task runner does."""
    ti = SimpleNamespace(
        **{"dag_id": "d", "run_id": "r", "task_id": "refresh", "map_index": -1, "stats_tags": {}, **task_instance}
    )
    context: Any = {"ti": ti, "task": operator, **({"dag_run": dag_run} if dag_run else {})}
    inside = contextvars.copy_context()
    inside.run(ExecutorSafeguard.tracker.set, operator)
    return dict(inside.run(operator.execute, context))
