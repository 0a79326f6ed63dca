"""Assets of tables, and OpenLineage's facets: streams of the API as inputs, tables as outputs.

OpenLineage asks in a fork of the task's process, which must not talk to Airflow any more, so everything that
connections say is noted while the task runs. Only the catalog is read then, for the columns.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from airflow.sdk import Asset, AssetAlias

from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.hooks.lake import table_asset
from airflow_provider_rfr.operators.arguments import stream_names, tables_of

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import BaseOperator, Context

    from airflow_provider_rfr.builtins.plan import Plan
    from airflow_provider_rfr.hooks.lake import LakeDocument

_log = logging.getLogger(__name__)

_SCHEME = "rfr"
SOURCES = AssetAlias(name=f"{_SCHEME}_sources")
"""Outlet of a deploy's task; the sources that it changes are known when the deploy is done."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The inputs and outputs of one attempt.

    :ivar source: namespace of the streams
    :ivar tables: table by stream
    :ivar figures: by table, once they are published
    """

    source: str
    tables: Mapping[str, str]
    mode: str
    lake: LakeDocument = field(repr=False)
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def source_name(source: Mapping[str, Any]) -> str:
    """Return the namespace of a source: the API's scheme and host, else the class that reads it.

    :param source: of the refresh's document, with the connection's settings in ``config``
    """
    definition = source.get("definition")
    urls = [(source.get("config") or {}).get("base_url")]
    urls += [definition.get("base_url")] if isinstance(definition, Mapping) else []
    for url in urls:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is not None and parts.scheme in ("http", "https") and parts.hostname:
            return f"{parts.scheme}://{_host(parts)}"
    return f"source:{source.get('class') or 'unknown'}"


def task_alias(task: BaseOperator) -> AssetAlias:
    """Return the alias for the tables of a refresh that are known only when it runs."""
    return table_alias(task.dag_id, task.task_id)


def table_alias(dag_id: str, task_id: str) -> AssetAlias:
    """Return the alias of a task that may not exist yet, because it is mapped."""
    return AssetAlias(name=f"{_SCHEME}:{dag_id}/{task_id}")


def outlets_of(task: BaseOperator, lake_conn_id: Any, streams: Any, target: Any) -> list[Asset | AssetAlias]:
    """Return the outlets of a refresh: its tables, or its alias where these are not known yet."""
    if any(is_pending(value) for value in (lake_conn_id, streams, target)):
        return [task_alias(task)]
    return [table_asset(table, lake_conn_id) for table in tables_of(stream_names(streams), target).values()]


def add_table_events(
    context: Context, task: BaseOperator, lake_conn_id: str, tables: Mapping[str, Mapping[str, Any]]
) -> None:
    """Attach each table's figures to its asset's event."""
    events = context.get("outlet_events")
    if events is None:
        return
    outlets, alias = task.outlets, task_alias(task)
    for table, figures in tables.items():
        asset = table_asset(table, lake_conn_id)
        if asset in outlets:
            events[asset].extra = dict(figures)
        elif alias in outlets:
            events[alias].add(asset, extra=dict(figures))


def source_asset(lake_conn_id: str, table: str) -> Asset:
    """Return the asset of a declared source. It has an event when a deploy created, emptied or redefined the source."""
    return Asset(name=f"{_SCHEME}_source:{lake_conn_id}/{table.casefold()}")


def add_source_events(context: Context, lake_conn_id: str, deploys: Mapping[str, Plan]) -> None:
    """Add an event for each source to refresh after these deploys; they are sent if the task succeeds.

    :param deploys: plan by id of the deploy
    """
    events = context.get("outlet_events")
    if events is None:
        return
    for deploy_id, plan in deploys.items():
        for name, why in plan.sources_to_load().items():
            events[SOURCES].add(source_asset(lake_conn_id, name), extra={"deploy_id": deploy_id, "why": why})


def facets_of(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """Return the inputs and outputs; outputs have rows, columns and snapshot once they are published."""
    from airflow.providers.common.compat.openlineage import facet
    from airflow.providers.openlineage.extractors import OperatorLineage

    lake, outputs = _lake_name(lineage.lake.properties), []
    for table in lineage.tables.values():
        facets, statistics = dict[str, Any](), dict[str, Any]()
        if (figures := lineage.figures.get(table)) is not None:
            facets = _table_facets(lineage, table, str(figures["snapshot_id"]))
            statistics["outputStatistics"] = facet.OutputStatisticsOutputDatasetFacet(rowCount=figures["rows"])
        outputs.append(facet.OutputDataset(namespace=lake, name=table, facets=facets, outputFacets=statistics))
    inputs = [facet.Dataset(namespace=lineage.source, name=stream) for stream in lineage.tables]
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _table_facets(lineage: Lineage, table: str, snapshot_id: str) -> dict[str, Any]:
    """Return the facets of a published table, without columns and location where the catalog can't be read."""
    from airflow.providers.common.compat.openlineage import facet
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet

    from airflow_provider_rfr.lake.catalog import load_table, open_catalog

    facets: dict[str, Any] = {"version": DatasetVersionDatasetFacet(datasetVersion=snapshot_id)}
    if lineage.mode == "replace":
        state = facet.LifecycleStateChange.OVERWRITE
        facets["lifecycleStateChange"] = facet.LifecycleStateChangeDatasetFacet(lifecycleStateChange=state)
    try:
        found = load_table(open_catalog(lineage.lake.settings()), table)
    except Exception as error:  # noqa: BLE001 - its text may name addresses with credentials
        _log.warning("the columns of %s are left out of the lineage (%s)", table, type(error).__name__)
        return facets
    if found is not None:
        columns = [(column.name, str(column.field_type)) for column in found.schema().fields]
        fields = [facet.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
        facets["schema"] = facet.SchemaDatasetFacet(fields=fields)
        # Spark's own lineage names a table by the location of its files.
        parts = urlsplit(found.location())
        namespace = f"{parts.scheme}://{_host(parts)}" if parts.netloc else parts.scheme or "file"
        location = facet.Identifier(namespace=namespace, name=parts.path, type="LOCATION")
        facets["symlinks"] = facet.SymlinksDatasetFacet(identifiers=[location])
    return facets


def _lake_name(properties: Mapping[str, str]) -> str:
    """Return the namespace of a catalog's tables: the catalog's address, without credentials."""
    parts = urlsplit(properties.get("uri", ""))
    if parts.scheme:
        # SQLAlchemy's driver is not part of a database's name.
        return f"{parts.scheme.partition('+')[0]}://{_host(parts)}{parts.path.rstrip('/')}"
    return urlsplit(properties.get("warehouse", ""))._replace(query="", fragment="").geturl().rstrip("/") or "iceberg"


def _host(parts: SplitResult) -> str:
    """Return host and port, without user and password."""
    return parts.netloc.rpartition("@")[2]
