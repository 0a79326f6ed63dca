"""Operators of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

__all__ = ["ResumableFullRefreshOperator"]


def __getattr__(name: str) -> Any:
    if name == "ResumableFullRefreshOperator":
        from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator

        return ResumableFullRefreshOperator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
