"""Makes streams of a definition and a configuration.

Makes partition routers of their definitions.

What decides which requests a stream sends, as JSON without secrets.

Left out on purpose, so that they can be changed while a refresh is under way: credentials, error handling,
timeouts and limits, the JSON schema and the primary key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.secret_names import MASK, is_secret
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.auth import build_authenticator
from airflow_provider_rfr.streams.rest.client import (
    Authenticator,
    Limits,
    Requester,
    RequestTemplates,
    Transport,
    check_base_url,
)
from airflow_provider_rfr.streams.rest.definition import RequestDefaults, StreamDefinition
from airflow_provider_rfr.streams.rest.document import parse_definition
from airflow_provider_rfr.streams.rest.error_handler import build_error_handler
from airflow_provider_rfr.streams.rest.expressions import (
    CONFIG_NAMES,
    RECORD_NAMES,
    REQUEST_NAMES,
    compile_condition,
    compile_path,
    compile_value,
    has_expressions,
    nearest,
    parse_path,
)
from airflow_provider_rfr.streams.rest.hosts import HostPolicy
from airflow_provider_rfr.streams.rest.pagination import build_paginator, resolved_page_size
from airflow_provider_rfr.streams.rest.partition_routers import (
    ListRouter,
    NoRouter,
    ParentKey,
    PartitionRouter,
    ProductRouter,
    SubstreamRouter,
)
from airflow_provider_rfr.streams.rest.records import Selector, build_transformations
from airflow_provider_rfr.streams.rest.stream import RestParts, RestStream


def _build_router(
    router: model.Router | None,
    place: str,
    config: Mapping[str, Any],
    streams: Collection[str],
    parent_named: Callable[[str], RestStream],
) -> PartitionRouter:
    """The router of a definition; without one there is a single partition.

    :param config: without secrets: partitions are stored
    :param streams: the names that a parent may have
    :raises SourceDefinitionError: an unknown parent, values that are no list, a duplicate field
    """
    if router is None:
        return NoRouter()
    if isinstance(router, model.ListRouter):
        return ListRouter(router.field, _values(router, place, config))
    if isinstance(router, model.SubstreamRouter):
        return _substream(router, place, streams, parent_named)
    product = ProductRouter(
        [
            _build_router(item, f"{place}.of.{number}", config, streams, parent_named)
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


_FORMAT: Final = 1
_LEFT_OUT: Final = {
    "primary_key",
    "json_schema",
    "json_schema_file",
    "authenticator",
    "error_handler",
    "timeouts",
    "max_response_bytes",
    "base_url",
}


def _fingerprint_of(
    name: str,
    stream: StreamDefinition,
    *,
    base_url: str,
    defaults: RequestDefaults,
    page_size: int | None,
    config: Mapping[str, Any],
    parents: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """:param stream: with the defaults already in their places
    :param config: without secrets
    :param parents: the parents' fingerprints by name
    """
    declared = stream.model_dump(mode="json", by_alias=True, exclude=_LEFT_OUT, exclude_defaults=True)
    request = declared.setdefault("request", {})
    for part, shared in (("query", defaults.query), ("headers", defaults.headers)):
        values = {**shared, **request.get(part, {})}
        if values:
            request[part] = {key: _without_secret(key, value) for key, value in values.items()}
    return {
        "class": "airflow_provider_rfr.streams:RestStream",
        "format": _FORMAT,
        "name": name,
        "base_url": base_url,
        "definition": declared,
        "page_size": page_size,
        "config": dict(config),
        "parents": dict(parents),
    }


def _without_secret(name: str, value: Any) -> Any:
    """A credential that was written into the document itself; a template only names where it comes from."""
    if is_secret(name) and isinstance(value, str) and not has_expressions(value):
        return MASK
    return value


@dataclass(frozen=True, slots=True)
class Source:
    """A definition with its configuration, and what its streams share.

    :ivar raw: the whole document, to build the streams again elsewhere
    :ivar public: the configuration without secrets
    :ivar config: all of it, for what is sent to the API
    """

    raw: Mapping[str, Any] = field(repr=False)
    definition: model.SourceDefinition
    public: Mapping[str, Any]
    config: Mapping[str, Any] = field(repr=False)
    secrets: Mapping[str, Any] = field(repr=False)
    redactor: Redactor
    transport: Transport

    @classmethod
    def of(
        cls,
        document: Any,
        config: Mapping[str, Any],
        secrets: Mapping[str, Any],
        file: str | None = None,
    ) -> Source:
        """:raises SourceDefinitionError: the document is wrong, or names secrets that aren't there"""
        definition, whole = parse_definition(document, file)
        merged = {**config, **secrets}
        for name in definition.secrets:
            if name not in merged:
                raise SourceDefinitionError("secrets", f"config has no {name!r}", nearest(name, merged), file=file)
        hidden = {name: merged[name] for name in (*secrets, *definition.secrets)}
        public = {name: value for name, value in config.items() if name not in hidden}
        redactor = Redactor(hidden.values())
        proxy = _text(definition.proxy, "proxy", merged)
        transport = Transport(
            redactor, proxies={"http": proxy, "https": proxy} if proxy else None, verify=definition.verify
        )
        return cls(whole, definition, public, merged, hidden, redactor, transport)

    def rebuild_arguments(self, name: str) -> tuple[Any, ...]:
        """What ``build_stream`` takes."""
        return self.raw, name, dict(self.public), dict(self.secrets)


def build_stream(
    document: Mapping[str, Any], name: str, config: Mapping[str, Any], secrets: Mapping[str, Any]
) -> RestStream:
    """One stream, and the parents that it needs.

    :raises SourceDefinitionError: the document is wrong, or has no such stream
    """
    source = Source.of(document, config, secrets)
    streams = source.definition.streams
    if name not in streams:
        raise SourceDefinitionError("streams", f"there is no stream {name!r}", nearest(name, streams))
    return _StreamBuilder(source).stream(name)


def build_streams(
    document: Any,
    config: Mapping[str, Any],
    secrets: Mapping[str, Any],
    file: str | None = None,
) -> dict[str, RestStream]:
    """All streams of a definition.

    :raises SourceDefinitionError: the document is wrong
    """
    source = Source.of(document, config, secrets, file)
    builder = _StreamBuilder(source)
    problem: SourceDefinitionError | None = None
    try:
        return {name: builder.stream(name) for name in source.definition.streams}
    except SourceDefinitionError as error:
        problem = error
    raise SourceDefinitionError(problem.path, problem.problem, problem.remedy, file=file)


class _StreamBuilder:
    """Builds each stream once; children share their parent's instance."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._built: dict[str, RestStream] = {}
        self._open: list[str] = []
        self._shared_authenticators: dict[str, Authenticator] = {}

    def stream(self, name: str) -> RestStream:
        if name in self._open:
            circle = " -> ".join([*self._open[self._open.index(name) :], name])
            raise SourceDefinitionError(f"streams.{name}.partitions.parent", f"streams are their own parents: {circle}")
        if name not in self._built:
            self._open.append(name)
            self._built[name] = self._build(name)
            self._open.pop()
        return self._built[name]

    def _build(self, name: str) -> RestStream:
        source = self._source
        stream = _with_defaults(source.definition.streams[name], source.definition.defaults)
        place = f"streams.{name}"
        base_url = self._base_url(stream, place)
        hosts = HostPolicy.of(base_url, source.definition.allowed_hosts)
        page_size = resolved_page_size(stream.paginator, f"{place}.paginator", source.config)
        paginator = build_paginator(
            stream.paginator, f"{place}.paginator", page_size, source.public, hosts, source.redactor
        )
        router = _build_router(
            stream.partitions, f"{place}.partitions", source.public, source.definition.streams, self.stream
        )
        selector = self._selector(stream.records, f"{place}.records")
        requester = self._requester(stream, place, base_url, hosts, page_size, paginator.addressable, selector)
        parts = RestParts(
            requester=requester,
            selector=selector,
            paginator=paginator,
            router=router,
            transformations=build_transformations(stream.transformations, f"{place}.transformations", source.public),
            variables={"config": source.public},
            fingerprint=self._fingerprint(name, stream, page_size, router),
            rebuild=(build_stream, source.rebuild_arguments(name)),
        )
        return RestStream(name, parts, stream.primary_key, stream.json_schema)

    def _base_url(self, stream: model.StreamDefinition, place: str) -> str:
        declared, where = stream.base_url, f"{place}.base_url"
        if declared is None:
            declared, where = self._source.definition.base_url, "base_url"
        value = compile_value(declared, where, CONFIG_NAMES, self._source.config)({"config": self._source.config})
        return check_base_url(value, where, self._source.redactor.text)

    def _fingerprint(
        self, name: str, stream: model.StreamDefinition, page_size: int | None, router: PartitionRouter
    ) -> Mapping[str, Any]:
        source = self._source
        return _fingerprint_of(
            name,
            stream,
            base_url=source.redactor.text(stream.base_url or source.definition.base_url),
            defaults=source.definition.defaults.request,
            page_size=page_size,
            config=source.public,
            parents={parent.name: parent.fingerprint() for parent in router.parents()},
        )

    def _requester(
        self,
        stream: model.StreamDefinition,
        place: str,
        base_url: str,
        hosts: HostPolicy,
        page_size: int | None,
        addressable: bool,
        selector: Selector,
    ) -> Requester:
        source = self._source
        timeouts = stream.timeouts or model.Timeouts()
        limits = Limits(timeouts.connect, timeouts.read, timeouts.total)
        if stream.max_response_bytes is not None:
            limits = Limits(timeouts.connect, timeouts.read, timeouts.total, stream.max_response_bytes)
        return Requester(
            templates=self._templates(stream.request, f"{place}.request", base_url),
            authenticator=self._authenticator(stream, place, base_url, limits),
            handler=build_error_handler(
                stream.error_handler,
                source.redactor,
                addressable=addressable,
                place=f"{place}.error_handler",
                config=source.config,
                selector=selector,
            ),
            transport=source.transport,
            limits=limits,
            hosts=hosts,
            redactor=source.redactor,
            variables={"config": source.config, "page_size": page_size},
        )

    def _authenticator(
        self, stream: model.StreamDefinition, place: str, base_url: str, limits: Limits
    ) -> Authenticator:
        """The stream's own, or the document's, of which all streams share one: it may hold a token."""
        source = self._source
        if stream.authenticator is not None:
            return build_authenticator(
                stream.authenticator,
                f"{place}.authenticator",
                source.config,
                base_url,
                source.transport,
                limits,
                stream.error_handler,
            )
        if base_url not in self._shared_authenticators:
            self._shared_authenticators[base_url] = build_authenticator(
                source.definition.authenticator,
                "authenticator",
                source.config,
                base_url,
                source.transport,
                Limits(),
                source.definition.defaults.error_handler,
            )
        return self._shared_authenticators[base_url]

    def _templates(self, request: model.Request, place: str, base_url: str) -> RequestTemplates:
        config, shared = self._source.config, self._source.definition.defaults.request
        query = {**shared.query, **request.query}
        headers = {**shared.headers, **request.headers}
        return RequestTemplates(
            method=request.method,
            base_url=base_url,
            path=compile_path(request.path, f"{place}.path", REQUEST_NAMES, config),
            query=compile_value(query, f"{place}.query", REQUEST_NAMES, config),
            headers=compile_value(headers, f"{place}.headers", REQUEST_NAMES, config),
            json=compile_value(request.json_, f"{place}.json", REQUEST_NAMES, config),
            form=compile_value(request.form, f"{place}.form", REQUEST_NAMES, config),
        )

    def _selector(self, records: model.Records | None, place: str) -> Selector:
        records = records or model.Records()
        condition = None
        if records.filter is not None:
            condition = compile_condition(records.filter, f"{place}.filter", RECORD_NAMES, self._source.public)
        return Selector(parse_path(records.path), condition, records.on_missing == "empty")


def _with_defaults(stream: model.StreamDefinition, defaults: model.Defaults) -> model.StreamDefinition:
    names = ("records", "paginator", "error_handler", "timeouts", "max_response_bytes")
    missing = {name: getattr(defaults, name) for name in names if getattr(stream, name) is None}
    return stream.model_copy(update=missing)


def _text(value: str | None, place: str, config: Mapping[str, Any]) -> str | None:
    if value is None:
        return None
    return str(compile_value(value, place, CONFIG_NAMES, config)({"config": config}))
