"""A report of a manifest's stream that needs no request: its pages, partitions, key, columns and table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from airflow_provider_rfr.streams.airbyte._cdk import Interpreted, Paging
from airflow_provider_rfr.streams.airbyte._limits import ManifestLimits

Resumable: TypeAlias = Literal["by page", "by slice", "one request", "no"]


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A report of one stream.

    :ivar resumable: after which parts of it a refresh continues; None where that is not known
    :ivar why: in words, for people
    :ivar partitions: kinds of the routers that divide it, with their parents or steps; it has their product
    :ivar columns: of the schema that the manifest declares; None where the API is asked for it, or code makes it
    :ivar is_readable: whether it can be read at all
    :ivar notes: its limits, and the parts of the manifest that have no effect
    """

    name: str
    resumable: Resumable | None
    why: str
    partitions: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    schema: str = "declared"
    columns: int | None = None
    is_readable: bool = True
    notes: tuple[str, ...] = ()


def report_of(stream: Interpreted, paging: Paging, limits: ManifestLimits) -> StreamReport:
    """Return the report of a stream that the manifest declares."""
    partitions, schema = tuple(_partitions(stream.definition)), _schema(stream.definition)
    resumable: Resumable = "by page" if paging.by_page else "by slice"
    why = paging.why
    if not partitions and paging.is_one_page:
        resumable, why = "one request", "no paging, no partitions"
    elif not partitions and not paging.by_page:
        resumable, why = "no", f"{why}, and there is one slice"
    columns = len(stream.schema.get("properties") or ()) if schema == "declared" else None
    if columns == 0:
        schema, columns = "none", None
    key, notes = tuple(stream.primary_key or ()), (*limits.words(), *warnings_of(stream.definition, limits))
    return StreamReport(stream.name, resumable, why, partitions, key, schema, columns, notes=notes)


def warnings_of(definition: Mapping[str, Any], limits: ManifestLimits) -> Iterator[str]:
    """Yield a warning for each setting of the manifest that a refresh does not support."""
    if definition.get("file_uploader"):
        yield "only rows are read, and files are not fetched (file_uploader)"
    yield from (
        f"api_budget.{field} has no effect; only answers 429 slow the refresh down" for field in limits.not_kept
    )


def custom_classes(definition: Mapping[str, Any]) -> list[str]:
    """Return the names of the connector's own classes that help to read a slice."""
    retriever = definition.get("retriever") or {}
    parts = [{**retriever, "partition_router": None}, definition.get("transformations")]
    return list(dict.fromkeys(_custom_classes(parts)))


def _custom_classes(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        name = str(value.get("class_name") or "")
        # An authenticator keeps a token, which is the same for each page.
        if name and not name.startswith("airbyte_cdk.") and value.get("type") != "CustomAuthenticator":
            yield name.rpartition(".")[2]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _custom_classes(item)


def report_of_listing(definition: Mapping[str, Any]) -> StreamReport:
    """Return the report of streams that only the API can list."""
    template = definition.get("stream_template")
    template = template if isinstance(template, Mapping) else {}
    name = str(definition.get("name") or template.get("name") or "dynamic_streams")
    why = "not known before the API lists these streams"
    return StreamReport(name, None, why, tuple(_partitions(template)), schema=_schema(template))


def _partitions(definition: Mapping[str, Any]) -> Iterator[str]:
    routers = (definition.get("retriever") or {}).get("partition_router") or []
    for router in routers if isinstance(routers, list) else [routers]:
        yield _router(router)
    cursor = definition.get("incremental_sync") or {}
    if cursor.get("type") == "DatetimeBasedCursor":
        yield f"DatetimeBasedCursor by {cursor['step']}" if cursor.get("step") else "DatetimeBasedCursor, one window"


def _router(router: Mapping[str, Any]) -> str:
    kind = str(router.get("class_name") or router.get("type"))
    parents = [
        str(parent_stream_config.get("stream", {}).get("name"))
        for parent_stream_config in router.get("parent_stream_configs") or ()
    ]
    inner = router.get("underlying_partition_router")
    if isinstance(inner, Mapping):
        return f"{kind} of {_router(inner)}"
    values = router.get("values")
    if isinstance(values, list):
        return f"{kind} of {len(values)} values"
    return f"{kind} of {', '.join(parents)}" if parents else kind


def _schema(definition: Mapping[str, Any]) -> str:
    loaders = definition.get("schema_loader") or []
    kinds = {str(loader.get("type")) for loader in (loaders if isinstance(loaders, list) else [loaders])}
    if "DynamicSchemaLoader" in kinds:
        return "asked of the API"
    return "made by code" if "CustomSchemaLoader" in kinds else "declared"
