"""Names of Airflow that differ between its versions, for tests; and marks of features that some versions lack."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_rfr.compat import AIRFLOW_V_3_2_PLUS

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    from airflow.serialization.serialized_objects import DagSerialization
else:
    try:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    except ImportError:  # 3.1
        from airflow.models.dagbag import DagBag, sync_bag_to_db
    try:
        from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    except ImportError:  # 3.1, 3.2
        TaskStateStoreAccessor = None
    try:
        from airflow.serialization.serialized_objects import DagSerialization
    except ImportError:  # 3.1
        from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

__all__ = [
    "DagBag",
    "DagSerialization",
    "TaskStateStoreAccessor",
    "cron_of",
    "forget_plugins",
    "needs_deferral",
    "needs_sdk_timetables",
    "needs_teams",
    "plugin_import_errors",
    "rfr_command",
    "sync_bag_to_db",
]


needs_deferral = pytest.mark.skipif(
    int(version("apache-airflow-providers-apache-spark").partition(".")[0]) < 6,
    reason="Spark provider 5 waits for a driver in a cluster",
)
needs_sdk_timetables = pytest.mark.skipif(not AIRFLOW_V_3_2_PLUS, reason="airflow.sdk has timetables since 3.2")
needs_teams = pytest.mark.skipif(not AIRFLOW_V_3_2_PLUS, reason="Airflow has teams since 3.2")


def forget_plugins() -> None:
    """Let Airflow look for its plugins again, and for the applications that they mount."""
    from airflow import plugins_manager

    if AIRFLOW_V_3_2_PLUS:
        plugins_manager._get_plugins.cache_clear()
        plugins_manager.get_fastapi_plugins.cache_clear()
    else:  # 3.1
        plugins_manager.loaded_plugins.clear()
        for name in ("plugins", "fastapi_apps", "fastapi_root_middlewares"):
            setattr(plugins_manager, name, None)


def plugin_import_errors() -> dict[str, str]:
    """Return the errors of plugins that can't be imported, by their file or module."""
    from airflow import plugins_manager

    # 3.1 has a variable.
    return plugins_manager.get_import_errors() if AIRFLOW_V_3_2_PLUS else plugins_manager.import_errors


def cron_of(timetable: Any) -> str:
    """Return the cron expression of a timetable."""
    # 3.1 has no name for it.
    return timetable.expression if AIRFLOW_V_3_2_PLUS else timetable._expression


def rfr_command(*words: str) -> list[str]:
    """Return the command line of ``airflow rfr`` with these words."""
    module = ["airflow", "rfr"] if AIRFLOW_V_3_2_PLUS else ["airflow_provider_rfr"]
    return [sys.executable, "-m", *module, *words]
