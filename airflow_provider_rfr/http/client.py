"""One HTTP request of a webhook: sent once, its answer read within limits, and nothing told that could be a secret.

Nothing is taken from the environment (no proxy, no netrc), no cookie is kept, no redirect is followed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict
from urllib3.exceptions import HTTPError

from airflow_provider_rfr import __version__
from airflow_provider_rfr.http.addresses import (
    AddressGuard,
    AddressRefused,
    Deadline,
    GuardedAdapter,
    attempt_of_this_thread,
    this_attempt,
)

_MOST_BYTES: Final = 64 * 1024
_CHUNK: Final = 16 * 1024
_LONGEST_IDLE: Final = 1.0
_DEFAULTS: Final = {
    "User-Agent": f"airflow-provider-rfr/{__version__}",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent: address, headers and body may be secret.

    :ivar verify: what TLS trusts: True for the usual certificates, False for anybody's, or the path of others
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    verify: bool | str = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or its first 64 KB.

    :ivar body: decoded; what it holds may be an echo of the request
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """There was no whole answer.

    :ivar reason: ``connection``, ``timeout``, ``tls``, ``address`` or ``request``
    :ivar detail: for people; it names the host and never more of the address
    :ivar permanent: the same request could never be answered
    """

    reason: str
    detail: str
    permanent: bool = False


class _NoAddresses(logging.Filter):
    """urllib3 logs addresses with path and query, where Slack and others have their secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        return this_attempt() is None


for _part in ("connection", "connectionpool", "poolmanager", "response", "util.retry"):
    logging.getLogger(f"urllib3.{_part}").addFilter(_NoAddresses())


class Client:
    """Sends the requests of one thread; it keeps its connection for the next request."""

    def __init__(self) -> None:
        self._verify: bool | str = True
        self._kept: GuardedAdapter | None = None
        self._used = 0.0
        self._pid = 0

    def send(self, request: Request, deadline: Deadline, guard: AddressGuard) -> Answer | NoAnswer:
        """Never raises for what a server or the network does."""
        host = host_of(request.url)
        prepared = _prepared(request)
        if prepared is None:
            return NoAnswer("request", f"the request to {host} can't be written", permanent=True)
        with attempt_of_this_thread(deadline, guard):
            outcome = self._exchange(prepared, host, request.verify)
        self._used = time.monotonic()
        if isinstance(outcome, NoAnswer):
            self.close()
            if deadline.is_over:
                return NoAnswer("timeout", f"{host} gave no whole answer within {deadline.seconds:g} s")
        return outcome

    def close(self) -> None:
        """Close the connection; the client can be used again."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _exchange(self, prepared: requests.PreparedRequest, host: str, verify: bool | str) -> Answer | NoAnswer:
        problem: Exception
        try:
            # Not session.send: that would read the body of a redirect, of any size.
            response = self._adapter(verify).send(prepared, stream=True, verify=verify, proxies={})
            with contextlib.closing(response):
                return Answer(response.status_code, CaseInsensitiveDict(response.headers), _read(response))
        except (requests.RequestException, HTTPError, OSError, ValueError, AddressRefused, zlib.error) as error:
            problem = error
        # Told out here and without the exception: its text holds the address.
        return _no_answer(problem, host)

    def _adapter(self, verify: bool | str) -> GuardedAdapter:
        adapter = self._kept
        if adapter is None or self._pid != os.getpid() or self._verify != verify:
            # A forked process must not speak on its parent's connection, and a context only ever trusts more.
            self._verify = verify
            adapter = self._kept = GuardedAdapter(
                is_checking=verify is not False, pool_connections=2, pool_maxsize=1, max_retries=0
            )
            self._pid = os.getpid()
        elif time.monotonic() - self._used > _LONGEST_IDLE:
            # Servers close idle connections, and a request that meets that counts as failed.
            adapter.forget()
        return adapter


def host_of(url: str) -> str:
    """Scheme and host for people; nothing of what may be secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
    except ValueError:
        return "the address"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}" if host else "the address"


def _prepared(request: Request) -> requests.PreparedRequest | None:
    headers = CaseInsensitiveDict({**_DEFAULTS})
    headers.update(request.headers)
    prepared = requests.PreparedRequest()
    try:
        prepared.prepare(method=request.method, url=request.url, headers=dict(headers), data=request.body, cookies={})
    except (requests.RequestException, UnicodeError, ValueError):
        return None
    return prepared


def _read(response: requests.Response) -> bytes:
    """The first bytes of the body, decoded by us: a small answer can be a large bomb."""
    raw, found = response.raw, b""
    while len(found) <= _MOST_BYTES:
        chunk = raw.read(_CHUNK, decode_content=False)
        if not chunk:
            break
        found += chunk
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate"):
        found = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(found, _MOST_BYTES)
    return found[:_MOST_BYTES]


def _no_answer(error: Exception, host: str) -> NoAnswer:
    if isinstance(error, AddressRefused):
        return NoAnswer("address", f"nothing may be sent to this address: {error}", permanent=True)
    chain = _chain(error)
    tls = next((each for each in chain if isinstance(each, ssl.SSLError)), None)
    if tls is not None:
        return NoAnswer("tls", f"no safe connection to {host}: {_word(tls)}")
    if any(isinstance(each, TimeoutError) for each in chain):
        return NoAnswer("timeout", f"{host} did not answer in time")
    return NoAnswer("connection", f"no whole answer from {host}: {_reason(chain)}")


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


def _reason(chain: list[BaseException]) -> str:
    """What went wrong, in words that can't hold an address."""
    for item in reversed(chain):
        if isinstance(item, socket.gaierror):
            return "the name can't be resolved"
        if isinstance(item, OSError) and item.strerror and not isinstance(item, requests.RequestException):
            return item.strerror
    return type(chain[-1]).__name__


def _word(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    return str(error.reason or "TLS failed").replace("_", " ").lower()
