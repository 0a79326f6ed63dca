"""SQL on the lake's own catalog by Spark with Iceberg's runtime: views, and the rows of queries as data files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.spark.engine import SparkSqlEngine
    from airflow_provider_rfr.builtins.spark.registered import RegisteredView, register_views
    from airflow_provider_rfr.builtins.spark.session import SparkSettings, open_session

__all__ = ["RegisteredView", "SparkSettings", "SparkSqlEngine", "open_session", "register_views"]

_ELSEWHERE = {
    "RegisteredView": "registered",
    "SparkSettings": "session",
    "SparkSqlEngine": "engine",
    "open_session": "session",
    "register_views": "registered",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE[name]}"), name)
