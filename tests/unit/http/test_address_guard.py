"""Where webhooks may go."""

from __future__ import annotations

import socket

import pytest

from airflow_provider_rfr.http.sockets import AddressGuard, AddressRefused, Deadline, attempt_of_this_thread, connect
from tests.unit.messages import raises
from tests.webhook_receiver import Receiver, receiver

PUBLIC = (
    "93.184.216.34 1.1.1.1 2606:2800:220:1::1 2a00:1450:4001::200e ::ffff:1.1.1.1 64:ff9b::1.1.1.1 172.32.0.1 11.0.0.1"
)
PRIVATE = (
    "127.0.0.1 127.8.8.8 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 198.18.0.1 192.0.2.1 ::1"
    " fc00::1 fd12:3456::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 64:ff9b:1::1.1.1.1 ::10.0.0.1"
    " 2002:7f00:1:: 2002:a00:1:: 2001:db8::1 fec0::1 100::1"
)
METADATA = (
    "169.254.169.254 169.254.170.2 fd00:ec2::254 fd20:ce::254 fe80::1 fe80::1%eth0 100.100.100.200"
    " 168.63.129.16 192.0.0.192 0.0.0.0 0.1.2.3 :: 224.0.0.1 239.255.255.250 255.255.255.255 240.0.0.1 ff02::1"
    " ::ffff:169.254.169.254 64:ff9b::169.254.169.254 2002:a9fe:a9fe::"
)


def test_the_internet_is_open() -> None:
    for address in PUBLIC.split():
        assert AddressGuard().refusal("example.com", 443, address) is None, address


def test_everything_else_is_closed() -> None:
    for address in f"{PRIVATE} {METADATA}".split():
        refusal = AddressGuard().refusal("example.com", 443, address)
        assert refusal is not None, address
        assert "[rfr] webhook_allowed_hosts of Airflow's configuration has to list" in refusal


@pytest.mark.parametrize(
    "entry", ["airflow.internal", "Airflow.Internal", "airflow.internal.", "airflow.internal:8080"]
)
def test_a_host_is_opened_by_its_name(entry: str) -> None:
    guard = AddressGuard.of([entry])
    assert guard.refusal("airflow.internal", 8080, "10.0.0.1") is None
    assert guard.refusal("AIRFLOW.internal.", 8080, "::1") is None
    assert guard.refusal("other.internal", 8080, "10.0.0.1") is not None
    is_for_one_port = entry.endswith("8080")
    assert (guard.refusal("airflow.internal", 22, "10.0.0.1") is not None) is is_for_one_port


def test_a_name_never_opens_metadata_but_its_address_does() -> None:
    for address in METADATA.split():
        by_name = AddressGuard.of(["airflow.internal"]).refusal("airflow.internal", 80, address)
        assert by_name is not None, address
        assert "this address or a reserved network" in by_name
        assert AddressGuard.of([address.partition("%")[0]]).refusal("any.host", 80, address) is None


def test_a_network_that_only_happens_to_hold_metadata_does_not_open_it() -> None:
    everything = AddressGuard.of(["0.0.0.0/0", "::/0", "100.64.0.0/10", "fd00::/8", "64:ff9b::/96", "2002::/16"])
    for address in METADATA.split():
        refusal = everything.refusal("any.host", 80, address)
        assert refusal is not None, address
        assert "this address or a reserved network" in refusal


def test_a_reserved_network_opens_what_is_in_it() -> None:
    guard = AddressGuard.of(["169.254.170.0/24", "fd00:ec2::/64"])
    assert guard.refusal("any.host", 80, "169.254.170.2") is None
    assert guard.refusal("any.host", 80, "fd00:ec2::254") is None
    assert guard.refusal("any.host", 80, "169.254.169.254") is not None


def test_an_endpoint_opens_nothing_that_the_installation_does_not() -> None:
    for own in (["169.254.169.254"], ["0.0.0.0/0"], ["10.0.0.1", "metadata.internal"]):
        for address in ("169.254.169.254", "10.0.0.1", "127.0.0.1"):
            refusal = AddressGuard.of([], own).refusal("metadata.internal", 80, address)
            assert refusal is not None
            assert "[rfr] webhook_allowed_hosts" in refusal


def test_an_endpoint_narrows_what_the_installation_allows() -> None:
    guard = AddressGuard.of(["10.0.0.0/8"], ["hooks.internal"])
    assert guard.refusal("hooks.internal", 80, "10.1.2.3") is None
    other = guard.refusal("other.internal", 80, "10.1.2.3")
    assert other is not None
    assert "the trigger's allowedHosts has to list the host" in other
    assert guard.refusal("hooks.internal", 80, "192.168.0.1") is not None
    assert guard.refusal("example.com", 443, "93.184.216.34") is None


def test_a_network_is_opened_whatever_the_host_is_called() -> None:
    guard = AddressGuard.of(["10.0.0.0/8", "fd12::/16", "[::1]"])
    assert guard.refusal("any.host", 80, "10.9.8.7") is None
    assert guard.refusal("any.host", 80, "::ffff:10.9.8.7") is None
    assert guard.refusal("any.host", 80, "fd12::7") is None
    assert guard.refusal("any.host", 80, "::1") is None
    assert guard.refusal("any.host", 80, "192.168.0.1") is not None


def connected(host: str, port: int, *allowed: str) -> str:
    with attempt_of_this_thread(Deadline(5.0), AddressGuard.of(allowed)):
        with connect(host, port) as sock:
            return sock.getpeername()[0]


@pytest.fixture
def server():
    with receiver() as running:
        yield running


@pytest.mark.parametrize("spelling", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
def test_no_spelling_of_an_address_gets_by(server: Receiver, spelling: str) -> None:
    with raises(AddressRefused):
        connected(spelling, server.port)
    assert connected(spelling, server.port, "127.0.0.0/8") == "127.0.0.1"


def test_a_name_that_resolves_to_something_else_the_second_time_gains_nothing(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host, port, *more):
        if host != "rebinding.test":
            return real(host, port, *more)
        if more[-1] & socket.AI_NUMERICHOST:
            raise socket.gaierror
        asked.append(host)
        address = "127.0.0.1" if len(asked) > 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with raises(AddressRefused):
        connected("rebinding.test", server.port)
    assert asked == ["rebinding.test"], "it is resolved once, and what was checked is what is connected to"
    with raises(AddressRefused):
        connected("rebinding.test", server.port)


def name_has(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[int, str]) -> None:
    """Let each name resolve to these families and addresses."""

    def resolve(host, port, *more):
        if more[-1] & socket.AI_NUMERICHOST:
            raise socket.gaierror
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_of_several_addresses_only_those_that_are_allowed_are_tried(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_has(monkeypatch, *((socket.AF_INET, address) for address in ("169.254.169.254", "127.0.0.2", "127.0.0.1")))
    assert connected("several.test", server.port, "127.0.0.1") == "127.0.0.1"


def test_an_address_of_a_family_that_the_kernel_lacks_is_passed_over(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No kernel makes a TCP socket of the first family.
    name_has(monkeypatch, (socket.AF_ALG, "::1"), (socket.AF_INET, "127.0.0.1"))
    assert connected("both.test", server.port, "127.0.0.1", "::1") == "127.0.0.1"


def test_nothing_is_connected_to_outside_of_an_attempt(server: Receiver) -> None:
    with pytest.raises(AddressRefused):
        connect("127.0.0.1", server.port)
