"""Names that differ between Airflow 3.1, 3.2 and 3.3.

Exceptions and the configuration come from ``airflow.providers.common.compat.sdk``, which finds them in each version.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

__all__ = [
    "HAS_TASK_STATE",
    "NEVER_EXPIRE",
    "AirflowRescheduleException",
    "AssetOrTimeSchedule",
    "BundleDagBag",
    "CronTriggerTimetable",
    "OnceTimetable",
    "RetryDecision",
    "RetryPolicy",
    "airflow_version",
    "providers_of_hooks",
]

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable, RetryDecision, RetryPolicy
    from airflow.sdk.definitions.timetables.simple import OnceTimetable
    from airflow.sdk.exceptions import AirflowRescheduleException
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    HAS_TASK_STATE: bool
else:
    try:
        from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable
        from airflow.sdk.definitions.timetables.simple import OnceTimetable
        from airflow.sdk.exceptions import AirflowRescheduleException
    except ImportError:  # 3.1
        from airflow.exceptions import AirflowRescheduleException
        from airflow.timetables.assets import AssetOrTimeSchedule
        from airflow.timetables.simple import OnceTimetable
        from airflow.timetables.trigger import CronTriggerTimetable
    try:
        from airflow.sdk import RetryDecision, RetryPolicy
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        HAS_TASK_STATE = True
    except ImportError:  # 3.1, 3.2
        NEVER_EXPIRE, RetryDecision, RetryPolicy = None, None, object
        HAS_TASK_STATE = False


def __getattr__(name: str) -> Any:
    if name != "BundleDagBag":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not at the top: it loads the models of Airflow's database, which a task must not.
    try:
        from airflow.dag_processing.dagbag import BundleDagBag
    except ImportError:  # 3.1
        from airflow.models.dagbag import BundleDagBag  # type: ignore[no-redef]
    return BundleDagBag


def airflow_version() -> str:
    """Return the version of the installed Airflow."""
    return version("apache-airflow-core")


def providers_of_hooks() -> Any:
    """Return Airflow's registry of providers, whose ``hooks`` has the hook of each type of connection."""
    registry: Callable[[], Any]
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

        registry = ProvidersManagerTaskRuntime
    except ImportError:  # 3.1
        from airflow.providers_manager import ProvidersManager

        registry = ProvidersManager
    return registry()
