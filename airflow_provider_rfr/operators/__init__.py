"""Operators of this package."""

from __future__ import annotations

from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

__all__ = ["ResumableFullRefreshOperator"]
