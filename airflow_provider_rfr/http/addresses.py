"""Addresses that a request may go to.

Authors of triggers must not reach what only this machine can reach. So a private address is refused unless
the installation allows it, and a trigger's own list can only narrow that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Cloud metadata and addresses of no single machine. A host's name never opens them, nor does a wider network.
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
    """Private hosts that may be called: names in small letters, with or without a port, and networks."""

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
        """Tell whether all special addresses are allowed: the one that was found, or those that are wrapped in it."""
        name = host.lower().strip("[]").removesuffix(".")
        by_name = not self.names.isdisjoint({name, f"{name}:{port}", f"[{name}]:{port}"})
        for address in special:
            networks = [network for network in self.networks if address in network or found in network]
            if _is_reserved(address):
                # 0.0.0.0/0 holds the metadata service by accident: only a network that is meant for it opens it.
                if not any(network.num_addresses == 1 or _is_reserved(network) for network in networks):
                    return False
            elif not by_name and not networks:
                return False
        return True


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """The private addresses that are allowed for all endpoints, and the part of them for this one; None for all."""

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
    """Return the addresses that a packet may reach: a translator or tunnel unwraps those inside an IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        # How a network without IPv4 reaches hosts of IPv4.
        return (ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF),)
    meant: list[_Address] = [address]
    if address.sixtofour is not None:
        meant.append(address.sixtofour)
    if address.teredo is not None:
        meant.extend(address.teredo)
    return tuple(meant)


def _kind(address: _Address) -> str | None:
    """Return the kind of an address that is not of the internet; None if it is."""
    if _is_reserved(address):
        return "reserved or metadata"
    if address.is_loopback:
        return "loopback"
    if any(address in network for network in _NOT_PUBLIC):
        return "private"
    is_elsewhere = isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6
    return "private" if is_elsewhere or not address.is_global else None
