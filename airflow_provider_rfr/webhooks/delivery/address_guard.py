"""Which addresses a webhook may be sent to.

Whoever may write a trigger must not be able to reach what only this machine can reach. So what is not on the internet
is denied, unless it is allowed by name. Asked for the address that a connection is about to be made to, it can't be
got round by a name that resolves to something else the second time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What a name in the allow-list does not open: cloud metadata and what is no single machine.
_NEVER_BY_NAME: Final = tuple(
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
class AddressGuard:
    """What is allowed besides the internet.

    :ivar names: hosts, with or without a port, in small letters
    :ivar networks: any address in them, whatever the host is called
    """

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, *lists: Iterable[str]) -> AddressGuard:
        """From entries like ``airflow.internal``, ``localhost:8080``, ``10.1.2.3``, ``[::1]:80`` or ``10.0.0.0/8``."""
        names: set[str] = set()
        networks: list[Network] = []
        for entry in (each.strip().lower() for entries in lists for each in entries):
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                names.add(entry.removesuffix("."))
        return cls(frozenset(names), tuple(networks))

    def refusal(self, host: str, port: int, address: str) -> str | None:
        """Why nothing may be sent there, in words for a log; None if it may.

        :param host: as the URL has it
        :param address: that the host resolved to, and that is about to be connected to
        """
        found = ipaddress.ip_address(address.partition("%")[0])
        inner = _all_meant(found)
        if any(each in network for each in (found, *inner) for network in self.networks):
            return None
        kind = next((kind for kind in map(_kind, inner) if kind is not None), None)
        if kind is None:
            return None
        name = host.lower().strip("[]").removesuffix(".")
        by_name = not self.names.isdisjoint({name, f"{name}:{port}", f"[{name}]:{port}"})
        if by_name and not any(each in network for each in inner for network in _NEVER_BY_NAME):
            return None
        remedy = "the address or its network" if by_name else "the host"
        return f"{host} is {found}, a {kind} address; allowed_hosts has to list {remedy}"


def _all_meant(address: Address) -> tuple[Address, ...]:
    """The address and those that are wrapped in it: a translator or a tunnel may take it there."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address in _NAT64:
        # How a network of IPv6 alone reaches any host of IPv4.
        return (ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF),)
    meant: list[Address] = [address]
    if address.sixtofour is not None:
        meant.append(address.sixtofour)
    if address.teredo is not None:
        meant.extend(address.teredo)
    return tuple(meant)


def _kind(address: Address) -> str | None:
    """What is special about it; None for an address of the internet."""
    if any(address in network for network in _NEVER_BY_NAME):
        return "reserved or metadata"
    if address.is_loopback:
        return "loopback"
    if any(address in network for network in _NOT_PUBLIC):
        return "private"
    is_elsewhere = isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6
    return "private" if is_elsewhere or not address.is_global else None
