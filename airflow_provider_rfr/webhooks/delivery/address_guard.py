"""Which addresses a webhook may be sent to.

Whoever may write a trigger must not be able to reach what only this machine can reach. So what is not on the internet
is denied, unless the installation allows it; a trigger can only narrow that. Asked for the address that a connection
is about to be made to, it can't be got round by a name that resolves to something else the second time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

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
class HostList:
    """Private hosts that may be called.

    :ivar names: hosts, with or without a port, in small letters
    :ivar networks: any address in them, whatever the host is called
    """

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[str]) -> HostList:
        """From entries like ``airflow.internal``, ``localhost:8080``, ``10.1.2.3``, ``[::1]:80`` or ``10.0.0.0/8``."""
        names: set[str] = set()
        networks: list[Network] = []
        for entry in (each.strip().lower() for each in entries):
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                names.add(entry.removesuffix("."))
        return cls(frozenset(names), tuple(networks))

    def lists(self, host: str, port: int, found: Address, special: Iterable[Address]) -> bool:
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

    installation: HostList = HostList()
    endpoint: HostList | None = None

    @classmethod
    def of(cls, installation: Iterable[str] = (), endpoint: Iterable[str] = ()) -> AddressGuard:
        """From the lists of both; an endpoint without a list narrows nothing."""
        narrower = tuple(endpoint)
        return cls(HostList.of(installation), HostList.of(narrower) if narrower else None)

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


def _is_reserved(address: Address) -> bool:
    return any(address in network for network in _RESERVED)


def _names_reserved(network: Network) -> bool:
    """Whether it is there for reserved addresses, and does not only happen to hold some, as 0.0.0.0/0 does."""
    return network.num_addresses == 1 or any(_is_within(network, each) for each in _RESERVED)


def _is_within(network: Network, other: Network) -> bool:
    return network.version == other.version and network.subnet_of(other)  # type: ignore[arg-type]


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
    if _is_reserved(address):
        return "reserved or metadata"
    if address.is_loopback:
        return "loopback"
    if any(address in network for network in _NOT_PUBLIC):
        return "private"
    is_elsewhere = isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6
    return "private" if is_elsewhere or not address.is_global else None
