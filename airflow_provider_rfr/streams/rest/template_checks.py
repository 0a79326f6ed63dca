"""Finds wrong templates in a definition without its configuration, as a DAG is parsed long before there is one.

Which names a template may use depends on its place alone.  What ``config`` has is checked when the streams are built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any, TypeAlias

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.definition_paging import Cursor
from airflow_provider_rfr.streams.rest.interpolation import (
    CONFIG_NAMES,
    PREDICATE_NAMES,
    RECORD_NAMES,
    REQUEST_NAMES,
    RESPONSE_NAMES,
    Template,
    compile_condition,
    compile_path,
    compile_value,
)
from airflow_provider_rfr.streams.rest.mistakes import Mistake, combined

_Use: TypeAlias = tuple[Any, str, Set[str], Callable[[Any, str, Set[str]], Template]]
"""A value with templates in it, its place, the names that are known there, and what compiles it."""


def check_templates(definition: model.SourceDefinition, file: str | None) -> None:
    """:raises SourceDefinitionError: naming every template with wrong syntax or a name that its place doesn't know"""
    found: list[Mistake] = []
    for value, place, names, compiled in _document(definition):
        try:
            if value is not None:
                compiled(value, place, names)
        except SourceDefinitionError as error:
            found.append(Mistake(error.path, error.problem, error.remedy))
    if found:
        raise combined(found, file)


def _document(source: model.SourceDefinition) -> Iterator[_Use]:
    yield source.base_url, "base_url", CONFIG_NAMES, compile_value
    yield source.proxy, "proxy", CONFIG_NAMES, compile_value
    yield from _authenticator(source, "authenticator")
    yield source.defaults.request.query, "defaults.request.query", REQUEST_NAMES, compile_value
    yield source.defaults.request.headers, "defaults.request.headers", REQUEST_NAMES, compile_value
    yield from _reading(source.defaults, "defaults")
    for name, stream in source.streams.items():
        yield from _stream(stream, f"streams.{name}")


def _stream(stream: model.StreamDefinition, place: str) -> Iterator[_Use]:
    request = stream.request
    yield stream.base_url, f"{place}.base_url", CONFIG_NAMES, compile_value
    yield from _authenticator(stream, f"{place}.authenticator")
    yield request.path, f"{place}.request.path", REQUEST_NAMES, compile_path
    yield request.query, f"{place}.request.query", REQUEST_NAMES, compile_value
    yield request.headers, f"{place}.request.headers", REQUEST_NAMES, compile_value
    yield request.json_, f"{place}.request.json", REQUEST_NAMES, compile_value
    yield request.form, f"{place}.request.form", REQUEST_NAMES, compile_value
    yield from _reading(stream, place)
    yield from _router(stream.partitions, f"{place}.partitions")
    for number, item in enumerate(stream.transformations):
        if isinstance(item, model.AddFields):
            yield item.fields, f"{place}.transformations.{number}.fields", RECORD_NAMES, compile_value


def _reading(part: model.StreamDefinition | model.Defaults, place: str) -> Iterator[_Use]:
    """What a stream may have of its own, or of the defaults."""
    if part.records is not None:
        yield part.records.filter, f"{place}.records.filter", RECORD_NAMES, compile_condition
    paging, at = part.paginator, f"{place}.paginator"
    yield getattr(paging, "page_size", None), f"{at}.page_size", CONFIG_NAMES, compile_value
    yield getattr(paging, "stop_when", None), f"{at}.stop_when", RESPONSE_NAMES, compile_condition
    if isinstance(paging, Cursor):
        yield paging.cursor.expression, f"{at}.cursor.expression", RESPONSE_NAMES, compile_condition
    for number, rule in enumerate(part.error_handler.rules if part.error_handler is not None else ()):
        yield rule.predicate, f"{place}.error_handler.rules.{number}.predicate", PREDICATE_NAMES, compile_condition


def _router(router: Any, place: str) -> Iterator[_Use]:
    if isinstance(router, model.ListRouter):
        yield router.values, f"{place}.values", CONFIG_NAMES, compile_value
    if isinstance(router, model.ProductRouter):
        for number, item in enumerate(router.of):
            yield from _router(item, f"{place}.of.{number}")


def _authenticator(part: model.StreamDefinition | model.SourceDefinition, place: str) -> Iterator[_Use]:
    if part.authenticator is not None:
        yield part.authenticator.model_dump(by_alias=True), place, CONFIG_NAMES, compile_value
