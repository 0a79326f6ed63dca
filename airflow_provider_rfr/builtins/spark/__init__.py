"""SQL on the lake's own catalog by Spark with Iceberg's runtime: views, and the rows of queries as data files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr.lazy import lazy_exports

if TYPE_CHECKING:
    from airflow_provider_rfr.builtins.spark._engine import SparkSqlEngine
    from airflow_provider_rfr.builtins.spark._session import SparkSettings, open_session

__all__ = ["SparkSettings", "SparkSqlEngine", "open_session"]

__getattr__ = lazy_exports(__name__, {"_engine": ("SparkSqlEngine",), "_session": ("SparkSettings", "open_session")})
