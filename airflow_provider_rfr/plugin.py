"""What Airflow loads from this package at its start.

The plugin that Airflow finds by the entry point ``airflow.plugins``.

It is imported by every component, so it stays light: nothing of Spark, Iceberg or the engine.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class RfrPlugin(AirflowPlugin):
    """Pages and listeners of this package."""

    name = "rfr"
