"""The button to Spark's own pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class SparkUiLink(BaseOperatorLink):
    """Where Spark shows the running or the last driver: YARN's tracking address, or the driver's own pages.

    A driver has pages of its own only where ``spark.ui.enabled`` is set, and only while it runs. The operator stores
    the address as soon as it is known, so a task that runs or failed has it, too.
    """

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """The stored address; empty where no driver told one."""
        # Choosing the deployment's XCom backend reads Airflow's configuration.
        from airflow.sdk.execution_time.xcom import XCom

        return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")
