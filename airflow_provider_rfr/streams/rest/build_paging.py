"""Makes paginators of their definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest import definition_paging as model
from airflow_provider_rfr.streams.rest.chained_paginators import (
    Cursor,
    Keyset,
    NextUrl,
    computed_by,
    found_by,
    link_of,
)
from airflow_provider_rfr.streams.rest.definition_base import Origin
from airflow_provider_rfr.streams.rest.hosts import HostPolicy
from airflow_provider_rfr.streams.rest.injection import put_at
from airflow_provider_rfr.streams.rest.interpolation import (
    CONFIG_NAMES,
    RESPONSE_NAMES,
    Template,
    compile_condition,
    compile_value,
)
from airflow_provider_rfr.streams.rest.numbered_paginators import Offset, PageNumber
from airflow_provider_rfr.streams.rest.paginators import Finder, Paginator, Reply, SinglePage
from airflow_provider_rfr.streams.rest.paths import parse_path
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.stop_policies import (
    StopPolicy,
    when_empty,
    when_flagged,
    when_offset_reached,
    when_pages_read,
    when_records_read,
    when_short,
)


def resolved_page_size(definition: model.Paginator | None, place: str, config: Mapping[str, Any]) -> int | None:
    """The page size as a number.

    :raises SourceDefinitionError: it isn't a whole number from 1
    """
    size = getattr(definition, "page_size", None)
    if size is None:
        return None
    if isinstance(size, str):
        size = compile_value(size, f"{place}.page_size", CONFIG_NAMES, config)({"config": config})
    if isinstance(size, str) and size.isdigit():
        size = int(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise SourceDefinitionError(f"{place}.page_size", f"{size!r} is no page size", "allowed: whole numbers from 1")
    return size


def build_paginator(
    definition: model.Paginator | None,
    place: str,
    page_size: int | None,
    config: Mapping[str, Any],
    hosts: HostPolicy,
    redactor: Redactor,
) -> Paginator:
    """The paginator of a definition; without one there is a single page."""
    if definition is None or isinstance(definition, model.NoPaging):
        return SinglePage()
    if isinstance(definition, (model.PageNumber, model.Offset)):
        return _numbered(definition, page_size)
    if isinstance(definition, model.Keyset):
        return Keyset(
            field=parse_path(definition.field),
            put=put_at(definition.send_as),
            stop=_policy(definition, page_size),
            page_size=page_size,
            put_size=put_at(definition.size_as),
        )
    if isinstance(definition, model.Cursor):
        return _cursor(definition, place, page_size, config)
    if isinstance(definition, model.LinkHeader):
        find, stop_when = link_of(definition.header, definition.rel), None
    else:
        find = found_by(finder_of(definition.url))
        stop_when = _condition(definition.stop_when, f"{place}.stop_when", config)
    return NextUrl(
        find=find,
        hosts=hosts,
        redactor=redactor,
        stop_when=stop_when,
        keep_query=definition.keep_query,
        page_size=page_size,
        put_size=put_at(definition.size_as),
    )


def _cursor(definition: model.Cursor, place: str, page_size: int | None, config: Mapping[str, Any]) -> Cursor:
    return Cursor(
        find=_cursor_finder(definition.cursor, f"{place}.cursor", config),
        put=put_at(definition.send_as),
        stop_when=_condition(definition.stop_when, f"{place}.stop_when", config),
        end_if_missing=definition.on_missing == "end",
        computed=definition.cursor.expression is not None,
        page_size=page_size,
        put_size=put_at(definition.size_as),
    )


def finder_of(origin: Origin) -> Finder:
    """How the value of a definition's origin is found."""
    return Finder(None if origin.path is None else parse_path(origin.path), origin.header)


def _numbered(definition: model.PageNumber | model.Offset, page_size: int | None) -> Paginator:
    parts: dict[str, Any] = {
        "start": definition.start,
        "put": put_at(definition.send_as),
        "send_first": definition.send_first,
        "page_size": page_size,
        "put_size": put_at(definition.size_as),
    }
    if isinstance(definition, model.PageNumber):
        return PageNumber(stop=_policy(definition, page_size), **parts)
    by_records = definition.advance == "records"
    stop = _policy(definition, page_size, offsets_by_records=by_records)
    return Offset(advance_by_records=by_records, stop=stop, **parts)


def _policy(
    definition: model.PageNumber | model.Offset | model.Keyset,
    page_size: int | None,
    offsets_by_records: bool | None = None,
) -> StopPolicy:
    """:param offsets_by_records: how offsets advance; None if pages are not offsets"""
    policy = definition.stop_policy
    if policy == "short" and page_size is not None:
        return when_short(page_size)
    if policy == "flag" and definition.flag is not None:
        return when_flagged(finder_of(definition.flag), definition.flag.stop_when)
    if policy == "total" and definition.total is not None:
        finder = finder_of(definition.total)
        if definition.total.of == "pages" or page_size is None:
            return when_pages_read(finder)
        if offsets_by_records is not None:
            return when_offset_reached(finder, page_size, by_records=offsets_by_records)
        return when_records_read(finder, page_size)
    return when_empty


def _cursor_finder(origin: model.CursorOrigin, place: str, config: Mapping[str, Any]) -> Callable[[Reply], Any]:
    if origin.expression is not None:
        expression = compile_condition(origin.expression, f"{place}.expression", RESPONSE_NAMES, config)
        return computed_by(expression, of_records="last_record" in origin.expression)
    return found_by(Finder(None if origin.path is None else parse_path(origin.path), origin.header))


def _condition(text: str | None, place: str, config: Mapping[str, Any]) -> Template | None:
    return None if text is None else compile_condition(text, place, RESPONSE_NAMES, config)
