"""Connections to checked addresses, within a total deadline.

Whoever writes a trigger must not reach what only this machine can reach. So a private address is denied unless the
installation allows it; a trigger can only narrow that. A name is resolved once, checked, and connected to by the
address that was checked, so a second resolution can't differ.

A socket timeout restarts with every byte, so a dripping server could hold its caller for ever. These sockets set the
remaining time before every operation, TLS handshakes included.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

if TYPE_CHECKING:
    from typing_extensions import Buffer


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Cloud metadata, and what is no single machine. Neither a name nor a network that happens to hold it opens one.
_RESERVED: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "100.100.100.200/32",
            "168.63.129.16/32",
            "169.254.0.0/16",
            "192.0.0.192/32",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/128",
            "fe80::/10",
            "ff00::/8",
            "fd00:ec2::/32",
            "fd20:ce::/32",
        ),
    )
)
_NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "2001:2::/48",
            "2001:db8::/32",
            "3fff::/20",
        ),
    )
)
# Nothing of IPv6 is on the internet but this.
_GLOBAL_IPV6: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class _HostList:
    """Private hosts that may be called.

    :ivar names: hosts, with or without a port, in small letters
    :ivar networks: any address in them, whatever the host is called
    """

    names: frozenset[str] = frozenset()
    networks: tuple[_Network, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> _HostList:
        """From entries like ``airflow.internal``, ``localhost:8080``, ``10.1.2.3``, ``[::1]:80`` or ``10.0.0.0/8``."""
        names: set[str] = set()
        networks: list[_Network] = []
        for entry in (each.strip().lower() for each in entries):
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                names.add(entry.removesuffix("."))
        return cls(frozenset(names), tuple(networks))

    def lists(self, host: str, port: int, found: _Address, special: Iterable[_Address]) -> bool:
        """Whether all that is special about an address is allowed.

        :param special: the address itself, or what is wrapped in it
        """
        name = host.lower().strip("[]").removesuffix(".")
        by_name = not self.names.isdisjoint({name, f"{name}:{port}", f"[{name}]:{port}"})
        return all(
            (by_name and not _is_reserved(each))
            or any(
                (each in network or found in network) and (not _is_reserved(each) or _names_reserved(network))
                for network in self.networks
            )
            for each in special
        )


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """What is allowed besides the internet.

    :ivar installation: what any endpoint may call
    :ivar endpoint: the part of it that this one may call; None for all of it
    """

    installation: _HostList = _HostList()
    endpoint: _HostList | None = None

    @classmethod
    def of(cls, installation: Iterable[str] = (), endpoint: Iterable[str] = ()) -> AddressGuard:
        """From the lists of both; an endpoint without a list narrows nothing."""
        narrower = tuple(endpoint)
        return cls(_HostList.of(installation), _HostList.of(narrower) if narrower else None)

    def refusal(self, host: str, port: int, address: str) -> str | None:
        """Why nothing may be sent there, in words for a log; None if it may.

        :param host: as the URL has it
        :param address: that the host resolved to, and that is about to be connected to
        """
        found = ipaddress.ip_address(address.partition("%")[0])
        special = [each for each in _all_meant(found) if _kind(each) is not None]
        if not self.installation.lists(host, port, found, special):
            lacking = "[rfr] webhook_allowed_hosts of Airflow's configuration"
        elif self.endpoint is not None and not self.endpoint.lists(host, port, found, special):
            lacking = "the trigger's allowedHosts"
        else:
            return None
        what = "this address or a reserved network" if any(map(_is_reserved, special)) else "the host or its network"
        named = host if host.strip("[]") == str(found) else f"{host} ({found})"
        return f"{named} is a {_kind(special[0])} address; {lacking} has to list {what}"


def _is_reserved(address: _Address) -> bool:
    return any(address in network for network in _RESERVED)


def _names_reserved(network: _Network) -> bool:
    """Whether it is there for reserved addresses, and does not only happen to hold some, as 0.0.0.0/0 does."""
    return network.num_addresses == 1 or any(_is_within(network, each) for each in _RESERVED)


def _is_within(network: _Network, other: _Network) -> bool:
    return network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]


def _all_meant(address: _Address) -> tuple[_Address, ...]:
    """The address and those that are wrapped in it: a translator or a tunnel may take it there."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        # How a network of IPv6 alone reaches any host of IPv4.
        return (ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF),)
    meant: list[_Address] = [address]
    if address.sixtofour is not None:
        meant.append(address.sixtofour)
    if address.teredo is not None:
        meant.extend(address.teredo)
    return tuple(meant)


def _kind(address: _Address) -> str | None:
    """What is special about it; None for an address of the internet."""
    if _is_reserved(address):
        return "reserved or metadata"
    if address.is_loopback:
        return "loopback"
    if any(address in network for network in _NOT_PUBLIC):
        return "private"
    is_elsewhere = isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6
    return "private" if is_elsewhere or not address.is_global else None


_thread = threading.local()


class DeadlineExceeded(TimeoutError):
    """The attempt's time is up."""


class Deadline:
    """A moment by the monotonic clock."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, more than 0; raises :class:`DeadlineExceeded` where there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the attempt's time is up")
        return left

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._at


@contextmanager
def attempt_of_this_thread(deadline: Deadline, guard: AddressGuard) -> Iterator[None]:
    """What this thread's sockets go by until the end of the block."""
    _thread.attempt = (deadline, guard)
    try:
        yield
    finally:
        _thread.attempt = None


def this_attempt() -> tuple[Deadline, AddressGuard] | None:
    """What this thread's sockets go by."""
    attempt: tuple[Deadline, AddressGuard] | None = getattr(_thread, "attempt", None)
    return attempt


def _set_time_left(sock: socket.socket) -> None:
    attempt = this_attempt()
    if attempt is not None:
        sock.settimeout(attempt[0].left())


class _PlainSocket(socket.socket):
    """A TCP socket that ends with its thread's attempt."""

    def sendall(self, data: Buffer, flags: int = 0, /) -> None:
        """As of the base."""
        _set_time_left(self)
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As of the base."""
        _set_time_left(self)
        return super().recv_into(buffer, nbytes, flags)


class _TlsSocket(ssl.SSLSocket):
    """The same in TLS."""

    def do_handshake(self, block: bool = False) -> None:
        """As of the base."""
        _set_time_left(self)
        super().do_handshake(block)

    def send(self, data: Buffer, flags: int = 0) -> int:
        """As of the base."""
        _set_time_left(self)
        return super().send(data, flags)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        """As of the base."""
        _set_time_left(self)
        return super().read(len, buffer)


_SHORTEST_TRY: Final = 0.05


class AddressRefused(Exception):
    """Every address of the host is one that nothing may be sent to; the message names host and address."""


def connect(host: str, port: int) -> _PlainSocket:
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


def _connect_to(family: int, address: tuple[Any, ...], seconds: float) -> _PlainSocket:
    sock = _PlainSocket(family, socket.SOCK_STREAM)
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
        context.sslsocket_class = _TlsSocket
        super().init_poolmanager(*args, ssl_context=context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

    def forget(self) -> None:
        """Close connections that are not in use."""
        self.poolmanager.clear()
