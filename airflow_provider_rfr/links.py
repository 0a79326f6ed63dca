"""Buttons of a task in Airflow's UI: the page about the refresh, and Spark's UI.

Airflow asks for a link's address only when the task has ended; these links work before that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)

PAGE_OF_TASK: Final = "rfr_of_task"
"""Last part of the address of the tab that the plugin adds to task instances."""


class RefreshLink(BaseOperatorLink):
    """A link to the page about the task's refresh: state, progress, generations and last error."""

    name = "Refresh page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the tab that the plugin adds to the task instance."""
        base = str(conf.get("api", "base_url", fallback="http://localhost:8080/")).rstrip("/")
        dag, run, task = (quote(str(part), safe="") for part in (ti_key.dag_id, ti_key.run_id, ti_key.task_id))
        index = ti_key.map_index
        mapped = f"/mapped/{index}" if index is not None and index >= 0 else ""
        return f"{base}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/plugin/{PAGE_OF_TASK}"


class SparkUiLink(BaseOperatorLink):
    """A link to the Spark UI of the running or the last driver: YARN's tracking address, or the driver's own UI.

    A driver has its own UI only if ``spark.ui.enabled`` is set, and only while it runs. The operator stores the address
    as soon as it is known, so a task that runs or failed has it, too.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the stored address; an empty text if there is none."""
        return str(BaseXCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")


def store_link(context: Context, link: BaseOperatorLink, url: str | None) -> None:
    """Store the address where Airflow's UI looks for it, unless it is None. A failure is logged and fails no task.

    Airflow's UI reads links from its own database, without the XCom backend of the deployment. An empty address
    shows no button; Airflow logs an error for a link that was never stored.
    """
    if url is None:
        return
    try:
        ti: Any = context["ti"]
        BaseXCom.set(link.xcom_key, url, dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)
    except Exception as error:  # noqa: BLE001 - see above
        _log.warning("the link %s can't be stored (%s)", link.name, type(error).__name__)
