"""The streams that a source's definition declares, built with a configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final

from airflow_provider_rfr.documents import suggestion
from airflow_provider_rfr.exceptions import (
    ConfigurationError,
    RateLimitedError,
    SecretInTokenError,
    SourceDefinitionError,
    SourceError,
    TokenExpiredError,
)
from airflow_provider_rfr.http.client import Client, Limits, check_certificates
from airflow_provider_rfr.http.redaction import MASK, Redactor, bare_host, is_secret
from airflow_provider_rfr.streams.core import (
    Complete,
    NextPage,
    Page,
    ReadContext,
    key_paths,
    unique_slices,
)
from airflow_provider_rfr.streams.paged import (
    REMEDY_FOR_ABSENT_FIELD,
    SECRET_IN_TOKEN,
    PagedStream,
    is_unexplained_end,
)
from airflow_provider_rfr.streams.rest._auth import NoAuthenticator, TokenService
from airflow_provider_rfr.streams.rest._errors import ErrorHandler, ResponseVerdict
from airflow_provider_rfr.streams.rest._incremental import BoundedRead
from airflow_provider_rfr.streams.rest._paging import PageStep, Paginator, PagingContext, Reply, SinglePagePaginator
from airflow_provider_rfr.streams.rest._partitions import ParentStream, ParentStreams, PartitionRouter
from airflow_provider_rfr.streams.rest._records import (
    BoundTransformation,
    Records,
    SkipGuard,
    transform,
)
from airflow_provider_rfr.streams.rest._request import (
    Authenticator,
    HostPolicy,
    RequestDefaults,
    RequestDraft,
    Requester,
    Timeouts,
    Transport,
    check_base_url,
)
from airflow_provider_rfr.streams.rest._responses import ACCEPTED, Response
from airflow_provider_rfr.streams.rest.definition import (
    StreamDefinition,
    parse_definition,
    streams_by_name,
)
from airflow_provider_rfr.streams.rest.templates import Part, Scope, config_remedy, has_expressions

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 256 * 1024 * 1024
_FINGERPRINT_FORMAT: Final = 1
# Fields that may change while a refresh is under way: credentials, error handling, limits, types and primary key.
# The base URL is part of the fingerprint, too, under a key of its own.
_NOT_IN_FINGERPRINT: Final[dict[str, Any]] = {
    **dict.fromkeys(("primary_key", "json_schema", "json_schema_file", "columns", "additional_fields"), True),
    **dict.fromkeys(("base_url", "authenticator", "error_handler", "timeouts", "max_response_bytes"), True),
    # Whether a page counts as the last one is decided again at the publish.
    "paginator": {"on_missing": True, "max_empty_pages": True, "flag": {"on_missing"}},
    # The slices of an open load are stored with their bounds. ``start`` counts: another one asks for other records.
    "incremental": {"step", "lookback", "settle"},
}
# Statuses by which an API says that it does not know a page, or a page token.
_NO_SUCH_PAGE: Final = frozenset({400, 404, 410, 416, 422})


class RestStream(ParentStream):
    """A stream read by HTTP as a source definition says; see docs/sources.md and :func:`build_stream`.

    Stateless: any page of any partition can be read on any thread.  The pages of a parent stream are read
    by the parent's own RestStream.

    :param variables: what filters and transformations may use besides the record: no secrets, because what
        they make ends in a table
    :param fingerprint: what decides which requests are sent, without secrets
    :param source: returns the source from which another process builds the stream; a function, so that its secrets are
        not in an attribute
    """

    paces_itself = True

    def __init__(
        self,
        name: str,
        definition: StreamDefinition,
        *,
        requester: Requester,
        records: Records,
        paginator: Paginator,
        router: PartitionRouter,
        incremental: BoundedRead | None,
        transformations: Sequence[BoundTransformation],
        variables: Mapping[str, Any],
        fingerprint: Mapping[str, Any],
        source: Callable[[], Mapping[str, Any]],
        api_host: str | None,
    ) -> None:
        self.name = name
        self.primary_key = definition.primary_key
        self.json_schema = definition.json_schema
        self.columns = definition.columns
        self.additional_fields = definition.additional_fields
        self.addressable = paginator.addressable
        self.page_size = paginator.records_per_page
        self.max_empty_pages = paginator.most_empty_pages
        self.absent_field_ends = paginator.on_absent_field == "end"
        self.incremental: BoundedRead | None = incremental
        divided = incremental or router
        self.partition_fields = divided.key_fields
        self.slice_fields = divided.slice_fields
        self.pages_by = paginator.pages_by
        if self.page_size is not None:
            self.pages_by += f", {self.page_size} records a page"
        if isinstance(paginator, SinglePagePaginator):
            self.resumable = "by slice" if self.slice_fields else "one request"
        self._requester = requester
        self._records = records
        self._paginator = paginator
        self._router = router
        self._transformations = transformations
        self._variables = variables
        self._fingerprint = fingerprint
        self._source = source
        self.api_host = api_host
        self._skips = SkipGuard(requester.handler.max_skipped_pages)

    def source_for_executors(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        # It holds the schemas from files, which executors do not have.
        return self._source()

    def stream_slices(self) -> Iterable[Mapping[str, Any]]:
        """Return the partitions; a parent stream is read for them, page by page."""
        read, router = self.incremental, self._router
        slices = router.partitions() if read is None else read.all_slices(datetime.now(timezone.utc))
        return (stream_slice.partition for stream_slice in unique_slices(self, slices))

    def read_page(self, stream_slice: Mapping[str, Any], token: Any | None) -> Page:
        try:
            verdict = self._requester.fetch(stream_slice, token, partial(self._inject, stream_slice), self.context)
            return self._page_of(stream_slice, token, verdict)
        except SourceError as error:
            # A rate limit says nothing about the page, whatever its status.
            is_refused = error.status in _NO_SUCH_PAGE and not isinstance(error, RateLimitedError)
            # A page after the last by the API's own count was requested to make sure; a refusal confirms the end.
            if is_refused and self._paginator.is_beyond_the_end(token):
                return Page((), Complete(), request=error.request, status=error.status)
            may_have_expired = not (self.addressable or isinstance(error, TokenExpiredError))
            if token is not None and is_refused and may_have_expired:
                error.message += (
                    f"; if the page token has expired, add {error.status} to error_handler.expired_token_status, and"
                    " the partition is read again from its first page"
                )
            raise

    def _inject(self, stream_slice: Mapping[str, Any], token: Any | None, draft: RequestDraft) -> None:
        self._paginator.inject(token, draft)
        if self.incremental is not None:
            self.incremental.leave_out_end(stream_slice, draft)

    def _page_of(self, stream_slice: Mapping[str, Any], token: Any | None, verdict: ResponseVerdict) -> Page:
        answer = verdict.answer
        is_beyond = self._paginator.is_beyond_the_end(token)
        is_refused = verdict.action == "IGNORE" and verdict.status in _NO_SUCH_PAGE
        if verdict.action == "END" or (is_refused and is_beyond):
            return Page((), Complete(), request=verdict.request, status=verdict.status)
        if verdict.action == "IGNORE" or answer is None:
            return self._skipped(stream_slice, token, verdict)
        received, records, step = self._content(stream_slice, token, answer)
        page = Page(
            records,
            step.next,
            step.total_pages,
            answer.request,
            answer.status,
            received=received,
            unconfirmed=step.unconfirmed,
            promised=step.promised,
            absent=step.absent,
            is_beyond=is_beyond,
        )
        if not self.slice_fields and is_unexplained_end(page, self.page_size):
            # No other partition can show that the field exists.
            raise SourceDefinitionError(f"streams.{self.name}", page.absent or "", REMEDY_FOR_ABSENT_FIELD)
        return page

    def _content(
        self, stream_slice: Mapping[str, Any], token: Any | None, answer: Response
    ) -> tuple[int, list[dict[str, Any]], PageStep]:
        """Return how many records came, those of them that count, and the position after the page."""
        if not answer.has_content:
            # 204 and 205 say that there are no records, and have no field that a paginator could look for.
            return 0, [], self._paginator.after_no_content(token)
        place = self._records
        if self._paginator.is_beyond_the_end(token) and self._paginator.has_count(answer):
            # APIs may leave the list out of a page without records, or send null.
            place = place.model_copy(update={"on_missing": "empty"})
        records = place.select(answer)
        variables = {**self._variables, "stream_slice": stream_slice}
        # Before the filter: a page whose records are all filtered out is not the last one.
        reply = Reply(answer, records, {**variables, "token": token})
        step = self._paginator.step(token, reply)
        if isinstance(step.next, NextPage) and self._requester.transport.redactor.finds_secret_in(step.next.token):
            problem = f"{SECRET_IN_TOKEN}; choose another paginator, e.g. page_number or offset"
            raise SecretInTokenError(problem, status=answer.status, request=answer.request)
        if step.is_repeat:
            return 0, [], step
        received = len(records)
        records = self._records.keep(records, variables, answer.request)
        if self._transformations:
            transform(records, self._transformations, variables, answer.request)
        if self.incremental is not None:
            self.incremental.mark_deleted(records, variables, answer.request)
        return received, records, step

    def _skipped(self, stream_slice: Mapping[str, Any], token: Any | None, verdict: ResponseVerdict) -> Page:
        following = self._paginator.after_skipped(token)
        if following is not None:
            position = self._paginator.position_of(token)
            self._skips.note(self.partition_key(stream_slice), position, verdict.reason, verdict.request)
        elif token is not None:
            raise SourceError(
                f"the page was to be ignored, but without it the next one can't be known: {verdict.reason}",
                status=verdict.status,
                request=verdict.request,
            )
        after = Complete() if following is None else NextPage(following)
        return Page((), after, None, verdict.request, verdict.status, skipped=verdict.reason)

    def token_at(self, position: int) -> Any | None:
        return self._paginator.token_at(position)

    def fingerprint(self) -> Mapping[str, Any]:
        return self._fingerprint

    def parent_streams(self) -> Sequence[PagedStream]:
        return self._router.parent_streams()

    def bind(self, context: ReadContext) -> None:
        super().bind(context)
        for parent in self.parent_streams():
            parent.bind(context)

    def __reduce__(self) -> Any:
        source = self._source()
        return build_stream, (source["definition"], self.name, source["config"], source["secrets"])

    def __repr__(self) -> str:
        return f"RestStream({self.name!r})"


def build_streams(
    document: Any, config: Mapping[str, Any], secrets: Mapping[str, Any], file: str | None = None
) -> dict[str, RestStream]:
    """Build all streams of a definition.

    :param file: the file that the document was read from, for errors
    :raises SourceDefinitionError: the document is wrong
    """
    try:
        source = _SourceBuilder(document, config, secrets, file)
        return {name: source.stream(name) for name in source.definition.streams}
    except SourceDefinitionError as error:
        problems = error.at(file or "").problems
    # Raised as this very class: a driver's last line names it, and its reader knows only classes of ``exceptions``.
    raise SourceDefinitionError.of(problems)


def build_stream(
    document: Any,
    name: str,
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, Any] | None = None,
    file: str | None = None,
) -> RestStream:
    """Build one stream of a definition, and the parents that it needs.

    :param file: the file that the document was read from, for errors
    :raises ConfigurationError: there is no such stream (SourceDefinitionError: the document is wrong)
    """
    try:
        source = _SourceBuilder(document, config or {}, secrets or {}, file)
        if name not in (streams := source.definition.streams):
            raise ConfigurationError("streams", f"the source has no stream {name!r}", suggestion(name, streams))
        return source.stream(name)
    except SourceDefinitionError as error:
        problems = error.at(file or "").problems
    raise SourceDefinitionError.of(problems)


class _SourceBuilder:
    """A definition with its configuration, and the parts that its streams share.

    It builds each stream once; children share their parent's instance.

    :raises SourceDefinitionError: the document is wrong, or names secrets that aren't there
    """

    def __init__(
        self, document: Any, config: Mapping[str, Any], secrets: Mapping[str, Any], file: str | None = None
    ) -> None:
        self.definition, self._document = parse_definition(document, file)
        self._config = {**config, **secrets}
        self._private = Scope("", self._config)
        for name in self.definition.secrets:
            if name not in self._config:
                problem, remedy = f"config has no {name!r}", config_remedy(name, self._config)
                raise SourceDefinitionError("secrets", problem, remedy, file or "")
        self._secrets = {name: self._config[name] for name in (*secrets, *self.definition.secrets)}
        # For everything that is stored: partitions, records, tokens, fingerprints.
        self._public = Scope("", {name: value for name, value in config.items() if name not in self._secrets})
        try:
            check_certificates(self.definition.verify, "verify")
        except ConfigurationError as error:
            raise SourceDefinitionError.of(error.problems) from None
        proxy = self.definition.proxy
        self._redactor = Redactor(self._secrets.values())
        self._transport = Transport(
            Client(max_idle=None, proxy=None if proxy is None else str(self._private.resolve(proxy, "proxy"))),
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

    def _build(self, name: str) -> RestStream:
        stream = self.definition.stream(name)
        private, public = self._private.at(f"streams.{name}"), self._public.at(f"streams.{name}")
        declared, base_url = self._base_url(stream, private)
        hosts = HostPolicy.of(base_url, self.definition.allowed_hosts)
        paginator: Paginator = stream.paginator or SinglePagePaginator(type="none")
        page_size = paginator.size_in(private.at("paginator"))
        context = PagingContext(public.at("paginator"), page_size, hosts, self._redactor, key_paths(stream.primary_key))
        paginator = paginator.bind(context)
        parents = ParentStreams(self.definition.streams, self.stream)
        router = (stream.partitions or PartitionRouter()).bind(public.at("partitions"), parents)
        read = self._incremental_read(stream, public, router)
        slice_fields = router.slice_fields if read is None else read.slice_fields
        records = (stream.records or Records()).bind(public.at("records"), slice_fields)
        return RestStream(
            name,
            stream,
            requester=self._requester(stream, private, base_url, hosts, paginator, records),
            records=records,
            paginator=paginator,
            router=router,
            incremental=read,
            transformations=[
                transformation.bind(public.at(f"transformations.{number}"))
                for number, transformation in enumerate(stream.transformations)
            ],
            variables={"config": public.config},
            fingerprint=self._fingerprint(name, stream, self._redactor.text(declared), page_size, router),
            source=self._source,
            api_host=bare_host(base_url),
        )

    def _incremental_read(self, stream: StreamDefinition, scope: Scope, router: PartitionRouter) -> BoundedRead | None:
        if stream.incremental is None:
            return None
        # A schema has no templates, and may be long.
        templates = stream.model_dump_json(exclude={"json_schema"}) + self.definition.defaults.request.model_dump_json()
        return stream.incremental.bind(scope.at("incremental"), router, templates)

    def _source(self) -> dict[str, Any]:
        """Return a source for another process, with only the streams that were built here; it holds secrets."""
        streams = {
            name: item for name, item in streams_by_name(self._document["streams"]).items() if name in self._built
        }
        definition = {**self._document, "streams": streams}
        return {"definition": definition, "config": dict(self._public.config), "secrets": dict(self._secrets)}

    def _base_url(self, stream: StreamDefinition, scope: Scope) -> tuple[str, str]:
        """Return the stream's base URL, or the document's: as declared, and resolved."""
        declared = stream.base_url
        if declared is None:
            declared, scope = self.definition.base_url, self._private
        url = scope.resolve(declared, "base_url")
        return declared, check_base_url(url, scope.at("base_url").place, self._redactor.text)

    def _requester(
        self,
        stream: StreamDefinition,
        scope: Scope,
        base_url: str,
        hosts: HostPolicy,
        paginator: Paginator,
        records: Records,
    ) -> Requester:
        timeouts = stream.timeouts or Timeouts()
        limits = timeouts.limits(stream.max_response_bytes or _MAX_BYTES)
        handler = (stream.error_handler or ErrorHandler()).bind(
            scope.at("error_handler"), self._redactor, addressable=paginator.addressable, records=records
        )
        shared = self.definition.defaults.request
        accepted = ACCEPTED.get(records.format)
        if accepted is not None:
            # First, so that a header of the source's own wins, in upper or lower case.
            shared = shared.model_copy(update={"headers": {"Accept": accepted, **shared.headers}})
        whole = stream.whole_request(scope)
        authenticator = self._authenticator(stream, scope, base_url, timeouts.total, limits)
        whole.check_body(paginator.places, scope)
        request = whole.bind(scope.at("request"), shared, base_url)
        if not authenticator.is_renewable:
            handler.refuse_renewal(scope.at("error_handler"))
        return Requester(
            request=request,
            authenticator=authenticator,
            handler=handler,
            transport=self._transport,
            timeout=timeouts.total,
            limits=limits,
            hosts=hosts,
            variables={"config": self._config, "page_size": paginator.records_per_page},
        )

    def _authenticator(
        self, stream: StreamDefinition, scope: Scope, base_url: str, timeout: float, limits: Limits
    ) -> Authenticator:
        """Return the stream's own authenticator, or the document's, which streams share: it may hold a token."""
        own, handler = stream.authenticator, stream.error_handler
        if own is None:
            if base_url in self._shared_authenticators:
                return self._shared_authenticators[base_url]
            scope, handler = self._private, self.definition.defaults.error_handler
            timeout, limits = Timeouts().total, Timeouts().limits(_MAX_BYTES)
        service = TokenService(base_url, self._transport, timeout, limits, handler or ErrorHandler())
        declared = own or self.definition.authenticator or NoAuthenticator(type="none")
        bound = declared.bind(scope.at("authenticator"), service)
        if own is None:
            # Shared by base URL, because the token endpoint may be below it.
            self._shared_authenticators[base_url] = bound
        return bound

    def _fingerprint(
        self, name: str, stream: StreamDefinition, base_url: str, page_size: int | None, router: PartitionRouter
    ) -> Mapping[str, Any]:
        """Return everything that decides which requests the stream sends, as JSON without secrets.

        :param stream: with the defaults already in their places
        """
        return {
            "class": "airflow_provider_rfr.streams:RestStream",
            "format": _FINGERPRINT_FORMAT,
            "name": name,
            "base_url": base_url,
            "definition": _declared_requests(stream, self.definition.defaults.request),
            "page_size": page_size,
            "config": dict(self._public.config),
            "parents": {parent.name: parent.fingerprint() for parent in router.parent_streams()},
        }


def _declared_requests(stream: Part, shared: RequestDefaults) -> dict[str, Any]:
    """Return the declaration of a stream's requests as JSON, without secrets.

    :param stream: with the defaults of the document already in their places
    :param shared: query and headers of all streams
    """
    declared = stream.model_dump(mode="json", by_alias=True, exclude=_NOT_IN_FINGERPRINT, exclude_defaults=True)
    request = declared.setdefault("request", {})
    for part, defaults in (("query", shared.query), ("headers", shared.headers)):
        values = {**defaults, **request.get(part, {})}
        for key, value in values.items():
            # A credential that was written into the document itself; a template only names where it comes from.
            if is_secret(key) and isinstance(value, str) and not has_expressions(value):
                values[key] = MASK
        if values:
            request[part] = values
    return declared
