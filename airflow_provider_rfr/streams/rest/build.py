"""Builds streams from a definition and a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_rfr.exceptions import ConfigurationError, SourceDefinitionError
from airflow_provider_rfr.http.client import Client, Limits, check_certificates
from airflow_provider_rfr.http.redaction import MASK, Redactor, is_secret
from airflow_provider_rfr.streams.core import key_paths
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._auth import build_authenticator
from airflow_provider_rfr.streams.rest._client import (
    Authenticator,
    Requester,
    RequestTemplates,
    Transport,
    check_base_url,
)
from airflow_provider_rfr.streams.rest._hosts import HostPolicy
from airflow_provider_rfr.streams.rest._paginators import build_paginator, resolved_page_size
from airflow_provider_rfr.streams.rest._partition_routers import PartitionRouter, build_router, with_windows
from airflow_provider_rfr.streams.rest._records import Records
from airflow_provider_rfr.streams.rest._responses import ACCEPTED
from airflow_provider_rfr.streams.rest.document import parse_definition
from airflow_provider_rfr.streams.rest.stream import RestStream
from airflow_provider_rfr.streams.rest.templates import CONFIG_NAMES, Scope, compile_value, has_expressions, nearest

_MAX_BYTES: Final = 256 * 1024 * 1024
_FINGERPRINT_FORMAT: Final = 1
# They may change while a refresh is under way: credentials, error handling, limits, types and primary key.
# The base URL is part of the fingerprint, but not in the definition's place.
_NOT_IN_FINGERPRINT: Final[dict[str, Any]] = {
    **dict.fromkeys(("primary_key", "json_schema", "json_schema_file", "columns", "additional_fields"), True),
    **dict.fromkeys(("base_url", "authenticator", "error_handler", "timeouts", "max_response_bytes"), True),
    # Whether a page counts as the last one is decided again at the publish.
    "paginator": {"on_missing": True, "max_empty_pages": True, "flag": {"on_missing"}},
}


def build_stream(
    document: Mapping[str, Any], name: str, config: Mapping[str, Any], secrets: Mapping[str, Any]
) -> RestStream:
    """Build one stream, and the parents that it needs.

    :raises SourceDefinitionError: the document is wrong, or has no such stream
    """
    source = _Source(document, config, secrets)
    streams = source.definition.streams
    if name not in streams:
        raise SourceDefinitionError("streams", f"there is no stream {name!r}", nearest(name, streams))
    return source.stream(name)


def build_streams(
    document: Any, config: Mapping[str, Any], secrets: Mapping[str, Any], file: str | None = None
) -> dict[str, RestStream]:
    """Build all streams of a definition.

    :param file: that the document was read from, for errors
    :raises SourceDefinitionError: the document is wrong
    """
    try:
        source = _Source(document, config, secrets, file)
        return {name: source.stream(name) for name in source.definition.streams}
    except SourceDefinitionError as error:
        problems = error.at(file or "").problems
    # Of this very class: a driver's last line names it, and only those in ``exceptions`` are known there.
    raise SourceDefinitionError.of(problems)


class _Source:
    """A definition with its configuration, and the parts that its streams share.

    Builds each stream once; children share their parent's instance.

    :raises SourceDefinitionError: the document is wrong, or names secrets that aren't there
    """

    def __init__(
        self, document: Any, config: Mapping[str, Any], secrets: Mapping[str, Any], file: str | None = None
    ) -> None:
        self.definition, self._document = parse_definition(document, file)
        self._config = {**config, **secrets}
        for name in self.definition.secrets:
            if name not in self._config:
                problem, remedy = f"config has no {name!r}", nearest(name, self._config)
                raise SourceDefinitionError("secrets", problem, remedy, file or "")
        self._secrets = {name: self._config[name] for name in (*secrets, *self.definition.secrets)}
        # For what is stored: partitions, records, fingerprints.
        self._public = {name: value for name, value in config.items() if name not in self._secrets}
        try:
            check_certificates(self.definition.verify, "verify")
        except ConfigurationError as error:
            raise SourceDefinitionError.of(error.problems) from None
        proxy = self.definition.proxy
        self._redactor = Redactor(self._secrets.values())
        self._transport = Transport(
            Client(max_idle=None, proxy=None if proxy is None else str(self._resolved(proxy, "proxy"))),
            self._redactor,
            self.definition.verify,
        )
        self._built: dict[str, RestStream] = {}
        self._open: list[str] = []
        self._shared_authenticators: dict[str, Authenticator] = {}

    def stream(self, name: str) -> RestStream:
        """Return a stream, which is built once.

        :raises SourceDefinitionError: the stream is wrong, or its own ancestor
        """
        if name in self._open:
            circle = " -> ".join([*self._open[self._open.index(name) :], name])
            raise SourceDefinitionError(f"streams.{name}.partitions.parent", f"streams are their own parents: {circle}")
        if name not in self._built:
            self._open.append(name)
            self._built[name] = self._build(name)
            self._open.pop()
        return self._built[name]

    def _resolved(self, value: Any, place: str) -> Any:
        """Return the value of a template that knows only the configuration."""
        return compile_value(value, place, CONFIG_NAMES, self._config)({"config": self._config})

    def _build(self, name: str) -> RestStream:
        defaults, stream = self.definition.defaults, self.definition.streams[name]
        missing = [field for field in model.Inheritable.model_fields if getattr(stream, field) is None]
        stream = stream.model_copy(update={field: getattr(defaults, field) for field in missing})
        place = f"streams.{name}"
        declared, at = stream.base_url, f"{place}.base_url"
        if declared is None:
            declared, at = self.definition.base_url, "base_url"
        base_url = check_base_url(self._resolved(declared, at), at, self._redactor.text)
        hosts = HostPolicy.of(base_url, self.definition.allowed_hosts)
        page_size = resolved_page_size(stream.paginator, f"{place}.paginator", self._config)
        paginator = build_paginator(
            *(stream.paginator, f"{place}.paginator", page_size, self._public, hosts, self._redactor),
            key_paths(stream.primary_key),
        )
        router = build_router(
            stream.partitions, f"{place}.partitions", self._public, self.definition.streams, self.stream
        )
        public = Scope(place, self._public)
        selector = (stream.records or Records()).bind(public.at("records"), router.fields)
        return RestStream(
            name,
            requester=self._requester(stream, place, base_url, hosts, page_size, paginator.addressable, selector),
            selector=selector,
            paginator=paginator,
            router=router,
            transformations=[
                transformation.bind(public.at(f"transformations.{number}"))
                for number, transformation in enumerate(stream.transformations)
            ],
            variables={"config": self._public},
            fingerprint=self._fingerprint(name, stream, self._redactor.text(declared), page_size, router),
            rebuild=lambda: (build_stream, (self._document, name, dict(self._public), dict(self._secrets))),
            **stream.model_dump(include={"primary_key", "json_schema", "columns", "additional_fields"}),
        )

    def _requester(
        self,
        stream: model.StreamDefinition,
        place: str,
        base_url: str,
        hosts: HostPolicy,
        page_size: int | None,
        addressable: bool,
        selector: Records,
    ) -> Requester:
        timeouts = stream.timeouts or model.Timeouts()
        limits = Limits(timeouts.connect, timeouts.read, stream.max_response_bytes or _MAX_BYTES, truncate=False)
        declared, scope = stream.error_handler or model.ErrorHandler(), Scope(f"{place}.error_handler", self._config)
        handler = declared.bind(scope, self._redactor, addressable=addressable, records=selector)
        shared = self.definition.defaults.request
        accepted = ACCEPTED.get(selector.format)
        if accepted is not None:
            # First, so that a header of the source's own wins, in upper or lower case.
            shared = shared.model_copy(update={"headers": {"Accept": accepted, **shared.headers}})
        request = with_windows(stream.request, stream.partitions, place)
        templates = RequestTemplates.of(request, shared, base_url, f"{place}.request", self._config)
        authenticator = self._authenticator(stream, place, base_url, timeouts.total, limits)
        if not authenticator.is_renewable:
            handler.refuse_renewal(scope)
        return Requester(
            templates=templates,
            authenticator=authenticator,
            handler=handler,
            transport=self._transport,
            timeout=timeouts.total,
            limits=limits,
            hosts=hosts,
            variables={"config": self._config, "page_size": page_size},
        )

    def _authenticator(
        self, stream: model.StreamDefinition, place: str, base_url: str, timeout: float, limits: Limits
    ) -> Authenticator:
        """Return the stream's own authenticator, or the document's, which streams share: it may hold a token."""
        own, handler, at = stream.authenticator, stream.error_handler, f"{place}.authenticator"
        if own is None:
            if base_url in self._shared_authenticators:
                return self._shared_authenticators[base_url]
            usual, handler, at = model.Timeouts(), self.definition.defaults.error_handler, "authenticator"
            timeout, limits = usual.total, Limits(usual.connect, usual.read, _MAX_BYTES, truncate=False)
        definition = own or self.definition.authenticator
        built = build_authenticator(definition, at, self._config, base_url, self._transport, timeout, limits, handler)
        if own is None:
            self._shared_authenticators[base_url] = built
        return built

    def _fingerprint(
        self, name: str, stream: model.StreamDefinition, base_url: str, page_size: int | None, router: PartitionRouter
    ) -> Mapping[str, Any]:
        """Return everything that decides which requests the stream sends, as JSON without secrets.

        :param stream: with the defaults already in their places
        """
        declared = stream.model_dump(mode="json", by_alias=True, exclude=_NOT_IN_FINGERPRINT, exclude_defaults=True)
        request, shared = declared.setdefault("request", {}), self.definition.defaults.request
        for part, defaults in (("query", shared.query), ("headers", shared.headers)):
            values = {**defaults, **request.get(part, {})}
            for key, value in values.items():
                # A credential that was written into the document itself; a template only names where it comes from.
                if is_secret(key) and isinstance(value, str) and not has_expressions(value):
                    values[key] = MASK
            if values:
                request[part] = values
        return {
            "class": "airflow_provider_rfr.streams:RestStream",
            "format": _FINGERPRINT_FORMAT,
            "name": name,
            "base_url": base_url,
            "definition": declared,
            "page_size": page_size,
            "config": dict(self._public),
            "parents": {parent.name: parent.fingerprint() for parent in router.parents()},
        }
