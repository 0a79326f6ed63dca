"""The plugin that Airflow loads in every component. It imports nothing of Spark, Iceberg or the engine."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class RfrPlugin(AirflowPlugin):
    """Pages and listeners of this package."""

    name = "rfr"
