"""Sends the request of one page, with credentials, and returns its whole answer within its limits."""

from __future__ import annotations

import base64
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from airflow_provider_rfr import __version__
from airflow_provider_rfr.exceptions import SourceDefinitionError, SourceError
from airflow_provider_rfr.http.deadline import POOL_CLASSES, Deadline
from airflow_provider_rfr.http.redaction import Redactor
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.json_numbers import dumps
from airflow_provider_rfr.streams.rest.error_handler import Action, ErrorHandler, Verdict, repeat
from airflow_provider_rfr.streams.rest.expressions import Template
from airflow_provider_rfr.streams.rest.hosts import HostPolicy
from airflow_provider_rfr.streams.rest.responses import Answer, Failure, Outcome

_CHUNK: Final = 256 * 1024
_HEADERS: Final = {
    "User-Agent": f"airflow-provider-rfr/{__version__}",
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one request: seconds, and bytes of the decoded body."""

    connect: float = 10.0
    read: float = 60.0
    total: float = 300.0
    max_bytes: int = 256 * 1024 * 1024


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


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = POOL_CLASSES

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = POOL_CLASSES
        return manager


class Transport:
    """Sends requests on any number of threads.

    A session serves one request at a time and keeps its connection for the next one, on whatever thread
    that is.  Nothing is taken from the environment (no proxy, no netrc), no cookie is kept, and no
    redirect is followed.
    """

    def __init__(
        self, redactor: Redactor, *, proxies: Mapping[str, str] | None = None, verify: bool | str = True
    ) -> None:
        self.redactor = redactor
        self._proxies = dict(proxies or {})
        self._verify = verify
        self._idle: deque[requests.Session] = deque()
        self._pid = os.getpid()

    def send(self, draft: Draft, limits: Limits) -> Outcome:
        """Never raises for what a server or the network does: that's a Failure.

        :raises SourceError: the request can't be written (an impossible address or header)
        """
        prepared = self._prepare(draft)
        request = f"{draft.method} {self.redactor.address(prepared.url or '')}"
        if self._pid != os.getpid():
            # A forked process must not speak on its parent's connections.
            self._pid, self._idle = os.getpid(), deque()
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._new_session()
        outcome = self._exchange(session, prepared, request, limits)
        if isinstance(outcome, Answer):
            self._idle.append(session)
        else:
            session.close()
        return outcome

    def _exchange(
        self, session: requests.Session, prepared: requests.PreparedRequest, request: str, limits: Limits
    ) -> Outcome:
        body: bytes | None = None
        failure = Failure(f"the answer is larger than {limits.max_bytes} bytes", request, permanent=True)
        with Deadline(limits.total) as deadline:
            try:
                # Not session.send: for a redirect that would read a body of any size.
                response = session.get_adapter(prepared.url or "").send(
                    prepared,
                    stream=True,
                    timeout=(min(limits.connect, limits.total), min(limits.read, limits.total)),
                    verify=self._verify,
                    proxies=self._proxies,
                )
                body = _read_body(response, limits.max_bytes)
            except (requests.RequestException, HTTPError, OSError, ValueError) as error:
                failure = _failure(error, prepared, request, limits)
        # Told out here, without the exception: it holds the address with its credentials.
        if deadline.expired:
            return Failure(f"the answer was not complete after {limits.total:g} s", request)
        if body is None:
            return failure
        url = prepared.url or ""
        return Answer(response.status_code, response.reason or "", response.headers, body, request, url)

    def _prepare(self, draft: Draft) -> requests.PreparedRequest:
        prepared = requests.PreparedRequest()
        headers = {**_HEADERS, **draft.headers}
        data: Any = draft.form
        if draft.json is not None:
            data = dumps(draft.json)
            headers.setdefault("Content-Type", "application/json")
        problem = ""
        try:
            prepared.prepare(
                method=draft.method, url=draft.url, params=draft.query, headers=headers, data=data, cookies={}
            )
        except (requests.RequestException, UnicodeError, ValueError) as error:
            problem = type(error).__name__
        if problem:
            raise SourceError(
                f"the request can't be written ({problem})",
                request=f"{draft.method} {self.redactor.address(draft.url)}",
            )
        return prepared

    def _new_session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        adapter = _Adapter(pool_connections=4, pool_maxsize=1, max_retries=0)
        session.mount("https://", adapter)
        session.mount("http://", adapter)
        return session

    def __repr__(self) -> str:
        return "Transport()"


def _read_body(response: requests.Response, max_bytes: int) -> bytes | None:
    """The decoded body; None if it is larger than allowed."""
    chunks: list[bytes] = []
    size = 0
    for chunk in response.raw.stream(_CHUNK, decode_content=True):
        size += len(chunk)
        if size > max_bytes:
            response.close()
            return None
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _failure(error: Exception, prepared: requests.PreparedRequest, request: str, limits: Limits) -> Failure:
    host = urlsplit(prepared.url or "").netloc.rpartition("@")[2]
    if isinstance(error, requests.ConnectTimeout):
        return Failure(f"{host} could not be reached within {limits.connect:g} s", request)
    if isinstance(error, (requests.Timeout, TimeoutError)) or _has(error, TimeoutError):
        return Failure(f"{host} sent nothing for {limits.read:g} s", request)
    if isinstance(error, requests.exceptions.SSLError):
        return Failure(f"no safe connection to {host}: {_reason(error)}", request, permanent=True)
    if isinstance(error, requests.exceptions.ProxyError):
        return Failure(f"the proxy to {host} failed: {_reason(error)}", request)
    return Failure(f"no complete answer from {host}: {_reason(error)}", request)


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and those that it wraps, the innermost last."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((item for item in error.args if isinstance(item, BaseException)), None)
        error = inner or error.__cause__ or error.__context__
    return found


def _has(error: Exception, kind: type[BaseException]) -> bool:
    return any(isinstance(item, kind) for item in _chain(error))


def _reason(error: Exception) -> str:
    """What went wrong, in words that can't hold an address."""
    chain = _chain(error)
    for item in reversed(chain):
        if isinstance(item, socket.gaierror):
            return "the name can't be resolved"
        if isinstance(item, OSError) and item.strerror and not isinstance(item, requests.RequestException):
            return item.strerror
    return type(chain[-1]).__name__


class Authenticator(ABC):
    """Thread-safe.  What it holds never shows in its repr."""

    @abstractmethod
    def apply(self, draft: Draft, context: ReadContext) -> None:
        """Add the credentials; may fetch a token first.

        :raises AuthenticationError: a token can't be obtained
        """

    def renew(self, draft: Draft, context: ReadContext) -> bool:
        """The API answered 401 to ``draft``.  Whether there are newer credentials to try it with now."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class NoAuthenticator(Authenticator):
    """Nothing to add."""

    def apply(self, draft: Draft, context: ReadContext) -> None:
        return None


class ApiKeyInQuery(Authenticator):
    """A key as a query parameter; never part of a page token or a message."""

    def __init__(self, name: str, value: str, redactor: Redactor) -> None:
        redactor.add(value)
        redactor.add_parameter(name)
        self._name = name
        self._value = value

    def apply(self, draft: Draft, context: ReadContext) -> None:
        draft.query[self._name] = self._value


class FixedHeader(Authenticator):
    """A credential that does not change, in a header: API key, bearer token."""

    def __init__(self, name: str, secret: str, redactor: Redactor, prefix: str = "") -> None:
        redactor.add(secret)
        self._name = name
        self._value = f"{prefix}{secret}"

    def apply(self, draft: Draft, context: ReadContext) -> None:
        draft.headers[self._name] = self._value


def basic_header(username: str, password: str, redactor: Redactor) -> str:
    """The value of ``Authorization`` for basic authentication."""
    redactor.add_pair(username, password)
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD: Final = frozenset({307, 308})
_MOST_REDIRECTS: Final = 5


class _Injector(Protocol):
    """What a paginator does to a request."""

    def inject(self, token: Any | None, draft: Draft) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestTemplates:
    """The declared request, compiled."""

    method: str
    base_url: str
    path: Template
    query: Template
    headers: Template
    json: Template
    form: Template

    def draft(self, variables: Mapping[str, Any]) -> Draft:
        """A request of its own: nothing in it is shared."""
        form = self.form(variables)
        return Draft(
            method=self.method,
            url=join_url(self.base_url, self.path(variables)),
            query=plain_values(self.query(variables)),
            headers={name: str(value) for name, value in plain_values(self.headers(variables)).items()},
            json=_copy(self.json(variables)),
            form=None if form is None else plain_values(form),
        )


@dataclass(frozen=True, slots=True)
class Requester:
    """Stateless apart from its connections; every HTTP request asks the limiter first."""

    templates: RequestTemplates
    authenticator: Authenticator
    handler: ErrorHandler
    transport: Transport
    limits: Limits
    hosts: HostPolicy
    redactor: Redactor
    variables: Mapping[str, Any] = field(repr=False)

    def fetch(
        self, stream_slice: Mapping[str, Any], token: Any | None, paginator: _Injector, context: ReadContext
    ) -> Verdict:
        """SUCCESS, IGNORE or END; see ``repeat`` for what is raised."""
        variables = {**self.variables, "stream_slice": stream_slice, "token": token}
        renewed = False

        def attempt() -> Verdict:
            nonlocal renewed
            draft = self._draft(variables, token, paginator, context)
            verdict = self._decide(draft, token, variables, context)
            if verdict.status == 401 and verdict.action is Action.FAIL and not renewed:
                renewed = True
                if self.authenticator.renew(draft, context):
                    draft = self._draft(variables, token, paginator, context)
                    verdict = self._decide(draft, token, variables, context)
            return verdict

        return repeat(attempt, self.handler, context)

    def _draft(
        self, variables: Mapping[str, Any], token: Any | None, paginator: _Injector, context: ReadContext
    ) -> Draft:
        draft = self.templates.draft(variables)
        paginator.inject(token, draft)
        self.authenticator.apply(draft, context)
        return draft

    def _decide(self, draft: Draft, token: Any | None, variables: Mapping[str, Any], context: ReadContext) -> Verdict:
        return self.handler.decide(self._send(draft, context), token, variables)

    def _send(self, draft: Draft, context: ReadContext) -> Outcome:
        for _ in range(_MOST_REDIRECTS + 1):
            context.limiter.acquire()
            outcome = self.transport.send(draft, self.limits)
            if not isinstance(outcome, Answer) or outcome.status not in _REDIRECTS:
                return outcome
            location = outcome.headers.get("Location")
            if not location:
                return outcome
            following = self._redirected(draft, outcome, location, context)
            if isinstance(following, Failure):
                return following
            draft = following
        return Failure(f"more than {_MOST_REDIRECTS} redirects", outcome.request, permanent=True)

    def _redirected(self, draft: Draft, answer: Answer, location: str, context: ReadContext) -> Draft | Failure:
        """The request that a redirect asks for: to another host only if it's listed, and without credentials."""
        base = self.hosts.base
        try:
            target = self.hosts.secured(urljoin(answer.url, location))
            parts = urlsplit(target)
            at_home, allowed = self.hosts.is_base(target), self.hosts.is_allowed(target)
        except ValueError:
            return Failure(f"{answer.status} redirects to what is not an address", answer.request, permanent=True)
        if not (at_home or allowed):
            return Failure(
                f"{answer.status} redirects from {base} to {parts.scheme}://{parts.netloc.rpartition('@')[2]}, "
                "which is not followed unless allowed_hosts lists it",
                answer.request,
                permanent=True,
            )
        if draft.method != "GET" and answer.status not in _KEEPS_METHOD:
            return Failure(f"{answer.status} redirects a {draft.method}", answer.request, permanent=True)
        if at_home:
            clean = self.redactor.without_credentials(target)
            again = Draft(draft.method, clean, {}, draft.headers, draft.json, draft.form)
            self.authenticator.apply(again, context)
            return again
        if draft.method != "GET":
            return Failure(f"{answer.status} redirects a {draft.method}", answer.request, permanent=True)
        return Draft("GET", target)


def join_url(base_url: str, path: str) -> str:
    """The path below the base URL; it can't lead to another host."""
    if not path:
        return base_url
    return f"{base_url.rstrip('/')}/{path.lstrip('/')}"


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Query or form values as the wire has them: null is left out, booleans are true and false."""
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return [_plain(item) for item in value if item is not None]
    return value


def _copy(value: Any) -> Any:
    """Containers copied, so that a paginator can put its token into a constant body."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def check_base_url(url: Any, place: str, check_text: Callable[[str], str] = str) -> str:
    """The base URL, if it is one.

    :raises SourceDefinitionError: no http address, or one with a password or a query
    """
    problem = ""
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        _ = parts.port
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            problem = f"{check_text(str(url))!r} is not an http address"
        elif parts.username or parts.password:
            problem = "a user in the address would be sent in every message; use authenticator: {type: basic}"
        elif parts.query or parts.fragment:
            problem = "has a query; use request.query"
    except ValueError:
        problem = "is not an address"
    if problem:
        raise SourceDefinitionError(place, problem, "e.g. https://api.example.com/v1")
    return str(url)
