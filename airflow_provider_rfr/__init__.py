"""Resumable full refresh, commit webhooks, built-in migration and connection changes for Airflow and Spark."""

from __future__ import annotations

__version__ = "0.1.0"
