"""Sends the request for one page, with credentials and repetitions, and returns its response."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final, Protocol
from urllib.parse import urljoin, urlsplit

from airflow_provider_rfr.exceptions import SourceDefinitionError
from airflow_provider_rfr.http import client as http
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.http.sockets import Deadline
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.json_numbers import dumps
from airflow_provider_rfr.streams.rest import _definition as model
from airflow_provider_rfr.streams.rest._errors import ErrorHandler, ResponseVerdict, Retries
from airflow_provider_rfr.streams.rest._hosts import HostPolicy
from airflow_provider_rfr.streams.rest._responses import Failure, Response
from airflow_provider_rfr.streams.rest.templates import REQUEST_NAMES, CompiledTemplate, compile_path, compile_value

_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate"}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD: Final = frozenset({307, 308})
_MOST_REDIRECTS: Final = 5
# How a gzip file begins; no text that is JSON or CSV begins like that.
_GZIP: Final = b"\x1f\x8b\x08"


@dataclass(slots=True)
class Draft:
    """A request before it is sent.  At most one of ``json`` and ``form`` is used."""

    method: str
    url: str
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    json: Any = None
    form: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Draft({self.method})"


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport that all streams of a source share for their requests.

    :ivar verify: the certificates that TLS trusts, see :class:`airflow_provider_rfr.http.client.Request`
    """

    client: http.Client
    redactor: Redactor
    verify: bool | str = True

    def send(self, draft: Draft, timeout: float, limits: http.Limits) -> Response | Failure:
        """Send a request; return its outcome, with the request in words that hold no credentials.

        :param timeout: seconds, from connecting to the last byte
        """
        body = draft.form if draft.json is None else dumps(draft.json)
        headers = {**_HEADERS, **draft.headers}
        sent = http.Request(draft.method, draft.url, headers, body, self.verify, draft.query)
        found = self.client.send(sent, Deadline(timeout), limits=limits)
        request = f"{draft.method} {self.redactor.address(found.url or draft.url)}"
        if isinstance(found, http.NoAnswer):
            # A certificate that isn't trusted now won't be within the minutes that a page is repeated.
            return Failure(found.detail, request, permanent=found.permanent or found.reason == "tls")
        content: bytes | None = found.body
        if found.body.startswith(_GZIP):
            try:
                content = _unpacked(found.body, limits.max_bytes)
            except (OSError, EOFError, zlib.error):
                return Failure(f"the answer is a damaged gzip file ({len(found.body)} bytes)", request)
        if content is None:
            return Failure(f"the answer is larger than {limits.max_bytes} bytes once unpacked", request, permanent=True)
        return Response(found.status, found.phrase, found.headers, content, request, found.url)


def _unpacked(body: bytes, max_bytes: int) -> bytes | None:
    """Return the content of a gzip file; None if it is larger than allowed.

    :raises OSError, EOFError, zlib.error: the file is damaged, or not all of it is there
    """
    with gzip.GzipFile(fileobj=BytesIO(body)) as file:
        content = file.read(max_bytes + 1)
    return content if len(content) <= max_bytes else None


class Authenticator:
    """Adds no credentials.  The base of those that do: thread-safe, and with nothing of them in the repr.

    :ivar is_renewable: whether it obtains its credentials itself, so that it can obtain others
    """

    is_renewable = False

    def apply(self, draft: Draft, context: ReadContext) -> None:
        """Add the credentials; may fetch a token first.

        :raises AuthenticationError: a token can't be obtained
        """

    def renew(self, draft: Draft, context: ReadContext) -> bool:
        """Replace the credentials with which the API refused ``draft``, and tell whether there are others now."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Injector(Protocol):
    """A paginator that puts the token of a page into a request."""

    def inject(self, token: Any | None, draft: Draft) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestTemplates:
    """The declared request, compiled."""

    method: str
    base_url: str
    path: CompiledTemplate
    query: CompiledTemplate
    headers: CompiledTemplate
    json: CompiledTemplate
    form: CompiledTemplate

    @classmethod
    def of(
        cls, request: model.Request, shared: model.RequestDefaults, base_url: str, place: str, config: Mapping[str, Any]
    ) -> RequestTemplates:
        """Return the templates of a definition.

        :param shared: query and headers of all streams; the request's own win
        :raises SourceDefinitionError: a template is wrong
        """

        def compiled(value: Any, field: str) -> CompiledTemplate:
            return compile_value(value, f"{place}.{field}", REQUEST_NAMES, config)

        return cls(
            method=request.method,
            base_url=base_url,
            path=compile_path(request.path, f"{place}.path", REQUEST_NAMES, config),
            query=compiled({**shared.query, **request.query}, "query"),
            headers=compiled({**shared.headers, **request.headers}, "headers"),
            json=compiled(request.json_, "json"),
            form=compiled(request.form, "form"),
        )

    def draft(self, variables: Mapping[str, Any]) -> Draft:
        """Return a request that shares nothing mutable with any other one."""
        form = self.form(variables)
        return Draft(
            method=self.method,
            url=join_url(self.base_url, self.path(variables)),
            query=plain_values(self.query(variables)),
            headers={name: str(value) for name, value in plain_values(self.headers(variables)).items()},
            # A paginator may put its token into it.
            json=_copy(self.json(variables)),
            form=None if form is None else plain_values(form),
        )


@dataclass(frozen=True, slots=True)
class Requester:
    """A requester of one stream's pages.  Stateless but for its connections; each request asks the limiter first.

    :ivar timeout: seconds for one HTTP request, from connecting to the last byte
    """

    templates: RequestTemplates
    authenticator: Authenticator
    handler: ErrorHandler
    transport: Transport
    timeout: float
    limits: http.Limits
    hosts: HostPolicy
    variables: Mapping[str, Any] = field(repr=False)

    def fetch(
        self, stream_slice: Mapping[str, Any], token: Any | None, paginator: _Injector, context: ReadContext
    ) -> ResponseVerdict:
        """Fetch a page and return the last verdict on it: SUCCESS, IGNORE or END.

        :raises SourceError: FAIL, TOKEN_EXPIRED, or a budget for repetitions is used up
        :raises ReadInterrupted: the reader was stopped
        """
        variables = {**self.variables, "stream_slice": stream_slice, "token": token}
        retries, has_renewed = Retries(self.handler, context), False
        while True:
            draft = self.templates.draft(variables)
            paginator.inject(token, draft)
            self.authenticator.apply(draft, context)
            verdict = self.handler.decide(self._send(draft, context), token, variables)
            if verdict.refuses_credentials and not has_renewed:
                has_renewed = True
                if self.authenticator.renew(draft, context):
                    continue
            if not retries.wait_after(verdict):
                return verdict
            # The new token may have expired during the wait.
            has_renewed = False

    def _send(self, draft: Draft, context: ReadContext) -> Response | Failure:
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
            if isinstance(following, Failure):
                return following
            draft = following
        return Failure(f"more than {_MOST_REDIRECTS} redirects", outcome.request, permanent=True)

    def _redirected(self, draft: Draft, answer: Response, location: str, context: ReadContext) -> Draft | Failure:
        """Return the request that a redirect asks for: to another host only if listed, and without credentials."""
        base, problem = self.hosts.base, ""
        is_base = is_listed = False
        try:
            target = self.hosts.secured(urljoin(answer.url, location))
            parts = urlsplit(target)
            is_base, is_listed = self.hosts.is_base(target), self.hosts.is_allowed(target)
        except ValueError:
            return Failure(f"{answer.status} redirects to what is not an address", answer.request, permanent=True)
        if not (is_base or is_listed):
            problem = (
                f"{answer.status} redirects from {base} to {parts.scheme}://{parts.netloc.rpartition('@')[2]}, "
                "which is not followed unless allowed_hosts lists it"
            )
        elif draft.method != "GET" and not (is_base and answer.status in _KEEPS_METHOD):
            problem = f"{answer.status} redirects a {draft.method}"
        if problem:
            return Failure(problem, answer.request, permanent=True)
        if not is_base:
            return Draft("GET", target)
        clean = self.transport.redactor.without_credentials(target)
        again = Draft(draft.method, clean, {}, draft.headers, draft.json, draft.form)
        self.authenticator.apply(again, context)
        return again


def join_url(base_url: str, path: str) -> str:
    """Return the path below the base URL; it can't lead to another host."""
    if not path:
        return base_url
    return f"{base_url.rstrip('/')}/{path.lstrip('/')}"


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return query or form values as they are sent: null is left out, booleans are true and false."""
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return [_plain(item) for item in value if item is not None]
    return value


def _copy(value: Any) -> Any:
    """Return the value with containers copied; several times faster than ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def check_base_url(url: Any, place: str, redacted: Callable[[str], str] = str) -> str:
    """Return the base URL, if it is one.

    :raises SourceDefinitionError: not an http address, or one with a password or a query
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
