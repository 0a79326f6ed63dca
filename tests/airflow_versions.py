"""Names of Airflow that only tests use and that differ between its versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    from airflow.serialization.serialized_objects import DagSerialization
else:
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # 3.1
        from airflow.models.dagbag import DagBag
    try:
        from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    except ImportError:  # 3.1, 3.2
        TaskStateStoreAccessor = None
    try:
        from airflow.serialization.serialized_objects import DagSerialization
    except ImportError:  # 3.1
        from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

__all__ = ["DagBag", "DagSerialization", "TaskStateStoreAccessor"]
