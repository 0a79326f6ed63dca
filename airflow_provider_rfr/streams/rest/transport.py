"""One HTTP request: sent, its whole body read, within its limits."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from airflow_provider_rfr import __version__
from airflow_provider_rfr.exceptions import SourceError
from airflow_provider_rfr.streams.json_numbers import dumps
from airflow_provider_rfr.streams.rest.answer import Answer, Failure, Outcome
from airflow_provider_rfr.streams.rest.redaction import Redactor
from airflow_provider_rfr.streams.rest.watchdog import POOL_CLASSES, Deadline

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
