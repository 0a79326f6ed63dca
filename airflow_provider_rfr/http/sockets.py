"""Connections within a total deadline, to addresses that were checked.

A socket timeout restarts with every byte, so a dripping server could hold its caller for ever. These sockets set the
remaining time before every operation, TLS handshakes included. A name is resolved once, checked, and connected to by
the address that was checked: a second resolution could give another one.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

from airflow_provider_rfr.http.addresses import AddressGuard

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SHORTEST_TRY: Final = 0.05
_MOST_CONNECTIONS: Final = 256
_thread = threading.local()


class DeadlineExceeded(TimeoutError):
    """The deadline has passed."""


class ConnectTimeout(TimeoutError):
    """No address of the host accepted a connection in time."""


class AddressRefused(Exception):
    """No address of the host is allowed; the message names host and address."""


class Deadline:
    """A moment by the monotonic clock, so many seconds from now."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left, more than 0.

        :raises DeadlineExceeded: there are none
        """
        left = self._at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the deadline has passed")
        return left

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._at


@dataclass(frozen=True, slots=True)
class _RequestAttempt:
    """The limits of the sockets that one thread uses for one request."""

    deadline: Deadline
    guard: AddressGuard | None
    connect: float | None
    read: float | None


@contextmanager
def attempt_of_this_thread(
    deadline: Deadline, guard: AddressGuard | None, connect: float | None = None, read: float | None = None
) -> Iterator[None]:
    """Set the limits of all sockets that this thread uses in the block; without a guard every address is allowed.

    :param connect: seconds for opening a connection; None for as long as the deadline allows, as ``read``
    :param read: seconds without a byte
    """
    before = this_attempt()
    _thread.attempt = _RequestAttempt(deadline, guard, connect, read)
    try:
        yield
    finally:
        _thread.attempt = before


def this_attempt() -> _RequestAttempt | None:
    """Return the limits of this thread's sockets; None outside of a request."""
    return getattr(_thread, "attempt", None)


def _set_time_left(sock: socket.socket) -> None:
    if attempt := this_attempt():
        left = attempt.deadline.left()
        sock.settimeout(left if attempt.read is None else min(left, attempt.read))


class _PlainSocket(socket.socket):
    """A socket whose every wait ends with its thread's deadline."""

    # urllib3's own timeouts begin anew with each byte, so a server that sends one now and then is never given up.
    def sendall(self, data: Buffer, flags: int = 0, /) -> None:
        _set_time_left(self)
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        _set_time_left(self)
        return super().recv_into(buffer, nbytes, flags)


class _TlsSocket(ssl.SSLSocket):
    """The same for TLS, which has calls of its own."""

    def do_handshake(self, block: bool = False) -> None:
        _set_time_left(self)
        super().do_handshake(block)

    def send(self, data: Buffer, flags: int = 0) -> int:
        _set_time_left(self)
        return super().send(data, flags)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        _set_time_left(self)
        return super().read(len, buffer)


def connect(host: str, port: int) -> socket.socket:
    """Connect to the first of the host's addresses that is allowed and accepts, within this thread's attempt.

    :raises AddressRefused: none of them is allowed
    :raises ConnectTimeout: none accepted in time
    """
    attempt = this_attempt()
    if attempt is None:
        raise AddressRefused("connections are made within an attempt only")
    deadline, guard = attempt.deadline, attempt.guard
    resolved = _resolve(host.strip("[]"), port, deadline)
    refusals = [guard.refusal(host, port, str(address[0])) if guard else None for _, address in resolved]
    allowed = [address for address, refusal in zip(resolved, refusals, strict=True) if refusal is None]
    if not allowed:
        raise AddressRefused(next((refusal for refusal in refusals if refusal), f"{host} has no address"))
    connecting = Deadline(min(deadline.left(), attempt.connect or deadline.left()))
    failure: OSError = ConnectTimeout("no address answers")
    for number, (family, address) in enumerate(allowed):
        if connecting.is_over:
            break
        sock = _PlainSocket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # An address that swallows packets must leave time for the next one.
            sock.settimeout(max(_SHORTEST_TRY, connecting.left() / (len(allowed) - number)))
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failure = ConnectTimeout("no address answers") if isinstance(error, TimeoutError) else error
    raise failure


def _resolve(host: str, port: int, deadline: Deadline) -> list[tuple[int, tuple[Any, ...]]]:
    """Return family and address pairs in the resolver's order."""

    def ask(flags: int) -> list[tuple[int, tuple[Any, ...]]]:
        answers = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags)
        return [(answer[0], answer[4]) for answer in answers]

    try:
        return ask(socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    outcome: list[Any] = []

    def ask_resolver() -> None:
        try:
            outcome.append(ask(0))
        except (OSError, UnicodeError) as error:
            outcome.append(error)

    # The resolver can't be interrupted, so a slow one is left behind on a thread.
    thread = threading.Thread(target=ask_resolver, name="rfr-resolver", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not outcome:
        raise DeadlineExceeded("the name was not resolved in time")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return list(outcome[0])


class _FinalResponse(http.client.HTTPResponse):
    """A response that skips interim ones (102, 103 Early Hints): the base skips only 100.

    Taken for the response, one of them would leave the real one to be read as that of the connection's next request.
    """

    def begin(self) -> None:
        super().begin()
        while HTTPStatus.SWITCHING_PROTOCOLS < self.status < HTTPStatus.OK:
            self.headers = self.msg = None  # type: ignore[assignment]  # as in the base before it has read them
            super().begin()


class _Connection(HTTPConnection):
    response_class = _FinalResponse

    def _new_conn(self) -> socket.socket:
        return connect(self._dns_host, self.port)


class _SecureConnection(HTTPSConnection):
    response_class = _FinalResponse

    # The base checks server name and certificate, for the host and not for the address.
    def _new_conn(self) -> socket.socket:
        return connect(self._dns_host, self.port)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS: Final = {"http": _Pool, "https": _SecurePool}


class DeadlineAdapter(HTTPAdapter):
    """An adapter that sends requests over the sockets of this module, on any number of threads."""

    def __init__(self, *, is_checking: bool) -> None:
        self._is_checking = is_checking
        super().__init__(pool_maxsize=_MOST_CONNECTIONS, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context(), **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, ssl_context=self._context(), **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def _context(self) -> ssl.SSLContext:
        context = create_urllib3_context()
        context.check_hostname = self._is_checking
        context.sslsocket_class = _TlsSocket
        return context
