"""The assets of tables: what a refresh updates, and what asks for a refresh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_provider_rfr.hooks.pending import is_pending
from airflow_provider_rfr.operators.arguments import stream_names, tables_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_rfr.builtins import Plan

SCHEME = "rfr"
SOURCES = AssetAlias(name=f"{SCHEME}_sources")
"""What a deploy's task has as outlet: which sources it concerns is known when it has been done."""


def table_asset(lake_conn_id: str, table: str) -> Asset:
    """The asset of a table.

    The lake connection's id stands for the catalog: a DAG that schedules on the asset must not have to ask for a
    connection while it is parsed.
    """
    return Asset(uri=f"{SCHEME}://{lake_conn_id}/{table.replace('.', '/')}")


def outlets_of(task_id: str, lake_conn_id: Any, streams: Any, target: Any) -> list[Asset | AssetAlias]:
    """What a task has as outlets; an alias, ``rfr:<task_id>``, where the tables are known only when it runs."""
    if any(is_pending(value) for value in (lake_conn_id, streams, target)):
        return [AssetAlias(name=alias_name(task_id))]
    return [table_asset(lake_conn_id, table) for table in tables_of(stream_names(streams), target).values()]


def alias_name(task_id: str) -> str:
    """Name of the alias of a task whose tables are named by templates."""
    return f"{SCHEME}:{task_id}"


def source_asset(lake_conn_id: str, table: str) -> Asset:
    """The asset of a declared source: it has an event when a deploy has created, emptied or redefined it."""
    return Asset(name=f"{SCHEME}_source:{lake_conn_id}/{table.casefold()}")


def tell_sources(context: Context, lake_conn_id: str, deploys: Mapping[str, Plan]) -> None:
    """An event for each source that has to be refreshed after these deploys; they come with the task's success."""
    events = context.get("outlet_events")
    if events is None:
        return
    for deploy_id, plan in deploys.items():
        for name, why in plan.sources_to_load().items():
            events[SOURCES].add(source_asset(lake_conn_id, name), extra={"deploy_id": deploy_id, "why": why.value})


def tell_assets(
    context: Context, outlets: list[Any], task_id: str, lake_conn_id: str, tables: Mapping[str, Mapping[str, Any]]
) -> None:
    """Attach each table's figures to its asset's event.

    :param tables: figures by table
    """
    events = context.get("outlet_events")
    if events is None:
        return
    alias = AssetAlias(name=alias_name(task_id))
    for table, figures in tables.items():
        asset = table_asset(lake_conn_id, table)
        if asset in outlets:
            events[asset].extra = dict(figures)
        elif alias in outlets:
            events[alias].add(asset, extra=dict(figures))
