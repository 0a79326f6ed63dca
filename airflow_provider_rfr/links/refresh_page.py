"""The button to the page of Airflow's UI that tells how the refresh stands."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

CHECKPOINT_TABS = {"task_state": "task-state-store", "xcom": "xcom"}
PUBLISHED_TAB = "asset_events"


class RefreshLink(BaseOperatorLink):
    """Before the publish the task's tab with the checkpoint, after it the tab with each table's figures."""

    name = "Refresh progress"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Address of the tab. A checkpoint in a Variable has no tab at the task, so that goes to the list of them."""
        base = str(conf.get("api", "base_url", fallback="http://localhost:8080/")).rstrip("/")
        store = getattr(operator, "checkpoint_store", "task_state")
        if getattr(operator, "is_published", False):
            tab = PUBLISHED_TAB
        elif store in CHECKPOINT_TABS:
            tab = CHECKPOINT_TABS[store]
        else:
            return f"{base}/variables"
        return f"{base}{task_page(ti_key)}/{tab}"


def task_page(ti_key: Any) -> str:
    """Path of a task instance's page."""
    dag, run, task = (quote(str(part), safe="") for part in (ti_key.dag_id, ti_key.run_id, ti_key.task_id))
    index = ti_key.map_index
    mapped = f"/mapped/{index}" if index is not None and index >= 0 else ""
    return f"/dags/{dag}/runs/{run}/tasks/{task}{mapped}"
