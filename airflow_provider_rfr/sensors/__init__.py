"""Sensors of this package."""

from __future__ import annotations

from airflow_provider_rfr.sensors.commit import CommitSensor

__all__ = ["CommitSensor"]
