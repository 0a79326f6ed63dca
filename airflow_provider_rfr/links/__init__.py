"""Buttons of a refresh's task in Airflow's UI."""

from __future__ import annotations

from airflow_provider_rfr.links.refresh_page import RefreshLink
from airflow_provider_rfr.links.showing import show_link
from airflow_provider_rfr.links.spark_ui import SparkUiLink

__all__ = ["RefreshLink", "SparkUiLink", "show_link"]
