"""Connections within a total deadline, to addresses that were checked.

A socket timeout restarts with every byte, so a dripping server could hold its caller for ever. These sockets set the
remaining time before every operation, TLS handshakes included. A name is resolved once, checked, and connected to by
the address that was checked: a second resolution could give another one.

Authors of triggers must not reach hosts that only this machine can reach. So a private address is refused unless the
installation allows it, and a trigger's own list can only narrow that.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import certifi
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.poolmanager import PoolManager, ProxyManager
from urllib3.util import make_headers, parse_url
from urllib3.util.ssl_ import create_urllib3_context

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SHORTEST_TRY: Final = 0.05
_MOST_CONNECTIONS: Final = 256
_thread = threading.local()

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Cloud metadata services, and addresses of no single machine. Neither a host's name nor a wider network allows them.
_RESERVED_NETWORKS: Final = (
    "0.0.0.0/8 100.100.100.200/32 168.63.129.16/32 169.254.0.0/16 192.0.0.192/32 224.0.0.0/4 240.0.0.0/4"
    " ::/128 fe80::/10 ff00::/8 fd00:ec2::/32 fd20:ce::/32"
)
_PRIVATE_NETWORKS: Final = (
    "10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16"
    " 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 2001:2::/48 2001:db8::/32 3fff::/20"
)
_RESERVED: Final = tuple(map(ipaddress.ip_network, _RESERVED_NETWORKS.split()))
_NOT_PUBLIC: Final = tuple(map(ipaddress.ip_network, _PRIVATE_NETWORKS.split()))
# The only part of IPv6 that is routed on the internet.
_GLOBAL_IPV6: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class _HostList:
    """Private hosts that may be called: names in lower case, with or without a port, and networks."""

    names: frozenset[str] = frozenset()
    networks: tuple[_Network, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> _HostList:
        """Return the list of entries like ``airflow.internal``, ``localhost:8080``, ``[::1]:80`` or ``10.0.0.0/8``."""
        names: set[str] = set()
        networks: list[_Network] = []
        for entry in (entry.strip().lower() for entry in entries):
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                names.add(entry.removesuffix("."))
        return cls(frozenset(names), tuple(networks))

    def lists(self, host: str, port: int, found: _Address, special: Iterable[_Address]) -> bool:
        """Tell whether the list allows all addresses in ``special``: the resolved one, or those that it contains.

        :param found: the address that the host resolved to
        """
        name = host.lower().strip("[]").removesuffix(".")
        by_name = not self.names.isdisjoint({name, f"{name}:{port}", f"[{name}]:{port}"})
        for address in special:
            networks = [network for network in self.networks if address in network or found in network]
            if _is_reserved(address):
                # 0.0.0.0/0 includes the metadata service by accident: only a network that is meant for it allows it.
                if not any(network.num_addresses == 1 or _is_reserved(network) for network in networks):
                    return False
            elif not by_name and not networks:
                return False
        return True


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """The private addresses that all endpoints may call, and the narrower list of this endpoint; None for no list."""

    installation: _HostList = _HostList()
    endpoint: _HostList | None = None

    @classmethod
    def of(cls, installation: Iterable[str] = (), endpoint: Iterable[str] = ()) -> AddressGuard:
        """Return a guard with the lists of both; an endpoint without a list narrows nothing."""
        narrower = tuple(endpoint)
        return cls(_HostList.of(installation), _HostList.of(narrower) if narrower else None)

    def refusal(self, host: str, port: int, address: str) -> str | None:
        """Return, for the log, the reason to refuse an address that the host resolved to; None if it is allowed."""
        resolved = ipaddress.ip_address(address.partition("%")[0])
        special = [address for address in _all_meant(resolved) if _kind(address) is not None]
        if not self.installation.lists(host, port, resolved, special):
            lacking = "[rfr] webhook_allowed_hosts of Airflow's configuration"
        elif self.endpoint is not None and not self.endpoint.lists(host, port, resolved, special):
            lacking = "the trigger's allowedHosts"
        else:
            return None
        destination = (
            "this address or a reserved network" if any(map(_is_reserved, special)) else "the host or its network"
        )
        named = host if host.strip("[]") == str(resolved) else f"{host} ({resolved})"
        return f"{named} is a {_kind(special[0])} address; {lacking} has to list {destination}"


def _is_reserved(block: _Address | _Network) -> bool:
    """Tell whether an address, or all of a network, is reserved."""
    network = ipaddress.ip_network(block)
    return any(
        network.version == reserved.version and network.subnet_of(reserved)  # type: ignore[arg-type]
        for reserved in _RESERVED
    )


def _all_meant(address: _Address) -> tuple[_Address, ...]:
    """Return the addresses that a packet may reach: translators and tunnels unwrap an IPv4 address inside IPv6."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        # Through NAT64, a network without IPv4 reaches IPv4 hosts.
        return (ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF),)
    meant: list[_Address] = [address]
    if address.sixtofour is not None:
        meant.append(address.sixtofour)
    if address.teredo is not None:
        meant.extend(address.teredo)
    return tuple(meant)


def _kind(address: _Address) -> str | None:
    """Return the kind of an address that is not on the public internet; None for a public address."""
    if _is_reserved(address):
        return "reserved or metadata"
    if address.is_loopback:
        return "loopback"
    if any(address in network for network in _NOT_PUBLIC):
        return "private"
    is_elsewhere = isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6
    return "private" if is_elsewhere or not address.is_global else None


class DeadlineExceeded(TimeoutError):
    """The deadline has passed."""


class ConnectTimeout(TimeoutError):
    """No address of the host accepted a connection in time."""


class AddressRefused(Exception):
    """No address of the host is allowed; the message names host and address."""


class Deadline:
    """A deadline by the monotonic clock, ``seconds`` after its creation."""

    __slots__ = ("_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left, more than 0.

        :raises DeadlineExceeded: the deadline has passed
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

    :param connect: seconds for opening a connection; None for as long as the deadline allows
    :param read: seconds without a byte; None for as long as the deadline allows
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
    """A TLS socket whose every wait ends with its thread's deadline; TLS uses other methods of the socket."""

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
    :raises OSError: the name can't be resolved, or the last address refused
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
        sock = None
        try:
            # Fails if the kernel lacks the family: addresses of IPv6 resolve also where it is disabled.
            sock = _PlainSocket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # An address that swallows packets must leave time for the next one.
            sock.settimeout(max(_SHORTEST_TRY, connecting.left() / (len(allowed) - number)))
            sock.connect(address)
            return sock
        except OSError as error:
            if sock is not None:
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

    If an interim response were taken for the final one, the final one would be read as the response to the connection's
    next request.
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


def pool_manager(verify: bool | str, proxy: str | None = None) -> PoolManager:
    """Return a manager of connections over the sockets of this module, for any number of threads.

    :param verify: the certificates that TLS trusts: True for those of certifi, False for any, or the path of others
    :param proxy: address of an HTTP proxy, with its user and password
    :raises OSError: there are no certificates at the path
    """
    context = create_urllib3_context()
    context.check_hostname = verify is not False
    context.sslsocket_class = _TlsSocket
    if verify is not False:
        # Loaded once. Given a path, urllib3 would load it for each connection, and certifi's bundle takes 25 ms of CPU.
        path = certifi.where() if verify is True else str(verify)
        context.load_verify_locations(**{"capath" if os.path.isdir(path) else "cafile": path})
    settings: dict[str, Any] = {
        "maxsize": _MOST_CONNECTIONS,
        "ssl_context": context,
        "cert_reqs": "CERT_NONE" if verify is False else "CERT_REQUIRED",
    }
    manager = PoolManager(**settings) if proxy is None else _proxy_manager(proxy, settings)
    manager.pool_classes_by_scheme = _POOLS
    return manager


def _proxy_manager(proxy: str, settings: Mapping[str, Any]) -> ProxyManager:
    address = parse_url(proxy if "://" in proxy else f"http://{proxy}")
    login = make_headers(proxy_basic_auth=unquote(address.auth)) if address.auth else None
    return ProxyManager(address._replace(auth=None).url, proxy_headers=login, **settings)
