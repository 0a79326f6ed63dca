"""Makes partition routers of their definitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.interpolation import CONFIG_NAMES, compile_value, nearest
from airflow_provider_rfr.streams.rest.partition_routers import (
    ListRouter,
    NoRouter,
    ParentKey,
    PartitionRouter,
    ProductRouter,
    SubstreamRouter,
)
from airflow_provider_rfr.streams.rest.paths import parse_path
from airflow_provider_rfr.streams.rest.stream import RestStream


def build_router(
    router: model.Router | None,
    place: str,
    config: Mapping[str, Any],
    streams: Collection[str],
    parent_named: Callable[[str], RestStream],
) -> PartitionRouter:
    """The router of a definition; without one there is a single partition.

    :param config: without secrets: partitions are stored
    :param streams: the names that a parent may have
    :raises SourceDefinitionError: an unknown parent, values that are no list, a field that stands twice
    """
    if router is None:
        return NoRouter()
    if isinstance(router, model.ListRouter):
        return ListRouter(router.field, _values(router, place, config))
    if isinstance(router, model.SubstreamRouter):
        return _substream(router, place, streams, parent_named)
    product = ProductRouter(
        [
            build_router(item, f"{place}.of.{number}", config, streams, parent_named)
            for number, item in enumerate(router.of)
        ]
    )
    if len(set(product.fields)) != len(product.fields):
        raise SourceDefinitionError(place, "two routers use the same field name", "rename one of them")
    return product


def _substream(
    router: model.SubstreamRouter,
    place: str,
    streams: Collection[str],
    parent_named: Callable[[str], RestStream],
) -> SubstreamRouter:
    if router.parent not in streams:
        raise SourceDefinitionError(
            f"{place}.parent", f"there is no stream {router.parent!r}", nearest(router.parent, streams)
        )
    parent = parent_named(router.parent)
    for name in router.parent_slice_fields:
        if name not in parent.slice_fields:
            raise SourceDefinitionError(
                f"{place}.parent_slice_fields",
                f"the partitions of {parent.name} have no {name!r}",
                nearest(name, parent.slice_fields),
            )
    extra = tuple((name, parse_path(path)) for name, path in router.extra_fields.items())
    key = ParentKey(parse_path(router.parent_key), router.field, extra, tuple(router.parent_slice_fields))
    return SubstreamRouter(parent, key)


def _values(router: model.ListRouter, place: str, config: Mapping[str, Any]) -> list[Any]:
    template = compile_value(router.values, f"{place}.values", CONFIG_NAMES, config)
    values = template({"config": config})
    if isinstance(values, list):
        return values
    raise SourceDefinitionError(
        f"{place}.values", f"is {type(values).__name__}, not a list", 'e.g. [a, b] or "{{ config.regions }}"'
    )
