"""Operators of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_rfr import lazy_exports

if TYPE_CHECKING:
    from airflow_provider_rfr.hooks.lake import table_asset
    from airflow_provider_rfr.operators.builtins import BuiltinMigrationOperator, RefreshMaterializedViewOperator
    from airflow_provider_rfr.operators.connections import AlterConnectionOperator
    from airflow_provider_rfr.operators.full_refresh import ResumableFullRefreshOperator
    from airflow_provider_rfr.operators.incremental import IncrementalSyncOperator
    from airflow_provider_rfr.operators.sinks import SinkOperator
    from airflow_provider_rfr.operators.webhooks import CommitWebhookOperator, WebhookOperationOperator

__all__ = [
    "AlterConnectionOperator",
    "BuiltinMigrationOperator",
    "CommitWebhookOperator",
    "IncrementalSyncOperator",
    "RefreshMaterializedViewOperator",
    "ResumableFullRefreshOperator",
    "SinkOperator",
    "WebhookOperationOperator",
    "table_asset",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "_outcome": ("table_asset",),
        "builtins": ("BuiltinMigrationOperator", "RefreshMaterializedViewOperator"),
        "connections": ("AlterConnectionOperator",),
        "full_refresh": ("ResumableFullRefreshOperator",),
        "incremental": ("IncrementalSyncOperator",),
        "sinks": ("SinkOperator",),
        "webhooks": ("CommitWebhookOperator", "WebhookOperationOperator"),
    },
)
