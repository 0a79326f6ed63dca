"""The HTTP client of sources, webhooks and sinks: one request, its response within limits, and no secret in a message.

No proxy and no netrc is taken from the environment, no cookie is kept, and no redirect is followed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from math import isfinite
from typing import Any, Final
from urllib.parse import unquote, urlencode

from urllib3 import BaseHTTPResponse, HTTPHeaderDict, PoolManager
from urllib3.exceptions import DecodeError, HTTPError, ProxyError
from urllib3.util import Timeout, make_headers, parse_url

from airflow_provider_rfr import __version__
from airflow_provider_rfr.exceptions import ConfigurationError
from airflow_provider_rfr.http.redaction import host_of
from airflow_provider_rfr.http.sockets import (
    AddressGuard,
    AddressRefused,
    ConnectTimeout,
    Deadline,
    attempt_of_this_thread,
    pool_manager,
    this_attempt,
)

_CHUNK: Final = 256 * 1024
# The packed forms of a body that this module unpacks itself, each with the ``wbits`` of zlib.
_UNPACKED: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_HEADERS: Final = {"User-Agent": f"airflow-provider-rfr/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
# The names and values that http.client accepts. It is not asked, because its error would repeat the value.
_HEADER_NAME: Final = re.compile(r"[^:\s][^:\r\n]*")
_HEADER_VALUE: Final = re.compile(r"(\S[^\r\n]*)?")


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send: address, query, headers and body may be secret.

    :ivar query: parameters that are added to the address
    :ivar body: bytes (JSON, unless the headers say otherwise), or the fields of a form
    :ivar verify: the certificates that TLS trusts: True for the usual ones, False for any, or the path of others
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | Mapping[str, Any] | None = field(default=None, repr=False)
    verify: bool | str = True
    query: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def message(self) -> HttpMessage | None:
        """Return the request as it is sent, with the default headers; None if its address or a header is invalid."""
        headers = HTTPHeaderDict(_HEADERS)
        body = self.body
        if isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            body = _encoded(body).encode()
        try:
            headers.update(self.headers)
            url, login = _address(self.url)
            query = _encoded(self.query)
        except ValueError:
            return None
        if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(text) for name, text in headers.items()):
            return None
        if login is not None:
            headers.setdefault("Authorization", login)
        if query:
            url += f"{'&' if '?' in url else '?'}{query}"
        return HttpMessage(self.method, url, headers, body)


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A request as it is sent; its address includes the query."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | str | Iterable[bytes] | None = field(default=None, repr=False)


@lru_cache(maxsize=1024)
def _address(url: str) -> tuple[str, str | None]:
    """Return an address as it is sent, and the ``Authorization`` header for its user and password; None without a user.

    :raises ValueError: it is not an http address
    """
    parts = parse_url(url.strip())
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ValueError("not an http address")
    login = make_headers(basic_auth=unquote(parts.auth))["authorization"] if parts.auth else None
    return parts._replace(auth=None, path=parts.path or "/", fragment=None).url, login


def _encoded(values: Mapping[str, Any]) -> str:
    """Encode the fields of a query or a form; a list makes several fields, and null makes none."""
    pairs = ((name, value if isinstance(value, (list, tuple)) else (value,)) for name, value in values.items())
    return urlencode([(name, item) for name, several in pairs for item in several if item is not None])


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request within its deadline.

    :ivar connect: seconds for opening a connection; None for as long as the deadline allows
    :ivar read: seconds without a byte; None for as long as the deadline allows
    :ivar max_bytes: size limit of the decoded body
    :ivar truncate: whether a longer body is cut; otherwise the request fails
    :ivar body: seconds for the body, if only the status matters: a body that takes longer or breaks off is dropped.
        None if the whole body is required
    :ivar decode: whether a compressed body is decoded; otherwise ``max_bytes`` limits the compressed one
    """

    connect: float | None = None
    read: float | None = None
    max_bytes: int = 64 * 1024
    truncate: bool = True
    body: float | None = None
    decode: bool = True


_USUAL: Final = Limits()


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; the decoded body may repeat the request's secrets."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    phrase: str = ""
    url: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The reason why there is no complete response.

    :ivar reason: ``connection``, ``timeout``, ``tls``, ``proxy``, ``address``, ``size`` or ``request``
    :ivar detail: for people; it names the host and never more of the address
    :ivar permanent: whether a retry of the same request can't help
    """

    reason: str
    detail: str
    permanent: bool = False
    url: str = field(default="", repr=False)


class _NoAddresses(logging.Filter):
    """A filter that drops urllib3's logs of our requests: they show path and query, which may be secret, as Slack's."""

    def filter(self, record: logging.LogRecord) -> bool:
        return this_attempt() is None


for _part in ("connection", "connectionpool", "poolmanager", "response", "util.retry"):
    logging.getLogger(f"urllib3.{_part}").addFilter(_NoAddresses())


class Client:
    """A client that sends requests on any number of threads, and keeps connections for the next ones.

    :param max_idle: seconds without a request after which kept connections are closed, because a request fails on a
        connection that the server has closed meanwhile. None for no limit, which a client of several threads needs
    :param proxy: address of a proxy for all requests; it can't be combined with an address guard
    """

    def __init__(self, *, max_idle: float | None = 1.0, proxy: str | None = None) -> None:
        self._max_idle = max_idle
        self._proxy = proxy
        self._managers: dict[bool | str, PoolManager] = {}
        self._used = 0.0
        self._pid = os.getpid()

    def send(
        self, request: Request, deadline: Deadline, guard: AddressGuard | None = None, limits: Limits = _USUAL
    ) -> Answer | NoAnswer:
        """Send a request and read its response; never raise for an error of a server or the network."""
        message = request.message()
        if message is None:
            return NoAnswer("request", f"the request to {host_of(request.url)} can't be written", permanent=True)
        return self.send_message(message, deadline, guard, limits, verify=request.verify)

    def send_message(
        self,
        message: HttpMessage,
        deadline: Deadline,
        guard: AddressGuard | None = None,
        limits: Limits = _USUAL,
        *,
        verify: bool | str = True,
    ) -> Answer | NoAnswer:
        """Send a request whose message is prepared already, as :meth:`send` does."""
        problem: Exception | None = None
        url, body = message.url, None
        with attempt_of_this_thread(deadline, guard, limits.connect, limits.read):
            try:
                response = self._manager(verify).urlopen(
                    message.method,
                    url,
                    body=message.body,
                    headers=message.headers,
                    redirect=False,
                    retries=False,
                    preload_content=False,
                    # Needed only for TLS within TLS, through a proxy, which bypasses our sockets.
                    timeout=Timeout(connect=limits.connect, read=limits.read),
                )
                with contextlib.closing(response):
                    body = _read(response, limits) if limits.body is None else _read_soon(response, limits, deadline)
            except (HTTPError, OSError, ValueError, AddressRefused) as error:
                problem = error
        self._used = time.monotonic()
        # Outside the handler, so that no later error has the exception as context: its text holds the address.
        if problem is not None:
            return _no_answer(problem, url, deadline, limits)
        if body is None:
            return NoAnswer("size", f"the answer is larger than {limits.max_bytes} bytes", permanent=True, url=url)
        return Answer(response.status, response.headers, body, response.reason or "", url)

    def close(self) -> None:
        """Close idle connections; the client can be used again."""
        for manager in list(self._managers.values()):
            manager.clear()

    def _manager(self, verify: bool | str) -> PoolManager:
        if self._pid != os.getpid():
            # A forked process must not use its parent's connections.
            self._managers, self._pid = {}, os.getpid()
        elif self._max_idle is not None and time.monotonic() - self._used > self._max_idle:
            self.close()
        managers = self._managers
        # One for each setting: certificates that were added to a TLS context can't be taken out of it.
        if verify not in managers:
            managers.setdefault(verify, pool_manager(verify, self._proxy))
        return managers[verify]


# Where an installation says which certificates it trusts, in the order of requests and curl.
_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


def trusted_certificates(verify: bool | str) -> bool | str:
    """Return the ``verify`` setting of TLS: the connection's, or for True the bundle that the environment names.

    :raises ConfigurationError: the file or folder does not exist, or has no certificates
    """
    source = "connection: verify"
    if verify is True:
        source = next((name for name in _BUNDLES if os.environ.get(name)), "")
        verify = os.environ[source] if source else True
    check_certificates(verify, source)
    return verify


def check_certificates(verify: bool | str, field: str) -> None:
    """Check that a path has certificates.

    :param field: field with the path, for the error
    :raises ConfigurationError: the file or folder does not exist, or the file has no certificates
    """
    if not isinstance(verify, str):
        return
    problem = ""
    try:
        changed = os.stat(verify).st_mtime_ns
        if not os.path.isdir(verify):
            _load_certificates(verify, changed)
    except ssl.SSLError:
        problem = f"{verify!r} has no certificates in PEM"
    except OSError as error:
        problem = f"{verify!r} can't be read: {error.strerror}"
    if problem:
        raise ConfigurationError(field, problem, "name a file or folder of certificates in PEM")


@lru_cache(maxsize=16)
def _load_certificates(path: str, changed: int) -> None:
    """Load a file of certificates, once for each of its versions: a system's bundle takes 25 ms of CPU.

    :param changed: time of the file's last change, in nanoseconds
    :raises OSError: the file can't be read, or has no certificates
    """
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)


def retry_after(text: str | None, now: float | None = None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks to wait; 0 for a moment that has passed.

    It is a number, an HTTP date, or (against the standard) a time of ISO 8601.

    :param now: seconds since 1970 that dates are compared with; by default this machine's clock
    :return: None for a missing or unreadable header
    """
    text = (text or "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        moment: datetime | None = None
        # Python 3.10 doesn't read "Z".
        iso = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
        for read, form in ((parsedate_to_datetime, text), (datetime.fromisoformat, iso)):
            with contextlib.suppress(TypeError, ValueError, OverflowError, IndexError):
                moment = moment or read(form)
        if moment is None:
            return None
        # An HTTP date with "-0000" gives a time without a zone, and means UTC.
        aware = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        seconds = aware.timestamp() - (time.time() if now is None else now)
    return max(0.0, seconds) if isfinite(seconds) else None


def _read(response: BaseHTTPResponse, limits: Limits) -> bytes | None:
    """Return the body; None if it is larger than allowed.

    Chunks are no larger than the limit: urllib3 before 2.6 decodes a whole chunk at once, and a small one can become
    very large.

    :raises DecodeError: the body is not packed as its ``Content-Encoding`` says, or the packed body is not complete
    """
    most = min(_CHUNK, limits.max_bytes)
    codings = response.headers.get("Content-Encoding", "").lower().replace(" ", "").split(",")
    # urllib3 takes a packed stream that breaks off for a whole one, and drops a damaged second part.
    ours = limits.decode and all(coding in _UNPACKED for coding in codings)
    stream: Iterator[bytes] = response.stream(most, decode_content=limits.decode and not ours)
    for coding in reversed(codings) if ours else ():
        stream = _unpacked(stream, coding, most)
    chunks: list[bytes] = []
    size = 0
    for chunk in stream:
        chunks.append(chunk)
        size += len(chunk)
        if size > limits.max_bytes:
            return b"".join(chunks)[: limits.max_bytes] if limits.truncate else None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _unpacked(stream: Iterable[bytes], coding: str, most: int) -> Iterator[bytes]:
    """Yield the parts of a packed body, unpacked; none is longer than ``most``. A body without bytes is not packed.

    :raises DecodeError: the stream is damaged, or breaks off
    """
    unpacker = None
    try:
        for packed in stream:
            rest = packed
            while rest:
                # The end may be padded with zeros. Anything else has to be one more packed part.
                if unpacker is not None and unpacker.eof and not (rest := rest.lstrip(b"\0")):
                    break
                if unpacker is None or unpacker.eof:
                    # "deflate" should have the header of zlib, which begins with an 8, but some servers leave it out.
                    bare = coding == "deflate" and rest[0] & 15 != 8
                    unpacker = zlib.decompressobj(-15 if bare else _UNPACKED[coding])
                if part := unpacker.decompress(rest, most):
                    yield part
                rest = unpacker.unconsumed_tail or unpacker.unused_data
        # The last bytes may have gone in without all that they stand for.
        if unpacker is not None and (part := unpacker.flush()):
            yield part
    except zlib.error as error:
        raise DecodeError("a damaged stream") from error
    if unpacker is not None and not unpacker.eof:
        raise DecodeError("a stream that breaks off")


def _read_soon(response: BaseHTTPResponse, limits: Limits, deadline: Deadline) -> bytes:
    """Return the body, if it comes within ``limits.body`` seconds; else empty bytes."""
    with contextlib.suppress(HTTPError, OSError, ValueError):
        soon = Deadline(min(limits.body or 0.0, deadline.left()))
        with attempt_of_this_thread(soon, None):
            return _read(response, limits) or b""
    return b""


def _no_answer(error: Exception, url: str, deadline: Deadline, limits: Limits) -> NoAnswer:
    host, causes = host_of(url), _causes(error)
    if isinstance(error, AddressRefused):
        return NoAnswer("address", f"nothing may be sent to this address: {error}", permanent=True, url=url)
    if deadline.is_over:
        return NoAnswer("timeout", f"{host} gave no complete answer within {deadline.seconds:g} s", url=url)
    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if tls is not None:
        words = tls.verify_message if isinstance(tls, ssl.SSLCertVerificationError) else tls.reason or "TLS failed"
        return NoAnswer("tls", f"no safe connection to {host}: {words.replace('_', ' ')}", url=url)
    if any(isinstance(cause, ConnectTimeout) for cause in causes):
        within = f" within {limits.connect:g} s" if limits.connect else ""
        return NoAnswer("timeout", f"{host} could not be reached{within}", url=url)
    if any(isinstance(cause, TimeoutError) for cause in causes):
        silent = f"sent nothing for {limits.read:g} s" if limits.read else "did not answer in time"
        return NoAnswer("timeout", f"{host} {silent}", url=url)
    if any(isinstance(cause, DecodeError) for cause in causes):
        detail = f"the body from {host} is cut, damaged or not packed as its Content-Encoding says"
        return NoAnswer("connection", f"{detail}; the header Accept-Encoding: identity asks for a plain one", url=url)
    # Only words that can't hold an address: the system's own, or the name of the error.
    words = type(causes[-1]).__name__
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            words = "the name can't be resolved" if isinstance(cause, socket.gaierror) else cause.strerror
    if any(isinstance(cause, ProxyError) for cause in causes):
        return NoAnswer("proxy", f"the proxy to {host} failed: {words}", url=url)
    return NoAnswer("connection", f"no complete answer from {host}: {words}", url=url)


def _causes(error: Exception) -> list[BaseException]:
    """Return the error and those that it wraps, the innermost last."""
    causes: list[BaseException] = []
    inner: BaseException | None = error
    while inner is not None and inner not in causes:
        causes.append(inner)
        # urllib3 keeps the cause in ``reason`` or among the arguments.
        wrapped = (arg for arg in (getattr(inner, "reason", None), *inner.args) if isinstance(arg, BaseException))
        inner = next(wrapped, None) or inner.__cause__ or inner.__context__
    return causes
