"""Tries of the refresh operator without an Airflow around them: its connections, and its call."""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.bases.operator import ExecutorSafeguard

from airflow_provider_rfr.operators import ResumableFullRefreshOperator
from airflow_provider_rfr.sample_api import SHOP, SampleApi
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
) -> None:
    """Set connections to Spark, the API (`shop`) and the lake (`lake`) in the environment."""
    extra = {"catalog_type": "sql", "warehouse": lake.properties["warehouse"], **(lake_extra or {})}
    key = {"password": api.api_key} if api.api_key else {}
    connections = {
        spark_conn_id: spark,
        "shop": {"conn_type": "rfr_api", "host": api.base_url, **key},
        "lake": {"conn_type": "rfr_lake", "host": lake.properties["uri"], "extra": json.dumps(extra)},
    }
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


def items_operator(config: Mapping[str, Any], options: Mapping[str, Any], **arguments: Any) -> Any:
    """Return an operator that refreshes the sample API's items, into ``raw.items`` by default."""
    return ResumableFullRefreshOperator(
        task_id="refresh",
        source={"file": str(SHOP), "config": dict(config)},
        streams=["items"],
        api_conn_id="shop",
        lake_conn_id="lake",
        options=dict(options),
        **{"target": "raw.items", **arguments},
    )


def execute(operator: Any, method: str = "execute", *, event: Any = None, **context: Any) -> dict[str, Any]:
    """Call an operator's method for one try of one run, as the task runner does."""
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="refresh", map_index=-1, stats_tags={})
    ti.max_tries = operator.retries
    inside = contextvars.copy_context()
    inside.run(ExecutorSafeguard.tracker.set, operator)
    more = {} if event is None else {"event": event}
    return dict(inside.run(lambda: getattr(operator, method)({"ti": ti, "task": operator, **context}, **more)))


def later_children() -> Callable[[], list[psutil.Process]]:
    """Return a function that lists the processes below this one which were started after this call.

    Servers of tests run by then. They may know a secret.
    """
    earlier = {child.pid for child in psutil.Process().children(recursive=True)}
    return lambda: [child for child in psutil.Process().children(recursive=True) if child.pid not in earlier]


class Onlooker:
    """Keeps command lines and environments of processes, as another user of the machine and as a child of theirs could
    see them.

    :ivar seen: by process id
    """

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]]) -> None:
        self.seen: dict[int, str] = {}
        self._processes = processes
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Onlooker:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            for process in self._processes():
                with suppress(psutil.Error):
                    text = " ".join([*process.cmdline(), *map(str, process.environ().items())])
                    self.seen[process.pid] = self.seen.get(process.pid, "") + text
