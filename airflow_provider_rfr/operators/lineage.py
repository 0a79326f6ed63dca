"""Assets of tables, and OpenLineage's facets: streams of the API as inputs, tables as outputs.

OpenLineage asks in a fork of the task's process, which must not talk to Airflow any more, so everything that
connections say is noted while the task runs. Only the catalog is asked then, for the columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset, AssetAlias

from airflow_provider_rfr.hooks.dag_arguments import is_pending
from airflow_provider_rfr.operators.arguments import stream_names, tables_of

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_rfr.builtins import Plan
    from airflow_provider_rfr.hooks.lake import LakeDocument


log = logging.getLogger(__name__)

_REPLACES = "replace"


@dataclass(frozen=True, slots=True)
class Lineage:
    """What there is to tell of one attempt.

    :ivar source: namespace of the streams
    :ivar tables: table by stream
    :ivar figures: by table, once they are published
    """

    source: str
    tables: Mapping[str, str]
    mode: str
    lake: LakeDocument = field(repr=False)
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class TellsLineage:
    """The part of the operator that OpenLineage's listener knows."""

    @property
    def lineage(self) -> Lineage | None:
        """What there is to tell, None before the connections were read."""
        raise NotImplementedError

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Inputs, and outputs with rows, columns and snapshot."""
        return None if self.lineage is None else _facets_of(self.lineage)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        """Inputs and outputs alone: nothing was published by this attempt, or not everything."""
        return None if self.lineage is None else _facets_of(self.lineage)


def source_name(source: Mapping[str, Any]) -> str:
    """Namespace of a source: the API's scheme and host, else the class that reads it.

    :param source: of the refresh's document, with the connection's settings in ``config``
    """
    definition = source.get("definition")
    told = [(source.get("config") or {}).get("base_url")]
    told += [definition.get("base_url")] if isinstance(definition, Mapping) else []
    found = next((name for url in told if isinstance(url, str) and (name := _origin(url))), None)
    return found or f"source:{source.get('class') or 'unknown'}"


def _lake_name(properties: Mapping[str, str]) -> str:
    """Namespace of a catalog's tables: where the catalog is, without whoever logs in there."""
    uri = properties.get("uri", "")
    parts = urlsplit(uri)
    if parts.scheme:
        # SQLAlchemy's driver is no part of a database's name.
        return f"{parts.scheme.partition('+')[0]}://{_host(parts)}{parts.path.rstrip('/')}"
    return urlsplit(properties.get("warehouse", ""))._replace(query="", fragment="").geturl().rstrip("/") or "iceberg"


def _facets_of(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """Everything as OpenLineage's classes."""
    from airflow.providers.common.compat.openlineage.facet import Dataset, OutputDataset
    from airflow.providers.openlineage.extractors import OperatorLineage

    lake = _lake_name(lineage.lake.properties)
    outputs = [
        OutputDataset(
            namespace=lake,
            name=table,
            facets=dict(_facets(lineage, table)),
            outputFacets=dict(_statistics(lineage.figures.get(table))),
        )
        for table in lineage.tables.values()
    ]
    return OperatorLineage(
        inputs=[Dataset(namespace=lineage.source, name=stream) for stream in lineage.tables], outputs=outputs
    )


def _statistics(figures: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    from airflow.providers.common.compat.openlineage.facet import OutputStatisticsOutputDatasetFacet

    if figures is not None:
        yield "outputStatistics", OutputStatisticsOutputDatasetFacet(rowCount=figures["rows"])


def _facets(lineage: Lineage, table: str) -> Iterator[tuple[str, Any]]:
    from airflow.providers.common.compat.openlineage import facet
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet

    figures = lineage.figures.get(table)
    if figures is None:
        return
    yield "version", DatasetVersionDatasetFacet(datasetVersion=str(figures["snapshot_id"]))
    if lineage.mode == _REPLACES:
        state = facet.LifecycleStateChange.OVERWRITE
        yield "lifecycleStateChange", facet.LifecycleStateChangeDatasetFacet(lifecycleStateChange=state)
    found = _table(lineage.lake, table)
    if found is not None:
        columns, location = found
        fields = [facet.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in columns]
        yield "schema", facet.SchemaDatasetFacet(fields=fields)
        # Spark's own lineage names a table by the place of its files.
        place = facet.Identifier(namespace=_place(location), name=urlsplit(location).path, type="LOCATION")
        yield "symlinks", facet.SymlinksDatasetFacet(identifiers=[place])


def _table(lake: LakeDocument, table: str) -> tuple[list[tuple[str, str]], str] | None:
    """Columns and location of a table; lineage is not worth an error."""
    try:
        from airflow_provider_rfr.lake.catalog import LakeSettings, load_table, open_catalog

        found = load_table(open_catalog(LakeSettings(lake.name, lake.properties)), table)
    except Exception as error:  # noqa: BLE001 - its text may name addresses with credentials
        log.warning("the columns of %s are left out of the lineage (%s)", table, type(error).__name__)
        return None
    if found is None:
        return None
    return [(column.name, str(column.field_type)) for column in found.schema().fields], found.location()


def _origin(url: str) -> str | None:
    parts = urlsplit(url)
    return f"{parts.scheme}://{_host(parts)}" if parts.scheme in ("http", "https") and parts.hostname else None


def _place(location: str) -> str:
    parts = urlsplit(location)
    return f"{parts.scheme}://{_host(parts)}" if parts.netloc else parts.scheme or "file"


def _host(parts: Any) -> str:
    """Host and port, without user and password."""
    return str(parts.netloc).rpartition("@")[2]


_SCHEME = "rfr"
SOURCES = AssetAlias(name=f"{_SCHEME}_sources")
"""What a deploy's task has as outlet: which sources it concerns is known when it has been done."""


def _table_asset(lake_conn_id: str, table: str) -> Asset:
    """The asset of a table.

    The lake connection's id stands for the catalog: a DAG that schedules on the asset must not have to ask for a
    connection while it is parsed.
    """
    return Asset(uri=f"{_SCHEME}://{lake_conn_id}/{table.replace('.', '/')}")


def outlets_of(task_id: str, lake_conn_id: Any, streams: Any, target: Any) -> list[Asset | AssetAlias]:
    """What a task has as outlets; an alias, ``rfr:<task_id>``, where the tables are known only when it runs."""
    if any(is_pending(value) for value in (lake_conn_id, streams, target)):
        return [AssetAlias(name=_alias_name(task_id))]
    return [_table_asset(lake_conn_id, table) for table in tables_of(stream_names(streams), target).values()]


def _alias_name(task_id: str) -> str:
    """Name of the alias of a task whose tables are named by templates."""
    return f"{_SCHEME}:{task_id}"


def source_asset(lake_conn_id: str, table: str) -> Asset:
    """The asset of a declared source: it has an event when a deploy has created, emptied or redefined it."""
    return Asset(name=f"{_SCHEME}_source:{lake_conn_id}/{table.casefold()}")


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
    alias = AssetAlias(name=_alias_name(task_id))
    for table, figures in tables.items():
        asset = _table_asset(lake_conn_id, table)
        if asset in outlets:
            events[asset].extra = dict(figures)
        elif alias in outlets:
            events[alias].add(asset, extra=dict(figures))
