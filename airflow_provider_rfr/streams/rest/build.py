"""Makes streams of a definition and a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.streams.rest import definition as model
from airflow_provider_rfr.streams.rest.authenticators import Authenticator
from airflow_provider_rfr.streams.rest.build_auth import build_authenticator
from airflow_provider_rfr.streams.rest.build_paging import build_paginator, resolved_page_size
from airflow_provider_rfr.streams.rest.build_routers import build_router
from airflow_provider_rfr.streams.rest.document import parse_definition
from airflow_provider_rfr.streams.rest.error_handler import build_error_handler
from airflow_provider_rfr.streams.rest.fingerprints import fingerprint_of
from airflow_provider_rfr.streams.rest.hosts import HostPolicy
from airflow_provider_rfr.streams.rest.interpolation import (
    CONFIG_NAMES,
    RECORD_NAMES,
    REQUEST_NAMES,
    compile_condition,
    compile_path,
    compile_value,
    nearest,
)
from airflow_provider_rfr.streams.rest.partition_routers import PartitionRouter
from airflow_provider_rfr.streams.rest.paths import parse_path
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.requester import Requester, RequestTemplates, check_base_url
from airflow_provider_rfr.streams.rest.selector import Selector
from airflow_provider_rfr.streams.rest.stream import RestParts, RestStream
from airflow_provider_rfr.streams.rest.transformations import build_transformations
from airflow_provider_rfr.streams.rest.transport import Limits, Transport


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
        router = build_router(
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
        return fingerprint_of(
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
