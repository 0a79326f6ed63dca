"""Operators of this package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_rfr.operators.alter_connection import AlterConnectionOperator
    from airflow_provider_rfr.operators.builtin_migration import BuiltinMigrationOperator
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
    from airflow_provider_rfr.operators.sinks import SinkOperator
    from airflow_provider_rfr.operators.webhook_operations import WebhookOperationOperator
    from airflow_provider_rfr.operators.webhooks import CommitWebhookOperator

__all__ = [
    "AlterConnectionOperator",
    "BuiltinMigrationOperator",
    "CommitWebhookOperator",
    "ResumableFullRefreshOperator",
    "SinkOperator",
    "WebhookOperationOperator",
]

_HOMES = {
    "AlterConnectionOperator": "alter_connection",
    "BuiltinMigrationOperator": "builtin_migration",
    "ResumableFullRefreshOperator": "full_refresh",
    "CommitWebhookOperator": "webhooks",
    "SinkOperator": "sinks",
    "WebhookOperationOperator": "webhook_operations",
}


def __getattr__(name: str) -> Any:
    """An operator, imported when it is first asked for: a DAG that delivers webhooks needs nothing of Spark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
