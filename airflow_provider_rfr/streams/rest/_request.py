"""The request for one page: its declaration, the hosts that may get its credentials, its sending and its retries."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urljoin, urlsplit, urlunsplit

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.http import client as http
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.http.sockets import Deadline
from airflow_provider_rfr.numbers import dumps
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.repeats import kind_of_failure
from airflow_provider_rfr.streams.rest._errors import ErrorHandler, ResponseVerdict, Retries
from airflow_provider_rfr.streams.rest._responses import RequestFailure, Response
from airflow_provider_rfr.streams.rest.templates import (
    MISSING,
    REQUEST_NAMES,
    Part,
    Scope,
    SourceTemplate,
    Templated,
    assign,
    compile_path,
    lookup,
    parse_path,
)
from airflow_provider_rfr.streams.tokens import SAME_TOKEN

_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD: Final = frozenset({307, 308})
_MOST_REDIRECTS: Final = 5
# How a gzip file begins; no text that is JSON or CSV begins like that.
_GZIP: Final = b"\x1f\x8b\x08"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_OF_REQUEST: Final = Templated(REQUEST_NAMES)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_REMEDY: Final = "write a name of letters, digits and hyphens, e.g. X-Since"


@dataclass(slots=True)
class RequestDraft:
    """A request before it is sent.  At most one of ``json`` and ``form`` is used."""

    method: str
    url: str
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    json: Any = None
    form: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"RequestDraft({self.method})"


class RequestPlace(Part):
    """The place of a value in a request: exactly one of the four.

    :ivar query: name of a query parameter
    :ivar header: name of a header
    :ivar json: path in the body, which is then JSON
    :ivar form: name of a field of the body, which is then a form
    """

    query: str | None = Field(default=None, min_length=1)
    header: str | None = Field(default=None, min_length=1)
    json_: str | None = Field(default=None, min_length=1, alias="json")
    form: str | None = Field(default=None, min_length=1)

    @field_validator("header")
    @classmethod
    def _is_header(cls, name: str | None) -> str | None:
        # The message leaves the name out, because a user may have written an API key here.
        if name is not None and not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"is not the name of a header; {_HEADER_REMEDY}")
        return name

    @model_validator(mode="after")
    def _exactly_one(self) -> RequestPlace:
        if sum(name is not None for name in (self.query, self.header, self.json_, self.form)) != 1:
            raise ValueError("name exactly one place: query, header, json or form")
        return self

    @property
    def body(self) -> Literal["json", "form"] | None:
        """Return the kind of body that holds the value; None for a query parameter and a header."""
        return "json" if self.json_ is not None else "form" if self.form is not None else None

    def overlaps(self, other: RequestPlace) -> bool:
        """Tell whether a value at the other place would replace one that is here."""
        parts = [place.model_dump(by_alias=True, exclude_none=True) for place in (self, other)]
        (part, name), (other_part, other_name) = (next(iter(items.items())) for items in parts)
        if part != other_part:
            return {part, other_part} == {"json", "form"}
        if part != "json":
            return bool(name == other_name or (part == "header" and name.lower() == other_name.lower()))
        path, other_path = parse_path(name), parse_path(other_name)
        shortest = min(len(path), len(other_path))
        return path[:shortest] == other_path[:shortest]

    def put(self, draft: RequestDraft, value: Any) -> None:
        """Set the value at this place of a request."""
        if self.query is not None:
            draft.query[self.query] = value
        elif self.header is not None:
            draft.headers[self.header] = str(value)
        elif self.form is not None:
            draft.form = {**(draft.form or {}), self.form: value}
        else:
            if not isinstance(draft.json, dict):
                draft.json = {}
            assign(draft.json, parse_path(self.json_ or ""), value)


def _values_only(value: dict[str, Any]) -> dict[str, Any]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            raise ValueError(f"{name!r} is a mapping; allowed are text, number, boolean, null, or a list of them")
    return value


TextMap = Annotated[dict[str, Any], AfterValidator(_values_only)]


def _headers_only(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a header; {_HEADER_REMEDY}")
    return value


HeaderMap = Annotated[TextMap, AfterValidator(_headers_only)]


class RequestDefaults(Part):
    """The query and headers that every stream's request has.

    :ivar query: query parameters; a stream's own are added to them
    :ivar headers: headers; a stream's own are added to them
    """

    query: Annotated[TextMap, _OF_REQUEST] = Field(default_factory=dict)
    headers: Annotated[HeaderMap, _OF_REQUEST] = Field(default_factory=dict)


class StreamRequest(Part):
    """The request of a stream.

    :ivar method: HTTP method. Requests are repeated, so use ``POST`` only for searches
    :ivar path: path below the base URL; an inserted value is quoted as one part of it, and the filter ``as_path`` keeps
        its slashes
    :ivar query: query parameters; a null is left out, a list is repeated
    :ivar headers: HTTP headers
    :ivar json: body as JSON; not together with ``form``
    :ivar form: body as a form; not together with ``json``
    """

    # Not a subclass of the defaults: problems are reported in the order of the fields, and the path comes first.
    method: Literal["GET", "POST", "PUT"] = "GET"
    path: Annotated[str, Templated(REQUEST_NAMES, compile_path)] = ""
    query: Annotated[TextMap, _OF_REQUEST] = Field(default_factory=dict)
    headers: Annotated[HeaderMap, _OF_REQUEST] = Field(default_factory=dict)
    json_: Annotated[Any, _OF_REQUEST] = Field(default=None, alias="json")
    form: Annotated[TextMap | None, _OF_REQUEST] = None

    _base_url: str = PrivateAttr()
    # Compiled, by the names of the fields.
    _templates: dict[str, SourceTemplate] = PrivateAttr()

    @model_validator(mode="after")
    def _one_body(self) -> StreamRequest:
        if self.json_ is not None and self.form is not None:
            raise ValueError("a request has one body: json or form")
        return self

    def bind(self, scope: Scope, defaults: RequestDefaults, base_url: str) -> StreamRequest:
        """Return the request with its templates compiled.

        :param defaults: query and headers of all streams; the request's own win
        """
        bound = self.model_copy()
        bound._base_url = base_url
        values = {
            "query": {**defaults.query, **self.query},
            "headers": {**defaults.headers, **self.headers},
            "json": self.json_,
            "form": self.form,
        }
        bound._templates = {"path": scope.compile(self.path, "path", REQUEST_NAMES, compile_path)}
        bound._templates |= {name: scope.compile(value, name, REQUEST_NAMES) for name, value in values.items()}
        return bound

    def draft(self, variables: Mapping[str, Any]) -> RequestDraft:
        """Return a request that shares nothing mutable with any other one."""
        templates = self._templates
        form = templates["form"](variables)
        return RequestDraft(
            method=self.method,
            url=join_url(self._base_url, templates["path"](variables)),
            query=plain_values(templates["query"](variables)),
            headers={name: str(value) for name, value in plain_values(templates["headers"](variables)).items()},
            # A copy, because a paginator may put its token into it.
            json=_copy(templates["json"](variables)),
            form=None if form is None else plain_values(form),
        )

    def with_value(
        self, place: RequestPlace, value: str, scope: Scope, sender: str = "partitions.send_as"
    ) -> StreamRequest:
        """Return the request with a template for a window's value at a place, as if the user had written it there.

        :param value: the template
        :param sender: the field that names the place, for the error
        :raises SourceDefinitionError: the request has something else there
        """
        ((part, name),) = place.model_dump(by_alias=True, exclude_none=True).items()
        declared = {"query": self.query, "header": self.headers, "json": self.json_, "form": self.form}
        values, path = declared[part], parse_path(name) if part == "json" else (name,)
        if part == "header":
            # Names of headers are equal without regard to case.
            path = (next((header for header in self.headers if header.lower() == name.lower()), name),)
        other_body = (part == "json" and self.form is not None) or (part == "form" and self.json_ is not None)
        field = {"header": "headers"}.get(part, part)
        if other_body or not isinstance(values, (dict, type(None))):
            problem = f"a window is sent in {part}, and the request has another body"
            raise scope.error("request", problem, f"write {sender} for that body, or as a query")
        if lookup(values or {}, path) not in (MISSING, value):
            problem = f"{name!r} is sent by {sender}, too"
            raise scope.error(f"request.{field}", problem, "remove one of the two")
        changed = deepcopy(values or {})
        assign(changed, path, value)
        return self.model_copy(update={"json_" if part == "json" else field: changed})

    def check_body(self, places: Mapping[str, RequestPlace], scope: Scope) -> None:
        """Check that the request's body can take the values that the paginator sends.

        :param places: the paginator's places, by the fields that name them
        :raises SourceDefinitionError: a place needs another body than the request, or than the other place
        """
        body = "json" if self.json_ is not None else "form" if self.form is not None else None
        for name, place in places.items():
            part = place.body
            if part is None:
                continue
            if body not in (None, part) or (part == "json" and isinstance(self.json_, (list, tuple))):
                problem = f"paginator.{name} sends a value in {part}, and the request has another body"
                raise scope.error("request", problem, f"write paginator.{name} for that body, or as a query")
            body = part


class Timeouts(Part):
    """Seconds; ``total`` is for one request, from connecting to the last byte.

    :ivar connect: seconds until the connection stands
    :ivar read: seconds without a byte
    :ivar total: seconds for one request, even if the server sends a byte now and then
    """

    connect: float = Field(default=10, gt=0)
    read: float = Field(default=60, gt=0)
    total: float = Field(default=300, gt=0)

    def limits(self, max_bytes: int) -> http.Limits:
        """Return the limits of a request whose answer has at most so many bytes."""
        return http.Limits(self.connect, self.read, max_bytes, truncate=False)


@dataclass(frozen=True, slots=True)
class _WebOrigin:
    """Scheme, host and port of an address."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def of(cls, url: str) -> _WebOrigin:
        """Return the origin of a URL.

        :raises ValueError: the URL has an impossible port
        """
        parts = urlsplit(url)
        scheme = parts.scheme.lower()
        return cls(scheme, (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS.get(scheme))

    def __str__(self) -> str:
        port = "" if self.port == _DEFAULT_PORTS.get(self.scheme) else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The origin of the base URL, and the hosts (``host`` or ``host:port``) that are trusted like it."""

    base: _WebOrigin
    allowed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, base_url: str, allowed: Iterable[str] = ()) -> HostPolicy:
        return cls(_WebOrigin.of(base_url), frozenset(host.lower() for host in allowed))

    def is_base(self, url: str) -> bool:
        return _WebOrigin.of(url) == self.base

    def is_allowed(self, url: str) -> bool:
        """Tell whether the URL's host was declared; plain http isn't, if the base URL is https."""
        origin = _WebOrigin.of(url)
        if self.base.scheme == "https" and origin.scheme != "https":
            return False
        return origin.host in self.allowed or f"{origin.host}:{origin.port}" in self.allowed

    def checked(self, url: str, relative_to: str, what: str, request: str | None = None) -> str:
        """Return the absolute address, if the source's credentials may go there.

        :param what: the kind of address, for the error
        :raises SourceError: it leads to a foreign host; the error names both
        """
        problem = ""
        try:
            absolute = self.secured(urljoin(relative_to, url.strip()))
            origin = _WebOrigin.of(absolute)
            if origin.scheme not in _DEFAULT_PORTS or not origin.host:
                problem = f"{what} is not an http address"
            elif not (origin == self.base or self.is_allowed(absolute)):
                problem = (
                    f"{what} leads to {origin}, not to {self.base}; "
                    "credentials are not sent there unless allowed_hosts lists it"
                )
        except ValueError:
            absolute, problem = "", f"{what} is not an address"
        if problem:
            raise SourceError(problem, request=request)
        return absolute

    def secured(self, url: str) -> str:
        """Return the address by https if the base is https: an API behind a proxy often links to itself by http."""
        parts = urlsplit(url)
        if self.base.scheme != "https" or parts.scheme.lower() != "http":
            return url
        upgraded = urlunsplit(("https", *parts[1:]))
        return upgraded if parts.port in (None, self.base.port) and self.is_base(upgraded) else url


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport that all streams of a source share for their requests.

    :ivar verify: the certificates that TLS trusts, see :class:`airflow_provider_rfr.http.client.Request`
    """

    client: http.Client
    redactor: Redactor
    verify: bool | str = True

    def send(self, draft: RequestDraft, timeout: float, limits: http.Limits) -> Response | RequestFailure:
        """Send a request; return its response or failure, which describes the request without credentials.

        :param timeout: seconds, from connecting to the last byte
        """
        body = draft.form if draft.json is None else dumps(draft.json)
        headers = {**_HEADERS, **draft.headers}
        sent = http.Request(draft.method, draft.url, headers, body, self.verify, draft.query)
        outcome = self.client.send(sent, Deadline(timeout), limits=limits)
        request = f"{draft.method} {self.redactor.address(outcome.url or draft.url)}"
        if isinstance(outcome, http.NoAnswer):
            # A certificate that isn't trusted now won't be trusted within the minutes of a page's retries.
            permanent = outcome.permanent or outcome.reason == "tls"
            return RequestFailure(outcome.detail, request, permanent, kind_of_failure(outcome.reason))
        content = outcome.body
        if content.startswith(_GZIP):
            try:
                with gzip.GzipFile(fileobj=BytesIO(content)) as file:
                    content = file.read(limits.max_bytes + 1)
            except (OSError, EOFError, zlib.error):
                return RequestFailure(f"the answer is a damaged gzip file ({len(outcome.body)} bytes)", request)
            if len(content) > limits.max_bytes:
                problem = f"the answer is larger than {limits.max_bytes} bytes once unpacked"
                return RequestFailure(problem, request, permanent=True)
        return Response(outcome.status, outcome.phrase, outcome.headers, content, request, outcome.url)


class Authenticator(Part):
    """The base of authenticators: thread-safe, and with nothing of the credentials in the repr.

    :cvar is_renewable: whether it obtains its credentials itself, so that it can obtain others
    """

    is_renewable: ClassVar[bool] = False

    def apply(self, draft: RequestDraft, context: ReadContext) -> None:
        """Add the credentials to a request; a token may be obtained first.

        :raises AuthenticationError: a token can't be obtained
        """

    def renew(self, draft: RequestDraft, context: ReadContext) -> bool:
        """Replace the credentials with which the API refused ``draft``; return True if there are others now."""
        return False


@dataclass(frozen=True, slots=True)
class Requester:
    """A requester of one stream's pages.  Stateless but for its connections; each request asks the limiter first.

    :ivar timeout: seconds for one HTTP request, from connecting to the last byte
    """

    request: StreamRequest
    authenticator: Authenticator
    handler: ErrorHandler
    transport: Transport
    timeout: float
    limits: http.Limits
    hosts: HostPolicy
    variables: Mapping[str, Any] = field(repr=False)

    def fetch(
        self,
        stream_slice: Mapping[str, Any],
        token: Any | None,
        inject: Callable[[Any | None, RequestDraft], None],
        context: ReadContext,
    ) -> ResponseVerdict:
        """Fetch a page and return the last verdict on it: SUCCESS, IGNORE or END.

        :param inject: puts the token of a page into a request
        :raises SourceError: the verdict is FAIL or TOKEN_EXPIRED, or a budget for retries is used up
        :raises ReadInterrupted: the reader was stopped
        """
        variables = {**self.variables, "stream_slice": stream_slice, "token": token}
        retries = Retries(self.handler, context)
        refused: RequestDraft | None = None
        while True:
            # Made anew for each try: paginator and authenticator write into it.
            draft = self.request.draft(variables)
            inject(token, draft)
            self.authenticator.apply(draft, context)
            verdict = self.handler.decide(self._send(draft, context), token, variables)
            if verdict.refuses_credentials:
                if refused is None:
                    # Once for each refusal: if a new token is refused as well, the token is not the reason.
                    refused = draft
                    if self.authenticator.renew(draft, context):
                        continue
                elif (draft.headers, draft.query) == (refused.headers, refused.query):
                    verdict = replace(verdict, reason=f"{verdict.reason}; {SAME_TOKEN}")
            if not retries.wait_after(verdict):
                return verdict
            # The new token may have expired during the wait.
            refused = None

    def _send(self, draft: RequestDraft, context: ReadContext) -> Response | RequestFailure:
        """Send the request, and those that redirects lead to."""
        for _ in range(_MOST_REDIRECTS + 1):
            context.limiter.acquire()
            outcome = self.transport.send(draft, self.timeout, self.limits)
            if not isinstance(outcome, Response) or outcome.status not in _REDIRECTS:
                return outcome
            location = outcome.headers.get("Location")
            if not location:
                return outcome
            following = self._redirected(draft, outcome, location, context)
            if isinstance(following, RequestFailure):
                return following
            draft = following
        return RequestFailure(f"more than {_MOST_REDIRECTS} redirects", outcome.request, permanent=True)

    def _redirected(
        self, draft: RequestDraft, answer: Response, location: str, context: ReadContext
    ) -> RequestDraft | RequestFailure:
        """Return the request that a redirect leads to. Another host must be listed, and gets no credentials."""
        base, problem = self.hosts.base, ""
        is_base = is_listed = False
        try:
            target = self.hosts.secured(urljoin(answer.url, location))
            parts = urlsplit(target)
            is_base, is_listed = self.hosts.is_base(target), self.hosts.is_allowed(target)
        except ValueError:
            return RequestFailure(
                f"{answer.status} redirects to what is not an address", answer.request, permanent=True
            )
        if not (is_base or is_listed):
            problem = (
                f"{answer.status} redirects from {base} to {parts.scheme}://{parts.netloc.rpartition('@')[2]}, "
                "which is not followed unless allowed_hosts lists it"
            )
        elif draft.method != "GET" and not (is_base and answer.status in _KEEPS_METHOD):
            problem = f"{answer.status} redirects a {draft.method}"
        if problem:
            return RequestFailure(problem, answer.request, permanent=True)
        if not is_base:
            # Without headers: a storage service refuses a signed link that comes with an Authorization of ours.
            return RequestDraft("GET", target)
        # The address may repeat the credentials of the query, which the authenticator adds again.
        clean = self.transport.redactor.without_credentials(target)
        again = RequestDraft(draft.method, clean, {}, draft.headers, draft.json, draft.form)
        self.authenticator.apply(again, context)
        return again


def join_url(base_url: str, path: str) -> str:
    """Return the path below the base URL; it can't lead to another host."""
    if not path:
        return base_url
    return f"{base_url.rstrip('/')}/{path.lstrip('/')}"


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return query or form values as they are sent: null is left out, booleans are true and false."""
    return {name: _query_value(value) for name, value in values.items() if value is not None}


def _query_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return [_query_value(item) for item in value if item is not None]
    return value


def _copy(value: Any) -> Any:
    """Return the value with containers copied; several times faster than ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def check_base_url(url: Any, place: str, redacted: Callable[[str], str] = str) -> str:
    """Check a base URL and return it.

    :raises SourceDefinitionError: not an http address, or one with a user, a password or a query
    """
    problem = ""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        _ = parts.port
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            problem = f"{redacted(str(url))!r} is not an http address"
        elif parts.username or parts.password:
            problem = "a user in the address would be sent in every message; use authenticator: {type: basic}"
        elif parts.query or parts.fragment:
            problem = "has a query; use request.query"
    except ValueError:
        problem = "is not an address"
    if problem:
        raise SourceDefinitionError(place, problem, "e.g. https://api.example.com/v1")
    return str(url)
