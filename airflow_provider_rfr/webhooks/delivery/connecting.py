"""Connections to addresses that were looked at: resolved once, checked, and connected to as they were checked."""

from __future__ import annotations

import http.client
import socket
import threading
from http import HTTPStatus
from typing import Any, Final

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

from airflow_provider_rfr.webhooks.delivery.address_guard import AddressGuard
from airflow_provider_rfr.webhooks.delivery.deadline import (
    Deadline,
    DeadlineExceeded,
    PlainSocket,
    TlsSocket,
    this_attempt,
)

_SHORTEST_TRY: Final = 0.05


class AddressRefused(Exception):
    """Every address of the host is one that nothing may be sent to; the message names host and address."""


def connect(host: str, port: int) -> PlainSocket:
    """A connection to the first of the host's addresses that is allowed and answers, within the thread's attempt.

    :raises AddressRefused: none of them is allowed
    """
    attempt = this_attempt()
    if attempt is None:
        raise AddressRefused("connections are made within an attempt only")
    deadline, guard = attempt
    found = _resolve(host.strip("[]"), port, deadline)
    refusals = {address[0]: guard.refusal(host, port, str(address[0])) for _, address in found}
    allowed = [(family, address) for family, address in found if refusals[address[0]] is None]
    if not allowed:
        raise AddressRefused(next((each for each in refusals.values() if each), f"{host} has no address"))
    failure: OSError = OSError("no address answers")
    for number, (family, address) in enumerate(allowed):
        share = max(_SHORTEST_TRY, deadline.left() / (len(allowed) - number))
        try:
            return _connect_to(family, address, share)
        except OSError as error:
            failure = error
    deadline.left()
    raise failure


def _connect_to(family: int, address: tuple[Any, ...], seconds: float) -> PlainSocket:
    sock = PlainSocket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(seconds)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _resolve(host: str, port: int, deadline: Deadline) -> list[tuple[int, tuple[Any, ...]]]:
    """Addresses in the resolver's order. A resolver can't be interrupted, so a slow one is left behind on a thread."""
    try:
        return _addresses(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    outcome: list[Any] = []

    def ask() -> None:
        try:
            outcome.append(_addresses(host, port, 0))
        except (OSError, UnicodeError) as error:
            outcome.append(error)

    thread = threading.Thread(target=ask, name="rfr-resolver", daemon=True)
    thread.start()
    thread.join(deadline.left())
    if not outcome:
        raise DeadlineExceeded("the name was not resolved in time")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return list(outcome[0])


def _addresses(host: str, port: int, flags: int) -> list[tuple[int, tuple[Any, ...]]]:
    answers = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags)
    return [(answer[0], answer[4]) for answer in answers]


class _FinalResponse(http.client.HTTPResponse):
    """Passes over interim answers (102, 103 Early Hints): the base knows 100 alone.

    Were one of them taken for the answer, the real one would be read as that to the connection's next request.
    """

    def begin(self) -> None:
        """As of the base."""
        super().begin()
        while HTTPStatus.SWITCHING_PROTOCOLS < self.status < HTTPStatus.OK:
            self.headers = self.msg = None  # type: ignore[assignment]  # so does the base before it has read them
            super().begin()


class _Connection(HTTPConnection):
    response_class = _FinalResponse

    def _new_conn(self) -> socket.socket:
        return connect(self._dns_host, self.port)


class _SecureConnection(HTTPSConnection):
    response_class = _FinalResponse

    # Server name and certificate are checked by the base, for the host and not for the address.
    def _new_conn(self) -> socket.socket:
        return connect(self._dns_host, self.port)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class GuardedAdapter(HTTPAdapter):
    """What a session sends through. It knows no proxy: that one would connect, and nobody would look at the address.

    :param is_checking: whether certificates are looked at
    """

    def __init__(self, *, is_checking: bool, **options: Any) -> None:
        self._is_checking = is_checking
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """With our connections."""
        context = create_urllib3_context()
        context.check_hostname = self._is_checking
        context.sslsocket_class = TlsSocket
        super().init_poolmanager(*args, ssl_context=context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

    def forget(self) -> None:
        """Close connections that are not in use."""
        self.poolmanager.clear()


__all__ = ["AddressGuard", "AddressRefused", "GuardedAdapter", "connect"]
